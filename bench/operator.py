"""`make bench-operator`: how quick the operator is and what it costs; the table of docs/benchmarks.md, and RESULT lines."""

import argparse
import subprocess
from pathlib import Path

from common import ROOT, machine, replace_table

KINDS = [("evicted", "pod evicted"), ("deleted", "pod deleted"), ("tainted", "node announces its end by a taint"), ("killed", "worker killed with -9")]


def run(*command):
    """Runs, shows what it says, returns its RESULT lines."""
    print("$", *command, flush=True)
    process = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, text=True)
    results = {}
    for line in process.stdout:
        if line.startswith("RESULT "):
            _, key, value = line.split()
            results[key] = value
        else:
            print(line, end="", flush=True)
    if process.wait() != 0:
        # What was measured until then.
        for key, value in results.items():
            print(f"RESULT {key} {value}")
        raise SystemExit(f"{command[0]} failed")
    return results


def coordinator(binaries, workers, seconds):
    """What the process of one coordinator takes at rest: its workers commit a step each second, and no plan changes."""
    script = ROOT / "bench/coordinator.py"
    arguments = ["--binaries", binaries, "--workers", "--tcp", workers, "--step-ms", 1000, "--settle", 60, "--seconds", seconds, "--no-table"]
    results = run("python3", script, *arguments)
    figure = lambda key: float(results[f"protocol.process_{key}_{workers}_tcp"])
    return {
        "operator.coordinator_workers": f"{workers}",
        "operator.coordinator_rest_s": f"{seconds}",
        "operator.coordinator_rest_cores": f"{figure('second_cpu_ms') / 1e3:.4f}",
        "operator.coordinator_rest_mb": f"{figure('rss_mb'):.0f}",
    }


def sizes(r):
    """The numbers of jobs that were measured."""
    return sorted({int(key.split(".")[1][3:]) for key in r if key.startswith("operator.at_")})


def table(r):
    get = lambda key: r.get(f"operator.{key}", "-")
    lines = ["| signal | to the plan persisted, ms: p50, p99 | to the next committed step, ms: p50, p99 |", "|---|---|---|"]
    for kind, name in [*KINDS, ("signal", "all")]:
        cells = [f"{get(f'{kind}_to_{what}_p50_ms')}, {get(f'{kind}_to_{what}_p99_ms')}" for what in ("plan", "step")]
        lines.append(f"| {name} | {cells[0]} | {cells[1]} |")
    lines += [
        "",
        f"{get('signals')} signals, four worker processes on this machine's cores. {get('requests_per_preemption')} requests to the API server for each "
        f"(operator {get('requests_of_operator')}, coordinator {get('requests_of_coordinator')}), with the pod that comes instead, two plans and their Events "
        "(watches and leases left out). Goals: 150 ms to the plan, 10 requests.",
        "",
        "| jobs | effect of an event, ms: p50, p99 | requests an event | operator at rest: cores, MB | requests a job and minute: its, a coordinator's | machine busy, %: at rest, events |",
        "|---|---|---|---|---|---|",
    ]
    for jobs in sizes(r):
        at = lambda key: get(f"at_{jobs}.{key}")
        lines.append(
            f"| {jobs} | {at('effect_p50_ms')}, {at('effect_p99_ms')} | {at('requests_per_event')} | {at('rest_cores')}, {at('rest_mb')} "
            f"| {at('rest_requests_per_job_min')}, {at('rest_coordinator_requests_per_min')} | {at('rest_busy_percent')}, {at('busy_percent')} |"
        )
    lines += [
        "",
        f"Of {get('pods')} pods with the last number of jobs, on {get('nodes')} nodes; at rest over {get('rest_s')} s, during which all jobs commit steps.",
        "",
        f"| {get('jobs')} jobs, {get('pods')} pods | |",
        "|---|---|",
        f"| the leader is killed: another one has taken all jobs over, s (10 s of them the Lease) | {get('takeover_s')} |",
        f"| {get('storm_events')} pods deleted at once: effect, ms: p50, p99, longest; machine busy "
        f"| {get('storm_effect_p50_ms')}, {get('storm_effect_p99_ms')}, {get('storm_effect_max_ms')}; {get('storm_busy_percent')} % |",
        f"| without any effect in 20 minutes; how often the operator lost its Lease meanwhile and was started again | {get('storm_effects_missing')}; {get('storm_restarts')} |",
        f"| the process of one coordinator with {get('coordinator_workers')} workers whose steps take a second: cores, MB "
        f"(`make bench-coordinator`'s setup, over {get('coordinator_rest_s')} s) | {get('coordinator_rest_cores')}, {get('coordinator_rest_mb')} |",
        f"| images as `make images` writes them, MB: operator, worker without CUDA | {get('operator_image_mb')}, {get('worker_image_mb')} |",
    ]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binaries", type=Path, default=ROOT / "target/release")
    parser.add_argument("--rounds", type=int, default=8, help="signals of each kind")
    parser.add_argument("--jobs", default="100,300,1000", help="numbers of jobs, growing, with commas between them")
    parser.add_argument("--pods", type=int, default=64, help="of each job")
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--rest", type=int, default=900, help="seconds at rest with the last number of jobs")
    parser.add_argument("--coordinator-rest", type=int, default=120, help="seconds for which one coordinator's process is measured")
    parser.add_argument("--no-table", action="store_true", help="leave docs/benchmarks.md alone")
    a = parser.parse_args()
    bench = a.binaries / "varuna-bench-operator"
    results = run(bench, "signals", a.rounds, a.binaries / "varuna-worker", ROOT / ".cache/data/kjv")
    results |= run(bench, "scale", a.jobs, a.pods, a.nodes, a.rest, a.binaries / "varuna-operator")
    results |= coordinator(a.binaries, a.pods, a.coordinator_rest)
    for image in ("operator", "worker"):
        archive = ROOT / f".cache/images/varuna-{image}.tar"
        if archive.exists():
            results[f"operator.{image}_image_mb"] = f"{archive.stat().st_size / 1e6:.0f}"
    body = f"Machine: {machine()}, shared with the API server, etcd and whatever plays the nodes.\n\n{table(results)}\n"
    print(body)
    if not a.no_table:
        replace_table("operator", body)
    for key, value in results.items():
        print(f"RESULT {key} {value}")


if __name__ == "__main__":
    main()
