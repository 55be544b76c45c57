"""The two sides that bench/gpu.py compares, Varuna and PyTorch: which models, how each is run, how far their losses are apart."""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass

from common import DATA, PEERS, Run, job

LEARNING_RATE = 3e-4
# Steps of a run that are not timed: the first ones load kernels.
WARM_UP = 3


@dataclass(frozen=True)
class Size:
    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    batch: int
    micro_batch: int


TINY = Size(2, 64, 2, 64, 320, 8, 2)
# The vocabulary is GPT-2's, padded to a multiple of 128 on both sides.
SMALL = Size(12, 768, 12, 1024, 50304, 8, 8)
LARGE = Size(36, 1280, 20, 1024, 50304, 32, 8)
# 42 million parameters: four processes on one GPU send their gradients through the host.
ELASTIC = Size(12, 512, 8, 512, 8192, 16, 2)


def size_of(bench, real):
    return TINY if bench.dry else real


def steps_of(bench, real):
    return min(real, WARM_UP + 5) if bench.dry else real


def manifest(size, steps, device, precision="fp32", data=DATA, depth=1, workers=1):
    made = job(steps, size.micro_batch, min_depth=depth, max_depth=workers, workers=(depth, workers))
    spec = made["spec"]
    spec["model"] = {
        "layers": size.layers,
        "hiddenSize": size.hidden,
        "heads": size.heads,
        "sequenceLength": size.sequence,
        "vocabularySize": size.vocabulary,
        "tiedHead": True,
    }
    spec["data"] = {"path": str(data), "validationFraction": 0}
    spec["training"] |= {"globalBatchSize": size.batch, "precision": precision}
    # A rate that does not decay: PyTorch's side has the same one, and runs of any length can be compared.
    spec["training"]["optimizer"] |= {"learningRate": LEARNING_RATE, "minLearningRate": LEARNING_RATE}
    spec["workers"]["device"] = device
    # Workers of one machine with one GPU share it, which NCCL refuses.
    spec["workers"]["transport"] = "tcp"
    return made


def varuna_losses(made):
    with Run(made, 1) as run:
        run.wait()
        return [m["loss"] for m in run.lines("metrics.jsonl")]


def program(*command):
    """Output of a program that must succeed."""
    command = [str(c) for c in command]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)[:300]} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def torch_task(mode, size, **rest):
    task = json.dumps(asdict(size) | {"learning_rate": LEARNING_RATE} | rest)
    output = program(sys.executable, PEERS / "gpt2.py", mode, task)
    return json.loads(output.splitlines()[-1]) if mode == "train" else None


def difference(losses, reference, steps):
    """The largest difference of two curves, relative to the second."""
    if len(losses) != steps or len(reference) != steps:
        raise RuntimeError(f"{len(losses)} and {len(reference)} losses, {steps} are needed")
    print(f"  first {losses[0]:.5f} / {reference[0]:.5f}, last {losses[-1]:.5f} / {reference[-1]:.5f}")
    return max(abs(a - b) / b for a, b in zip(losses, reference))
