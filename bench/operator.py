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
        raise SystemExit(f"{command[0]} failed")
    return results


def table(r):
    get = lambda key: r.get(f"operator.{key}", "-")
    lines = ["| signal | to the plan persisted, ms: p50, p99 | to the next committed step, ms: p50, p99 |", "|---|---|---|"]
    for kind, name in [*KINDS, ("signal", "all")]:
        cells = [f"{get(f'{kind}_to_{what}_p50_ms')}, {get(f'{kind}_to_{what}_p99_ms')}" for what in ("plan", "step")]
        lines.append(f"| {name} | {cells[0]} | {cells[1]} |")
    lines += [
        "",
        f"{get('signals')} signals, four worker processes on this machine's cores. {get('requests_per_preemption')} requests to the API server for each, with the pod that comes instead, two plans and their Events (watches and leases left out). Goals: 250 ms to the plan; 1 s and one step to the step.",
        "",
        f"| {get('jobs')} jobs, {get('pods')} pods | |",
        "|---|---|",
        f"| a look at a job, ms: p50, p99 | {get('reconcile_p50_ms')}, {get('reconcile_p99_ms')} |",
        f"| all pods made, s | {get('pods_made_s')} |",
        f"| memory of the operator, MB | {get('rss_mb')} |",
        f"| CPU of the operator at rest, cores | {get('idle_cpu_cores')} |",
        f"| requests for a job at rest, a minute (watches and leases left out) | {get('idle_requests_per_job_min')} |",
        f"| another operator has taken all jobs over, s (10 s of them the Lease) | {get('cold_start_s')} |",
        f"| images as `make images` writes them, MB: operator, worker without CUDA | {get('operator_image_mb')}, {get('worker_image_mb')} |",
    ]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binaries", type=Path, default=ROOT / "target/release")
    parser.add_argument("--rounds", type=int, default=8, help="signals of each kind")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=8, help="of each job")
    parser.add_argument("--no-table", action="store_true", help="leave docs/benchmarks.md alone")
    a = parser.parse_args()
    bench = a.binaries / "varuna-bench-operator"
    results = run(bench, "signals", a.rounds, a.binaries / "varuna-worker", ROOT / ".cache/data/kjv")
    results |= run(bench, "scale", a.jobs, a.pods, a.binaries / "varuna-operator")
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
