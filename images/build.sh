#!/bin/sh
# Builds the images of operator, coordinator and worker as OCI archives in .cache/images: no daemon, no registry. Needs root and Debian's
# mmdebstrap and buildah; the base comes from the mirrors of this machine's apt, which checks their signatures.
#
#   images/build.sh [--text]      --text: also the worker with the examples' dataset, for the end-to-end tests
#   images/build.sh --cuda        only the worker for nodes with GPUs
#   images/build.sh --fresh ...   the same with Debian's packages of today: what earlier builds have kept of the mirror is not used
#   images/build.sh --context DIR [--cuda]   builds nothing: fills DIR with what the Dockerfiles copy, for `docker build` (needs neither root nor those tools)
#   BINARIES                      where the programs lie (default: target/release)
#   IMAGE_TAG                     default: the version in Cargo.toml
#   IMAGES                        where the archives go (default: .cache/images)
set -eu
cd "$(dirname "$0")/.."

fail() {
    echo "images: $*" >&2
    exit 1
}

# What is kept of earlier builds: the bases by their packages, images, and notes of what they were built from.
bases=.cache/images
if [ "${1:-}" = --fresh ]; then
    rm -f "$bases"/base-*.tar "${IMAGES:-$bases}"/built "${IMAGES:-$bases}"/built-cuda
    shift
fi

only_context=
if [ "${1:-}" = --context ]; then
    only_context=${2:-}
    [ -n "$only_context" ] || fail "--context needs a folder"
    shift 2
else
    for tool in mmdebstrap buildah python3; do
        command -v $tool >/dev/null 2>&1 || fail "$tool is missing (on Debian: apt-get install mmdebstrap buildah python3)"
    done
fi
binaries=${BINARIES:-target/release}
for program in varuna-operator varuna-coordinator varuna-worker varuna-launcher; do
    [ -x "$binaries/$program" ] || fail "$binaries/$program is missing: run make build-release"
done
tag=${IMAGE_TAG:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)}
out=${IMAGES:-$bases}
mkdir -p "$bases" "$out"
# IMAGES may be absolute, or relative to the checkout.
out=$(cd "$out" && pwd)

# The build context holds links into the cache and whatever else lies in the checkout: only what the images need goes into one.
if [ -n "$only_context" ]; then
    context=$only_context
else
    context=$(mktemp -d)
    trap 'rm -rf "$context"' EXIT
    # Interrupted, a shell would leave it: gigabytes, for GPUs.
    trap 'exit 130' INT TERM
fi
mkdir -p "$context/bin" "$context/libtorch/lib" "$context/libtorch/packages"
for program in varuna-operator varuna-coordinator varuna-worker varuna-launcher; do
    strip -o "$context/bin/$program" "$binaries/$program" 2>/dev/null || cp "$binaries/$program" "$context/bin/"
    chmod 755 "$context/bin/$program"
done
cp -L .cache/libtorch/lib/*.so* "$context/libtorch/lib/"
# A libtorch that LIBTORCH names may have none, nor one from before they were kept.
if [ -d .cache/libtorch/packages ]; then
    cp -rL .cache/libtorch/packages/. "$context/libtorch/packages/"
else
    echo "images: .cache/libtorch has no packages/: the worker's image is without PyTorch's licence and name (scripts/setup-libtorch.sh fetches them)" >&2
fi

if [ "${1:-}" = --cuda ]; then
    images/setup-cuda.sh
    # Links share the large libraries with the cache, where that is on the same file system.
    mkdir -p "$context/cuda"
    cp -rlL .cache/cuda/. "$context/cuda" 2>/dev/null || cp -rfL .cache/cuda/. "$context/cuda"
fi

if [ -n "$only_context" ]; then
    echo "images: $context has what the Dockerfiles copy: docker build -f images/NAME.Dockerfile --build-arg BINARIES=bin --build-arg LIBTORCH=libtorch --build-arg CUDA=cuda $context" >&2
    exit 0
fi

# What is built follows from these, so a tag that is there need not be built again. The archives of two builds have the same names, so that
# there is one note for all but those for GPUs: it holds the option too, and --text builds what no option builds.
digest=$(
    {
        cat images/*.Dockerfile images/*.lock images/build.sh images/slim.sh "$context"/bin/*
        cat scripts/libtorch.lock scripts/unpack_libtorch.py scripts/wheel_packages.py
        # Which of its files there are: their contents follow from the lock.
        find "$context/libtorch" -type f -printf '%P %s\n' | sort
    } | sha256sum | cut -c1-16
)
case "${1:-}" in
--cuda) built=$out/built-cuda ;;
*) built=$out/built ;;
esac
case "$(cat "$built" 2>/dev/null || true)" in
"$digest $tag ${1:-}" | "$digest $tag --text")
    echo "images: $out is up to date" >&2
    exit 0
    ;;
esac
rm -f "$built"

# Images have the machine's names, whatever checkout they are built from: of two builds at once one would be made from the other's.
exec 9>/run/varuna-images.lock
flock 9

# The suite and the mirrors of this machine's own apt, so that a mirror or a proxy that it is set up for serves the images as well.
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Component: main' | sort -u |
    grep -E " $suite(-security|-updates)? main$" >"$context/sources.list" ||
    fail "apt has no source of $suite main: see /etc/apt/sources.list.d"

# base NAME PACKAGES: a root of these packages and what they depend on, without what only people read.
base() {
    name=$1 packages=$2
    tar=$bases/base-$( (echo "$suite $packages"; cat images/slim.sh) | sha256sum | cut -c1-8).tar
    if [ ! -s "$tar" ]; then
        mmdebstrap --quiet --variant=extract --include="$packages" \
            --extract-hook="sh \"$PWD/images/slim.sh\" \"\$1\"" \
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
    previous=$(buildah images --quiet --no-trunc "localhost/$1:$tag" 2>/dev/null || true)
    buildah bud --quiet --isolation chroot --timestamp 0 --build-arg BASE="localhost/$3" --build-arg BINARIES=bin \
        --build-arg LIBTORCH=libtorch --build-arg CUDA=cuda -f "images/$2" -t "localhost/$1:$tag" "$context" >/dev/null
    rm -f "$out/$1.tar"
    buildah push --quiet ${4:-} "localhost/$1:$tag" "oci-archive:$out/$1.tar:$tag"
    python3 images/name.py "$out/$1.tar" "localhost/$1:$tag"
    # An image that nothing names any more would stay for ever; one that is the base of another is refused, and goes when that is built anew.
    [ -z "$previous" ] || [ "$previous" = "$(buildah images --quiet --no-trunc "localhost/$1:$tag")" ] || buildah rmi "$previous" >/dev/null 2>&1 || true
    echo "RESULT image.$1.mb $(($(stat -c %s "$out/$1.tar") / 1000000))"
}

if [ "${1:-}" = --cuda ]; then
    base varuna-cuda-base libc6,libgcc-s1,libstdc++6,zlib1g,ca-certificates,base-files,netbase
    image varuna-worker-cuda worker-cuda.Dockerfile varuna-cuda-base
    echo "$digest $tag ${1:-}" >"$built"
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
    buildah push --quiet -D localhost/pause:1 "oci-archive:$out/pause.tar:1"
    python3 images/name.py "$out/pause.tar" localhost/pause:1
fi
echo "$digest $tag ${1:-}" >"$built"
