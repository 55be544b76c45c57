#!/bin/sh
# Checks licences, banned crates and sources of all dependencies against deny.toml. Installs cargo-deny (once, minutes).
set -eu
cd "$(dirname "$0")/.."
version=0.20.2
folder=${XDG_CACHE_HOME:-$HOME/.cache}/varuna/cargo-deny-$version
if [ ! -x "$folder/bin/cargo-deny" ]; then
    echo "cargo-deny: installing version $version into $folder (once)" >&2
    # Unoptimised: it builds in a third of the time, and the check takes seconds.
    cargo install --quiet --locked --debug --root "$folder" --target-dir "$folder/build" "cargo-deny@$version" >&2
    rm -rf "$folder/build"
fi
exec "$folder/bin/cargo-deny" --log-level error check bans licenses sources
