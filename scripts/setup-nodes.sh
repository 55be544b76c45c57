#!/bin/sh
# Installs what real test nodes and image builds need, as root on Debian; says what it installs. Quick when all is there. Without
# root, or elsewhere, it says what is missing and goes on: the tests that need it say so too.
set -eu

missing=""
need() { # need PROGRAM PACKAGE
    command -v "$1" >/dev/null 2>&1 || [ -e "$1" ] || missing="$missing $2"
}
need containerd containerd
need runc runc
need ip iproute2
need iptables iptables
need nsenter util-linux
need /usr/lib/cni/bridge containernetworking-plugins
need mmdebstrap mmdebstrap
need buildah buildah
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "setup-nodes: installing the packages$missing with apt-get" >&2
    apt-get update -qq
    # shellcheck disable=SC2086 # a list of words
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
else
    echo "setup-nodes: not installed (needs root on Debian):$missing" >&2
fi
