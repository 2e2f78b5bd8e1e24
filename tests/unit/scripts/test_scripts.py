"""Tests of the scripts that others rely on to fail: the check of the tree, the sum of the results."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).resolve().parents[3] / "scripts"


def run(script, *arguments):
    done = subprocess.run([sys.executable, "-B", SCRIPTS / script, *map(str, arguments)],
                          stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    return done.returncode, done.stdout.splitlines()


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path


class CheckIncludes(Folder):
    def check(self, *expected):
        status, lines = run("check-includes.py", self.root)
        self.assertEqual(lines, list(expected))
        self.assertEqual(status, 1 if expected else 0)

    def test_good_tree(self):
        self.write("src/base/a.h", "#pragma once\n")
        self.write("src/node/b.c", '#include <stdio.h>\n#include "base/a.h"\n/* strcpy(a, b) */\n'
                                   'const char *s = "system(x)";\nvoid my_strcpy(void);\nint x = p->popen(1);\n')
        self.write("src/wire/agent_msg.h", "\n")
        self.write("agent/link.h", "\n")
        self.write("agent/link.c", '#include "link.h"\n#include "wire/agent_msg.h"\n')
        self.check()

    def test_empty_tree(self):
        self.assertEqual(run("check-includes.py", self.root)[0], 1)

    def test_direction(self):
        self.write("src/node/a.h", "\n")
        self.write("src/base/b.c", '\n#include "node/a.h"\n')
        self.check('src/base/b.c:2: base may not include node ("node/a.h")')

    def test_agent_takes_only_the_codecs(self):
        self.write("src/base/a.h", "\n")
        self.write("agent/b.c", '#include "base/a.h"\n')
        self.check('agent/b.c:1: agent/ may not include "base/a.h"')

    def test_unknown_header_and_layer(self):
        self.write("src/base/a.c", '#include "base/none.h"\n')
        self.write("src/extra/b.c", '#include "base/none.h"\n')
        self.check('src/base/a.c:1: no such header: "base/none.h"', "src/extra/b.c:1: src/extra is no known layer")

    def test_length(self):
        self.write("src/base/a.c", "\n" * 600)
        self.check()
        self.write("src/base/a.c", "\n" * 601)
        self.check("src/base/a.c:601: 601 lines, more than 600")

    def test_names_and_calls(self):
        self.write("src/base/utils.c", "void f(void)\n{\n    strcpy(a, b); atoi (c);\n}\n")
        self.write("src/base/string_helpers.h", "\n")
        self.check("src/base/string_helpers.h:1: a file is named after what it does",
                   "src/base/utils.c:3: strcpy() is banned", "src/base/utils.c:3: atoi() is banned",
                   "src/base/utils.c:1: a file is named after what it does")


class SumResults(Folder):
    def test_sum(self):
        rows = [{"name": "good", "stdout": "1..2\nok 1 /a\nok 2 /b # SKIP needs root\n", "result": "OK", "returncode": 0},
                {"name": "bad", "stdout": "ok 1 /a\nnot ok 2 /b\n", "result": "FAIL", "returncode": 1},
                {"name": "crash", "stdout": "1..2\nok 1 /a\n", "result": "ERROR", "returncode": -6},
                {"name": "plain", "stdout": "", "result": "OK", "returncode": 0}]
        unit = self.write("unit.json", "".join(json.dumps(row) + "\n" for row in rows))
        e2e = self.write("e2e.xml", "<testsuites><testsuite><testcase classname='t' name='a'/><testcase classname='t' "
                                    "name='b'><failure/></testcase></testsuite></testsuites>")
        status, lines = run("sum_results.py", f"1:{unit}", f"1:{e2e}")
        self.assertEqual(status, 1)
        self.assertEqual(lines, ["skipped: good /b (needs root)", "failed: bad /b",
                                 "failed: crash (error, exit status -6)", "failed: t b", "5 passed, 3 failed"])

    def test_good(self):
        e2e = self.write("e2e.xml", "<testsuite><testcase classname='t' name='a'/></testsuite>")
        self.assertEqual(run("sum_results.py", f"0:{e2e}"), (0, ["1 passed, 0 failed"]))

    def test_suite_failed_without_a_test(self):
        e2e = self.write("e2e.xml", "<testsuite><testcase classname='t' name='a'/></testsuite>")
        status, lines = run("sum_results.py", f"3:{e2e}")
        self.assertEqual((status, lines[-1]), (1, "1 passed, 1 failed"))

    def test_no_report(self):
        status, lines = run("sum_results.py", f"0:{self.root}/none.json")
        self.assertEqual((status, lines[-1]), (1, "0 passed, 1 failed"))


class Failpoints(unittest.TestCase):
    def test_names_are_unique_and_well_formed(self):
        """docs/failpoints.md: a name stands at one place, and is "<action>.<step>"."""
        names = []
        for path in sorted((SCRIPTS.parent / "src").rglob("*.[ch]")):
            names += re.findall(r'sp_failpoint\(\s*"([^"]*)"', path.read_text(encoding="utf-8"))
        self.assertEqual([n for n in set(names) if names.count(n) > 1], [])
        self.assertEqual([n for n in names if not re.fullmatch(r"[a-z_]+\.[a-z_]+", n)], [])


if __name__ == "__main__":
    unittest.main()
