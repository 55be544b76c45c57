"""`make bench-checkpoint`: what a checkpoint costs training, against the steps without one, torch.save and DCP's async_save."""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from common import PEERS, ROOT, WARM_UP, Run, job, median, peers_python, publish, threads_of

EVERY = 4
# Threads whose names begin so work for checkpoints alone.
OURS = "checkpoint"


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
    found = {m[1]: [float(v) for v in m[2].split()] for m in re.finditer(r"^(SAVE_CPU|ASYNC_CPU|SAVE|ASYNC|WRITTEN) (.*)$", done.stdout, re.M)}
    if len(found) != 5:
        sys.exit(f"save.py failed:\n{done.stderr[-2000:]}")
    return {name: median(values) for name, values in found.items()}


class Threads:
    """Processor seconds of the threads of all processes below one, by name, and the peak memory of the largest process. A thread that ends between
    two looks keeps what the last one saw."""

    def __init__(self, process):
        self.root, self.seen, self.end = process, {}, threading.Event()
        self.peak_mib = 0.0
        self.watcher = threading.Thread(target=self.watch)
        self.watcher.start()

    def watch(self):
        while not self.end.wait(0.05):
            self.look(self.root)

    def look(self, process):
        try:
            found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text(), re.M)
            self.peak_mib = max(self.peak_mib, int(found[1]) / 1024 if found else 0.0)
        except (FileNotFoundError, ProcessLookupError):
            return
        for thread, name, seconds in threads_of(process):
            self.seen[thread, name] = seconds
        for task in Path(f"/proc/{process}/task").glob("*"):
            try:
                below = (task / "children").read_text().split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            for child in below:
                self.look(child)

    def stop(self):
        self.end.set()
        self.watcher.join()

    def of(self, beginning):
        return sum(seconds for (_, name), seconds in self.seen.items() if name.startswith(beginning))


def one_round(steps, folder):
    """A run: seconds of its steps after the warm-up, by how much each step that follows a checkpoint is longer than the others of its
    interval, the processor seconds of a checkpoint's threads for each, and the worker's peak memory."""
    manifest = job(steps, 1, max_depth=1)
    manifest["spec"]["checkpoint"] = {"uri": str(folder), "intervalSteps": EVERY, "keep": 2}
    with Run(manifest, 1) as run:
        threads = Threads(run.process.pid)
        try:
            run.wait()
        finally:
            threads.stop()
        times = [m["timeMs"] / 1e3 for m in run.lines("metrics.jsonl")]
    seconds = {n: b - a for n, (a, b) in enumerate(zip(times, times[1:]), start=2)}
    longer = []
    for first in range(EVERY + 1, steps - EVERY + 2, EVERY):
        others = [seconds[n] for n in range(first + 1, first + EVERY)]
        longer.append(seconds[first] - median(others))
    return [s for n, s in seconds.items() if n > WARM_UP], longer, threads.of(OURS) / (steps // EVERY), threads.peak_mib


def noise(values):
    """The standard error of a median, by the quartiles: single steps on a shared machine may be far off."""
    low, _, high = statistics.quantiles(values, n=4)
    return 1.2533 * (high - low) / 1.349 / len(values) ** 0.5


def restores(place, rounds):
    """Reading all shards of a checkpoint as a worker does, over reading the same bytes: the ratios of wall and of processor time."""
    command = ["cargo", "run", "--release", "--quiet", "--locked", "-p", "varuna-checkpoint", "--example", "restore", "--"]
    done = subprocess.run([*command, str(place), str(rounds)], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    found = [[float(v) for v in line.split()[1:]] for line in done.stdout.splitlines() if line.startswith("RESTORE ")]
    return median([r[0] / r[1] for r in found]), median([r[2] / r[3] for r in found])


def upload_ratio(rounds):
    """Plain puts to a MinIO here, over a checkpoint of the same bytes: 1 = as fast as the store takes them."""
    command = ["cargo", "run", "--release", "--quiet", "--locked", "-p", "varuna-store-tests", "--example", "upload", "--"]
    done = subprocess.run([*command, str(rounds)], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    times = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("UPLOAD ")]
    return median([float(plain) / float(saved) for saved, plain in times])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=101)
    parser.add_argument("--without-store", action="store_true", help="leave the MinIO out")
    arguments = parser.parse_args()
    python = peers_python()
    steps, longer, cpus, peers = [], [], [], []
    with tempfile.TemporaryDirectory(prefix="varuna-bench-checkpoint-") as scratch:
        for i in range(arguments.rounds):
            run, after, cpu, peak = one_round(arguments.steps, Path(scratch) / str(i))
            steps, longer = steps + run, longer + after
            cpus.append(cpu)
            peers.append(torch_saves(python, 3))
            print(f"  step {median(run):.3f} s, after a checkpoint {median(after) * 1e3:+.0f} ms, cpu {cpu * 1e3:.0f} ms; {peers[-1]}", flush=True)
        last = Path(scratch) / str(arguments.rounds - 1) / "bench"
        bytes_ = sum(f.stat().st_size for f in sorted(last.glob("step-*"))[-1].iterdir())
        restore, restore_cpu = restores(last, 15)
    upload = None if arguments.without_store else upload_ratio(arguments.rounds)
    step, stall, error, cpu = median(steps), max(median(longer), 0.0), noise(longer), median(cpus)
    peer = {name: median([p[name] for p in peers]) for name in peers[0]}
    ms = lambda seconds: f"{seconds * 1e3:.0f}"
    share = lambda seconds: f"{seconds / step * 100:.2f} %"
    to_store = "" if upload is None else f"""
To a MinIO on this machine a checkpoint goes at {upload:.2f} times the speed of plain puts of the same bytes (digests and manifest included)."""
    body = f"""
State of {bytes_ / 2**20:.0f} MiB, a local folder, one process with one thread, a checkpoint every {EVERY} steps of {ms(step)} ms. *Longer*: the step after a
checkpoint, against the median of the other steps of its interval, so that both are seconds apart: median of {len(longer)}, with its standard error.
*Processor*: of the threads that copy and upload. Load at the end {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.

| | ms | share of a step |
|---|---|---|
| Varuna: the step after a checkpoint is longer by | {ms(stall)} ± {ms(error)} | {share(stall)} ± {share(error)} |
| Varuna: processor time of a checkpoint ({ms(min(cpus))} to {ms(max(cpus))}) | {ms(cpu)} | {share(cpu)} |
| `torch.save` of the same state, training stands still | {ms(peer["SAVE"])} | {share(peer["SAVE"])} |
| its processor time | {ms(peer["SAVE_CPU"])} | {share(peer["SAVE_CPU"])} |
| `torch.distributed.checkpoint.async_save`, until it returns | {ms(peer["ASYNC"])} | {share(peer["ASYNC"])} |
| the same, until it is written | {ms(peer["WRITTEN"])} | |
| its processor time | {ms(peer["ASYNC_CPU"])} | {share(peer["ASYNC_CPU"])} |

Reading the state back as a worker does, digests checked, takes {restore:.2f} times as long as reading the same bytes into memory, and {restore_cpu:.2f} times
the processor time.{to_store} The worker's peak memory is {peak:.0f} MiB.
"""
    # What is less than the noise cannot be told from nothing.
    floor = max(stall, error)
    results = {
        "checkpoint.stall_pct": f"{stall / step * 100:.2f}",
        "checkpoint.noise_pct": f"{error / step * 100:.2f}",
        "checkpoint.cpu_ms": f"{cpu * 1e3:.1f}",
        "checkpoint.cpu_pct": f"{cpu / step * 100:.2f}",
        "checkpoint.vs_torch_save": f"{peer['SAVE'] / floor:.2f}",
        "checkpoint.vs_dcp_async": f"{peer['ASYNC'] / floor:.2f}",
        "checkpoint.cpu_vs_torch_save": f"{peer['SAVE_CPU'] / cpu:.2f}",
        "checkpoint.cpu_vs_dcp_async": f"{peer['ASYNC_CPU'] / cpu:.2f}",
        "checkpoint.restore_ratio": f"{restore:.2f}",
        "checkpoint.restore_cpu_ratio": f"{restore_cpu:.2f}",
    }
    if upload is not None:
        results["checkpoint.upload_ratio"] = f"{upload:.2f}"
    publish("checkpoint", body, results)


main()
