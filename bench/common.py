"""What the benchmarks share: the job, runs of both sides, medians, and the table in docs/benchmarks.md.

Needs Python's standard library only; the PyTorch side runs in the environment that scripts/setup-peers.sh makes.
"""

import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "bench/peers"
sys.path.insert(0, str(PEERS))
import shape  # noqa: E402  (lies with the PyTorch programs)

VARUNA = ROOT / "target/release/varuna"
MEASURED = ROOT / "bench/data/measured"
DATA = ROOT / ".cache/data/kjv"
# The first steps of each side warm up.
WARM_UP = 2
# A benchmark that is terminated ends as one that is interrupted: its `with` blocks end workers and delete network namespaces and folders.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def peers_python():
    """The Python that has PyTorch."""
    made = subprocess.run([ROOT / "scripts/setup-peers.sh"], check=True, stdout=subprocess.PIPE, text=True)
    return Path(made.stdout.strip().splitlines()[-1])


def job(steps, micro_batch, threads=1, min_depth=1, max_depth=8, workers=(1, 8), model=None):
    """The job of peers/shape.py, or with another `spec.model`. JSON is YAML."""
    beta1, beta2 = shape.BETAS
    return {
        "apiVersion": "varuna.dev/v1alpha1",
        "kind": "VarunaJob",
        "metadata": {"name": "bench"},
        "spec": {
            "model": model
            or {
                "layers": shape.LAYERS,
                "hiddenSize": shape.HIDDEN,
                "heads": shape.HEADS,
                "sequenceLength": shape.SEQUENCE,
                "vocabularySize": shape.VOCABULARY,
                "tiedHead": False,
            },
            "data": {"path": str(DATA)},
            "training": {
                "globalBatchSize": shape.BATCH,
                "microBatchSize": micro_batch,
                "steps": steps,
                "seed": 1,
                "optimizer": {
                    "learningRate": shape.LEARNING_RATE,
                    "beta1": beta1,
                    "beta2": beta2,
                    "weightDecay": shape.WEIGHT_DECAY,
                    "warmupSteps": 0,
                },
            },
            "pipeline": {
                "schedule": "1f1b",
                "recompute": "none",
                "minDepth": min_depth,
                "maxDepth": max_depth,
            },
            "elasticity": {"minWorkers": workers[0], "maxWorkers": workers[1]},
            "workers": {"threads": threads},
        },
    }


class Run:
    """A `varuna run` of a job, a mapping or a file's text, in a folder of its own; ends with the `with` block."""

    def __init__(self, manifest, workers, options=()):
        self.scratch = tempfile.TemporaryDirectory(prefix="varuna-bench-")
        self.folder = Path(self.scratch.name) / "run"
        file = Path(self.scratch.name) / "job.yaml"
        file.write_text(manifest if isinstance(manifest, str) else json.dumps(manifest))
        command = [VARUNA, "run", file, "--workers", str(workers), "--run-dir", self.folder, *options]
        self.log = open(Path(self.scratch.name) / "log", "w+")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, cwd=ROOT)

    def __enter__(self):
        return self

    def __exit__(self, error, *_):
        if error is not None:
            self.show_worker_logs()
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)
        self.log.close()
        self.scratch.cleanup()

    def wait(self):
        if self.process.wait() != 0:
            self.log.seek(0)
            sys.exit(f"varuna run failed:\n{self.log.read()[-4000:]}")

    def show_worker_logs(self):
        """The last lines of each, before the folder goes."""
        for log in sorted((self.folder / "workers").glob("*.log")):
            # A program that ends with an error says where it was; what the error was stands before that.
            tail = log.read_text(errors="replace").split("Stack backtrace")[0].splitlines()[-8:]
            print(f"  last lines of {log.name}:", *tail, sep="\n    ", file=sys.stderr, flush=True)

    def lines(self, name):
        """The whole lines of one of the run folder's JSON-lines files."""
        path = self.folder / name
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def status(self):
        try:
            return json.loads((self.folder / "status.json").read_text())
        except FileNotFoundError:
            return {}

    def until(self, what, condition, patience=120):
        return until(what, condition, patience, self.process, self.log)


def until(what, condition, patience, process, log):
    """The first true value of the condition, asked every few milliseconds; the log, where it does not come or the process ends."""
    why = f"no {what} within {patience} s"
    end = time.time() + patience
    while time.time() < end:
        if process.poll() is not None:
            why = f"the program ended while waiting for {what}"
            break
        value = condition()
        if value:
            return value
        time.sleep(0.005)
    log.seek(0)
    sys.exit(f"{why}:\n{log.read()[-4000:]}")


def varuna_steps(manifest, workers):
    """Runs a job to its end. Seconds of each step after the warm-up, and the plan."""
    with Run(manifest, workers) as run:
        run.wait()
        metrics = run.lines("metrics.jsonl")
    return gaps(metrics), metrics[-1]["plan"]


def gaps(metrics):
    """Seconds of each step of a run after the warm-up."""
    times = [m["timeMs"] / 1e3 for m in metrics]
    return [b - a for a, b in zip(times, times[1:])][WARM_UP - 1 :]


def torch_steps(command):
    """Runs a program of the peers. Seconds of each step after the warm-up."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    done = subprocess.run(
        command, cwd=PEERS, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    found = re.search(r"^STEPS (.*)$", done.stdout, re.M)
    if done.returncode or not found:
        sys.exit(f"{command} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return [float(s) for s in found[1].split()]


def threads_of(process):
    """The threads of a process: of each its number, its name, and its processor seconds so far. One that ends meanwhile is left out."""
    found = []
    for task in Path(f"/proc/{process}/task").glob("*"):
        try:
            name = (task / "comm").read_text().strip()
            found.append((task.name, name, int((task / "schedstat").read_text().split()[0]) / 1e9))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def median(values):
    return statistics.median(values)


def percentile(values, p):
    """The smallest value that at least p percent of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * p // 100) - 1)]


def calibrated_profile(programs, path):
    """Writes the profile of the published table, calibrated by its measured steps; what the calibration found."""
    command = [programs / "varuna-published", "calibrate", "--profile", MEASURED / "gpt-1.5b-v100-published.json"]
    command += ["--links", MEASURED / "p2p-10gbps.csv", "--measured", MEASURED / "gpt-1.5b-v100-10gbps.csv"]
    done = subprocess.run([*command, "--output", path, "--json"], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def tokens_per_second(seconds):
    return shape.BATCH * shape.SEQUENCE / median(seconds)


def machine():
    """One line on what this ran on."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    gib = int(memory[1]) / 2**20
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    return (
        f"{os.cpu_count()} x {cpu[1] if cpu else platform.machine()}, {gib:.0f} GiB, "
        f"{platform.system()} {platform.release()}; libtorch and PyTorch 2.11.0; Varuna {commit.stdout.strip()}; "
        f"{time.strftime('%Y-%m-%d')}"
    )


def model_line():
    return (
        f"GPT, {shape.LAYERS} layers, width {shape.HIDDEN}, {shape.HEADS} heads, sequence {shape.SEQUENCE}, "
        f"vocabulary {shape.VOCABULARY}, untied; batch {shape.BATCH} ({shape.BATCH * shape.SEQUENCE} tokens a step), fp32, AdamW"
    )


def replace_table(name, body, path=ROOT / "docs/benchmarks.md"):
    """Puts a table into a document in place of the last one of this name."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, rest = path.read_text().split(begin)
    after = rest.split(end)[1]
    path.write_text(f"{before}{begin}{body}{end}{after}")


def publish(name, body, results, model=None):
    """Prints the table, puts it into docs/benchmarks.md in place of the last one, ends with the RESULT lines."""
    body = f"{model or model_line()}.\nMachine: {machine()}.\n\n{body.strip()}\n"
    replace_table(name, body)
    print(body)
    for key, value in results.items():
        print(f"RESULT {key} {value}")
