"""Starts SPACE, runs a command in a container, stops SPACE; prints what the command printed, or why it did not run."""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from installation import Installation  # noqa: E402


def main():
    inst = Installation(os.environ["SPACE_BUILD"], os.environ["SPACE_TEST_STATE"])
    inst.up()
    try:
        box = inst.api().create(isolation="container")
        print(inst.api().exec(box["id"], "echo", "hello")["stdout"], end="")
        inst.api().delete(box["id"])
    finally:
        print(inst.tier_status("container"), file=sys.stderr)
        inst.stop()
        inst.down()


main()
