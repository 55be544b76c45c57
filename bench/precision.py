"""`make bench-precision`: what 16-bit numbers change of a curve, and what a loss scale does, on the processor. Nothing is timed: the same
bits come out each time on processors of one kind."""

import copy

from common import Run, job, publish

STEPS = 200
# The scale begins where every step overflows, and may grow again soon.
INITIAL, WINDOW = 2**32, 25
MODEL = {"layers": 2, "hiddenSize": 64, "heads": 2, "sequenceLength": 64, "vocabularySize": 320, "tiedHead": True}


def manifest(precision, depth, loss_scale=None):
    made = job(STEPS, 2, min_depth=depth, max_depth=depth, workers=(depth, depth))
    spec = made["spec"]
    spec["model"] = copy.copy(MODEL)
    spec["data"]["validationFraction"] = 0
    spec["training"] |= {"globalBatchSize": 8, "precision": precision}
    if loss_scale:
        spec["training"]["lossScale"] = loss_scale
    spec["workers"]["device"] = "cpu"
    return made


def metrics(made, workers):
    with Run(made, workers) as run:
        run.wait()
        found = run.lines("metrics.jsonl")
    assert len(found) == STEPS, f"{len(found)} of {STEPS} steps"
    return found


def difference(found, reference):
    """The largest difference of two curves, relative to the second."""
    return max(abs(a["loss"] - b["loss"]) / b["loss"] for a, b in zip(found, reference))


def parity():
    """Rows of the table of curves, and the largest difference of each precision."""
    reference, rows, worst = None, [], {}
    for precision in ("fp32", "bf16", "fp16"):
        for depth in (1, 2):
            found = metrics(manifest(precision, depth), depth)
            reference = reference or found
            off = difference(found, reference)
            worst[precision] = max(off, worst.get(precision, 0.0))
            last = found[-1]
            rows.append(f"| {precision} | {last['plan']} | {last['loss']:.5f} | {off:.1e} | {last['skippedSteps']} |")
    return rows, worst


def scales():
    """Rows of the table of a loss scale: where it changes, and the steps that were skipped."""
    scale = {"initial": INITIAL, "window": WINDOW}
    one, two = (metrics(manifest("fp16", depth, scale), depth) for depth in (1, 2))
    seen = [[(m["lossScale"], m["skippedSteps"]) for m in found] for found in (one, two)]
    rows, before = [], None
    for m in one:
        if m["lossScale"] != before:
            before = m["lossScale"]
            why = "overflow: halved" if m["overflow"] else f"{WINDOW} steps without: doubled"
            rows.append(f"| {m['step']} | 2^{before.bit_length() - 1} | {m['skippedSteps']} | {why} |")
    return rows, sum(a != b for a, b in zip(*seen)), one[-1]["skippedSteps"]


def main():
    curves, worst = parity()
    changes, unequal, skipped = scales()
    body = (
        f"Losses of {STEPS} steps, against fp32 in one stage. fp16 with the default loss scale.\n\n"
        "| precision | plan | last loss | largest difference, relative | skipped steps |\n|---|---|---|---|---|\n"
        + "\n".join(curves)
        + f"\n\nfp16 from a scale of 2^{INITIAL.bit_length() - 1} with a window of {WINDOW} steps: the steps after which the scale is another. "
        f"Steps in which it differs between one stage and two: {unequal}.\n\n"
        "| after step | scale | skipped so far | why |\n|---|---|---|---|\n" + "\n".join(changes)
    )
    results = {f"precision.difference_{name}": f"{value:.1e}" for name, value in worst.items()}
    results |= {"precision.scale_differs_between_plans": unequal, "precision.skipped_steps": skipped}
    shape = ", ".join(f"{name} {value}" for name, value in MODEL.items())
    publish("precision", body, results, f"A small GPT ({shape}), batch 8 in micro-batches of 2, AdamW, on the King James Bible")


if __name__ == "__main__":
    main()
