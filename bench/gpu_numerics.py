"""Part `numerics` of bench/gpu.py: numbers against the processor and PyTorch, and the planner's memory against what was taken."""

import json
from collections.abc import Callable
from dataclasses import dataclass

from common import DATA, VARUNA, Run
from gpu_sides import ELASTIC, SMALL, TINY, difference, manifest, program, size_of, steps_of, varuna_losses
from gpu_speed import against_pytorch

# By which the planner's bytes may be off, percent.
MEMORY_BOUND = 5.0


def plain(_bench, _spec):
    """Changes nothing."""


def dropout(_bench, spec):
    """Drawn from counters: both sides leave out the same values, which nothing else would hide."""
    spec["model"]["dropout"] = 0.1


def muon(_bench, spec):
    """Its products are rounded to bfloat16 on a GPU alone."""
    spec["training"]["optimizer"] |= {"kind": "muon", "learningRate": 3e-3, "minLearningRate": 3e-3}


def packed(bench, spec):
    """Documents of which a sequence has about four, none of which sees another."""
    spec["data"]["path"] = str(documents(bench))
    spec["data"]["packing"] = {"blockMask": True, "resetPositions": True, "maskLoss": True}


def llama(_bench, spec):
    """RMS norm, rotary positions, SwiGLU, grouped queries."""
    spec["model"] = preset("llama-tiny")


def qwen(_bench, spec):
    """The same with norms of queries and keys, and a tied head."""
    spec["model"] = preset("qwen3-tiny")


def masked(_bench, spec):
    """BERT: an encoder whose loss is that of the masked tokens alone."""
    spec["model"] = preset("bert-tiny")
    # No text of bytes has it.
    spec["training"]["masking"] = {"maskToken": 300}


def preset(name):
    return {"preset": name, "vocabularySize": TINY.vocabulary, "sequenceLength": TINY.sequence}


@dataclass(frozen=True)
class Case:
    """A way to compute, and how far its losses may be off those in single precision on the processor."""

    name: str
    precision: str
    bound: float
    # Of the job's spec, on both sides.
    change: Callable = plain


CASES = (
    Case("fp32", "fp32", 2e-3),
    Case("bf16", "bf16", 1e-2),
    Case("fp16", "fp16", 1e-2),
    Case("dropout", "fp32", 2e-3, dropout),
    Case("muon", "fp32", 1e-2, muon),
    Case("packed", "fp32", 2e-3, packed),
    Case("packed_bf16", "bf16", 2e-3, packed),
    Case("llama", "fp32", 2e-3, llama),
    Case("llama_bf16", "bf16", 1e-2, llama),
    Case("qwen", "fp32", 2e-3, qwen),
    Case("qwen_bf16", "bf16", 1e-2, qwen),
    Case("masked", "fp32", 2e-3, masked),
    Case("masked_bf16", "bf16", 1e-2, masked),
)


def documents(bench):
    """A dataset of short documents. Its path without a suffix."""
    path = bench.scratch / "documents"
    if not path.with_suffix(".bin").exists():
        text = DATA.with_suffix(".bin").read_bytes()[:40_000:2].decode("ascii", "replace")
        lines = (json.dumps({"text": text[at : at + 16]}) for at in range(0, len(text), 16))
        path.with_suffix(".jsonl").write_text("\n".join(lines))
        program(VARUNA, "data", "build", "--tokenizer", "byte", "--output", path, path.with_suffix(".jsonl"))
    return path


def losses_of(bench, device, precision, change, steps):
    made = manifest(TINY, steps, device, precision)
    change(bench, made["spec"])
    if precision == "fp16":
        # A scale that is searched for leaves out steps at the start.
        made["spec"]["training"]["lossScale"] = {"static": 1024}
    return varuna_losses(made)


def parity(bench):
    """Twenty steps of a small model on the device against the same on the processor in fp32: weights are equal bit for bit."""
    steps, references = steps_of(bench, 20), {}
    for case in CASES:
        if case.change not in references:
            references[case.change] = losses_of(bench, "cpu", "fp32", case.change, steps)
        losses = losses_of(bench, bench.device, case.precision, case.change, steps)
        print(f"  {case.name} in {case.precision} on {bench.device} / in fp32 on the processor:")
        bench.judge(f"parity_{case.name}", difference(losses, references[case.change], steps), case.bound)
    for change, losses in references.items():
        # What changes nothing would be equal on both sides too.
        if change is not plain and losses == references[plain]:
            raise RuntimeError(f"{change.__name__} changed nothing")


def muon_replicas(bench):
    """Two holders of every matrix, each of which computes Muon's update for itself: the coordinator compares their bits."""
    steps = steps_of(bench, 20)
    made = manifest(size_of(bench, ELASTIC), steps, bench.device, "bf16", workers=2)
    muon(bench, made["spec"])
    made["spec"]["integrity"] = {"compareEverySteps": 4}
    made["spec"]["pipeline"]["maxDepth"] = 1
    made["spec"]["elasticity"]["minWorkers"] = 2
    with Run(made, 2) as run:
        run.wait()
        metrics, events = run.lines("metrics.jsonl"), run.lines("events.jsonl")
    differing = [event for event in events if event["event"] == "statesDiffer"]
    print(f"  {len(metrics)} steps under {metrics[-1]['plan']}, loss {metrics[-1]['loss']:.5f}; {differing}")
    bench.result("muon_replicas_equal", int(not differing))
    if differing:
        raise RuntimeError("two holders of the same matrices have different bits")


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
