"""The real server with a worker made of Python: it speaks docs/worker-protocol.md and makes nothing.

Standard library only. `Server` runs the test executable api-server; `FakeWorker` is told by its attributes how to
behave: how long a create takes, whether it fails, whether anything is done at all.
"""

import base64
import hashlib
import http.client
import http.server
import json
import os
import pathlib
import secrets
import signal
import socket
import subprocess
import threading
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("SPACE_BUILD", ROOT / "build"))
DIGEST = "sha256:" + "ab" * 32
SEED = {"name": "seed", "packages": ["python3"]}


def secret(prefix):
    return prefix + "_" + base64.urlsafe_b64encode(secrets.token_bytes(32)).decode().rstrip("=")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def request(url, method, path, body=None, bearer=None, headers=None, raw=None, timeout=60):
    """One request; (status, decoded JSON or bytes, headers)."""
    parts = urllib.parse.urlsplit(url)
    conn = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
    try:
        sent = dict(headers or {})
        if bearer:
            sent.setdefault("Authorization", f"Bearer {bearer}")
        data = raw
        if body is not None:
            data = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        conn.request(method, path, body=data, headers=sent)
        answer = conn.getresponse()
        content = answer.read()
        if answer.headers.get("Content-Type", "").startswith("application/json"):
            content = json.loads(content)
        return answer.status, content, answer.headers
    finally:
        conn.close()


class Server:
    """The server process. start() again after kill() continues on the same database."""

    def __init__(self, directory):
        self.database = pathlib.Path(directory) / "server" / "server.db"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.key = secret("sk")
        self.node_key = secret("nk")
        self.log = open(pathlib.Path(directory) / "server.log", "ab")
        self.process = None
        self.wrapper = []  # argv of what executes the server

    def start(self):
        program = BUILD / "tests" / "unit" / "api" / "api-server"
        command = [*self.wrapper, program, self.database, f"127.0.0.1:{self.port}", self.key, self.node_key]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log)
        line = self.process.stdout.readline().decode().strip()
        assert line == f"127.0.0.1:{self.port}", f"the server did not start: {line!r}"

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def stop(self):
        """SIGTERM; returns the seconds that the end took."""
        begun = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=20)
        self.process.stdout.close()
        assert status == 0, f"the server ended with {status}"
        return time.monotonic() - begun

    def request(self, method, path, body=None, key=None, **more):
        return request(self.url, method, path, body, bearer=key or self.key, **more)

    def call(self, method, path, body=None, **more):
        status, content, _ = self.request(method, path, body, **more)
        assert status < 300, (status, content)
        return content

    def create(self, body=None, wait=30, **headers):
        if wait:
            headers["Prefer"] = f"wait={wait}"
        return self.call("POST", "/v1/sandboxes", body or {}, headers=headers)

    def delete(self, sandbox_id, wait=30):
        headers = {"Prefer": f"wait={wait}"} if wait else {}
        return self.call("DELETE", f"/v1/sandboxes/{sandbox_id}", headers=headers)

    def operation_end(self, operation_id, timeout=20):
        deadline = time.monotonic() + timeout
        while (op := self.call("GET", f"/v1/operations/{operation_id}"))["state"] in ("pending", "running"):
            assert time.monotonic() < deadline, op
            time.sleep(0.01)
        return op


class FakeWorker:
    def __init__(self, server, node="local"):
        self.server = server
        self.node = node
        self.instance = secrets.token_hex(8)
        self.templates = [DIGEST]
        self.build_digest = DIGEST
        self.tiers = [{"tier": "container", "available": True, "detail": "fake", "save_memory": False,
                       "save_memory_detail": "there is no CRIU"},
                      {"tier": "microvm", "available": True, "detail": "tcg", "save_memory": True},
                      {"tier": "gvisor", "available": False, "detail": "runsc is not installed"}]
        self.create_delay = 0.0
        self.delete_delay = 0.0
        self.create_error = None   # {"code", "message"}: creates fail with it
        self.build_error = None
        self.builds = {}           # id → how often it was seen
        self.hold = False          # hears what is wanted and does nothing
        self.running = {}          # id → row, of whatever is here in whichever state
        self.states = {}           # id → running, paused, suspended
        self.wanted = {}           # id → the newest row that was told
        self.one_at_a_time = {}    # id → lock: one action runs for a sandbox at a time
        self.change_delay = 0.0    # of pause, suspend, wake, rollback
        self.change_error = None   # they fail with it; may be a function of the row
        self.saved = {}            # id of a snapshot → what was told of it
        self.taken = []            # ids in the order of their taking
        self.snapshot_delay = self.snapshot_delete_delay = 0.0
        self.snapshot_error = None
        self.child_error, self.child_failures = None, 0  # that many creates from a snapshot fail
        self.rolled_back = {}      # id → generation
        self.log = []              # (id, what was done)
        self.pools = []
        self.created = []          # ids in the order of their making, repeats included
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        self.requests = []         # (path, body) of the data listener
        self.exec_status, self.exec_body = 200, b'{"exit_code":0,"stdout":"out","stderr":""}'
        self.threads = []

    # --- towards the server
    def call(self, method, path, body=None, timeout=60):
        return request(self.server.url, method, path, body, bearer=self.server.node_key, timeout=timeout)

    def post(self, path, body):
        """Until the server has taken it: it may be restarting."""
        while not self.stopping.is_set():
            try:
                status, content, _ = self.call("POST", path, body)
                if status == 200:
                    return content
                if status < 500:
                    raise AssertionError(f"{path}: {status} {content}")
            except (OSError, http.client.HTTPException):
                pass
            time.sleep(0.05)
        return None

    def register(self):
        with self.lock:
            ids = list(self.running)
        return self.post("/worker/v1/register", {
            "protocol": 1, "node": self.node, "instance": self.instance, "data_url": self.data_url, "future": [1],
            "tiers": self.tiers, "templates": self.templates, "sandboxes": ids, "pools": self.pools})

    def observed(self, row, state, **more):
        return self.post("/worker/v1/observed", {"node": self.node, "instance": self.instance, "sandboxes": [
            {"id": row["id"], "generation": row["generation"], "state": state, **more}]})

    def heartbeat(self):
        while not self.stopping.wait(1):
            self.register()

    def watch(self):
        after = 0
        while not self.stopping.is_set():
            try:
                status, wanted, _ = self.call(
                    "GET", f"/worker/v1/desired?node={self.node}&after={after}&wait_ms=20000")
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)
                continue
            if status != 200:
                time.sleep(0.05)
                continue
            after = wanted["revision"]
            if self.hold:
                continue
            for row in wanted["sandboxes"]:
                self.wanted[row["id"]] = row
                threading.Thread(target=self.reconcile, args=(row,), daemon=True).start()
            for snapshot in wanted["snapshots"]:
                threading.Thread(target=self.snapshot, args=(snapshot,), daemon=True).start()
            for build in wanted["builds"]:
                threading.Thread(target=self.build, args=(build,), daemon=True).start()

    def lock_of(self, sandbox_id):
        with self.lock:
            return self.one_at_a_time.setdefault(sandbox_id, threading.Lock())

    def reconcile(self, row):
        with self.lock_of(row["id"]):
            self.act(self.wanted[row["id"]])

    def act(self, row):
        if row["desired_state"] == "deleted":
            time.sleep(self.delete_delay)
            with self.lock:
                self.running.pop(row["id"], None)
                self.states.pop(row["id"], None)
            self.observed(row, "deleted", steps=[{"name": "remove", "duration_us": 700}])
            return
        with self.lock:
            known = row["id"] in self.running
        if not known:
            self.observed(row, "creating")
            until = time.monotonic() + self.create_delay
            while time.monotonic() < until:
                if self.wanted[row["id"]]["desired_state"] == "deleted":
                    return  # the delete has its own turn
                time.sleep(0.005)
            error = self.create_error
            if row.get("saved_from"):
                if row["saved_from"] not in self.saved:
                    error = {"code": "internal", "message": "the snapshot is not here"}
                with self.lock:
                    if self.child_failures > 0:
                        self.child_failures -= 1
                        error = self.child_error
            if error:
                self.observed(row, "failed", reason="it did not start", error=error)
                return
            with self.lock:
                self.running[row["id"]] = row
                self.states[row["id"]] = "running"
                self.created.append(row["id"])
            self.observed(row, "running", steps=[{"name": "start", "duration_us": 1500}])
            return
        self.change(row)

    def change(self, row):
        """A paused, suspended or running one becomes what is wanted."""
        rollback = row.get("rollback") or {"generation": 0}
        state = self.states[row["id"]]
        back = rollback["generation"] > self.rolled_back.get(row["id"], 0)
        if back or state != row["desired_state"]:
            time.sleep(self.change_delay)
            error = self.change_error(row) if callable(self.change_error) else self.change_error
            if back and rollback["snapshot_id"] not in self.saved:
                error = {"code": "internal", "message": "the snapshot is not here"}
            if error:
                self.observed(row, state, error=error)
                return
        if back:
            self.rolled_back[row["id"]] = rollback["generation"]
            self.log.append((row["id"], "rollback", rollback["snapshot_id"]))
        with self.lock:
            self.running[row["id"]] = row
            self.states[row["id"]] = row["desired_state"]
        self.log.append((row["id"], row["desired_state"], row["memory"]))
        self.observed(row, row["desired_state"], steps=[{"name": "change", "duration_us": 250}])

    def snapshot(self, row):
        if row["desired"] == "deleted":
            time.sleep(self.snapshot_delete_delay)
            self.saved.pop(row["id"], None)
            self.snapshots_are(row, "deleted")
            return
        with self.lock_of(row["sandbox_id"]):
            time.sleep(self.snapshot_delay)
            if self.snapshot_error:
                self.snapshots_are(row, "failed", error=self.snapshot_error)
                return
            if row["id"] not in self.saved:
                self.taken.append(row["id"])
            self.saved[row["id"]] = row
        self.snapshots_are(row, "ready", memory=row["memory"], size_bytes=8192,
                           steps=[{"name": "pause", "duration_us": 3000}])

    def snapshots_are(self, row, state, **more):
        return self.post("/worker/v1/snapshots", {"node": self.node, "snapshots": [
            {"id": row["id"], "state": state, **more}]})

    def activity(self, sandbox_id, attached, cpu_percent):
        return self.post("/worker/v1/activity", {"node": self.node, "sandboxes": [
            {"id": sandbox_id, "attached": attached, "cpu_percent": cpu_percent}]})

    def build(self, build):
        path = f"/worker/v1/builds/{build['id']}"
        self.builds[build["id"]] = build
        self.post(path, {"state": "running", "log": "unpacking\n"})
        time.sleep(self.create_delay)
        if self.build_error:
            self.post(path, {"state": "failed", "log": "no\n", "error": self.build_error})
            return
        self.post(path, {"state": "succeeded", "log": "done\n", "digest": self.build_digest, "size_bytes": 4096,
                         "config": {"user": "user"}})

    # --- from the server
    def serve_data(self):
        worker = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 1 << 16  # head and body in one packet

            def log_message(self, *args):
                pass

            def answer(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length) or b"null")
                status, content = 200, b"{}"
                if self.headers.get("Authorization") != f"Bearer {worker.server.node_key}":
                    status, content = 401, b'{"error":{"code":"unauthenticated","message":"no"}}'
                else:
                    worker.requests.append((self.path, body))
                    if self.path.endswith("/exec"):
                        status, content = worker.exec_status, worker.exec_body
                    elif self.path.endswith("/processes"):
                        content = b'{"items":[]}'
                    elif self.path.endswith("/start"):
                        content = b'{"state":"running","pid":7}'
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = answer

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.data_url = f"http://127.0.0.1:{self.http.server_port}"
        self.spawn(self.http.serve_forever)

    def spawn(self, target):
        thread = threading.Thread(target=target, daemon=True)
        thread.start()
        self.threads.append(thread)

    def start(self):
        self.serve_data()
        self.register()
        self.spawn(self.heartbeat)
        self.spawn(self.watch)

    def stop(self):
        self.stopping.set()
        self.http.shutdown()
        self.http.server_close()

    def make_template(self, name="seed"):
        answer = self.server.call("POST", "/v1/templates", {"name": name, "recipe": SEED},
                                  headers={"Prefer": "wait=30"})
        assert answer["operation"]["state"] == "succeeded", answer
        return answer


def token_hash(token):
    return hashlib.sha256(token.encode()).hexdigest()
