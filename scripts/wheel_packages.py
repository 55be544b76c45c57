"""Keeps what says which packages libraries come from and under which licences: wheel_packages.py WHEELS DEST.

DEST/NAME-VERSION.dist-info, as in a Python's site-packages, with a package's METADATA and its licences, for every wheel in WHEELS.
Scanners of images find packages by these files, and the licences demand that they go wherever the libraries go.
"""

import pathlib
import re
import shutil
import sys
import zipfile

LICENCE = re.compile(r"(licen[cs]e|notice|copying|third_?party)", re.IGNORECASE)


def wanted(path):
    """Whether a file of a wheel is a package's description or a licence."""
    if len(path.parts) < 2 or not path.parts[0].endswith(".dist-info"):
        return False
    return path.parts[1:] == ("METADATA",) or path.parts[1] == "licenses" or bool(LICENCE.match(path.name))


def main(wheels, dest):
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            kept = [m for m in archive.namelist() if not m.endswith("/") and wanted(pathlib.PurePosixPath(m))]
            if not any(m.endswith(".dist-info/METADATA") for m in kept):
                sys.exit(f"{wheel} has no METADATA")
            for member in kept:
                out = dest / member
                out.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, open(out, "wb") as sink:
                    shutil.copyfileobj(source, sink)


main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
