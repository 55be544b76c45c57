"""Writes a dataset of records in the format of Megatron's indexed datasets, which Varuna's workers read: each record is one document.

NAME.bin   the integers of all records, one after the other
NAME.idx   magic "MMIDIDX\\0\\0" | version u64 = 1 | type u8 | records u64 | records + 1 u64
           | integers of each record, i32 | where each starts in NAME.bin, i64 | 0, 1, ... records, i64
NAME.json  what the format has no place for, as `varuna data build` writes it. Workers then refuse data with more values than the model has
"""

import hashlib
import json
import os
import pathlib
import struct
import uuid

import numpy

from .error import ExportError

# Values that fit, the format's number of the type, and the type.
TYPES = [(1 << 8, 1, "<u1"), (1 << 16, 8, "<u2"), (1 << 31, 4, "<i4")]
# Records that are converted at a time.
CHUNK = 1024


def write_records(prefix, rows, values, overwrite=False):
    """Writes records to PREFIX.bin, .idx and .json.

    `rows`: records of the same number of integers from 0 to values - 1, as a tensor, an array or any iterable.
    """
    fitting = [(code, dtype) for most, code, dtype in TYPES if isinstance(values, int) and 1 <= values <= most]
    if not fitting:
        raise ExportError(f"values of a dataset is {values!r}: give a whole number from 1 to {1 << 31}")
    names = {end: pathlib.Path(f"{prefix}.{end}") for end in ("bin", "json", "idx")}
    for name in names.values():
        if name.exists() and not overwrite:
            raise ExportError(f"the file {name} exists: name another dataset, or pass overwrite=True")
    # Of this process alone: two that wrote one file would publish what neither has written.
    partial = {end: pathlib.Path(f"{name}.{uuid.uuid4().hex}.partial") for end, name in names.items()}
    names["bin"].parent.mkdir(parents=True, exist_ok=True)
    try:
        count, length, digest = write_integers(partial["bin"], rows, values, fitting[0][1])
        write_index(partial["idx"], count, length, *fitting[0])
        write_description(partial["json"], count, length, values, digest)
        # The index goes first and comes last: without it there is no dataset, and an old one would be read with new data.
        names["idx"].unlink(missing_ok=True)
        for end, name in names.items():
            os.replace(partial[end], name)
    finally:
        for name in partial.values():
            name.unlink(missing_ok=True)


def write_integers(file, rows, values, dtype):
    """Returns the number of records, their length and the digest of the file."""
    count, length, digest = 0, None, hashlib.sha256()
    with open(file, "wb") as to:
        for chunk in chunks(rows):
            block = numpy.stack([integers(row, count + i, values) for i, row in enumerate(same_length(chunk, count, length))])
            length = block.shape[1]
            content = block.astype(dtype).tobytes()
            to.write(content)
            digest.update(content)
            count += len(block)
    if count == 0:
        raise ExportError("a dataset has no records: give at least one")
    return count, length, digest.hexdigest()


def chunks(rows):
    chunk = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def same_length(chunk, before, length):
    length = len(chunk[0]) if length is None else length
    if length == 0:
        raise ExportError("record 0 has no integers: give it at least one")
    for number, row in enumerate(chunk, start=before):
        if len(row) != length:
            raise ExportError(f"record {number} has {len(row)} integers, and record 0 has {length}: all must have the same number")
    return chunk


def integers(row, number, values):
    found = numpy.asarray(row)
    if found.ndim != 1 or found.dtype.kind not in "iub":
        raise ExportError(f"record {number} is {found.dtype} of the shape {found.shape}: give whole numbers in one dimension")
    if found.min() < 0 or found.max() >= values:
        raise ExportError(f"record {number} has integers from {found.min()} to {found.max()}: all must be from 0 to {values - 1}")
    return found


def write_index(file, count, length, code, dtype):
    with open(file, "wb") as to:
        to.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, count, count + 1))
        to.write(numpy.full(count, length, "<i4").tobytes())
        to.write((numpy.arange(count, dtype="<i8") * (length * numpy.dtype(dtype).itemsize)).tobytes())
        to.write(numpy.arange(count + 1, dtype="<i8").tobytes())


def write_description(file, count, length, values, digest):
    description = {
        # No tokenizer has this name, and no record ends with a token.
        "tokenizer": "records",
        "vocabulary": values,
        "endOfDocument": values,
        "tokens": count * length,
        "documents": count,
        "sha256": digest,
    }
    file.write_text(json.dumps(description, indent=2) + "\n")
