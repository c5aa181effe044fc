#!/bin/sh
# The shared library exports exactly the functions of clattn.h; whatever the static library defines for a
# linker to see is prefixed.
#   symbols.sh NM HEADER [SHARED] [STATIC]      "" for a library that is not built
set -eu
nm=$1 header=$2 shared=$3 static=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Declarations begin with CLATTN_API, and the function's name is on that line.
sed -n 's/^CLATTN_API .*[ *]\(clattn_[a-z0-9_]*\)(.*/\1/p' "$header" | sort >"$work/declared"
[ "$(grep -c '^CLATTN_API' "$header")" = "$(wc -l <"$work/declared")" ]

if [ -n "$shared" ]; then
    # Sanitizers and profilers add symbols of their own, all with a leading underscore.
    "$nm" -D --defined-only "$shared" | awk '{ print $NF }' | sed 's/@.*//' | grep -v '^_' | sort >"$work/exported"
    if ! diff "$work/declared" "$work/exported"; then
        echo "clattn.h (<) and $shared (>) differ"
        exit 1
    fi
    echo "$shared exports the $(wc -l <"$work/declared") functions of clattn.h and nothing else"
fi

if [ -n "$static" ]; then
    if "$nm" -g --defined-only "$static" | awk 'NF == 3 { print $3 }' | grep -v '^_' | grep -v '^clattn_'; then
        echo "$static defines symbols without the prefix clattn_"
        exit 1
    fi
    for name in $(cat "$work/declared"); do
        "$nm" -g --defined-only "$static" | grep -q " T $name\$" || { echo "$static lacks $name"; exit 1; }
    done
    echo "$static: all symbols are prefixed"
fi
