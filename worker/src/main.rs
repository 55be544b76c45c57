//! `varuna-worker`: one process, one device, one stage at a time.

use std::process::ExitCode;

fn main() -> ExitCode {
    match varuna_worker::program::run(varuna_worker::backend::Platform::MACHINE) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => varuna_wire::report_failure("varuna-worker", &*error),
    }
}
