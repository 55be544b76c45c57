#!/bin/sh
# Builds the Kubernetes control plane of the tests (etcd, kube-apiserver, controller-manager, scheduler, kubectl: one binary),
# helm and CoreDNS from one pinned Go module into .cache/kube: with the same versions of Kubernetes' libraries they are compiled once.
# Quick when they are there.
set -eu
cd "$(dirname "$0")/.."
name=setup-kube
. scripts/go-tool.sh

version=k8s.io/component-base/version
provide .cache/kube/testcluster tests/cluster/programs ./control-plane "-X $version.gitVersion=v1.36.4 -X $version.gitMajor=1 -X $version.gitMinor=36"
provide .cache/kube/coredns tests/cluster/programs ./dns ""
provide .cache/kube/helm tests/cluster/programs helm.sh/helm/v4/cmd/helm ""
