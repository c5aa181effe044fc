#!/bin/sh
# The source tree as a subfolder of an application: only the library is built, nothing is installed.
set -eu
here=$(dirname "$0")
work=$WORK/add_subdirectory
rm -rf "$work"
mkdir -p "$WORK"
"$CMAKE" -S "$here/app_subdirectory" -B "$work" -DCLATTN_SOURCE="$SOURCE" -DCMAKE_C_COMPILER="$CC" \
    -DCMAKE_C_FLAGS="$FLAGS" -DCLATTN_SHARED=OFF >"$work.log" || { cat "$work.log"; exit 1; }
"$CMAKE" --build "$work" >"$work.log" || { cat "$work.log"; exit 1; }
"$work/use"
[ ! -e "$work/clattn/tests" ] || { echo "the tests were configured too"; exit 1; }
