//! `varuna-e2e`: end-to-end tests of the operator as users install it: by helm, as a pod, with worker pods on real kubelets. The workers
//! train on real text while nodes, pods, processes and servers go away and come back.
//!
//! The options are those of the test harness, names of cases, and:
//!
//! * `--ipv6`: run every case on a cluster with IPv6 only, as the case `ipv6` always does;
//! * `--if-possible`: skip all cases, with a message, if this machine cannot make nodes;
//! * `--cluster-only`: only make the cluster, print its kubeconfig, and keep it until standard input ends (`given.sh`).
//!
//! Without `KUBECONFIG`, it makes a cluster on this machine (root only; see `src/nodes.rs`). With it, it uses that cluster, which must have
//! the images of `images/build.sh --text`, and skips the cases that would damage it.

mod cases;
mod curve;
mod diagnostics;
mod evictions;
mod images;
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
use varuna_cluster_tests::Family;
use world::World;

/// Options in addition to those of the test harness.
const OPTIONS: &[&str] = &["--ipv6", "--if-possible", "--cluster-only"];

/// What the cases share. They run one after another.
struct State {
    /// The cluster; none if the last one could not be made.
    world: Option<World>,
    curve: Curve,
    first_failure: Option<String>,
}

/// The shared state, and the runtime on which cases run.
struct Shared {
    runtime: Runtime,
    /// The address family for cases that do not need a certain one.
    family: Family,
    state: Mutex<State>,
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
    // libtest-mimic accepts one filter. So names of cases and our own options are removed before it reads the rest.
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
    let family = if ours.iter().any(|o| o == "--ipv6") {
        Family::V6
    } else {
        Family::V4
    };
    let missing = varuna_cluster_tests::nodes::missing().or_else(|| family.missing().map(str::to_owned));
    if let (true, Some(why)) = (own, missing) {
        if ours.iter().any(|o| o == "--if-possible") {
            println!("e2e: LEFT OUT: this machine cannot have real nodes ({why})");
            return Ok(());
        }
        bail!("no real nodes can be made here ({why}); KUBECONFIG=... runs the same on another cluster");
    }
    if ours.iter().any(|o| o == "--cluster-only") {
        return keep_cluster(family);
    }
    run_cases(&arguments, chosen, family)
}

/// Makes a cluster for another process.
fn keep_cluster(family: Family) -> Result<()> {
    let runtime = Runtime::new()?;
    let world = runtime.block_on(World::without_operator(family))?;
    println!("KUBECONFIG={}", world.cluster.kubeconfig().display());
    std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink())?;
    Ok(())
}

/// A case that is only listed.
fn listed(case: &'static Case) -> Trial {
    Trial::test(case.name, || Ok(())).with_kind(case.about)
}

fn run_cases(arguments: &Arguments, chosen: Vec<&'static Case>, family: Family) -> Result<()> {
    let runtime = Runtime::new()?;
    let first = chosen.first().map(|case| case.family(family));
    let first = first.filter(|f| f.missing().is_none()).unwrap_or_default();
    let world = start(&runtime, first)?;
    let lacks: Vec<_> = chosen
        .iter()
        .map(|case| case.needs.iter().find_map(|need| world.unmet(*need)))
        .collect();
    let shared = Arc::new(Shared {
        runtime,
        family,
        state: Mutex::new(State {
            world: Some(world),
            curve: Curve::default(),
            first_failure: None,
        }),
    });
    let trials = chosen.into_iter().zip(lacks).map(|(case, lack)| {
        if let Some(why) = lack {
            println!("case {:<18} LEFT OUT: {why}", case.name);
        }
        trial(case, Arc::clone(&shared)).with_ignored_flag(lack.is_some())
    });
    let conclusion = libtest_mimic::run(arguments, trials.collect());
    let shared = Arc::into_inner(shared).context("all cases have ended")?;
    let state = shared
        .state
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    conclude(&conclusion, state)
}

fn start(runtime: &Runtime, family: Family) -> Result<World> {
    let began = Instant::now();
    let world = runtime
        .block_on(World::start(family))
        .context("the cluster for the tests")?;
    println!(
        "e2e: the operator is installed after {:.1} s ({family:?})",
        began.elapsed().as_secs_f64()
    );
    Ok(world)
}

impl State {
    /// Makes sure that the cluster has this address family, by replacing our own cluster if needed. A given cluster stays.
    fn ensure_family(&mut self, runtime: &Runtime, family: Family) -> Result<()> {
        let fits = |world: &World| world.nodes.is_none() || world.family == family;
        if !self.world.as_ref().is_some_and(fits) {
            self.end_world();
            self.world = Some(start(runtime, family)?);
        }
        Ok(())
    }

    /// Stops the cluster, if there is one, and keeps its last output. The next cluster needs the same node names.
    fn end_world(&mut self) {
        if let Some(mut world) = self.world.take() {
            let said = world.first_failure.take();
            self.first_failure = self.first_failure.take().or(said);
        }
    }

    fn run(&mut self, runtime: &Runtime, case: &Case, family: Family) -> Result<()> {
        self.ensure_family(runtime, family)?;
        let world = self.world.as_mut().context("a cluster")?;
        runtime.block_on(cases::run(case, world, &mut self.curve))
    }
}

fn trial(case: &'static Case, shared: Arc<Shared>) -> Trial {
    let run = move || {
        let began = Instant::now();
        let mut state = shared
            .state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let result = state.run(&shared.runtime, case, case.family(shared.family));
        println!(
            "case {:<18} took {:.1} s",
            case.name,
            began.elapsed().as_secs_f64()
        );
        result.map_err(|error| Failed::from(format!("{error:#}")))
    };
    Trial::test(case.name, run).with_kind(case.about)
}

fn conclude(conclusion: &Conclusion, mut state: State) -> Result<()> {
    state.end_world();
    let compared = state.curve.compare(conclusion.num_passed > 0);
    println!("RESULT e2e.cases_passed {}", conclusion.num_passed);
    println!("RESULT e2e.cases_left_out {}", conclusion.num_ignored);
    if let Some(summary) = state.first_failure {
        println!("-- at the first failure:\n{summary}");
    }
    compared.context("the loss curve")?;
    ensure!(!conclusion.has_failed(), "{} cases failed", conclusion.num_failed);
    let any = conclusion.num_passed + conclusion.num_ignored > 0;
    ensure!(any, "no case has this name; --list shows all");
    Ok(())
}
