//! `varuna-e2e`: the operator end to end, as users get it: helm-installed, as a pod, with worker pods on real kubelets that train
//! real text while nodes, pods, processes and servers go and come back.
//!
//! Without `KUBECONFIG` it makes a cluster of its own on this machine (root only; see `src/nodes.rs`); with it, it runs on that
//! one, which must have the images of `images/build.sh --text`, and leaves out what only a cluster of its own can suffer.

mod cases;
mod curve;
mod job;
mod store;
mod world;

use anyhow::{Context as _, Result, bail};
use cases::{CASES, Case};
use curve::Curve;
use std::time::Instant;
use world::World;

/// What was asked for on the command line.
struct Arguments {
    /// Names of cases; all where empty.
    cases: Vec<String>,
    /// Leave out, loudly, where real nodes cannot be made.
    optional: bool,
}

fn arguments() -> Result<Arguments> {
    let mut arguments = Arguments {
        cases: vec![],
        optional: false,
    };
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--if-possible" => arguments.optional = true,
            "--list" => {
                for case in CASES {
                    println!("{:<18} {}", case.name, case.about);
                }
                std::process::exit(0);
            }
            name if CASES.iter().any(|c| c.name == name) => arguments.cases.push(name.to_owned()),
            other => bail!(
                "no case is called {other}; --list lists all; --if-possible: leave out where nodes cannot be made"
            ),
        }
    }
    Ok(arguments)
}

#[tokio::main]
async fn main() -> std::process::ExitCode {
    match work().await {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("e2e: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

async fn work() -> Result<()> {
    let arguments = arguments()?;
    let own = std::env::var_os("KUBECONFIG").is_none_or(|k| k.is_empty());
    if let (true, Some(why)) = (own, varuna_cluster_tests::nodes::missing()) {
        if arguments.optional {
            println!("e2e: LEFT OUT: no real nodes can be made here ({why})");
            return Ok(());
        }
        bail!("no real nodes can be made here ({why}); KUBECONFIG=... runs the same on another cluster");
    }
    let chosen: Vec<&Case> = CASES
        .iter()
        .filter(|c| arguments.cases.is_empty() || arguments.cases.iter().any(|n| n == c.name))
        .collect();
    let began = Instant::now();
    let mut world = World::start().await.context("the cluster for the tests")?;
    println!(
        "e2e: the operator is installed after {:.1} s",
        began.elapsed().as_secs_f64()
    );
    let mut curve = Curve::default();
    let (mut passed, mut left_out, mut failed) = (0, 0, vec![]);
    for case in chosen {
        if let Some(why) = case.needs.iter().find_map(|need| world.lacks(*need)) {
            println!("case {:<18} LEFT OUT: {why}", case.name);
            left_out += 1;
            continue;
        }
        let began = Instant::now();
        match cases::run(case, &mut world, &mut curve).await {
            Ok(()) => {
                passed += 1;
                println!(
                    "case {:<18} ok ({:.1} s)",
                    case.name,
                    began.elapsed().as_secs_f64()
                );
            }
            Err(error) => {
                println!("case {:<18} FAILED: {error:#}", case.name);
                failed.push(case.name);
            }
        }
    }
    let summary = world.first_failure.take();
    drop(world);
    if let Err(error) = curve.compare() {
        println!("the loss curve FAILED: {error:#}");
        failed.push("the loss curve");
    }
    println!("RESULT e2e.cases_passed {passed}");
    println!("RESULT e2e.cases_left_out {left_out}");
    if let Some(summary) = summary {
        println!(
            "-- at the first failure:
{summary}"
        );
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}
