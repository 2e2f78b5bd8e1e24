"""The disk: full while a sandbox is saved (S9), and empty again after everything is gone (S10)."""

import os
import subprocess
import time

import pytest

from guest_programs import READ_TREE, WRITE_TREE, python, start_counter
from installation import ApiError

LEFT_MB = 24
DIRTY = "import time; keep = [bytes([i]) * (1 << 20) for i in range(1, 65)]; print(len(keep), flush=True); time.sleep(600)"


@pytest.fixture
def full_disk(installation):
    """Calls of it fill the volume but for a few MiB, or free it again."""
    data = installation.state / "data"
    filler = data / "filler"

    def fill():
        subprocess.run(["btrfs", "filesystem", "sync", str(data)], check=False, capture_output=True)
        fs = os.statvfs(data)
        free = fs.f_bavail * fs.f_frsize
        backing = os.statvfs(installation.state)
        size = min(free, backing.f_bavail * backing.f_frsize) if (installation.state / "data.btrfs").exists() else free
        assert free - size < 1 << 30 or size == free, "the host's own disk is fuller than the volume: cannot be tested here"
        subprocess.run(["fallocate", "-l", str(free - (LEFT_MB << 20)), str(filler)], check=True)

    def free():
        filler.unlink(missing_ok=True)

    yield fill, free
    free()


def dirty_machine(api):
    """A microVM with 64 MiB of memory that cannot be left out."""
    box = api.create(isolation="microvm", resources={"memory_mb": 256})["id"]
    session = api.session(box, "python3", "-c", DIRTY)
    events = iter(api.attach(session["attach"]))
    while next(events)[1]["type"] != "stdout":
        pass
    return box


@pytest.mark.slow
def test_no_space_while_suspending(api, installation, full_disk):
    """S9: a typed error, it runs on, nothing partial is listed."""
    fill, free = full_disk
    box = dirty_machine(api)
    counter = start_counter(api, box)
    try:
        tree = python(api, box, WRITE_TREE, "3").split()[1]
        fill()
        for call in (lambda: api.change(box, "suspend"), lambda: api.snapshot(box, name="no-room"), lambda: api.fork(box, 1)):
            with pytest.raises((ApiError, AssertionError)) as e:
                call()
            text = str(e.value)
            assert "MiB" in text or "space" in text or "No space" in text, text
            assert "internal" not in text, text
            before = counter.count()
            assert api.get(f"/v1/sandboxes/{box}")["state"] == "running"
            counter.wait_count(before + 10)
        assert [s for s in api.get("/v1/snapshots")["items"] if s["state"] == "ready"] == []
        assert os.listdir(installation.state / "data/saved") == []
        assert [name for name in os.listdir(installation.state / "data/tmp") if not name.startswith(".")] == []
        for failed in [b for b in api.live().values() if b["id"] != box]:
            assert failed["state"] == "failed"
            api.delete(failed["id"])
        free()
        assert api.change(box, "suspend")["state"] == "suspended"
        before = counter.count()
        api.change(box, "wake")
        counter.wait_count(before + 5)
        counter.check()
        assert python(api, box, READ_TREE).strip() == tree
    finally:
        free()
        counter.close()
        api.delete(box)
        for snapshot in api.get("/v1/snapshots")["items"]:
            api.delete_snapshot(snapshot["id"])


def footprint(installation):
    """(used bytes, subvolumes, names) of the volume once the file system has cleaned up."""
    data = str(installation.state / "data")
    subprocess.run(["btrfs", "subvolume", "sync", data], check=False, capture_output=True, timeout=120)
    subprocess.run(["btrfs", "filesystem", "sync", data], check=True, capture_output=True)
    subvolumes = subprocess.run(["btrfs", "subvolume", "list", data], check=True, capture_output=True, text=True).stdout.splitlines()
    groups = subprocess.run(["btrfs", "qgroup", "show", data], check=True, capture_output=True, text=True).stdout.splitlines()
    names = sorted(os.path.join(at, name) for at, dirs, files in os.walk(data) for name in dirs + files
                   if "/templates/" not in at or "/vm" in at)
    fs = os.statvfs(data)
    return (fs.f_blocks - fs.f_bfree) * fs.f_frsize, len(subvolumes), len(groups), names


@pytest.mark.slow
def test_everything_comes_back(api, installation, tier):
    """S10: create, suspend, wake, snapshot, fork, rollback, delete, again and again: bytes, subvolumes, quota groups and names are as before."""
    rounds = int(os.environ.get("SPACE_TEST_ROUNDS", "20" if tier == "container" else "8"))
    memory = {} if tier == "microvm" else {"memory": False}

    def walk():
        box = api.create(isolation=tier)["id"]
        api.exec(box, "sh", "-c", "head -c 8000000 /dev/urandom > /workspace/big")
        api.change(box, "suspend", **memory)
        api.change(box, "wake")
        snapshot = api.snapshot(box, **memory)["id"]
        child = api.fork(box, 1, **memory)[0]["id"]
        api.change(box, "rollback", snapshot_id=snapshot)
        copy = api.call("POST", "/v1/sandboxes", {"snapshot_id": snapshot}, headers={"Prefer": "wait=120"})["sandbox"]["id"]
        for which in (box, child, copy):
            api.delete(which)
        api.delete_snapshot(snapshot)

    walk()
    before = footprint(installation)
    for _ in range(rounds):
        walk()
    deadline = time.monotonic() + 60
    while True:
        after = footprint(installation)
        same = after[0] - before[0] < (8 << 20) and after[1] <= before[1] and after[2] <= before[2] and after[3] == before[3]
        if same:
            break
        assert time.monotonic() < deadline, (before[:3], after[:3], set(after[3]) ^ set(before[3]))
        time.sleep(1)
