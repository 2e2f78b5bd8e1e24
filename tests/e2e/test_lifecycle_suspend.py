"""Suspend and wake: what was in memory and on the disk is there again, whatever has died meanwhile (S1, S2, L5)."""

import concurrent.futures
import os
import time

import pytest

from guest_programs import READ_TREE, WRITE_TREE, counter_file, python, start_counter
from installation import ApiError
from test_lifecycle_pause import refused

CYCLES = int(os.environ.get("SPACE_TEST_CYCLES", "50"))


def saves_memory(installation, tier):
    return installation.tier_status(tier).get("save_memory", False)


@pytest.fixture
def machine(api, installation):
    """A microVM."""
    status = installation.tier_status("microvm")
    if not status["available"]:
        pytest.fail(f"the microvm tier does not work on this host: {status.get('detail')}")
    box = api.create(isolation="microvm", resources={"memory_mb": 256})
    yield box["id"]
    api.delete(box["id"])


def drop_page_cache():
    """As if the host had rebooted, as far as the files are concerned."""
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("1\n")


@pytest.mark.slow
def test_fifty_cycles(api, installation, machine):
    """S1, S2: (write files without sync, hash of the tree, suspend, kill -9 of all daemons, start, wake, verify), with a counter that never skips or
    repeats and whose client attaches again by Last-Event-ID."""
    counter = start_counter(api, machine)
    steps = []
    try:
        pid = api.exec(machine, "pgrep", "-f", "counter")["stdout"]
        for cycle in range(CYCLES):
            at = [time.monotonic()]
            found, written = python(api, machine, WRITE_TREE, str(cycle)).split()
            assert cycle == 0 or found == expected, f"cycle {cycle}"
            expected = written
            at.append(time.monotonic())
            assert api.change(machine, "suspend")["state"] == "suspended"
            at.append(time.monotonic())
            installation.crash()
            if cycle % 5 == 4:
                drop_page_cache()
            installation.up()
            at.append(time.monotonic())
            before = counter.count()
            assert api.get(f"/v1/sandboxes/{machine}")["state"] == "suspended"
            asked = time.time()
            assert api.change(machine, "wake")["state"] == "running"
            at.append(time.monotonic())
            counter.wait_count(before + 5)
            first = next(wall for n, wall in counter.lines() if n == before + 3)
            assert asked - 0.05 <= first <= time.time() + 0.05, "the clock was wrong after the wake"
            at.append(time.monotonic())
            steps.append([b - a for a, b in zip(at, at[1:])])
        assert python(api, machine, READ_TREE).strip() == expected
        counter.check()
        assert api.exec(machine, "pgrep", "-f", "counter")["stdout"] == pid, "not the same process"
        numbers = counter_file(api, machine)
        assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) >= counter.count() - 50
        assert counter.suspended > 0, "no stream has ended with the event `suspended`"
    finally:
        counter.close()
        if installation.process.poll() is not None:
            installation.up()
    means = [sum(s[i] for s in steps) / len(steps) for i in range(5)]
    print("mean seconds: verify and write %.2f, suspend %.2f, kill and start %.2f, wake %.2f, count on %.2f" % tuple(means))


def test_the_stream_says_that_it_was_suspended(api, machine):
    counter = start_counter(api, machine)
    try:
        stream = counter.stream
        api.change(machine, "suspend")
        deadline = time.monotonic() + 10
        while counter.suspended == 0:
            assert time.monotonic() < deadline, (counter.events[-3:], counter.error)
            time.sleep(0.02)
        assert stream.answer.isclosed(), "the stream did not end properly"
        refused(api, machine, "suspended")
        last = counter.count()
        api.change(machine, "wake")
        counter.wait_count(last + 5)
        counter.check()
    finally:
        counter.close()


def test_a_paused_one_can_be_suspended_and_a_suspended_one_deleted(api, installation):
    box = api.create(isolation="microvm", resources={"memory_mb": 256})["id"]
    api.change(box, "pause")
    assert api.change(box, "suspend")["state"] == "suspended"
    assert (installation.state / "data/saved" / box).is_dir()
    assert api.change(box, "suspend")["state"] == "suspended"
    with pytest.raises(ApiError) as e:
        api.change(box, "pause")
    assert e.value.error["code"] == "failed_precondition" and "suspended" in e.value.error["message"]
    api.delete(box)
    assert not (installation.state / "data/saved" / box).exists()


def test_nothing_of_it_uses_the_host(api, installation, machine):
    """Compute is released: no process, no memory of it while it is suspended."""
    from leaks import Inventory
    api.change(machine, "suspend")
    kinds = Inventory.take(installation.state).kinds
    assert not [p for p in kinds["processes"] if "qemu" in p] and not [c for c in kinds["cgroups"] if machine in c]
    assert not [name for name in kinds["layers"] if name.startswith(machine)]
    api.change(machine, "wake")
    assert not (installation.state / "data/saved" / machine).exists(), "the saved form stayed after the wake"


def test_disk_only(api, sandbox):
    """S1: memory: false in every tier: files stay, without any sync of the user's; processes do not."""
    box = sandbox["id"]
    expected = python(api, box, WRITE_TREE, "7").split()[1]
    counter = start_counter(api, box)
    try:
        assert api.change(box, "suspend", memory=False)["state"] == "suspended"
        assert api.change(box, "wake")["state"] == "running"
        assert python(api, box, READ_TREE).strip() == expected
        assert api.exec(box, "pgrep", "-f", "counter")["exit_code"] == 1
        numbers = counter_file(api, box)
        assert numbers == list(range(1, len(numbers) + 1)) and len(numbers) >= counter.count()
        deadline = time.monotonic() + 10
        while api.get(f"/v1/sessions/{counter.session_id}")["state"] == "running":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert api.get(f"/v1/sessions/{counter.session_id}")["state"] == "lost"
    finally:
        counter.close()


def test_memory_in_the_container_tier(api, installation):
    """With CRIU a container keeps its processes; without it a suspend is refused with what to do, and nothing happens to it."""
    box = api.create(isolation="container")["id"]
    try:
        counter = start_counter(api, box)
        if saves_memory(installation, "container"):
            api.change(box, "suspend")
            before = counter.count()
            api.change(box, "wake")
            counter.wait_count(before + 10)
        else:
            with pytest.raises(ApiError) as e:
                api.change(box, "suspend")
            assert e.value.error["code"] == "unsupported" and "memory" in e.value.error["message"], e.value.body
            assert api.get(f"/v1/sandboxes/{box}")["state"] == "running"
            counter.wait_count(counter.count() + 10)
        counter.check()
        counter.close()
    finally:
        api.delete(box)


@pytest.mark.slow
def test_idle_time_out(api, installation):
    """S1, L12: twice by the idle rule: an unused machine is suspended, a container without CRIU paused, a busy one left alone; all are as they were."""
    boxes = {}
    try:
        for name, tier in (("idle", "microvm"), ("busy", "microvm"), ("container", "container")):
            boxes[name] = api.create(isolation=tier, idle_timeout="10s", on_idle="suspend")["id"]
        busy = api.session(boxes["busy"], "sleep", "600", detach=True)
        assert busy["session"]["id"]
        idle_container = "suspended" if saves_memory(installation, "container") else "paused"
        for cycle in range(2):
            trees = {name: python(api, boxes[name], WRITE_TREE, str(cycle)).split()[1] for name in ("idle", "container")}
            deadline = time.monotonic() + 60
            wanted = {"idle": "suspended", "container": idle_container}
            while True:
                live = api.live()  # to ask about one of them would be a use of it
                if {name: live[boxes[name]]["state"] for name in wanted} == wanted:
                    break
                assert time.monotonic() < deadline, live
                time.sleep(0.2)
            row = api.get(f"/v1/sandboxes/{boxes['container']}")
            if idle_container == "paused":
                assert "paused instead" in row["state_reason"], row
            row = api.get(f"/v1/sandboxes/{boxes['busy']}")
            assert row["state"] == "running" and row["busy"]["sessions"] == 1, row
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda name: api.change(boxes[name], "wake"), wanted))
            assert {name: python(api, boxes[name], READ_TREE).strip() for name in wanted} == trees
    finally:
        for box in boxes.values():
            api.delete(box)
