"""Part `numerics` of bench/gpu.py: numbers against the processor and PyTorch, and the planner's memory against what was taken."""

import json
from dataclasses import dataclass

from common import VARUNA, Run
from gpu_sides import SMALL, TINY, difference, manifest, program, size_of, steps_of, varuna_losses
from gpu_speed import against_pytorch

# By which the planner's bytes may be off, percent.
MEMORY_BOUND = 5.0


@dataclass(frozen=True)
class Case:
    """A way to compute, and how far its losses may be off those in single precision on the processor."""

    name: str
    precision: str
    dropout: float
    bound: float


# Dropout is drawn from counters: both sides leave out the same values, which nothing else would hide.
CASES = (
    Case("fp32", "fp32", 0, 2e-3),
    Case("bf16", "bf16", 0, 1e-2),
    Case("fp16", "fp16", 0, 1e-2),
    Case("dropout", "fp32", 0.1, 2e-3),
)


def losses_of(device, precision, dropout, steps):
    made = manifest(TINY, steps, device, precision)
    made["spec"]["model"]["dropout"] = dropout
    if precision == "fp16":
        # A scale that is searched for leaves out steps at the start.
        made["spec"]["training"]["lossScale"] = {"static": 1024}
    return varuna_losses(made)


def parity(bench):
    """Twenty steps of a small model on the device against the same on the processor in fp32: weights are equal bit for bit."""
    steps, references = steps_of(bench, 20), {}
    for case in CASES:
        if case.dropout not in references:
            references[case.dropout] = losses_of("cpu", "fp32", case.dropout, steps)
        losses = losses_of(bench.device, case.precision, case.dropout, steps)
        print(f"  {case.precision} with dropout {case.dropout} on {bench.device} / fp32 on the processor:")
        bench.judge(f"parity_{case.name}", difference(losses, references[case.dropout], steps), case.bound)
    plain, dropped = (references[dropout] for dropout in (0, 0.1))
    if plain == dropped:
        raise RuntimeError("dropout changed nothing")


def optimizer_bits(bench):
    """A thousand steps of our optimizer with given gradients, on the device and on the processor: bits that differ."""
    told = json.loads(program(VARUNA.with_name("varuna-worker"), "check-optimizer", "--device", bench.device))
    print(f"  {told}")
    equal = not any(told["differing"].values())
    bench.result("optimizer_bits", int(equal))
    if not equal:
        raise RuntimeError("the optimizer has other bits than the processor's; copies in host memory need the same")


def pytorch_tiny(bench):
    steps = steps_of(bench, 20)
    bench.judge("parity_pytorch", against_pytorch(bench, TINY, steps, "fp32"), 2e-3)


def memory(bench):
    """The bytes that the planner counts for a stage against the most that the worker's tensors took."""
    errors = []
    for recompute in ("none", "full"):
        made = manifest(size_of(bench, SMALL), steps_of(bench, 8), bench.device, "bf16")
        made["spec"]["pipeline"]["recompute"] = recompute
        planned, taken = planned_bytes(bench, made), taken_bytes(made)
        errors.append((taken / planned - 1) * 100)
        print(f"  recompute {recompute}: planned {planned / 2**20:.0f} MiB, taken {taken / 2**20:.0f} MiB", flush=True)
    if bench.dry:
        print("  not compared: on the processor what was taken is all of the process, libtorch and its code included")
        return
    worst = max(errors, key=abs)
    bench.result("memory_error_pct", f"{worst:.1f}")
    if abs(worst) > MEMORY_BOUND:
        raise RuntimeError(f"the plan is {worst:.1f} % off what was taken; at most {MEMORY_BOUND:.0f} % is right")


def planned_bytes(bench, made):
    """Of the one stage of a plan for one worker."""
    job = bench.scratch / "planned.yaml"
    job.write_text(json.dumps(made))
    # Only what the head may hold at once depends on the device: any GPU does.
    device = () if bench.dry else ("--device", "h100-80g")
    plan = json.loads(program(VARUNA, "plan", job, "--workers", 1, *device, "--json"))
    ((bytes_of_stage,),) = plan["memoryBytes"]
    return bytes_of_stage


def taken_bytes(made):
    """The most that the worker of a run told."""
    with Run(made, 1) as run:
        run.wait()
        return max(m["peakMemoryBytes"] for m in run.lines("metrics.jsonl"))
