#!/bin/sh
# Builds the Kubernetes control plane of the tests (etcd, kube-apiserver, controller-manager, scheduler, kubectl: one binary),
# helm and CoreDNS from pinned Go modules into .cache/kube. Quick when they are there.
set -eu
cd "$(dirname "$0")/.."
name=setup-kube
. scripts/go-tool.sh

version=k8s.io/component-base/version
provide .cache/kube/testcluster tests/cluster/control-plane . "-X $version.gitVersion=v1.36.4 -X $version.gitMajor=1 -X $version.gitMinor=36"
provide .cache/kube/coredns tests/cluster/dns . ""
provide .cache/kube/helm tests/cluster/helm helm.sh/helm/v4/cmd/helm ""
