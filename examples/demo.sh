#!/bin/sh
# Installs what is needed (Debian, as root or by sudo), builds, and shows attention at work on this
# machine's CPU through PoCL: a real transformer layer, then the comparison with naive attention.
set -eu
cd "$(dirname "$0")/.."

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
as_root apt-get update -q
as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
    gcc libc6-dev make cmake pkg-config ocl-icd-opencl-dev opencl-headers libcjson-dev \
    pocl-opencl-icd clinfo

cmake -S . -B build/demo -DCMAKE_BUILD_TYPE=Release -DCLATTN_TESTS=OFF
cmake --build build/demo -j "$(getconf _NPROCESSORS_ONLN)"

clinfo -l
build/demo/examples/online_softmax
build/demo/examples/quickstart tests/data/minilm_layer0.safetensors
build/demo/src/cli/clattn bench --preset paper --naive \
    --input tests/data/minilm_layer0.safetensors
