#!/bin/sh
# Makes the Python environment of the benchmarks' PyTorch side; prints the path of its Python on the last line.
set -eu
folder=${XDG_CACHE_HOME:-$HOME/.cache}/varuna/bench-venv
python=$folder/bin/python
if ! "$python" -c 'import torch, numpy, safetensors, sys; sys.exit(not torch.__version__.startswith("2.11.0"))' 2>/dev/null; then
    echo "setup: making $folder with torch 2.11.0 (about 3 GB, once)" >&2
    if ! python3 -m venv --clear "$folder" >&2; then
        [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
            { echo "setup: python3 has no venv module: install python3-venv" >&2; exit 1; }
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv >&2
        python3 -m venv --clear "$folder" >&2
    fi
    "$python" -m pip install --quiet torch==2.11.0 numpy==2.4.6 safetensors==0.8.0 >&2
fi
echo "$python"
