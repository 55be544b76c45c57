"""The planner: search time by workers and segments, and plans for any number of workers.

Runs the criterion benchmark of core/plan on one core, then the tests against every composition of pipelines and against Varuna's rule. Needs no libtorch.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CARGO = os.environ.get("CARGO", "cargo")
UNITS = {"ns": 1e-6, "µs": 1e-3, "ms": 1.0, "s": 1e3}


def run(*command):
    """The output of a command, shown as it comes."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    text = ""
    for line in process.stdout:
        sys.stdout.write(line)
        text += line
    if process.wait() != 0:
        sys.exit(f"{' '.join(command)} failed")
    return text


def main():
    one_core = ["taskset", "-c", "0"] if sys.platform == "linux" else []
    run(CARGO, "bench", "--locked", "-p", "varuna-plan", "--bench", "plan", "--no-run")
    text = run(*one_core, CARGO, "bench", "--locked", "-p", "varuna-plan", "--bench", "plan")
    times = {}
    for name, middle, unit in re.findall(r"plan/(\S+)\s+time:\s+\[\S+ \S+ (\S+) (\S+) ", text):
        times[tuple(name.split("/"))] = float(middle) * UNITS[unit]
    packages = ["-p", "varuna-plan", "-p", "varuna-published"]
    tests = run(CARGO, "test", "--locked", *packages, "--", "--nocapture", "exhaustive", "varunas_rule")
    print("\n| workers | segments | first plan, ms | after a loss, ms |\n|---|---|---|---|")
    for workers, segments, kind in times:
        if kind == "first":
            loss = times[(workers, segments, "loss")]
            print(f"| {workers} | {segments} | {times[(workers, segments, kind)]:.1f} | {loss:.1f} |")
    # The middle size, a first plan; the table has the others.
    for workers in ("1000", "10000"):
        print(f"RESULT plan.{workers}_ms {times[(workers, '50', 'first')]:.2f}")
    least = re.search(r"against every composition: at least ([\d.]+) %", tests)[1]
    mean = re.search(r"against Varuna's rule: mean ([\d.]+)", tests)[1]
    print(f"RESULT any_n.vs_best_min_pct {least}")
    print(f"RESULT any_n.vs_varuna_mean {mean}")


if __name__ == "__main__":
    main()
