//! Panics of libtorch's operators: tch panics where they fail, and a lack of memory is no defect of this program.

use super::EngineError;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use varuna_torch::{TorchError, out_of_memory};

/// Runs a part of the engine's work. A panic for lack of memory is an error of libtorch's: what the part was making is gone with it, and what it
/// has changed until then stays changed. Other panics go on.
pub(super) fn caught<T>(part: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
    match catch_unwind(AssertUnwindSafe(part)) {
        Ok(result) => result,
        Err(panic) => {
            let message = panic_message(&*panic);
            match out_of_memory(&message) {
                Some(_) => Err(TorchError(message).into()),
                None => resume_unwind(panic),
            }
        }
    }
}

/// The message of a panic.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("for a reason that it did not say").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Kind, Tensor};

    #[test]
    fn lack_of_memory_is_an_error_and_other_panics_are_not() {
        // More than a process can address.
        let large = || {
            let _ = Tensor::empty([1_i64 << 50], (Kind::Float, tch::Device::Cpu));
            Ok(())
        };
        assert!(matches!(caught(large), Err(EngineError::Torch(_))));
        assert_eq!(caught(|| Ok(())), Ok(()));
        let other = catch_unwind(|| caught::<()>(|| panic!("another reason")));
        assert_eq!(panic_message(&*other.unwrap_err()), "another reason");
    }
}
