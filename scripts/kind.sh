#!/bin/sh
# A kind cluster with fake GPUs and the images of this checkout, for `make e2e KUBECONFIG=...` on a machine with Docker, without root.
# Needs kind, kubectl, docker, built programs and the examples' dataset (make data). Written by kind's documentation; not tried on this project's machines, which
# have no Docker.
#
#   scripts/kind.sh [NAME]           then: make e2e KUBECONFIG=$PWD/.cache/kind-NAME.kubeconfig
set -eu
cd "$(dirname "$0")/.."

name=${1:-varuna}
tag=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
kubeconfig=$PWD/.cache/kind-$name.kubeconfig

# Before there is a cluster that nobody asked for.
for tool in kind kubectl docker; do
    command -v $tool >/dev/null 2>&1 || { echo "kind: $tool is missing" >&2; exit 1; }
done
[ -e .cache/data/kjv.idx ] || { echo "kind: .cache/data/kjv.idx is missing: run make data" >&2; exit 1; }
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
trap 'exit 130' INT TERM
images/build.sh --context "$context"
mkdir -p "$context/.cache/data"
cp -L .cache/data/kjv.bin .cache/data/kjv.idx "$context/.cache/data/"
printf 'kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnodes: [{role: control-plane}, {role: worker}, {role: worker}, {role: worker}]\n' |
    kind create cluster --name "$name" --kubeconfig "$kubeconfig" --config -
# The default base has no certificates; the cases reach their stores without HTTPS.
for image in operator coordinator worker; do
    docker build -f "images/$image.Dockerfile" --build-arg BINARIES=bin --build-arg LIBTORCH=libtorch -t "localhost/varuna-$image:$tag" "$context"
done
docker build -f images/text.Dockerfile --build-arg BASE="localhost/varuna-worker:$tag" -t "localhost/varuna-worker-text:$tag" "$context"
for image in varuna-operator varuna-coordinator varuna-worker-text; do
    kind load docker-image --name "$name" "localhost/$image:$tag"
done
for node in $(kubectl --kubeconfig "$kubeconfig" get nodes -o name | grep worker); do
    kubectl --kubeconfig "$kubeconfig" patch "$node" --subresource=status --type=json \
        -p '[{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": "4"}]'
done
echo "make e2e KUBECONFIG=$kubeconfig"
