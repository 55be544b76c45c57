"""`make bench-engine`: the same model in one process, ours and PyTorch eager, by turns."""

import argparse

from common import PEERS, job, median, peers_python, publish, shape, tokens_per_second, torch_steps, varuna_steps

# (threads, samples of a micro-batch)
CASES = [(1, 1), (1, 8), (2, 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    arguments = parser.parse_args()
    python = peers_python()
    rows, all_ratios = [], []
    for threads, micro_batch in CASES:
        ours, theirs = [], []
        for _ in range(arguments.rounds):
            manifest = job(arguments.steps + 2, micro_batch, threads, max_depth=1)
            ours.append(tokens_per_second(varuna_steps(manifest, 1)[0]))
            command = [python, PEERS / "eager.py", threads, arguments.steps, shape.BATCH // micro_batch]
            theirs.append(tokens_per_second(torch_steps([str(c) for c in command])))
            print(f"  {threads} threads, micro-batch {micro_batch}: {ours[-1]:.0f} / {theirs[-1]:.0f} tok/s", flush=True)
        ratios = sorted(a / b for a, b in zip(ours, theirs))
        all_ratios += ratios
        rows.append(
            f"| {threads} | {shape.BATCH // micro_batch} x {micro_batch} | {median(ours):.0f} | {median(theirs):.0f} "
            f"| **{median(ratios):.3f}** ({ratios[0]:.3f} - {ratios[-1]:.3f}) |"
        )
    body = "\n".join(
        [
            "| threads | micro-batches | Varuna, tok/s | PyTorch eager, tok/s | ratio, median of pairs (range) |",
            "|---|---|---|---|---|",
            *rows,
            "",
            f"Medians over {arguments.rounds} pairs of runs of {arguments.steps} steps each after {2} of warm-up. Varuna's side is "
            "a whole `varuna run` with one worker: data from the dataset, gradient norm, clipping, and the protocol included.",
        ]
    )
    publish("engine", body, {"engine.ratio": f"{median(all_ratios):.3f}"})


main()
