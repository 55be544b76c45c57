//! The report's pictures over time.

use super::account::{Account, Stop};
use super::history::History;
use crate::chart::{Series, Style, panel, svg};
use crate::failure::Failure;
use plotters::prelude::*;
use std::time::Duration;
use varuna_run_folder::Metric;

const SIZE: (u32, u32) = (1200, 260);
/// The most points of a curve: more points than the picture has columns cannot be seen, and a million steps would make a page of 20 MB.
const POINTS_MAX: usize = 2400;

const LOSS: RGBColor = RGBColor(0x1f, 0x5f, 0xa8);
const EVALUATION: RGBColor = RGBColor(0xc8, 0x50, 0x3c);
const SPEED: RGBColor = RGBColor(0x6a, 0x4c, 0x93);
const WORKERS: RGBColor = RGBColor(0x2e, 0x7d, 0x32);

/// SVG documents with the time since the first step from left to right.
pub(super) struct Pictures {
    pub(super) loss: String,
    /// Tokens a second; none where no step's own time is known.
    pub(super) speed: Option<String>,
    pub(super) workers: String,
}

pub(super) fn draw(history: &History, account: &Account) -> Result<Pictures, Failure> {
    let steps = history.steps();
    let (first, last) = history.span_ms();
    let end = seconds(last.saturating_sub(first)).max(1e-3);
    let draw =
        |label: &str, series: &[Series]| svg(SIZE, |area| panel(area, 0.0..end, ("time, s", label), series));
    let curve = |value: &dyn Fn(&Metric) -> Option<f64>| points(&steps, first, value);
    let line = |name, color, points, breaks| Series {
        name,
        color,
        style: Style::Line,
        points: thinned(points),
        breaks,
    };
    let pauses = pauses(account);
    let training = line("training", LOSS, curve(&Metric::mean_loss), pauses.clone());
    let mut losses = vec![training];
    let evaluated = curve(&|m| m.eval_loss);
    if !evaluated.is_empty() {
        losses.push(line("evaluation", EVALUATION, evaluated, pauses.clone()));
    }
    let speed = curve(&|m| m.figures.tokens_per_second);
    let speed = [line("speed", SPEED, speed, pauses)];
    let workers = workers(&steps, first, &account.stops);
    let has_speed = !speed[0].points.is_empty();
    Ok(Pictures {
        loss: draw("loss, nats per token", &losses)?,
        speed: has_speed.then(|| draw("tokens/s", &speed)).transpose()?,
        workers: draw("workers", &[line("workers", WORKERS, workers, Vec::new())])?,
    })
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds of one run")]
fn seconds(ms: u64) -> f64 {
    ms as f64 / 1e3
}

/// The finite values over seconds.
fn points(steps: &[&Metric], first: u64, value: &dyn Fn(&Metric) -> Option<f64>) -> Vec<(f64, f64)> {
    let of = |m: &&Metric| Some((seconds(m.time_ms.saturating_sub(first)), value(m)?));
    let known = steps.iter().filter_map(of);
    known.filter(|(_, value)| value.is_finite()).collect()
}

/// When pauses ended: no value in them is known. A step that was finished in a recovery belongs to those before it.
fn pauses(account: &Account) -> Vec<f64> {
    let recoveries = account.recoveries.iter().map(|recovery| recovery.at);
    let stops = account.stops.iter().map(|stop| stop.until);
    let mut ends: Vec<f64> = recoveries.chain(stops).map(whole_ms).collect();
    ends.sort_by(f64::total_cmp);
    ends
}

/// A time of whole milliseconds, rounded as the times of steps are.
fn whole_ms(time: Duration) -> f64 {
    seconds(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// The number of the plan's workers; none from a stop until the next step.
#[expect(clippy::cast_precision_loss, reason = "counts of workers")]
fn workers(steps: &[&Metric], first: u64, stops: &[Stop]) -> Vec<(f64, f64)> {
    let mut counts = points(steps, first, &|m| Some(m.workers as f64));
    counts.extend(stops.iter().map(|stop| (whole_ms(stop.from), 0.0)));
    // The order of equal times stays: the step comes before the stop.
    counts.sort_by(|a, b| a.0.total_cmp(&b.0));
    held(counts)
}

/// A value that holds until the next one; only where it changes.
fn held(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let mut steps: Vec<(f64, f64)> = Vec::new();
    let end = points.last().copied();
    for (at, value) in points {
        match steps.last() {
            Some((_, last)) if last.total_cmp(&value).is_eq() => {}
            Some((_, last)) => steps.extend([(at, *last), (at, value)]),
            None => steps.push((at, value)),
        }
    }
    steps.extend(end);
    steps
}

/// No more than [`POINTS_MAX`] of the points: of each stretch the lowest and the highest, so that no peak is lost.
fn thinned(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    if points.len() <= POINTS_MAX {
        return points;
    }
    let stretch = points.len().div_ceil(POINTS_MAX / 2);
    let ends = points.chunks(stretch).flat_map(|part| {
        let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let mut both: Vec<(f64, f64)> = part.iter().min_by(by_value).into_iter().copied().collect();
        both.extend(part.iter().max_by(by_value).filter(|high| both[0] != **high));
        both.sort_by(|a, b| a.0.total_cmp(&b.0));
        both
    });
    ends.collect()
}

#[cfg(test)]
mod tests {
    use super::super::history::tests::{event, step};
    use super::*;
    use varuna_coordinator::Event;
    use varuna_plan::Generation;

    fn drawn(steps: Vec<Metric>, events: Vec<(u64, Event)>) -> Pictures {
        let events = events.into_iter().map(|(time, e)| event(time, e)).collect();
        let history = History::new(steps, events);
        draw(&history, &Account::of(&history)).unwrap()
    }

    #[test]
    fn a_long_curve_is_thinned_and_keeps_its_peaks() {
        let flat = (0..100_000u32).map(|i| (f64::from(i), 1.0));
        let mut points: Vec<(f64, f64)> = flat.collect();
        (points[777].1, points[99_000].1) = (9.0, -3.0);
        let thin = thinned(points.clone());
        assert!(
            thin.len() <= POINTS_MAX && thin.len() >= POINTS_MAX / 2 - 1,
            "{}",
            thin.len()
        );
        assert!(thin.contains(&(777.0, 9.0)) && thin.contains(&(99_000.0, -3.0)));
        assert!(thin.is_sorted_by(|a, b| a.0 < b.0));
        points.truncate(POINTS_MAX);
        assert_eq!(thinned(points.clone()), points);
    }

    #[test]
    fn a_count_holds_until_it_changes() {
        let points = vec![(0.0, 4.0), (1.0, 4.0), (2.0, 3.0), (3.0, 3.0)];
        assert_eq!(held(points), [(0.0, 4.0), (2.0, 4.0), (2.0, 3.0), (3.0, 3.0)]);
        assert_eq!(held(vec![]), []);
    }

    #[test]
    fn curves_have_a_point_for_each_step_whose_value_is_known() {
        let mut steps: Vec<Metric> = (1..=9).map(|n| step(1, n, 100 * n)).collect();
        steps[3].loss = f64::NAN;
        // Drawn as a point, it would stand out as a loss of 0.
        (steps[4].loss, steps[4].no_targets) = (0.0, true);
        steps[5].figures.tokens_per_second = None;
        let pictures = drawn(steps, vec![]);
        assert_eq!(points_in(&pictures.loss), [7]);
        assert_eq!(points_in(&pictures.speed.unwrap()), [8]);
        assert_eq!(points_in(&pictures.workers), [2]);
    }

    #[test]
    fn a_run_of_an_earlier_release_has_no_picture_of_its_speed() {
        let mut steps: Vec<Metric> = (1..=3).map(|n| step(1, n, 100 * n)).collect();
        for metric in &mut steps {
            metric.figures.tokens_per_second = None;
        }
        assert!(drawn(steps, vec![]).speed.is_none());
    }

    /// After step 10 the run was stopped for a minute. After step 14 workers were lost, and only step 15 was run before others were.
    #[test]
    fn curves_are_interrupted_where_nothing_was_trained() {
        let mut steps: Vec<Metric> = (1..=10).map(|n| step(1, n, 1000 * n)).collect();
        steps.extend((11..=14).map(|n| step(2, n, 60_000 + 1000 * n)));
        steps.push(step(3, 15, 80_000));
        steps.extend((16..=20).map(|n| step(4, n, 80_000 + 1000 * n)));
        let fenced = |upto| Event::Fenced {
            upto: Generation(upto),
            because: "lost".into(),
        };
        let events = vec![
            (70_000, Event::TookOver { term: 2 }),
            (70_500, fenced(1)),
            (74_500, fenced(2)),
            (80_500, fenced(3)),
        ];
        let pictures = drawn(steps, events);
        assert_eq!(points_in(&pictures.loss), [10, 4, 1, 5]);
        assert_eq!(points_in(&pictures.speed.unwrap()), [10, 4, 1, 5]);
        assert!(pictures.loss.contains("<circle "), "a step alone is a dot");
    }

    #[test]
    fn a_stopped_run_has_no_workers() {
        let mut steps: Vec<Metric> = (1..=10).map(|n| step(1, n, 1000 * n)).collect();
        steps.extend((11..=14).map(|n| step(2, n, 60_000 + 1000 * n)));
        let of: Vec<&Metric> = steps.iter().collect();
        let (from, until) = (Duration::from_secs(9), Duration::from_secs(69));
        let counts = workers(&of, 1000, &[Stop { from, until }]);
        let expected = [
            (0.0, 2.0),
            (9.0, 2.0),
            (9.0, 0.0),
            (70.0, 0.0),
            (70.0, 2.0),
            (73.0, 2.0),
        ];
        assert_eq!(counts, expected);
    }

    /// The numbers of points of the curves; axes and ticks, which are left out, are grey or black lines of two points.
    fn points_in(svg: &str) -> Vec<usize> {
        let colours =
            [LOSS, EVALUATION, SPEED, WORKERS].map(|RGBColor(r, g, b)| format!("#{r:02X}{g:02X}{b:02X}"));
        let curves = svg.split("<polyline ").skip(1).filter(|of| {
            let tag = of.split("/>").next().unwrap_or_default();
            colours.iter().any(|colour| tag.contains(colour))
        });
        let points = |of: &str| {
            of.split("points=\"")
                .nth(1)?
                .split('"')
                .next()
                .map(|p| p.split_whitespace().count())
        };
        curves.filter_map(points).collect()
    }
}
