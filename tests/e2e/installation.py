"""Starts and stops a real SPACE installation, and speaks its HTTP API with nothing but the standard library."""

import base64
import http.client
import json
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import threading
import time
import urllib.parse


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class ApiError(Exception):
    def __init__(self, status, body):
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body
        self.error = body.get("error", {}) if isinstance(body, dict) else {}


class Installation:
    """fake: with the fake driver, which makes no sandboxes of the host's. failpoints: lines in <state>/failpoints are obeyed
    (docs/failpoints.md). more: further arguments of `space up`."""

    def __init__(self, build, state, fake=False, failpoints=False, more=()):
        self.build = pathlib.Path(build)
        self.state = pathlib.Path(state)
        self.space = str(self.build / "space")
        self.fake = fake
        self.failpoint_file = self.state / "failpoints" if failpoints else None
        self.more = list(more)
        self.process = None
        self.url = None
        self.key = None
        self.api_port = free_port()
        self.data_port = free_port()
        self.output = []

    def env(self):
        env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        env.update(SPACE_URL=self.url or "", SPACE_KEY=self.key or "")
        return env

    def up(self, timeout=60):
        """Starts `space up` and waits for the two lines that say it is ready."""
        self.state.mkdir(parents=True, exist_ok=True)
        env = dict(os.environ)
        if self.failpoint_file:
            self.failpoint_file.unlink(missing_ok=True)
            env["SPACE_FAILPOINTS"] = str(self.failpoint_file)
        self.process = subprocess.Popen(
            [self.space, "up", "--state", str(self.state), "--api", f"127.0.0.1:{self.api_port}",
             "--data", f"127.0.0.1:{self.data_port}", *(["--fake-driver"] if self.fake else []),
             *([] if "--pool-max" in self.more else ["--pool-max", "0"]), *self.more],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        ready = threading.Event()
        self.key = None

        def read(process):
            for line in process.stdout:
                self.output.append(line)
                if m := re.match(r"url: (\S+)", line):
                    self.url = m.group(1)
                if m := re.match(r"key: (\S+)", line):
                    self.key = m.group(1)
                    ready.set()
            ready.set()

        threading.Thread(target=read, args=(self.process,), daemon=True).start()
        if not ready.wait(timeout) or not self.key:
            self.process.kill()
            raise RuntimeError("space up did not become ready:\n" + "".join(self.output))

    def stop(self, timeout=30):
        """SIGTERM to `space up`; its daemons end, sandboxes go on."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout)

    def down(self):
        subprocess.run([self.space, "down", "--state", str(self.state), *(["--fake-driver"] if self.fake else [])],
                       check=True, timeout=300, stdout=subprocess.DEVNULL)

    def crash(self, timeout=20):
        """SIGKILL to `space up` and all its daemons at once, as when the power goes for them; sandboxes go on."""
        daemons = [self.process.pid]
        for pid in self._descendants(self.process.pid):
            argv = self._argv(pid)
            if len(argv) > 1 and argv[0] == b"space" and argv[1] in (b"server", b"worker", b"launcher"):
                daemons.append(pid)
        pidfds = [os.pidfd_open(pid) for pid in daemons]
        for fd in pidfds:
            try:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
            except ProcessLookupError:
                pass  # the launcher ends with its worker
        self.process.wait(timeout)
        for fd in pidfds:
            assert select.select([fd], [], [], timeout)[0], "a daemon did not die"
            os.close(fd)

    def failpoint(self, *lines):
        """Sets the failpoints, in one step; without lines: none."""
        new = self.failpoint_file.with_suffix(".set")
        new.write_text("".join(line + "\n" for line in lines))
        new.rename(self.failpoint_file)

    @staticmethod
    def _argv(pid):
        try:
            return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return []

    def daemon_pid(self, name):
        """pid of the daemon `space <name>` below this `space up`."""
        for pid in self._descendants(self.process.pid):
            argv = self._argv(pid)
            if len(argv) > 1 and argv[1] == name.encode():
                return pid
        raise LookupError(f"no daemon {name} below {self.process.pid}")

    @staticmethod
    def _descendants(root):
        parents = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    stat = pathlib.Path(f"/proc/{entry}/stat").read_text()
                except OSError:
                    continue
                parents[int(entry)] = int(stat.rsplit(")", 1)[1].split()[1])
        found = [root]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found[1:]

    def kill_daemon(self, name):
        """kill -9 of a daemon; returns when a new one answers."""
        old = self.daemon_pid(name)
        os.kill(old, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                if self.daemon_pid(name) != old:
                    self.api().wait_ready()
                    return
            except (LookupError, OSError):
                pass
            time.sleep(0.02)
        raise RuntimeError(f"{name} did not come back:\n" + "".join(self.output[-20:]))

    def api(self):
        return Api(self.url, self.key)

    def inventory(self):
        """What the worker holds (docs/worker-protocol.md)."""
        key = (self.state / "node.key").read_text().strip()
        return Api(f"http://127.0.0.1:{self.data_port}", key).get("/node/v1/inventory")

    def tier_status(self, tier):
        for node in self.api().get("/v1/nodes")["items"]:
            for status in node["tiers"]:
                if status["tier"] == tier:
                    return status
        return {"available": False, "detail": "no node reports this tier"}

    def ensure_template(self, name, recipe, timeout=1500):
        """Builds the template if the installation does not have it yet."""
        if any(t["name"] == name for t in self.api().get("/v1/templates")["items"]):
            return
        done = subprocess.run([self.space, "template", "build", str(recipe)], env=self.env(), timeout=timeout,
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"template build failed ({done.returncode}):\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


class Api:
    def __init__(self, url, key):
        parts = urllib.parse.urlsplit(url)
        self.host, self.port = parts.hostname, parts.port
        self.key = key

    def request(self, method, path, body=None, headers=None, key=None, timeout=90, raw=None):
        """One request; returns (status, decoded JSON or bytes, headers)."""
        conn = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            h = {"Authorization": f"Bearer {key or self.key}"}
            h.update(headers or {})
            data = raw
            if body is not None:
                data = json.dumps(body).encode()
                h.setdefault("Content-Type", "application/json")
            conn.request(method, path, body=data, headers=h)
            answer = conn.getresponse()
            content = answer.read()
            if answer.headers.get("Content-Type", "").startswith("application/json"):
                content = json.loads(content)
            return answer.status, content, answer.headers
        finally:
            conn.close()

    def call(self, method, path, body=None, **kw):
        status, content, _ = self.request(method, path, body, **kw)
        if status >= 300:
            raise ApiError(status, content)
        return content

    def get(self, path, **kw):
        return self.call("GET", path, **kw)

    def wait_ready(self, timeout=30):
        deadline = time.monotonic() + timeout
        while True:
            try:
                status, _, _ = self.request("GET", "/readyz")
                if status == 200:
                    return
            except OSError:
                pass
            if time.monotonic() > deadline:
                raise RuntimeError("the server is not ready")
            time.sleep(0.02)

    def create(self, wait=60, headers=None, **body):
        """A sandbox that runs when this returns."""
        answer = self.call("POST", "/v1/sandboxes", body, headers={"Prefer": f"wait={wait}", **(headers or {})})
        assert answer["sandbox"]["state"] == "running", answer
        return answer["sandbox"]

    def delete(self, sandbox_id, wait=60):
        return self.call("DELETE", f"/v1/sandboxes/{sandbox_id}", headers={"Prefer": f"wait={wait}"})

    def change(self, sandbox_id, verb, wait=120, **body):
        """pause, suspend, wake, rollback: the sandbox as it is then."""
        return self.call("POST", f"/v1/sandboxes/{sandbox_id}/{verb}", body, headers={"Prefer": f"wait={wait}"} if wait else None,
                         timeout=wait + 30)["sandbox"]

    def fork(self, sandbox_id, count=1, wait=300, **body):
        """The running children; a failed one is an AssertionError."""
        results = self.call("POST", f"/v1/sandboxes/{sandbox_id}/fork", {"count": count, **body},
                            headers={"Prefer": f"wait={wait}"}, timeout=wait + 30)["results"]
        assert [r.get("sandbox", {}).get("state") for r in results] == ["running"] * count, results
        return [r["sandbox"] for r in results]

    def snapshot(self, sandbox_id, wait=120, **body):
        answer = self.call("POST", f"/v1/sandboxes/{sandbox_id}/snapshots", body, headers={"Prefer": f"wait={wait}"}, timeout=wait + 30)
        assert answer["operation"]["state"] == "succeeded", answer
        return self.get(f"/v1/snapshots/{answer['snapshot']['id']}")

    def delete_snapshot(self, snapshot_id, wait=60):
        return self.call("DELETE", f"/v1/snapshots/{snapshot_id}", headers={"Prefer": f"wait={wait}"})

    def live(self):
        """All sandboxes that are there: {id: sandbox}."""
        found, cursor = {}, None
        while True:
            page = self.get("/v1/sandboxes?limit=100" + (f"&cursor={urllib.parse.quote(cursor)}" if cursor else ""))
            found.update((box["id"], box) for box in page["items"])
            cursor = page["next_cursor"]
            if not cursor:
                return found

    def follow(self, operation_id, seconds=120):
        """The operation once it has ended, across restarts of the server."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                op = self.get(f"/v1/operations/{operation_id}")
                if op["state"] in ("succeeded", "failed"):
                    return op
            except (OSError, http.client.HTTPException):
                op = None
            assert time.monotonic() < deadline, f"operation {operation_id} did not end: {op}"
            time.sleep(0.02)

    def exec(self, sandbox_id, *command, **more):
        return self.call("POST", f"/v1/sandboxes/{sandbox_id}/exec", {"command": list(command), **more})

    def session(self, sandbox_id, *command, **more):
        return self.call("POST", f"/v1/sandboxes/{sandbox_id}/sessions", {"command": list(command), **more})

    def attach(self, attach, last_event_id=None, timeout=60):
        """Opens the event stream of an attachment; an iterator of (id, event dict)."""
        return EventStream(attach["url"], attach["token"], last_event_id, timeout)

    def run(self, sandbox_id, *command, **more):
        """Session + attach until the end; a dict with stdout, stderr (bytes), exit (the last event) and events."""
        session = self.session(sandbox_id, *command, **more)
        events = [event for _, event in self.attach(session["attach"])]
        return {"stdout": output_of(events, "stdout"), "stderr": output_of(events, "stderr"), "exit": events[-1],
                "events": events, "session": session["session"]}


def output_of(events, kind):
    return b"".join(base64.b64decode(e["data"]) for e in events if e["type"] == kind)


class EventStream:
    """A strict reader of one SSE response."""

    def __init__(self, url, token, last_event_id=None, timeout=60):
        parts = urllib.parse.urlsplit(url)
        self.conn = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
        headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = str(last_event_id)
        self.conn.request("GET", parts.path, headers=headers)
        self.answer = self.conn.getresponse()
        if self.answer.status != 200:
            content = self.answer.read()
            self.conn.close()
            raise ApiError(self.answer.status, json.loads(content))

    def __iter__(self):
        event_id = None
        kind = data = None
        for line in self.answer:
            line = line.rstrip(b"\r\n")
            if not line:
                if data is not None:
                    event = json.loads(data)
                    assert kind is None or kind == event["type"], (kind, event)
                    yield event_id, event
                kind = data = None
            elif line.startswith(b"id: "):
                event_id = int(line[4:])
            elif line.startswith(b"event: "):
                kind = line[7:].decode()
            elif line.startswith(b"data: "):
                data = line[6:] if data is None else data + b"\n" + line[6:]
            else:
                assert line.startswith(b":"), f"not a line of SSE: {line!r}"
        self.conn.close()

    def close(self):
        if self.conn.sock:
            self.conn.sock.close()
        self.answer.close()
        self.conn.close()
