"""The lifecycle of containers on cgroup v2 alone and a kernel where overlayfs takes attached layers only (before 6.15).

Run by scripts/test-cgroup-v2.sh inside its VM, with the real daemons.
"""

import concurrent.futures
import os
import pathlib
import subprocess
import sys
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

from guest_programs import start_counter  # noqa: E402
from installation import ApiError, Installation  # noqa: E402
from leaks import Inventory  # noqa: E402

TOP = pathlib.Path("/sys/fs/cgroup")
STATE = pathlib.Path(os.environ["SPACE_TEST_STATE"])
OWN = TOP / Inventory.group_name(os.path.realpath(STATE))
DISK_MB = 96

# As root of inside: owners, modes, a hard link, a device that overlayfs makes (whiteout), an opaque directory, a renamed one.
FILL = r"""
set -e
cd /workspace
echo mine > own; echo theirs > theirs; chown 1000:1000 own; chown 65535:7 theirs; chmod 6755 theirs; ln own link; ln -s theirs symlink
chown -h 33:34 symlink; mkfifo -m 640 fifo; mkdir -m 2770 dir; chown 0:1000 dir; truncate -s 3M dir/sparse
rm /etc/motd; rm -r /etc/skel; mkdir /etc/skel; echo new > /etc/skel/new; mv /etc/profile.d /etc/profile.was; echo more >> /etc/passwd
python3 -c 'import os; os.setxattr("own", "user.x", b"1")'
"""
SHOW = r"""
cd /workspace; ls -lnAR --time-style=full-iso . /etc/skel /etc/profile.was; cat own theirs
ls -d /etc/motd /etc/profile.d 2>&1; tail -n 1 /etc/passwd
python3 -c 'import os; print(os.getxattr("own", "user.x"), os.stat("dir/sparse").st_blocks < 100)'
"""


@pytest.fixture(scope="module")
def inst():
    inst = Installation(os.environ["SPACE_BUILD"], STATE)
    inst.up()
    inst.api().delete(inst.api().create(isolation="container")["id"])  # what is made at first use is there
    before, subvolumes = Inventory.take(STATE), listed_subvolumes()
    yield inst
    left = wait_until_empty(lambda: Inventory.take(STATE).beyond(before))
    layers = wait_until_empty(lambda: listed_subvolumes() - subvolumes)
    inst.stop()
    inst.down()
    assert not left and not layers, (left, layers)
    assert not OWN.exists()


@pytest.fixture
def api(inst):
    return inst.api()


@pytest.fixture
def make(api):
    """Makes containers that go at the end, and a list for others that shall."""
    made = []

    def make(**body):
        made.append(api.create(isolation="container", **body)["id"])
        return made[-1]

    make.made = made
    yield make
    for box in made:
        api.delete(box)


def wait_until_empty(look, seconds=60):
    """For what is removed in the background; what is left then."""
    deadline = time.monotonic() + seconds
    while (left := look()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def listed_subvolumes():
    done = subprocess.run(["btrfs", "subvolume", "list", str(STATE / "data")], capture_output=True, text=True, check=True)
    return {line.split(" path ")[1] for line in done.stdout.splitlines()}


def group_of(box):
    """A claimed one has its group under the name of the pool's member."""
    for line in (STATE / "run/sandboxes" / box / "instance.ini").read_text().splitlines():
        if line.startswith("cgroup="):
            return OWN / line.split("=", 1)[1]
    raise AssertionError("no group in the record")


def used(group):
    return int((group / "cpu.stat").read_text().split()[1])


def is_frozen(group):
    return (group / "cgroup.freeze").read_text().strip() == "1" and "frozen 1" in (group / "cgroup.events").read_text()


def sh(api, box, script, **more):
    return api.exec(box, "sh", "-c", script, timeout="120s", **more)


def show(api, box):
    done = sh(api, box, SHOW)
    assert done["exit_code"] == 0, done["stderr"]
    return done["stdout"]


def filled(api, make):
    box = make(user="root", resources={"disk_mb": DISK_MB})
    done = sh(api, box, FILL)
    assert done["exit_code"] == 0, done["stderr"]
    return box, show(api, box)


def from_snapshot(api, make, snapshot):
    box = api.call("POST", "/v1/sandboxes", {"snapshot_id": snapshot}, headers={"Prefer": "wait=120"}, timeout=150)["sandbox"]
    make.made.append(box["id"])
    assert box["state"] == "running", box
    return box["id"]


def no_layer_is_attached():
    points = [line.split()[4] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]
    return not [path for path in points if path.endswith(("/lower", "/upper"))]


def stands_still(api, box, counter):
    group = group_of(box)
    assert api.get(f"/v1/sandboxes/{box}")["state"] == "paused" and is_frozen(group)
    before, usage = counter.count(), used(group)
    time.sleep(0.5)
    assert used(group) == usage and counter.count() - before <= 3


def test_pause_is_the_freezer(inst, api, make):
    box = make()
    counter = start_counter(api, box)
    pid = api.exec(box, "pgrep", "-f", "counter")["stdout"]
    assert [path for path in group_of(box).iterdir() if path.is_dir()], "no groups of sessions: what is frozen has no depth"
    api.change(box, "pause")
    stands_still(api, box, counter)
    inst.kill_daemon("worker")
    stands_still(api, box, counter)
    inst.stop()
    inst.up()
    api = inst.api()
    stands_still(api, box, counter)
    counter.api = api
    counter.renew()
    before = counter.count()
    assert api.change(box, "wake")["state"] == "running" and not is_frozen(group_of(box))
    counter.wait_count(before + 10, 60)
    counter.check()
    assert api.exec(box, "pgrep", "-f", "counter")["stdout"] == pid
    counter.close()


def test_destroy_of_frozen_ones(api, make):
    box = make()
    api.session(box, "sh", "-c", "setsid sleep 1000 & exec sleep 1000", detach=True)
    group = group_of(box)
    api.change(box, "pause")
    start = time.monotonic()
    api.delete(box)
    make.made.remove(box)
    assert not group.exists() and time.monotonic() - start < 15


def test_children_have_the_ids_and_the_limit(api, make):
    """Each in a slot of its own; the layer's ids are those of inside."""
    box, expected = filled(api, make)
    children = [child["id"] for child in api.fork(box, 4, memory=False)]
    make.made.extend(children)
    assert no_layer_is_attached()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda b: show(api, b), [box, *children])) == [expected] * 5
    names = sh(api, children[0], "hostname; cat /etc/machine-id")["stdout"]
    assert names != sh(api, children[1], "hostname; cat /etc/machine-id")["stdout"]
    # On the disk: 0…65535, never a slot's.
    owners = {os.lstat(path).st_uid for child in children for path in (STATE / "data/layers" / child / "upper/workspace").iterdir()}
    assert owners == {0, 1000, 33, 65535}, owners
    done = sh(api, children[0], "head -c 200M /dev/zero > /workspace/big; stat -c %s /workspace/big; rm /workspace/big && echo gone > /workspace/own; cat /workspace/own")
    size = int(done["stdout"].split()[0])
    assert "quota" in done["stderr"] and (DISK_MB - 40) << 20 < size < DISK_MB << 20, done
    assert done["stdout"].endswith("gone\n"), done
    assert show(api, children[1]) == expected and show(api, box) == expected
    # Overlayfs goes on in a copy: what was renamed, whited out, replaced can be so again.
    assert sh(api, children[2], "mv /etc/profile.was /etc/profile.d && rm -r /etc/skel && echo x > /etc/motd && mv /etc/apt /etc/apt2 && ls /etc/apt2")["exit_code"] == 0


def test_suspend_of_the_disk_over_a_restart(inst, make):
    api = inst.api()
    box, expected = filled(api, make)
    for _ in range(2):
        assert api.change(box, "suspend", memory=False)["state"] == "suspended"
        assert not (OWN / box).exists() and not (STATE / "data/layers" / box).exists()
        inst.crash()
        inst.up()
        api = inst.api()
        assert api.get(f"/v1/sandboxes/{box}")["state"] == "suspended"
        make.made.append(api.create(isolation="container")["id"])
        assert api.change(box, "wake")["state"] == "running"
        assert show(api, box) == expected and no_layer_is_attached()
        assert not (STATE / "data/saved" / box).exists()
    for made in make.made:
        api.delete(made)
    make.made.clear()


def test_snapshots_and_rollback(api, make):
    box, expected = filled(api, make)
    snapshots = []
    for state, verb in (("running", None), ("paused", "pause"), ("suspended", "suspend")):
        if verb:
            api.change(box, verb, **({"memory": False} if verb == "suspend" else {}))
        snapshots.append(api.snapshot(box, memory=False)["id"])
        assert api.get(f"/v1/sandboxes/{box}")["state"] == state
        if verb:
            api.change(box, "wake")
        sh(api, box, "echo later >> /workspace/own")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        copies = list(pool.map(lambda s: from_snapshot(api, make, s), snapshots))
    assert show(api, copies[0]) == expected
    assert [sh(api, copy, "cat /workspace/own")["stdout"] for copy in copies] == ["mine\n" + "later\n" * n for n in range(3)]
    assert api.change(box, "rollback", snapshot_id=snapshots[0])["state"] == "running"
    assert show(api, box) == expected
    for snapshot in snapshots:
        api.delete_snapshot(snapshot)
        assert not (STATE / "data/saved" / snapshot).exists()
    assert show(api, box) == expected and show(api, copies[0]) == expected


def test_memory_without_criu_is_refused(inst, api, make):
    box = make()
    counter = start_counter(api, box)
    if inst.tier_status("container").get("save_memory"):
        api.change(box, "suspend")
        api.change(box, "wake")
    else:
        with pytest.raises(ApiError) as e:
            api.change(box, "suspend")
        assert e.value.status == 409 and e.value.error["code"] == "unsupported", e.value.body
    counter.wait_count(counter.count() + 10, 60)
    counter.check()
    counter.close()


def test_claimed_from_a_pool(inst):
    """Named after the pool's member, and everything of the above still finds it."""
    inst.stop()
    inst.more = ["--pool-min", "2", "--pool-max", "4"]
    inst.up()
    api, boxes = inst.api(), []
    pool = STATE / "run/pool"
    try:
        boxes.append(api.create(isolation="container")["id"])  # the pool's key is known then
        deadline = time.monotonic() + 90
        while True:
            _, text, _ = api.request("GET", "/metrics")
            if any(line.startswith("space_pool_ready{") and float(line.rsplit(" ", 1)[1]) >= 2 for line in text.decode().splitlines()):
                break
            assert time.monotonic() < deadline, text.decode()
            time.sleep(0.3)
        answer = api.call("POST", "/v1/sandboxes", {"isolation": "container"}, headers={"Prefer": "wait=60"})
        box = answer["sandbox"]["id"]
        boxes.append(box)
        assert "claim" in [step["name"] for step in answer["operation"]["steps"]], answer
        assert group_of(box).name != box and group_of(box).is_dir()
        name = "space-" + box[-10:]
        assert sh(api, box, "hostname; cat /etc/hostname")["stdout"] == f"{name}\n{name}\n"
        counter = start_counter(api, box)
        sh(api, box, "echo kept > /workspace/file")
        api.change(box, "pause")
        inst.kill_daemon("worker")
        stands_still(api, box, counter)
        api.change(box, "wake")
        counter.wait_count(counter.count() + 5, 60)
        counter.check()
        counter.close()
        child = api.fork(box, 1, memory=False)[0]["id"]
        boxes.append(child)
        assert sh(api, child, "cat /workspace/file; hostname")["stdout"] == f"kept\nspace-{child[-10:]}\n"
        assert api.change(box, "suspend", memory=False)["state"] == "suspended"
        assert api.change(box, "wake")["state"] == "running"
        assert sh(api, box, "cat /workspace/file; hostname")["stdout"] == f"kept\n{name}\n"
        api.change(box, "pause")
    finally:
        for box in boxes:
            api.delete(box)
        inst.stop()
        inst.more = []
        left = list(pool.iterdir()) if pool.is_dir() else []
        inst.up()
    assert left == [] and [path for path in OWN.iterdir() if path.is_dir()] == []
