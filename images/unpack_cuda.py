"""Unpacks what a worker needs on a GPU from wheels, in the layout in which their libraries find one another: unpack_cuda.py WHEELS DEST.

DEST/torch/lib and DEST/nvidia/*/lib, as below a Python's site-packages. What is kept is checked: whatever a library names must be kept
too, or be the system's or the driver's. Nothing outside Python's own library is needed.
"""

import pathlib
import re
import shutil
import struct
import sys
import zipfile

# Left out: linear solvers, profilers, and transports that nothing here opens.
LIBRARIES = {
    "torch": ["c10", "c10_cuda", "torch_cpu", "torch_cuda", "torch_nvshmem", "caffe2_nvrtc", "gomp"],
    "nvidia": [
        *["cublas", "cublasLt", "cudart", "cufft", "cufile", "cupti", "curand", "cusparse", "nvJitLink", "nvrtc", "nvrtc-builtins"],
        *["cudnn", "cudnn_adv", "cudnn_cnn", "cudnn_engines_precompiled", "cudnn_engines_runtime_compiled"],
        *["cudnn_graph", "cudnn_heuristic", "cudnn_ops", "cusparseLt", "nccl", "nvshmem_host"],
    ],
}
# Of the base image (images/build.sh names its packages) and of the driver.
SYSTEM = re.compile(r"(ld-linux-x86-64|lib(c|m|dl|rt|util|pthread|gcc_s|stdc\+\+|z))\.so\.\d+")
DRIVER = {"libcuda.so.1", "libnvidia-ml.so.1"}


def wanted(member):
    """Whether a file of a wheel is one of those libraries."""
    path = pathlib.PurePosixPath(member)
    name = re.fullmatch(r"lib(.+?)\.so[.\d]*", path.name)
    return bool(name) and path.parent.name == "lib" and name[1] in LIBRARIES.get(path.parts[0], [])


def dynamic_strings(data):
    """What an ELF file of 64 bits names: [(tag, text)] of DT_NEEDED (1), DT_RPATH (15) and DT_RUNPATH (29)."""
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    segments = [struct.unpack_from("<IIQQQQQQ", data, table + i * size) for i in range(count)]

    def in_file(address):
        for kind, _, offset, start, _, length, _, _ in segments:
            if kind == 1 and start <= address < start + length:
                return offset + address - start
        raise ValueError(f"no segment has address {address:#x}")

    entries = []
    for kind, _, offset, _, _, length, _, _ in segments:
        if kind == 2:
            entries += [struct.unpack_from("<QQ", data, at) for at in range(offset, offset + length, 16)]
    strings = in_file(next(value for tag, value in entries if tag == 5))

    def text(at):
        return data[strings + at : data.index(b"\0", strings + at)].decode()

    return [(tag, text(value)) for tag, value in entries if tag in (1, 15, 29)]


def unresolved(dest):
    """Libraries that a kept one names and would not find, as sentences."""
    found = []
    for library in sorted(dest.rglob("*.so*")):
        named = dynamic_strings(library.read_bytes())
        paths = [p for tag, text in named if tag in (15, 29) for p in text.split(":")]
        folders = [pathlib.Path(p.replace("$ORIGIN", str(library.parent))) for p in paths]
        for tag, name in named:
            own = tag != 1 or SYSTEM.fullmatch(name) or name in DRIVER
            # A library that is loaded already is found by its name alone: torch's all come with libtorch_cuda.so.
            if not own and not any((f / name).exists() for f in [*folders, library.parent, dest / "torch/lib"]):
                found.append(f"{library.relative_to(dest)} needs {name}")
    return found


def main(wheels, dest):
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for member in filter(wanted, archive.namelist()):
                out = dest / member
                out.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, open(out, "wb") as sink:
                    shutil.copyfileobj(source, sink, 1 << 20)
    kept = {re.fullmatch(r"lib(.+?)\.so[.\d]*", p.name)[1] for p in dest.rglob("*.so*")}
    missing = {name for names in LIBRARIES.values() for name in names} - kept
    if missing:
        sys.exit(f"the wheels in {wheels} lack {', '.join(sorted(missing))}")
    if problems := unresolved(dest):
        sys.exit("\n".join(problems))


main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
