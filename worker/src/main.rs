//! `varuna-worker`: one process, one device, one stage at a time.

fn main() -> anyhow::Result<()> {
    varuna_worker::program::run(varuna_worker::backend::Platform::MACHINE)
}
