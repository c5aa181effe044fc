#!/bin/sh
# The library built without the OpenCL loader, used by an application that loads it by dlopen.
set -eu
here=$(dirname "$0")
work=$WORK/no_loader
rm -rf "$work"
mkdir -p "$WORK"
"$CMAKE" -S "$SOURCE" -B "$work" -DCLATTN_LINK_OPENCL=OFF -DCLATTN_STATIC=OFF -DCLATTN_CLI=OFF \
    -DCLATTN_EXAMPLES=OFF -DCLATTN_TESTS=OFF -DCMAKE_C_COMPILER="$CC" -DCMAKE_C_FLAGS="$FLAGS" \
    -DCMAKE_INSTALL_PREFIX="$work/prefix" -DCMAKE_INSTALL_LIBDIR=lib >"$work.log" || { cat "$work.log"; exit 1; }
"$CMAKE" --build "$work" --target install >"$work.log" || { cat "$work.log"; exit 1; }

prefix=$work/prefix
if readelf -d "$prefix/lib/libclattn.so" | grep 'NEEDED.*OpenCL'; then
    echo "the library needs the loader"
    exit 1
fi
flags="-I$prefix/include -L$prefix/lib -lclattn"
if [ -n "$PKG_CONFIG" ]; then
    flags=$(PKG_CONFIG_PATH="$prefix/lib/pkgconfig" "$PKG_CONFIG" --cflags --libs clattn)
    case $flags in *-lOpenCL*) echo "clattn.pc asks for the loader: $flags"; exit 1 ;; esac
fi
# shellcheck disable=SC2086
"$CC" -std=gnu11 -Wall -Wextra -DCL_TARGET_OPENCL_VERSION=120 $FLAGS "$here/use_no_loader.c" -o "$work/use" \
    $flags -ldl -lm
LD_LIBRARY_PATH="$prefix/lib" "$work/use"
