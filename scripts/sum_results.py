#!/usr/bin/env python3
"""Adds up the reports of the suites: names what failed and what was skipped, then prints "N passed, N failed".

Usage: sum_results.py STATUS:REPORT…
STATUS is the exit status of the suite; REPORT is meson's testlog.json or a JUnit file of pytest. (Meson's own JUnit file
is of no use: a TAP program that crashes or is stopped by its time limit counts as passed there.)
Exits non-zero when something failed, a report is missing, a suite failed without a failed test, or no test passed.
"""

import json
import re
import sys
import xml.etree.ElementTree as ElementTree

TAP_LINE = re.compile(r"^(not )?ok\b\s*\d*\s*-?\s*(.*?)\s*(?:#\s*(SKIP|TODO)\b\s*(.*))?$", re.I)


def read_tap(test):
    """(state, name, reason) of each line of a TAP program; empty for a program of another kind."""
    rows = []
    for line in test.get("stdout", "").splitlines():
        if not (match := TAP_LINE.match(line)):
            continue
        bad, name, directive, reason = match.groups()
        state = "skipped" if directive and directive.upper() == "SKIP" else "failed" if bad else "passed"
        rows.append((state, f"{test['name']} {name}", reason or ""))
    return rows


def read_meson(path):
    rows = []
    with open(path, encoding="utf-8") as lines:
        for test in map(json.loads, lines):
            own = read_tap(test)
            result = test["result"]
            if result == "SKIP" and not own:
                own = [("skipped", test["name"], "")]
            elif result == "OK" and not own:
                own = [("passed", test["name"], "")]
            elif result not in ("OK", "SKIP", "EXPECTEDFAIL") and not any(state == "failed" for state, _, _ in own):
                own.append(("failed", test["name"], f"{result.lower()}, exit status {test['returncode']}"))
            rows += own
    return rows


def read_junit(path):
    rows = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        state, reason = "passed", ""
        for child in case:
            if child.tag in ("failure", "error"):
                state = "failed"
            elif child.tag == "skipped" and state != "failed":
                state, reason = "skipped", child.get("message") or ""
        rows.append((state, f"{case.get('classname')} {case.get('name')}", reason))
    return rows


def read(argument):
    status, path = argument.split(":", 1)
    try:
        rows = read_meson(path) if path.endswith(".json") else read_junit(path)
    except (OSError, ValueError, KeyError, ElementTree.ParseError) as error:
        return [("failed", path, f"no report: {error}")]
    if status != "0" and not any(state == "failed" for state, _, _ in rows):
        rows.append(("failed", path, f"the suite ended with status {status}"))
    return rows or [("failed", path, "the report is empty")]


def main():
    rows = [row for argument in sys.argv[1:] for row in read(argument)]
    for wanted in ("skipped", "failed"):
        for state, name, reason in rows:
            if state == wanted:
                print(f"{state}: {name}" + (f" ({reason})" if reason else ""))
    passed = sum(state == "passed" for state, _, _ in rows)
    failed = sum(state == "failed" for state, _, _ in rows)
    print(f"{passed} passed, {failed} failed")
    sys.exit(0 if passed > 0 and failed == 0 else 1)


if __name__ == "__main__":
    main()
