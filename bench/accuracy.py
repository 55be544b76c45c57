"""`make accuracy`: predicted against measured steps, on steps that nothing was fitted on.

First the published steps of another framework. Then this machine's own: gpt2-tiny is profiled, run under nine plans, predicted
for each.

The profile's factor on compute is fitted on every second plan and judged by the others. Workers beyond the cores take turns:
that is modelled, not fitted. A machine whose cores are shared with strangers is slow in stretches of minutes, by a quarter here: all
plans are run by turns, in rounds, and before and after each a reference tells how quick the machine is just then; steps count by their
ratio to it. Nothing else should run meanwhile; it takes ten minutes.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from common import DATA, ROOT, VARUNA, Run, calibrated_profile, median, publish

# (workers, depth, micro-batch size): even places are fitted on, odd ones judged.
PLANS = [(1, 1, 1), (1, 1, 4), (2, 1, 2), (2, 2, 1), (2, 2, 2), (2, 1, 4), (3, 3, 1), (4, 2, 2), (4, 4, 1)]
# Workers, depth, micro-batch size of the reference: both cores compute and nobody waits for long.
REFERENCE = (2, 1, 2)
BATCH = 8
MODEL = f"gpt2-tiny (10.8 M parameters, sequence 256), batch {BATCH}, fp32, AdamW; one thread a worker"


def job(steps, workers, depth, micro_batch):
    """JSON is YAML."""
    return {
        "apiVersion": "varuna.dev/v1alpha1",
        "kind": "VarunaJob",
        "metadata": {"name": "accuracy"},
        "spec": {
            "model": {"preset": "gpt2-tiny"},
            "data": {"path": str(DATA)},
            "training": {
                "globalBatchSize": BATCH,
                "microBatchSize": micro_batch,
                "steps": steps,
                "seed": 1,
                "optimizer": {"learningRate": 1e-3},
            },
            "pipeline": {"minDepth": depth, "maxDepth": depth},
            "elasticity": {"minWorkers": workers, "maxWorkers": workers},
            "workers": {"threads": 1},
        },
    }


def command(*words):
    """Runs varuna and returns what it printed."""
    done = subprocess.run([VARUNA, *map(str, words)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"varuna {words[0]} failed:\n{done.stdout[-2000:]}")
    return done.stdout


def seconds(run):
    """Seconds of each step after three of warm-up."""
    times = [m["timeMs"] / 1e3 for m in run.lines("metrics.jsonl")]
    return [b - a for a, b in zip(times[2:], times[3:])]


def as_usual(run, factor):
    """Rewrites a run's metrics: what it would have taken at the machine's usual pace."""
    lines = run.lines("metrics.jsonl")
    start = lines[0]["timeMs"]
    for line in lines:
        line["timeMs"] = start + round((line["timeMs"] - start) * factor)
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def per_cent(share):
    return f"{100 * share:.2f}"


def published(scratch):
    """RESULT lines of the published steps."""
    found = calibrated_profile(VARUNA.parent, scratch / "published.json")
    judged = sum(1 for row in found["rows"] if not row["fitted"])
    print(f"published steps: {len(found['rows'])}, of which {judged} judge; docs/internals/planner.md has the table")
    for name, share in [("median", "medianError"), ("worst", "worstError"), ("regret_mean", "meanRegret")]:
        print(f"RESULT accuracy.published_{name}_pct {per_cent(found[share])}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=9, help="of each run")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each plan")
    parser.add_argument("--repeats", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="varuna-accuracy-") as scratch:
        published(Path(scratch))
    print(f"load before: {os.getloadavg()[0]:.2f}", flush=True)
    with contextlib.ExitStack() as open_runs:
        scratch = Path(open_runs.enter_context(tempfile.TemporaryDirectory(prefix="varuna-accuracy-")))
        file = scratch / "job.yaml"
        file.write_text(json.dumps(job(arguments.steps, 1, 1, 1)))
        profile = scratch / "profile.json"
        print(
            command("profile", file, "-o", profile, "-n", 4, "--micro-batch-sizes", "1,2,4", "--repeats", arguments.repeats),
            flush=True,
        )
        options = ["--profile", str(profile)]

        def reference():
            with Run(job(6, *REFERENCE), REFERENCE[0], options=options) as run:
                run.wait()
                return median(seconds(run))

        # (place of the plan, run, the reference around it)
        runs, references = [], [reference()]
        for _ in range(arguments.rounds):
            for place, (workers, depth, micro_batch) in enumerate(PLANS):
                manifest = job(arguments.steps, workers, depth, micro_batch)
                run = open_runs.enter_context(Run(manifest, workers, options=options))
                run.wait()
                references.append(reference())
                around = (references[-2] + references[-1]) / 2
                runs.append((place, run, around))
                took, beside = median(seconds(run)) * 1e3, f"the reference beside it {around * 1e3:.0f} ms"
                print(f"  {workers} workers, depth {depth}, micro-batch {micro_batch}: {took:.0f} ms, {beside}", flush=True)
        usual, taken = median(references), [[] for _ in PLANS]
        for place, run, around in runs:
            as_usual(run, usual / around)
            taken[place] += seconds(run)
        chosen = [word for _, run, _ in runs for word in ("--run", run.folder)]
        found = json.loads(command("plan", "calibrate", "--profile", profile, *chosen, "--json"))
    assert len(found["runs"]) == len(PLANS), found
    lines = []
    for row, took in zip(found["runs"], map(sorted, taken)):
        low, high = took[len(took) // 4], took[3 * (len(took) - 1) // 4]
        quartiles = f"{low * 1e3:.0f} - {high * 1e3:.0f}"
        role = "fitted" if row["fitted"] else "**judged**"
        measured, predicted, error = row["measuredMs"], row["predictedMs"], 100 * row["error"]
        cells = f"{measured:.1f} ({quartiles}) | {predicted:.1f} | {error:+.1f} % | {role}"
        lines.append(f"| {row['plan']} | {row['microBatchSize']} | {cells} |")
    median_pct, worst_pct = per_cent(found["medianError"]), per_cent(found["worstError"])
    results = {"accuracy.local_median_pct": median_pct, "accuracy.local_worst_pct": worst_pct}
    fitted = sum(row["fitted"] for row in found["runs"])
    body = f"""
| plan | micro-batch | measured step, ms (quartiles) | predicted, ms | error | |
|---|---|---|---|---|---|
{chr(10).join(lines)}

Steps as on the machine at its usual pace, by the reference beside each run: its step took {usual * 1e3:.0f} ms in the median, {min(references) * 1e3:.0f} to {max(references) * 1e3:.0f}.
Judged: median error **{median_pct} %**, worst {worst_pct} %; compute x {found["calibration"]["compute"]:.4f} fitted on {fitted} plans.
{os.cpu_count()} cores; load at the end {os.getloadavg()[0]:.1f}. Medians over {arguments.rounds * (arguments.steps - 3)} steps.
"""
    publish("accuracy", body, results, model=MODEL)


main()
