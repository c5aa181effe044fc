#!/bin/sh
# pkg-config: shared, and --static where only the static library is.
set -eu
here=$(dirname "$0")
[ -n "$PKG_CONFIG" ] || exit 77

# use PREFIX [FLAG]
use() {
    echo "-- pkg-config ${2-}"
    export PKG_CONFIG_PATH="$1/$LIBDIR/pkgconfig"
    # shellcheck disable=SC2046,SC2086
    "$CC" -std=c11 -Wall -Wextra -Werror -DCL_TARGET_OPENCL_VERSION=120 $FLAGS "$here/use.c" -o "$WORK/use" \
        $("$PKG_CONFIG" ${2-} --cflags --libs clattn OpenCL) -lm
    LD_LIBRARY_PATH="$1/$LIBDIR" "$WORK/use"
}

use "$WORK/prefix"
use "$WORK/prefix-static" --static
PKG_CONFIG_PATH="$WORK/prefix/$LIBDIR/pkgconfig" "$PKG_CONFIG" --exact-version=0.1.0 clattn
