"""Parts `nccl` and `nccl-kills` of bench/gpu.py: four processes on one GPU, which NCCL takes for hosts."""

import recovery
from common import VARUNA, Run
from gpu_elastic import elastic_manifest, killed, kills_in
from gpu_sides import difference, steps_of


def over_nccl(bench):
    """The elastic job over NCCL, and what `varuna run` needs for that. NCCL refuses two ranks of one host on one GPU, so each worker says that
    it is a host of its own: sockets carry everything, which is right to see that it works and says nothing of its speed."""
    worker = bench.scratch / "worker-of-its-own-host"
    worker.write_text(
        "#!/bin/sh\nexport NCCL_HOSTID=$$ NCCL_NET=Socket NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1\n"
        f'exec "{VARUNA.with_name("varuna-worker")}" "$@"\n'
    )
    worker.chmod(0o755)
    made = elastic_manifest(bench)
    # The processor has no NCCL: the dry run tries the script.
    made["spec"]["workers"]["transport"] = "tcp" if bench.dry else "nccl"
    return made, ("--worker-binary", worker)


def trained_over_nccl(bench, steps):
    """Losses of so many steps of two pipelines of two stages, in which all workers had communicators."""
    made, options = over_nccl(bench)
    made["spec"]["training"]["steps"] = steps
    with Run(made, recovery.WORKERS, options) as run:
        run.wait()
        losses = [m["loss"] for m in run.lines("metrics.jsonl")]
        logs = [log.read_text(errors="replace") for log in sorted((run.folder / "workers").glob("*.log"))]
    said = [line for log in logs for line in log.splitlines() if "over NCCL" in line or "no communicators" in line]
    for line in sorted({line.split("Z ", 1)[-1] for line in said})[:8]:
        print(f"  {line}", flush=True)
    if not bench.dry and not all("tensors go over NCCL" in log for log in logs):
        raise RuntimeError("not all workers had communicators: no figure over NCCL on this machine")
    return losses


def nccl_losses(bench):
    """The same steps over NCCL and over TCP."""
    steps = steps_of(bench, 8 if bench.brief else 20)
    losses = trained_over_nccl(bench, steps)
    made, options = over_nccl(bench)
    made["spec"]["training"]["steps"] = steps
    made["spec"]["workers"]["transport"] = "tcp"
    with Run(made, recovery.WORKERS, options) as run:
        run.wait()
        reference = [m["loss"] for m in run.lines("metrics.jsonl")]
    bench.judge("loss_difference_nccl", difference(losses, reference, steps), 5e-2)


def nccl_kills(bench):
    """Kills of random workers, where NCCL makes communicators at all: without them tensors would go over TCP."""
    trained_over_nccl(bench, 3)
    wanted, seconds = (2, 40) if bench.dry else kills_in(bench, 350)
    made, options = over_nccl(bench)
    spans, _ = killed(bench, "recovery_nccl", made, wanted, seconds, options)
    if len(spans) < wanted:
        raise RuntimeError(f"{len(spans)} kills in {seconds} s; {wanted} are needed")
