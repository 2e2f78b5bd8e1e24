"""Five hundred operations by twenty clients at once, some of which are killed in the middle (L3): the live set is the database's set."""

import collections
import os
import pathlib
import random
import subprocess
import sys
import time

import pytest

from conftest import BUILD
from consistency import check, clean
from tiny import tiny_installation

CLIENT = pathlib.Path(__file__).with_name("crowd_client.py")
CLIENTS, EACH = 20, 25


def crowd(inst, tiers, seed, each=EACH):
    """Runs the clients; kills a third of them at random moments. What they said, counted."""
    r = random.Random(seed)
    processes = [subprocess.Popen([sys.executable, str(CLIENT), inst.url, inst.key, str(seed * 100 + i), str(each), *tiers],
                                  stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
                 for i in range(CLIENTS)]
    doomed = r.sample(processes, CLIENTS // 3)
    for process in doomed:
        time.sleep(r.random() * 0.5)
        process.kill()
    said = collections.Counter()
    for process in processes:
        out, _ = process.communicate(timeout=600)
        said.update(line for line in out.splitlines() if line)
        assert process in doomed or process.returncode == 0
    return said


@pytest.mark.slow
def test_five_hundred_operations_with_the_fake_driver():
    """L3: the live set is the database set."""
    inst = tiny_installation(BUILD)
    try:
        clean(inst)
        said = crowd(inst, ["container"], 1)
        assert sum(n for line, n in said.items() if line.endswith("accepted")) > 100, said
        assert not [line for line in said if line.startswith("broken") or "internal" in line or "no code" in line], said
        check(inst)
        clean(inst)
    finally:
        inst.stop()
        inst.down()


@pytest.mark.slow
def test_a_crowd_in_the_real_tiers(installation):
    """L3: the same in the real tiers."""
    clean(installation)
    said = crowd(installation, ["container", "container", "microvm"], 2, each=10)
    assert sum(n for line, n in said.items() if line.endswith("accepted")) > 30, said
    assert not [line for line in said if line.startswith("broken") or "internal" in line or "no code" in line], said
    check(installation, 120)
    for box in installation.api().live().values():
        if box["state"] == "running":
            assert installation.api().exec(box["id"], "echo", "x")["stdout"] == "x\n"
    clean(installation)
