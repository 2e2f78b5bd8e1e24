#!/bin/sh
# Builds every fuzzer of tests/fuzz with clang and runs each for some seconds, starting from
# tests/fuzz/corpus/<name>/ where that is. Usage: fuzz.sh BUILD_DIR SECONDS [NAME…]
set -eu

cd "$(dirname "$0")/.."
build=$1
seconds=$2
shift 2
mkdir -p "$build"
cflags="-std=gnu17 -g -O1 -fno-omit-frame-pointer -D_GNU_SOURCE -Isrc
    $(pkg-config --cflags glib-2.0 gio-unix-2.0 jansson)"
libs=$(pkg-config --libs glib-2.0 gio-unix-2.0 jansson)

# The code under test: formats and what they stand on. The linker takes what a fuzzer uses.
archive=$build/formats.a
rm -f "$archive"
for source in src/base/*.c src/wire/*.c src/disk/saved_manifest.c; do
    object=$build/$(echo "${source%.c}" | tr / _).o
    # shellcheck disable=SC2086
    clang $cflags -fsanitize=fuzzer-no-link,address,undefined -c "$source" -o "$object"
    ar rc "$archive" "$object"
done

status=0
for source in tests/fuzz/*.c; do
    name=$(basename "$source" .c)
    if [ $# -gt 0 ] && ! echo " $* " | grep -q " $name "; then
        continue
    fi
    # shellcheck disable=SC2086
    clang $cflags -fsanitize=fuzzer,address,undefined "$source" "$archive" $libs -o "$build/$name"
    mkdir -p "$build/corpus/$name"
    seeds=
    [ ! -d "tests/fuzz/corpus/$name" ] || seeds=tests/fuzz/corpus/$name
    echo "== $name for $seconds s"
    # shellcheck disable=SC2086
    if ! "$build/$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$build/$name-" "$build/corpus/$name" $seeds >"$build/$name.log" 2>&1; then
        tail -n 40 "$build/$name.log"
        echo "$name FAILED; its input is in $build/$name-*"
        status=1
    else
        grep -E '^stat::number_of_executed_units' "$build/$name.log" || true
    fi
done
exit $status
