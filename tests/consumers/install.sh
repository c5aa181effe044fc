#!/bin/sh
# Installs this build to two fresh prefixes: as it is, and without the shared library, as a static-only
# build would be.
set -eu
rm -rf "$WORK/prefix" "$WORK/prefix-static"
mkdir -p "$WORK"
"$CMAKE" --install "$BUILD" --prefix "$WORK/prefix" >"$WORK/install.log"
cp -R "$WORK/prefix" "$WORK/prefix-static"
rm -f "$WORK/prefix-static/$LIBDIR"/libclattn.so*

cd "$WORK/prefix"
for file in include/clattn.h "$LIBDIR/libclattn.so" "$LIBDIR/libclattn.so.0" "$LIBDIR/libclattn.a" \
    "$LIBDIR/pkgconfig/clattn.pc" "$LIBDIR/cmake/clattn/clattnConfig.cmake"; do
    [ -e "$file" ] || { echo "$file is not installed"; exit 1; }
done
# Headers of ours that are no part of the interface stay at home.
[ "$(ls include)" = clattn.h ] || { ls include; exit 1; }
