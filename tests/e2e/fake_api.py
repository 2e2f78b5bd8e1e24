"""A control plane and a data plane that only pretend: what the CLI is tested against without any daemon.

Each command is a little play: `Play.run(session)` in PLAYS below yields the events of argv[0]. Everything that the CLI
sent is recorded, so that a test can say what was (not) sent to whom. Nothing but the standard library.
"""

import base64
import contextlib
import http.server
import json
import threading
import time
import urllib.parse

KEY = "sk_" + "k" * 43
ULID = "0123456789abcdefghjkmnpqrs"


def make_id(prefix, n):
    return f"{prefix}_{ULID[:20]}{n:06d}"


class Session:
    def __init__(self, fake, number, spec, sandbox_id):
        self.fake = fake
        self.id = make_id("ses", number)
        self.sandbox_id = sandbox_id
        self.spec = spec
        self.argv = spec["command"]
        self.token = "at_" + f"{number:043d}"
        self.state = "pending"
        self.exit = None
        self.events = None  # list of (id, event) once started; grows
        self.grown = threading.Condition()
        self.stdin = b""
        self.stdin_closed = False
        self.signals = []
        self.attaches = 0
        self.done = False

    def start(self):
        with self.grown:
            if self.events is not None:
                return
            self.events = []
            self.state = "running"
        threading.Thread(target=self._play, daemon=True).start()

    def _play(self):
        self._add({"type": "started", "pid": 7})
        for event in PLAYS.get(self.argv[0], play_nosuch)(self):
            self._add(event)
        with self.grown:
            self.done = True
            self.grown.notify_all()

    def _add(self, event):
        with self.grown:
            self.events.append((len(self.events) + 1, event))
            if event["type"] == "process_exited":
                self.state, self.exit = "exited", event
            elif event["type"] == "error":
                self.state = "failed"
            self.grown.notify_all()

    def wait(self, condition, timeout=20):
        with self.grown:
            return self.grown.wait_for(condition, timeout)


def exited(code=0, **more):
    return {"type": "process_exited", "exit_code": code, "signal": None, "core_dumped": False, "oom": False,
            "timed_out": False, "duration_ms": 1, "cpu_ms": 1, "peak_memory_bytes": 1, "pipe_held_open": False, **more}


def data(kind, raw):
    return {"type": kind, "data": base64.b64encode(raw).decode()}


# --- the plays: what a command's name makes the fake data plane do
def play_exit(s):
    yield exited(int(s.argv[1]))


def play_signal(s):
    n = int(s.argv[1])
    yield exited(128 + n, signal=n)


def play_timeout(s):
    yield exited(137, signal=9, timed_out=True)


def play_oom(s):
    yield exited(137, signal=9, oom=True)


def play_nosuch(s):
    yield {"type": "error", "code": "command_not_found", "message": f"{s.argv[0]}: no such command"}


def play_error(s):
    yield {"type": "error", "code": s.argv[1], "message": "it did not run"}


def play_echo(s):
    yield data("stdout", s.argv[1].encode())
    yield exited()


def play_blob(s):
    """The fake's blob to both streams, in uneven pieces."""
    blob, at, step = s.fake.blob, 0, 1
    while at < len(blob):
        piece = blob[at:at + step]
        yield data("stdout", piece)
        yield data("stderr", piece[::-1])
        at += step
        step = min(step * 2 + 1, 50000)
    yield exited()


def play_cat(s):
    sent = 0
    while True:
        s.wait(lambda: len(s.stdin) > sent or s.stdin_closed)
        piece = s.stdin[sent:]
        sent += len(piece)
        for at in range(0, len(piece), 30000):
            yield data("stdout", piece[at:at + 30000])
        if s.stdin_closed and sent == len(s.stdin):
            break
    yield exited()


def play_early(s):
    """Ends without reading its input."""
    time.sleep(0.1)
    yield exited(3)


def play_sleep(s):
    yield data("stdout", b"asleep\n")
    s.wait(lambda: bool(s.signals), 60)
    yield exited(130, signal=2)


def play_deaf(s):
    """Does not care for SIGINT."""
    yield data("stdout", b"asleep\n")
    s.wait(lambda: "SIGKILL" in s.signals or s.fake.deleted, 60)


def play_env(s):
    yield data("stdout", json.dumps(s.spec, sort_keys=True).encode())
    yield exited()


def play_lines(s):
    for i in range(200):
        yield data("stdout", f"line {i}\n".encode())
    yield exited(5)


def play_truncated(s):
    yield data("stdout", b"half")
    s.state = "lost"


def play_resync(s):
    yield data("stdout", b"a")
    yield {"type": "resync_required", "oldest_id": 9}
    yield exited(int(s.argv[1]))


def play_newer(s):
    """Types and fields of a later version."""
    yield {"type": "weather", "sky": "blue"}
    yield {**data("stdout", b"ok\n"), "colour": 3}
    yield exited(0, shoe_size=43)


def play_napping(s):
    """Its sandbox is suspended while it runs."""
    yield data("stdout", b"half\n")
    yield {"type": "suspended"}


PLAYS = {"exit": play_exit, "signal": play_signal, "timeout": play_timeout, "oom": play_oom, "error": play_error,
         "echo": play_echo, "blob": play_blob, "cat": play_cat, "early": play_early, "sleep": play_sleep,
         "deaf": play_deaf, "env": play_env, "lines": play_lines, "truncated": play_truncated, "resync": play_resync,
         "newer": play_newer, "napping": play_napping}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    @property
    def fake(self):
        return self.server.fake

    def bearer(self):
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ")

    def record(self):
        self.fake.requests.append({"server": self.server.role, "method": self.command, "path": self.path,
                                   "bearer": self.bearer(), "headers": dict(self.headers)})

    def body(self):
        if "chunked" in (self.headers.get("Transfer-Encoding") or ""):
            raw = b""
            while size := int(self.rfile.readline(), 16):
                raw += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return raw
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, status, value, headers=()):
        raw = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        for name, text in headers:
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(raw)

    def error(self, status, code, message, **more):
        self.answer(status, {"error": {"code": code, "message": message, "request_id": "req_1", **more}})

    def do_any(self):
        self.record()
        if self.fake.drop_next > 0:
            self.fake.drop_next -= 1
            self.close_connection = True
            return
        raw = self.body() if self.command in ("POST", "PATCH") and not self.path.endswith("/stdin") else b""
        path = urllib.parse.urlsplit(self.path)
        try:
            self.route(path.path, dict(urllib.parse.parse_qsl(path.query)), json.loads(raw) if raw else None)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_POST = do_DELETE = do_PATCH = do_any


class ControlHandler(Handler):
    def route(self, path, query, body):
        fake = self.fake
        if self.bearer() != KEY:
            return self.error(401, "unauthenticated", "no such key")
        parts = path.strip("/").split("/")
        name = f"{self.command} {parts[1] if len(parts) > 1 else ''}"
        with fake.lock:
            if name == "POST sandboxes" and len(parts) == 2:
                return self.create(body)
            if name == "GET sandboxes" and len(parts) == 2:
                return self.list_sandboxes(query)
            if parts[1:2] == ["sandboxes"] and len(parts) >= 3 and parts[2] not in fake.sandboxes:
                return self.error(404, "not_found", f"there is no sandbox {parts[2]}")
            if name == "GET sandboxes":
                return self.answer(200, fake.sandboxes[parts[2]])
            if name == "DELETE sandboxes":
                return self.delete(parts[2])
            if name == "POST sandboxes" and parts[3:] == ["sessions"]:
                return self.session(parts[2], body)
            if name == "POST sandboxes" and len(parts) == 4:
                return self.change(fake.sandboxes[parts[2]], parts[3], body)
            if parts[1:2] == ["snapshots"]:
                return self.snapshots(parts, query)
            if name == "GET operations":
                return self.operations(parts)
            if parts[1:2] == ["sessions"] and len(parts) >= 3:
                return self.one_session(parts)
            if name == "GET nodes":
                return self.answer(200, {"items": fake.nodes(), "next_cursor": None})
            if parts[1:2] == ["templates"]:
                return self.templates(parts, body)
        return self.error(404, "not_found", "no such route")

    def create(self, body):
        fake = self.fake
        key = self.headers.get("Idempotency-Key")
        fake.create_bodies.append(body)
        if body.get("template", "seed:latest") != "seed:latest":
            return self.error(400, "invalid_request", "there is no such template", field="/template")
        if key not in fake.by_key:
            n = len(fake.sandboxes) + len(fake.deleted) + 1
            box = {"id": make_id("sbx", n), "name": body.get("name"), "state": "running", "template": "seed:latest",
                   "isolation": body.get("isolation", "container"), "resources": {"cpus": 1.0, "memory_mb": 512},
                   "created_at": "2026-01-01T00:00:00.000Z", "metadata": body.get("metadata", {})}
            fake.sandboxes[box["id"]] = box
            state = "running" if fake.never_wait else "succeeded"
            fake.by_key[key] = (box, fake.operation("create", box["id"], state))
        box, op = fake.by_key[key]
        if fake.create_fails:
            op.update(state="failed", error={"code": "unavailable", "message": "no room"})
        if fake.hold_create and "Prefer" in self.headers:
            fake.lock.release()
            try:
                time.sleep(fake.hold_create)
            finally:
                fake.lock.acquire()
        waited = "Prefer" in self.headers and not fake.never_wait
        self.answer(201 if waited else 202, {"sandbox": box, "operation": op})

    def refuse(self, change):
        """The error that the test wants of this change, or None."""
        error = self.fake.change_errors.get(change)
        if error:
            self.error(409, *error[:2], **({"field": error[2]} if len(error) > 2 else {}))
        return error

    def change(self, box, change, body):
        fake = self.fake
        fake.change_bodies.append((change, box["id"], body))
        if change not in ("pause", "suspend", "wake", "fork", "snapshots", "rollback"):
            return self.error(404, "not_found", "no such route")
        if self.refuse(change):
            return None
        waited = "Prefer" in self.headers and not fake.never_wait
        state = "succeeded" if waited else "running"
        if change == "fork":
            return self.answer(201 if waited else 202, {"results": [self.child(box, i, state) for i in range(body["count"])]})
        if change == "snapshots":
            snapshot = {"id": make_id("snp", len(fake.snapshots) + 1), "name": body.get("name"), "sandbox_id": box["id"],
                        "state": "ready", "parent_id": None, "memory": body.get("memory", True), "size_bytes": 4096,
                        "created_at": "2026-01-01T00:00:00.000Z", "isolation": box["isolation"], "template": box["template"]}
            fake.snapshots[snapshot["id"]] = snapshot
            return self.answer(201 if waited else 202, {"snapshot": snapshot, "operation": fake.operation("snapshot", box["id"], state)})
        if change == "rollback" and body["snapshot_id"] not in fake.snapshots:
            return self.error(400, "invalid_request", "there is no such snapshot", field="/snapshot_id")
        old = dict(box)
        box["state"] = {"pause": "paused", "suspend": "suspended"}.get(change, "running")
        return self.answer(200 if waited else 202, {"sandbox": box if waited else old,
                                                    "operation": fake.operation(change, box["id"], state)})

    def child(self, box, i, state):
        fake = self.fake
        if i in fake.fork_refuses:
            return {"error": {"code": "quota_exceeded", "message": "no more than that"}}
        child = {**box, "id": make_id("sbx", 1000 + len(fake.sandboxes) + len(fake.deleted)), "name": None, "state": "running"}
        fake.sandboxes[child["id"]] = child
        op = fake.operation("fork", child["id"], state)
        if i in fake.fork_fails:
            op.update(state="failed", error={"code": "unavailable", "message": "no room for this one"})
        return {"sandbox": child, "operation": op}

    def snapshots(self, parts, query):
        fake = self.fake
        if len(parts) == 2:
            items = [s for s in fake.snapshots.values() if query.get("sandbox_id", s["sandbox_id"]) == s["sandbox_id"]]
            return self.answer(200, {"items": items, "next_cursor": None})
        if parts[2] not in fake.snapshots:
            return self.error(404, "not_found", f"there is no snapshot {parts[2]}")
        if self.command == "DELETE":
            if self.refuse("rm"):
                return None
            del fake.snapshots[parts[2]]
            return self.answer(200, {"operation": fake.operation("snapshot_delete", None)})
        return self.answer(200, fake.snapshots[parts[2]])

    def list_sandboxes(self, query):
        items = sorted(self.fake.sandboxes.values(), key=lambda b: b["id"])
        if "state" in query:
            items = [b for b in items if b["state"] == query["state"]]
        at = int(query.get("cursor", 0))
        page = items[at:at + self.fake.page_size]
        more = at + self.fake.page_size < len(items)
        self.answer(200, {"items": page, "next_cursor": str(at + self.fake.page_size) if more else None})

    def delete(self, sandbox_id):
        del self.fake.sandboxes[sandbox_id]
        self.fake.deleted.append(sandbox_id)
        for session in self.fake.sessions.values():
            with session.grown:
                session.grown.notify_all()
        self.answer(200, {"operation": self.fake.operation("delete", sandbox_id)})

    def session(self, sandbox_id, body):
        fake = self.fake
        session = Session(fake, len(fake.sessions) + 1, body, sandbox_id)
        fake.sessions[session.id] = session
        self.answer(201, {"session": {"id": session.id, "process_id": make_id("prc", 1), "state": "pending"},
                          "attach": fake.attach(session)})

    def operations(self, parts):
        if len(parts) == 3:
            op = self.fake.operations.get(parts[2])
            if op and op["state"] == "running" and op["kind"] != "build":
                answer = self.answer(200, op)
                op["state"] = "succeeded"
                return answer
            if op and op["state"] == "running" and op["kind"] == "build":
                op["polls"] = op.get("polls", 0) + 1
                if op["polls"] > 1:
                    op["state"] = "failed" if self.fake.build_fails else "succeeded"
                    op["error"] = {"code": "internal", "message": "mmdebstrap failed"} if self.fake.build_fails else None
            return self.answer(200, op) if op else self.error(404, "not_found", "no such operation")
        return self.answer(200, {"items": list(self.fake.operations.values()), "next_cursor": None})

    def one_session(self, parts):
        session = self.fake.sessions.get(parts[2])
        if not session:
            return self.error(404, "not_found", "no such session")
        if parts[3:] == ["attachments"]:
            session.token = session.token[:-1] + "n"
            return self.answer(201, {"attach": self.fake.attach(session)})
        return self.answer(200, {"id": session.id, "state": session.state, "exit": session.exit})

    def templates(self, parts, body):
        fake = self.fake
        if self.command == "POST":
            fake.build_bodies.append(body)
            op = fake.operation("build", None, state="running")
            return self.answer(202, {"operation": op})
        if parts[-1] == "build-log":
            raw = b"step one\nstep two\n"
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            return self.wfile.write(raw)
        template = {"name": "seed", "tag": "latest", "digest": "sha256:" + "a" * 64, "size_bytes": 123456789,
                    "created_at": "2026-01-01T00:00:00.000Z", "tiers": ["container", "microvm"]}
        if self.command == "DELETE":
            return self.answer(200, {})
        return self.answer(200, template if len(parts) > 2 else {"items": [template], "next_cursor": None})


class DataHandler(Handler):
    def route(self, path, query, body):
        parts = path.strip("/").split("/")
        session = self.fake.sessions.get(parts[2]) if len(parts) == 4 and parts[:2] == ["v1", "attach"] else None
        if not session or self.bearer() != session.token:
            self.close_connection = True
            return self.error(401, "unauthenticated", "no such token")
        verb = parts[3]
        if verb == "events":
            return self.stream(session)
        if verb == "stdin":
            return self.take_stdin(session)
        with session.grown:
            if verb == "close-stdin":
                session.stdin_closed = True
            elif verb == "signal":
                session.signals.append(body["signal"])
            session.grown.notify_all()
        return self.answer(200, {})

    def take_stdin(self, session):
        raw = self.body()
        with session.grown:
            if session.exit:
                return self.error(409, "conflict", "process_exited")
            session.stdin += raw
            session.uploads = getattr(session, "uploads", 0) + 1
            session.grown.notify_all()
        self.answer(200, {})

    def chunk(self, raw):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(raw), raw))
        self.wfile.flush()

    def cut(self):
        """Ends the connection without the end of the chunked body."""
        self.close_connection = True
        self.connection.close()

    def stream(self, session):
        fake = self.fake
        session.attaches += 1
        if fake.redirect_to:
            return self.answer(302, {}, [("Location", fake.redirect_to)])
        if fake.refuse_attach > 0:
            fake.refuse_attach -= 1
            return self.error(503, "unavailable", "starting")
        session.start()
        at = int(self.headers.get("Last-Event-ID") or 0)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.chunk(b": hello\n\n")
        sent = 0
        while True:
            session.wait(lambda: len(session.events) > at or session.done, 60)
            if at >= len(session.events):
                break
            number, event = session.events[at]
            text = (f"id: {number}\nevent: {event['type']}\n"
                    f"data: {json.dumps(event)}\n\n").encode()
            if fake.cut_after is not None and sent == fake.cut_after:
                self.chunk(text[:len(text) // 2])  # in the middle of an event
                fake.cuts += 1
                if fake.cuts >= fake.max_cuts:
                    fake.cut_after = None
                return self.cut()
            self.chunk(text)
            at, sent = at + 1, sent + 1
        self.wfile.write(b"0\r\n\r\n")


class ElsewhereHandler(Handler):
    """A server that has no business in this: it only notes what comes."""

    def route(self, path, query, body):
        self.answer(200, {})


class FakeApi:
    def __init__(self):
        self.lock = threading.RLock()
        self.requests, self.create_bodies, self.build_bodies = [], [], []
        self.sandboxes, self.sessions, self.operations, self.by_key = {}, {}, {}, {}
        self.deleted = []
        self.snapshots, self.change_bodies = {}, []
        self.change_errors = {}  # change → (code, message[, field])
        self.fork_refuses, self.fork_fails = set(), set()  # numbers of children
        self.blob = b""
        self.page_size = 100
        self.drop_next = 0  # so many requests are cut without an answer
        self.create_fails = self.build_fails = self.never_wait = False
        self.hold_create = 0
        self.cut_after = None  # cut each stream after so many events …
        self.cuts, self.max_cuts = 0, 1  # … but only so often
        self.redirect_to = None
        self.refuse_attach = 0
        self.attach_url = None  # instead of the right one
        self.expires_at = "2099-01-01T00:00:00.000Z"
        self.tiers = [{"tier": "container", "available": True, "detail": "fake"}]
        self.servers = {}
        for role, handler in [("control", ControlHandler), ("data", DataHandler), ("elsewhere", ElsewhereHandler)]:
            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
            server.daemon_threads = True
            server.role, server.fake = role, self
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            self.servers[role] = server

    def origin(self, role):
        return f"http://127.0.0.1:{self.servers[role].server_address[1]}"

    def nodes(self):
        return [{"name": "local", "data_url": self.origin("data"), "tiers": self.tiers}]

    def operation(self, kind, sandbox_id, state="succeeded"):
        op = {"id": make_id("op", len(self.operations) + 1), "kind": kind, "sandbox_id": sandbox_id, "state": state,
              "error": None, "created_at": "2026-01-01T00:00:00.000Z", "steps": [{"name": "all", "duration_ms": 1.5}]}
        self.operations[op["id"]] = op
        return op

    def attach(self, session):
        url = self.attach_url or f"{self.origin('data')}/v1/attach/{session.id}/events"
        return {"url": url.replace("SESSION", session.id), "token": session.token, "expires_at": self.expires_at}

    def sent_to(self, role):
        return [r for r in self.requests if r["server"] == role]

    def close(self):
        for server in self.servers.values():
            with contextlib.suppress(OSError):
                server.shutdown()
                server.server_close()
