"""`make test-megatron`: Varuna reads datasets that were written by Megatron's own code, and Megatron reads Varuna's.

compare.py BINARIES: the folder with varuna. Nothing is downloaded.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile
import warnings

# Megatron warns about each optional package that is missing.
warnings.filterwarnings("ignore")

import numpy
import torch
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

BINARIES = pathlib.Path(sys.argv[1]).resolve()
# The end-of-document token of the byte tokenizer.
END = 256


def varuna(*arguments):
    done = subprocess.run([str(a) for a in (BINARIES / "varuna", *arguments)], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"varuna {arguments} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def written_by_megatron(prefix, dtype, multimodal):
    """Writes documents of one to four sequences. Returns all tokens, the number of sequences and the number of documents."""
    chance = random.Random(7)
    largest = min(numpy.iinfo(dtype).max, 150_000)
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype, multimodal=multimodal)
    everything, sequences, documents = [], 0, 40
    for document in range(documents):
        # One document in the middle has no tokens, like an empty text.
        lengths = [0] if document == 20 else [chance.randrange(1, 90) for _ in range(chance.randrange(1, 5))]
        tokens = [chance.randrange(largest + 1) for _ in range(sum(lengths))]
        # Megatron has two ways to add a document.
        if document % 2:
            builder.add_document(torch.tensor(tokens), lengths, [0] * len(lengths) if multimodal else None)
        else:
            start = 0
            for length in lengths:
                builder.add_item(torch.tensor(tokens[start : start + length]))
                start += length
            builder.end_document()
        everything += tokens
        sequences += len(lengths)
    builder.finalize(f"{prefix}.idx")
    return everything, sequences, documents


def check_theirs(folder):
    for dtype in (numpy.uint8, numpy.uint16, numpy.int16, numpy.int32, numpy.int64):
        for multimodal in (False, True):
            prefix = folder / f"theirs-{dtype.__name__}-{multimodal}"
            tokens, sequences, documents = written_by_megatron(prefix, dtype, multimodal)
            said = varuna("data", "info", prefix)
            width = numpy.dtype(dtype).itemsize
            expected = f"{len(tokens)} tokens in {sequences} sequences, {documents} documents, {width} bytes a token"
            assert expected in said, (expected, said)
            read = json.loads(varuna("data", "show", prefix, "--count", 1_000_000))
            assert read == tokens, f"{prefix.name}: other tokens"
            part = json.loads(varuna("data", "show", prefix, "--first", 1000, "--count", 33))
            assert part == tokens[1000:1033], f"{prefix.name}: other tokens from 1000 on"
    print("  Megatron's files are read: 5 formats of a token, with modes and without", flush=True)


def check_ours(folder):
    texts = ["In the beginning", "", "God created", "ä \U0001f600"] + [f"line {n} " * n for n in range(60)]
    source = folder / "texts.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    prefix = folder / "ours"
    varuna("data", "build", "--tokenizer", "byte", "--output", prefix, source)
    # An empty text is a document without sequences, as in Megatron's own preprocessing.
    expected = [[*text.encode(), END] for text in texts if text]
    begins = [sum(1 for text in texts[:n] if text) for n in range(len(texts) + 1)]
    for mapped in (True, False):
        data = IndexedDataset(str(prefix), multimodal=False, mmap=mapped)
        assert len(data) == len(expected), len(data)
        assert data.index.dtype == numpy.uint16, data.index.dtype
        assert list(data.document_indices) == begins, list(data.document_indices)
        assert [data[i].tolist() for i in range(len(data))] == expected
        assert data.get(len(expected) - 1, offset=5, length=4).tolist() == expected[-1][5:9]
    print(f"  Varuna's files are read by Megatron: {len(texts)} documents, mapped and not", flush=True)


def main():
    with tempfile.TemporaryDirectory() as folder:
        check_theirs(pathlib.Path(folder))
        check_ours(pathlib.Path(folder))


main()
