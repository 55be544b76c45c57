//! The worker on a stand-in for a GPU: it computes on the processor in memory apart from the host's, copies late, and has NCCL. Whole
//! runs are tested with it (`tests/processes/nccl.rs`): `varuna run --worker THIS`.

use varuna_cuda::{Libraries, LoadError};
use varuna_torch::{Device, DeviceChoice, DeviceError};
use varuna_worker::backend::Platform;

fn device(choice: DeviceChoice) -> Result<Device, DeviceError> {
    match choice {
        DeviceChoice::Cpu => Ok(Device::Cpu),
        DeviceChoice::Auto | DeviceChoice::Cuda(_) => Ok(Device::Apart),
    }
}

/// The stand-in, which is built with this program's own libraries.
fn libraries() -> Result<Libraries, LoadError> {
    let own = std::env::current_exe().unwrap_or_default();
    let folder = own.ancestors().nth(2).unwrap_or(&own);
    Libraries::load_from(&folder.join("deps").join("libvaruna_fake_nccl.so"))
}

fn main() -> anyhow::Result<()> {
    varuna_worker::program::run(Platform { device, libraries })
}
