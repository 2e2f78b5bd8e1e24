"""Pause, suspend, wake, snapshots, forks and rollback as the worker does them, with the fake driver: docs/lifecycle.md."""

import http.client
import os
import re
import threading
import time

import pytest

from fake_server import make_id, output
from worker_fixtures import fresh_rig, make_rig, rig  # noqa: F401

COUNTER = ["sh", "-c", "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done"]


def start_box(server, **fields):
    box = server.want(**fields)
    server.wait_state(box, "running")
    return box


def body(*command, **fields):
    return {"session_id": make_id("ses"), "process_id": make_id("prc"), "cwd": "/", "user": "root", "command": list(command), **fields}


def run(worker, box, *command, **fields):
    return worker.call("POST", f"/node/v1/sandboxes/{box}/exec", body(*command, **fields))


def numbers(events):
    return [int(n) for n in output(events).split()]


def take(stream, count):
    """Events up to the count-th line of output."""
    events = []
    for event in stream:
        events.append(event)
        if len(output(events).split()) >= count:
            return events
    raise AssertionError(f"the stream ended: {events[-3:]}")


class Reader(threading.Thread):
    """Reads a stream in the background."""

    def __init__(self, attachment):
        super().__init__(daemon=True)
        self.attachment, self.events, self.failure = attachment, [], None
        self.start()

    def run(self):
        try:
            for event in self.attachment.events():
                self.events.append(event)
        except (http.client.HTTPException, OSError) as error:
            self.failure = error

    def wait_for(self, condition, timeout=10):
        deadline = time.monotonic() + timeout
        while not condition(self.events):
            assert time.monotonic() < deadline and self.failure is None, (self.events[-3:], self.failure)
            time.sleep(0.01)


def run_dir(worker, box):
    return worker.state / "run" / "sandboxes" / box


# --- pause
def test_pause_and_resume_with_an_open_stream(rig):
    server, worker = rig
    box = start_box(server)
    session = server.session(box, *COUNTER)
    reader = Reader(worker.attach(session))
    reader.wait_for(lambda e: len(output(e).split()) >= 5)
    assert server.change(box, "paused")["state"] == "paused"
    time.sleep(0.2)
    seen = len(reader.events)
    time.sleep(0.5)
    assert len(reader.events) == seen and reader.is_alive(), "it ran while it was paused, or the stream ended"
    status, answer = run(worker, box, "true")
    assert status == 409 and answer["error"]["code"] == "failed_precondition" and "paused" in answer["error"]["message"]
    assert worker.attach(session).status == 409
    assert server.change(box, "paused")["state"] == "paused"  # again
    assert server.change(box, "running")["state"] == "running"
    reader.wait_for(lambda e: len(e) >= seen + 5)
    assert numbers(reader.events) == list(range(1, len(numbers(reader.events)) + 1))
    assert run(worker, box, "echo", "hi")[1]["stdout"] == "hi\n"
    assert not (run_dir(worker, box) / "held").exists()
    assert server.change(box, "deleted")["state"] == "deleted"


def test_exec_and_input_under_way_wait_out_a_pause(rig):
    server, worker = rig
    box = start_box(server)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(run(worker, box, "sh", "-c", "sleep 0.4; echo done")))
    thread.start()
    session = server.session(box, "cat", stdin="open")
    reader = Reader(worker.attach(session))
    server.wait_session(session[0], "running")
    server.change(box, "paused")
    time.sleep(0.6)
    assert not answers
    # Input for a paused sandbox is refused, and nothing of it arrives.
    assert worker.call("POST", f"/v1/attach/{session[0]}/stdin", b"early\n", token=session[1])[0] == 409
    server.change(box, "running")
    thread.join(10)
    assert answers[0][0] == 200 and answers[0][1]["stdout"] == "done\n"
    assert worker.call("POST", f"/v1/attach/{session[0]}/stdin", b"late\n", token=session[1])[0] == 200
    assert worker.call("POST", f"/v1/attach/{session[0]}/close-stdin", {}, token=session[1])[0] == 200
    reader.join(10)
    assert output(reader.events) == b"late\n" and reader.events[-1]["type"] == "process_exited"
    server.change(box, "deleted")


def test_paused_sandbox_survives_the_worker(fresh_rig):
    server, worker = fresh_rig
    box = start_box(server)
    session = server.session(box, *COUNTER)
    stream = worker.attach(session).events()
    events = take(stream, 5)
    server.change(box, "paused")
    worker.kill()
    worker.start()
    server.change(box, "paused")
    items = worker.call("GET", "/node/v1/inventory")[1]["sandboxes"]
    assert [(s["id"], s["presence"]) for s in items] == [(box, "paused")]
    assert worker.attach(session).status == 409
    assert server.change(box, "running")["state"] == "running"
    with pytest.raises((http.client.HTTPException, OSError)):
        for event in stream:
            events.append(event)
    rest = take(worker.attach(session, last_event_id=events[-1].id).events(), 5)
    got = numbers(events + rest)
    assert got == list(range(1, len(got) + 1))


def test_delete_of_a_paused_sandbox(rig):
    server, worker = rig
    box = start_box(server)
    pid = worker.sandbox_pids(box)
    server.change(box, "paused")
    assert server.change(box, "deleted")["state"] == "deleted"
    assert not run_dir(worker, box).exists() and not os.path.exists(f"/proc/{pid}")


def test_death_of_a_paused_sandbox_is_seen(rig):
    server, worker = rig
    box = start_box(server)
    server.change(box, "paused")
    os.kill(worker.sandbox_pids(box), 9)
    assert server.wait_state(box, "failed")["error"]["code"] == "unavailable"
    server.change(box, "deleted")


# --- suspend and wake
def test_suspend_and_wake_lose_nothing(rig):
    server, worker = rig
    box = start_box(server)
    session = server.session(box, *COUNTER)
    reader = Reader(worker.attach(session))
    reader.wait_for(lambda e: len(output(e).split()) >= 5)
    pid = int(run(worker, box, "sh", "-c", "cat /proc/[0-9]*/comm | wc -l")[1]["stdout"])
    assert pid > 1
    report = server.change(box, "suspended")
    assert report["state"] == "suspended" and "error" not in report
    assert {"begin", "pause", "capture", "finish", "release"} <= {s["name"] for s in report["steps"]}
    reader.join(5)
    assert not reader.failure and reader.events[-1]["type"] == "suspended" and reader.events[-1].sse_type == "suspended"
    events = reader.events[:-1]
    assert worker.saved() == [box] and (run_dir(worker, box) / "suspended").exists()
    assert not (run_dir(worker, box) / "instance.ini").exists()
    status, answer = run(worker, box, "true")
    assert status == 409 and "suspended" in answer["error"]["message"]
    assert server.specs[session[0]]["state"] == "running", "a suspended session is not lost"
    report = server.change(box, "running")
    assert report["state"] == "running" and "error" not in report
    assert worker.saved() == [] and not (run_dir(worker, box) / "suspended").exists()
    rest = take(worker.attach(session, last_event_id=events[-1].id).events(), 5)
    got = numbers(events + rest)
    assert got == list(range(1, len(got) + 1)), "lost or doubled"
    server.change(box, "deleted")


def test_exec_under_way_is_told_and_goes_on(rig):
    server, worker = rig
    box = start_box(server)
    answers = []
    mark = worker.state / f"mark-{box}"
    command = ["sh", "-c", f"sleep 0.5; echo yes >{mark}"]
    thread = threading.Thread(target=lambda: answers.append(run(worker, box, *command)))
    thread.start()
    sessions = run_dir(worker, box) / "sessions"
    deadline = time.monotonic() + 5
    while not list(sessions.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.1)
    server.change(box, "suspended")
    thread.join(5)
    assert answers[0][0] == 409 and answers[0][1]["error"]["code"] == "conflict" and "suspended" in answers[0][1]["error"]["message"]
    assert not mark.exists()
    server.change(box, "running")
    deadline = time.monotonic() + 5
    while not mark.exists():
        assert time.monotonic() < deadline, "the command did not go on"
        time.sleep(0.02)
    mark.unlink()
    server.change(box, "deleted")


def test_suspended_sandbox_survives_the_worker(fresh_rig):
    server, worker = fresh_rig
    box = start_box(server)
    session = server.session(box, *COUNTER)
    reader = Reader(worker.attach(session))
    reader.wait_for(lambda e: len(output(e).split()) >= 5)
    server.change(box, "suspended")
    reader.join(5)
    events = reader.events[:-1]
    for _ in range(2):
        worker.kill()
        worker.start()
        assert server.change(box, "suspended")["state"] == "suspended"
    assert worker.saved() == [box] and server.specs[session[0]]["state"] == "running"
    assert server.registered[-1]["sandboxes"] == [box]
    assert server.change(box, "running")["state"] == "running"
    rest = take(worker.attach(session, last_event_id=events[-1].id).events(), 5)
    got = numbers(events + rest)
    assert got == list(range(1, len(got) + 1))


def test_suspend_of_a_paused_sandbox_and_delete_of_a_suspended(rig):
    server, worker = rig
    box = start_box(server)
    pid = worker.sandbox_pids(box)
    server.change(box, "paused")
    assert server.change(box, "suspended")["state"] == "suspended"
    assert os.path.exists(f"/proc/{pid}")  # the fake keeps it as the form's memory
    assert server.change(box, "deleted")["state"] == "deleted"
    assert not run_dir(worker, box).exists() and worker.saved() == [] and not os.path.exists(f"/proc/{pid}")
    assert not os.listdir(worker.state / "run" / "fake")


def test_suspend_without_memory(rig):
    server, worker = rig
    box = start_box(server)
    session = server.session(box, *COUNTER)
    reader = Reader(worker.attach(session))
    reader.wait_for(lambda e: len(output(e).split()) >= 2)
    report = server.change(box, "suspended", memory=False)
    assert report["state"] == "suspended"
    reader.join(5)
    assert reader.events[-1]["code"] == "lost" and "without its memory" in reader.events[-1]["message"]
    server.wait_session(session[0], "lost")
    assert server.change(box, "running")["state"] == "running"
    assert run(worker, box, "echo", "new")[1]["stdout"] == "new\n"
    # From paused as well.
    server.change(box, "paused")
    assert server.change(box, "suspended", memory=False)["state"] == "suspended"
    assert server.change(box, "running")["state"] == "running"
    server.change(box, "deleted")


def test_lost_form_is_a_lost_sandbox(fresh_rig):
    server, worker = fresh_rig
    box = start_box(server)
    server.change(box, "suspended")
    worker.stop()
    form = worker.state / "data" / "saved" / box
    os.rename(form, worker.state / "elsewhere")
    worker.start()
    report = server.wait_state(box, "failed")
    assert "saved form" in report["error"]["message"]
    assert not run_dir(worker, box).exists()
    os.system(f"pkill -KILL -f {re.escape(str(run_dir(worker, box)))}")  # what the fake kept for it
    server.change(box, "deleted")


def test_damaged_form_stays_suspended(fresh_rig):
    """S12: one sandbox fails to wake, and is not lost."""
    server, worker = fresh_rig
    box = start_box(server)
    server.change(box, "suspended")
    manifest = worker.state / "data" / "saved" / box / "manifest.json"
    good = manifest.read_bytes()
    manifest.write_bytes(good[:-3] + b"x" + good[-2:])
    report = server.change(box, "running")
    assert report["state"] == "suspended" and report["error"]["code"] == "failed_precondition"
    manifest.write_bytes(good)
    assert server.change(box, "running")["state"] == "running"


# --- snapshots and what is made from them
@pytest.mark.parametrize("state", ["running", "paused", "suspended"])
def test_snapshot_and_child(rig, state):
    server, worker = rig
    box = start_box(server)
    session = server.session(box, *COUNTER)
    reader = Reader(worker.attach(session))
    reader.wait_for(lambda e: len(output(e).split()) >= 3)
    if state != "running":
        server.change(box, state)
    snapshot = server.want_snapshot(box)
    report = server.wait_snapshot(snapshot, "ready")
    assert report["memory"] is True and report["size_bytes"] >= 0
    if state == "running":
        assert "pause" in {s["name"] for s in report["steps"]}
        before = len(reader.events)
        reader.wait_for(lambda e: len(e) > before + 3)  # it goes on
    presence = {s["id"]: s["presence"] for s in worker.call("GET", "/node/v1/inventory")[1]["sandboxes"]}
    assert presence[box] == state
    assert snapshot in worker.saved()
    children = [server.want(saved_from=snapshot) for _ in range(3)]
    for child in children:
        server.wait_state(child, "running")
        assert run(worker, child, "echo", "child")[1]["stdout"] == "child\n"
    server.want_snapshot(snapshot_id=snapshot, desired="deleted")
    server.wait_snapshot(snapshot, "deleted")
    assert snapshot not in worker.saved()
    late = server.want(saved_from=snapshot)
    assert server.wait_state(late, "failed")["error"]["code"] == "not_found"
    for each in [box, late, *children]:
        server.change(each, "deleted")


def test_snapshot_is_found_again_and_taken_once(fresh_rig):
    server, worker = fresh_rig
    box = start_box(server)
    snapshot = server.want_snapshot(box)
    server.wait_snapshot(snapshot, "ready")
    server.snapshots_wanted[snapshot]["_state"] = "creating"  # the report was lost
    server.snapshots.clear()
    before = os.stat(worker.state / "data" / "saved" / snapshot / "manifest.json").st_ino
    worker.kill()
    worker.start()
    server.wait_snapshot(snapshot, "ready")
    assert os.stat(worker.state / "data" / "saved" / snapshot / "manifest.json").st_ino == before


def test_snapshot_of_nothing_fails(rig):
    server, worker = rig
    for box in (make_id("sbx"), start_box(server)):
        if box in server.rows:
            server.change(box, "deleted")
        report = server.wait_snapshot(server.want_snapshot(box), "failed")
        assert report["error"]["code"] == "failed_precondition"
    box = start_box(server)
    server.change(box, "suspended", memory=False)
    ready = server.want_snapshot(box, memory=True)
    assert server.wait_snapshot(ready, "ready")["memory"] is False, "what it was suspended with"
    server.want_snapshot(snapshot_id=ready, desired="deleted")
    server.wait_snapshot(ready, "deleted")
    server.change(box, "deleted")


@pytest.mark.parametrize("state", ["running", "paused", "suspended"])
def test_rollback(rig, state):
    server, worker = rig
    box = start_box(server)
    snapshot = server.want_snapshot(box)
    server.wait_snapshot(snapshot, "ready")
    session = server.session(box, *COUNTER)
    reader = Reader(worker.attach(session))
    reader.wait_for(lambda e: len(output(e).split()) >= 2)
    if state != "running":
        server.change(box, state)
    generation = server.generation(box) + 1
    report = server.change(box, "running", rollback={"snapshot_id": snapshot, "generation": generation})
    assert report["state"] == "running" and "error" not in report
    assert {"copy", "agent", "identity"} <= {s["name"] for s in report["steps"]}
    server.wait_session(session[0], "lost")  # the command is younger than the snapshot
    reader.join(5)
    assert run(worker, box, "echo", "old")[1]["stdout"] == "old\n"
    assert worker.saved() == [snapshot]
    # The same row again, and a restarted worker, do not do it twice.
    session = server.session(box, "sleep", "60")
    worker.attach(session)
    server.wait_session(session[0], "running")
    assert server.change(box, "running")["state"] == "running"
    worker.kill()
    worker.start()
    assert server.change(box, "running")["state"] == "running"
    assert worker.call("GET", f"/node/v1/sessions/{session[0]}")[1]["state"] == "running"
    # One to a snapshot that is not there leaves it as it is, and is not tried again.
    report = server.change(box, "running", rollback={"snapshot_id": make_id("snp"), "generation": server.generation(box) + 1})
    assert report["state"] == "running" and report["error"]["code"] == "not_found"
    assert server.change(box, "running").get("error") is None
    assert worker.call("GET", f"/node/v1/sessions/{session[0]}")[1]["state"] == "running"
    server.want_snapshot(snapshot_id=snapshot, desired="deleted")
    server.wait_snapshot(snapshot, "deleted")
    server.change(box, "deleted")


def test_snapshot_is_deleted_during_a_rollback_to_it(rig):
    """It goes when the rollback has it, so the sandbox never becomes half a snapshot."""
    server, worker = rig
    box = start_box(server)
    snapshot = server.want_snapshot(box)
    server.wait_snapshot(snapshot, "ready")
    worker.failpoints("rollback.before_copy delay:600\n")
    generation = server.generation(box) + 1
    server.want(box, "running", rollback={"snapshot_id": snapshot, "generation": generation})
    deadline = time.monotonic() + 10
    while (worker.state / "failpoints").read_text():
        assert time.monotonic() < deadline, "the rollback did not begin"
        time.sleep(0.005)
    server.want_snapshot(snapshot_id=snapshot, desired="deleted")
    report = server.wait_for("its end", lambda: next((r for r in server.observed if r["id"] == box and r["generation"] == generation), None))
    assert report["state"] == "running" and "error" not in report
    server.wait_snapshot(snapshot, "deleted")
    assert run(worker, box, "echo", "hi")[1]["stdout"] == "hi\n"
    server.change(box, "deleted")


def slot_of(path):
    return re.search(r"^slot=(\d+)", path.read_text(), re.M)[1]


def test_slot_of_what_runs_goes_before_that_of_what_is_suspended(fresh_rig):
    """A worker killed in a wake that had moved to another slot leaves the old number in the file "suspended", when somebody else may have it."""
    server, worker = fresh_rig
    pairs = [(start_box(server), start_box(server)) for _ in range(4)]
    for asleep, _ in pairs:
        server.change(asleep, "suspended")
    worker.kill()
    for asleep, awake in pairs:
        other = slot_of(run_dir(worker, awake) / "instance.ini")
        mark = run_dir(worker, asleep) / "suspended"
        mark.write_text(re.sub(r"slot=\d+", f"slot={other}", mark.read_text()))
    worker.start()
    for asleep, _ in pairs:
        assert server.change(asleep, "running")["state"] == "running"
    slots = [slot_of(run_dir(worker, box) / "instance.ini") for pair in pairs for box in pair]
    assert len(set(slots)) == len(slots), slots


def test_mark_that_cannot_be_looked_at_proves_nothing(fresh_rig):
    server, worker = fresh_rig
    box = start_box(server)
    server.change(box, "suspended")
    worker.kill()
    mark = run_dir(worker, box) / "suspended"
    text = mark.read_text()
    mark.unlink()
    mark.symlink_to(mark)
    worker.start()
    time.sleep(0.5)
    assert worker.saved() == [box], "the saved form was removed without proof that it is not needed"
    mark.unlink()
    mark.write_text(text)
    assert server.change(box, "running", timeout=30)["state"] == "running"
    assert run(worker, box, "echo", "hi")[1]["stdout"] == "hi\n"


@pytest.mark.parametrize("action", ["pause", "suspend", "snapshot"])
def test_what_a_stopping_worker_cannot_do_the_next_one_does(fresh_rig, action):
    """Its own end is no failure of the change."""
    server, worker = fresh_rig
    box, snapshot = start_box(server), None
    session = server.session(box, *COUNTER)
    reader = Reader(worker.attach(session))
    reader.wait_for(lambda e: len(output(e).split()) >= 3)
    worker.failpoints({"pause": "still.marked", "suspend": "suspend.begun", "snapshot": "snapshot.begun"}[action] + " delay:300\n")
    if action == "snapshot":
        snapshot = server.want_snapshot(box)
    else:
        server.want(box, {"pause": "paused", "suspend": "suspended"}[action])
    deadline = time.monotonic() + 10
    while (worker.state / "failpoints").read_text():
        assert time.monotonic() < deadline, "the action did not begin"
        time.sleep(0.005)
    seen = len(server.observed)
    assert worker.stop() == 0
    worker.start()
    if snapshot:
        server.wait_for("the snapshot", lambda: [r for r in server.snapshots if r["id"] == snapshot], timeout=15)
        assert [r["state"] for r in server.snapshots if r["id"] == snapshot] == ["ready"]
    else:
        server.wait_state(box, {"pause": "paused", "suspend": "suspended"}[action])
    assert [r for r in server.observed[seen:] if "error" in r] == []
    assert server.change(box, "running")["state"] == "running"
    attachment = worker.attach(session, last_event_id=reader.events[-1].id)
    events = reader.events + take(attachment.events(), 5)
    assert numbers(events) == list(range(1, len(numbers(events)) + 1))
    if snapshot:
        server.want_snapshot(snapshot_id=snapshot, desired="deleted")
        server.wait_snapshot(snapshot, "deleted")


def test_nothing_of_the_worker_grows(fresh_rig):
    """200 operations leave it with no more descriptors and threads than it had."""
    server, worker = fresh_rig
    box = start_box(server)

    def turn():
        for state in ("paused", "running", "suspended", "running"):
            assert server.change(box, state)["state"] == state
        snapshot = server.want_snapshot(box)
        server.wait_snapshot(snapshot, "ready")
        report = server.change(box, "running", rollback={"snapshot_id": snapshot, "generation": server.generation(box) + 1})
        assert report["state"] == "running" and "error" not in report
        child = server.want(saved_from=snapshot)
        server.wait_state(child, "running")
        server.want_snapshot(snapshot_id=snapshot, desired="deleted")
        server.change(child, "deleted")
        server.wait_snapshot(snapshot, "deleted")

    for _ in range(3):  # threads and connections that stay
        turn()
    fds, threads = worker.fds(), worker.threads()
    for _ in range(22):
        turn()
    deadline = time.monotonic() + 15
    spare = 8  # connections to the server that are kept; less than one thing for each turn
    while worker.fds() > fds + spare or worker.threads() > threads + spare:
        assert time.monotonic() < deadline, f"fds {fds} → {worker.fds()}, threads {threads} → {worker.threads()}"
        time.sleep(0.1)
    assert worker.saved() == []


def test_activity(rig):
    server, worker = rig
    box = start_box(server)
    session = server.session(box, "sleep", "30")
    stream = worker.attach(session)
    server.wait_for("an attached client", lambda: [a for a in server.activity if a["id"] == box and a["attached"] == 1])
    stream.close()
    server.wait_for("none any more", lambda: [a for a in server.activity if a["id"] == box and a["attached"] == 0], timeout=20)
    server.change(box, "deleted")


def test_inventory(rig):
    server, worker = rig
    box = start_box(server)
    status, answer = worker.call("GET", "/node/v1/inventory")
    assert status == 200 and set(answer) == {"sandboxes", "run_dirs", "layers", "saved", "cgroups", "pool"}
    assert [s for s in answer["sandboxes"] if s["id"] == box][0]["presence"] == "running" and box in answer["run_dirs"]
    assert worker.call("GET", "/node/v1/inventory", token="nk_" + "x" * 43)[0] == 401
    server.change(box, "deleted")


# --- delete wins over everything
@pytest.mark.parametrize("point", ["create.driver_done", "create.identified", "still.held", "still.paused", "suspend.begun", "suspend.captured",
                                   "suspend.finished", "suspend.committed", "wake.created", "wake.linked", "wake.identified",
                                   "snapshot.begun", "snapshot.captured", "rollback.copied", "rollback.committed"])
def test_delete_during(rig, point):
    """The action under way stops at its next step, or ends; then nothing is left, and it never runs again."""
    server, worker = rig
    action = point.split(".")[0]
    box = None if action == "create" else start_box(server)
    snapshot = None
    if action == "wake":
        server.change(box, "suspended")
    if action == "rollback":
        snapshot = server.want_snapshot(box)
        server.wait_snapshot(snapshot, "ready")
    worker.failpoints(f"{point} delay:300\n")
    if action == "create":
        box = server.want()
    elif action == "snapshot":
        snapshot = server.want_snapshot(box)
    else:
        desired = {"still": "paused", "suspend": "suspended"}.get(action, "running")
        fields = {"rollback": {"snapshot_id": snapshot, "generation": server.generation(box) + 1}} if action == "rollback" else {}
        server.want(box, desired, **fields)
    deadline = time.monotonic() + 10
    while (worker.state / "failpoints").read_text():
        assert time.monotonic() < deadline, "the point was not met"
        time.sleep(0.005)
    server.want(box, "deleted")
    began, seen = time.monotonic(), len(server.observed)
    server.wait_state(box, "deleted")
    assert time.monotonic() - began < 5
    assert {r["state"] for r in server.observed[seen:] if r["id"] == box} == {"deleted"}
    assert not run_dir(worker, box).exists() and box not in worker.saved()
    if snapshot:
        server.wait_for("a word about the snapshot", lambda: [r for r in server.snapshots if r["id"] == snapshot])
        server.want_snapshot(snapshot_id=snapshot, desired="deleted")
        server.wait_snapshot(snapshot, "deleted")
    assert worker.saved() == [] and not os.listdir(worker.state / "run" / "sandboxes")
