"""Fork, snapshots, rollback: children go on where the origin was, and are somebody else (S3, S8, S10)."""

import json
import re
import time

import pytest

from guest_programs import COUNTER, python, start_counter
from installation import ApiError

# A warm interpreter: each line is what a program would take for unique. `prng` is seeded again by the signal of docs/restore-hooks.md.
UNIQUE = r"""
import json, os, random, signal, socket, time, uuid
signal.signal(signal.SIGUSR2, lambda *a: random.seed())
os.makedirs("/run/space/restored", exist_ok=True)
open(f"/run/space/restored/{os.getpid()}", "w").close()
out = open("/workspace/unique", "a", buffering=1)
n = 0
while True:
    n += 1
    boot = open("/proc/sys/kernel/random/boot_id").read().strip()
    out.write(json.dumps({"n": n, "pid": os.getpid(), "urandom": os.urandom(16).hex(), "uuid4": str(uuid.uuid4()), "prng": random.random(),
                          "hostname": socket.gethostname(), "machine": open("/etc/machine-id").read().strip(), "boot": boot,
                          "wall": time.time()}) + "\n")
    time.sleep(0.1)
"""

# Writes rows into a database in WAL mode for ever, one transaction a row.
WRITER = r"""
import sqlite3, time
db = sqlite3.connect("/workspace/data.db", isolation_level=None)
db.execute("PRAGMA journal_mode=WAL")
db.execute("CREATE TABLE IF NOT EXISTS rows (n INTEGER PRIMARY KEY, text TEXT)")
n = 0
while True:
    n += 1
    db.execute("INSERT INTO rows VALUES (?, ?)", (n, "x" * (n % 3000)))
    time.sleep(0.01)
"""
CHECK = r"""
import sqlite3
db = sqlite3.connect("/workspace/data.db", timeout=30)
print(db.execute("PRAGMA integrity_check").fetchone()[0], db.execute("SELECT count(*), max(n) FROM rows").fetchone())
"""


def detached(api, box, program):
    return api.session(box, "python3", "-c", program, detach=True)["session"]["id"]


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)
    return value


def lines_of(api, box):
    text = api.exec(box, "cat", "/workspace/unique")["stdout"]
    return [json.loads(line) for line in text.split("\n")[:-1]]


@pytest.fixture
def machine(api):
    box = api.create(isolation="microvm", resources={"memory_mb": 256})["id"]
    yield box
    api.delete(box)


@pytest.fixture
def cleaned(api):
    """Lists of sandboxes and snapshots that go at the end."""
    boxes, snapshots = [], []
    yield boxes, snapshots
    for box in boxes:
        api.delete(box)
    for snapshot in snapshots:
        try:
            api.delete_snapshot(snapshot)
        except ApiError as e:
            assert e.status == 404


@pytest.mark.slow
def test_eight_children_are_nine_machines(api, machine, cleaned):
    """S3: each draws, and is called, its own; databases are whole."""
    detached(api, machine, UNIQUE)
    detached(api, machine, WRITER)
    wait_for(lambda: len(lines_of(api, machine)) > 3)
    children = api.fork(machine, 8)
    cleaned[0].extend(child["id"] for child in children)
    boxes = [machine, *cleaned[0]]
    assert len(set(boxes)) == 9 and all(child["isolation"] == "microvm" for child in children)

    # Everybody goes on, the origin too.
    length = max(len(lines_of(api, box)) for box in boxes)
    wait_for(lambda: all(len(lines_of(api, box)) >= length + 3 for box in boxes), 120)
    logs = [lines_of(api, box) for box in boxes]
    for log in logs:
        assert [line["n"] for line in log] == list(range(1, len(log) + 1)), "a program that did not go on where it was"
    assert len({log[-1]["pid"] for log in logs}) == 1, "not the same process"
    common = 0
    while all(log[common] == logs[0][common] for log in logs):
        common += 1
    assert common >= 3
    # The line after the last common one may have been half done (some of its values taken) when the machine stood still.
    after = [log[common + 1:] for log in logs]
    for name in ("urandom", "uuid4", "prng"):
        values = [line[name] for lines in after for line in lines]
        assert len(set(values)) == len(values), f"{name} came twice"
    for name in ("hostname", "machine"):
        values = [lines[-1][name] for lines in after]
        assert len(set(values)) == 9, (name, values)
        assert all(re.fullmatch(r"[0-9a-z_-]{8,}", value) for value in values)
    assert [lines[0]["hostname"] for lines in after] == [lines[-1]["hostname"] for lines in after], "the name came too late"
    for lines in after:
        assert abs(lines[-1]["wall"] - time.time()) < 60 and all(a["wall"] <= b["wall"] for a, b in zip(lines, lines[1:]))

    # New processes see the same, and the database is whole everywhere.
    fresh = [python(api, box, "import os, uuid; print(os.urandom(16).hex(), uuid.uuid4())") for box in boxes]
    assert len({word for line in fresh for word in line.split()}) == 18
    for box in boxes:
        verdict = python(api, box, CHECK)
        assert verdict.startswith("ok ("), (box, verdict)
        count, largest = re.search(r"\((\d+), (\d+)\)", verdict).groups()
        assert count == largest

    # The children are of the origin's blood, but none of its tokens opens them.
    for child in children:
        processes = api.get(f"/v1/sandboxes/{child['id']}/processes")["items"]
        assert len(processes) == 2, processes


def test_no_token_of_the_origin_is_valid_in_a_child(api, machine, cleaned):
    """S8: also when the origin is gone."""
    session = api.session(machine, "python3", "-c", COUNTER)
    events = iter(api.attach(session["attach"]))
    next(events)
    child = api.fork(machine, 1)[0]["id"]
    cleaned[0].append(child)
    api.delete(machine)
    with pytest.raises(ApiError) as e:
        list(api.attach(session["attach"]))
    assert e.value.status in (401, 404), e.value


def test_disk_only_fork_in_every_tier(api, sandbox, cleaned):
    """S3, S10: names differ; deleting one child leaves the disk of the others."""
    box = sandbox["id"]
    api.exec(box, "sh", "-c", "echo of the origin > file; mkdir -m 2750 dir; ln -s file link; touch -d 2020-01-01 dir/old")
    children = [child["id"] for child in api.fork(box, 3, memory=False)]
    cleaned[0].extend(children)
    listing = api.exec(box, "ls", "-lnaR", "--time-style=full-iso", "/workspace")["stdout"]
    for child in children:
        assert api.exec(child, "ls", "-lnaR", "--time-style=full-iso", "/workspace")["stdout"] == listing
        assert api.exec(child, "sh", "-c", "cat file; echo mine > file; hostname")["stdout"].startswith("of the origin\n")
    assert api.exec(box, "cat", "file")["stdout"] == "of the origin\n"
    names = {api.exec(b, "sh", "-c", "hostname; cat /etc/machine-id")["stdout"] for b in [box, *children]}
    assert len(names) == 4
    api.delete(children[0])  # nobody else's disk goes with it
    assert api.exec(children[1], "cat", "file")["stdout"] == "mine\n"


def test_fork_with_memory_where_it_cannot_be(api, installation):
    box = api.create(isolation="container")["id"]
    try:
        with pytest.raises(ApiError) as e:
            api.fork(box, 2)
        assert e.value.error["code"] == "unsupported" and "memory" in e.value.error["message"], e.value.body
        assert api.exec(box, "echo", "on")["stdout"] == "on\n" and set(api.live()) == {box}
    finally:
        api.delete(box)


@pytest.mark.parametrize("state", ["paused", "suspended"])
def test_fork_of_one_that_stands_still(api, machine, cleaned, state):
    counter = start_counter(api, machine)
    api.change(machine, "pause" if state == "paused" else "suspend")
    child = api.fork(machine, 1)[0]["id"]
    cleaned[0].append(child)
    assert api.get(f"/v1/sandboxes/{machine}")["state"] == state
    length = len(api.exec(child, "cat", "/workspace/counter")["stdout"].splitlines())
    wait_for(lambda: len(api.exec(child, "cat", "/workspace/counter")["stdout"].splitlines()) > length + 3)
    before = counter.count()
    api.change(machine, "wake")
    counter.wait_count(before + 5)
    counter.check()
    counter.close()


def write(api, box, text):
    api.exec(box, "sh", "-c", f"echo {text} > /workspace/file")


def read(api, box):
    return api.exec(box, "cat", "/workspace/file")["stdout"].strip()


def test_snapshots_are_a_tree(api, machine, cleaned):
    counter = start_counter(api, machine)
    pid = api.exec(machine, "pgrep", "-f", "counter")["stdout"]
    write(api, machine, "first")
    first = api.snapshot(machine, name="first")
    cleaned[1].append(first["id"])
    at_first = counter.count()
    write(api, machine, "second")
    second = api.snapshot(machine)
    cleaned[1].append(second["id"])
    assert first["memory"] and first["sandbox_id"] == machine and first["parent_id"] is None and first["size_bytes"] > 0
    assert second["parent_id"] == first["id"]
    listed = api.get(f"/v1/snapshots?sandbox_id={machine}")["items"]
    assert {s["id"] for s in listed} == {first["id"], second["id"]}

    # A sandbox from the first one is as it was then: its file, its process.
    child = api.call("POST", "/v1/sandboxes", {"snapshot_id": first["id"]}, headers={"Prefer": "wait=120"})["sandbox"]
    cleaned[0].append(child["id"])
    assert child["state"] == "running" and child["parent_snapshot_id"] == first["id"] and child["template"] == "seed:latest"
    assert read(api, child["id"]) == "first" and api.exec(child["id"], "pgrep", "-f", "counter")["stdout"] == pid

    # Rollback: the same for the sandbox itself; the process goes on from there.
    write(api, machine, "third")
    before = counter.count()
    assert api.change(machine, "rollback", snapshot_id=first["id"])["state"] == "running"
    assert read(api, machine) == "first" and api.exec(machine, "pgrep", "-f", "counter")["stdout"] == pid
    numbers = [int(line.split()[0]) for line in api.exec(machine, "cat", "/workspace/counter")["stdout"].split("\n")[:-1]]
    assert numbers == list(range(1, len(numbers) + 1)) and at_first - 5 <= len(numbers), (at_first, before, len(numbers))
    third = api.snapshot(machine)
    cleaned[1].append(third["id"])
    assert third["parent_id"] == first["id"], "after a rollback the next snapshot hangs below the one that was gone back to"

    # Deletion: children of the tree hang below the grandparent; sandboxes that came from it live on.
    api.delete_snapshot(first["id"])
    with pytest.raises(ApiError) as e:
        api.get(f"/v1/snapshots/{first['id']}")
    assert e.value.status == 404
    assert api.get(f"/v1/snapshots/{second['id']}")["parent_id"] is None
    assert read(api, child["id"]) == "first" and read(api, machine) == "first"
    with pytest.raises(ApiError) as e:
        api.change(machine, "rollback", snapshot_id=first["id"])
    assert e.value.status in (400, 404)
    counter.close()


def test_snapshot_of_each_state_and_after_the_origin_is_gone(api, installation, cleaned):
    box = api.create(isolation="microvm", resources={"memory_mb": 256})["id"]
    snapshots = {}
    for state, verb in (("running", None), ("paused", "pause"), ("suspended", "suspend")):
        if state != "running":
            api.change(box, "wake")
        write(api, box, state)
        if verb:
            api.change(box, verb)
        snapshots[state] = api.snapshot(box)["id"]
        cleaned[1].append(snapshots[state])
        assert api.get(f"/v1/sandboxes/{box}")["state"] == state
    api.delete(box)
    for state, snapshot in snapshots.items():
        child = api.call("POST", "/v1/sandboxes", {"snapshot_id": snapshot}, headers={"Prefer": "wait=120"})["sandbox"]["id"]
        cleaned[0].append(child)
        assert read(api, child) == state
        # It is a sandbox like any other.
        api.change(child, "suspend")
        api.change(child, "wake")
        assert read(api, child) == state
    for snapshot in snapshots.values():
        api.delete_snapshot(snapshot)
        assert not (installation.state / "data/saved" / snapshot).exists()
    for child in cleaned[0]:
        api.change(child, "suspend")
        api.change(child, "wake")


def test_a_template_that_a_snapshot_needs_stays(api, sandbox, cleaned):
    snapshot = api.snapshot(sandbox["id"], memory=False)
    cleaned[1].append(snapshot["id"])
    api.delete(sandbox["id"])
    with pytest.raises(ApiError) as e:
        api.call("DELETE", "/v1/templates/seed:latest")
    assert e.value.status == 409 and e.value.error["code"] == "failed_precondition", e.value.body
    child = api.call("POST", "/v1/sandboxes", {"snapshot_id": snapshot["id"]}, headers={"Prefer": "wait=120"})["sandbox"]
    cleaned[0].append(child["id"])
    assert child["isolation"] == sandbox["isolation"] and api.exec(child["id"], "echo", "x")["stdout"] == "x\n"


@pytest.mark.parametrize("body,field", [
    ({"template": "seed:latest"}, "/template"), ({"isolation": "microvm"}, "/isolation"), ({"resources": {"cpus": 2}}, "/resources")])
def test_what_comes_from_the_snapshot_cannot_be_given(api, sandbox, cleaned, body, field):
    snapshot = api.snapshot(sandbox["id"], memory=False)["id"]
    cleaned[1].append(snapshot)
    with pytest.raises(ApiError) as e:
        api.create(snapshot_id=snapshot, **body)
    assert e.value.status == 400 and e.value.error.get("field", "").startswith(field), e.value.body


def test_fork_bounds(api, sandbox):
    for count in (0, 101, -1, "2"):
        with pytest.raises(ApiError) as e:
            api.call("POST", f"/v1/sandboxes/{sandbox['id']}/fork", {"count": count})
        assert e.value.status == 400 and e.value.error["field"] == "/count"
    with pytest.raises(ApiError) as e:
        api.change(sandbox["id"], "rollback", snapshot_id="snp_" + "0" * 26)
    assert e.value.status in (400, 404)
