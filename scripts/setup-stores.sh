#!/bin/sh
# Provides the blob stores of the tests in .cache/stores: MinIO (s3) and, with "all", fake-gcs-server (gs) and Azurite (az).
# Quick when they are there. They are programs that the tests start, and no part of Varuna.
set -eu
cd "$(dirname "$0")/.."
name=setup-stores
. scripts/go-tool.sh

# Clocks that jump: a library that the tests put before the C library's clock.
if ! ls /usr/lib/*/faketime/libfaketimeMT.so.1 >/dev/null 2>&1; then
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || fail "libfaketime is missing: install Debian's package libfaketime"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libfaketime >&2
fi

provide .cache/stores/minio tests/stores/minio github.com/minio/minio ""
[ "${1:-}" = all ] || exit 0

provide .cache/stores/fake-gcs-server tests/stores/gcs github.com/fsouza/fake-gcs-server ""

# The lock file holds the SHA-512 of every package.
key=$(sha256sum tests/stores/azurite/package-lock.json | cut -c1-16)
azurite=$cache/azurite-$key
if [ ! -e "$azurite/node_modules/azurite/package.json" ]; then
    command -v npm >/dev/null 2>&1 || fail "npm is missing: install Node.js 20 or newer"
    echo "setup-stores: installing Azurite into $azurite (once)" >&2
    rm -rf "$azurite.partial"
    mkdir -p "$azurite.partial"
    cp tests/stores/azurite/package.json tests/stores/azurite/package-lock.json "$azurite.partial"
    (cd "$azurite.partial" && npm ci --silent --no-audit --no-fund --ignore-scripts)
    rm -rf "$azurite"
    mv "$azurite.partial" "$azurite"
fi
ln -sfn "$azurite/node_modules/.bin/azurite-blob" .cache/stores/azurite-blob
