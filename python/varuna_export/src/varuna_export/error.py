"""The one error of the package."""


class ExportError(Exception):
    """A model, a sample or a folder that cannot be exported. The message says what it is, where, and what to do."""


def first_line(error):
    """What another library's error says, in one line: some of them print pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(" .:") if lines else type(error).__name__
