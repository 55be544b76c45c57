"""`make replay`: both spot traces, with and without notice; the table of docs/guides/replay.md, and RESULT lines.

`varuna-published` first makes a calibrated profile of the published table; `varuna replay` plans with it.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

from common import calibrated_profile, replace_table

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "bench/data"
JOB = DATA / "gpt2-1.5b.yaml"
TRACES = [("p3", "aws-p3-spot", "Bamboo p3, 11.4 h"), ("v100", "aws-v100-16node", "SkyPilot V100, 11 days")]
SEEDS = 5
# The nodes of both traces have a V100 of 16 GB, of which the planner counts 92 %. The job names no limit, so plans are made without one.
DEVICE_BYTES = 0.92 * 16 * 2**30


def output(*command):
    """What a command prints with --json."""
    done = subprocess.run([*map(str, command), "--json"], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def trace_file(trace):
    return DATA / f"traces/{trace}.csv"


def replay(programs, trace, profile, notice, picture):
    options = ["--job", JOB, "--profile", profile, "--seeds", SEEDS, "--svg", picture] + ["--noticed"] * notice
    return output(programs / "varuna", "replay", trace_file(trace), *options)


def restarts(programs, trace, profile):
    """The restart-based systems on a trace."""
    return output(programs / "varuna-published", "restarts", trace_file(trace), "--job", JOB, "--profile", profile)


def memory(report):
    """The most that a worker held to follow the run, and the most that one held beside training, each with its share of a device."""
    extra = report["extraMemory"]
    peaks = [extra[field]["bytes"] for field in ("most", "mostBesideTraining")]
    device = extra["deviceBytes"] or DEVICE_BYTES
    return " / ".join(f"{peak / 2**30:.2f} ({100 * peak / device:.0f} %)" for peak in peaks)


def checkpoints(report):
    """How many checkpoints were made, and how long one was on its way to the store, in per cent of the time."""
    made = report["checkpoints"]
    return f"{made['count']} ({100 * made['uploadS'] / report['seconds']:.1f} %)"


def row(name, notice, report):
    loss = {entry["cause"]: entry["percent"] for entry in report["losses"]}
    goodputs = [100 * g for g in report["goodputBySeed"]]
    mean = sum(goodputs) / len(goodputs)
    ran = [r for r in report["reconfigurations"] if r["ran"]]
    parts = [loss["transfer"], loss["choice"], loss["rollback"], loss["detect"] + loss["plan"] + loss["connect"], loss["lostStep"]]
    rest = sum(loss.values()) - sum(parts)
    cells = " | ".join(f"{part:.2f}" for part in [*parts, rest])
    sent = " | ".join(f"{report[field] / 1e12:.2f}" for field in ("movedBytes", "gradientBytes"))
    line = f"| {name} | {notice} | **{mean:.2f}** ({min(goodputs):.2f} - {max(goodputs):.2f}) | {cells} | {len(ran)} | {sent} | {memory(report)} | {checkpoints(report)} |"
    return mean, line


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=Path, default=ROOT / "target/release", help="their folder")
    programs = parser.parse_args().programs
    (ROOT / "runs").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="varuna-replay-") as scratch:
        profile = Path(scratch) / "calibrated.json"
        calibrated_profile(programs, profile)
        report(programs, profile)


def report(programs, profile):
    lines = [
        "| trace | notice | goodput, %, mean of five seeds (range) | transfer | choice | rollback | detect, plan, connect "
        "| unfinished | other | changes | state sent, TB | gradients for followers, TB "
        "| memory to follow, GiB (of a device): any worker / beside training | checkpoints (one on its way, of the time) |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    results, peers = {}, {}
    for short, trace, name in TRACES:
        for notice in (False, True):
            suffix = "_noticed" if notice else ""
            found = replay(programs, trace, profile, notice, ROOT / f"runs/replay-{short}{suffix}.svg")
            mean, line = row(name, "120 s" if notice else "none", found)
            lines.append(line)
            results[f"replay.{short}{suffix}_goodput_pct"] = f"{mean:.2f}"
        peers[short] = restarts(programs, trace, profile)
    note = "Losses in per cent of the ideal, what was sent, and the most memory that a worker needed to follow: first seed."
    lines += ["", f"{note} The restart-based systems of the last section on the same traces:", ""]
    lines += ["| system | p3: at once / patient, % | V100: at once / patient, % |", "|---|---|---|"]
    for p3, v100 in zip(peers["p3"], peers["v100"]):
        cells = " | ".join(f"{100 * r['goodput']:.1f} / {100 * r['patient']:.1f}" for r in (p3, v100))
        lines.append(f"| {p3['name']} | {cells} |")
    body = "\n".join(lines) + "\n"
    replace_table("replay", body, ROOT / "docs/guides/replay.md")
    print(body)
    for key, value in results.items():
        print(f"RESULT {key} {value}")


main()
