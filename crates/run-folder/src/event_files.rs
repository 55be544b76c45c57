//! `tensorboard/`: the committed steps once more, as event files that TensorBoard reads.
//!
//! Each coordinator starts a new file, since TensorBoard never returns to a file that it has read to the end. If a coordinator that ended
//! left half a record in a file, that does no harm: TensorBoard continues with the next file.

use crate::Metric;
use crate::log::Log;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use varuna_plan::Step;
use varuna_tensorboard::{Scalar, file_name, scalars, start, version};

/// Maximum size of a file before a new one is started, some ten thousand steps later: if files are copied to a bucket, the last one is
/// copied again each time.
const FILE_BYTES_MAX: usize = 4 << 20;

/// The event files of one coordinator.
pub(crate) struct EventFiles {
    folder: PathBuf,
    file: Option<(Log, usize)>,
    /// The step that was written last.
    last: Option<Step>,
    bytes_max: usize,
}

impl EventFiles {
    /// The event files in a folder, which is created with the first file.
    pub(crate) fn new(folder: PathBuf) -> EventFiles {
        EventFiles {
            folder,
            file: None,
            last: None,
            bytes_max: FILE_BYTES_MAX,
        }
    }

    /// Adds a committed step.
    pub(crate) fn append(&mut self, metric: &Metric) -> std::io::Result<()> {
        let is_full = |(log, bytes): &(Log, usize)| *bytes >= self.bytes_max && !log.is_waiting();
        let mut records = Vec::new();
        if self.file.as_ref().is_none_or(is_full) {
            self.file = Some((begin(&self.folder, metric.time_ms)?, 0));
            records.extend(version(metric.time_ms));
        }
        // Earlier files belong to an earlier coordinator, or this step and all later ones were given up.
        if self.last.is_none_or(|last| metric.step <= last) {
            records.extend(start(metric.time_ms, metric.step.0));
        }
        self.last = Some(metric.step);
        records.extend(scalars(metric.time_ms, metric.step.0, &of_step(metric)));
        let Some((log, bytes)) = &mut self.file else {
            return Ok(());
        };
        *bytes += records.len();
        log.append_bytes(records)
    }

    /// Writes records that did not fit on a full disk.
    pub(crate) fn write_waiting(&mut self) -> std::io::Result<()> {
        self.file.as_mut().map_or(Ok(()), |(log, _)| log.write_waiting())
    }
}

/// A new file, which is named after all others in the folder even if the clock was set back.
fn begin(folder: &Path, time_ms: u64) -> std::io::Result<Log> {
    std::fs::create_dir_all(folder)?;
    let mut newest = None;
    for entry in std::fs::read_dir(folder)? {
        newest = newest.max(entry?.file_name().into_string().ok());
    }
    let seconds = |name: String| name.split('.').nth(3)?.parse::<u64>().ok();
    let known_ms = newest.and_then(seconds).map_or(0, |s| s.saturating_mul(1000));
    for number in 0..u32::MAX {
        match Log::create(&folder.join(file_name(time_ms.max(known_ms), number))) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            other => return other,
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

/// The known values of a step, each under the name that TensorBoard shows.
#[expect(clippy::cast_precision_loss, reason = "the format has single precision")]
fn of_step(metric: &Metric) -> Vec<Scalar> {
    let figures = &metric.figures;
    let whole = |n: Option<u64>| n.map(|n| n as f64);
    let values = [
        ("loss/training", metric.mean_loss()),
        ("loss/evaluation", metric.eval_loss),
        ("optimizer/learning_rate", figures.learning_rate),
        ("optimizer/gradient_norm", Some(metric.gradient_norm)),
        ("optimizer/loss_scale", whole(metric.loss_scale)),
        ("optimizer/skipped_steps", whole(Some(metric.skipped_steps))),
        ("optimizer/nan_steps", whole(figures.nan_steps)),
        ("speed/step_ms", Some(metric.step_ms)),
        ("speed/tokens_per_second", figures.tokens_per_second),
        ("speed/model_flops_per_second", figures.model_flops_per_second),
        ("speed/mfu", figures.mfu),
        ("run/workers", Some(metric.workers as f64)),
        ("run/generation", whole(Some(metric.generation.0))),
        ("run/peak_memory_bytes", whole(figures.peak_memory_bytes)),
        ("run/consumed_samples", whole(figures.consumed_samples)),
        ("run/consumed_tokens", whole(figures.consumed_tokens)),
    ];
    let known = values.into_iter();
    known
        .filter_map(|(tag, value)| value.map(|value| Scalar { tag, value }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::example;

    fn metric(step: u64, time_ms: u64) -> Metric {
        Metric {
            time_ms,
            ..example(step)
        }
    }

    /// The contents of all files, in the order in which TensorBoard reads them.
    fn contents(folder: &Path) -> Vec<Vec<u8>> {
        let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
            .unwrap()
            .map(|e| e.unwrap().path())
            .collect();
        paths.sort();
        paths
            .into_iter()
            .map(|path| std::fs::read(path).unwrap())
            .collect()
    }

    /// The content of a file that begins with these steps, or continues with them. Steps with `true` are preceded by a mark that the steps
    /// begin again there.
    fn expected(first: bool, steps: &[(Metric, bool)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        if first {
            bytes.extend(version(steps[0].0.time_ms));
        }
        for (metric, anew) in steps {
            if *anew {
                bytes.extend(start(metric.time_ms, metric.step.0));
            }
            bytes.extend(scalars(metric.time_ms, metric.step.0, &of_step(metric)));
        }
        bytes
    }

    #[test]
    fn repeated_steps_and_new_coordinators_restart_event_files() {
        let temp = tempfile::tempdir().unwrap();
        let folder = temp.path().join("tensorboard");
        let mut first = EventFiles::new(folder.clone());
        for (step, time) in [
            (1, 900_000),
            (2, 900_001),
            (3, 900_002),
            (2, 900_003),
            (3, 900_004),
        ] {
            first.append(&metric(step, time)).unwrap();
        }
        drop(first);
        let mut second = EventFiles::new(folder.clone());
        second.append(&metric(4, 500_000)).unwrap();
        let of_first = [
            (metric(1, 900_000), true),
            (metric(2, 900_001), false),
            (metric(3, 900_002), false),
            (metric(2, 900_003), true),
            (metric(3, 900_004), false),
        ];
        let files = [
            expected(true, &of_first),
            expected(true, &[(metric(4, 500_000), true)]),
        ];
        assert_eq!(contents(&folder), files);
    }

    #[test]
    fn full_event_file_is_followed_by_another() {
        let temp = tempfile::tempdir().unwrap();
        let mut files = EventFiles::new(temp.path().to_owned());
        files.bytes_max = 1;
        files.append(&metric(1, 1000)).unwrap();
        files.append(&metric(2, 1001)).unwrap();
        let expected = [
            expected(true, &[(metric(1, 1000), true)]),
            expected(true, &[(metric(2, 1001), false)]),
        ];
        assert_eq!(contents(temp.path()), expected);
    }

    #[test]
    fn what_is_not_known_of_a_step_is_left_out() {
        let mut metric = metric(1, 1);
        let tags = |metric: &Metric| of_step(metric).iter().map(|s| s.tag).collect::<Vec<_>>();
        let without = Metric {
            no_targets: true,
            ..metric.clone()
        };
        let loss = "loss/training";
        assert!(tags(&metric).contains(&loss) && !tags(&without).contains(&loss));
        let few = tags(&metric);
        assert!(
            !few.contains(&"speed/mfu") && few.contains(&"loss/training"),
            "{few:?}"
        );
        metric.figures.mfu = Some(0.4);
        metric.eval_loss = Some(1.0);
        assert_eq!(tags(&metric).len(), few.len() + 2);
    }
}
