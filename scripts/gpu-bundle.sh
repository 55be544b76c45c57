#!/bin/sh
# Makes .gpu: one folder that runs bench/gpu.py on a machine with an NVIDIA driver and a Python that has PyTorch with CUDA, without
# network. It is laid out as a checkout, so that the scripts are the very same.
#
#   BINARIES     where the programs lie (default: target/release)
set -eu
cd "$(dirname "$0")/.."
binaries=${BINARIES:-target/release}
limit_mib=48
out=.gpu

fail() {
    echo "gpu-bundle: $*" >&2
    exit 1
}

for tool in strip readelf; do
    command -v $tool >/dev/null 2>&1 || fail "$tool is missing (on Debian: apt-get install binutils)"
done

partial=$out.partial
rm -rf $partial
mkdir -p $partial/target/release $partial/bench/peers $partial/.cache/data
for program in varuna varuna-worker; do
    [ -x "$binaries/$program" ] || fail "$binaries/$program is missing: run make build-release"
    strip -o "$partial/target/release/$program" "$binaries/$program"
    # The C library's own, the compiler's, and PyTorch's: bench/gpu.py finds the last ones by LD_LIBRARY_PATH, which comes before
    # the folder of this machine that the programs name.
    for library in $(readelf -d "$binaries/$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
        case $library in
        libc.so.6 | libm.so.6 | ld-linux-x86-64.so.2 | libgcc_s.so.1 | libstdc++.so.6 | libtorch_cpu.so | libc10.so) ;;
        *) fail "$binaries/$program needs $library, which the other machine may not have" ;;
        esac
    done
done
# A C library that is older than this cannot start them.
needed=$(readelf -V $partial/target/release/* | grep -o 'GLIBC_2\.[0-9]*' | sort -uV | tail -n 1)
# bench/gpu.py unpacks them.
gzip -9n $partial/target/release/*
cp bench/gpu.py bench/gpu_*.py bench/phases.py bench/common.py bench/recovery.py bench/spare.py $partial/bench/
cp bench/peers/shape.py bench/peers/model.py bench/peers/gpt2.py $partial/bench/peers/
mkdir -p $partial/python/varuna_export $partial/examples/bring-your-own
cp -r python/varuna_export/src $partial/python/varuna_export/
cp examples/bring-your-own/*.py $partial/examples/bring-your-own/
find $partial -name __pycache__ -prune -exec rm -r {} +
# It finds all that it imports.
PYTHONDONTWRITEBYTECODE=1 python3 $partial/bench/gpu.py --help >/dev/null || fail "bench/gpu.py does not start in the bundle"
# A part of the examples' text is enough: the whole would be a sixth of the bundle.
gzip -dc examples/data/text/kjv.txt.gz | head -c 1000000 >$partial/text.txt
"$binaries/varuna" data build --tokenizer byte --output $partial/.cache/data/kjv $partial/text.txt
rm $partial/text.txt
git describe --always --dirty >$partial/COMMIT 2>/dev/null || echo unknown >$partial/COMMIT

kib=$(du -sk --apparent-size $partial | cut -f 1)
[ "$kib" -lt $((limit_mib * 1024)) ] || fail "$partial has $((kib / 1024)) MiB; less than $limit_mib are allowed"
rm -rf $out
mv $partial $out
echo "gpu-bundle: $out has $((kib / 1024)) MiB of $limit_mib; its programs need $needed"
