"""`make bench-zero`: what sharded optimizer state (optimizer.sharding: zero1) takes and costs with four pipelines, beside state that each has whole."""

import argparse
from pathlib import Path

from common import Run, gaps, job, median, publish

PIPELINES = 4
# Many parameters and short samples: most of a worker's memory is state.
MODEL = {"layers": 8, "hiddenSize": 768, "heads": 12, "sequenceLength": 64, "vocabularySize": 320, "tiedHead": False}
# Masters and two moments in single precision.
STATE_BYTES = 12


def parameters():
    """Those of MODEL: of each block twelve squares of the width, and what else is linear in it."""
    width, rows = MODEL["hiddenSize"], MODEL["vocabularySize"]
    block = 12 * width * width + 13 * width
    return MODEL["layers"] * block + (2 * rows + MODEL["sequenceLength"] + 2) * width


def manifest(sharding, precision, steps):
    made = job(steps, 1, max_depth=1, workers=(PIPELINES, PIPELINES), model=MODEL)
    training = made["spec"]["training"]
    training["globalBatchSize"] = PIPELINES
    training["precision"] = precision
    training["optimizer"]["sharding"] = sharding
    return made


def resident(pid):
    """Bytes of memory that a process has, without what it only maps from files."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) * 1024


def measure(sharding, precision, steps):
    """The median worker's bytes once it has run a few steps, seconds of each step, and the losses."""
    with Run(manifest(sharding, precision, steps), PIPELINES) as run:
        run.until("warm steps", lambda: len(run.lines("metrics.jsonl")) >= steps // 2, 600)
        pids = [w["pid"] for w in run.status()["workers"]]
        assert len(pids) == PIPELINES, run.status()
        took = median([resident(pid) for pid in pids])
        run.wait()
        metrics = run.lines("metrics.jsonl")
    assert metrics[-1]["plan"] == f"P1xD{PIPELINES}", metrics[-1]["plan"]
    return took, gaps(metrics), [m["loss"] for m in metrics]


def compare(precision, rounds, steps):
    """By turns. What a worker takes without and with, the ratio of step times, and how far losses are apart at most."""
    whole, shared, ratios, apart = [], [], [], 0.0
    for turn in range(rounds):
        without = measure("none", precision, steps)
        sharded = measure("zero1", precision, steps)
        whole.append(without[0])
        shared.append(sharded[0])
        ratios.append(median(sharded[1]) / median(without[1]))
        apart = max(apart, *(abs(a - b) / a for a, b in zip(without[2], sharded[2])))
        print(f"  {precision} {turn + 1}/{rounds}: {whole[-1] / 1e6:.0f} and {shared[-1] / 1e6:.0f} MB, step x{ratios[-1]:.2f}", flush=True)
    return median(whole), median(shared), median(ratios), apart


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    arguments = parser.parse_args()
    rows, results, state = [], {}, STATE_BYTES * parameters()
    for precision in ("bf16", "fp32"):
        whole, shared, step, apart = compare(precision, arguments.rounds, arguments.steps)
        optimizer = 1 - (whole - shared) / state
        rows.append(f"| {precision} | {whole / 1e6:.0f} | {shared / 1e6:.0f} | {shared / whole:.3f} | **{optimizer:.3f}** | {step:.2f} | {apart:.1e} |")
        tail = "" if precision == "bf16" else "_fp32"
        results[f"zero1.memory_ratio{tail}"] = f"{optimizer:.3f}"
        results[f"zero1.resident_ratio{tail}"] = f"{shared / whole:.3f}"
        results[f"zero1.step_ratio{tail}"] = f"{step:.3f}"
        results[f"zero1.loss_difference{tail}"] = f"{apart:.1e}"
    body = f"""
| precision | a worker without, MB | with, MB | of all its memory | of its optimizer's memory | step time | losses apart, at most |
|---|---|---|---|---|---|---|
{chr(10).join(rows)}

{PIPELINES} pipelines of one worker each on this machine's cores, {parameters() / 1e6:.0f} million parameters, medians of {arguments.rounds} rounds by turns. Memory is what processes have beside files (RssAnon) after half of
{arguments.steps} steps. The optimizer's memory is {STATE_BYTES} bytes a parameter (masters and AdamW's moments) without sharding; with it, that less what was saved, so that copies that only sharding needs count against it. Goal: 0.7.
"""
    publish("zero1", body, results, f"GPT, {MODEL['layers']} layers, width {MODEL['hiddenSize']}, sequence {MODEL['sequenceLength']}, untied; batch {PIPELINES}, AdamW")


main()
