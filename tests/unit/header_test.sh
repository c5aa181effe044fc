#!/bin/sh
# clattn.h alone, and header_layout.c, under every compiler, language and OpenCL version that it promises.
#   header_test.sh INCLUDE_DIR "C COMPILERS" "C++ COMPILERS"
set -eu
include=$1
layout=$(dirname "$0")/header_layout.c
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags="-fsyntax-only -Wall -Wextra -Wpedantic -Werror -I$include"
echo '#include <clattn.h>' >"$work/alone.c"

try() {
    echo "$@"
    "$@"
}

for version in 120 300; do
    target="-DCL_TARGET_OPENCL_VERSION=$version"
    for compiler in $2; do
        try "$compiler" -std=c11 $flags $target "$work/alone.c" "$layout"
        # 32-bit machines, those that the compiler can be asked for. No C library for them is needed.
        for machine in "-m32 -mno-sse -mno-mmx" "--target=armv7a-linux-gnueabihf -idirafter /usr/include"; do
            if "$compiler" $machine -ffreestanding $flags $target "$work/alone.c" 2>/dev/null; then
                try "$compiler" $machine -ffreestanding -std=c11 $flags $target "$layout"
            fi
        done
    done
    for compiler in $3; do
        try "$compiler" -std=c++11 -x c++ $flags $target "$work/alone.c" "$layout"
    done
done

# It leaves the version to the caller.
if grep -n '^ *# *define *CL_TARGET_OPENCL_VERSION' "$include/clattn.h"; then
    echo "clattn.h defines CL_TARGET_OPENCL_VERSION"
    exit 1
fi
