"""Part `elastic` of bench/gpu.py: kills, and what checkpoints cost. Part `nccl` has the same kills over NCCL."""

import tempfile
import time

import recovery
from common import Run, median, varuna_steps
from gpu_sides import ELASTIC, difference, manifest, size_of


def elastic_manifest(bench):
    return manifest(size_of(bench, ELASTIC), 100_000, bench.device, "bf16", depth=2, workers=recovery.WORKERS)


def kills(bench):
    """Kills of random workers, then the same job undisturbed for as many steps as time allows."""
    wanted, seconds = (3, 60) if bench.dry else (20, 290)
    spans, metrics = killed(bench, "recovery", elastic_manifest(bench), wanted, seconds)
    undisturbed(bench, spans, metrics)
    if len(spans) < wanted:
        raise RuntimeError(f"{len(spans)} kills in {seconds} s; {wanted} are needed")


def killed(bench, name, made, wanted, seconds, options=()):
    """Kills of random workers; each recovery in its parts."""
    spans, events, metrics = recovery.disturbed(made, wanted, 1, seconds, options)
    parts = [recovery.recovery(events, metrics, at, back) for at, back, _ in spans]
    print("  ms of", ", ".join(recovery.PARTS), "and the whole:")
    for row in parts:
        print("   ", *(f"{value:.0f}" for value in row), flush=True)
    if parts:
        bench.result(f"{name}_max_ms", f"{max(row[-1] for row in parts):.0f}")
        bench.result(f"{name}_kills", len(parts))
    return spans, metrics


def undisturbed(bench, spans, metrics):
    end = time.time() + (20 if bench.dry else 60)
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


def checkpoint_stall(bench):
    """The same steps with checkpoints and without, in turns; all that the run takes longer counts."""
    # The last steps of a run would hide a checkpoint that is not written yet.
    steps, every, rounds = (34, 10, 1) if bench.dry else (64, 20, 2)
    plain, saved = [], []
    for _ in range(rounds):
        made = manifest(size_of(bench, ELASTIC), steps, bench.device, "bf16")
        seconds, _ = varuna_steps(made, 1)
        plain.append(sum(seconds))
        with tempfile.TemporaryDirectory(dir=bench.scratch) as place:
            made["spec"]["checkpoint"] = {"uri": place, "intervalSteps": every, "keep": 2}
            seconds, _ = varuna_steps(made, 1)
        saved.append(sum(seconds))
        print(f"  {plain[-1]:.3f} s, with checkpoints {saved[-1]:.3f} s", flush=True)
    bench.result("checkpoint_stall_pct", f"{(median(saved) / median(plain) - 1) * 100:.2f}")
