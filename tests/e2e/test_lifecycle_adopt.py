"""The worker dies among twenty sandboxes: all go on, and a new one takes them over (L5, L7, L16)."""

import concurrent.futures
import os
import shutil
import time

import pytest

from conftest import BUILD
from guest_programs import start_counter
from installation import ApiError
from leaks import Inventory
from tiny import tiny_installation

CONTAINERS, MACHINES = 12, 8


def pid_inside(api, box):
    return api.exec(box, "pgrep", "-f", "counter")["stdout"]


@pytest.mark.slow
def test_twenty_sandboxes_outlive_the_worker(api, installation):
    """L5, L7: none is lost, none is made anew."""
    boxes, counters = [], {}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        try:
            tiers = ["container"] * (CONTAINERS + 1) + ["microvm"] * (MACHINES + 2)
            made = list(pool.map(lambda t: api.create(300, isolation=t, resources={"memory_mb": 192})["id"], tiers))
            boxes.extend(made)
            counters.update(zip(made, pool.map(lambda b: start_counter(api, b), made)))
            paused, suspended = [made[0], made[CONTAINERS + 1]], made[CONTAINERS + 2]
            running = [box for box in made if box not in paused and box != suspended]
            assert len(running) == 20
            pids = dict(zip(made, pool.map(lambda b: pid_inside(api, b), made)))
            for box in paused:
                api.change(box, "pause")
            api.change(suspended, "suspend")
            for _ in range(2):
                before = {box: counters[box].count() for box in running}
                installation.kill_daemon("worker")
                for box in running:
                    counters[box].wait_count(before[box] + 5, 60)
                assert dict(zip(running, pool.map(lambda b: pid_inside(api, b), running))) == {b: pids[b] for b in running}
                states = {box["id"]: box["state"] for box in api.live().values()}
                assert states == {**{b: "running" for b in running}, **{b: "paused" for b in paused}, suspended: "suspended"}
            for box in [*paused, suspended]:
                before = counters[box].count()
                api.change(box, "wake")
                counters[box].wait_count(before + 5)
                assert pid_inside(api, box) == pids[box]
            for counter in counters.values():
                counter.check()
        finally:
            list(pool.map(lambda b: api.delete(b, wait=300), boxes))
            for counter in counters.values():
                counter.close()


@pytest.mark.slow
def test_a_server_that_has_forgotten_all_is_no_reason_to_delete():
    """L7: the brake: the database is lost, the worker starts anew, finds nine sandboxes that nobody knows, and leaves them alone."""
    inst = tiny_installation(BUILD)
    try:
        api = inst.api()
        boxes = [api.create()["id"] for _ in range(9)]
        inst.stop()
        database = inst.state / "server"
        aside = inst.state / "server.aside"
        shutil.copytree(database, aside, copy_function=shutil.copy2)
        for path in database.iterdir():
            path.unlink()
        before = Inventory.take(inst.state)
        inst.up()
        time.sleep(3)  # long enough for a worker that would delete to have done so
        assert inst.api().live() == {}
        assert Inventory.take(inst.state).kinds["run directories"] == before.kinds["run directories"]
        inst.stop()
        for path in database.iterdir():
            path.unlink()
        for path in aside.iterdir():
            shutil.copy2(path, database)
            st = database.stat()
            os.chown(database / path.name, st.st_uid, st.st_gid)
        shutil.rmtree(aside)
        inst.up()
        api = inst.api()
        assert {box["id"]: box["state"] for box in api.live().values()} == {box: "running" for box in boxes}
        for box in boxes:
            assert api.exec(box, "echo", box)["stdout"] == box + "\n"
    finally:
        if inst.process.poll() is not None:
            inst.up()
        for box in inst.api().live():
            inst.api().delete(box)
        inst.stop()
        inst.down()


def test_an_orphan_is_reaped_only_with_proof(api, installation, tier):
    """L5, L7: A sandbox that is deleted while the worker is dead goes when it is back; one that the server never heard of stays."""
    box = api.create(isolation=tier)["id"]
    stranger = "sbx_" + "0" * 25 + "1"
    path = installation.state / "run/sandboxes" / stranger
    path.mkdir()
    try:
        installation.kill_daemon("worker")
        api.delete(box)
        with pytest.raises(ApiError):
            api.get(f"/v1/sandboxes/{box}")
        assert not (installation.state / "run/sandboxes" / box).exists() and path.exists()
    finally:
        path.rmdir()
        installation.kill_daemon("worker")  # the one that knows it goes, too
