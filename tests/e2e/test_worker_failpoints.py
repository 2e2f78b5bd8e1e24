"""Each step of each action fails once, and dies once: afterwards a sandbox is in the old or in the new state, the report says so
truthfully, its command has lost nothing, and nothing is left over (docs/failpoints.md, docs/lifecycle.md)."""

import os
import pathlib
import re
import time

import pytest

from fake_server import make_id, output
from worker_fixtures import make_rig, rig  # noqa: F401

ROOT = pathlib.Path(__file__).resolve().parents[2]
NAMES = sorted({name for path in (ROOT / "src" / "node").glob("*.c")
                for name in re.findall(r'sp_failpoint\(\s*"([^"]+)"', path.read_text())})
COUNTER = ["sh", "-c", "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done"]
# Which scenario meets a failpoint that is not named after its own.
SCENARIOS = {"still.marked": "pause", "still.held": "pause", "still.before_pause": "pause", "still.paused": "pause",
             "still.before_resume": "resume", "still.resumed": "resume", "still.before_release": "resume", "still.released": "resume",
             "snapshot.before_copy": "snapshot_suspended", "snapshot.copied": "snapshot_suspended",
             "snapshot.before_remove": "snapshot_remove", "snapshot.removed": "snapshot_remove"}
NAMES = [n for n in NAMES if not n.startswith("pool.")]


class Case:
    """One sandbox with a counting command, and what happens to it."""

    def __init__(self, server, worker, box=None):
        self.server, self.worker = server, worker
        self.box = box or server.want()
        self.session, self.events = None, []
        self.snapshots = []

    def start(self):
        self.server.wait_state(self.box, "running")
        self.session = self.server.session(self.box, *COUNTER)
        self.follow(3)
        return self

    def follow(self, count):
        """Reads on where it left off: some more numbers."""
        attachment = self.worker.attach(self.session, last_event_id=self.events[-1].id if self.events else None)
        assert attachment.status == 200
        want = len(output(self.events).split()) + count
        for event in attachment.events():
            self.events.append(event)
            if len(output(self.events).split()) >= want:
                break
        attachment.close()
        numbers = [int(n) for n in output(self.events).split()]
        assert numbers == list(range(1, len(numbers) + 1)), "lost or doubled"

    def presence(self):
        items = self.worker.call("GET", "/node/v1/inventory")[1]["sandboxes"]
        return next((s["presence"] for s in items if s["id"] == self.box), "absent")

    def snapshot(self, **fields):
        snapshot = self.server.want_snapshot(self.box, **fields)
        self.snapshots.append(snapshot)
        return snapshot

    def report(self, generation, timeout=20):
        """The last word about a generation, which may come from a later worker."""
        def last():
            reports = [r for r in self.server.observed if r["id"] == self.box and r["generation"] == generation]
            return reports and reports[-1]
        return self.server.wait_for(f"a word about generation {generation}", last, timeout)

    def end(self):
        server, worker = self.server, self.worker
        for snapshot in self.snapshots:
            server.want_snapshot(snapshot_id=snapshot, desired="deleted")
        server.want(self.box, "deleted")
        server.wait_state(self.box, "deleted")
        for snapshot in self.snapshots:
            server.wait_snapshot(snapshot, "deleted")


def nothing_left(worker):
    for folder in ("run/sandboxes", "run/fake", "data/saved", "data/tmp"):
        path = worker.state / folder
        left = sorted(set(os.listdir(path)) - {".lock"}) if path.exists() else []
        assert left == [], folder
    left = [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != worker.process.pid and names_it(pid, worker.state)]
    assert left == []


def names_it(pid, state):
    try:
        return str(state).encode() in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def provoke(case, name, how, act):
    """Does act with the failpoint set; starts a new worker when it died. True: it died."""
    case.worker.failpoints(f"{name} {how}\n")
    act()
    if how == "kill":
        case.worker.wait_dead()
        case.worker.start()
        return True
    deadline = time.monotonic() + 20
    while (case.worker.state / "failpoints").read_text():
        assert time.monotonic() < deadline, f"{name} was not met"
        time.sleep(0.01)
    return False


def change(name, how, case, desired, old, new, **fields):
    """A change of state goes wrong; it ends in the old or the new state, and says which."""
    provoke(case, name, how, lambda: case.server.want(case.box, desired, **fields))
    generation = case.server.generation(case.box)
    report = case.report(generation)
    assert report["state"] in (old, new, "paused"), report
    deadline = time.monotonic() + 10
    while (presence := case.presence()) != report["state"]:
        assert time.monotonic() < deadline, f"it is {presence}, but was reported as {report}"
        time.sleep(0.02)
        report = case.report(generation)
    if how == "kill":  # a restarted worker goes on with what is wanted
        assert report["state"] == new and "error" not in report, report
    if "error" in report:
        assert "failpoint" in report["error"]["message"]
        case.server.want(case.box, report["state"])
    if report["state"] == "suspended":
        assert case.box in case.worker.saved()
    elif case.box in case.worker.saved():
        pytest.fail("a saved form is left")
    return report


def to_running(case):
    report = case.server.change(case.box, "running")
    assert report["state"] == "running" and "error" not in report, report
    assert not (case.worker.state / "run" / "sandboxes" / case.box / "held").exists()


def do_create(name, how, server, worker):
    case = Case(server, worker, make_id("sbx"))
    provoke(case, name, how, lambda: server.want(case.box))
    if how == "kill":
        server.wait_state(case.box, "running")
        case.start()
    else:
        assert "failpoint" in server.wait_state(case.box, "failed")["error"]["message"]
        assert not (worker.state / "run" / "sandboxes" / case.box).exists()
    case.end()


def do_pause(name, how, server, worker):
    case = Case(server, worker).start()
    change(name, how, case, "paused", "running", "paused")
    to_running(case)
    case.follow(3)
    case.end()


def do_resume(name, how, server, worker):
    case = Case(server, worker).start()
    server.change(case.box, "paused")
    change(name, how, case, "running", "paused", "running")
    to_running(case)
    case.follow(3)
    case.end()


def do_suspend(name, how, server, worker):
    case = Case(server, worker).start()
    change(name, how, case, "suspended", "running", "suspended")
    to_running(case)
    case.follow(3)
    case.end()


def do_wake(name, how, server, worker):
    case = Case(server, worker).start()
    server.change(case.box, "suspended")
    change(name, how, case, "running", "suspended", "running")
    to_running(case)
    case.follow(3)
    case.end()


def check_snapshot(case, name, how, expect):
    snapshot = case.snapshots[-1]
    if how == "kill" or not name.endswith(("begin", "begun", "capture", "captured", "before_finish", "before_copy")):
        case.server.wait_snapshot(snapshot, "ready")
    else:
        report = case.server.wait_snapshot(snapshot, "failed")
        assert "failpoint" in report["error"]["message"] and snapshot not in case.worker.saved()
    deadline = time.monotonic() + 10
    while case.presence() != expect:
        assert time.monotonic() < deadline, case.presence()
        time.sleep(0.02)


def do_snapshot(name, how, server, worker):
    case = Case(server, worker).start()
    provoke(case, name, how, case.snapshot)
    check_snapshot(case, name, how, "running")
    case.follow(3)
    case.end()


def do_snapshot_suspended(name, how, server, worker):
    case = Case(server, worker).start()
    server.change(case.box, "suspended")
    provoke(case, name, how, case.snapshot)
    check_snapshot(case, name, how, "suspended")
    to_running(case)
    case.follow(3)
    case.end()


def do_snapshot_remove(name, how, server, worker):
    case = Case(server, worker).start()
    snapshot = case.snapshot()
    server.wait_snapshot(snapshot, "ready")
    provoke(case, name, how, lambda: server.want_snapshot(snapshot_id=snapshot, desired="deleted"))
    server.wait_snapshot(snapshot, "deleted")
    assert snapshot not in worker.saved()
    case.follow(3)
    case.end()


def do_rollback(name, how, server, worker):
    for state in ("running", "suspended"):
        case = Case(server, worker).start()
        snapshot = case.snapshot()
        server.wait_snapshot(snapshot, "ready")
        if state == "suspended":
            server.change(case.box, state)
        wish = {"snapshot_id": snapshot, "generation": server.generation(case.box) + 1}
        report = change(name, how, case, "running", state, "running", rollback=wish)
        to_running(case)
        if "error" in report and name in ("rollback.before", "rollback.before_copy") or \
                "error" in report and state == "running":
            case.follow(3)  # it is as it was
        else:
            server.wait_session(case.session[0], "lost")
        case.end()


def do_destroy(name, how, server, worker):
    for state in ("running", "paused", "suspended"):
        case = Case(server, worker).start()
        if state != "running":
            server.change(case.box, state)
        provoke(case, name, how, lambda: server.want(case.box, "deleted"))
        server.wait_state(case.box, "deleted", timeout=30)
        nothing_left(worker)


def do_adopt(name, how, server, worker):
    case = Case(server, worker).start()
    worker.kill()
    worker.failpoints(f"{name} {how}\n")
    if how == "kill":
        with pytest.raises(AssertionError):
            worker.start()
    worker.start()
    to_running(case)
    case.follow(3)
    case.end()


@pytest.mark.parametrize("name", NAMES)
def test_each(rig, name):
    server, worker = rig
    scenario = globals()["do_" + SCENARIOS.get(name, name.split(".")[0])]
    for how in ("error", "kill"):
        if worker.process.poll() is not None:
            worker.start()
        scenario(name, how, server, worker)
        nothing_left(worker)
