"""Warm pools with real drivers, in each tier (docs/pools.md): what a claimed sandbox is like, and that nothing stays."""

import concurrent.futures
import contextlib
import json
import os
import re
import sqlite3
import time

import pytest

from conftest import TIERS

POOL = 3

# What a program can see of its sandbox, as far as it should be the same in every sandbox of a template.
LOOK = r"""
import glob, json, os, platform, pwd, resource, stat
def read(path):
    try: return open(path, errors="replace").read()
    except OSError as e: return f"errno {e.errno}"
def listing(path):
    found = {}
    for name in sorted(os.listdir(path)):
        st = os.lstat(os.path.join(path, name))
        found[name] = [stat.filemode(st.st_mode), st.st_uid, st.st_gid]
    return found
status = dict(line.split(":\t", 1) for line in read("/proc/self/status").splitlines() if ":\t" in line)
mounts = []
for line in read("/proc/self/mountinfo").splitlines():
    f = line.split(" ")
    dash = f.index("-")
    mounts.append([f[3] if f[4] != "/" else "", f[4], sorted(f[5].split(",")), f[dash + 1], sorted(f[dash + 3].split(","))])
print(json.dumps({
    "env": dict(os.environ), "cwd": os.getcwd(), "ids": [os.getuid(), os.getgid(), os.getgroups(), pwd.getpwuid(os.getuid()).pw_name],
    "hostname": platform.node(), "files": {p: read(p) for p in ("/etc/hostname", "/etc/hosts", "/etc/machine-id", "/etc/resolv.conf", "/etc/passwd")},
    "etc": listing("/etc"), "root": listing("/"), "tmp": listing("/tmp"), "run": listing("/run"), "workspace": listing("/workspace"),
    "dev": listing("/dev"), "home": listing(os.path.expanduser("~")),
    "limits": {n: resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")},
    "cgroup": read("/proc/self/cgroup"), "mounts": mounts,
    "status": {k: status[k] for k in ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Umask")},
    "sys": {p: read(p) for p in ("/proc/sys/kernel/pid_max", "/proc/sys/kernel/hostname", "/proc/sys/net/ipv4/ip_forward", "/proc/self/oom_score_adj")},
    "signals": [status["SigBlk"], status["SigIgn"]], "nice": os.nice(0), "cpus": len(os.sched_getaffinity(0)),
    "fds": sorted(os.listdir("/proc/self/fd"))[:3], "uname": platform.release(),
    "processes": sorted(read(p).split("\0")[0] for p in glob.glob("/proc/[0-9]*/cmdline")),
}))
"""


def start(installation, members):
    installation.more = ["--pool-min", str(members), "--pool-max", "64"]  # tests make many shapes, and each has its pool
    installation.up()
    for tier in TIERS:
        assert installation.tier_status(tier)["available"], f"the {tier} tier does not work on this host"


@pytest.fixture(scope="module")
def pooled(installation):
    """The shared installation, with pools for the time of this module."""
    installation.stop()
    start(installation, POOL)
    yield installation
    installation.stop()
    assert members(installation) == [], "stopping drains the pools"
    installation.more = []
    installation.up()


@pytest.fixture(params=TIERS)
def tier(request):
    return request.param


def members(installation):
    path = installation.state / "run" / "pool"
    return sorted(os.listdir(path)) if path.is_dir() else []


def create(installation, tier, wait=120, **body):
    """(sandbox, whether it came from a pool)"""
    answer = installation.api().call("POST", "/v1/sandboxes", {"isolation": tier, **body}, headers={"Prefer": f"wait={wait}"},
                                     timeout=wait + 30)
    assert answer["sandbox"]["state"] == "running", answer
    return answer["sandbox"], any(s["name"] == "claim" for s in answer["operation"]["steps"])


def depth(installation, tier, **resources):
    """Ready members of the tier's pool that has the most, as /metrics says."""
    _, text, _ = installation.api().request("GET", "/metrics")
    rows = [line for line in text.decode().splitlines() if line.startswith("space_pool_ready{") and f'"{tier}"' in line]
    return max([float(line.rsplit(" ", 1)[1]) for line in rows], default=0)


def fill(installation, tier, n=POOL):
    """Makes a first use if need be, and waits for the pool. A heartbeat (5 s) tells of it."""
    api = installation.api()
    if depth(installation, tier) < n:
        box, _ = create(installation, tier)
        api.delete(box["id"])
    deadline = time.monotonic() + 120
    while depth(installation, tier) < n:
        assert time.monotonic() < deadline, (tier, depth(installation, tier), members(installation))
        time.sleep(0.2)


def look(installation, box, **more):
    answer = installation.api().exec(box["id"], "python3", "-c", LOOK, **more)
    assert answer["exit_code"] == 0, answer
    text = answer["stdout"]
    found = json.loads(text)
    name, machine_id = found["hostname"], found["files"]["/etc/machine-id"].strip()
    assert re.fullmatch("[0-9a-f]{32}", machine_id) and name == "space-" + box["id"][-10:], (machine_id, name)
    assert found["files"]["/etc/hostname"] == name + "\n"
    # these differ from any sandbox to any other: names, the block of uids, descriptors of the worker, commands counted
    for own, same in ((machine_id, "MACHINE-ID"), (name, "NAME"), (r"(uid|gid)=\d+", r"\1=SLOT"), (r"/proc/self/fd/\d+", "FD"),
                      (r"/s\d+\\n", r"/sN\\n")):
        text = re.sub(own, same, text)
    return json.loads(text)


@pytest.mark.parametrize("body", [
    {}, {"env": {"LANG": "C", "MINE": "x y"}}, {"user": "root"}, {"user": "root", "env": {"PATH": "/bin:/usr/bin", "HOME": "/tmp"}},
], ids=["plain", "env", "user", "user-env"])
def test_claimed_is_like_made(pooled, tier, body):
    """L14: and one of another shape is not claimed."""
    api = pooled.api()
    fill(pooled, tier, 1)
    claimed, from_pool = create(pooled, tier, **body)
    assert from_pool
    # A shape of its own has no pool: one that differs by a process, which nothing of the above shows.
    pids = api.get(f"/v1/sandboxes/{claimed['id']}")["resources"]["pids"]
    made, from_pool = create(pooled, tier, resources={"pids": pids - 1 - len(json.dumps(body)) % 97}, **body)
    assert not from_pool
    try:
        ours, theirs = look(pooled, claimed), look(pooled, made)
        for key in theirs:
            # sizes of the file systems stand in the mount options of neither tier
            assert ours[key] == theirs[key], key
        assert ours["env"].get("MINE") == body.get("env", {}).get("MINE")
        clocks = api.exec(claimed["id"], "date", "+%s.%N")["stdout"]
        assert abs(float(clocks) - time.time()) < 1.5
    finally:
        api.delete(claimed["id"])
        api.delete(made["id"])


def test_unknown_user_fails_as_without_a_pool(pooled, tier):
    fill(pooled, tier, 1)
    status, answer, _ = pooled.api().request("POST", "/v1/sandboxes", {"isolation": tier, "user": "nobody-here"},
                                             headers={"Prefer": "wait=120"}, timeout=150)
    assert status == 503 and "nobody-here" in answer["operation"]["error"]["message"], answer
    pooled.api().delete(answer["sandbox"]["id"])


def test_claimed_ones_share_no_secret(pooled, tier):
    """S3: members of a pool, claimed."""
    api = pooled.api()
    fill(pooled, tier, 3)
    boxes = [create(pooled, tier) for _ in range(3)]
    assert all(from_pool for _, from_pool in boxes)
    script = "import os,uuid; print(os.urandom(16).hex(), uuid.uuid4(), open('/proc/sys/kernel/random/uuid').read().strip())"
    seen = []
    for box, _ in boxes:
        seen += api.exec(box["id"], "python3", "-c", script)["stdout"].split()
    assert len(set(seen)) == 9
    for box, _ in boxes:
        api.delete(box["id"])


def test_members_are_in_no_list(pooled, tier):
    fill(pooled, tier, 1)
    records = [(pooled.state / "run" / "pool" / m / "instance.ini").read_text() for m in members(pooled)]
    ids = {re.search(r"^id=(\w+)", record, re.M).group(1) for record in records}
    assert ids and not ids & set(pooled.api().live())


def test_dead_members_make_no_create_fail(pooled, tier):
    """L13, L14: the dead are not claimed."""
    fill(pooled, tier)
    for member in members(pooled):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, AttributeError):  # one that is just being made, or goes
            text = (pooled.state / "run" / "pool" / member / "instance.ini").read_text()
            os.kill(int(re.search(r"^pid=(\d+)", text, re.M).group(1)), 9)
    box, _ = create(pooled, tier)
    assert pooled.api().exec(box["id"], "echo", "alive")["stdout"] == "alive\n"
    pooled.api().delete(box["id"])


def test_killed_worker_leaves_no_members(pooled, tier):
    """L13: members of a dead worker are replaced, not doubled."""
    fill(pooled, tier)
    box, from_pool = create(pooled, tier)
    assert from_pool
    before = set(members(pooled))
    pooled.kill_daemon("worker")
    deadline = time.monotonic() + 60
    while before & set(members(pooled)):
        assert time.monotonic() < deadline, before & set(members(pooled))
        time.sleep(0.1)
    assert pooled.api().exec(box["id"], "echo", "alive")["stdout"] == "alive\n"
    pooled.api().delete(box["id"])


@pytest.mark.slow
def test_burst_of_creates(pooled, tier):
    """L13: A hundred at once (of VMs fifty: without KVM each boots on two cores), where ten are ready: none fails."""
    n = 100 if tier == "container" else 50
    pooled.stop()
    start(pooled, 10)
    api = pooled.api()
    fill(pooled, tier, 10)
    with concurrent.futures.ThreadPoolExecutor(100) as threads:
        boxes = list(threads.map(lambda _: create(pooled, tier, wait=300), range(n)))
    assert sum(from_pool for _, from_pool in boxes) >= 10
    with concurrent.futures.ThreadPoolExecutor(10) as threads:
        names = list(threads.map(lambda b: api.exec(b[0]["id"], "cat", "/etc/hostname")["stdout"].strip(), boxes))
    assert len(set(names)) == n
    with concurrent.futures.ThreadPoolExecutor(20) as threads:
        list(threads.map(lambda b: api.delete(b[0]["id"], 300), boxes))


def test_down_takes_members_away(pooled):
    for tier in TIERS:
        fill(pooled, tier, 1)
    pooled.crash()
    assert members(pooled)
    pooled.down()
    assert members(pooled) == []
    pooled.up()


def test_cpu_time_counts_after_the_control_group_has_changed(pooled):
    """A claimed sandbox has the member's control group; after a rollback it has one of its own, and what it does there is seen."""
    api = pooled.api()
    fill(pooled, "container", 1)
    box, from_pool = create(pooled, "container")
    assert from_pool

    def cpu_milli():
        with contextlib.closing(sqlite3.connect(f"file:{pooled.state}/server/space.db?mode=ro", uri=True)) as db:
            return db.execute("SELECT cpu_milli FROM sandboxes WHERE id = ?", [box["id"]]).fetchone()[0]

    def burn():
        """A loop is seen to use a core, or what it gets of one."""
        api.session(box["id"], "sh", "-c", "while :; do :; done", detach=True)
        deadline = time.monotonic() + 40
        while (cpu_milli() or 0) < 10000:
            assert time.monotonic() < deadline, f"a busy sandbox counts as idle: {cpu_milli()}"
            time.sleep(0.5)

    try:
        burn()
        snapshot = api.snapshot(box["id"], memory=False)
        assert api.change(box["id"], "rollback", snapshot_id=snapshot["id"])["state"] == "running"
        time.sleep(11)  # what was seen of the old one is over
        burn()
        api.delete_snapshot(snapshot["id"])
    finally:
        api.delete(box["id"])
