#!/bin/sh
# Makes what users install, in dist/: images as OCI archives with their digests, a chart that names images by digest, the command line, what
# each image consists of (SPDX), and checksums. Pushes and signs nothing: docs/kubernetes/release.md has the commands.
# Needs root and Debian, as `make images` does, and a checkout without changes.
#
#   REGISTRY=registry.example.com/team scripts/release.sh
#
#   REGISTRY   where the images will be pulled from: the chart names them there
#   CUDA=1     also the worker for nodes with GPUs; the chart's default worker is that one then
set -eu
cd "$(dirname "$0")/.."
name=release
. scripts/go-tool.sh

[ -n "${REGISTRY:-}" ] || fail "REGISTRY is not set: the registry and path that the images will be pulled from, as registry.example.com/team"
scripts/setup-nodes.sh
[ -z "$(git status --porcelain)" ] || fail "the checkout has changes: a release is made of a commit (git status)"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
dist=dist/varuna-$version
rm -rf "$dist"
mkdir -p "$dist"

# Programs carry the list of the crates that they were built from: scanners of images find it.
auditable=$cache/cargo-auditable-0.7.0
if [ ! -x "$auditable/bin/cargo-auditable" ]; then
    echo "release: installing cargo-auditable into $auditable (once)" >&2
    cargo install --quiet --locked --debug --root "$auditable" --target-dir "$auditable/build" cargo-auditable@0.7.0 >&2
    rm -rf "$auditable/build"
fi
PATH=$auditable/bin:$PATH cargo auditable build --workspace --bins --locked --release --features varuna/kubernetes
provide .cache/syft scripts/sbom github.com/anchore/syft/cmd/syft ""
scripts/setup-kube.sh

images="varuna-operator varuna-coordinator varuna-worker"
# A release has the packages of the day, with their security updates. The second build finds nothing that is older than the first.
images/build.sh --fresh
worker=varuna-worker
if [ "${CUDA:-}" = 1 ]; then
    images/build.sh --cuda
    images="$images varuna-worker-cuda" worker=varuna-worker-cuda
fi

for image in $images; do
    archive=$dist/$image.tar
    cp ".cache/images/$image.tar" "$archive"
    .cache/syft scan --quiet "oci-archive:$archive" --source-name "$image" --source-version "$version" --output "spdx-json=$dist/$image.spdx.json"
    case $image in varuna-worker*) grep -q '"name": *"torch"' "$dist/$image.spdx.json" || fail "$dist/$image.spdx.json does not name PyTorch: see scripts/wheel_packages.py" ;; esac
    tar -xOf "$archive" index.json | python3 -c 'import json, sys; print(json.load(sys.stdin)["manifests"][0]["digest"])' >"$dist/$image.digest"
done
python3 scripts/release_chart.py "$dist" "$REGISTRY" "$worker"

strip -o "$dist/varuna" target/release/varuna
tar -C "$dist" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -czf "$dist/varuna-$version-linux-x86_64.tar.gz" varuna
rm "$dist/varuna"
(cd "$dist" && sha256sum -- * >SHA256SUMS)
cat "$dist/SHA256SUMS"
