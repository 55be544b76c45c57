"""`make bench-checkpoint`: what a checkpoint costs training, against the same run without, torch.save and DCP's async_save."""

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import PEERS, ROOT, VARUNA, WARM_UP, job, median, peers_python, publish, varuna_steps

EVERY = 4


def torch_saves(python, rounds):
    with tempfile.TemporaryDirectory(prefix="varuna-bench-save-") as folder:
        environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
        done = subprocess.run(
            [python, PEERS / "save.py", folder, str(rounds)],
            cwd=PEERS,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    found = {m[1]: [float(v) for v in m[2].split()] for m in re.finditer(r"^(SAVE|ASYNC|WRITTEN) (.*)$", done.stdout, re.M)}
    if len(found) != 3:
        sys.exit(f"save.py failed:\n{done.stderr[-2000:]}")
    return {name: median(values) for name, values in found.items()}


def one_round(steps, folder):
    """Mean step seconds without and with checkpoints, by turns, and the checkpoints made."""
    plain, _ = varuna_steps(job(steps, 1, max_depth=1), 1)
    before = peak_mib()
    manifest = job(steps, 1, max_depth=1)
    manifest["spec"]["checkpoint"] = {"uri": str(folder), "intervalSteps": EVERY, "keep": 2}
    saved, _ = varuna_steps(manifest, 1)
    return sum(plain) / len(plain), sum(saved) / len(saved), peak_mib() - before, after_one(saved)


def after_one(seconds):
    """By how much a step that follows a checkpoint is longer than the others of its run."""
    numbered = list(enumerate(seconds, start=WARM_UP + 1))
    after = [s for n, s in numbered if n % EVERY == 1]
    others = [s for n, s in numbered if n % EVERY != 1]
    return median(after) - median(others)


def restore_ratio(place):
    """Reading and checking every shard, over reading the same bytes."""
    files = [p for p in place.glob("*/*.safetensors")]
    ratios = []
    for _ in range(5):
        start = time.perf_counter()
        for file in files:
            file.read_bytes()
        plain = time.perf_counter() - start
        start = time.perf_counter()
        subprocess.run([VARUNA, "checkpoint", "verify", place], check=True, stdout=subprocess.DEVNULL)
        ratios.append((time.perf_counter() - start) / plain)
    return median(ratios)


def upload_ratio(rounds):
    """Plain puts to a MinIO here, over a checkpoint of the same bytes: 1 = as fast as the store takes them."""
    command = ["cargo", "run", "--release", "--quiet", "--locked", "-p", "varuna-store-tests", "--example", "upload", "--"]
    done = subprocess.run([*command, str(rounds)], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    times = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("UPLOAD ")]
    return median([float(plain) / float(saved) for saved, plain in times])


def peak_mib():
    """The largest process so far, of those that have ended."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=25)
    arguments = parser.parse_args()
    python = peers_python()
    pairs, peers = [], []
    with tempfile.TemporaryDirectory(prefix="varuna-bench-checkpoint-") as scratch:
        for i in range(arguments.rounds):
            place = Path(scratch) / str(i)
            pairs.append(one_round(arguments.steps, place))
            peers.append(torch_saves(python, 3))
            print(f"  step {pairs[-1][0]:.3f} s, with checkpoints {pairs[-1][1]:.3f} s; PyTorch {peers[-1]}", flush=True)
        last = Path(scratch) / str(arguments.rounds - 1) / "bench"
        bytes_ = sum(f.stat().st_size for f in sorted(last.iterdir())[-1].iterdir())
        restore = restore_ratio(last)
    upload = upload_ratio(arguments.rounds)
    extra = pairs[0][2]
    step = median([p[0] for p in pairs])
    # Every EVERY-th step is followed by a checkpoint: all that it costs, in the background too, falls on these steps.
    stalls = sorted((p[1] - p[0]) * EVERY for p in pairs)
    within = median([p[3] for p in pairs])
    stall = max(median(stalls), 0.0)
    save, asynchronous = median([p["SAVE"] for p in peers]), median([p["ASYNC"] for p in peers])
    body = f"""
State of {bytes_ / 2**20:.0f} MiB, a local folder, one process, a checkpoint every {EVERY} steps of {step * 1e3:.0f} ms. A checkpoint's cost is all that
the run takes longer, divided by the checkpoints: work in the background on the same cores included.

| | ms | share of a step |
|---|---|---|
| Varuna, whole cost of a checkpoint (median of {len(pairs)} pairs; {stalls[0] * 1e3:.0f} to {stalls[-1] * 1e3:.0f}) | {stall * 1e3:.0f} | {stall / step * 100:.1f} % |
| the step after one, against the others of the same run | {within * 1e3:.0f} | {within / step * 100:.1f} % |
| `torch.save` of the same state, training stands still | {save * 1e3:.0f} | {save / step * 100:.1f} % |
| `torch.distributed.checkpoint.async_save`, until it returns | {asynchronous * 1e3:.0f} | {asynchronous / step * 100:.1f} % |
| the same, until it is written | {median([p["WRITTEN"] for p in peers]) * 1e3:.0f} | |

Reading all shards with their digests (`varuna checkpoint verify`) takes {restore:.2f} times as long as reading the same bytes. To a MinIO on
this machine a checkpoint goes at {upload:.2f} times the speed of plain puts of the same bytes (digests and manifest included). The
worker's peak memory grows by {extra:.0f} MiB.
"""
    # Less than half the spread of the pairs cannot be told from nothing.
    floor = max(stall, (stalls[-1] - stalls[0]) / 2)
    results = {
        "checkpoint.stall_pct": f"{stall / step * 100:.2f}",
        "checkpoint.vs_torch_save": f"{save / floor:.2f}",
        "checkpoint.vs_dcp_async": f"{asynchronous / floor:.2f}",
        "checkpoint.restore_ratio": f"{restore:.2f}",
        "checkpoint.upload_ratio": f"{upload:.2f}",
    }
    publish("checkpoint", body, results)


main()
