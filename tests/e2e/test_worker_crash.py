"""What goes wrong around a worker: its own death, the agent's, the server's silence."""

import http.client
import os
import signal
import threading
import time

import pytest

from fake_server import make_id, output
from worker_fixtures import fresh_rig, make_rig  # noqa: F401


def start_box(server, **fields):
    box = server.want(**fields)
    server.wait_state(box, "running")
    return box


def read_in_thread(reader):
    events, failure = [], []

    def read():
        try:
            events.extend(reader.events())
        except (http.client.HTTPException, OSError) as error:
            failure.append(error)
    thread = threading.Thread(target=read)
    thread.start()
    return events, failure, thread


def test_sessions_survive_the_worker(fresh_rig):
    """kill -9 of the worker: the stream is cut without an end; a new worker adopts, and nothing is lost or doubled."""
    server, worker = fresh_rig
    box = start_box(server)
    session = server.session(box, "sh", "-c", "for i in $(seq 400); do echo line $i; sleep 0.005; done; exit 5")
    reader = worker.attach(session)
    stream = reader.events()
    got = [next(stream) for _ in range(60)]
    worker.kill()
    with pytest.raises((http.client.HTTPException, OSError)):
        for event in stream:
            got.append(event)
    assert got[-1]["type"] == "stdout"
    worker.start()
    rest = list(worker.attach(session, last_event_id=got[-1].id).events())
    events = got + rest
    assert [e.id for e in events] == list(range(1, len(events) + 1))
    assert output(events) == b"".join(b"line %d\n" % i for i in range(1, 401))
    assert events[-1]["exit_code"] == 5
    assert server.wait_session(session[0], "exited")["exit"]["exit_code"] == 5


def test_end_while_the_worker_is_dead_is_reported(fresh_rig):
    server, worker = fresh_rig
    box = start_box(server)
    session = server.session(box, "sh", "-c", "sleep 0.5; exit 6")
    worker.call("POST", f"/node/v1/sessions/{session[0]}/start")
    server.wait_session(session[0], "running")
    worker.kill()
    time.sleep(0.8)
    worker.start()
    assert server.wait_session(session[0], "exited")["exit"]["exit_code"] == 6
    # And it is not started again by a late reader.
    events = list(worker.attach(session).events())
    assert [e["type"] for e in events].count("started") == 1 and events[-1]["exit_code"] == 6


def test_sandbox_adopted_late_keeps_its_user(fresh_rig):
    """Its state could not be told when the worker started, only after the server had named it."""
    server, worker = fresh_rig
    box = start_box(server, user="daemon")
    record = worker.state / "run" / "sandboxes" / box / "instance.ini"
    text = record.read_text()
    body = {"process_id": make_id("prc"), "cwd": "/", "command": ["id", "-un"]}

    def whoami():
        return worker.call("POST", f"/node/v1/sandboxes/{box}/exec", {**body, "session_id": make_id("ses")})
    assert whoami()[1]["stdout"] == "daemon\n"
    worker.kill()
    record.write_text("no record")
    calls = len(server.calls)
    worker.start()
    server.wait_for("a second look at what is wanted",
                    lambda: [path for _, path in server.calls[calls:]].count("/worker/v1/desired") >= 2)
    assert whoami()[0] == 409
    record.write_text(text)
    deadline = time.monotonic() + 15
    while (answer := whoami())[0] == 409:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert answer[1]["stdout"] == "daemon\n"


def test_exec_of_a_dead_worker_is_killed(fresh_rig):
    """Nobody can get its output any more; it must not run on unseen."""
    server, worker = fresh_rig
    box = start_box(server)
    body = {"session_id": make_id("ses"), "process_id": make_id("prc"), "user": "root", "cwd": "/", "command": ["sleep", "88"]}
    thread = threading.Thread(target=lambda: pytest.raises((http.client.HTTPException, OSError), worker.call, "POST",
                                                           f"/node/v1/sandboxes/{box}/exec", body))
    thread.start()
    marks = worker.state / "run" / "sandboxes" / box / "sessions"
    deadline = time.monotonic() + 5
    while not list(marks.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    worker.kill()
    thread.join()
    worker.start()
    deadline = time.monotonic() + 5
    while list(marks.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert worker.call("GET", f"/node/v1/sandboxes/{box}/processes")[1]["items"] == []


def test_sandbox_lives_on_when_the_worker_stops(fresh_rig):
    server, worker = fresh_rig
    box = start_box(server)
    session = server.session(box, "sleep", "30")
    events, failure, thread = read_in_thread(worker.attach(session))
    server.wait_session(session[0], "running")
    began = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - began < 2.5
    thread.join(5)
    assert failure and [e["type"] for e in events] == ["started"], "the end of the stream must not look like an end of the command"
    worker.start()
    items = worker.call("GET", f"/node/v1/sandboxes/{box}/processes")[1]["items"]
    assert [p["command"] for p in items] == [["sleep", "30"]]
    assert worker.call("POST", f"/node/v1/sandboxes/{box}/processes/{items[0]['process_id']}/signal", {"signal": "KILL"})[0] == 200


def test_agent_is_killed(fresh_rig):
    """X7: an open stream ends with a typed error within 5 s, and the sandbox is reported failed and gone."""
    server, worker = fresh_rig
    box = start_box(server)
    session = server.session(box, "sleep", "60")
    events, failure, thread = read_in_thread(worker.attach(session))
    server.wait_session(session[0], "running")
    began = time.monotonic()
    os.kill(worker.sandbox_pids(box), signal.SIGKILL)
    thread.join(10)
    assert time.monotonic() - began < 5
    assert not failure and events[-1]["type"] == "error" and events[-1]["code"] == "lost"
    assert server.wait_state(box, "failed")["error"]["code"] == "unavailable"
    assert server.wait_session(session[0], "lost")["error"]["code"] == "lost"
    assert not (worker.state / "run" / "sandboxes" / box).exists()
    assert worker.attach(session).status == 409


def test_delete_ends_streams(fresh_rig):
    server, worker = fresh_rig
    box = start_box(server)
    session = server.session(box, "sleep", "60")
    events, failure, thread = read_in_thread(worker.attach(session))
    server.wait_session(session[0], "running")
    server.want(box, "deleted")
    server.wait_state(box, "deleted")
    thread.join(5)
    assert not failure and events[-1]["code"] == "lost" and "deleted" in events[-1]["message"]


def test_create_that_fails_leaves_nothing(fresh_rig):
    """L15: also: a ready command that fails is no `running`."""
    server, worker = fresh_rig
    missing = server.want(template_digest="sha256:" + "cd" * 32)
    report = server.wait_state(missing, "failed")
    assert report["error"]["code"] == "not_found" and report["generation"] == 1
    unknown = server.want(isolation="gvisor")
    assert server.wait_state(unknown, "failed")["error"]["code"] == "unsupported"
    config = worker.state / "data" / "templates" / ("ab" * 32) / "config.json"
    text = config.read_text()
    config.write_text(text.replace("/bin/true", "/bin/false"))
    try:
        box = server.want()
        report = server.wait_state(box, "failed")
        assert "ready command ended with code 1" in report["error"]["message"], report
    finally:
        config.write_text(text)
    assert os.listdir(worker.state / "run" / "sandboxes") == []
    # A failed one is not tried again by itself, and can be deleted.
    time.sleep(0.5)
    assert [r["state"] for r in server.observed if r["id"] == box] == ["failed"]
    for sandbox_id in (missing, unknown, box):
        server.want(sandbox_id, "deleted")
        server.wait_state(sandbox_id, "deleted")


def test_kill_in_the_middle_of_a_create(fresh_rig):
    server, worker = fresh_rig
    for delay in (0.0, 0.01, 0.03, 0.06, 0.1):
        box = server.want()
        time.sleep(delay)
        worker.kill()
        worker.start()
        server.wait_state(box, "running")
        server.want(box, "deleted")
        server.wait_state(box, "deleted")
    assert os.listdir(worker.state / "run" / "sandboxes") == []


def test_reports_are_repeated_until_taken(fresh_rig):
    server, worker = fresh_rig
    box = start_box(server)
    server.refuse = True
    session = server.session(box, "sh", "-c", "exit 4")
    token = session[1]
    # The token cannot be checked without the server: an honest 503, and nothing started.
    assert worker.attach(session).status == 503
    server.refuse = False
    reader = worker.attach((session[0], token))
    stream = reader.events()
    next(stream)
    server.refuse = True
    assert list(stream)[-1]["exit_code"] == 4
    time.sleep(0.5)
    server.refuse = False
    assert server.wait_session(session[0], "exited", timeout=15)["exit"]["exit_code"] == 4


def test_unknown_sandbox_is_left_alone(fresh_rig):
    """L7: not known to the server is not an order to delete."""
    server, worker = fresh_rig
    box = start_box(server)
    worker.stop()
    row = server.rows.pop(box)
    worker.start()
    assert box in server.registered[-1]["sandboxes"]
    time.sleep(1)
    assert (worker.state / "run" / "sandboxes" / box).exists()
    assert "does not know" in worker.log()
    server.rows[box] = row


def test_brake(fresh_rig):
    """L7: most sandboxes gone at start is more likely our mistake: the rest is left alone for a while."""
    server, worker = fresh_rig
    boxes = [server.want() for _ in range(8)]
    for box in boxes:
        server.wait_state(box, "running")
    worker.stop()
    for box in boxes:
        os.kill(worker.sandbox_pids(box), signal.SIGKILL)
    worker.start()
    server.wait_for("failed reports", lambda: len({r["id"] for r in server.observed if r["state"] == "failed"}) >= 5)
    time.sleep(1)
    failed = {r["id"] for r in server.observed if r["state"] == "failed"}
    assert len(failed) == 5
    assert len(os.listdir(worker.state / "run" / "sandboxes")) == 3
    assert "without an order" in worker.log()
    # An order is an order.
    for box in boxes:
        server.want(box, "deleted")
        server.wait_state(box, "deleted")


def test_deleted_while_the_worker_was_away(fresh_rig):
    server, worker = fresh_rig
    box = start_box(server)
    worker.stop()
    server.want(box, "deleted")
    server.rows[box]["_gone"] = True  # finally deleted: not in the list any more, but known
    worker.start()
    server.wait_state(box, "deleted")
    assert not (worker.state / "run" / "sandboxes" / box).exists()


def test_burst_of_creates(fresh_rig):
    server, worker = fresh_rig
    boxes = [server.want() for _ in range(20)]
    for box in boxes:
        server.wait_state(box, "running", timeout=60)
    slots = set()
    for box in boxes:
        text = (worker.state / "run" / "sandboxes" / box / "instance.ini").read_text()
        slots.add(next(line for line in text.splitlines() if line.startswith("slot=")))
    assert len(slots) == len(boxes)


def test_build_that_cannot_be(fresh_rig):
    server, worker = fresh_rig
    build = server.want_build({"name": "x", "nosuchfield": 1})
    last = server.wait_for("end of the build", lambda: [r for r in server.builds.get(build, []) if r["state"] == "failed"])[0]
    assert last["error"]["code"] == "invalid_request" and "nosuchfield" in last["error"]["message"]


def test_heartbeat(fresh_rig):
    server, worker = fresh_rig
    box = start_box(server)
    seen = len(server.registered)
    server.wait_for("two heartbeats", lambda: len(server.registered) >= seen + 2, timeout=15)
    last = server.registered[-1]
    assert last["protocol"] == 1 and last["sandboxes"] == [box] and last["instance"] == server.registered[0]["instance"]
    assert last["tiers"] == [{"tier": "container", "available": True, "detail": "fake, for tests only", "save_memory": True}]
    assert make_id("sbx") not in last["sandboxes"]
