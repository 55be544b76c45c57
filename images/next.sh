#!/bin/sh
# Builds the images of a build that speaks one version of the protocol and of the data plane more than this one, in .cache/images/next: what the end-to-end tests
# upgrade to. Needs what images/build.sh needs.
#
#   PROFILE   dev or release (default)
set -eu
cd "$(dirname "$0")/.."
profile=${PROFILE:-release}
binaries=target/$profile
[ "$profile" != dev ] || binaries=target/debug

# build FEATURES: all programs, as `make build` does, so that what they have in common is not compiled again.
build() {
    cargo build --locked --profile "$profile" --workspace --bins --features "$1"
}
speaks() {
    "$binaries/varuna-coordinator" --version | sed 's/.*(protocol \(.*\))/\1/'
}

present=$(speaks)
build varuna/kubernetes,varuna-wire/next-version,varuna-frames/next-version
next=$(speaks)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
IMAGES=.cache/images/next IMAGE_TAG=$version-next BINARIES=$binaries images/build.sh --text
# The programs are as they were.
build varuna/kubernetes
[ "$present" != "$next" ] || { echo "images: both builds speak $present" >&2; exit 1; }
