#!/bin/sh
# Makes the Python environment of `make test-tensorboard`: the pinned TensorBoard. Prints the path of its Python on the last line.
set -eu
cd "$(dirname "$0")/.."
lock=tests/tensorboard/requirements.txt
key=$(sha256sum "$lock" | cut -c1-16)
folder=${XDG_CACHE_HOME:-$HOME/.cache}/varuna/tensorboard-venv-$key
python=$folder/bin/python
if [ ! -e "$folder/complete" ]; then
    echo "setup-tensorboard: installing TensorBoard into $folder (once)" >&2
    if ! python3 -m venv --clear "$folder" >&2; then
        [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
            { echo "setup-tensorboard: python3 has no venv module: install python3-venv" >&2; exit 1; }
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv >&2
        python3 -m venv --clear "$folder" >&2
    fi
    "$python" -m pip install --quiet --no-deps --requirement "$lock" >&2
    "$python" -c 'import tensorboard'
    touch "$folder/complete"
fi
echo "$python"
