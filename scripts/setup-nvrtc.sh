#!/bin/sh
# Provides NVRTC, the compiler for kernels, behind the link .cache/nvrtc: tests compile every kernel with it, which takes no GPU. Quick
# when it is there.
#
#   setup-nvrtc.sh            says so where it cannot be fetched, and goes on: the test says that it was skipped
#   setup-nvrtc.sh --needed   fails there
#
#   XDG_CACHE_HOME     it is kept in $XDG_CACHE_HOME/varuna (default: ~/.cache/varuna)
set -eu
cd "$(dirname "$0")/.."
needed=${1:-}

missing() {
    echo "setup-nvrtc: $*; no kernel is compiled for a GPU here" >&2
    [ "$needed" = --needed ] && exit 1
    exit 0
}

cache=${XDG_CACHE_HOME:-$HOME/.cache}/varuna
pin=$(grep '^nvidia-cuda-nvrtc==' images/cuda.lock)
dest=$cache/nvrtc-$(echo "$pin" | sha256sum | cut -c1-12)
# Of a link, only one to what is pinned now: an older one would have the kernels compiled by another compiler than that of the image.
if [ -e .cache/nvrtc/libnvrtc.so.13 ]; then
    [ -L .cache/nvrtc ] && [ "$(readlink .cache/nvrtc)" != "$dest" ] || exit 0
# The libraries of the GPU image have it, too.
elif [ -e .cache/cuda/nvidia/cu13/lib/libnvrtc.so.13 ]; then
    exit 0
fi
mkdir -p .cache
[ "$(uname -sm)" = "Linux x86_64" ] || missing "the pinned wheel is for Linux on x86-64"
if [ ! -d "$dest" ]; then
    mkdir -p "$cache"
    # Beside the destination: a rename within one file system is atomic, so half of it is never seen.
    work=$(mktemp -d "$cache/nvrtc.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM
    echo "setup-nvrtc: fetching NVRTC into $dest (90 MB, once)" >&2
    echo "$pin" >"$work/lock"
    python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps --require-hashes --only-binary=:all: \
        --dest "$work/wheels" --requirement "$work/lock" || missing "the download failed, or the wheel is not the pinned one (images/cuda.lock)"
    python3 - "$work" <<'UNPACK'
import pathlib, sys, zipfile
work = pathlib.Path(sys.argv[1])
(work / "lib").mkdir()
(wheel,) = (work / "wheels").glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    for member in archive.namelist():
        name = pathlib.PurePosixPath(member).name
        if name.startswith("libnvrtc") and ".so." in name and ".alt" not in name:
            (work / "lib" / name).write_bytes(archive.read(member))
UNPACK
    mv "$work/lib" "$dest"
fi
ln -sfn "$dest" .cache/nvrtc
