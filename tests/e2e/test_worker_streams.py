"""The data plane of the worker: sessions over SSE, stdin, tokens; real worker, real agent, fake driver."""

import hashlib
import http.client
import threading
import time

import pytest

from fake_server import make_id, output
from worker_fixtures import box, rig  # noqa: F401


def run(rig, box, *command, **spec):
    server, worker = rig
    session = server.session(box, *command, **spec)
    reader = worker.attach(session)
    assert reader.status == 200
    events = list(reader.events())
    reader.close()
    if events[-1]["type"] == "process_exited":  # the end of the stream comes when the server knows
        assert server.specs[session[0]]["state"] == "exited"
    return session, events


def test_echo_and_exit(rig, box):
    session, events = run(rig, box, "sh", "-c", "echo out; echo err >&2; exit 3")
    assert [e.id for e in events] == list(range(1, len(events) + 1))
    assert events[0]["type"] == "started" and events[0]["pid"] > 0
    assert output(events) == b"out\n" and output(events, "stderr") == b"err\n"
    last = events[-1]
    assert last["type"] == "process_exited" and last["exit_code"] == 3 and last["signal"] == 0
    assert {"core_dumped", "oom", "timed_out", "duration_ms", "cpu_ms", "peak_memory_bytes", "pipe_held_open"} < set(last)
    report = rig[0].wait_session(session[0], "exited")
    assert report["exit"]["exit_code"] == 3 and report["started_at_ms"] <= report["ended_at_ms"]


def test_environment(rig, box):
    _, events = run(rig, box, "env", env={"FROM_SESSION": "a=b c"})
    env = output(events).decode().splitlines()
    assert {"FROM_TEMPLATE=yes", "FROM_SANDBOX=yes", "FROM_SESSION=a=b c"} <= set(env)


def test_binary_output_is_exact(rig, box):
    """X10: NUL and all other bytes, on both streams."""
    _, events = run(rig, box, "sh", "-c", "head -c 1048576 /dev/urandom | tee /tmp/space-worker-random; cat /tmp/space-worker-random >&2")
    out, err = output(events), output(events, "stderr")
    assert len(out) == 1048576 and hashlib.sha256(out).digest() == hashlib.sha256(err).digest()


def test_missing_command_fails_at_once(rig, box):
    began = time.monotonic()
    session, events = run(rig, box, "nosuch-command")
    assert time.monotonic() - began < 2
    assert [e["type"] for e in events] == ["error"] and events[0]["code"] == "command_not_found"
    assert rig[0].wait_session(session[0], "failed")["error"]["code"] == "command_not_found"


def test_stdin_and_close(rig, box):
    server, worker = rig
    session = server.session(box, "cat", stdin="open")
    reader = worker.attach(session)
    stream = reader.events()
    assert next(stream)["type"] == "started"
    data = hashlib.sha256(b"x").digest() * 20000
    pieces = []
    thread = threading.Thread(target=lambda: pieces.extend(stream))
    thread.start()
    status, answer = worker.call("POST", f"/v1/attach/{session[0]}/stdin", data, session[1])
    assert status == 200 and answer["accepted"] == len(data), answer
    status, answer = worker.call("POST", f"/v1/attach/{session[0]}/stdin", b"end", session[1])
    assert status == 200 and answer == {"accepted": 3, "total": len(data) + 3, "closed": False}
    status, answer = worker.call("POST", f"/v1/attach/{session[0]}/close-stdin", {}, session[1])
    assert status == 200 and answer["closed"]
    thread.join(20)
    assert output(pieces) == data + b"end" and pieces[-1]["exit_code"] == 0
    status, answer = worker.call("POST", f"/v1/attach/{session[0]}/stdin", b"late", session[1])
    assert status == 409 and answer["error"]["code"] == "failed_precondition", answer
    assert "process_exited" in answer["error"]["message"]


def test_stdin_waits_for_the_command(rig, box):
    """Flow control: a command that does not read holds the request, and nothing is lost."""
    server, worker = rig
    session = server.session(box, "sh", "-c", "read go; sleep 0.7; cat | wc -c", stdin="open")
    reader = worker.attach(session)
    stream = reader.events()
    next(stream)
    worker.call("POST", f"/v1/attach/{session[0]}/stdin", b"go\n", session[1])
    data = bytes(2_000_000)
    status, answer = worker.call("POST", f"/v1/attach/{session[0]}/stdin", data, session[1])
    assert status == 200 and answer["accepted"] == len(data)
    worker.call("POST", f"/v1/attach/{session[0]}/close-stdin", {}, session[1])
    assert output(list(stream)).strip() == b"2000000"


def test_signal(rig, box):
    server, worker = rig
    session = server.session(box, "sleep", "60")
    reader = worker.attach(session)
    stream = reader.events()
    next(stream)
    status, _ = worker.call("POST", f"/v1/attach/{session[0]}/signal", {"signal": "SIGNOSUCH"}, session[1])
    assert status == 400
    status, _ = worker.call("POST", f"/v1/attach/{session[0]}/signal", {"signal": "SIGTERM"}, session[1])
    assert status == 200
    last = list(stream)[-1]
    assert last["signal"] == 15 and last["exit_code"] == 143


def test_replay_after_last_event_id(rig, box):
    session, events = run(rig, box, "sh", "-c", "for i in 1 2 3 4 5; do echo $i; sleep 0.01; done")
    again = list(rig[1].attach(session).events())
    assert again == events
    part = list(rig[1].attach(session, last_event_id=events[2].id).events())
    assert [(e.id, e) for e in part] == [(e.id, e) for e in events[3:]]


def test_nothing_is_left_to_read(rig, box):
    session, events = run(rig, box, "true")
    reader = rig[1].attach(session, last_event_id=events[-1].id)
    assert reader.status == 204 and list(reader.events()) == []
    reader = rig[1].attach(session, last_event_id=events[-1].id + 5)
    assert reader.status == 400
    reader = rig[1].attach(session, last_event_id="x")
    assert reader.status == 400


def test_gap_is_told_once(rig, box):
    """More output than the agent's ring holds: a reader that comes late gets one resync_required and the end."""
    session, events = run(rig, box, "sh", "-c", "head -c 6000000 /dev/zero; echo end >&2")
    assert len(output(events)) == 6000000
    late = list(rig[1].attach(session, last_event_id=1).events())
    assert late[0]["type"] == "resync_required" and late[0]["oldest_id"] > 2
    assert [e["type"] for e in late].count("resync_required") == 1
    assert late[-1]["type"] == "process_exited"
    # The id of the resync_required is a good place to go on from.
    again = list(rig[1].attach(session, last_event_id=late[0].id).events())
    assert [e.id for e in again] == [e.id for e in late[1:]]


def test_two_readers(rig, box):
    server, worker = rig
    session = server.session(box, "sh", "-c", "for i in $(seq 200); do echo $i; done; sleep 0.3; seq 1000")
    readers = [worker.attach(session) for _ in range(2)]
    results = [[], []]
    threads = [threading.Thread(target=lambda i=i: results[i].extend(readers[i].events())) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert results[0] == results[1] and output(results[0]).split() == [str(i).encode() for i in [*range(1, 201), *range(1, 1001)]]


def test_slow_reader_blocks_the_command(rig, box):
    """X12: bounded memory and no byte lost; the command waits."""
    server, worker = rig
    size = 30_000_000
    session = server.session(box, "sh", "-c", f"head -c {size} /dev/zero; echo done > /tmp/space-worker-done")
    reader = worker.attach(session, rcvbuf=65536)
    time.sleep(1)
    # What the worker holds is bounded: the ring is in the agent.
    rss = next(int(line.split()[1]) for line in open(f"/proc/{worker.process.pid}/status") if line.startswith("VmRSS"))
    assert rss < 60_000, f"{rss} kB"
    assert any(p["command"][0] == "sh" for p in worker.call("GET", f"/node/v1/sandboxes/{box}/processes")[1]["items"])
    assert len(output(list(reader.events()))) == size


def test_many_sessions_at_once(rig, box):
    server, worker = rig
    results = {}

    def one(i):
        _, events = run(rig, box, "sh", "-c", f"echo {i}")
        results[i] = (output(events), events[-1]["type"])
    threads = [threading.Thread(target=one, args=(i,)) for i in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == {i: (f"{i}\n".encode(), "process_exited") for i in range(32)}


def test_tokens(rig, box):
    server, worker = rig
    session, other = server.session(box, "true"), server.session(box, "true")
    path = f"/v1/attach/{session[0]}/events"

    def status(token, target=path):
        return worker.call("GET", target, token=token)[0]
    assert status(None) == 401
    assert status("sk_" + "k" * 43) == 401
    assert status("at_" + "x" * 43) == 401
    assert status(other[1]) == 401
    assert status(server.add_token(session[0], ttl_ms=-1000)) == 401
    assert status(session[1], f"/v1/attach/{make_id('ses')}/events") == 404
    assert status(session[1], "/v1/attach/not-an-id/events") == 404
    assert worker.call("POST", f"/v1/attach/{session[0]}/stdin", b"x", other[1])[0] == 401
    # Nothing of that has started the command.
    assert server.specs[session[0]]["state"] == "pending"
    later = server.add_token(session[0])
    assert [e["type"] for e in worker.attach((session[0], later)).events()][-1] == "process_exited"


def test_node_key_is_needed(rig, box):
    _, worker = rig
    for token in (None, "nk_wrong", "sk_" + "k" * 43):
        assert worker.call("GET", f"/node/v1/sandboxes/{box}/processes", token=token)[0] == 401
    assert worker.call("GET", f"/node/v1/sandboxes/{make_id('sbx')}/processes")[0] == 404


def exec_body(server, **spec):
    return {"session_id": make_id("ses"), "process_id": make_id("prc"), "user": "root", "cwd": "/", **spec}


def test_exec(rig, box):
    server, worker = rig
    status, answer = worker.call("POST", f"/node/v1/sandboxes/{box}/exec",
                                 exec_body(server, command=["sh", "-c", "echo ☕; printf '\\0\\377' >&2; exit 9"]))
    assert status == 200
    assert answer["exit_code"] == 9 and answer["stdout"] == "☕\n" and answer["stderr_base64"] == "AP8=" and answer["truncated"] == {}
    assert answer["stderr"].endswith("\ufffd") and "stdout_base64" not in answer and answer["timed_out"] is False


def test_exec_keeps_head_and_tail(rig, box):
    """X11: the end is never lost, and what was dropped is told."""
    server, worker = rig
    status, answer = worker.call("POST", f"/node/v1/sandboxes/{box}/exec", exec_body(
        server, command=["sh", "-c", "echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo last; echo tail-of-stderr >&2"]))
    assert status == 200 and answer["stderr"] == "tail-of-stderr\n"
    assert answer["stdout"].startswith("first\n") and answer["stdout"].endswith("last\n")
    cut = answer["truncated"]["stdout"]
    assert cut["total_bytes"] == 3000011 and cut["kept_bytes"] == len(answer["stdout"]) == 1 << 20


@pytest.mark.parametrize("spec, field", [
    ({"command": ["nosuch-command"]}, "/command/0"),
    ({"command": ["true"], "cwd": "/nosuch"}, "/cwd"),
    ({"command": ["true"], "user": "nosuch"}, "/user"),
    ({"command": ["/etc/passwd"]}, "/command/0"),
])
def test_exec_that_never_ran(rig, box, spec, field):
    server, worker = rig
    status, answer = worker.call("POST", f"/node/v1/sandboxes/{box}/exec", exec_body(server, **spec))
    assert status == 400 and answer["error"]["code"] == "invalid_request" and answer["error"]["field"] == field, answer


def test_exec_timeout(rig, box):
    server, worker = rig
    status, answer = worker.call("POST", f"/node/v1/sandboxes/{box}/exec", exec_body(
        server, command=["sh", "-c", "trap '' TERM; echo on; while :; do sleep 0.1; done"], timeout_ms=300, grace_ms=200))
    assert status == 200 and answer["timed_out"] and answer["signal"] == 9 and answer["stdout"] == "on\n"


@pytest.mark.parametrize("command", [["sleep", "77"], ["yes"]])
def test_exec_is_killed_when_nobody_waits(rig, box, command):
    """Also when output comes without a pause."""
    server, worker = rig
    body = exec_body(server, command=command)
    with pytest.raises(TimeoutError):
        worker.call("POST", f"/node/v1/sandboxes/{box}/exec", body, timeout=0.5)
    deadline = time.monotonic() + 5
    while any(p["command"] == command for p in worker.call("GET", f"/node/v1/sandboxes/{box}/processes")[1]["items"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    marks = worker.state / "run" / "sandboxes" / box / "sessions" / body["session_id"]
    while marks.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not [r for r in server.sessions if r["id"] == body["session_id"]], "the server has no row of an exec"


def test_detached_start_processes_and_signal(rig, box):
    server, worker = rig
    session = server.session(box, "sleep", "300")
    status, answer = worker.call("POST", f"/node/v1/sessions/{session[0]}/start")
    assert status == 200 and answer["state"] == "running" and answer["pid"] > 0
    assert worker.call("POST", f"/node/v1/sessions/{session[0]}/start")[0] == 200
    process_id = server.specs[session[0]]["process_id"]
    items = worker.call("GET", f"/node/v1/sandboxes/{box}/processes")[1]["items"]
    mine = [p for p in items if p["process_id"] == process_id]
    assert len(mine) == 1 and mine[0]["command"] == ["sleep", "300"] and mine[0]["user"] == "root" and mine[0]["rss_bytes"] > 0
    assert worker.call("POST", f"/node/v1/sandboxes/{box}/processes/{make_id('prc')}/signal", {"signal": "TERM"})[0] == 404
    assert worker.call("POST", f"/node/v1/sandboxes/{box}/processes/{process_id}/signal", {"signal": "SIGKILL"})[0] == 200
    # Nobody reads the session: its end is found out and reported all the same.
    assert server.wait_session(session[0], "exited")["exit"]["signal"] == 9
    answer = worker.call("GET", f"/node/v1/sessions/{session[0]}")[1]
    assert answer["state"] == "exited" and answer["exit"]["signal"] == 9


def test_reader_that_goes_away(rig, box):
    server, worker = rig
    session = server.session(box, "sh", "-c", "echo one; sleep 0.5; echo two")
    reader = worker.attach(session)
    stream = reader.events()
    first = [next(stream), next(stream)]
    reader.close()
    rest = list(worker.attach(session, last_event_id=first[-1].id).events())
    assert output(first + rest) == b"one\ntwo\n"
    assert [e.id for e in first + rest] == list(range(1, 5))


def test_no_growth_over_many_sessions(rig, box):
    server, worker = rig
    for _ in range(10):
        run(rig, box, "true")
    threads, fds = worker.threads(), worker.fds()
    for _ in range(200):
        _, events = run(rig, box, "echo", "x")
        assert events[-1]["type"] == "process_exited"
    deadline = time.monotonic() + 5
    while worker.threads() > threads or worker.fds() > fds:
        assert time.monotonic() < deadline, f"threads {threads} → {worker.threads()}, fds {fds} → {worker.fds()}"
        time.sleep(0.05)
    marks = worker.state / "run" / "sandboxes" / box / "sessions"
    while list(marks.iterdir()):
        assert time.monotonic() < deadline, list(marks.iterdir())
        time.sleep(0.05)


def test_chunked_encoding_is_ended(rig, box):
    """X5: the bytes on the wire end with the last chunk."""
    server, worker = rig
    session = server.session(box, "echo", "x")
    host, port = worker.data_url.removeprefix("http://").rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    connection.connect()
    connection.sock.sendall(f"GET /v1/attach/{session[0]}/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {session[1]}\r\n"
                            "Connection: close\r\n\r\n".encode())
    data = b""
    while piece := connection.sock.recv(65536):
        data += piece
    head, body = data.split(b"\r\n\r\n", 1)
    assert b"text/event-stream" in head and b"chunked" in head.lower()
    assert body.endswith(b"0\r\n\r\n")


@pytest.mark.slow
def test_keep_alive(rig, box):
    """P7: a silent stream is not cut, and says so every 15 s."""
    server, worker = rig
    session = server.session(box, "sh", "-c", "sleep 16; echo end")
    reader = worker.attach(session)
    events = list(reader.events())
    assert reader.comments == 1 and output(events) == b"end\n" and events[-1]["exit_code"] == 0
