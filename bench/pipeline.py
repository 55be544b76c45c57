"""`make bench-pipeline`: two stages on two processes, ours and PyTorch's Schedule1F1B over Gloo, by turns; and 2 x 1 against 1 x 2."""

import argparse

from common import PEERS, job, median, peers_python, publish, shape, tokens_per_second, torch_steps, varuna_steps

# Blocks on the first of PyTorch's two stages; 4 was its best of 3, 4, 5.
CUT = 4


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=12)
    arguments = parser.parse_args()
    python = peers_python()
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", PEERS / "pipeline.py"]
    pipe, data_parallel, theirs = [], [], []
    plans = set()
    for _ in range(arguments.rounds):
        seconds, plan = varuna_steps(job(arguments.steps + 2, 1, min_depth=2, max_depth=2, workers=(2, 2)), 2)
        pipe.append(tokens_per_second(seconds))
        command = [*torchrun, arguments.steps, shape.BATCH, CUT]
        theirs.append(tokens_per_second(torch_steps([str(c) for c in command])))
        seconds, other = varuna_steps(job(arguments.steps + 2, 1, max_depth=1, workers=(2, 2)), 2)
        data_parallel.append(tokens_per_second(seconds))
        plans.add((plan, other))
        print(f"  {plan} {pipe[-1]:.0f}  Schedule1F1B {theirs[-1]:.0f}  {other} {data_parallel[-1]:.0f} tok/s", flush=True)
    assert plans == {("P2xD1", "P1xD2")}, plans
    ratios = sorted(a / b for a, b in zip(pipe, theirs))
    shapes = sorted(a / b for a, b in zip(pipe, data_parallel))
    body = f"""
| two processes, one thread each, {shape.BATCH} micro-batches | tok/s |
|---|---|
| Varuna, 2 stages x 1 (1F1B) | {median(pipe):.0f} |
| PyTorch `Schedule1F1B` over Gloo, cut after block {CUT} | {median(theirs):.0f} |
| Varuna, 1 stage x 2 | {median(data_parallel):.0f} |

Varuna 2 x 1 / PyTorch: **{median(ratios):.3f}** ({ratios[0]:.3f} - {ratios[-1]:.3f}). Varuna 2 x 1 / 1 x 2: **{median(shapes):.3f}**
({shapes[0]:.3f} - {shapes[-1]:.3f}). Medians over {arguments.rounds} rounds of {arguments.steps} steps each after 2 of warm-up. PyTorch's
side neither computes nor clips the gradient norm; ours does.
"""
    publish("pipeline", body, {"pipeline.ratio": f"{median(ratios):.3f}", "pipeline.p2_to_d2": f"{median(shapes):.3f}"})


main()
