#!/bin/sh
# Runs the end-to-end cases on a cluster that another process has made, as `make e2e KUBECONFIG=...` does. That process is the program of the tests itself.
#
#   BINARIES=target/release tests/cluster/given.sh [CASE...]
set -eu
cd "$(dirname "$0")/../.."
e2e=${BINARIES:-target/release}/varuna-e2e

folder=$(mktemp -d)
trap 'exec 3>&-; wait; rm -rf "$folder"' EXIT
mkfifo "$folder/alive"
KUBECONFIG='' "$e2e" --cluster-only <"$folder/alive" >"$folder/said" &
maker=$!
exec 3>"$folder/alive"
until grep -q '^KUBECONFIG=' "$folder/said"; do
    kill -0 $maker 2>/dev/null || { echo "given: the cluster was not made" >&2; exit 1; }
    sleep 0.2
done
KUBECONFIG=$(sed -n 's/^KUBECONFIG=//p' "$folder/said") "$e2e" "$@"
