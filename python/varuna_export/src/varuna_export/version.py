"""The version, which is also part of each manifest."""

__version__ = "0.1.0"
