#!/bin/sh
# Makes the Python environment of `make test-hf`, `make test-own-models`, `make test-megatron` and `make bench-data`: the benchmarks' PyTorch, the pinned transformers and
# megatron-core. Prints the path of its Python on the last line.
set -eu
cd "$(dirname "$0")/.."
lock=tests/huggingface/requirements.txt
key=$(sha256sum "$lock" | cut -c1-16)
folder=${XDG_CACHE_HOME:-$HOME/.cache}/varuna/hf-venv-$key
python=$folder/bin/python
if [ ! -e "$folder/complete" ]; then
    peers=$(scripts/setup-peers.sh | tail -n 1)
    echo "setup-hf: installing transformers into $folder (once)" >&2
    "$peers" -m venv --clear "$folder" >&2
    # PyTorch takes 5 GB: this environment sees the other one's.
    torch=$("$peers" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    echo "$torch" >"$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/peers.pth"
    "$python" -m pip install --quiet --no-deps --requirement "$lock" >&2
    "$python" -c 'import torch, transformers'
    touch "$folder/complete"
fi
echo "$python"
