"""`bench/gpu.py --part speed|elastic|nccl|ablation [--dry-run]`: Varuna on one GPU, checked and timed beside PyTorch on the same GPU.

Runs in the folder that `make gpu-bundle` makes, on a machine with a driver and a Python that has PyTorch with CUDA; needs no network.
A phase that fails does not hide the others: it says why, and the exit code is 1. Each part ends in under 8 minutes.

`--dry-run` does all of it on the processor with tiny models, to try the script: its results are named `gpu.dry_run.*`.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import recovery
from common import DATA, PEERS, ROOT, VARUNA, Run, job, median, varuna_steps
from phases import Bench

# A phase that is cut off may take half a minute more to end its processes.
PART_SECONDS = 440
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


# The two sides.


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


# What is asked before anything is timed.


def environment(bench):
    code = """
import platform, sys, torch
print("python", platform.python_version(), "torch", torch.__version__, "cuda", torch.version.cuda, *platform.libc_ver())
for i in range(torch.cuda.device_count()):
    p = torch.cuda.get_device_properties(i)
    print("GPU", i, p.name, f"{p.total_memory / 2**30:.1f} GiB", p.multi_processor_count, "multiprocessors")
"""
    print(program(sys.executable, "-c", code), end="")
    driver = Path("/proc/driver/nvidia/version")
    print(driver.read_text().splitlines()[0] if driver.exists() else "no file of a driver", flush=True)
    print(program("uname", "-a"), end="")
    for name in ("varuna", "varuna-worker"):
        print(program(VARUNA.with_name(name), "--version"), end="")
    print("Varuna", (ROOT / "COMMIT").read_text().strip() if (ROOT / "COMMIT").exists() else "of this checkout")
    # A GPU that is not there: the worker says how many are, or why CUDA cannot be loaded, and ends.
    command = [VARUNA.with_name("varuna-worker"), "--device", "cuda:9999", "--coordinator", "127.0.0.1:9"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    print("the worker:", " ".join(done.stderr.split("Stack backtrace")[0].split()), flush=True)
    if not bench.dry and ("the driver shows" not in done.stderr or "shows 0 GPUs" in done.stderr):
        raise RuntimeError("the worker finds no GPU")


def library_path():
    """Folders of the libraries that the worker needs: those of this Python's PyTorch, which has no CUDA part if it is not for GPUs."""
    import importlib.util

    packages = Path(importlib.util.find_spec("torch").origin).parent
    folders = [packages / "lib", *sorted(packages.parent.glob("nvidia/*/lib"))]
    return ":".join([*map(str, folders), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])


# Part `speed`.


def parity(bench):
    """Twenty steps of a small model on the device against the same on the processor in fp32: weights are equal bit for bit."""
    steps = steps_of(bench, 20)
    reference = varuna_losses(manifest(TINY, steps, "cpu"))
    for precision, bound in (("fp32", 2e-3), ("bf16", 1e-2)):
        losses = varuna_losses(manifest(TINY, steps, bench.device, precision))
        print(f"  {precision} on {bench.device} / fp32 on the processor:")
        bench.judge(f"parity_{precision}", difference(losses, reference, steps), bound)


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


def pytorch_tiny(bench):
    steps = steps_of(bench, 20)
    bench.judge("parity_pytorch", against_pytorch(bench, TINY, steps, "fp32"), 2e-3)


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
    size, steps, rounds = size_of(bench, LARGE), steps_of(bench, 12), 1 if bench.dry else 2
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


# Part `elastic`.


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


# Part `nccl`.


def over_nccl(bench):
    """The elastic job over NCCL, and what `varuna run` needs for that. NCCL refuses two ranks of one host on one GPU, so each worker says that
    it is a host of its own: sockets carry everything, which is right to see that it works and says nothing of its speed."""
    worker = bench.scratch / "worker-of-its-own-host"
    worker.write_text(
        "#!/bin/sh\nexport NCCL_HOSTID=$$ NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1\n"
        f'exec "{VARUNA.with_name("varuna-worker")}" "$@"\n'
    )
    worker.chmod(0o755)
    made = elastic_manifest(bench)
    # The processor has no NCCL: the dry run tries the script.
    made["spec"]["workers"]["transport"] = "tcp" if bench.dry else "nccl"
    return made, ("--worker-binary", worker)


def nccl_losses(bench):
    """Two pipelines of two stages over NCCL against the same over TCP; and whether NCCL was used at all."""
    steps = steps_of(bench, 20)
    made, options = over_nccl(bench)
    made["spec"]["training"]["steps"] = steps
    with Run(made, recovery.WORKERS, options) as run:
        run.wait()
        losses = [m["loss"] for m in run.lines("metrics.jsonl")]
        logs = [log.read_text(errors="replace") for log in sorted((run.folder / "workers").glob("*.log"))]
    said = [line for log in logs for line in log.splitlines() if "over NCCL" in line or "no communicators" in line]
    for line in sorted({line.split("Z ", 1)[-1] for line in said})[:8]:
        print(f"  {line}", flush=True)
    if not bench.dry and not all("tensors go over NCCL" in log for log in logs):
        raise RuntimeError("not all workers had communicators: no figure over NCCL on this machine")
    made["spec"]["workers"]["transport"] = "tcp"
    with Run(made, recovery.WORKERS, options) as run:
        run.wait()
        reference = [m["loss"] for m in run.lines("metrics.jsonl")]
    bench.judge("loss_difference_nccl", difference(losses, reference, steps), 5e-2)


def nccl_kills(bench):
    if "nccl_losses" in bench.failed:
        raise RuntimeError("nothing goes over NCCL here")
    wanted, seconds = (2, 40) if bench.dry else (20, 270)
    made, options = over_nccl(bench)
    spans, _ = killed(bench, "recovery_nccl", made, wanted, seconds, options)
    if len(spans) < wanted:
        raise RuntimeError(f"{len(spans)} kills in {seconds} s; {wanted} are needed")


# Part `ablation`.

# What a worker can leave out (`varuna-worker --without`), where one process shows its gain, and where it takes boundaries and gradients
# that go through the host.
OF_ONE = ("kernels", "ahead", "chunks", "padding", "read-ahead")
OF_TWO = ("streams", "pinned")
# Ways of libtorch to compute attention (`varuna-worker --attention`), each against the one that it prefers.
ATTENTION = ("flash", "cudnn")
# GPT-2's own vocabulary, which is to be filled up.
UNPADDED = replace(LARGE, vocabulary=50257)


def step_with(settings, made, workers):
    """Median seconds of a job's steps with these variables in the workers' environment."""
    os.environ.update(settings)
    try:
        seconds, _ = varuna_steps(made, workers)
    finally:
        for name in settings:
            del os.environ[name]
    return median(seconds[WARM_UP - 2 :])


def ablation(bench, rows, made, workers):
    """A job's step with other settings, by turns with the whole, as multiples of the whole. `rows` are settings by the results' names."""
    whole, times = [], {name: [] for name in rows}
    try:
        for turn in range(1 if bench.dry else 2):
            whole.append(step_with({}, made, workers))
            print(f"  turn {turn + 1}, the whole: {whole[-1] * 1e3:.1f} ms", flush=True)
            for name, settings in rows.items():
                # A GPU need not have every way of attention: the worker then refuses it.
                try:
                    times[name].append((step_with(settings, made, workers), whole[-1]))
                    print(f"  turn {turn + 1}, {name}: {times[name][-1][0] * 1e3:.1f} ms", flush=True)
                except SystemExit as error:
                    print(f"  {name}: no figure: {str(error)[-500:]}", flush=True)
                    if "VARUNA_ATTENTION" not in settings:
                        raise
    finally:
        # What was measured is told, whatever became of the rest.
        report_ablation(bench, whole, times)


def report_ablation(bench, whole, times):
    if whole:
        print("  | | step, ms | of the whole |\n  |---|---|---|")
        print(f"  | the whole | {median(whole) * 1e3:.1f} | 1 |")
    # Each by the whole of its own turn.
    parts = {name: median([part / all for part, all in pairs]) for name, pairs in times.items() if pairs}
    for name, part in parts.items():
        print(f"  | {name} | {median([of for of, _ in times[name]]) * 1e3:.1f} | {part:.3f} |", flush=True)
    for name, part in parts.items():
        bench.result(name, f"{part:.3f}")


def left_out(names):
    return {f"without_{name.replace('-', '_')}": {"VARUNA_WITHOUT": name} for name in names}


def ablation_of_one(bench):
    """GPT-2 large in one process."""
    made = manifest(size_of(bench, UNPADDED), steps_of(bench, 8), bench.device, "bf16")
    ways = {f"attention_{way}": {"VARUNA_ATTENTION": way} for way in ATTENTION}
    ablation(bench, left_out(OF_ONE) | ways, made, 1)


def ablation_of_two(bench):
    """Two stages on one GPU, over TCP."""
    made = manifest(size_of(bench, ELASTIC), steps_of(bench, 20), bench.device, "bf16", depth=2, workers=2)
    ablation(bench, left_out(OF_TWO), made, 2)


PARTS = {
    "speed": [(parity, 90), (pytorch_tiny, 60), (pytorch_small, 120), (gpt2_large, 330)],
    "elastic": [(kills, 390), (checkpoint_stall, 100)],
    "nccl": [(nccl_losses, 130), (nccl_kills, 310)],
    "ablation": [(ablation_of_one, 340), (ablation_of_two, 100)],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, required=True)
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    os.environ["LD_LIBRARY_PATH"] = library_path()
    if arguments.dry_run:
        # More threads than that only wait for each other on matrices so small.
        os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="varuna-gpu-") as scratch:
        bench = Bench(arguments.dry_run, Path(scratch), time.monotonic() + PART_SECONDS)
        bench.phase("environment", 60, environment)
        for work, seconds in PARTS[arguments.part]:
            bench.phase(work.__name__, seconds, work)
    if bench.failed:
        sys.exit(f"failed: {', '.join(bench.failed)}")


main()
