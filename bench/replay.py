"""`make replay`: both spot traces, with and without notice; the table of docs/guides/replay.md, and RESULT lines."""

import argparse
import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "bench/data"
TRACES = [("p3", "aws-p3-spot", "Bamboo p3, 11.4 h"), ("v100", "aws-v100-16node", "SkyPilot V100, 11 days")]
SEEDS = 5


def replay(binary, trace, notice, picture):
    measured = DATA / "measured"
    command = [binary, "replay", DATA / f"traces/{trace}.csv", "--job", DATA / "gpt2-1.5b.yaml", "--json", "--seeds", str(SEEDS)]
    command += ["--profile", measured / "gpt-1.5b-v100-profile.json", "--links", measured / "p2p-10gbps.csv"]
    command += ["--measured", measured / "gpt-1.5b-v100-10gbps.csv", "--svg", picture]
    command += ["--noticed"] if notice else []
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def row(name, notice, report):
    loss = {entry["cause"]: entry["percent"] for entry in report["losses"]}
    goodputs = [100 * g for g in report["goodputBySeed"]]
    mean = sum(goodputs) / len(goodputs)
    ran = [r for r in report["reconfigurations"] if r["ran"]]
    parts = [loss["transfer"], loss["choice"], loss["rollback"], loss["detect"] + loss["plan"] + loss["connect"], loss["lostStep"]]
    rest = sum(loss.values()) - sum(parts)
    cells = " | ".join(f"{part:.2f}" for part in [*parts, rest])
    line = f"| {name} | {notice} | **{mean:.2f}** ({min(goodputs):.2f} - {max(goodputs):.2f}) | {cells} | {len(ran)} |"
    return mean, line


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/varuna")
    binary = parser.parse_args().binary
    (ROOT / "runs").mkdir(exist_ok=True)
    lines = [
        "| trace | notice | goodput, %, mean of five seeds (range) | transfer | choice | rollback | detect, plan, connect "
        "| unfinished | other | changes |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    results, peers = {}, {}
    for short, trace, name in TRACES:
        for notice in (False, True):
            suffix = "_noticed" if notice else ""
            report = replay(binary, trace, notice, ROOT / f"runs/replay-{short}{suffix}.svg")
            mean, line = row(name, "120 s" if notice else "none", report)
            lines.append(line)
            results[f"replay.{short}{suffix}_goodput_pct"] = f"{mean:.2f}"
            peers[short] = report["restarts"]
    lines += ["", "Losses in per cent of the ideal, first seed. The restart-based systems of the last section on the same traces:", ""]
    lines += ["| system | p3: at once / patient, % | V100: at once / patient, % |", "|---|---|---|"]
    for p3, v100 in zip(peers["p3"], peers["v100"]):
        cells = " | ".join(f"{100 * r['goodput']:.1f} / {100 * r['patient']:.1f}" for r in (p3, v100))
        lines.append(f"| {p3['name']} | {cells} |")
    body = "\n".join(lines) + "\n"
    path = ROOT / "docs/guides/replay.md"
    begin, end = "<!-- replay: begin -->\n", "<!-- replay: end -->\n"
    before, rest = path.read_text().split(begin)
    path.write_text(f"{before}{begin}{body}{end}{rest.split(end)[1]}")
    print(body)
    for key, value in results.items():
        print(f"RESULT {key} {value}")


main()
