"""Cuts a PyTorch model into segments and writes them to a folder, from which Varuna trains them in workers without Python."""

from .cuts import CutPoint
from .error import ExportError
from .exporting import Exported, export
from .records import write_records
from .sample import Field, Record, Tokens
from .version import __version__

__all__ = ["CutPoint", "ExportError", "Exported", "Field", "Record", "Tokens", "__version__", "export", "write_records"]
