#!/bin/sh
# Provides libtorch 2.11.0 behind the link .cache/libtorch, where .cargo/config.toml expects it. Quick when it is there.
#
#   LIBTORCH=/path     use that libtorch instead of downloading one
#   XDG_CACHE_HOME     the download is kept in $XDG_CACHE_HOME/varuna (default: ~/.cache/varuna), outside target/, so that
#                      all checkouts share it and `make clean` does not throw it away
set -eu
cd "$(dirname "$0")/.."
version=2.11.0

fail() {
    echo "setup-libtorch: $*" >&2
    exit 1
}

link() {
    mkdir -p .cache
    # An unchanged link keeps its time, and cargo its builds.
    [ "$(readlink .cache/libtorch || true)" = "$1" ] || ln -sfn "$1" .cache/libtorch
}

if [ -n "${LIBTORCH:-}" ]; then
    here=$(cd "$LIBTORCH" 2>/dev/null && pwd -P) || fail "LIBTORCH=$LIBTORCH is not a folder"
    [ -e "$here/lib/libtorch_cpu.so" ] || fail "LIBTORCH=$LIBTORCH has no lib/libtorch_cpu.so"
    # The link may already be what LIBTORCH names.
    [ "$(cd .cache/libtorch 2>/dev/null && pwd -P)" = "$here" ] || link "$here"
    exit 0
fi

cache=${XDG_CACHE_HOME:-$HOME/.cache}/varuna
dest=$cache/libtorch-$version
has_libraries= retries=5
if [ "$(cat "$dest/build-version" 2>/dev/null)" = "$version" ]; then
    if [ -d "$dest/packages" ]; then
        link "$dest"
        exit 0
    fi
    # It was unpacked before descriptions and licences were kept. Only images and releases need them: what goes wrong from here on stops no build.
    has_libraries=1 retries=0
fi

# cannot WHY: there is nothing to build with, unless only the descriptions are lacking.
cannot() {
    [ -n "$has_libraries" ] || fail "$*"
    echo "setup-libtorch: $*. $dest is used without packages/, which images and releases need for PyTorch's licence" >&2
    link "$dest"
    exit 0
}

case "$(uname -s) $(uname -m)" in
"Linux x86_64") ;;
*) cannot "no pinned libtorch for $(uname -s) $(uname -m): set LIBTORCH to a libtorch $version" ;;
esac
python3 -m pip --version >/dev/null 2>&1 || cannot "python3 with pip is missing: install python3-pip (where there is no libtorch yet, scripts/setup.sh does so as root)"

mkdir -p "$cache"
# Beside the destination: a rename within one file system is atomic, so a half-made libtorch is never seen.
work=$(mktemp -d "$cache/libtorch.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
echo "setup-libtorch: fetching libtorch $version into $dest (543 MB, once)" >&2
# "pip download" installs nothing, so it also works where pip refuses to install (Debian's externally managed Python).
python3 -m pip download --quiet --disable-pip-version-check --no-cache-dir --no-deps --require-hashes --retries "$retries" \
    --only-binary=:all: --python-version 3.12 --implementation cp --abi cp312 --abi none \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --dest "$work/wheels" --requirement scripts/libtorch.lock ||
    cannot "the download failed, or a wheel is not the pinned one (scripts/libtorch.lock)"
python3 scripts/unpack_libtorch.py "$work/wheels" "$work/libtorch" || cannot "the wheels could not be unpacked into $work"
python3 scripts/wheel_packages.py "$work/wheels" "$work/libtorch/packages" || cannot "the wheels' descriptions could not be unpacked into $work"
[ ! -e "$dest/build-version" ] || [ -d "$dest/packages" ] || mv -T "$work/libtorch/packages" "$dest/packages"
# Debris of an older layout would make the rename move into it.
if [ -e "$dest" ] && [ ! -e "$dest/build-version" ]; then
    fail "$dest exists but is no libtorch $version: remove it"
fi
# Where another setup was quicker its result is as good.
mv -T "$work/libtorch" "$dest" 2>/dev/null || [ -e "$dest/build-version" ] || fail "cannot move libtorch to $dest"
link "$dest"
