"""Part `speed` of bench/gpu.py: losses, step times and memory beside PyTorch."""

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from common import DATA, VARUNA, median, varuna_steps
from gpu_sides import LARGE, SMALL, WARM_UP, difference, manifest, program, size_of, steps_of, torch_task, varuna_losses


def one_batch(bench, size):
    """A dataset of exactly one batch, so that both sides train on the same in any order. Its path without a suffix."""
    path = bench.scratch / f"batch-{size.batch}x{size.sequence}"
    if not path.with_suffix(".bin").exists():
        # Tokens of the byte tokenizer are 16-bit numbers, low byte first; the tokenizer adds the last one itself.
        tokens = DATA.with_suffix(".bin").read_bytes()[: 2 * size.batch * size.sequence]
        path.with_suffix(".txt").write_bytes(tokens[::2])
        program(VARUNA, "data", "build", "--tokenizer", "byte", "--output", path, path.with_suffix(".txt"))
    return path


def against_pytorch(bench, size, steps, precision):
    """Largest relative difference of the losses to PyTorch's, from the same weights on the same batch."""
    with tempfile.TemporaryDirectory(dir=bench.scratch) as folder:
        data, weights, store = one_batch(bench, size), Path(folder) / "weights", Path(folder) / "store"
        task = {"steps": steps, "device": bench.device, "precision": precision, "tokens": f"{data}.bin"}
        torch_task("weights", size, folder=str(weights), **task)
        program(VARUNA, "checkpoint", "import", store, weights, "--job", "bench")
        made = manifest(size, steps, bench.device, precision, data)
        made["spec"]["checkpoint"] = {"uri": str(store), "intervalSteps": 1_000_000}
        losses = varuna_losses(made)
        return difference(losses, torch_task("train", size, **task)["losses"], steps)


def pytorch_small(bench):
    value = against_pytorch(bench, size_of(bench, SMALL), steps_of(bench, 50), "bf16")
    # Both sides round to bf16, in other places.
    bench.judge("loss_difference", value, 5e-2)


class Meter:
    """The most memory of the GPU that was taken since the start of a `with` block, in GiB; of processes where there is no GPU."""

    CODE = """
import time, torch
while True:
    free, total = torch.cuda.mem_get_info()
    print((total - free) / 2**30, flush=True)
    time.sleep(0.1)
"""

    def __init__(self, bench):
        self.dry, self.peak, self.before = bench.dry, None, None

    def __enter__(self):
        if not self.dry:
            self.process = subprocess.Popen([sys.executable, "-c", self.CODE], stdout=subprocess.PIPE, text=True)
            # The meter's own context counts as taken before.
            self.before = float(self.process.stdout.readline())
        return self

    def __exit__(self, *_):
        if self.dry:
            self.peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
            return
        self.process.terminate()
        rest, _ = self.process.communicate()
        # A line that was cut off by the end does not count.
        values = [float(line) for line in rest.splitlines(keepends=True) if line.endswith("\n")]
        self.peak = max([self.before, *values]) - self.before


def gpt2_large(bench):
    size, steps, rounds = size_of(bench, LARGE), steps_of(bench, 12), bench.rounds
    task = {"steps": steps, "device": bench.device, "precision": "bf16", "tokens": f"{DATA}.bin", "seeded": False}
    times = {"varuna": [], "eager": [], "compile": []}
    peaks, errors = {"varuna": 0.0, "eager": 0.0, "compile": 0.0}, {}

    def once(side):
        if side == "varuna":
            made = manifest(size, steps, bench.device, "bf16")
            with Meter(bench) as meter:
                seconds, _ = varuna_steps(made, 1)
            # It has left out its own warm-up.
            return seconds[WARM_UP - 2 :], meter.peak
        done = torch_task("train", size, compile=side == "compile", **task)
        return done["seconds"][WARM_UP:], done["peakGib"]

    try:
        for turn in range(rounds):
            for side in [s for s in times if s not in errors]:
                try:
                    seconds, peak = once(side)
                except (Exception, SystemExit) as error:
                    errors[side] = error
                    print(f"  {side}: {type(error).__name__}: {error}", flush=True)
                    continue
                times[side] += seconds
                peaks[side] = max(peaks[side], peak)
                print(f"  round {turn + 1}, {side}, ms:", *(f"{s * 1e3:.1f}" for s in seconds), f"peak {peak:.2f} GiB", flush=True)
    finally:
        report_speed(bench, times, peaks)
    if errors:
        raise RuntimeError(f"no figures of {', '.join(errors)}")


def report_speed(bench, times, peaks):
    middle = {side: median(seconds) for side, seconds in times.items() if seconds}
    if "varuna" not in middle:
        return
    bench.result("gpt2_large_ms", f"{middle['varuna'] * 1e3:.1f}")
    bench.result("peak_gib", f"{peaks['varuna']:.2f}")
    for side in ("eager", "compile"):
        if side in middle:
            bench.result(f"vs_{side}", f"{middle[side] / middle['varuna']:.3f}")
