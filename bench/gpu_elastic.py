"""Part `elastic` of bench/gpu.py: kills. Part `nccl-kills` has the same over NCCL."""

import time

import recovery
from common import Run
from gpu_sides import ELASTIC, difference, manifest, size_of


def elastic_manifest(bench):
    return manifest(size_of(bench, ELASTIC), 100_000, bench.device, "bf16", depth=2, workers=recovery.WORKERS)


def kills(bench):
    """Kills of random workers, then the same job undisturbed for as many steps as time allows."""
    wanted, seconds = kills_in(bench, 340)
    spans, metrics = killed(bench, "recovery", elastic_manifest(bench), wanted, seconds)
    undisturbed(bench, spans, metrics)
    if len(spans) < wanted:
        raise RuntimeError(f"{len(spans)} kills in {seconds} s; {wanted} are needed")


def kills_in(bench, seconds):
    """How many kills are wanted, and the seconds for them. One with the growth after it took 4 to 7 s on an H100."""
    if bench.dry:
        return 3, 60
    return 20, 125 if bench.brief else seconds


def killed(bench, name, made, wanted, seconds, options=()):
    """Kills of random workers; each recovery in its parts."""
    totals, steps = [], []

    def after_each(span, events, metrics):
        parts = recovery.recovery(events, metrics, span[0], span[1])
        print("   ", *(f"{value:.0f}" for value in parts), flush=True)
        totals.append(parts[-1])
        steps[:] = [recovery.step_after_kills(metrics)]

    print("  ms of", ", ".join(recovery.PARTS), "and the whole:", flush=True)
    try:
        spans, _, metrics = recovery.disturbed(made, wanted, 1, seconds, options, after_each)
    finally:
        # What was measured is told, whatever became of the rest.
        if totals and steps:
            bench.result(f"{name}_max_ms", f"{max(totals):.0f}")
            bench.result(f"{name}_step_ms", f"{steps[0]:.0f}")
            bench.result(f"{name}_kills", len(totals))
    return spans, metrics


def undisturbed(bench, spans, metrics):
    end = time.time() + (20 if bench.dry or bench.brief else 45)
    with Run(elastic_manifest(bench), recovery.WORKERS) as run:
        # The first lines may come late; after them as many as there is time for.
        run.until("first step", lambda: run.lines("metrics.jsonl"))
        while len(run.lines("metrics.jsonl")) < len(metrics) and time.time() < end and run.process.poll() is None:
            time.sleep(0.1)
        reference = run.lines("metrics.jsonl")
    compared = min(len(reference), len(metrics))
    last = metrics[compared - 1]["timeMs"]
    within = sum(at * 1e3 < last for at, _, _ in spans)
    print(f"  {compared} of {len(metrics)} steps compared; {within} of {len(spans)} kills lie in them")
    if within == 0:
        raise RuntimeError("no kill lies in the steps that were compared")
    losses, others = ([m["loss"] for m in of[:compared]] for of in (metrics, reference))
    # Sums are taken in another order by each plan, in bf16.
    bench.judge("loss_difference_elastic", difference(losses, others, compared), 5e-2)
