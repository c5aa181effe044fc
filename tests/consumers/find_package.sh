#!/bin/sh
# find_package: the default (shared) target and the static one, from C and C++.
set -eu
here=$(dirname "$0")

# use PREFIX TARGET LANGUAGE
use() {
    echo "-- $2, $3"
    work=$WORK/find_package-$3-$(echo "$2" | tr : _)
    rm -rf "$work"
    "$CMAKE" -S "$here/app_package" -B "$work" -DCMAKE_PREFIX_PATH="$1" -DUSE_TARGET="$2" -DUSE_LANGUAGE="$3" \
        -DCMAKE_C_COMPILER="$CC" -DCMAKE_CXX_COMPILER="$CXX" -DCMAKE_C_FLAGS="$FLAGS" -DCMAKE_CXX_FLAGS="$FLAGS" \
        -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF >"$work.log" || { cat "$work.log"; exit 1; }
    "$CMAKE" --build "$work" >"$work.log" || { cat "$work.log"; exit 1; }
    "$work/use"
}

use "$WORK/prefix" clattn::clattn C
use "$WORK/prefix" clattn::clattn CXX
use "$WORK/prefix" clattn::clattn_static C
