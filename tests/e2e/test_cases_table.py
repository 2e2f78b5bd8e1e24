"""docs/cases.md and the tests agree: what is named there is here, and says which case it shows."""

import ast
import pathlib
import re

HERE = pathlib.Path(__file__).resolve().parent
TABLE = HERE.parents[1] / "docs" / "cases.md"
LATER = {"S4", "S13"}  # need the network
NONE = {"L10", "S6"}   # numbers without a case


def rows():
    """{id: [(file, test)]}"""
    found = {}
    for line in TABLE.read_text().splitlines():
        if m := re.match(r"\| ([LS]\d+) \|.*\|([^|]*)\|$", line):
            file, named = None, []
            for text in re.findall(r"`((?:test_\w+\.py)?::test_\w+)`", m.group(2)):
                name, test = text.split("::")
                file = name or file
                named.append((file, test))
            found[m.group(1)] = named
    return found


def ids(file, test):
    """The cases that a test says it shows."""
    for node in ast.walk(ast.parse((HERE / file).read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == test:
            head = (ast.get_docstring(node) or "")[:40]
            in_name = re.match(r"test_((?:[ls]\d+_)*)", test, re.I).group(1).upper().split("_")
            return {i for i in in_name if i} | set(re.findall(r"\b[LS]\d+\b", re.match(r"(?:[LS]\d+,? ?)*", head).group()))
    raise AssertionError(f"{file} has no {test}")


def test_every_case_is_in_the_table():
    assert set(rows()) == {f"L{n}" for n in range(1, 17)} | {f"S{n}" for n in range(1, 14)}


def test_every_case_has_a_test_that_names_it():
    for case, named in rows().items():
        assert bool(named) != (case in LATER | NONE), case
        for file, test in named:
            assert case in ids(file, test), f"{file}::{test} does not begin with {case}"


def test_every_test_that_names_a_case_is_in_the_table():
    table = {(case, *one) for case, named in rows().items() for one in named}
    for path in HERE.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for case in ids(path.name, node.name):
                    if re.match("[LS]", case):
                        assert (case, path.name, node.name) in table, f"{path.name}::{node.name} shows {case}: write it into docs/cases.md"
