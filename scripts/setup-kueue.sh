#!/bin/sh
# Builds Kueue's controller v0.19.2 for the test `kueue_controller`, which is ignored otherwise: scripts/setup-kueue.sh CHECKOUT [TO]
#
# CHECKOUT: the sources at that tag, as of `git clone --branch v0.19.2 https://github.com/kubernetes-sigs/kueue`. They bring all modules that they need, and are
# held to a checksum. TO: where the controller and its definitions go, .cache/kueue by default; elsewhere the test wants VARUNA_KUEUE=TO.
set -eu
name=setup-kueue
[ $# -ge 1 ] || { echo "usage: $0 CHECKOUT [TO]" >&2; exit 2; }
checkout=$(cd "$1" && pwd)
# Both are paths as the caller sees them.
case ${2:-} in
"" | /*) to=${2:-.cache/kueue} ;;
*) to=$PWD/$2 ;;
esac
cd "$(dirname "$0")/.."
. scripts/go-tool.sh
sources="apis cmd/kueue pkg internal client-go config/components/crd/bases vendor"
# shellcheck disable=SC2086 # a list of folders
sum=$(cd "$checkout" && find $sources -type f \( -name '*.go' -o -name '*.yaml' \) | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -d' ' -f1)
[ "$sum" = 2ee35224e0d5910c7bd52d92fd9d06774d540eb2cf434a923250aa85eaf5e9b9 ] || fail "$checkout is not Kueue v0.19.2: its sources have the checksum $sum"
need_go
mkdir -p "$to"
to=$(cd "$to" && pwd)
rm -rf "$to/definitions"
cp -r "$checkout/config/components/crd/bases" "$to/definitions"
# Without its own management of certificates the controller wants some in a folder of the machine's: the tests have theirs.
main=cmd/kueue/main.go
sed 's|metricsCertPath := "/etc/kueue/metrics/certs"|metricsCertPath := os.Getenv("METRICS_CERTS")|' "$checkout/$main" >"$to/main.go"
printf '{"Replace": {"%s": "%s"}}' "$checkout/$main" "$to/main.go" >"$to/overlay.json"
(cd "$checkout" && CGO_ENABLED=0 GOFLAGS=-mod=vendor go build -overlay "$to/overlay.json" -trimpath -buildvcs=false -ldflags "-s -w" -o "$to/manager" ./cmd/kueue) ||
    fail "the build of Kueue's controller failed"
