"""Part of `make bench-recovery`: growth where 2 GiB of state move over 1 Gb/s. Workers that follow the run, against stop-and-copy.

Two workers of one thread, each in a network namespace of its own with a link of that rate between them; needs root, iproute2, and for the full size
about 10 GiB of memory. The first trains alone; the second joins as its data-parallel peer, so that the whole state moves.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from common import VARUNA, job, median, publish, shape, until

# Weights and two moments in single precision; a gradient is the third of it.
STATE_BYTES, GRADIENT_BYTES = 12, 4
# What a step may take at most, in times of its gradient on the link; and what the script aims at.
STEP_MOST, STEP_GOAL = 4.0, 3.4
CALM_STEPS, STEPS_AFTER = 4, 4
GOAL = 0.3
# The name of the link at both ends.
WIRE = "wire"


class Link:
    """Two network namespaces with a link of a rate between them; gone with the `with` block."""

    def __init__(self, mbit):
        self.mbit = mbit
        self.names = [f"varuna-{os.getpid()}-{side}" for side in "ab"]
        self.addresses = ["10.77.0.1", "10.77.0.2"]

    def __enter__(self):
        try:
            for name in self.names:
                ip("netns", "add", name)
                self.inside(name, "ip", "link", "set", "lo", "up")
            a, b = self.names
            ip("link", "add", "name", WIRE, "netns", a, "type", "veth", "peer", "name", WIRE, "netns", b)
            for name, address in zip(self.names, self.addresses):
                self.inside(name, "ip", "address", "add", f"{address}/24", "dev", WIRE)
                self.inside(name, "ip", "link", "set", WIRE, "up")
                # A bucket of 4 ms, and a queue as switches have.
                rate = ["rate", f"{self.mbit}mbit", "burst", f"{max(64, self.mbit // 2)}kb", "latency", "20ms"]
                self.inside(name, "tc", "qdisc", "add", "dev", WIRE, "root", "tbf", *rate)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)

    def inside(self, name, *command):
        subprocess.run(["ip", "netns", "exec", name, *command], check=True)

    def received(self):
        """Bytes that came to the second side so far."""
        command = ["ip", "netns", "exec", self.names[1], "cat", f"/sys/class/net/{WIRE}/statistics/rx_bytes"]
        return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def ip(*command):
    subprocess.run(["ip", *command], check=True)


class Pair:
    """A coordinator and workers in the namespaces of a link; they end with the `with` block."""

    def __init__(self, link, manifest, without):
        self.link = link
        self.stack = ExitStack()
        scratch = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="varuna-bench-growth-")))
        self.folder = scratch / "run"
        (scratch / "job.yaml").write_text(json.dumps(manifest))
        self.log = self.stack.enter_context(open(scratch / "log", "w+"))
        self.environment = dict(os.environ, VARUNA_WITHOUT=without)
        command = [VARUNA, "coordinator", "--job", scratch / "job.yaml", "--run-dir", self.folder]
        self.coordinator = self.start(0, [*command, "--bind", f"{link.addresses[0]}:0", "--insecure"])
        self.address = self.until("an address", self.contact)["address"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stack.close()

    def start(self, side, command):
        inside = ["ip", "netns", "exec", self.link.names[side], *map(str, command)]
        process = subprocess.Popen(inside, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=self.environment)
        # Called before the log is closed and the folder goes.
        self.stack.callback(lambda: (process.kill(), process.wait()))
        return process

    def join(self, side, name=None):
        """Starts a worker on a side, and returns its process."""
        name = name or "ab"[side]
        place = ["--name", name, "--node", name, "--advertise", self.link.addresses[side]]
        return self.start(side, [VARUNA.with_name("varuna-worker"), "--coordinator", self.address, *place])

    def contact(self):
        try:
            return json.loads((self.folder / "coordinator.json").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def lines(self, name):
        path = self.folder / name
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def event(self, kind):
        return next((e for e in self.lines("events.jsonl") if e["event"] == kind), None)

    def until(self, what, condition, patience=120):
        return until(what, condition, patience, self.coordinator, self.log)


def manifest(arguments, batch):
    """One stage, so that a second worker gets all of the model."""
    made = job(100_000, 1, max_depth=1, workers=(1, 2))
    model = {"layers": arguments.layers, "hiddenSize": arguments.hidden, "heads": arguments.hidden // 64}
    made["spec"]["model"] |= model
    made["spec"]["training"]["globalBatchSize"] = batch
    return made


def parameters(arguments):
    """Of the model: blocks, two tables, positions, the last norm."""
    h = arguments.hidden
    return arguments.layers * (12 * h * h + 13 * h) + (2 * shape.VOCABULARY + shape.SEQUENCE) * h + 2 * h


def steps_of(lines):
    """Seconds and generation of each step that has one of the same generation before it."""
    return [((b["timeMs"] - a["timeMs"]) / 1e3, b["generation"]) for a, b in zip(lines, lines[1:]) if a["generation"] == b["generation"]]


def second_of_a_sample(arguments, link):
    """How long a sample takes a worker that trains alone, by a difference: what a step takes beside its samples is left out."""
    took = []
    for batch in (2, 6):
        with Pair(link, manifest(arguments, batch), "") as run:
            run.join(0)
            run.until("steps to judge this machine by", lambda: len(run.lines("metrics.jsonl")) >= 4, 600)
            took.append(min(seconds for seconds, _ in steps_of(run.lines("metrics.jsonl"))))
    sample = max((took[1] - took[0]) / 4, 1e-3)
    return sample, max(took[0] - 2 * sample, 0.0)


def growth(arguments, link, batch, without):
    """Trains with one worker and lets the other join; what came of it, in seconds."""
    with Pair(link, manifest(arguments, batch), without) as run:
        run.join(0)
        metrics = lambda: run.lines("metrics.jsonl")  # noqa: E731
        run.until("steps of one worker", lambda: len(metrics()) > CALM_STEPS, 900)
        before, calm = link.received(), median([s for s, _ in steps_of(metrics())])
        joined = time.time()
        run.join(1)
        switched = run.until("switch", lambda: run.event("switched"), 1800)
        grown = lambda: [m for m in metrics() if m["generation"] >= switched["generation"]]  # noqa: E731
        run.until("step of two workers", grown, 900)
        moved = link.received() - before
        run.until("steps of two workers", lambda: len(grown()) > STEPS_AFTER, 900)
        all_steps, events = metrics(), run.lines("events.jsonl")
    assert not any(e["event"] == "fenced" for e in events), "the growth became a recovery"
    assert [m["step"] for m in all_steps] == list(range(1, len(all_steps) + 1)), "a committed step is missing or was repeated"
    late = any(e["event"] == "followersLate" for e in events)
    caught_up = any(e["event"] == "followersCaughtUp" for e in events)
    assert (caught_up and not late) or without, "the newcomer did not catch up with the run"
    assert not (caught_up and without), "the newcomer followed, although that was to be left out"
    after = switched["generation"]
    first = next(i for i, m in enumerate(all_steps) if m["generation"] >= after)
    gap = (all_steps[first]["timeMs"] - all_steps[first - 1]["timeMs"]) / 1e3
    while_moving = [
        (b["timeMs"] - a["timeMs"]) / 1e3 for a, b in zip(all_steps, all_steps[1:]) if a["timeMs"] >= joined * 1e3 and b["generation"] < after
    ]
    return {
        "step": calm,
        "after": median([s for s, g in steps_of(all_steps) if g >= after]),
        "gap": gap,
        "longest": max([gap, *while_moving]),
        "moving": median(while_moving) if while_moving else calm,
        "waited": all_steps[first - 1]["timeMs"] / 1e3 - joined,
        "moved": moved,
    }


def beyond(run):
    """How much longer than a step nobody trained: the longest time between two commits around the switch beyond a step of either plan, in
    steps of the plan before."""
    stood = max(run["gap"] - run["after"], run["longest"] - run["step"])
    return max(stood, 0.0) / run["step"]


def row(name, one, other, form="{:.1f}"):
    return f"| {name} | {form.format(one)} | {form.format(other)} |"


def report(arguments, batch, following, copying):
    count = parameters(arguments)
    state, gradient = count * STATE_BYTES, count * GRADIENT_BYTES * 8 / (arguments.mbit * 1e6)
    table = [
        "| | following | stop-and-copy |",
        "|---|---|---|",
        row("a step of one worker, s", following["step"], copying["step"]),
        row("a step of one worker while the other joins, s", following["moving"], copying["moving"]),
        row("from the start of the second worker to the switch, s", following["waited"], copying["waited"]),
        row("from the last commit before the switch to the first after it, s", following["gap"], copying["gap"]),
        row("a step of two workers, s", following["after"], copying["after"]),
        row("bytes to the second worker until its first commit, GiB", following["moved"] / 2**30, copying["moved"] / 2**30),
        row("**the longest gap between commits beyond a step, in steps**", beyond(following), beyond(copying), "{:.2f}"),
    ]
    text = (
        f"{count / 1e6:.0f} M parameters, of which all move: {state / 2**30:.2f} GiB of state over a link of {arguments.mbit} Mb/s (network namespaces, "
        f"a token bucket on each end), where they take {state * 8 / arguments.mbit / 1e6:.1f} s and a gradient {gradient:.1f} s. A step of one worker takes "
        f"{following['step'] / gradient:.1f} times that. Workers of one thread on {os.cpu_count()} cores; {batch} samples of {shape.SEQUENCE} tokens a step. "
        "The gap is taken beyond a step of the plan that it belongs to. No step was lost or repeated, and nothing was recovered (checked). "
        f"Goal with following: at most {GOAL} steps where a step takes at most {STEP_MOST:.0f} times its gradient's time on the link."
    )
    model = f"GPT, {arguments.layers} layers, width {arguments.hidden}, sequence {shape.SEQUENCE}, vocabulary {shape.VOCABULARY}, untied; fp32, AdamW"
    results = {
        "growth.gap_steps_2gib": f"{beyond(following):.2f}",
        "growth.gap_seconds_2gib": f"{beyond(following) * following['step']:.1f}",
        "growth.stop_and_copy_gap_steps_2gib": f"{beyond(copying):.2f}",
        "growth.step_of_gradient": f"{following['step'] / gradient:.1f}",
    }
    body = "\n".join([*table, "", text])
    if max(following["step"], copying["step"]) > STEP_MOST * gradient:
        print(f"{model}.\n\n{body}")
        sys.exit(f"a step took more than {STEP_MOST:.0f} times its gradient's time on the link: no figure; give fewer samples with --batch")
    if arguments.try_only:
        print(f"{model}.\n\n{body}", *(f"TRIED {name} {value}" for name, value in results.items()), sep="\n")
    else:
        publish("growth", body, results, model)


def options(description):
    """What both benchmarks of a link can be told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--layers", type=int, default=13)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--mbit", type=int, default=1000, help="the rate of the link")
    parser.add_argument("--try-only", action="store_true", help="print the table without putting it into docs/benchmarks.md")
    return parser


def main():
    parser = options(__doc__)
    parser.add_argument("--batch", type=int, help="samples of a step; by default what makes it nearly as long as it may be")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench/growth.py makes network namespaces, which needs root: run it as root. Nothing was measured.")
    gradient = parameters(arguments) * GRADIENT_BYTES * 8 / (arguments.mbit * 1e6)
    with Link(arguments.mbit) as link:
        batch = arguments.batch
        if batch is None:
            sample, rest = second_of_a_sample(arguments, link)
            batch = max(2, int((STEP_GOAL * gradient - rest) / sample))
            print(f"  a sample takes {sample:.2f} s, the rest of a step {rest:.2f} s: {batch} samples for {STEP_GOAL} times {gradient:.2f} s", flush=True)
        copying = growth(arguments, link, batch, "following")
        print(f"  stop-and-copy: {copying}", flush=True)
        following = growth(arguments, link, batch, "")
        print(f"  following: {following}", flush=True)
    report(arguments, batch, following, copying)


if __name__ == "__main__":
    main()
