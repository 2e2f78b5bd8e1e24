#!/usr/bin/env python3
"""Checks the rules of the tree that a compiler does not (ARCHITECTURE.md, CONTRIBUTING.md).

* A folder of src/ includes only itself and folders before it in LAYERS; agent/ takes only the two codecs of src/wire and os/raw_syscall.h.
* No .c or .h file has more than 600 lines, and none is a grab bag by name.
* No banned function is called, and no tab or trailing blank is in the sources.

Usage: check-includes.py [SOURCE_ROOT]. Prints file:line: what, and fails when there is anything to print.
"""

import pathlib
import re
import sys

LAYERS = ["base", "os", "wire", "http", "model", "store", "disk", "driver", "node", "control", "api", "cli", "main"]
AGENT_MAY_INCLUDE = {"wire/agent_frame.h", "wire/agent_msg.h", "os/raw_syscall.h"}
MAX_LINES = 600
GRAB_BAGS = re.compile(r"^(utils?|helpers?|common|misc|stuff|tools?|funcs?|lib)\.[ch]$|_(utils?|helpers?|misc)\.[ch]$")
BANNED = "strcpy strcat sprintf vsprintf strtok atoi atol atof gets system popen alloca mktemp tmpnam".split()
BANNED_CALL = re.compile(r"(?<![\w.>])(" + "|".join(BANNED) + r")\s*\(")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
# Comments, strings and character constants, in which a name is no call.
NOISE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)


def blank(match):
    """The same number of lines, without the text."""
    return "\n" * match.group().count("\n")


def check_include(path, root, target):
    """What is wrong with an include in this file; None: nothing."""
    parts = path.relative_to(root).parts
    beside = (path.parent / target).exists()
    layer = target.split("/")[0]
    if parts[0] == "agent":
        return None if beside or target in AGENT_MAY_INCLUDE else f'agent/ may not include "{target}"'
    if parts[0] != "src":
        return None
    if len(parts) < 3:
        return "source file outside of a layer"
    own = parts[1]
    if own not in LAYERS:
        return f"src/{own} is no known layer"
    if "/" not in target:
        return f'write "{own}/…/{target}" from src/ on' if beside else f'no such header: "{target}"'
    if layer not in LAYERS or not (root / "src" / target).exists():
        return f'no such header: "{target}"'
    if LAYERS.index(layer) > LAYERS.index(own):
        return f'{own} may not include {layer} ("{target}")'
    return None


def check_file(path, root):
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    found = []
    for number, line in enumerate(lines, 1):
        if match := INCLUDE.match(line):
            if complaint := check_include(path, root, match.group(1)):
                found.append((number, complaint))
        if "\t" in line or line != line.rstrip():
            found.append((number, "tab or trailing blank"))
    for number, line in enumerate(NOISE.sub(blank, text).split("\n"), 1):
        for match in BANNED_CALL.finditer(line):
            found.append((number, f"{match.group(1)}() is banned"))
    if len(lines) - 1 > MAX_LINES:
        found.append((MAX_LINES + 1, f"{len(lines) - 1} lines, more than {MAX_LINES}"))
    if GRAB_BAGS.search(path.name):
        found.append((1, "a file is named after what it does"))
    return found


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1]).resolve()
    files = sorted(p for top in ("src", "agent", "tests") for p in (root / top).rglob("*.[ch]"))
    bad = 0
    for path in files:
        for number, complaint in check_file(path, root):
            print(f"{path.relative_to(root)}:{number}: {complaint}")
            bad += 1
    if not files:
        print(f"no sources in {root}")
    sys.exit(1 if bad or not files else 0)


if __name__ == "__main__":
    main()
