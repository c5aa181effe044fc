#!/bin/sh
# Installs what is needed (Debian, as root or by sudo), builds and passes the tests. Each stage has a time
# budget; the times are printed before the last stage, the test run of the release build.
set -eu
cd "$(dirname "$0")/.."
jobs=$(getconf _NPROCESSORS_ONLN)
times=

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

install_packages() {
    as_root apt-get update -q
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends \
        gcc g++ libc6-dev clang make cmake pkg-config git python3 python3-pip python3-venv binutils ca-certificates \
        ocl-icd-opencl-dev opencl-headers pocl-opencl-icd clinfo \
        libcjson-dev libcmocka-dev gnuplot-nox clang-format cppcheck
}

# The Python packages of the conformance tests, in an environment of their own.
install_conformance_packages() {
    python3 -m venv build/conformance-venv
    build/conformance-venv/bin/python3 -m pip install --quiet --disable-pip-version-check \
        --requirement tests/conformance/requirements.txt
}

# stage NAME BUDGET_SECONDS COMMAND...: runs it, says how long it took beside its budget.
stage() {
    name=$1 budget=$2
    shift 2
    echo "==== $name (budget $budget s)"
    start=$(date +%s)
    "$@"
    took=$(($(date +%s) - start))
    times="$times
$(printf '%-28s %5d s of %5d s' "$name" "$took" "$budget")"
    [ "$took" -le "$budget" ] || times="$times  OVER BUDGET"
}

check_style() {
    git ls-files '*.c' '*.h' | xargs clang-format --dry-run -Werror
    cppcheck --quiet --error-exitcode=1 --std=c11 --enable=warning,portability --inline-suppr \
        -I include -DCL_TARGET_OPENCL_VERSION=120 -DCLATTN_LINK_OPENCL src
}

build() {
    cmake --preset "$1"
    cmake --build --preset "$1" -j "$jobs"
}

# The host code under AddressSanitizer and UndefinedBehaviorSanitizer. What PoCL and LLVM keep until exit
# is theirs: leaks of our objects are counted by the fake device layer instead.
sanitized_tests() {
    build asan
    ASAN_OPTIONS=detect_leaks=0 ctest --preset asan -L host -j "$jobs"
}

stage "install packages" 300 install_packages
stage "devices" 10 clinfo -l
stage "offline compilers" 300 python3 tests/isa/isa_toolchains.py --install
stage "conformance packages" 180 install_conformance_packages
stage "style" 120 check_style
stage "build with clang" 120 build clang
stage "sanitizers" 500 sanitized_tests
stage "build" 120 build release
echo "==== stages so far$times"
echo "==== tests (budget 1200 s)"
CLATTN_ISA_REQUIRE=1 CLATTN_CONFORMANCE_REQUIRE=1 CLATTN_LLAMA_REQUIRE=1 exec ctest --preset release -j "$jobs" --timeout 900
