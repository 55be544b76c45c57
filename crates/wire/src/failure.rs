//! How programs tell why they failed: one line, whatever the causes.

use std::error::Error;
use std::io::Write as _;
use std::process::ExitCode;

/// What an error says, and what its causes say that it does not.
#[must_use]
pub fn with_causes(said: &str, mut cause: Option<&(dyn Error + 'static)>) -> String {
    let mut text = said.to_owned();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}

/// Prints `<program>: <error>` and returns the exit code 1. A `main` that returns the error itself would print it in several lines, causes
/// twice, and with `RUST_BACKTRACE` a backtrace behind them, which hides the reason from whoever reads the last line.
#[must_use]
pub fn report_failure(program: &str, error: &(dyn Error + 'static)) -> ExitCode {
    let line = line(program, error);
    // The line is lost if it cannot be written; the exit code still tells.
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
    ExitCode::FAILURE
}

fn line(program: &str, error: &(dyn Error + 'static)) -> String {
    let text = with_causes(&error.to_string(), error.source());
    // Errors of libraries may have several lines.
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    format!("{program}: {}", lines.collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct TestError(&'static str, #[source] Option<Box<TestError>>);

    fn caused(said: &'static str, cause: &'static str) -> TestError {
        TestError(said, Some(Box::new(TestError(cause, None))))
    }

    #[test]
    fn an_error_is_told_with_its_causes_and_none_of_them_twice() {
        let cause = caused("cannot connect", "refused");
        assert_eq!(
            with_causes("transport error", Some(&cause)),
            "transport error: cannot connect: refused"
        );
        assert_eq!(
            with_causes("cannot connect: refused", Some(&cause)),
            "cannot connect: refused"
        );
    }

    #[test]
    fn a_failed_program_says_why_in_one_line() {
        let error = caused("cannot open a.bin: no such file", "no such file");
        assert_eq!(
            line("varuna-worker", &error),
            "varuna-worker: cannot open a.bin: no such file"
        );
        let error = caused("--device", "out of memory\n\n  raised from here\n");
        assert_eq!(line("w", &error), "w: --device: out of memory raised from here");
    }
}
