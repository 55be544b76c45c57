"""What a sample is: the integers of a row, and how a model and its loss see them.

`inputs` and `targets` are written in operators that work on tensors and on the proxies of torch.fx alike: what the model is tried with here is what
a worker runs.
"""

import math
from dataclasses import dataclass

import torch

from .error import ExportError

# Limits of a job file.
LENGTH_MAX = 1 << 20
VALUES_MAX = 1 << 24
# Integers of a field that states no number of its own are drawn below this: any table has two rows, and any loss over classes two of them.
FEW_VALUES = 2
# Of integer targets at most so many values are tried one by one.
VALUES_TRIED = 64


def check_whole(what, value, most):
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ExportError(f"{what} is {value!r}: give a whole number from 1 to {most}")


class Tokens:
    """Windows of `length` tokens below `values`: the model gets them as (b, length) int64, the loss the same moved by one token."""

    records = False

    def __init__(self, length, values):
        check_whole("length of Tokens", length, LENGTH_MAX)
        check_whole("values of Tokens", values, VALUES_MAX)
        self.length, self.values = length, values

    input_names = ["tokens"]

    def inputs(self, rows):
        """The model's inputs, from the first `length` integers of each row."""
        return [rows]

    def targets(self, rows):
        """What the loss gets beside the output, from whole rows."""
        return [rows[:, 1:]]

    def target_values(self):
        """Values of which a loss may think otherwise than of others: the first and the last ones."""
        return sorted({value for value in (0, 1, 2, 3, self.values - 2, self.values - 1) if 0 <= value < self.values})

    def uneven(self, rows, value):
        """The same rows, but that half of the first one's targets, and all of the second one's, are this value."""
        rows = rows.clone()
        rows[0, : self.length // 2 + 1] = value
        rows[1] = value
        return rows

    def draw(self, count, generator):
        """Random rows of length + 1."""
        return torch.randint(self.values, (count, self.length + 1), generator=generator)


@dataclass(frozen=True)
class Field:
    """Some of the integers of a record: an input of the model, or a target of the loss. A float is integer * scale + offset.

    `values`: the integers of this field are below it, where that is less than for the record as a whole. The model is tried with such ones.
    """

    shape: tuple
    role: str = "input"
    dtype: torch.dtype = torch.float32
    scale: float = 1.0
    offset: float = 0.0
    values: int | None = None

    def __post_init__(self):
        shape = (self.shape,) if isinstance(self.shape, int) else tuple(self.shape)
        for size in shape:
            check_whole("a size in the shape of a field", size, LENGTH_MAX)
        object.__setattr__(self, "shape", shape)
        if self.role not in ("input", "target"):
            raise ExportError(f"the role of a field is {self.role!r}: give 'input' or 'target'")
        if self.dtype not in (torch.float32, torch.int64):
            raise ExportError(f"the dtype of a field is {self.dtype}: give torch.float32 or torch.int64")
        if self.dtype == torch.int64 and (self.scale, self.offset) != (1.0, 0.0):
            raise ExportError("a field of torch.int64 has a scale or an offset: leave them out, or make it torch.float32")
        if self.values is not None:
            check_whole("values of a field", self.values, VALUES_MAX)

    @property
    def length(self):
        return math.prod(self.shape)

    def read(self, integers):
        """The field as a tensor, from its integers (b, length)."""
        shaped = integers.reshape(-1, *self.shape)
        if self.dtype == torch.int64:
            return shaped
        return shaped.to(torch.float32) * float(self.scale) + float(self.offset)


class Record:
    """Records of fields that lie one after the other, in the order in which they are given. All integers are below `values`."""

    records = True

    def __init__(self, values, /, **fields):
        check_whole("values of Record", values, VALUES_MAX)
        for name, field in fields.items():
            if not isinstance(field, Field):
                raise ExportError(f"the field {name} of a Record is a {type(field).__name__}: give a Field")
            if field.values is not None and field.values > values:
                raise ExportError(f"the field {name} has {field.values} values, and the Record {values}: the Record's must be the most")
        self.values, self.fields = values, fields
        self.length = sum(field.length for field in fields.values())
        check_whole("the number of integers of a Record", self.length, LENGTH_MAX)
        self.input_names = [name for name, field in fields.items() if field.role == "input"]
        if not self.input_names:
            raise ExportError("a Record has no input: give a Field with the role 'input'")

    def inputs(self, rows):
        """The model's inputs, from the first `length` integers of each row."""
        return self._read(rows, "input")

    def targets(self, rows):
        """What the loss gets beside the output, from whole rows."""
        return self._read(rows, "target")

    def _read(self, rows, role):
        begin, found = 0, []
        for field in self.fields.values():
            if field.role == role:
                found.append(field.read(rows[:, begin : begin + field.length]))
            begin += field.length
        return found

    def target_values(self):
        """Values of which a loss may think otherwise than of others: of each target that is an integer the first ones and the last."""
        counts = [self._drawn(field) for field in self.fields.values() if field.role == "target" and field.dtype == torch.int64]
        return sorted({value for count in counts for value in (*range(min(count, VALUES_TRIED)), count - 1)})

    def uneven(self, rows, value):
        """The same rows, but that half of the first one's integer targets, and all of the second one's, are this value, where they may be."""
        rows, begin = rows.clone(), 0
        for field in self.fields.values():
            if field.role == "target" and field.dtype == torch.int64 and value < self._drawn(field):
                rows[0, begin : begin + field.length // 2] = value
                rows[1, begin : begin + field.length] = value
            begin += field.length
        return rows

    def _drawn(self, field):
        """What integers of a field are tried below."""
        few = self.values if field.dtype == torch.float32 else min(self.values, FEW_VALUES)
        return field.values or few

    def draw(self, count, generator):
        """Random rows of length + 1. The last integer means nothing."""
        columns = []
        for field in self.fields.values():
            columns.append(torch.randint(self._drawn(field), (count, field.length), generator=generator))
        columns.append(torch.randint(self.values, (count, 1), generator=generator))
        return torch.cat(columns, dim=1)
