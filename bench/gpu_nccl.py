"""Parts `nccl` and `nccl-kills` of bench/gpu.py: four processes on one GPU, which NCCL takes for hosts."""

import recovery
from common import VARUNA, Run, gaps, median
from gpu_elastic import elastic_manifest, killed, kills_in
from gpu_sides import ELASTIC, difference, manifest, size_of, steps_of


def over_nccl(bench, made):
    """A job over NCCL, and what `varuna run` needs for that. NCCL refuses two ranks of one host on one GPU, so each worker says that
    it is a host of its own: sockets carry everything, which is right to see that it works and says nothing of its speed."""
    worker = bench.scratch / "worker-of-its-own-host"
    worker.write_text(
        "#!/bin/sh\nexport NCCL_HOSTID=$$ NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1\n"
        f'exec "{VARUNA.with_name("varuna-worker")}" "$@"\n'
    )
    worker.chmod(0o755)
    # The processor has no NCCL: the dry run tries the script.
    made["spec"]["workers"]["transport"] = "tcp" if bench.dry else "nccl"
    return made, ("--worker-binary", worker)


def trained_over_nccl(bench, made):
    """Metrics of a job, in which all workers had communicators."""
    made, options = over_nccl(bench, made)
    with Run(made, recovery.WORKERS, options) as run:
        run.wait()
        metrics = run.lines("metrics.jsonl")
        logs = [log.read_text(errors="replace") for log in sorted((run.folder / "workers").glob("*.log"))]
    said = [line for log in logs for line in log.splitlines() if "over NCCL" in line or "no communicators" in line]
    for line in sorted({line.split("Z ", 1)[-1] for line in said})[:8]:
        print(f"  {line}", flush=True)
    if not bench.dry and not all("tensors go over NCCL" in log for log in logs):
        raise RuntimeError("not all workers had communicators: no figure over NCCL on this machine")
    return metrics


def trained_over_tcp(bench, made):
    """The same over TCP, from workers of as many hosts."""
    made, options = over_nccl(bench, made)
    made["spec"]["workers"]["transport"] = "tcp"
    with Run(made, recovery.WORKERS, options) as run:
        run.wait()
        return run.lines("metrics.jsonl")


def losses_of(metrics):
    return [m["loss"] for m in metrics]


def elastic_of(bench, steps):
    """Two pipelines of two stages for so many steps."""
    made = elastic_manifest(bench)
    made["spec"]["training"]["steps"] = steps
    return made


def nccl_losses(bench):
    """The same steps over NCCL and over TCP."""
    steps = steps_of(bench, 8 if bench.brief else 20)
    losses = losses_of(trained_over_nccl(bench, elastic_of(bench, steps)))
    reference = losses_of(trained_over_tcp(bench, elastic_of(bench, steps)))
    bench.judge("loss_difference_nccl", difference(losses, reference, steps), 5e-2)


def side_by_side(bench, steps, sharding):
    """Pipelines of one stage."""
    made = manifest(size_of(bench, ELASTIC), steps, bench.device, "bf16", workers=recovery.WORKERS)
    made["spec"]["pipeline"]["maxDepth"] = 1
    made["spec"]["training"]["optimizer"]["sharding"] = sharding
    return made


def sharded(bench):
    """Optimizer state that four pipelines of one stage share out, over NCCL and over TCP, beside state that each has whole."""
    steps, seen = steps_of(bench, 15), {}
    for way, trained in (("NCCL", trained_over_nccl), ("TCP", trained_over_tcp)):
        for sharding in ("none", "zero1"):
            made = side_by_side(bench, steps, sharding)
            made["spec"]["elasticity"]["minWorkers"] = recovery.WORKERS
            metrics = trained(bench, made)
            peak, step = max(m["peakMemoryBytes"] for m in metrics if "peakMemoryBytes" in m), median(gaps(metrics))
            seen[way, sharding] = losses_of(metrics), peak, step
            print(f"  {way}, {sharding}: {peak / 2**20:.0f} MiB, {step * 1e3:.1f} ms a step under {metrics[-1]['plan']}", flush=True)
    reference = seen["TCP", "none"][0]
    apart = {way: difference(seen[way, "zero1"][0], reference, steps) for way in ("NCCL", "TCP")}
    for way in ("NCCL", "TCP"):
        (_, whole, plain), (_, shared, step) = seen[way, "none"], seen[way, "zero1"]
        bench.result(f"zero1_{way.lower()}_memory_ratio", f"{shared / whole:.3f}")
        bench.result(f"zero1_{way.lower()}_step_ratio", f"{step / plain:.3f}")
        bench.judge(f"zero1_{way.lower()}_loss_difference", apart[way], 5e-2)


def nccl_kills(bench):
    """Kills of random workers, where NCCL makes communicators at all: without them tensors would go over TCP."""
    trained_over_nccl(bench, elastic_of(bench, 3))
    wanted, seconds = (2, 40) if bench.dry else kills_in(bench, 350)
    made, options = over_nccl(bench, elastic_manifest(bench))
    spans, _ = killed(bench, "recovery_nccl", made, wanted, seconds, options)
    if len(spans) < wanted:
        raise RuntimeError(f"{len(spans)} kills in {seconds} s; {wanted} are needed")


def sharded_kills(bench):
    """The same of workers that share optimizer state out."""
    wanted, seconds = (2, 40) if bench.dry else (5, 70) if bench.brief else (10, 250)
    made, options = over_nccl(bench, side_by_side(bench, 100_000, "zero1"))
    spans, _ = killed(bench, "recovery_zero1", made, wanted, seconds, options)
    if len(spans) < wanted:
        raise RuntimeError(f"{len(spans)} kills in {seconds} s; {wanted} are needed")
