"""`bench/gpu.py --part PART [--brief] [--dry-run]`: Varuna on one GPU, checked and timed beside PyTorch on the same GPU. `--list` prints the parts.

Runs in the folder that `make gpu-bundle` makes, on a machine with a driver and a Python that has PyTorch with CUDA; needs no network.
A phase that fails does not hide the others: it says why, and the exit code is 1. Each part ends in under 8 minutes.

`--brief` is for a GPU that is at hand for a quarter of an hour: one round in place of two or three, GPT-2 large of 12 layers where starts would take most
of the time, and the environment in the first part alone. All parts together should then take about sixteen minutes.

`--dry-run` does all of it on the processor with tiny models, to try the script: its results are named `gpu.dry_run.*`.
"""

import argparse
import gzip
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

from common import ROOT, VARUNA
from gpu_ablation import ablation_of_dropout, ablation_of_kernels, ablation_of_one, ablation_of_two
from gpu_checkpoint import checkpoint_stall, checkpoint_stall_large
from gpu_elastic import kills
from gpu_nccl import nccl_kills, nccl_losses, sharded, sharded_kills
from gpu_numerics import memory, muon_replicas, optimizer_bits, parity, pytorch_tiny
from gpu_own import own_models
from gpu_sides import program
from gpu_speed import gpt2_large, pytorch_small
from phases import Bench

# A phase that is cut off may take half a minute more to end its processes.
PART_SECONDS = 440


def environment(bench):
    code = """
import platform, sys, torch
print("python", platform.python_version(), "torch", torch.__version__, "cuda", torch.version.cuda, *platform.libc_ver())
for i in range(torch.cuda.device_count()):
    p = torch.cuda.get_device_properties(i)
    print("GPU", i, p.name, f"{p.total_memory / 2**30:.1f} GiB", p.multi_processor_count, "multiprocessors")
"""
    print(program(sys.executable, "-c", code), end="")
    driver = Path("/proc/driver/nvidia/version")
    print(driver.read_text().splitlines()[0] if driver.exists() else "no file of a driver", flush=True)
    print(program("uname", "-a"), end="")
    for name in ("varuna", "varuna-worker"):
        print(program(VARUNA.with_name(name), "--version"), end="")
    print("Varuna", (ROOT / "COMMIT").read_text().strip() if (ROOT / "COMMIT").exists() else "of this checkout")
    # A GPU that is not there: the worker says how many are, or why CUDA cannot be loaded, and ends.
    command = [VARUNA.with_name("varuna-worker"), "--device", "cuda:9999", "--coordinator", "127.0.0.1:9"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    print("the worker:", " ".join(done.stderr.split("Stack backtrace")[0].split()), flush=True)
    if not bench.dry and ("the driver shows" not in done.stderr or "shows 0 GPUs" in done.stderr):
        raise RuntimeError("the worker finds no GPU")


def library_path():
    """Folders of the libraries that the worker needs: those of this Python's PyTorch, which has no CUDA part if it is not for GPUs."""
    import importlib.util

    packages = Path(importlib.util.find_spec("torch").origin).parent
    folders = [packages / "lib", *sorted(packages.parent.glob("nvidia/*/lib"))]
    return ":".join([*map(str, folders), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])


def is_unpacked(packed, there):
    """Whether a program is what is packed, by the checksum and the length that end a gzip file. Another bundle may have been copied over an older one."""
    if not there.exists():
        return False
    program = there.read_bytes()
    return packed.read_bytes()[-8:] == struct.pack("<II", zlib.crc32(program), len(program) & 0xFFFFFFFF)


def unpack_programs():
    """The bundle has its programs packed, to be small. What is unpacked stays for the next part."""
    for name in ("varuna", "varuna-worker"):
        there = VARUNA.with_name(name)
        packed = there.with_name(f"{name}.gz")
        if not packed.exists() or is_unpacked(packed, there):
            continue
        partial = there.with_name(f"{name}.partial")
        try:
            with gzip.open(packed) as source, open(partial, "wb") as target:
                shutil.copyfileobj(source, target)
            partial.chmod(0o755)
            partial.replace(there)
        except (OSError, EOFError, zlib.error) as error:
            sys.exit(f"cannot unpack {packed} to {there}: {error}; copy the bundle again, to a folder with 60 MiB free that can be written")


# Each phase with the seconds that it may take. A kill with the growth after it takes 8 to 20 s on a GPU, a start of GPT-2 large about 15 s.
PARTS = {
    "numerics": [(parity, 220), (muon_replicas, 60), (optimizer_bits, 60), (pytorch_tiny, 60), (memory, 120)],
    "speed": [(pytorch_small, 120), (gpt2_large, 330)],
    "elastic": [(kills, 430)],
    "own": [(own_models, 200)],
    "checkpoint": [(checkpoint_stall, 430)],
    "checkpoint-large": [(checkpoint_stall_large, 430)],
    "nccl": [(nccl_losses, 150), (sharded, 280)],
    "nccl-kills": [(nccl_kills, 430)],
    "sharded-kills": [(sharded_kills, 300)],
    "kernels": [(ablation_of_kernels, 430)],
    "ablation": [(ablation_of_one, 260), (ablation_of_dropout, 80), (ablation_of_two, 100)],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--part", choices=PARTS)
    which.add_argument("--list", action="store_true", help="print the names of the parts")
    parser.add_argument("--brief", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    arguments = parser.parse_args()
    if arguments.list:
        print(*PARTS)
        return
    unpack_programs()
    os.environ["LD_LIBRARY_PATH"] = library_path()
    if arguments.dry_run:
        # More threads than that only wait for each other on matrices so small.
        os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="varuna-gpu-") as scratch:
        bench = Bench(arguments.dry_run, Path(scratch), time.monotonic() + PART_SECONDS, arguments.brief)
        if not arguments.brief or arguments.part == next(iter(PARTS)):
            bench.phase("environment", 60, environment)
        for work, seconds in PARTS[arguments.part]:
            bench.phase(work.__name__, seconds, work)
    if bench.failed:
        sys.exit(f"failed: {', '.join(bench.failed)}")


main()
