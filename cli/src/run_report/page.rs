//! The report as a page: it contains everything and loads nothing.

use super::account::{Account, Recovery, Spent};
use super::history::History;
use super::pictures::Pictures;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::time::Duration;
use varuna_plan::{Generation, Step};
use varuna_run_folder::Metric;

/// The content of the page.
pub(super) struct Contents<'a> {
    pub(super) job: &'a str,
    pub(super) history: &'a History,
    pub(super) account: &'a Account,
    pub(super) pictures: &'a Pictures,
    /// The newest plan of which a step was measured, or else the last one.
    pub(super) plan: Option<Generation>,
    /// The measured step of the newest plan.
    pub(super) measured: Option<&'a MeasuredPicture>,
    /// The plan's predicted step, an SVG document.
    pub(super) predicted: Option<&'a str>,
}

/// A measured step.
pub(super) struct MeasuredPicture {
    pub(super) step: Step,
    /// How many pipelines are drawn, and how many the plan has.
    pub(super) pipelines: (usize, usize),
    /// An SVG document.
    pub(super) svg: String,
}

const STYLE: &str = "body{font-family:sans-serif;max-width:1240px;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:1em 0}th,td{padding:.3em .8em;border-bottom:1px solid #ddd;text-align:left}
td.number{text-align:right;font-variant-numeric:tabular-nums}figure{margin:1em 0}figcaption{color:#555}svg{max-width:100%;height:auto}";

pub(super) fn page(contents: &Contents<'_>) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { "Run of " (contents.job) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "Run of " (contents.job) }
                (summary(contents))
                (curves(contents.pictures))
                h2 { "Where the time went" }
                (goodput(contents.account))
                h2 { "Recoveries" }
                (recoveries(&contents.account.recoveries))
                (one_step(contents))
            }
        }
    }
}

/// Our own SVG is part of the page as it is; the text in it is escaped where it is drawn.
fn picture(caption: &str, svg: &str) -> Markup {
    html! { figure { (PreEscaped(svg)) figcaption { (caption) } } }
}

fn one_step(contents: &Contents<'_>) -> Markup {
    html! {
        @if let Some(plan) = contents.plan.filter(|_| contents.measured.is_some() || contents.predicted.is_some()) {
            h2 { "A step of plan " (plan) }
        }
        @if let Some(measured) = contents.measured { (picture(&measured_caption(measured), &measured.svg)) }
        @if let Some(svg) = contents.predicted {
            (picture("As it was predicted. Costs are estimated unless the report was made with a profile.", svg))
        }
    }
}

fn measured_caption(measured: &MeasuredPicture) -> String {
    let (drawn, all) = measured.pipelines;
    let which = if drawn < all {
        format!(" {drawn} of {all} pipelines.")
    } else {
        String::new()
    };
    format!(
        "Step {} as its workers measured it: a task begins once what it waits for has arrived. Transfers are not drawn.{which}",
        measured.step
    )
}

fn curves(pictures: &Pictures) -> Markup {
    html! {
        h2 { "Over time" }
        (picture("Loss of the steps that stayed. Curves are interrupted where nothing was trained", &pictures.loss))
        @if let Some(speed) = &pictures.speed {
            (picture("Throughput, of steps whose own time is known", speed))
        }
        (picture("Workers of the plan; none while the run was stopped", &pictures.workers))
    }
}

fn row(name: &str, value: &str) -> Markup {
    html! { tr { th { (name) } td.number { (value) } } }
}

fn summary(contents: &Contents<'_>) -> Markup {
    let steps = contents.history.steps();
    let all = contents.history.published().count();
    let (first, last) = contents.history.span_ms();
    html! {
        table {
            (row("Steps", &steps.len().to_string()))
            (row("Published steps that were run again", &(all - steps.len()).to_string()))
            (row("From the first step to the last", &time(Duration::from_millis(last.saturating_sub(first)))))
            (row("Goodput", &percent(contents.account.goodput())))
            @if let Some(newest) = steps.last() { (newest_step(newest)) }
        }
    }
}

/// The figures of the newest step, where they are known.
fn newest_step(newest: &Metric) -> Markup {
    let figures = &newest.figures;
    let rows = [
        (
            "Plan",
            Some(format!("{} on {} workers", newest.plan, newest.workers)),
        ),
        ("Loss", newest.mean_loss().map(|loss| format!("{loss:.4}"))),
        (
            "Learning rate",
            figures.learning_rate.map(|rate| format!("{rate:.3e}")),
        ),
        ("Consumed tokens", figures.consumed_tokens.map(|n| n.to_string())),
        ("Skipped steps", Some(newest.skipped_steps.to_string())),
        (
            "Steps without a finite loss",
            figures.nan_steps.map(|n| n.to_string()),
        ),
        (
            "Tokens a second",
            figures.tokens_per_second.map(|n| format!("{n:.0}")),
        ),
        (
            "Model FLOP/s",
            figures.model_flops_per_second.map(|n| format!("{n:.3e}")),
        ),
        ("MFU", figures.mfu.map(percent)),
        (
            "Peak memory of a worker, MiB",
            figures.peak_memory_bytes.map(|n| (n >> 20).to_string()),
        ),
    ];
    html! {
        @for (name, value) in rows {
            @if let Some(value) = value { (row(name, &value)) }
        }
    }
}

fn goodput(account: &Account) -> Markup {
    html! {
        table {
            tr { th { "spent on" } th { "time" } th { "share" } }
            @for (spent, took) in &account.spent {
                tr {
                    td { (spent_on(*spent)) }
                    td.number { (time(*took)) }
                    td.number { (percent(account.share(*took))) }
                }
            }
        }
    }
}

fn spent_on(spent: Spent) -> String {
    match spent {
        Spent::Steps => "steps that stayed".to_owned(),
        Spent::Again => "steps that were run again".to_owned(),
        Spent::Stopped => "stopped, until another coordinator had begun".to_owned(),
        Spent::Waiting => "waiting for workers".to_owned(),
        Spent::Recovery(cause) => format!("recoveries after {}", cause.description()),
    }
}

fn recoveries(all: &[Recovery]) -> Markup {
    if all.is_empty() {
        return html! { p { "None." } };
    }
    let parts = |recovery: &Recovery| -> String {
        let waited = Some(recovery.waited).filter(|waited| !waited.is_zero());
        let waited = waited.map(|waited| format!("waiting for workers {}", time(waited)));
        let phases = recovery.phases.iter();
        let phases = phases.map(|(phase, took)| format!("{} {}", phase.label(), time(*took)));
        let parts: Vec<String> = waited.into_iter().chain(phases).collect();
        parts.join(", ")
    };
    html! {
        table {
            tr { th { "training went on" } th { "after" } th { "pause" } th { "of it" } th { "plan" } th { "steps run again" } }
            @for recovery in all {
                tr.recovery {
                    td.number { (time(recovery.at)) }
                    td { (recovery.cause.description()) }
                    td.number { (time(recovery.took)) }
                    td { (parts(recovery)) }
                    td { (recovery.plan) }
                    td.number { (recovery.steps_lost) }
                }
            }
        }
    }
}

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

fn time(time: Duration) -> String {
    match time.as_secs() {
        0..60 => format!("{:.2} s", time.as_secs_f64()),
        s @ 60..3600 => format!("{} min {:02} s", s / 60, s % 60),
        s => format!("{} h {:02} min", s / 3600, s / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::tests::{event, step};
    use super::super::pictures;
    use super::*;
    use varuna_coordinator::Event;
    use varuna_plan::WorkerId;

    fn shown(job: &str, history: &History, predicted: Option<&str>) -> String {
        shown_with(job, history, None, predicted)
    }

    fn shown_with(
        job: &str,
        history: &History,
        measured: Option<&MeasuredPicture>,
        predicted: Option<&str>,
    ) -> String {
        let account = Account::of(history);
        let contents = Contents {
            job,
            account: &account,
            history,
            pictures: &pictures::draw(history, &account).unwrap(),
            plan: Some(Generation(7)),
            measured,
            predicted,
        };
        page(&contents).into_string()
    }

    fn two_losses() -> History {
        let mut steps: Vec<Metric> = (1..=30).map(|n| step(1 + n / 11, n, 1000 * n)).collect();
        steps[29].plan = "<i>P1</i>".into();
        let lost = |worker| Event::WorkerLost {
            worker: WorkerId(worker),
            name: "w".into(),
        };
        let fenced = |generation| Event::Fenced {
            upto: Generation(generation),
            because: "lost".into(),
        };
        let events = [
            (10_100, lost(1)),
            (10_200, fenced(1)),
            (21_100, lost(2)),
            (21_200, fenced(2)),
        ];
        History::new(steps, events.map(|(at, e)| event(at, e)).into())
    }

    #[test]
    fn names_are_escaped_and_nothing_is_loaded_from_elsewhere() {
        let page = shown("<script>alert(1)</script>", &two_losses(), Some("<svg></svg>"));
        assert!(
            page.starts_with("<!DOCTYPE html>") && !page.contains("<script"),
            "{page}"
        );
        assert!(page.contains("Run of &lt;script&gt;") && page.contains("&lt;i&gt;P1&lt;/i&gt;"));
        let addresses = page.replace("http://www.w3.org/2000/svg", "");
        for outside in ["http:", "https:", "src=", "href=", "@import", "url("] {
            assert!(!addresses.contains(outside), "{outside}");
        }
    }

    #[test]
    fn the_page_has_a_row_a_recovery_and_a_picture_a_curve() {
        let page = shown("job", &two_losses(), None);
        assert_eq!(page.matches("<tr class=\"recovery\">").count(), 2);
        assert_eq!(page.matches("<figure>").count(), 3);
        assert!(page.contains("recoveries after the loss of a worker") && !page.contains("MFU"));
        assert!(!page.contains("A step of plan"));
        let quiet = History::new((1..=3).map(|n| step(1, n, n)).collect(), vec![]);
        assert!(shown("job", &quiet, None).contains("<p>None.</p>"));
    }

    #[test]
    fn waiting_for_workers_has_a_row_of_its_own() {
        let steps: Vec<Metric> = (1..=4).map(|n| step(1 + n / 3, n, 10_000 * n)).collect();
        let fenced = Event::Fenced {
            upto: Generation(1),
            because: "lost".into(),
        };
        let collected = Event::Collected {
            answered: vec![],
            missing: vec![],
        };
        let events = [
            (20_100, fenced),
            (20_200, Event::BelowMinimum { have: 1, need: 2 }),
            (28_700, collected),
        ];
        let history = History::new(steps, events.map(|(at, e)| event(at, e)).into());
        let page = shown("job", &history, None);
        assert!(page.contains("<td>waiting for workers</td>"), "{page}");
        assert!(
            page.contains("waiting for workers 8.50 s, collect 0.10 s"),
            "{page}"
        );
    }

    #[test]
    fn a_measured_step_comes_first_and_says_what_is_not_drawn() {
        let measured = |pipelines| MeasuredPicture {
            step: Step(42),
            pipelines,
            svg: "<svg>m</svg>".into(),
        };
        let with = |m: Option<&MeasuredPicture>, p| shown_with("job", &two_losses(), m, p);
        let page = with(Some(&measured((4, 6))), Some("<svg>p</svg>"));
        assert!(page.find("<svg>m</svg>").unwrap() < page.find("<svg>p</svg>").unwrap());
        assert!(
            page.contains("Step 42 as") && page.contains("4 of 6 pipelines."),
            "{page}"
        );
        for (m, p) in [(Some(&measured((2, 2))), None), (None, Some("<svg></svg>"))] {
            let page = with(m, p);
            assert_eq!(page.matches("A step of plan 7").count(), 1);
            assert!(!page.contains(" of 2 pipelines"));
        }
    }

    #[test]
    fn times_have_the_units_of_their_size() {
        let shown = [0.25, 61.0, 3725.0].map(|s| time(Duration::from_secs_f64(s)));
        assert_eq!(shown, ["0.25 s", "1 min 01 s", "1 h 02 min"]);
    }
}
