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

exec /usr/bin/python3 -B scripts/sum_results.py "$unit:$build/meson-logs/testlog.json" "$e2e:$results/e2e.xml"
