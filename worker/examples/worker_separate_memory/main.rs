//! The worker on a stand-in for a GPU: it computes on the processor in memory apart from the host's, copies late, and has NCCL. Whole
//! runs are tested with it (`tests/processes/nccl.rs`): `varuna run --worker THIS`. The worker that `VARUNA_APART_WITHOUT_NCCL` names has a
//! driver only.

use std::process::ExitCode;
use varuna_cuda::{Libraries, LoadError};
use varuna_torch::{Device, DeviceChoice, DeviceError};
use varuna_worker::backend::Platform;

fn device(choice: DeviceChoice) -> Result<Device, DeviceError> {
    match choice {
        DeviceChoice::Cpu => Ok(Device::Cpu),
        DeviceChoice::Auto | DeviceChoice::AnyCuda | DeviceChoice::Cuda(_) => Ok(Device::CpuSeparateMemory),
    }
}

/// Whether this process is the worker that has no NCCL.
fn lacks_nccl() -> bool {
    let name = std::env::args().skip_while(|a| a != "--name").nth(1);
    name.is_some() && name == std::env::var("VARUNA_APART_WITHOUT_NCCL").ok()
}

/// The stand-in, which is built with this program's own libraries.
fn libraries() -> Result<Libraries, LoadError> {
    let own = std::env::current_exe().unwrap_or_default();
    let folder = own.ancestors().nth(2).unwrap_or(&own).join("deps");
    let stand_in = folder.join("libvaruna_fake_nccl.so");
    match lacks_nccl() {
        true => Libraries::load_from_two(&stand_in, &folder.join("libnccl-absent.so.2")),
        false => Libraries::load_from(&stand_in),
    }
}

fn main() -> ExitCode {
    match varuna_worker::program::run(Platform { device, libraries }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => varuna_wire::report_failure("worker_separate_memory", &*error),
    }
}
