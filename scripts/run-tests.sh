#!/bin/sh
# Runs every suite on a finished build and ends with the line "N passed, N failed".
# Usage: run-tests.sh BUILD_DIR [pytest arguments…]
# Fails when a test failed, when a suite did not come to its end, or when there was nothing to run.
set -eu

cd "$(dirname "$0")/.."
build=$(cd "$1" && pwd)
shift
results=$build/test-results
rm -rf "$results"
mkdir -p "$results"

echo "== unit"
unit=0
rm -f "$build/meson-logs/testlog.json"
meson test -C "$build" --no-rebuild --print-errorlogs || unit=$?

echo "== end to end"
export SPACE_BUILD="$build"
export SPACE_TEST_STATE="${SPACE_TEST_STATE:-$build/e2e-state}"
suites=tests/e2e
[ -z "$(find tests/security -name 'test_*.py' 2>/dev/null)" ] || suites="$suites tests/security"
# Debian's own python, which Debian's pytest is for, whatever else is in PATH.
e2e=0
# shellcheck disable=SC2086
/usr/bin/python3 -B -m pytest -p no:cacheprovider -ra --junitxml="$results/e2e.xml" "$@" $suites || e2e=$?

set -- "$unit:$build/meson-logs/testlog.json" "$e2e:$results/e2e.xml"

# With a second build that has the sanitizers: the unit tests, and real daemons through the main walks. They share the
# installation's state, so that no template is built twice. Whatever a sanitizer writes is a failure.
if [ -n "${SPACE_ASAN_BUILD:-}" ]; then
    asan=$(cd "$SPACE_ASAN_BUILD" && pwd)
    reports=$results/sanitizer
    mkdir -m 1777 "$reports"
    export ASAN_OPTIONS="log_path=$reports/asan" UBSAN_OPTIONS="log_path=$reports/ubsan:print_stacktrace=1:halt_on_error=1"
    echo "== unit, sanitized"
    asan_unit=0
    rm -f "$asan/meson-logs/testlog.json"
    meson test -C "$asan" --no-rebuild --print-errorlogs --suite unit || asan_unit=$?
    echo "== end to end, sanitized"
    asan_e2e=0
    SPACE_BUILD="$asan" /usr/bin/python3 -B -m pytest -p no:cacheprovider -ra --junitxml="$results/asan-e2e.xml" \
        tests/e2e/test_http_walk.py tests/e2e/test_run_verb.py tests/e2e/test_requests.py tests/e2e/test_crash.py \
        tests/e2e/test_worker_streams.py || asan_e2e=$?
    if [ -n "$(ls "$reports")" ]; then
        cat "$reports"/* >&2
        asan_e2e=1
    fi
    set -- "$@" "$asan_unit:$asan/meson-logs/testlog.json" "$asan_e2e:$results/asan-e2e.xml"
fi

exec /usr/bin/python3 -B scripts/sum_results.py "$@"
