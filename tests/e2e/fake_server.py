"""A control plane that only speaks the worker protocol (docs/worker-protocol.md), and a worker with the fake driver under it.

What the worker reports is kept in `observed`, `sessions` and `builds`; tests say what is wanted with `want()` and wait with
`wait_for()`. Nothing but the standard library.
"""

import base64
import contextlib
import hashlib
import http.client
import http.server
import json
import os
import pathlib
import secrets
import subprocess
import threading
import time
import urllib.parse

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
DIGEST_HEX = "ab" * 32
NODE_KEY = "nk_" + "n" * 43


def make_id(prefix):
    return prefix + "_0" + "".join(secrets.choice(ALPHABET) for _ in range(25))


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def handle(self):
        try:
            super().handle()
        except OSError:
            pass  # a worker that was killed takes no answer

    def reply(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def handle_any(self):
        fake = self.server.fake
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}")
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        if self.headers.get("Authorization") != f"Bearer {NODE_KEY}":
            return self.reply(401, {"error": {"code": "unauthenticated", "message": "node key", "request_id": "r"}})
        if fake.refuse:
            return self.reply(503, {"error": {"code": "unavailable", "message": "out of order", "request_id": "r"}})
        status, answer = fake.answer(self.command, url.path, query, body)
        return self.reply(status, answer)

    do_GET = do_POST = handle_any


class FakeServer:
    def __init__(self):
        self.lock = threading.Condition()
        self.revision = 0
        self.rows = {}       # id -> row with its revision
        self.builds_wanted = {}
        self.specs = {}      # session id -> answer of GET /worker/v1/sessions/{id}
        self.registered = []
        self.observed = []   # every report, in order
        self.sessions = []
        self.builds = {}     # id -> list of reports
        self.snapshots_wanted = {}
        self.snapshots = []  # every report, in order
        self.activity = []
        self.calls = []
        self.refuse = False
        self.deleted_templates = []
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.http.fake = self
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.http.server_address[1]}"

    def close(self):
        self.http.shutdown()
        self.http.server_close()

    # --- what the worker asks
    def answer(self, method, path, query, body):
        with self.lock:
            self.calls.append((method, path))
            self.lock.notify_all()
            if path == "/worker/v1/register":
                self.registered.append(body)
                self.lock.notify_all()
                return 200, {"lease_ms": 15000, "deleted_templates": self.deleted_templates}
            if path == "/worker/v1/desired":
                return 200, self._desired(int(query["after"]), int(query["wait_ms"]))
            if path == "/worker/v1/desired_of":
                return 200, {"sandboxes": [self.rows.get(i) or {"id": i, "unknown": True} for i in body["ids"]]}
            if path == "/worker/v1/observed":
                self.observed += body["sandboxes"]
                self.lock.notify_all()
                return 200, {}
            if path == "/worker/v1/sessions":
                for report in body["sessions"]:
                    self.sessions.append(report)
                    if report["id"] in self.specs:
                        self.specs[report["id"]]["state"] = report["state"]
                self.lock.notify_all()
                return 200, {}
            if path.startswith("/worker/v1/sessions/"):
                spec = self.specs.get(path.rsplit("/", 1)[1])
                if spec:
                    return 200, spec
            if path == "/worker/v1/snapshots":
                self.snapshots += body["snapshots"]
                for report in body["snapshots"]:
                    if report["id"] in self.snapshots_wanted:
                        self.snapshots_wanted[report["id"]]["_state"] = report["state"]
                self.lock.notify_all()
                return 200, {}
            if path == "/worker/v1/activity":
                self.activity += body["sandboxes"]
                self.lock.notify_all()
                return 200, {}
            if path.startswith("/worker/v1/builds/"):
                self.builds.setdefault(path.rsplit("/", 1)[1], []).append(body)
                self.lock.notify_all()
                return 200, {"cancel": False}
            return 404, {"error": {"code": "not_found", "message": path, "request_id": "r"}}

    def _desired(self, after, wait_ms):
        deadline = time.monotonic() + wait_ms / 1000
        while True:
            rows = [r for r in self.rows.values() if r["_revision"] > after and not r.get("_gone")]
            builds = [b for b in self.builds_wanted.values() if b["_revision"] > after]
            snapshots = [s for s in self.snapshots_wanted.values() if s["_revision"] > after and s["_state"] != (
                "deleted" if s["desired"] == "deleted" else "ready")]
            left = deadline - time.monotonic()
            if rows or builds or snapshots or left <= 0:
                return {"revision": self.revision, "sandboxes": rows, "builds": builds, "snapshots": snapshots}
            self.lock.wait(left)

    # --- what a test wants
    def want(self, sandbox_id=None, desired="running", **fields):
        with self.lock:
            self.revision += 1
            sandbox_id = sandbox_id or make_id("sbx")
            row = self.rows.get(sandbox_id) or {
                "id": sandbox_id, "generation": 0, "template_digest": f"sha256:{DIGEST_HEX}", "isolation": "container",
                "hostname": "box", "env": {"FROM_SANDBOX": "yes"}, "operation_id": make_id("op"),
                "resources": {"cpus": 1.0, "memory_mb": 512, "disk_mb": 2048, "pids": 128}}
            row.update(fields)
            row["generation"] += 1
            row["desired_state"] = desired
            row["_revision"] = self.revision
            self.rows[sandbox_id] = row
            self.lock.notify_all()
            return sandbox_id

    def want_snapshot(self, sandbox_id=None, snapshot_id=None, desired="ready", **fields):
        with self.lock:
            self.revision += 1
            snapshot_id = snapshot_id or make_id("snp")
            row = self.snapshots_wanted.setdefault(snapshot_id, {
                "id": snapshot_id, "sandbox_id": sandbox_id, "operation_id": make_id("op"), "memory": True,
                "durable": True, "_state": "creating"})
            row.update(fields)
            row.update(desired=desired, _revision=self.revision)
            self.lock.notify_all()
            return snapshot_id

    def wait_snapshot(self, snapshot_id, state, timeout=15):
        def last():
            reports = [r for r in self.snapshots if r["id"] == snapshot_id]
            return reports and reports[-1]["state"] == state and reports[-1]
        return self.wait_for(f"{snapshot_id} {state}", last, timeout)

    def generation(self, sandbox_id):
        return self.rows[sandbox_id]["generation"]

    def change(self, sandbox_id, desired, timeout=15, **fields):
        """Wants a state and waits for the worker's word about that very generation; returns the report."""
        self.want(sandbox_id, desired, **fields)
        generation = self.generation(sandbox_id)

        def last():
            reports = [r for r in self.observed if r["id"] == sandbox_id and r["generation"] == generation]
            return reports and reports[-1]
        report = self.wait_for(f"{sandbox_id} {desired}", last, timeout)
        if "error" in report:  # as the server does: what it is becomes what is wanted
            self.want(sandbox_id, report["state"])
        return report

    def want_build(self, recipe):
        with self.lock:
            self.revision += 1
            build_id = make_id("bld")
            self.builds_wanted[build_id] = {"id": build_id, "name": "x", "tag": "latest", "recipe": recipe,
                                            "operation_id": make_id("op"), "_revision": self.revision}
            self.lock.notify_all()
            return build_id

    def session(self, sandbox_id, *command, **spec):
        """Makes a session as the API would; returns (id, token)."""
        token = "at_" + base64.urlsafe_b64encode(secrets.token_bytes(32)).decode().rstrip("=")
        session_id = make_id("ses")
        with self.lock:
            self.specs[session_id] = {
                "id": session_id, "sandbox_id": sandbox_id, "process_id": make_id("prc"), "state": "pending",
                "spec": {"command": list(command), "stdin": "none", "overflow": "block", "timeout_ms": 0,
                         "grace_ms": 1000, "user": "root", "cwd": "/", **spec},
                "tokens": [{"sha256": hashlib.sha256(token.encode()).hexdigest(),
                            "expires_at_ms": int(time.time() * 1000) + 3600_000}]}
        return session_id, token

    def add_token(self, session_id, ttl_ms=3600_000):
        token = "at_" + base64.urlsafe_b64encode(secrets.token_bytes(32)).decode().rstrip("=")
        with self.lock:
            self.specs[session_id]["tokens"].append({"sha256": hashlib.sha256(token.encode()).hexdigest(),
                                                     "expires_at_ms": int(time.time() * 1000) + ttl_ms})
        return token

    def wait_for(self, what, condition, timeout=10):
        """Waits until condition() is true; returns its value."""
        deadline = time.monotonic() + timeout
        with self.lock:
            while True:
                value = condition()
                if value:
                    return value
                left = deadline - time.monotonic()
                assert left > 0, f"{what} did not happen; observed {self.observed[-5:]}, sessions {self.sessions[-5:]}"
                self.lock.wait(left)

    def wait_state(self, sandbox_id, state, timeout=15):
        def last():
            reports = [r for r in self.observed if r["id"] == sandbox_id]
            return reports and reports[-1]["state"] == state and reports[-1]
        return self.wait_for(f"{sandbox_id} {state}", last, timeout)

    def wait_session(self, session_id, state, timeout=10):
        def last():
            reports = [r for r in self.sessions if r["id"] == session_id]
            return reports and reports[-1]["state"] == state and reports[-1]
        return self.wait_for(f"{session_id} {state}", last, timeout)


class Event(dict):
    """An event's data, with its id and the SSE type."""
    id = 0
    sse_type = ""


class Attachment:
    """A reader of a session's events; a real parser of the bytes on the wire, with their chunks."""

    def __init__(self, data_url, session_id, token, last_event_id=None, timeout=30, rcvbuf=None):
        host, port = data_url.removeprefix("http://").rsplit(":", 1)
        self.connection = http.client.HTTPConnection(host, int(port), timeout=timeout)
        self.connection.connect()
        if rcvbuf:
            self.connection.sock.setsockopt(1, 8, rcvbuf)
        headers = {"Authorization": f"Bearer {token}"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = str(last_event_id)
        self.connection.request("GET", f"/v1/attach/{session_id}/events", headers=headers)
        self.response = self.connection.getresponse()
        self.status = self.response.status
        self.comments = 0

    def _lines(self):
        """Lines of the chunked body; http.client's own readline() takes a cut for an end."""
        if self.status != 200:
            self.response.read()
            return
        assert self.response.chunked
        rest = b""
        while size := int(self._exactly_line() or b"0", 16):
            data = self.response.fp.read(size)
            if len(data) < size or self._exactly_line():
                raise http.client.IncompleteRead(data)
            *lines, rest = (rest + data).split(b"\n")
            yield from lines
        assert rest == b"", "the stream ends inside a line"
        self._exactly_line()

    def _exactly_line(self):
        line = self.response.fp.readline()
        if not line.endswith(b"\r\n"):
            raise http.client.IncompleteRead(line)
        return line.strip()

    def events(self):
        """Yields events; returns at a proper end, raises http.client.IncompleteRead when the stream was cut."""
        event_id, kind = 0, ""
        for raw in self._lines():
            line = raw.decode()
            if line.startswith("id: "):
                event_id = int(line[4:])
            elif line.startswith("event: "):
                kind = line[7:]
            elif line.startswith("data: "):
                event = Event(json.loads(line[6:]))
                event.id, event.sse_type = event_id, kind
                assert event["type"] == kind
                yield event
            elif line.startswith(":"):
                self.comments += 1

    def close(self):
        self.connection.close()


def output(events, stream="stdout"):
    return b"".join(base64.b64decode(e["data"]) for e in events if e["type"] == stream)


class Worker:
    """`space worker` with the fake driver."""

    def __init__(self, build, state, server):
        self.build, self.state, self.server = pathlib.Path(build), pathlib.Path(state), server
        self.process = None
        self.data_url = None
        self.options = ["--pool-max", "0"]
        template = self.state / "data" / "templates" / DIGEST_HEX
        template.mkdir(parents=True, exist_ok=True)
        for folder in ("layers", "saved", "tmp"):
            (self.state / "data" / folder).mkdir(exist_ok=True)
        (template / "config.json").write_text(json.dumps({
            "format": 1, "name": "fake", "user": "root", "workdir": "/", "env": {"FROM_TEMPLATE": "yes"},
            "ready": ["/bin/true"], "packages": []}))
        (template / "image.erofs").write_bytes(b"")

    def start(self):
        before = len(self.server.registered)
        read_end, write_end = os.pipe()
        os.write(write_end, json.dumps({"node_key": NODE_KEY}).encode())
        os.close(write_end)
        log = open(self.state / "worker.log", "ab")
        self.process = subprocess.Popen(
            [str(self.build / "space"), "worker", "--state", str(self.state), "--listen", "127.0.0.1:0",
             "--server-url", self.server.url, "--secrets-fd", str(read_end), "--fake-driver",
             "--agent", str(self.build / "agent" / "space-agent"), *self.options],
            pass_fds=[read_end], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env={**os.environ, "SPACE_FAILPOINTS": str(self.state / "failpoints")})
        os.close(read_end)
        log.close()
        self.server.wait_for("register", lambda: len(self.server.registered) > before or self.process.poll() is not None)
        assert self.process.poll() is None, self.log()
        self.data_url = self.server.registered[-1]["data_url"]

    def log(self):
        return (self.state / "worker.log").read_text()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(timeout=10)
        return self.process.returncode

    def call(self, method, path, body=None, token=NODE_KEY, timeout=30):
        host, port = self.data_url.removeprefix("http://").rsplit(":", 1)
        with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=timeout)) as connection:
            data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            if data is not None and not isinstance(body, bytes):
                headers["Content-Type"] = "application/json"
            connection.request(method, path, body=data, headers=headers)
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text) if text else None

    def attach(self, session, **kwargs):
        return Attachment(self.data_url, session[0], session[1], **kwargs)

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def failpoints(self, text):
        """What is to go wrong (docs/failpoints.md), from now on."""
        path = self.state / "failpoints"
        temporary = self.state / "failpoints.tmp"
        temporary.write_text(text)
        os.rename(temporary, path)

    def wait_dead(self, timeout=20):
        """Waits for a failpoint to kill it."""
        self.process.wait(timeout=timeout)

    def saved(self):
        folder = self.state / "data" / "saved"
        return sorted(os.listdir(folder)) if folder.exists() else []

    def fds(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def sandbox_pids(self, sandbox_id):
        """Host pids of the agent and what runs under it."""
        text = (self.state / "run" / "sandboxes" / sandbox_id / "instance.ini").read_text()
        pid = int(next(line for line in text.splitlines() if line.startswith("pid=")).split("=")[1])
        return pid
