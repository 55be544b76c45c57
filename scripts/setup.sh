#!/bin/sh
# Makes a machine ready to build Varuna: compiler, Python, cargo, libtorch. Quick when all is there; says what it installs.
set -eu
cd "$(dirname "$0")/.."

have() { command -v "$1" >/dev/null 2>&1; }

# What libtorch's C++ glue (g++), the fetching of libtorch (python3, pip) and crates with C code (gcc, make) need.
missing=""
have g++ || missing="$missing g++"
have cc || missing="$missing gcc"
have python3 || missing="$missing python3"
python3 -m pip --version >/dev/null 2>&1 || missing="$missing python3-pip"

# A libtorch that is there already needs no Python.
libtorch=${XDG_CACHE_HOME:-$HOME/.cache}/varuna/libtorch-2.11.0
if [ -n "${LIBTORCH:-}" ] || [ -e "$libtorch/build-version" ]; then
    missing=$(echo "$missing" | sed 's/ python3-pip//; s/ python3//')
fi

if [ -n "$missing" ]; then
    if [ "$(id -u)" = 0 ] && have apt-get; then
        echo "setup: installing the packages$missing with apt-get" >&2
        apt-get update -qq
        # shellcheck disable=SC2086 # a list of words
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing libc6-dev ca-certificates
    else
        echo "setup: please install these packages (names of Debian; as root this script does it):$missing" >&2
        exit 1
    fi
fi

if ! have cargo; then
    echo "setup: cargo is missing: install rustup from https://rustup.rs; rust-toolchain.toml then picks the compiler" >&2
    exit 1
fi

# A linker that finds no room ends with "Bus error", which tells nobody why.
if [ ! -e target/debug ]; then
    free_gb=$(df -Pk . | awk 'NR == 2 { print int($4 / 1048576) }')
    if [ "$free_gb" -lt 12 ]; then
        echo "setup: $free_gb GB are free on this disk; a build with all tests takes 10 GB. Where it does not fit, the linker ends with a bus error" >&2
    fi
fi

exec scripts/setup-libtorch.sh
