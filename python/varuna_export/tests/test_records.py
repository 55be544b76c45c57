"""Datasets of records are what Varuna and Megatron read."""

import hashlib
import json
import struct
import unittest
from unittest import mock

import numpy
import support
import torch

from varuna_export import ExportError, write_records

TYPES = {1: "<u1", 4: "<i4", 8: "<u2"}


def read(prefix):
    """Records by way of the index alone, and the type's number."""
    index = prefix.with_name(prefix.name + ".idx").read_bytes()
    assert index[:9] == b"MMIDIDX\0\0"
    version, code, sequences, entries = struct.unpack_from("<QBQQ", index, 9)
    assert (version, entries, len(index)) == (1, sequences + 1, 34 + 12 * sequences + 8 * entries)
    sizes = numpy.frombuffer(index, "<i4", sequences, 34)
    pointers = numpy.frombuffer(index, "<i8", sequences, 34 + 4 * sequences)
    documents = numpy.frombuffer(index, "<i8", entries, 34 + 12 * sequences)
    assert documents.tolist() == list(range(entries))
    data = prefix.with_name(prefix.name + ".bin").read_bytes()
    return [numpy.frombuffer(data, TYPES[code], size, pointer).tolist() for size, pointer in zip(sizes, pointers)], code


class Records(support.FolderTest):
    def check(self, rows, values, code):
        prefix = self.folder / "sub" / "some.data"
        write_records(prefix, rows, values, overwrite=True)
        wanted = [[int(value) for value in row] for row in rows]
        self.assertEqual(read(prefix), (wanted, code))
        description = json.loads((self.folder / "sub" / "some.data.json").read_text())
        digest = hashlib.sha256((self.folder / "sub" / "some.data.bin").read_bytes()).hexdigest()
        self.assertEqual(description["vocabulary"], values)
        self.assertEqual(
            (description["tokens"], description["documents"], description["sha256"]), (len(wanted) * len(wanted[0]), len(wanted), digest)
        )
        self.assertEqual(len(list(prefix.parent.iterdir())), 3)

    def test_the_smallest_type_that_fits_is_taken(self):
        self.check([[0, 1, 255], [3, 4, 5]], 256, 1)
        self.check([[0, 1, 256], [3, 4, 5]], 257, 8)
        self.check([[0, 65535]], 65536, 8)
        self.check([[0, 65536]], 65537, 4)
        self.check([[(1 << 31) - 1]], 1 << 31, 4)

    def test_tensors_and_arrays_are_records_too(self):
        many = torch.randint(17, (2500, 5))
        self.check(many, 17, 1)
        self.check(many.numpy(), 17, 1)
        self.check([many[0], many[1]], 17, 1)

    def test_what_is_no_record_is_refused_and_leaves_nothing(self):
        for rows, values, part in [
            ([[1, 2], [3]], 5, "record 1 has 1 integers, and record 0 has 2: all must have the same number"),
            ([[1, 2], [3, 5]], 5, "record 1 has integers from 3 to 5: all must be from 0 to 4"),
            ([[1, -2]], 5, "record 0 has integers from -2 to 1"),
            ([[1.5]], 5, "record 0 is float64 of the shape (1,): give whole numbers in one dimension"),
            ([[]], 5, "record 0 has no integers"),
            ([], 5, "a dataset has no records"),
            ([[1]], (1 << 31) + 1, "values of a dataset is 2147483649"),
        ]:
            with self.assertRaises(ExportError) as caught:
                write_records(self.folder / "data", rows, values)
            self.assertIn(part, str(caught.exception))
            self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_dataset_is_not_replaced_unasked(self):
        write_records(self.folder / "data", [[1]], 2)
        with self.assertRaises(ExportError) as caught:
            write_records(self.folder / "data", [[0]], 2)
        self.assertIn("data.bin exists: name another dataset, or pass overwrite=True", str(caught.exception))
        self.assertEqual(read(self.folder / "data"), ([[1]], 1))

    def test_a_dataset_that_is_half_replaced_has_no_index(self):
        write_records(self.folder / "data", [[1]], 2)
        with mock.patch("varuna_export.records.os.replace", side_effect=OSError("no room")), self.assertRaises(OSError):
            write_records(self.folder / "data", [[0]], 2, overwrite=True)
        self.assertFalse((self.folder / "data.idx").exists())


if __name__ == "__main__":
    unittest.main()
