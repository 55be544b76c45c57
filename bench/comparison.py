"""`make bench-comparison`: what `integrity.compareEverySteps` costs: two workers that hold the same state, with a comparison after each step and
without, by turns."""

import argparse
import os
import resource

from common import VARUNA, WARM_UP, Run, job, median, publish, shape

# Short steps, so that what a comparison costs is not lost in what a step does: it depends on the state alone.
BATCH = 2
WORKERS = 2
# Of a parameter, as it is compared: itself and its two moments, in single precision.
BYTES = 12


def state_mib():
    """The state that each worker holds: the whole model."""
    hidden = shape.HIDDEN
    block = 12 * hidden**2 + 13 * hidden
    parameters = 2 * shape.VOCABULARY * hidden + shape.SEQUENCE * hidden + shape.LAYERS * block + 2 * hidden
    return parameters * BYTES / 2**20


def cpu_s():
    """Processor time of all processes that have ended below this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(steps, compared):
    """Seconds of processor time for a whole run, and the median of its steps."""
    manifest = job(steps, 1, max_depth=1, workers=(WORKERS, WORKERS))
    manifest["spec"]["training"]["globalBatchSize"] = BATCH
    if compared:
        manifest["spec"]["integrity"] = {"compareEverySteps": 1}
    before = cpu_s()
    with Run(manifest, WORKERS) as run:
        run.wait()
        times = [m["timeMs"] / 1e3 for m in run.lines("metrics.jsonl")]
        odd = [e for e in run.lines("events.jsonl") if e["event"] == "statesDiffer"]
    assert len(times) == steps and not odd, f"{len(times)} of {steps} steps, {odd}"
    return cpu_s() - before, median([b - a for a, b in zip(times, times[1:])][WARM_UP - 1 :])


def quartiles(values):
    ordered = sorted(values)
    return ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    assert VARUNA.exists(), f"{VARUNA} is not built"
    costs, ratios, plain_steps = [], [], []
    for i in range(arguments.rounds):
        # The first of a pair is another one each time.
        sides = {compared: measure(arguments.steps, compared) for compared in ((False, True) if i % 2 else (True, False))}
        # The end of a run does not wait for the comparison of its last state.
        comparisons = WORKERS * (arguments.steps - 1)
        costs.append((sides[True][0] - sides[False][0]) / comparisons * 1e3)
        ratios.append(sides[True][1] / sides[False][1])
        plain_steps.append(sides[False][1])
        print(f"  a comparison {costs[-1]:.1f} ms; a step {sides[False][1] * 1e3:.0f} ms, with one {ratios[-1]:.3f} times", flush=True)
    mib, cost, ratio = state_mib(), median(costs), median(ratios)
    (low, high), (fast, slow) = quartiles(costs), quartiles(ratios)
    body = f"""
Each of {WORKERS} workers holds the whole state of {mib:.0f} MiB (parameters and moments) and computes its digest after each step; batch {BATCH} instead of
{shape.BATCH}, so that steps are short. {len(costs)} pairs of runs of {arguments.steps} steps; load at the end {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores.

| | median of pairs | quartiles |
|---|---|---|
| processor time of a comparison, each worker, ms | **{cost:.0f}** | {low:.0f} - {high:.0f} |
| the same for each MiB of state, ms | {cost / mib:.2f} | {low / mib:.2f} - {high / mib:.2f} |
| a step with a comparison after each, against {median(plain_steps) * 1e3:.0f} ms without | {ratio:.2f} times | {fast:.2f} - {slow:.2f} |
"""
    results = {
        "comparison.cpu_ms": f"{cost:.1f}",
        "comparison.cpu_ms_per_mib": f"{cost / mib:.3f}",
        "comparison.step_ratio": f"{ratio:.3f}",
    }
    publish("comparison", body, results)


main()
