//! Kernels of our own. One text (`kernels/`) is compiled for the host when this crate is built, and for a GPU when a worker starts.

use std::ffi::{CStr, c_char, c_void};

/// What is compiled for a GPU: all texts, in the order in which they need each other.
pub(crate) const SOURCE: &str = concat!(
    include_str!("../kernels/prelude.h"),
    include_str!("../kernels/arguments.h"),
    include_str!("../kernels/optimizer.cu"),
    include_str!("../kernels/momentum.cu"),
    include_str!("../kernels/columns.cu"),
    include_str!("../kernels/norm.cu"),
    include_str!("../kernels/gelu.cu"),
    include_str!("../kernels/dropout.cu"),
    include_str!("../kernels/loss.cu"),
    include_str!("../kernels/squares.cu"),
    include_str!("../kernels/product.cu"),
);

/// Threads of a block; `kernels/prelude.h` has the same.
pub(crate) const THREADS: u32 = 256;
/// Elements of a block of [`Kernel::Optimizer`] and [`Kernel::Momentum`]; `kernels/prelude.h` has the same.
const TILE: u64 = 2048;

/// A kernel. What it computes stands with its text, its arguments in `kernels/arguments.h`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kernel {
    /// Unscale, clip, AdamW and the 16-bit copy in one pass.
    Optimizer,
    /// Layer norm; a warp for each row.
    NormForward,
    /// The gradient of its input; a warp for each row.
    NormBackward,
    /// The gradients of weight and bias, in parts; a block for some columns of each chunk of rows.
    NormColumns,
    /// Adds the parts up; a block for a warp's width of columns.
    AddColumns,
    /// Bias and GELU; a block for each row.
    GeluForward,
    /// Their backward; blocks as [`Kernel::NormColumns`].
    GeluBackward,
    /// Dropout of rows under their keys; a block for each tile of a row.
    Dropout,
    /// Unscale, clip, SGD with momentum and the 16-bit copy in one pass.
    Momentum,
    /// The gradient of a bias, in parts; blocks as [`Kernel::NormColumns`].
    SumRows,
    /// Cross-entropy and its gradient; a block for each row.
    Loss,
    /// Sums of squares of blocks of a flat range, which are the kernel's blocks.
    Squares,
    /// A product of matrices plus another matrix; a block for some rows and columns of it.
    Product,
}

impl Kernel {
    /// All, in the order of their numbers.
    pub const ALL: [Kernel; 13] = [
        Kernel::Optimizer,
        Kernel::NormForward,
        Kernel::NormBackward,
        Kernel::NormColumns,
        Kernel::AddColumns,
        Kernel::GeluForward,
        Kernel::GeluBackward,
        Kernel::Dropout,
        Kernel::Momentum,
        Kernel::SumRows,
        Kernel::Loss,
        Kernel::Squares,
        Kernel::Product,
    ];

    pub(crate) fn name(self) -> &'static CStr {
        match self {
            Kernel::Optimizer => c"optimizer",
            Kernel::NormForward => c"norm_forward",
            Kernel::NormBackward => c"norm_backward",
            Kernel::NormColumns => c"norm_columns",
            Kernel::AddColumns => c"add_columns",
            Kernel::GeluForward => c"gelu_forward",
            Kernel::GeluBackward => c"gelu_backward",
            Kernel::Dropout => c"dropout",
            Kernel::Momentum => c"momentum",
            Kernel::SumRows => c"sum_rows",
            Kernel::Loss => c"loss",
            Kernel::Squares => c"squares",
            Kernel::Product => c"product",
        }
    }

    /// Blocks below which a second thread of the host costs more than it gains.
    fn blocks_of_a_thread(self) -> u64 {
        match self {
            // Each is a million multiplications or so.
            Kernel::Product => 4,
            // Two megabytes of parameters.
            _ => 256,
        }
    }
}

/// A format of 16 bits that weights are rounded to, with its number in `kernels/arguments.h`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum Narrow {
    /// Single precision's range.
    BFloat16 = 1,
    /// Half precision.
    Float16 = 2,
}

/// AdamW over flat ranges of equal length; see `OptimizerArguments` in `kernels/arguments.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct OptimizerArguments {
    /// The parameters; changed.
    pub weights: *mut f32,
    /// First moments; changed.
    pub first: *mut f32,
    /// Second moments; changed.
    pub second: *mut f32,
    /// The gradients, which are only read.
    pub gradients: *const f32,
    /// Where the rounded weights go; null where `format` is 0.
    pub copy: *mut u16,
    /// Elements of each.
    pub count: i64,
    /// What each gradient is multiplied by.
    pub factor: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// 1 minus the decay of the first moment.
    pub rest1: f32,
    /// 1 minus that of the second.
    pub rest2: f32,
    /// 1 minus rate times weight decay.
    pub keep: f32,
    /// Learning rate over the first moment's correction.
    pub rate: f32,
    /// Root of the second moment's correction.
    pub correction2: f32,
    /// Added to the root.
    pub epsilon: f32,
    /// Format of the copy: 0 for no copy, or a [`Narrow`].
    pub format: i32,
}

impl OptimizerArguments {
    /// Blocks that these take.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        blocks_of(self.count)
    }
}

/// Dropout of rows of equal length; see `DropoutArguments` in `kernels/arguments.h`. The shim fills them in; this is for tests.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct DropoutArguments {
    x: *const c_void,
    y: *mut c_void,
    rows: i64,
    width: i64,
    threshold: u64,
    scale: f32,
    format: i32,
    keys: [u64; DropoutArguments::ROWS],
}

#[cfg(test)]
impl DropoutArguments {
    const ROWS: usize = 256;
}

/// SGD over flat ranges of equal length; see `MomentumArguments` in `kernels/arguments.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MomentumArguments {
    /// The parameters; changed.
    pub weights: *mut f32,
    /// Momentum of the parameters; changed.
    pub first: *mut f32,
    /// The gradients, which are only read.
    pub gradients: *const f32,
    /// Where the rounded weights go; null where `format` is 0.
    pub copy: *mut u16,
    /// Elements of each.
    pub count: i64,
    /// What each gradient is multiplied by.
    pub factor: f32,
    /// What is kept of the momentum.
    pub momentum: f32,
    /// Weight decay, a part of the gradient.
    pub decay: f32,
    /// Learning rate.
    pub rate: f32,
    /// Format of the copy: 0 for no copy, or a [`Narrow`].
    pub format: i32,
}

impl MomentumArguments {
    /// Blocks that these take.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        blocks_of(self.count)
    }
}

/// Rows and columns of a block of [`Kernel::Product`]; `kernels/product.cu` has the same.
const PRODUCT_ROWS: u64 = 32;
const PRODUCT_COLUMNS: u64 = 64;

/// A product of matrices; see `ProductArguments` in `kernels/arguments.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ProductArguments {
    /// The matrix on the left, (rows, inner).
    pub left: *const f32,
    /// The matrix on the right, (inner, columns).
    pub right: *const f32,
    /// What is added, (rows, columns); null: nothing.
    pub other: *const f32,
    /// The sum; none of the others.
    pub sum: *mut f32,
    /// Rows of the sum.
    pub rows: i64,
    /// Elements of each sum.
    pub inner: i64,
    /// Columns of the sum.
    pub columns: i64,
    /// What the product is multiplied by.
    pub of_product: f32,
    /// What the other matrix is multiplied by.
    pub of_other: f32,
}

impl ProductArguments {
    /// Blocks that these take.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        let blocks = |elements: i64, each| u64::try_from(elements).unwrap_or(0).div_ceil(each);
        blocks(self.rows, PRODUCT_ROWS) * blocks(self.columns, PRODUCT_COLUMNS)
    }
}

fn blocks_of(count: i64) -> u64 {
    u64::try_from(count).unwrap_or(0).div_ceil(TILE)
}

/// `HostKernel` in `kernels/host.cpp`.
#[repr(C)]
struct Entry {
    name: *const c_char,
    run: unsafe extern "C" fn(i64, *const c_void),
    argument_bytes: u64,
}

#[expect(unsafe_code, reason = "declares the one function of the C++ text")]
unsafe extern "C" {
    safe fn varuna_host_kernels(count: &mut u64) -> *const Entry;
}

/// A kernel as the host runs it.
#[derive(Clone, Copy, Debug)]
pub struct HostKernel {
    run: unsafe extern "C" fn(i64, *const c_void),
    /// Bytes of its arguments.
    pub argument_bytes: usize,
}

#[expect(unsafe_code, reason = "a static table of the C++ text, and functions of it")]
impl HostKernel {
    /// The kernel of this name.
    #[must_use]
    pub fn find(name: &CStr) -> Option<HostKernel> {
        let mut count = 0;
        let first = varuna_host_kernels(&mut count);
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: the text returns a static array and its length; names are static texts that end with a zero.
        let all = unsafe { std::slice::from_raw_parts(first, count) };
        // SAFETY: as above.
        let found = all.iter().find(|e| unsafe { CStr::from_ptr(e.name) } == name)?;
        Some(HostKernel {
            run: found.run,
            argument_bytes: usize::try_from(found.argument_bytes).ok()?,
        })
    }

    /// Runs the blocks in order.
    ///
    /// # Safety
    /// `arguments` points to this kernel's arguments, whose memory is there, in the host's memory and used by nobody else in these blocks.
    pub unsafe fn run(self, blocks: std::ops::Range<u64>, arguments: *const c_void) {
        for block in blocks {
            // SAFETY: by the caller.
            unsafe { (self.run)(block.cast_signed(), arguments) };
        }
    }
}

/// Runs a kernel on the host, its blocks shared out among at most so many threads. The result does not depend on their number.
///
/// # Safety
/// As [`HostKernel::run`], for all `blocks`.
#[expect(unsafe_code, reason = "arguments are known to the caller alone")]
pub unsafe fn run_on_host(kernel: Kernel, blocks: u64, arguments: *const c_void, threads: usize) {
    struct Arguments(*const c_void);
    // SAFETY: no two blocks of a kernel write to the same place, and none reads what another writes.
    unsafe impl Sync for Arguments {}
    let Some(found) = HostKernel::find(kernel.name()) else {
        unreachable!("a test finds every kernel in the host's table");
    };
    let threads = (blocks / kernel.blocks_of_a_thread()).clamp(1, threads.max(1) as u64);
    let share = blocks.div_ceil(threads).max(1);
    let arguments = Arguments(arguments);
    let part = |number: u64| {
        let arguments = &arguments;
        // SAFETY: by the caller; parts do not overlap.
        unsafe {
            found.run(
                (number * share).min(blocks)..((number + 1) * share).min(blocks),
                arguments.0,
            )
        };
    };
    std::thread::scope(|scope| {
        for number in 1..threads {
            let thread = std::thread::Builder::new().spawn_scoped(scope, move || part(number));
            // The system may have no more threads for this process. C++ calls this too, through which no panic can go.
            if thread.is_err() {
                part(number);
            }
        }
        part(0);
    });
}

#[cfg(test)]
#[expect(unsafe_code, reason = "arguments are pointers")]
mod tests;
