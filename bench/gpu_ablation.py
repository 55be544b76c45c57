"""Parts `kernels` and `ablation` of bench/gpu.py: steps without one thing at a time."""

import os
from dataclasses import replace

from common import median, varuna_steps
from gpu_sides import ELASTIC, LARGE, SMALL, WARM_UP, manifest, size_of, steps_of

# What a worker can leave out (`varuna-worker --without`), where one process shows its gain, and where it takes boundaries and gradients
# that go through the host.
OF_KERNELS = ("kernels", "optimizer", "norm", "gelu", "loss", "bias", "squares")
OF_ONE = ("ahead", "chunks", "padding", "read-ahead")
OF_TWO = ("streams", "pinned")
# Ways of libtorch to compute attention (`varuna-worker --attention`), each against the one that it prefers.
ATTENTION = ("flash", "cudnn")
# GPT-2's own vocabulary, which is to be filled up.
UNPADDED = replace(LARGE, vocabulary=50257)


def step_with(settings, made, workers):
    """Median seconds of a job's steps with these variables in the workers' environment."""
    os.environ.update(settings)
    try:
        seconds, _ = varuna_steps(made, workers)
    finally:
        for name in settings:
            del os.environ[name]
    return median(seconds[WARM_UP - 2 :])


def ablation(bench, rows, made, workers):
    """A job's step with other settings, by turns with the whole, as multiples of the whole. `rows` are settings by the results' names."""
    whole, times = [], {name: [] for name in rows}
    try:
        for turn in range(bench.rounds):
            whole.append(step_with({}, made, workers))
            print(f"  turn {turn + 1}, the whole: {whole[-1] * 1e3:.1f} ms", flush=True)
            for name, settings in rows.items():
                # A GPU need not have every way of attention: the worker then refuses it.
                try:
                    times[name].append((step_with(settings, made, workers), whole[-1]))
                    print(f"  turn {turn + 1}, {name}: {times[name][-1][0] * 1e3:.1f} ms", flush=True)
                except SystemExit as error:
                    print(f"  {name}: no figure: {str(error)[-500:]}", flush=True)
                    if "VARUNA_ATTENTION" not in settings:
                        raise
    finally:
        # What was measured is told, whatever became of the rest.
        report_ablation(bench, whole, times)


def report_ablation(bench, whole, times):
    if whole:
        print("  | | step, ms | of the whole |\n  |---|---|---|")
        print(f"  | the whole | {median(whole) * 1e3:.1f} | 1 |")
    # Each by the whole of its own turn.
    parts = {name: median([part / all for part, all in pairs]) for name, pairs in times.items() if pairs}
    for name, part in parts.items():
        print(f"  | {name} | {median([of for of, _ in times[name]]) * 1e3:.1f} | {part:.3f} |", flush=True)
    for name, part in parts.items():
        bench.result(name, f"{part:.3f}")


def left_out(names):
    return {f"without_{name.replace('-', '_')}": {"VARUNA_WITHOUT": name} for name in names}


def large(bench):
    # A start of all 36 layers takes longer than the steps.
    size = replace(UNPADDED, layers=12) if bench.brief else UNPADDED
    return manifest(size_of(bench, size), steps_of(bench, 8), bench.device, "bf16")


def ablation_of_kernels(bench):
    """GPT-2 large in one process: whose kernels compute."""
    ways = {f"attention_{way}": {"VARUNA_ATTENTION": way} for way in ATTENTION}
    ablation(bench, left_out(OF_KERNELS) | ways, large(bench), 1)


def ablation_of_one(bench):
    """GPT-2 large in one process: all else."""
    ablation(bench, left_out(OF_ONE), large(bench), 1)


def ablation_of_dropout(bench):
    """GPT-2 small with dropout, which the others are trained without."""
    made = manifest(size_of(bench, SMALL), steps_of(bench, 20), bench.device, "bf16")
    made["spec"]["model"]["dropout"] = 0.1
    ablation(bench, left_out(("dropout",)), made, 1)


def ablation_of_two(bench):
    """Two stages on one GPU, over TCP."""
    made = manifest(size_of(bench, ELASTIC), steps_of(bench, 20), bench.device, "bf16", depth=2, workers=2)
    ablation(bench, left_out(OF_TWO), made, 2)
