"""Warm pools of a worker with the fake driver: killed and failing at every step of a fill and a claim (docs/pools.md)."""

import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

from fake_server import DIGEST_HEX, output
from worker_fixtures import make_rig

FILL = ["pool.dirs", "pool.created", "pool.before_hold", "pool.held"]
CLAIM = ["pool.before_claim", "pool.claimed", "pool.resumed", "pool.before_ready", "pool.ready"]
SOURCE = pathlib.Path(__file__).resolve().parents[2] / "src" / "node"


@pytest.fixture
def rig():
    for server, worker in make_rig():
        worker.stop()
        worker.options = ["--pool-min", "3", "--pool-max", "3"]
        worker.start()
        yield server, worker
        worker.options = ["--pool-max", "0"]


def members(worker):
    return sorted(os.listdir(worker.state / "run" / "pool"))


def failpoint(worker, text):
    new = worker.state / "failpoints.set"
    new.write_text(text)
    new.rename(worker.state / "failpoints")


def create(server):
    return server.wait_state(server.want(), "running")


def steps(report):
    return [step["name"] for step in report["steps"]]


def pool(server):
    """The only pool as the worker has registered it last."""
    return (server.registered[-1]["pools"] or [{}])[0]


def wait_full(worker, n=3):
    """The pool has n whole members, as far as the run directories tell: the fake driver's record says started."""
    deadline = time.monotonic() + 20
    while True:
        whole = [m for m in members(worker) if "started=true" in read(worker.state / "run" / "pool" / m / "instance.ini")]
        if len(whole) >= n:
            time.sleep(0.3)  # link, identity and the ready command of the last one
            return
        assert time.monotonic() < deadline, worker.log()[-3000:]
        time.sleep(0.02)


def read(path):
    try:
        return path.read_text()
    except OSError:
        return ""


def processes(worker):
    return subprocess.run(["pgrep", "-f", str(worker.state / "run" / "pool")], capture_output=True, text=True, check=False).stdout.split()


def wait_empty(worker):
    deadline = time.monotonic() + 20
    while members(worker) or processes(worker):
        assert time.monotonic() < deadline, (members(worker), processes(worker), worker.log()[-3000:])
        time.sleep(0.05)


def test_every_failpoint_is_in_a_list():
    names = re.findall(r'sp_failpoint\("(pool\.\w+)"', "".join(p.read_text() for p in SOURCE.glob("pool*.c")))
    assert sorted(names) == sorted(FILL + CLAIM + ["pool.before_destroy"])


def test_second_create_is_a_claim(rig):
    server, worker = rig
    assert "claim" not in steps(create(server))
    wait_full(worker)
    report = create(server)
    assert steps(report) == ["claim", "resume", "identity"]
    wait_full(worker)
    server.wait_for("numbers", lambda: [pool(server).get(n) for n in ("hits", "misses", "ready")] == [1, 1, 3])
    assert pool(server)["high"] == 3 and pool(server)["template_digest"] == f"sha256:{DIGEST_HEX}"
    assert not any(member in str(server.registered[-1]["sandboxes"]) for member in members(worker))


def test_claimed_sandbox_survives_a_restart(rig):
    server, worker = rig
    create(server)
    wait_full(worker)
    box = create(server)["id"]
    pid = worker.sandbox_pids(box)
    worker.kill()
    worker.start()
    server.wait_for("the sandbox", lambda: box in server.registered[-1]["sandboxes"])
    assert worker.sandbox_pids(box) == pid
    session = server.session(box, "/bin/sh", "-c", "hostname; echo $FROM_SANDBOX")
    stream = worker.attach(session)
    assert output(list(stream.events())) == b"box\nyes\n"
    stream.close()


@pytest.mark.parametrize("point", FILL)
def test_killed_while_filling(rig, point):
    server, worker = rig
    failpoint(worker, f"{point} kill\n")
    server.want()
    assert worker.process.wait(20) == -signal.SIGKILL
    worker.options = ["--pool-max", "0"]
    worker.start()
    wait_empty(worker)


@pytest.mark.parametrize("point", CLAIM)
def test_killed_while_claiming(rig, point):
    """L13: at each step of a claim; nothing is adopted twice or left over."""
    server, worker = rig
    create(server)
    wait_full(worker)
    failpoint(worker, f"{point} kill\n")
    box = server.want()
    assert worker.process.wait(20) == -signal.SIGKILL
    worker.options = ["--pool-max", "0"]
    worker.start()
    server.wait_state(box, "running")  # taken over where it was marked ready, else made anew
    assert sorted(os.listdir(worker.state / "run" / "sandboxes")) == sorted(server.rows)
    for each in list(server.rows):
        server.want(each, "deleted")
        server.wait_state(each, "deleted")
    wait_empty(worker)


@pytest.mark.parametrize("point", CLAIM)
def test_failing_claims_make_no_create_fail(rig, point):
    server, worker = rig
    create(server)
    wait_full(worker)
    failpoint(worker, f"{point} error 9\n")
    report = create(server)
    assert "claim" not in steps(report) and "ready" in steps(report), report
    failpoint(worker, "")
    wait_full(worker)
    assert "claim" in steps(create(server))


@pytest.mark.parametrize("point", FILL + ["pool.before_destroy"])
def test_failing_fills_leave_nothing(rig, point):
    server, worker = rig
    failpoint(worker, f"{point} error 2\n")
    create(server)
    wait_full(worker)  # after the pause for failures
    assert worker.stop() == 0
    if point == "pool.before_destroy":  # what cannot be removed when the worker stops is for the next one
        worker.options = ["--pool-max", "0"]
        worker.start()
        wait_empty(worker)
    assert members(worker) == [] and processes(worker) == []


def test_dead_members_are_not_claimed(rig):
    server, worker = rig
    create(server)
    wait_full(worker)
    for member in members(worker):
        text = read(worker.state / "run" / "pool" / member / "instance.ini")
        os.kill(int(re.search(r"^pid=(\d+)", text, re.M).group(1)), signal.SIGKILL)
    create(server)
    wait_full(worker)
    assert "claim" in steps(create(server))


def test_stopping_drains(rig):
    server, worker = rig
    create(server)
    wait_full(worker)
    began = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - began < 3
    assert members(worker) == [] and processes(worker) == []


def test_template_with_members_only_is_removed(rig):
    server, worker = rig
    box = create(server)["id"]
    wait_full(worker)
    server.want(box, "deleted")
    server.wait_state(box, "deleted")
    folder = worker.state / "data" / "templates" / DIGEST_HEX
    server.deleted_templates = [f"sha256:{DIGEST_HEX}"]
    server.wait_for("a shorter list of templates", lambda: server.registered[-1]["templates"] == [], timeout=20)
    assert not folder.exists()
    wait_empty(worker)


def test_another_agent_makes_other_members(rig):
    """L14: what was made by another agent is not claimed."""
    server, worker = rig
    agent = worker.state / "agent"
    worker.stop()
    agent.write_bytes((worker.build / "agent" / "space-agent").read_bytes())
    agent.chmod(0o755)
    worker.options += ["--agent", str(agent)]
    worker.start()
    create(server)
    wait_full(worker)
    old = set(members(worker))
    os.utime(agent)
    deadline = time.monotonic() + 20
    while old & set(members(worker)) or len(members(worker)) < 3:
        assert time.monotonic() < deadline, (old, members(worker))
        time.sleep(0.05)
