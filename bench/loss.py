"""Part of `make bench-recovery`: the loss of a worker where another one, which has nothing of it, takes its place over a slow link.

Two pipelines of one worker train, each of one thread, in network namespaces with a link between them. A third worker waits on the second side. The
worker there is killed, and the third one lacks all state. With parameters first it computes the next step while its state comes; the other
side of the comparison waits for the state (`--without parameters-first`). Needs root, iproute2, and for the full size about 14 GiB of memory.
"""

import os
import signal
import sys
import time

from common import median, publish, shape
from growth import GRADIENT_BYTES, STATE_BYTES, Link, Pair, manifest, options, parameters, steps_of

CALM_STEPS, STEPS_AFTER = 3, 2


def loss(arguments, link, without):
    """Trains with two workers, kills one and lets the third take its place; what came of it, in seconds."""
    with Pair(link, manifest(arguments, arguments.batch), without) as run:
        events, metrics = lambda: run.lines("events.jsonl"), lambda: run.lines("metrics.jsonl")
        run.join(0)
        victim = run.join(1)
        two = run.until("a plan of two", lambda: next((e for e in events() if e["event"] == "planned" and e["workers"] == 2), None), 600)
        of_two = lambda: [m for m in metrics() if m["generation"] >= two["generation"]]  # noqa: E731
        run.until("steps of two workers", lambda: len(of_two()) > CALM_STEPS, 1800)
        run.join(1, "c")
        run.until("the third worker", lambda: any(e["event"] == "workerJoined" and e["name"] == "c" for e in events()), 120)
        calm, generation = median([s for s, _ in steps_of(of_two())]), metrics()[-1]["generation"]
        # In the middle of a step, as a loss comes.
        steps = len(metrics())
        run.until("the next step", lambda: len(metrics()) > steps, 900)
        time.sleep(calm / 2)
        before, killed = link.received(), time.time()
        victim.send_signal(signal.SIGKILL)
        later = lambda: [m for m in metrics() if m["generation"] > generation]  # noqa: E731
        run.until("a step after the loss", later, 1800)
        moved = link.received() - before
        run.until("steps after the loss", lambda: len(later()) > STEPS_AFTER, 1800)
        all_steps, all_events = metrics(), events()
    assert [m["step"] for m in all_steps] == list(range(1, len(all_steps) + 1)), "a committed step is missing or was repeated"
    assert sum(e["event"] == "fenced" for e in all_events) == 1, "one recovery was expected"
    planned = [e for e in all_events if e["event"] == "planned" and not e["change"]][-1]
    assert planned["workers"] == 2, f"the third worker was not used: {planned}"
    assert ("begins with parameters" in planned["reason"]) == (not without), planned["reason"]
    after = [m for m in all_steps if m["generation"] > generation]
    gap = after[0]["timeMs"] / 1e3 - killed
    return {"step": calm, "gap": gap, "moved": moved, "after": median([s for s, g in steps_of(all_steps) if g > generation])}


def report(arguments, first, whole):
    count = parameters(arguments)
    seconds = [count * size * 8 / (arguments.mbit * 1e6) for size in (STATE_BYTES, GRADIENT_BYTES)]
    row = lambda name, of, form: f"| {name} | {form.format(of(first))} | {form.format(of(whole))} |"  # noqa: E731
    beyond = lambda run: run["gap"] - run["step"]  # noqa: E731
    table = [
        "| | parameters first | state first |",
        "|---|---|---|",
        row("a step of two workers, s", lambda r: r["step"], "{:.1f}"),
        row("from the kill to the next commit, s", lambda r: r["gap"], "{:.1f}"),
        row("**the same beyond a step, s**", beyond, "{:.1f}"),
        row("bytes over the link until then, GiB", lambda r: r["moved"] / 2**30, "{:.1f}"),
    ]
    text = (
        f"{count / 1e6:.0f} M parameters: {count * STATE_BYTES / 2**30:.2f} GiB of state over a link of {arguments.mbit} Mb/s (network namespaces, a token "
        f"bucket on each end), where they take {seconds[0]:.1f} s and the parameters alone {seconds[1]:.1f} s. Workers of one thread on {os.cpu_count()} cores; "
        f"{arguments.batch} samples of {shape.SEQUENCE} tokens a step. Medians of {arguments.rounds} rounds by turns; one kill in each. No step was lost or repeated (checked)."
    )
    model = f"GPT, {arguments.layers} layers, width {arguments.hidden}, sequence {shape.SEQUENCE}, vocabulary {shape.VOCABULARY}, untied; fp32, AdamW"
    results = {
        "loss.parameters_first_s": f"{beyond(first):.1f}",
        "loss.state_first_s": f"{beyond(whole):.1f}",
        "loss.ratio": f"{beyond(first) / beyond(whole):.2f}",
    }
    body = "\n".join([*table, "", text])
    if arguments.try_only:
        print(f"{model}.\n\n{body}", *(f"TRIED {name} {value}" for name, value in results.items()), sep="\n")
    else:
        publish("loss", body, results, model)


def main():
    parser = options(__doc__)
    parser.add_argument("--batch", type=int, default=12, help="samples of a step")
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("bench/loss.py makes network namespaces, which needs root: run it as root. Nothing was measured.")
    runs = {"": [], "parameters-first": []}
    with Link(arguments.mbit) as link:
        for _ in range(arguments.rounds):
            for without, done in runs.items():
                done.append(loss(arguments, link, without))
                print(f"  {'without ' + without if without else 'parameters first'}: {done[-1]}", flush=True)
    first, whole = ({key: median([run[key] for run in done]) for key in done[0]} for done in runs.values())
    report(arguments, first, whole)


if __name__ == "__main__":
    main()
