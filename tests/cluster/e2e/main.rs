//! `varuna-e2e`: the operator end to end, as users get it: helm-installed, as a pod, with worker pods on real kubelets that train
//! real text while nodes, pods, processes and servers go and come back.
//!
//! Options are those of the test harness, names of cases, and:
//!
//! * `--if-possible`: leave everything out, and say so, where no nodes can be made;
//! * `--cluster-only`: make the cluster alone, print its kubeconfig, keep it until standard input ends (`given.sh`).
//!
//! Without `KUBECONFIG` it makes a cluster of its own on this machine (root only; see `src/nodes.rs`); with it, it runs on that
//! one, which must have the images of `images/build.sh --text`, and leaves out what only a cluster of its own can suffer.

mod cases;
mod curve;
mod evictions;
mod job;
mod metrics;
mod prometheus;
mod store;
mod takeover;
mod world;

use anyhow::{Context as _, Result, bail, ensure};
use cases::{CASES, Case};
use curve::Curve;
use libtest_mimic::{Arguments, Conclusion, Failed, Trial};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::runtime::Runtime;
use world::World;

/// Options of our own.
const OPTIONS: &[&str] = &["--if-possible", "--cluster-only"];

/// What the cases share; they run one after another.
struct Shared {
    runtime: Runtime,
    state: Mutex<(World, Curve)>,
}

fn main() -> std::process::ExitCode {
    match work() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("e2e: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn work() -> Result<()> {
    // libtest-mimic takes one filter: names of cases and our own option are taken out before it reads the rest.
    let (ours, rest): (Vec<_>, Vec<_>) =
        std::env::args().partition(|a| OPTIONS.contains(&a.as_str()) || CASES.iter().any(|c| c.name == a));
    let arguments = Arguments {
        test_threads: Some(1),
        ..Arguments::from_iter(rest)
    };
    let chosen: Vec<&'static Case> = CASES
        .iter()
        .filter(|c| ours.iter().all(|o| OPTIONS.contains(&o.as_str())) || ours.iter().any(|o| o == c.name))
        .collect();
    if arguments.list {
        libtest_mimic::run(&arguments, chosen.into_iter().map(listed).collect()).exit();
    }
    let own = std::env::var_os("KUBECONFIG").is_none_or(|k| k.is_empty());
    if let (true, Some(why)) = (own, varuna_cluster_tests::nodes::missing()) {
        if ours.iter().any(|o| o == "--if-possible") {
            println!("e2e: LEFT OUT: no real nodes can be made here ({why})");
            return Ok(());
        }
        bail!("no real nodes can be made here ({why}); KUBECONFIG=... runs the same on another cluster");
    }
    if ours.iter().any(|o| o == "--cluster-only") {
        return keep_cluster();
    }
    run_cases(&arguments, chosen)
}

/// Makes a cluster for another process.
fn keep_cluster() -> Result<()> {
    let runtime = Runtime::new()?;
    let world = runtime.block_on(World::without_operator())?;
    println!("KUBECONFIG={}", world.cluster.kubeconfig().display());
    std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink())?;
    Ok(())
}

/// A case that is listed only.
fn listed(case: &'static Case) -> Trial {
    Trial::test(case.name, || Ok(())).with_kind(case.about)
}

fn run_cases(arguments: &Arguments, chosen: Vec<&'static Case>) -> Result<()> {
    let runtime = Runtime::new()?;
    let began = Instant::now();
    let world = runtime
        .block_on(World::start())
        .context("the cluster for the tests")?;
    println!(
        "e2e: the operator is installed after {:.1} s",
        began.elapsed().as_secs_f64()
    );
    let lacks: Vec<_> = chosen
        .iter()
        .map(|case| case.needs.iter().find_map(|need| world.unmet(*need)))
        .collect();
    let shared = Arc::new(Shared {
        runtime,
        state: Mutex::new((world, Curve::default())),
    });
    let trials = chosen.into_iter().zip(lacks).map(|(case, lack)| {
        if let Some(why) = lack {
            println!("case {:<18} LEFT OUT: {why}", case.name);
        }
        trial(case, Arc::clone(&shared)).with_ignored_flag(lack.is_some())
    });
    let conclusion = libtest_mimic::run(arguments, trials.collect());
    let shared = Arc::into_inner(shared).context("all cases have ended")?;
    let (world, curve) = shared
        .state
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    conclude(&conclusion, world, &curve)
}

fn trial(case: &'static Case, shared: Arc<Shared>) -> Trial {
    let run = move || {
        let began = Instant::now();
        let mut state = shared
            .state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let (world, curve) = &mut *state;
        let result = shared.runtime.block_on(cases::run(case, world, curve));
        println!(
            "case {:<18} took {:.1} s",
            case.name,
            began.elapsed().as_secs_f64()
        );
        result.map_err(|error| Failed::from(format!("{error:#}")))
    };
    Trial::test(case.name, run).with_kind(case.about)
}

fn conclude(conclusion: &Conclusion, mut world: World, curve: &Curve) -> Result<()> {
    let summary = world.first_failure.take();
    drop(world);
    let compared = curve.compare();
    println!("RESULT e2e.cases_passed {}", conclusion.num_passed);
    println!("RESULT e2e.cases_left_out {}", conclusion.num_ignored);
    if let Some(summary) = summary {
        println!("-- at the first failure:\n{summary}");
    }
    compared.context("the loss curve")?;
    ensure!(!conclusion.has_failed(), "{} cases failed", conclusion.num_failed);
    let any = conclusion.num_passed + conclusion.num_ignored > 0;
    ensure!(any, "no case has this name; --list shows all");
    Ok(())
}
