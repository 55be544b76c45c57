#!/bin/sh
# Provides PyTorch's libraries for CUDA behind the link .cache/cuda, for the worker's image for GPUs. Quick when they are there.
#
#   XDG_CACHE_HOME     they are kept in $XDG_CACHE_HOME/varuna (default: ~/.cache/varuna)
set -eu
cd "$(dirname "$0")/.."

fail() {
    echo "setup-cuda: $*" >&2
    exit 1
}

cache=${XDG_CACHE_HOME:-$HOME/.cache}/varuna
dest=$cache/cuda-$(cat scripts/libtorch.lock images/cuda.lock images/unpack_cuda.py scripts/wheel_packages.py | sha256sum | cut -c1-12)
if [ ! -d "$dest" ]; then
    mkdir -p "$cache"
    # Beside the destination: a rename within one file system is atomic, so half of it is never seen.
    work=$(mktemp -d "$cache/cuda.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT TERM
    echo "setup-cuda: fetching PyTorch's libraries for CUDA into $dest (2.3 GB, once)" >&2
    python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps --require-hashes \
        --only-binary=:all: --python-version 3.12 --implementation cp --abi cp312 --abi none \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_25_x86_64 \
        --platform manylinux_2_18_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
        --dest "$work/wheels" --requirement scripts/libtorch.lock --requirement images/cuda.lock ||
        fail "the download failed, or a wheel is not the pinned one (scripts/libtorch.lock, images/cuda.lock)"
    python3 images/unpack_cuda.py "$work/wheels" "$work/cuda" || fail "the wheels could not be unpacked into $work"
    python3 scripts/wheel_packages.py "$work/wheels" "$work/cuda/packages" || fail "the wheels' descriptions could not be unpacked into $work"
    mv "$work/cuda" "$dest"
fi
mkdir -p .cache
ln -sfn "$dest" .cache/cuda
