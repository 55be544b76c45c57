#!/bin/sh
# Builds Prometheus and promtool from a pinned Go module into .cache/prometheus: the end-to-end case `monitoring` and the tests of alerts run
# with them. Quick when they are there.
set -eu
cd "$(dirname "$0")/.."
name=setup-prometheus
. scripts/go-tool.sh

# Without the discovery of other platforms, which is most of it.
for program in prometheus promtool; do
    provide .cache/prometheus/$program tests/cluster/prometheus github.com/prometheus/prometheus/cmd/$program "" remove_all_sd
done
