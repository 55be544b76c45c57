#!/bin/sh
# Builds the images of operator, coordinator and worker as OCI archives in .cache/images: no daemon, no registry. Needs root and Debian's
# mmdebstrap and buildah; the base comes from the mirrors of this machine's apt, which checks their signatures.
#
#   images/build.sh [--text]      --text: also the worker with the examples' dataset, for the end-to-end tests
#   images/build.sh --cuda        only the worker for nodes with GPUs
#   BINARIES                      where the programs lie (default: target/release)
#   IMAGE_TAG                     default: the version in Cargo.toml
#   IMAGES                        where the archives go (default: .cache/images)
set -eu
cd "$(dirname "$0")/.."

fail() {
    echo "images: $*" >&2
    exit 1
}

for tool in mmdebstrap buildah python3; do
    command -v $tool >/dev/null 2>&1 || fail "$tool is missing (on Debian: apt-get install mmdebstrap buildah python3)"
done
binaries=${BINARIES:-target/release}
for program in varuna-operator varuna-coordinator varuna-worker varuna-launcher; do
    [ -x "$binaries/$program" ] || fail "$binaries/$program is missing: run make build-release"
done
tag=${IMAGE_TAG:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)}
bases=.cache/images
out=${IMAGES:-$bases}
mkdir -p "$bases" "$out"

# The build context holds links into the cache and whatever else lies in the checkout: only what the images need goes into one.
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
mkdir -p "$context/bin" "$context/libtorch/lib"
for program in varuna-operator varuna-coordinator varuna-worker varuna-launcher; do
    strip -o "$context/bin/$program" "$binaries/$program" 2>/dev/null || cp "$binaries/$program" "$context/bin/"
    chmod 755 "$context/bin/$program"
done
cp -L .cache/libtorch/lib/*.so* "$context/libtorch/lib/"

if [ "${1:-}" = --cuda ]; then
    images/setup-cuda.sh
    # Links share the large libraries with the cache, where that is on the same file system.
    mkdir "$context/cuda"
    cp -rlL .cache/cuda/. "$context/cuda" 2>/dev/null || cp -rfL .cache/cuda/. "$context/cuda"
fi

# What is built follows from these, so a tag that is there need not be built again.
digest=$(cat images/*.Dockerfile images/*.lock images/build.sh images/slim.sh "$context"/bin/* | sha256sum | cut -c1-16)
built=$out/built${1:-}
if [ "$(cat "$built" 2>/dev/null || true)" = "$digest $tag" ]; then
    echo "images: $out is up to date" >&2
    exit 0
fi

# The suite and the mirrors of this machine's own apt, so that a mirror or a proxy that it is set up for serves the images as well.
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Component: main' | sort -u |
    grep -E " $suite(-security|-updates)? main$" >"$context/sources.list" ||
    fail "apt has no source of $suite main: see /etc/apt/sources.list.d"

# base NAME PACKAGES: a root of these packages and what they depend on, without what only people read.
base() {
    name=$1 packages=$2
    tar=$bases/base-$( (echo "$packages"; cat images/slim.sh) | sha256sum | cut -c1-8).tar
    if [ ! -s "$tar" ]; then
        mmdebstrap --quiet --variant=extract --include="$packages" \
            --extract-hook="sh $PWD/images/slim.sh \"\$1\"" \
            "$suite" --format=tar "$tar.partial" - <"$context/sources.list"
        tar -tf "$tar.partial" | grep -q '^./etc/ssl/certs/ca-certificates.crt$' || fail "the base has no certificates: no bucket could be reached"
        mv "$tar.partial" "$tar"
    fi
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$tar" / >/dev/null
    buildah commit --quiet --rm --timestamp 0 "$container" "localhost/$name" >/dev/null
}

# image NAME DOCKERFILE BASE [OPTION]: builds it and writes NAME.tar; the option is for buildah push.
image() {
    buildah bud --quiet --isolation chroot --timestamp 0 --build-arg BASE="localhost/$3" --build-arg BINARIES=bin \
        --build-arg LIBTORCH=libtorch --build-arg CUDA=cuda -f "images/$2" -t "localhost/$1:$tag" "$context" >/dev/null
    rm -f "$out/$1.tar"
    buildah push --quiet ${4:-} "localhost/$1:$tag" "oci-archive:$PWD/$out/$1.tar:$tag"
    python3 images/name.py "$out/$1.tar" "localhost/$1:$tag"
    echo "RESULT image.$1.mb $(($(stat -c %s "$out/$1.tar") / 1000000))"
}

if [ "${1:-}" = --cuda ]; then
    base varuna-cuda-base libc6,libgcc-s1,libstdc++6,zlib1g,ca-certificates,base-files,netbase
    image varuna-worker-cuda worker-cuda.Dockerfile varuna-cuda-base
    echo "$digest $tag" >"$built"
    exit 0
fi
base varuna-base libc6,libgcc-s1,ca-certificates,base-files,netbase
base varuna-worker-base libc6,libgcc-s1,libstdc++6,ca-certificates,base-files,netbase
image varuna-operator operator.Dockerfile varuna-base
image varuna-coordinator coordinator.Dockerfile varuna-base
image varuna-worker worker.Dockerfile varuna-worker-base
if [ "${1:-}" = --text ]; then
    mkdir -p "$context/.cache/data"
    cp -L .cache/data/kjv.bin .cache/data/kjv.idx "$context/.cache/data/"
    # Not compressed: written and read within the minute.
    image varuna-worker-text text.Dockerfile "varuna-worker:$tag" -D
    # What holds a pod's namespaces, which a kubelet wants from a registry otherwise.
    cc -static -O2 -o "$context/pause" tests/cluster/pause.c
    printf 'FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n' >"$context/pause.Dockerfile"
    buildah bud --quiet --timestamp 0 -f "$context/pause.Dockerfile" -t localhost/pause:1 "$context" >/dev/null
    rm -f "$out/pause.tar"
    buildah push --quiet -D localhost/pause:1 "oci-archive:$PWD/$out/pause.tar:1"
    python3 images/name.py "$out/pause.tar" localhost/pause:1
fi
echo "$digest $tag" >"$built"
