"""`make bench-coordinator`: what the coordinator's process costs with many workers; the table of docs/benchmarks.md, and RESULT lines.

`varuna coordinator --tls` with a token, as a process of its own. Its workers run the shipped agent, uplink and data plane with an
engine that computes nothing (worker/examples/stub_agents), many in a process, all on this machine. Times on the clock are
therefore those of a machine that runs all workers too; the coordinator's processor time is its own.
"""

import argparse
import json
import os
import resource
import secrets
import subprocess
import tempfile
import time
from pathlib import Path

from common import ROOT, machine, replace_table, until

# Workers of one process of agents.
TOGETHER = 100
STEADY_S = 20


def job(workers):
    return {
        "apiVersion": "varuna.dev/v1alpha1",
        "kind": "VarunaJob",
        "metadata": {"name": "many"},
        "spec": {
            "model": {"layers": 47, "hiddenSize": 8192, "heads": 64, "sequenceLength": 2048, "vocabularySize": 50304},
            "data": {"path": "/nowhere"},
            "training": {
                "globalBatchSize": workers * 4,
                "microBatchSize": 1,
                "steps": 1000000,
                "optimizer": {"learningRate": 1e-4},
            },
            "pipeline": {"schedule": "1f1b", "recompute": "full", "minDepth": 8, "maxDepth": 16},
            # One may go; the first plan waits for all the others.
            "elasticity": {"minWorkers": workers - 1, "maxWorkers": 100000},
        },
    }


class Process:
    """What the kernel says of a process."""

    def __init__(self, popen):
        self.popen, self.proc = popen, Path(f"/proc/{popen.pid}")

    def cpu_ms(self):
        """User and system time of all its threads; of threads that have ended nothing."""
        total = 0
        for task in (self.proc / "task").iterdir():
            try:
                total += int((task / "schedstat").read_text().split()[0])
            except FileNotFoundError:
                pass
        return total / 1e6

    def figures(self):
        status = dict(line.split(":", 1) for line in (self.proc / "status").read_text().splitlines() if ":" in line)
        kb = lambda key: int(status[key].split()[0])
        return {
            "rss_mb": kb("VmRSS") / 1e3,
            "peak_rss_mb": kb("VmHWM") / 1e3,
            "threads": int(status["Threads"]),
            "descriptors": len(list((self.proc / "fd").iterdir())),
        }


class Lines:
    """A file of the run folder with a JSON document in each line; whole lines are read once."""

    def __init__(self, path):
        self.path, self.at, self.all = path, 0, []

    def read(self):
        if self.path.exists():
            with open(self.path, "rb") as file:
                file.seek(self.at)
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self.at += len(whole)
            self.all += [json.loads(line) for line in whole.splitlines()]
        return self.all


class Cluster:
    """A coordinator and its workers, ended with the `with` block."""

    def __init__(self, arguments, workers, in_memory):
        self.arguments, self.workers, self.in_memory = arguments, workers, in_memory
        self.scratch = tempfile.TemporaryDirectory(prefix="varuna-bench-")
        self.folder = Path(self.scratch.name) / "run"
        file = Path(self.scratch.name) / "job.yaml"
        file.write_text(json.dumps(job(workers)))
        self.environment = dict(os.environ, VARUNA_TOKEN=secrets.token_hex(16))
        self.log = open(Path(self.scratch.name) / "log", "w+")
        command = [arguments.binaries / "varuna", "coordinator", "--job", file, "--bind", "127.0.0.1:0", "--tls"]
        self.coordinator = Process(self.start([*command, "--run-dir", self.folder]))
        self.agents = []
        self.events, self.metrics = Lines(self.folder / "events.jsonl"), Lines(self.folder / "metrics.jsonl")
        contact = self.until("an address", self.contact)
        self.environment["VARUNA_CERTIFICATE"] = contact["certificate"]
        self.address = contact["address"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in [*self.agents, self.coordinator]:
            process.popen.kill()
            process.popen.wait()
        self.log.close()
        self.scratch.cleanup()

    def start(self, command):
        command = [str(c) for c in command]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=self.log, stderr=self.log, env=self.environment)

    def contact(self):
        try:
            return json.loads((self.folder / "coordinator.json").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def tell(self, agents, command):
        agents.popen.stdin.write(f"{command}\n".encode())
        agents.popen.stdin.flush()

    def agents_process(self):
        command = [self.arguments.binaries / "examples/stub_agents", "--coordinator", self.address]
        command += ["--step-ms", self.arguments.step_ms, *(["--in-memory"] if self.in_memory else [])]
        self.agents.append(Process(self.start(command)))
        return self.agents[-1]

    def add(self, first, count):
        """Starts workers with these numbers."""
        if self.in_memory:
            agents = self.agents[0] if self.agents else self.agents_process()
            self.tell(agents, f"add {first} {count}")
            return
        for start in range(first, first + count, TOGETHER):
            self.tell(self.agents_process(), f"add {start} {min(TOGETHER, first + count - start)}")

    def kill(self, number):
        """Ends a worker without a word: with its process where it has one of its own, the last that was started."""
        if self.in_memory:
            self.tell(self.agents[0], f"kill {number}")
        else:
            self.agents.pop().popen.kill()

    def until(self, what, condition, patience=240):
        return until(what, condition, patience, self.coordinator.popen, self.log)

    def event(self, kind, since_ms):
        """The first event of a kind that is not older."""
        found = (e for e in self.events.read() if e["event"] == kind and e["timeMs"] >= since_ms)
        return next(found, None)

    def wait_event(self, kind, since_ms):
        return self.until(kind, lambda: self.event(kind, since_ms))["timeMs"]

    def joined(self):
        return [e["timeMs"] for e in self.events.read() if e["event"] == "workerJoined"]

    def spent(self, work):
        """The coordinator's processor time while `work` is done, and what it returns."""
        before = self.coordinator.cpu_ms()
        value = work()
        return self.coordinator.cpu_ms() - before, value


def launch(cluster, results):
    """All workers attach, and train."""
    # The last one may be a process of its own: it will be killed.
    cluster.add(1, cluster.workers - 1)
    cluster.add(cluster.workers, 1)

    def work():
        planned = cluster.wait_event("planned", 0)
        running = cluster.wait_event("running", planned)
        return planned, running, cluster.until("a step", cluster.metrics.read)[0]["timeMs"]

    cpu, (planned, running, stepped) = cluster.spent(work)
    joined = cluster.joined()
    results["attach_s"] = (joined[-1] - joined[0]) / 1e3
    results["launch_s"] = (running - planned) / 1e3
    results["first_step_s"] = (stepped - planned) / 1e3
    results["launch_cpu_ms"] = cpu


def steady(cluster, results, seconds):
    """Steps, when nothing else happens."""
    first = len(cluster.metrics.read())
    cluster.until("training", lambda: len(cluster.metrics.read()) >= first + 5)

    def work():
        before = len(cluster.metrics.read())
        time.sleep(seconds)
        return len(cluster.metrics.read()) - before

    start = time.time()
    cpu, steps = cluster.spent(work)
    took = time.time() - start
    results["step_cpu_ms"] = cpu / max(steps, 1)
    results["step_ms"] = took / max(steps, 1) * 1e3
    results["second_cpu_ms"] = cpu / took
    results.update(cluster.coordinator.figures())


def recovery(cluster, results):
    """A worker is killed: to the plan without it, and to the order to train."""
    killed = time.time() * 1e3

    def work():
        cluster.kill(cluster.workers)
        planned = cluster.wait_event("planned", int(killed))
        return planned, cluster.wait_event("running", planned)

    cpu, (planned, running) = cluster.spent(work)
    results["recovery_decided_ms"] = planned - killed
    results["recovery_ms"] = running - killed
    results["recovery_cpu_ms"] = cpu


def growth(cluster, results):
    """A tenth as many workers come: from the last one's stream to the switch."""
    begun = int(time.time() * 1e3)
    more = max(cluster.workers // 10, 1)
    cluster.add(cluster.workers + 1, more)

    def work():
        before = len(cluster.joined())
        cluster.until("all new workers", lambda: len(cluster.joined()) - before >= more)
        return cluster.wait_event("switched", begun)

    cpu, switched = cluster.spent(work)
    results["growth_s"] = (switched - cluster.joined()[-1]) / 1e3
    results["growth_cpu_ms"] = cpu


def measure(arguments, workers, in_memory):
    results = {}
    with Cluster(arguments, workers, in_memory) as cluster:
        launch(cluster, results)
        # Unless it is given time to settle, the coordinator makes plans ahead meanwhile, as it does after each change.
        time.sleep(arguments.settle)
        steady(cluster, results, arguments.seconds)
        for figure in ("threads", "descriptors"):
            results[f"agents_{figure}"] = sum(a.figures()[figure] for a in cluster.agents)
        recovery(cluster, results)
        growth(cluster, results)
        results["peak_rss_mb"] = cluster.coordinator.figures()["peak_rss_mb"]
    return results


COLUMNS = [
    ("CPU for a step, ms", "step_cpu_ms", 2),
    ("a step, ms", "step_ms", 0),
    ("launch, s", "launch_s", 2),
    ("CPU of it, attaching included, ms", "launch_cpu_ms", 0),
    ("recovery decided, ms", "recovery_decided_ms", 0),
    ("recovered, ms", "recovery_ms", 0),
    ("CPU of it, ms", "recovery_cpu_ms", 0),
    ("growth, s", "growth_s", 2),
    ("CPU of it, ms", "growth_cpu_ms", 0),
    ("peak memory, MB", "peak_rss_mb", 0),
    ("threads", "threads", 0),
    ("descriptors", "descriptors", 0),
]


def table(measured):
    lines = ["| workers | " + " | ".join(name for name, *_ in COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for workers, results in measured.items():
        cells = [f"{results[key]:.{digits}f}" if key in results else "-" for _, key, digits in COLUMNS]
        lines.append(f"| {workers} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binaries", type=Path, default=ROOT / "target/release")
    parser.add_argument("--workers", type=int, nargs="*", default=[64, 256, 1000])
    parser.add_argument("--tcp", type=int, nargs="*", default=[64], help="likewise, with their connections to one another")
    parser.add_argument("--step-ms", type=int, default=100, help="what a step's computation takes")
    parser.add_argument("--settle", type=float, default=0, help="seconds before training is measured, in which plans are made ahead")
    parser.add_argument("--seconds", type=float, default=STEADY_S, help="of training that are measured")
    parser.add_argument("--no-table", action="store_true", help="leave docs/benchmarks.md alone")
    a = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    measured = {}
    for workers, in_memory in [*((n, False) for n in a.tcp), *((n, True) for n in a.workers)]:
        name = f"{workers}" if in_memory else f"{workers}_tcp"
        measured[name] = measure(a, workers, in_memory)
        print(name, {key: round(value, 3) for key, value in measured[name].items()}, flush=True)
    body = f"Machine: {machine()}.\n\n{table(measured)}\n"
    print(body)
    if not a.no_table:
        replace_table("coordinator", body)
    for workers, results in measured.items():
        for key, value in results.items():
            print(f"RESULT protocol.process_{key}_{workers} {value:.3f}")


if __name__ == "__main__":
    main()
