"""Unpacks what libtorch needs from its wheels: unpack_libtorch.py WHEELS DEST.

Python's own zipfile, so that no unzip is needed. The result is a flat folder as torch-sys wants it.
"""

import pathlib
import shutil
import sys
import zipfile

LIBRARIES = {"libtorch_cpu.so", "libc10.so", "libgomp.so.1", "libcudart.so.13", "libcupti.so.13"}


def target(member):
    """Where a file of a wheel goes, or None."""
    path = pathlib.PurePosixPath(member)
    if member.startswith("torch/include/") and not member.endswith("/"):
        return path.relative_to("torch")
    if path.name in LIBRARIES and path.parent.name == "lib":
        return pathlib.PurePosixPath("lib") / path.name
    return None


def main(wheels, dest):
    found = set()
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                to = target(member)
                if to is None:
                    continue
                out = dest / to
                out.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, open(out, "wb") as sink:
                    shutil.copyfileobj(source, sink, 1 << 20)
                found.add(to.name)
    missing = LIBRARIES - found
    if missing:
        sys.exit(f"the wheels in {wheels} lack {', '.join(sorted(missing))}")
    # The linker wants -ltorch; the wheel's own libtorch.so would pull in libtorch_cuda.so and all of CUDA.
    (dest / "lib" / "libtorch.so").write_text("INPUT(-ltorch_cpu)\n")
    # torch-sys checks this version; the wheel has no such file. Written last: its presence means complete.
    (dest / "build-version").write_text("2.11.0\n")


main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
