"""The cases L… (lifecycle, races, leaks, crash recovery) that no older test shows. docs/cases.md lists all of them with their tests."""

import concurrent.futures
import os
import pathlib
import re
import secrets
import select
import signal
import subprocess
import time

import pytest

from conftest import BUILD
from guest_programs import start_counter
from installation import ApiError
from test_pools import POOL, create, depth, fill, members, start
from tiny import tiny_installation

# argv: the two halves of a text. Prints every place where root of the sandbox finds it whole.
SEARCH = r"""
import glob, os, sys
needle = (sys.argv[1] + sys.argv[2]).encode()
me = f"/proc/{os.getpid()}/"
places = [p for pattern in ("/proc/[0-9]*/environ", "/proc/[0-9]*/cmdline", "/proc/cmdline", "/proc/self/mountinfo") for p in glob.glob(pattern)]
for top in ("/etc", "/run", "/tmp", "/var", "/workspace", "/home", "/dev"):
    for at, _, files in os.walk(top):
        places += [os.path.join(at, name) for name in files]
for path in places:
    try:
        if not path.startswith("/proc") and not os.path.isfile(path):
            continue
        with open(path, "rb") as f:
            if needle in f.read(1 << 22):
                print(path)
    except OSError:
        pass
print("searched", len(places))
"""


def slots(installation):
    """{id: slot} as the worker holds them."""
    return {s["id"]: s["slot"] for s in installation.inventory()["sandboxes"]}


def wait_until(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"it did not happen: {what}"
        time.sleep(0.02)
    return value


def gone(api, box):
    status, _, _ = api.request("GET", f"/v1/sandboxes/{box}")
    return status == 404


def record(installation, box):
    return installation.state / "run/sandboxes" / box / "instance.ini"


def pid_of(installation, box):
    return int(re.search(r"^pid=(\d+)", record(installation, box).read_text(), re.M).group(1))


def kill_and_wait(pid):
    fd = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        assert select.select([fd], [], [], 20)[0]
    finally:
        os.close(fd)


def start_again(installation):
    if installation.process.poll() is not None:
        installation.up()


@pytest.mark.slow
def test_L4_a_key_is_one_sandbox_also_over_a_crash_and_the_guest_never_sees_it(api, installation, tier):
    """L4: the response is lost because the server is killed; the repeat gives the same sandbox. The key is nowhere inside."""
    key = "cases-" + secrets.token_hex(16)
    post = {"Idempotency-Key": key}
    first = api.call("POST", "/v1/sandboxes", {"isolation": tier}, headers=post)
    installation.kill_daemon("server")
    api = installation.api()
    again = api.call("POST", "/v1/sandboxes", {"isolation": tier}, headers={**post, "Prefer": "wait=60"})
    box = first["sandbox"]["id"]
    try:
        assert again["sandbox"]["id"] == box and again["operation"]["id"] == first["operation"]["id"]
        assert again["sandbox"]["state"] == "running" and set(api.live()) == {box}
        with pytest.raises(ApiError) as e:
            api.call("POST", "/v1/sandboxes", {"isolation": tier, "name": "other"}, headers=post)
        assert e.value.status == 409 and e.value.error["code"] == "idempotency_conflict"
        middle = len(key) // 2
        found = api.exec(box, "python3", "-c", SEARCH, key[:middle], key[middle:], user="root", timeout="60s")["stdout"].splitlines()
        assert len(found) == 1 and int(found[0].split()[1]) > 20, found
    finally:
        api.delete(box)


def test_L6_leases_are_read_again_before_any_is_given_out(api, installation, tier):
    """L6: after a restart of everything no new sandbox gets a block of ids that a living one has."""
    made = [api.create(isolation=tier)["id"] for _ in range(2)]
    try:
        before = slots(installation)
        assert len({before[box] for box in made}) == 2
        installation.crash()
        installation.up()
        api = installation.api()
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            made += pool.map(lambda _: api.create(isolation=tier)["id"], range(2))
        after = slots(installation)
        assert [after[box] for box in made[:2]] == [before[box] for box in made[:2]]
        assert len({after[box] for box in made}) == 4, after
        for box in made:
            assert api.exec(box, "echo", box)["stdout"] == box + "\n"
    finally:
        start_again(installation)
        for box in made:
            installation.api().delete(box)


def test_L6_a_pid_that_is_another_processs_now_is_no_sandbox(api, installation, tier):
    """L6: a sandbox dies while no worker lives, and its pid is given to somebody else: that one is neither adopted nor killed."""
    box = api.create(isolation=tier)["id"]
    installation.crash()
    with subprocess.Popen(["sleep", "600"]) as stranger:
        try:
            path = record(installation, box)
            text = path.read_text()
            kill_and_wait(pid_of(installation, box))
            path.write_text(re.sub(r"(?m)^pid=\d+", f"pid={stranger.pid}", text))
            installation.up()
            api = installation.api()
            wait_until(lambda: api.live()[box]["state"] == "failed", "the dead one is reported")
            assert api.live()[box]["state_reason"] and stranger.poll() is None
            api.delete(box)
            assert stranger.poll() is None, "a process that was never ours was killed"
        finally:
            start_again(installation)
            stranger.kill()


def passed(installation, name):
    """Whether the failpoint was reached."""
    return name not in installation.failpoint_file.read_text()


def test_L8_the_lease_goes_last(api, installation, tier):
    """L8: while the old process may live, and until everything of it is gone, nobody gets its block of ids. (Network leases: issue 7.)"""
    box = api.create(isolation=tier)["id"]
    pid, slot = pid_of(installation, box), slots(installation)[box]
    fd = os.pidfd_open(pid)
    others = []
    try:
        installation.failpoint("destroy.before_instance delay:3000", "destroy.before_run_dir delay:3000")
        operation = api.call("DELETE", f"/v1/sandboxes/{box}")["operation"]["id"]
        wait_until(lambda: passed(installation, "destroy.before_instance"), "the first step of the deletion")
        assert slots(installation)[box] == slot and not select.select([fd], [], [], 0)[0]
        others.append(api.create(isolation=tier)["id"])
        wait_until(lambda: passed(installation, "destroy.before_run_dir"), "the last step of the deletion")
        assert select.select([fd], [], [], 0)[0], "the process lives after its resources were taken away"
        assert slots(installation).get(box) == slot, "the lease went before the rest"
        others.append(api.create(isolation=tier)["id"])
        assert api.follow(operation)["state"] == "succeeded"
        held = slots(installation)
        assert box not in held and slot not in [held[other] for other in others] and len({held[o] for o in others}) == 2
    finally:
        os.close(fd)
        installation.failpoint()
        for other in others:
            api.delete(other)


@pytest.mark.slow
def test_L11_what_is_due_expires_although_nobody_lived_to_see_it(api, installation):
    """L11: the daemons are dead when the times run out; whoever starts next finds it in the database."""
    idle = {tier: api.create(isolation=tier, idle_timeout="10s", on_idle="pause")["id"] for tier in ("container", "microvm")}
    short = api.create(isolation="container", max_lifetime="10s")["id"]
    kept = api.create(isolation="container")["id"]
    begun = time.monotonic()
    try:
        installation.crash()
        time.sleep(max(0.0, 11 - (time.monotonic() - begun)))
        installation.up()
        api = installation.api()
        wait_until(lambda: short not in api.live() and all(api.live()[box]["state"] == "paused" for box in idle.values()),
                   f"expiry of {idle}, {short}", 40)
        assert gone(api, short) and api.live()[kept]["state"] == "running"
        for box in idle.values():
            api.change(box, "wake")
            assert api.exec(box, "echo", "on")["stdout"] == "on\n"
    finally:
        start_again(installation)
        for box in installation.api().live():
            installation.api().delete(box)


SILENT = "import time; time.sleep(120)"
# Leaves a process that computes and belongs to no command any more.
SPIN = "import os, sys\nif os.fork() == 0:\n    os.setsid()\n    for fd in (0, 1, 2): os.close(fd)\n    while True: pass\n"


@pytest.mark.slow
def test_L12_what_is_busy_is_not_idle_and_says_why(api, installation, tier):
    """L12: a silent command, a silent execution, an attached client and mere computing each count, and GET shows which; unused is idle."""
    names = ("unused", "session", "execution", "attached", "computing")
    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        boxes = dict(zip(names, pool.map(lambda _: api.create(isolation=tier, idle_timeout="10s", on_idle="pause", resources={"memory_mb": 192})["id"], names)))
        try:
            api.session(boxes["session"], "python3", "-c", SILENT, detach=True)
            running = pool.submit(api.exec, boxes["execution"], "python3", "-c", SILENT, timeout="60s")
            watched = api.session(boxes["attached"], "python3", "-c", SILENT)
            stream = api.attach(watched["attach"])
            api.session(boxes["computing"], "python3", "-c", SPIN, detach=True)
            begun = time.monotonic()
            wait_until(lambda: api.live()[boxes["unused"]]["state"] == "paused", "the unused one is idle", 60)
            while time.monotonic() - begun < 22:  # two idle times and two reports of activity
                rows = api.live()
                states = {name: rows[boxes[name]]["state"] for name in names[1:]}
                assert set(states.values()) == {"running"}, (states, rows)
                time.sleep(0.2)
            busy = {name: api.get(f"/v1/sandboxes/{boxes[name]}")["busy"] for name in names}
            assert busy["session"]["sessions"] == 1 and busy["execution"]["sessions"] == 1, busy
            assert busy["attached"]["attached"] == 1 and busy["attached"]["sessions"] == 1, busy
            assert busy["computing"]["cpu"] > 5 and busy["computing"]["sessions"] == busy["computing"]["executions"] == 0, busy
            assert busy["session"]["cpu"] < 5 and not any(busy["unused"].values()), busy
            stream.close()
        finally:
            for box in boxes.values():
                api.delete(box)
    with pytest.raises(ApiError):
        running.result()


def test_L15_running_means_that_a_command_has_run(api, installation, tier):
    """L15: whoever sees `running` for the first time can run something at once; before that nobody is told so, and a wait that is over says so."""
    installation.failpoint("create.before_mark delay:2500")
    try:
        answer = api.call("POST", "/v1/sandboxes", {"isolation": tier}, headers={"Prefer": "wait=1"})
        box = answer["sandbox"]["id"]
        if not passed(installation, "create.before_mark") or answer["operation"]["state"] != "succeeded":
            assert answer["sandbox"]["state"] != "running" and answer["operation"]["state"] in ("pending", "running"), answer
        seen = []
        while not seen or seen[-1] != "running":
            seen.append(api.get(f"/v1/sandboxes/{box}")["state"])
            assert seen[-1] in ("creating", "pending", "running"), seen
        assert seen[0] != "running", "the delay was not seen: this test has shown nothing"
        assert api.exec(box, "echo", "x")["stdout"] == "x\n"
        api.delete(box)
        for _ in range(4):
            answer = api.call("POST", "/v1/sandboxes", {"isolation": tier})
            box = answer["sandbox"]["id"]
            assert answer["sandbox"]["state"] != "running"
            wait_until(lambda: api.get(f"/v1/sandboxes/{box}")["state"] == "running", "it runs")  # pylint: disable=cell-var-from-loop
            assert api.exec(box, "echo", "x")["stdout"] == "x\n"
            api.delete(box)
    finally:
        installation.failpoint()
        for box in api.live():
            api.delete(box)


def doctor_repair(inst):
    """What `space doctor --repair` says it has mended."""
    done = subprocess.run([inst.space, "doctor", "--repair", "--state", str(inst.state)], capture_output=True, text=True, timeout=120,
                          env=inst.env(), check=False)
    return [line for line in done.stdout.splitlines() if line.startswith("mended")]


@pytest.mark.slow
def test_L16_a_living_siblings_sandboxes_are_nobodys_orphans(api, installation, tier):
    """L16: two installations on one host: workers that start, repairs, and the taking down of one leave the other's alone."""
    box = api.create(isolation=tier)["id"]
    counter = start_counter(api, box)
    sibling = tiny_installation(BUILD)
    try:
        other = sibling.api().create()["id"]
        assert other not in slots(installation) and box not in slots(sibling)
        for inst in (installation, sibling):
            inst.kill_daemon("worker")
        for inst in (installation, sibling):
            assert doctor_repair(inst) == []
        assert sibling.api().exec(other, "echo", "there")["stdout"] == "there\n"
        counter.wait_count(counter.count() + 5)
        sibling.crash()
        sibling.down()  # takes down everything of its own
        assert not list((pathlib.Path(sibling.state) / "run/sandboxes").glob("*"))
        counter.wait_count(counter.count() + 5)
        counter.check()
        assert api.exec(box, "echo", "here")["stdout"] == "here\n"
    finally:
        counter.close()
        if sibling.process.poll() is None:
            sibling.stop()
            sibling.down()
        api.delete(box)


# --- with pools; last in this module, because the pools stay until its end
@pytest.fixture(scope="module")
def pooled(installation):
    """The shared installation with pools. What its worker cannot drain in time when it stops, the next one destroys (docs/pools.md)."""
    installation.stop()
    start(installation, POOL)
    yield installation
    installation.stop()
    installation.more = []
    installation.up()
    wait_until(lambda: not members(installation), "the pools are gone")


def test_L14_what_is_still_being_made_is_not_claimed(pooled, tier):
    """L14: there are members, but none that has run a command yet: a create gets a sandbox of its own, and it works."""
    fill(pooled, tier, POOL)
    boxes = []
    try:
        ready = set(members(pooled))
        pooled.failpoint("pool.created delay:6000 20")
        while depth(pooled, tier) or not boxes:
            box, from_pool = create(pooled, tier)
            boxes.append(box["id"])
            if not from_pool:
                break
        unready = wait_until(lambda: set(members(pooled)) - ready, "a refill begins", 30)
        box, from_pool = create(pooled, tier)
        boxes.append(box["id"])
        assert unready & set(members(pooled)) and not from_pool, "something half made was claimed, or the refill was over: nothing is shown"
        assert {pooled.api().exec(b, "echo", b)["stdout"].strip() for b in boxes} == set(boxes)
    finally:
        pooled.failpoint()
        for box in boxes:
            pooled.api().delete(box)


@pytest.mark.slow
@pytest.mark.parametrize("shape,look,expected", [
    ({"disk_mb": 1536}, "df -m --output=size /workspace | tail -n 1", (1300, 1536)),
    ({"memory_mb": 320}, "echo $(( $(grep MemTotal /proc/meminfo | tr -dc 0-9) / 1024 ))", (230, 320)),
], ids=["disk", "memory"])
def test_L14_another_shape_is_another_pool(pooled, tier, shape, look, expected):
    """L14: members of the wrong shape are there, ready, and not claimed."""
    fill(pooled, tier, 1)
    box, from_pool = create(pooled, tier, resources=shape)
    try:
        assert not from_pool and box["resources"] == {**box["resources"], **shape}
        if tier == "microvm":  # a container sees the host's sizes; its limits: test_inside
            size = int(pooled.api().exec(box["id"], "sh", "-c", look)["stdout"])
            assert expected[0] <= size <= expected[1], size
    finally:
        pooled.api().delete(box["id"])
