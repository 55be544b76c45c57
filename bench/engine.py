"""`make bench-engine`: the same GPT and the same Llama in one process, ours and PyTorch eager, by turns."""

import argparse

from common import PEERS, job, median, peers_python, publish, shape, tokens_per_second, torch_steps, varuna_steps

# The preset that peers/llama.py is, with the vocabulary of the GPT.
LLAMA = {"preset": "llama-tiny", "vocabularySize": shape.VOCABULARY}
# (name of the peer's model, name in the table, spec.model, (threads, samples of a micro-batch), result)
MODELS = [
    ("gpt", "GPT", None, [(1, 1), (1, 8), (2, 1)], "engine.ratio"),
    ("llama", "Llama", LLAMA, [(1, 1), (1, 8), (2, 1)], "engine.llama_ratio"),
]


def compare(python, arguments, peer, model, threads, micro_batch):
    """Tokens a second of both sides, pair by pair."""
    ours, theirs = [], []
    for _ in range(arguments.rounds):
        manifest = job(arguments.steps + 2, micro_batch, threads, max_depth=1, model=model)
        ours.append(tokens_per_second(varuna_steps(manifest, 1)[0]))
        command = [python, PEERS / "eager.py", threads, arguments.steps, shape.BATCH // micro_batch, peer]
        theirs.append(tokens_per_second(torch_steps([str(c) for c in command])))
        print(f"  {peer}, {threads} threads, micro-batch {micro_batch}: {ours[-1]:.0f} / {theirs[-1]:.0f} tok/s", flush=True)
    return ours, theirs


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    arguments = parser.parse_args()
    python = peers_python()
    rows, results = [], {}
    for peer, name, model, cases, result in MODELS:
        all_ratios = []
        for threads, micro_batch in cases:
            ours, theirs = compare(python, arguments, peer, model, threads, micro_batch)
            ratios = sorted(a / b for a, b in zip(ours, theirs))
            all_ratios += ratios
            rows.append(
                f"| {name} | {threads} | {shape.BATCH // micro_batch} x {micro_batch} | {median(ours):.0f} | {median(theirs):.0f} "
                f"| **{median(ratios):.3f}** ({ratios[0]:.3f} - {ratios[-1]:.3f}) |"
            )
        results[result] = f"{median(all_ratios):.3f}"
    body = "\n".join(
        [
            "| model | threads | micro-batches | Varuna, tok/s | PyTorch eager, tok/s | ratio, median of pairs (range) |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            f"Medians over {arguments.rounds} pairs of runs of {arguments.steps} steps each after {2} of warm-up. Varuna's side is "
            "a whole `varuna run` with one worker: data from the dataset, gradient norm, clipping, and the protocol included. The Llama has "
            "the GPT's sizes, 2 heads of keys and values, and a gated MLP of width 1024 (preset llama-tiny).",
        ]
    )
    publish("engine", body, results)


main()
