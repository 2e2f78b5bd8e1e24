#!/bin/sh
# `make run`: starts SPACE, runs real code in a sandbox of each tier, shows the result, deletes it, stops.
# Usage: demo.sh SPACE_BINARY [STATE_DIR]
set -eu

space=$1
state=${2:-/var/lib/space}
here=$(dirname "$0")
log=$(mktemp)
started=

stop() {
    if [ -n "$started" ]; then
        kill "$started" 2>/dev/null || true
        wait "$started" 2>/dev/null || true
        "$space" down --state "$state" >/dev/null || true
    fi
    rm -f "$log"
}
trap stop EXIT INT TERM

if ! "$space" ls --state "$state" >/dev/null 2>&1; then
    "$space" up --state "$state" >"$log" 2>&1 &
    started=$!
    tries=0
    until grep -q '^key: ' "$log"; do
        if ! kill -0 "$started" 2>/dev/null || [ "$tries" -ge 600 ]; then
            echo "space up did not start:" >&2
            cat "$log" >&2
            exit 1
        fi
        tries=$((tries + 1))
        sleep 0.1
    done
fi
echo "SPACE is up: $("$space" --version)"

if ! "$space" template ls --state "$state" | grep -q '^seed'; then
    echo "Building the seed template (once) …"
    "$space" template build --state "$state" "$here/../templates/seed"
fi

cat <<'PROGRAM' >"$log.py"
import csv, io, platform, statistics
rows = "city,day,celsius\n" + "".join(
    f"{city},{day},{base + (day * 7 % 11) - 5}\n" for city, base in (("Oslo", 4), ("Cairo", 28), ("Lima", 19))
    for day in range(1, 31))
table = {}
for row in csv.DictReader(io.StringIO(rows)):
    table.setdefault(row["city"], []).append(float(row["celsius"]))
print(f"kernel {platform.release()}, python {platform.python_version()}")
print(f"{'city':8}{'days':>6}{'min':>8}{'mean':>8}{'max':>8}")
for city, values in sorted(table.items()):
    print(f"{city:8}{len(values):6}{min(values):8.1f}{statistics.mean(values):8.2f}{max(values):8.1f}")
PROGRAM
program=$(cat "$log.py")
rm -f "$log.py"

now_ms() { date +%s%3N; }
for tier in container microvm; do
    echo
    echo "== $tier"
    t0=$(now_ms)
    id=$("$space" create --state "$state" --isolation "$tier")
    t1=$(now_ms)
    "$space" exec --state "$state" "$id" -- python3 -c "$program"
    t2=$(now_ms)
    "$space" rm --state "$state" "$id" >/dev/null
    t3=$(now_ms)
    if "$space" get --state "$state" "$id" >/dev/null 2>&1; then
        echo "sandbox $id is still there" >&2
        exit 1
    fi
    echo "created in $((t1 - t0)) ms, ran in $((t2 - t1)) ms, deleted in $((t3 - t2)) ms (each with the start of the CLI)"
done
echo
echo "Both sandboxes are deleted. A server of your own: $space up"
