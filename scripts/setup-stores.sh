#!/bin/sh
# Provides the blob stores of the tests in .cache/stores: MinIO (s3) and, with "all", fake-gcs-server (gs) and Azurite (az).
# Quick when they are there. They are programs that the tests start, and no part of Varuna.
set -eu
cd "$(dirname "$0")/.."
name=setup-stores
. scripts/go-tool.sh

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
