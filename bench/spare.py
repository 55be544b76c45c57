"""Part of `make bench-recovery`: spare copies in a plan with one pipeline. What a kill -9 costs there, and what the copies cost while nobody dies."""

import os
import random
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from common import Run, job, median, percentile, publish, threads_of

STAGES = 2
CLOCK = os.sysconf("SC_CLK_TCK")
# The thread of a worker that applies gradients to the copies that it keeps (worker/src/engine/background_updates.rs).
UPDATES = "spare-copies"
# The thread of a worker that computes (worker/src/agent/engine_thread.rs).
ENGINE = "engine"
CORES = sorted(os.sched_getaffinity(0))


def manifest(copies, steps=100_000):
    """The benchmarks' job in one pipeline of two stages, with room for a third worker."""
    made = job(steps, 1, min_depth=STAGES, max_depth=STAGES, workers=(STAGES, STAGES + 1))
    made["spec"]["elasticity"]["spareCopies"] = copies
    return made


def members(run):
    """The workers of the plan in force by their first segment, once it trains in one pipeline."""
    status = run.status()
    training = status.get("mode") == "training" and status.get("members") == STAGES
    working = [w for w in status.get("workers", []) if w.get("segments")]
    return sorted(working, key=lambda w: str(w["segments"])) if training and len(working) == STAGES else None


def in_step(run):
    """The members, once all that one of them alone holds is kept in copies that are where the run is."""
    copies = run.status().get("spareCopies") or {}
    ready = copies.get("units", 0) > 0 and copies["inStep"] == copies["units"]
    return members(run) if ready else None


def first_step_after(run, since):
    """The first commit of a generation that was planned after `since`, and the steps that its recovery lost."""
    events = [e for e in run.lines("events.jsonl") if e["timeMs"] >= int(since * 1e3)]
    resumed = [e for e in events if e["event"] == "resumed"]
    if not resumed:
        return None
    generation, lost = resumed[-1]["generation"], sum(e.get("stepsLost") or 0 for e in resumed)
    first = next((m for m in run.lines("metrics.jsonl") if m["generation"] == generation), None)
    return first and (first["timeMs"], lost)


def kills(number, seed):
    """Kills the workers of either stage by turns at random moments of a step; a third worker is there to take the place. Milliseconds from
    each kill to the next commit, steps lost over all, and the median step in milliseconds."""
    rng = random.Random(seed)
    gaps, lost = [], 0
    with Run(manifest(1), STAGES + 1) as run:
        for turn in range(number):
            working = run.until("spare copies in step", lambda: in_step(run))
            run.until("an observed step", lambda: run.status().get("observedMs"))
            time.sleep(rng.random() * run.status()["observedMs"] / 1e3)
            at = time.time()
            os.kill(working[turn % STAGES]["pid"], signal.SIGKILL)
            ended, more = run.until("step after the kill", lambda: first_step_after(run, at))
            gaps.append(ended - at * 1e3)
            lost += more
            command = [Path(run.process.args[0]), "scale", run.folder, str(STAGES + 1)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            run.until("a third worker", lambda: sum(bool(w.get("up")) for w in run.status()["workers"]) == STAGES + 1)
            print(f"  spare copies: kill {turn + 1}/{number}", flush=True)
        metrics, events = run.lines("metrics.jsonl"), run.lines("events.jsonl")
    steps = [m["step"] for m in metrics]
    assert steps == list(range(1, len(steps) + 1)), "a committed step is missing or was repeated"
    assert sum(bool(e.get("restored")) for e in events if e["event"] == "resumed") == 1, "something was read from a store"
    calm = [b["timeMs"] - a["timeMs"] for a, b in zip(metrics, metrics[1:]) if a["generation"] == b["generation"]]
    return gaps, lost, median(calm)


def cpu_seconds(pids):
    """Processor time of these processes so far."""
    fields = (Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in pids)
    return sum((int(f[11]) + int(f[12])) / CLOCK for f in fields)


def update_seconds(pids):
    """Processor time so far of the threads that apply gradients to the copies that these workers keep."""
    return sum(seconds for pid in pids for _, name, seconds in threads_of(pid) if name == UPDATES)


class Optimizers:
    """The processor milliseconds of each worker's own optimizer, step by step, as the status says them."""

    def __init__(self, run, pids):
        self.run, self.pids, self.seen = run, pids, {}

    def look(self):
        for worker in self.run.status()["workers"]:
            timings = worker.get("timings") or {}
            if worker["pid"] in self.pids and "applyCpuMs" in timings:
                self.seen[worker["pid"], timings["step"]] = timings["applyCpuMs"]

    def for_a_step(self):
        """Of all workers together."""
        return sum(median([ms for (pid, _), ms in self.seen.items() if pid == one]) for one in self.pids)


@dataclass
class Steady:
    """Steps without losses, all in milliseconds. Processor time is for a step, of both workers together."""

    # Of each step.
    times: list
    # Of the workers.
    cpu: float
    # Of the threads that apply gradients to copies. All units have a copy here, so these do what the optimizers do, once more.
    updates: float
    # Of the workers' own optimizers.
    optimizers: float


def leave_a_core_free(run, pids):
    """Makes the threads of these workers that compute share one core, and gives all others, of this program too, the rest."""
    first, *rest = CORES
    for pid in [os.getpid(), run.process.pid, *pids]:
        for thread, name, _ in threads_of(pid):
            try:
                os.sched_setaffinity(int(thread), {first} if name == ENGINE else rest)
            except ProcessLookupError:
                continue


def steady(copies, free_core, steps):
    """So many steps once copies (where there are some) are in step. `free_core`: training leaves one to them."""
    os.sched_setaffinity(0, CORES)
    with Run(manifest(copies), STAGES) as run:
        working = run.until("a plan that trains", lambda: in_step(run) if copies else members(run))
        pids = [w["pid"] for w in working]
        if free_core:
            leave_a_core_free(run, pids)
        so_far = len(run.lines("metrics.jsonl"))
        run.until("warm steps", lambda: len(run.lines("metrics.jsonl")) >= max(12, so_far + 3))
        own = Optimizers(run, pids)

        def done():
            own.look()
            return len(run.lines("metrics.jsonl")) >= start + steps

        before, updates, start = cpu_seconds(pids), update_seconds(pids), len(run.lines("metrics.jsonl"))
        run.until("the measured steps", done, 600)
        used, updated = cpu_seconds(pids) - before, update_seconds(pids) - updates
        metrics = run.lines("metrics.jsonl")
    times = [m["timeMs"] for m in metrics[start - 1 :]]
    for_a_step = 1e3 / (len(times) - 1)
    return Steady([b - a for a, b in zip(times, times[1:])], used * for_a_step, updated * for_a_step, own.for_a_step())


def by_turns(free_core, pairs, steps):
    """Runs without and with copies by turns: those of each, and by how many percent the steps of each pair take longer with copies."""
    rows = {0: [], 1: []}
    for pair in range(pairs):
        # Which comes first changes, as the machine's moods do.
        for copies in (0, 1) if pair % 2 else (1, 0):
            rows[copies].append(steady(copies, free_core, steps))
        print(f"  spare copies, {'a free core' if free_core else 'all cores'}: pair {pair + 1}/{pairs}", flush=True)
    times = [[median(run.times) for run in rows[copies]] for copies in (0, 1)]
    return rows, [100 * (b - a) / a for a, b in zip(*times)]


def table(rows, pairs, steps):
    """Steps and their processor time, without and with copies."""
    middle = lambda copies, of: median([of(run) for run in rows[copies]])
    lines = [
        (f"a step, ms (median of {pairs} runs of {steps})", lambda run: median(run.times), "0f"),
        ("processor time of both workers for a step, ms", lambda run: run.cpu, "0f"),
        ("of this, of their own optimizers", lambda run: run.optimizers, "1f"),
        ("of this, of the updates of the copies", lambda run: run.updates, "1f"),
    ]
    of_lines = [f"| {what} | {middle(0, of):.{form}} | {middle(1, of):.{form}} |" for what, of, form in lines]
    return ["| | without copies | with copies |", "|---|---|---|", *of_lines, ""]


def longer(costs):
    return f"The step takes {median(costs):.1f} % longer with copies (median of the pairs; {min(costs):.1f} to {max(costs):.1f})."


def measure(number, pairs, steps, seed):
    """Kills, then runs with and without copies by turns; the tables and the RESULT lines."""
    gaps, lost, step_ms = kills(number, seed)
    free, free_costs = by_turns(True, pairs, steps)
    busy, busy_costs = by_turns(False, pairs, steps)
    ratios = [run.updates / run.optimizers for run in free[1] + busy[1]]
    body = [
        f"{STAGES} stages in one pipeline, a worker of one thread each, on {os.cpu_count()} cores; `elasticity.spareCopies: 1` or 0, by turns.",
        "",
        "With a core that training leaves free: the threads that compute share one core, all others have the rest, with copies as without.",
        "",
        *table(free, pairs, steps),
        f"{longer(free_costs)} Goal: at most 2 %.",
        "",
        "With no core left free:",
        "",
        *table(busy, pairs, steps),
        longer(busy_costs),
        "",
        f"The updates of the copies take {median(ratios):.2f} times the processor time of the optimizers of the holders, for the same units "
        f"(median of all runs; {min(ratios):.2f} to {max(ratios):.2f}). Goal: at most 1.3.",
        "",
        f"{len(gaps)} kills -9 of either stage's worker at random moments, no checkpoint, a third worker to take the place: {lost} steps "
        f"lost, no store read (checked). From the kill to the next commit {median(gaps):.0f} ms (p99 {percentile(gaps, 99):.0f}). "
        f"Goal at p99: 1 s + one step = {1000 + step_ms:.0f} ms.",
    ]
    results = {
        "spare.steps_lost": f"{lost}",
        "spare.gap_ms": f"{percentile(gaps, 99):.0f}",
        "spare.step_cost_pct": f"{median(free_costs):.1f}",
        "spare.step_cost_no_free_core_pct": f"{median(busy_costs):.1f}",
        "spare.optimizer_cpu_ratio": f"{median(ratios):.2f}",
    }
    publish("spare", "\n".join(body), results)
