"""Part `checkpoint` of bench/gpu.py: what checkpoints cost a run, of which each was really written."""

import re
import tempfile
from dataclasses import replace
from pathlib import Path

from common import VARUNA, Run, gaps, median
from gpu_sides import LARGE, SMALL, manifest, program, size_of

# Checkpoints of a run, but for that of its end.
SAVES = 3
# Steps after a checkpoint in which its state is copied, a few tenths of a second, and steps before it that they are compared with. The speed of a machine
# changes by some percent within minutes: what lies close together is compared with less noise than two runs.
AFTER, BEFORE = 25, 50


def checkpoint_stall(bench):
    """GPT-2 small, whose step is 20 ms on an H100: what limits it is the host, which hands kernels over for most of a step."""
    # Of 124 million parameters a checkpoint is 1.5 GB: an interval is about 6 s on an H100, in which it is to be written, and so are the steps
    # after the last one. A run is then so long that half a percent is 0.12 s.
    stall(bench, "checkpoint", size_of(bench, SMALL), 100 if bench.dry else 300)


def checkpoint_stall_large(bench):
    """Twelve layers of GPT-2 large: what limits their step, 140 ms on an H100, is the GPU."""
    # A checkpoint is 3.6 GB, an interval 14 s.
    stall(bench, "checkpoint_large", size_of(bench, replace(LARGE, layers=12)), 100)


def stall(bench, name, size, every):
    """The same steps with checkpoints and without, by turns; all that the run takes longer counts."""
    steps = (SAVES + 1) * every - 1
    ratios, excesses = [], []
    for turn in range(1 if bench.brief else 3):
        made = manifest(size, steps, bench.device, "bf16")
        # Which comes first changes, as the machine's moods do.
        runs = {way: way(bench, made, every) for way in ((plain, saved) if turn % 2 == 0 else (saved, plain))}
        seconds = {way: sum(gaps(metrics)) for way, metrics in runs.items()}
        ratios.append(seconds[saved] / seconds[plain])
        print(f"  {seconds[plain]:.3f} s, with checkpoints {seconds[saved]:.3f} s", flush=True)
        excesses += [excess(runs[saved], every * number) for number in range(1, SAVES + 1)]
        print("  ms that the steps after each checkpoint took longer:", *(f"{ms:.0f}" for ms, _ in excesses[-SAVES:]), flush=True)
    bench.result(f"{name}_stall_pct", f"{(median(ratios) - 1) * 100:.2f}")
    bench.result(f"{name}_stall_worst_pct", f"{(max(ratios) - 1) * 100:.2f}")
    bench.result(f"{name}_excess_ms", f"{median([ms for ms, _ in excesses]):.0f}")
    bench.result(f"{name}_excess_pct", f"{median([ms / (every * step) * 100 for ms, step in excesses]):.2f}")


def excess(metrics, at):
    """Milliseconds that the steps after the checkpoint of step `at` took longer than those before it, and the mean step before it."""
    times = {m["step"]: m["timeMs"] for m in metrics}
    step = (times[at] - times[at - BEFORE]) / BEFORE
    return times[at + AFTER] - times[at] - AFTER * step, step


def plain(_bench, made, _every):
    """Metrics of the steps without checkpoints."""
    with Run(made, 1) as run:
        run.wait()
        return run.lines("metrics.jsonl")


def saved(bench, made, every):
    """Metrics of the same steps with checkpoints, each of which must be whole in the store."""
    with tempfile.TemporaryDirectory(dir=bench.scratch) as place:
        # All stay, that of the end included.
        checkpoint = {"uri": place, "intervalSteps": every, "keep": SAVES + 1}
        with Run({**made, "spec": {**made["spec"], "checkpoint": checkpoint}}, 1) as run:
            run.wait()
            metrics, events = run.lines("metrics.jsonl"), run.lines("events.jsonl")
        listing = program(VARUNA, "checkpoint", "ls", Path(place) / made["metadata"]["name"])
    complete = {int(step) for step in re.findall(r"^step-(\d+)\S*\s+complete\b", listing, re.M)}
    wanted = {every * number for number in range(1, SAVES + 1)}
    failures = [e["why"] for e in events if e["event"] == "checkpointsFail"]
    if failures or not wanted <= complete:
        raise RuntimeError(f"complete checkpoints of steps {sorted(complete)}, not of all {sorted(wanted)}; failures: {failures}")
    # Not only at the end, where the run waits for the last one.
    if not any(e["event"] == "checkpointed" and e["timeMs"] < metrics[-1]["timeMs"] for e in events):
        raise RuntimeError("no checkpoint was complete while the run went on")
    return metrics
