"""`make bench-data`: `varuna data build` against Megatron's own dataset builder, by turns: the same JSON lines, the same tokenizer, as many
threads as Megatron has processes.

Megatron's side is peers/dataset.py. Its time is taken from when its processes stand, with their tokenizers, to when the index is written: what
Python takes to start is not counted. Varuna's is that of the whole program.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import common

SIZE = 64 << 20
PAIRS = 5


def write_documents(path):
    """Documents of 1 to 200 verses of the shipped text, in an order of chance, so that none is there twice."""
    import gzip

    with gzip.open(common.ROOT / "examples/data/text/kjv.txt.gz", "rt") as text:
        lines = text.read().splitlines()
    chance, written = random.Random(1), 0
    with path.open("w") as file:
        while written < SIZE:
            start = chance.randrange(len(lines))
            document = "\n".join(lines[start : start + chance.randrange(1, 200)])
            written += file.write(json.dumps({"text": document}) + "\n")


def python_with_megatron():
    made = subprocess.run([common.ROOT / "scripts/setup-hf.sh"], check=True, stdout=subprocess.PIPE, text=True)
    return made.stdout.strip().splitlines()[-1]


def ours(source, tokenizer, output, workers):
    """Seconds."""
    command = [common.VARUNA, "data", "build", "--tokenizer", tokenizer, "--threads", str(workers), "--overwrite"]
    began = time.monotonic()
    subprocess.run([*command, "--output", output, source], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - began


def theirs(python, source, tokenizer, output, workers):
    """Seconds, as it says."""
    command = [python, common.PEERS / "dataset.py", "build", source, tokenizer, output, str(workers)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.split()[-1])


def main():
    workers, python = os.cpu_count() or 1, python_with_megatron()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        source, tokenizer = folder / "documents.jsonl", folder / "tokenizer"
        write_documents(source)
        subprocess.run([python, common.PEERS / "dataset.py", "tokenizer", source, tokenizer], check=True)
        ratios, times = [], []
        for pair in range(PAIRS):
            own = ours(source, tokenizer, folder / "ours", workers)
            other = theirs(python, source, tokenizer, folder / "theirs", workers)
            print(f"pair {pair}: varuna {own:.1f} s, Megatron {other:.1f} s: {other / own:.2f} times", flush=True)
            ratios.append(other / own)
            times.append((own, other))
        same = (folder / "ours.bin").read_bytes() == (folder / "theirs.bin").read_bytes()
        if not same:
            sys.exit("the two have written other tokens")
        megabytes = source.stat().st_size / 1e6
        for name, seconds in zip(("varuna", "megatron"), zip(*times)):
            print(f"{name}: {megabytes / statistics.median(seconds):.1f} MB/s of JSON lines, {workers} at once")
        print("both have written the same tokens")
        print(f"RESULT data.build_ratio {statistics.median(ratios):.2f}")


main()
