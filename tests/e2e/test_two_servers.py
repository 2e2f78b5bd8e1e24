"""Two `space server` on one PostgreSQL behave as one, also when either of them, or the database, is killed."""

import concurrent.futures
import hashlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import pytest

import fake_server
from fake_worker import BUILD, FakeWorker, Server, secret
from postgres_cluster import Cluster

DIGEST = f"sha256:{fake_server.DIGEST_HEX}"


class SpaceServer(Server):
    """`space server` as `space up` would start it; start() after kill() continues on the same database."""

    def __init__(self, directory, name, url, key, node_key):
        directory = pathlib.Path(directory) / name
        directory.mkdir()
        super().__init__(directory)
        self.directory, self.key, self.node_key, self.database = directory, key, node_key, url

    def launch(self):
        self.log.flush()
        self.log_begin = (self.directory / "server.log").stat().st_size
        hashed = hashlib.sha256(self.key.encode()).hexdigest()
        read_end, write_end = os.pipe()
        os.write(write_end, json.dumps({"node_key": self.node_key, "api_key_hash": hashed,
                                        "database": self.database}).encode())
        os.close(write_end)
        self.process = subprocess.Popen(
            [str(BUILD / "space"), "server", "--state", str(self.directory), "--listen", f"127.0.0.1:{self.port}",
             "--secrets-fd", str(read_end)], pass_fds=[read_end], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=self.log)
        os.close(read_end)

    def start(self):
        self.launch()
        self.wait_up()

    def wait_up(self):
        deadline = time.monotonic() + 30
        while True:
            try:
                if self.request("GET", "/healthz")[0] == 200:
                    return
            except (OSError, http.client.HTTPException):
                pass
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.02)

    def said(self):
        """The log since the last start."""
        return (self.directory / "server.log").read_bytes()[self.log_begin:].decode()


class Pair:
    def __init__(self, cluster, directory, name):
        self.cluster, self.name = cluster, name
        url = cluster.make(name)
        key, node_key = secret("sk"), secret("nk")
        self.a, self.b = (SpaceServer(directory, n, url, key, node_key) for n in ("a", "b"))
        self.servers = (self.a, self.b)

    def start(self):
        """Both at once on an empty database: one of them makes the schema."""
        for server in self.servers:
            server.launch()
        for server in self.servers:
            server.wait_up()

    def stop(self):
        for server in self.servers:
            if server.process and server.process.poll() is None:
                server.kill()

    def sql(self, text):
        return self.cluster.sql(text, self.name)

    def leader(self):
        """(the server that holds the lease, the other one): it is the one that said so last."""
        wait_for(lambda: self.sql("SELECT count(*) FROM leases WHERE name = 'controller' AND"
                                  " expires_at > extract(epoch FROM clock_timestamp()) * 1000") == "1")

        def claims():
            found = []
            for server in self.servers:
                said = server.said()
                if server.process.poll() is None and said.rfind("is the controller now") > said.rfind("not the controller"):
                    found.append(server)
            return found
        found = wait_for(claims)
        assert len(found) == 1, "two servers act as the controller"
        return found[0], self.a if found[0] is self.b else self.b


def wait_for(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.03)
    return value


@pytest.fixture(scope="module")
def cluster():
    with Cluster() as made:
        yield made


@pytest.fixture
def pair(cluster, tmp_path, request):
    made = Pair(cluster, tmp_path, request.node.name[:40].lower())
    made.start()
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def worker(pair):
    """Talks to b only."""
    made = FakeWorker(pair.b)
    made.start()
    made.make_template()
    yield made
    made.stop()


def test_idempotency_key_at_the_other_server(pair, worker):
    key = {"Idempotency-Key": "one", "Prefer": "wait=30"}
    first = pair.a.call("POST", "/v1/sandboxes", {"name": "x"}, headers=key)
    again = pair.b.call("POST", "/v1/sandboxes", {"name": "x"}, headers=key)
    assert again["sandbox"]["id"] == first["sandbox"]["id"] and again["operation"]["id"] == first["operation"]["id"]
    status, answer, _ = pair.b.request("POST", "/v1/sandboxes", {"name": "y"}, headers=key)
    assert (status, answer["error"]["code"]) == (409, "idempotency_conflict") or status == 422
    # at both at once, many times
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        for i in range(10):
            headers = {"Idempotency-Key": f"race-{i}"}
            answers = list(pool.map(lambda n: pair.servers[n % 2].call("POST", "/v1/sandboxes", {}, headers=headers),
                                    range(8)))
            assert len({a["sandbox"]["id"] for a in answers}) == 1
    assert len(pair.a.call("GET", "/v1/sandboxes?limit=1000")["items"]) == 11


def test_wait_at_one_for_a_worker_at_the_other(pair, worker):
    """NOTIFY carries both ways: to the worker's long poll at b, and back to the waiting client at a."""
    times = []
    for _ in range(12):
        begun = time.monotonic()
        answer = pair.a.create()
        times.append(time.monotonic() - begun)
        assert answer["operation"]["state"] == "succeeded"
        assert pair.b.call("GET", f"/v1/sandboxes/{answer['sandbox']['id']}")["state"] == "running"
    # Without notifications every create would cost whole seconds (two slices of the polling).
    assert sorted(times)[len(times) // 2] < 0.9, times
    box = pair.a.create()["sandbox"]["id"]
    deleted = pair.a.delete(box)
    assert deleted["operation"]["state"] == "succeeded" and box not in worker.running
    assert pair.b.request("GET", f"/v1/sandboxes/{box}")[0] == 404


def test_polling_alone_is_correct(pair, worker):
    """Every listening connection is cut again and again: slower, and nothing is lost."""
    stop = threading.Event()

    def cut():
        while not stop.is_set():
            pair.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                     " AND pid <> pg_backend_pid() AND query LIKE '%LISTEN%' OR query LIKE '%pg_notify%'"
                     " AND pid <> pg_backend_pid()")
            time.sleep(0.05)
    thread = threading.Thread(target=cut)
    thread.start()
    try:
        for _ in range(3):
            assert pair.a.create()["operation"]["state"] == "succeeded"
    finally:
        stop.set()
        thread.join()


def test_deletes_at_both_at_once(pair, worker):
    worker.delete_delay = 0.1
    boxes = [pair.a.create()["sandbox"]["id"] for _ in range(8)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        futures = [(box, pool.submit(server.delete, box)) for box in boxes for server in pair.servers]
        answers = {}
        for box, future in futures:
            answers.setdefault(box, set()).add(future.result()["operation"]["id"])
    assert all(len(operations) == 1 for operations in answers.values()), "one operation, whoever asks"
    assert worker.running == {} and pair.b.call("GET", "/v1/sandboxes")["items"] == []


def test_create_and_delete_race(pair, worker):
    worker.create_delay = 0.05

    def once(i):
        box = pair.servers[i % 2].create(wait=0)["sandbox"]["id"]
        return pair.servers[(i + 1) % 2].delete(box)["operation"]["state"]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        assert set(pool.map(once, range(36))) == {"succeeded"}
    assert all(server.call("GET", "/v1/sandboxes")["items"] == [] for server in pair.servers)


def test_pages_fit_together_across_servers(pair, worker):
    made = [pair.servers[i % 2].create(wait=0)["sandbox"]["id"] for i in range(25)]
    seen, cursor, turn = [], "", 0
    while cursor is not None:
        page = pair.servers[turn % 2].call("GET", f"/v1/sandboxes?limit=4{cursor and '&cursor=' + cursor}")
        seen += [box["id"] for box in page["items"]]
        cursor, turn = page["next_cursor"], turn + 1
    assert len(seen) == len(set(seen)) == 25 and set(seen) == set(made) and seen == sorted(seen, reverse=True)


def test_leader_killed(pair, worker):
    """L11: expiry goes on under the other server, and there are never two."""
    leader, other = pair.leader()
    box = other.create({"max_lifetime": "10s"})["sandbox"]["id"]
    worker.server = other  # as a load balancer would do
    leader.kill()
    begun = time.monotonic()
    assert wait_for(lambda: pair.leader()[0] is other, 20)
    assert time.monotonic() - begun < 12
    wait_for(lambda: other.request("GET", f"/v1/sandboxes/{box}")[0] == 404, 25)
    assert box not in worker.running
    leader.start()
    time.sleep(2.5)  # more than it takes to ask for the lease
    assert pair.leader()[0] is other


def test_leader_stopped_cleanly_hands_over_at_once(pair, worker):
    leader, other = pair.leader()
    assert leader.stop() < 5
    begun = time.monotonic()
    assert pair.leader()[0] is other
    assert time.monotonic() - begun < 4


def test_leader_frozen(pair, worker):
    """A server that hangs for longer than its lease finds itself replaced, and does not act on old news."""
    leader, other = pair.leader()
    leader.process.send_signal(signal.SIGSTOP)
    try:
        wait_for(lambda: "is the controller now" in other.said(), 20)
    finally:
        leader.process.send_signal(signal.SIGCONT)
    wait_for(lambda: leader.said().rfind("not the controller any more") > leader.said().rfind("is the controller now"))
    assert pair.leader()[0] is other
    box = leader.create()["sandbox"]["id"]  # it serves the API as before
    assert other.call("GET", f"/v1/sandboxes/{box}")["state"] == "running"


def test_both_killed_in_the_middle_of_creates(pair, worker):
    worker.create_delay = 0.3
    keys = [{"Idempotency-Key": f"k{i}"} for i in range(10)]
    answers = [pair.servers[i % 2].call("POST", "/v1/sandboxes", {}, headers=keys[i]) for i in range(10)]
    for server in pair.servers:
        server.kill()
    pair.start()
    for i, answer in enumerate(answers):
        again = pair.servers[(i + 1) % 2].call("POST", "/v1/sandboxes", {}, headers=keys[i])
        assert again["sandbox"]["id"] == answer["sandbox"]["id"]
        assert pair.a.operation_end(answer["operation"]["id"])["state"] == "succeeded"
    assert {box["id"] for box in pair.b.call("GET", "/v1/sandboxes")["items"]} == set(worker.running)


def test_many_clients_with_kills(pair, worker):
    """The live set equals the database's, whichever server was killed at whatever moment."""
    worker.create_delay = 0.05

    def create(i):
        for attempt in range(300):
            try:
                status, answer, _ = pair.servers[(i + attempt) % 2].request(
                    "POST", "/v1/sandboxes", {}, headers={"Idempotency-Key": f"k{i}", "Prefer": "wait=20"})
                if status in (201, 202):
                    return answer["sandbox"]["id"]
            except (OSError, http.client.HTTPException):  # that server is away
                pass
            time.sleep(0.05)
        raise AssertionError("never answered")

    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        futures = [pool.submit(create, i) for i in range(60)]
        for turn in range(4):
            time.sleep(0.15)
            pair.servers[turn % 2].kill()
            pair.servers[turn % 2].start()
        ids = [f.result() for f in futures]
    assert len(set(ids)) == 60
    wait_for(lambda: all(b["state"] == "running" for b in pair.a.call("GET", "/v1/sandboxes?limit=1000")["items"]))
    assert {b["id"] for b in pair.b.call("GET", "/v1/sandboxes?limit=1000")["items"]} == set(ids) == set(worker.running)


def test_database_crashes(cluster, pair, worker):
    """While it is away the servers say so (503) and live on; afterwards all that was answered is there."""
    boxes = {pair.a.create()["sandbox"]["id"] for _ in range(3)}
    for _ in range(2):
        cluster.crash()
        status, answer, _ = pair.a.request("POST", "/v1/sandboxes", {})
        assert (status, answer["error"]["code"]) == (503, "unavailable"), answer
        assert pair.b.request("GET", "/healthz")[0] == 200
        status, answer, _ = pair.b.request("GET", "/readyz")
        assert status == 503 and answer["store"] is False
        cluster.start()
        boxes.add(wait_for(lambda: pair.b.request("POST", "/v1/sandboxes", {}, headers={"Prefer": "wait=30"}))[1]
                  ["sandbox"]["id"])
        assert {box["id"] for box in pair.a.call("GET", "/v1/sandboxes")["items"]} == boxes == set(worker.running)
    pair.leader()


def test_real_worker(pair):
    """`space worker` at one server, the client at the other: create, exec, attach's token, delete."""
    if os.geteuid() != 0:
        pytest.fail("the fake driver makes namespaces: run as root")
    builder = FakeWorker(pair.b)
    builder.build_digest = DIGEST
    builder.start()
    builder.make_template()
    builder.stop()
    state = pathlib.Path(tempfile.mkdtemp(prefix="space-worker-"))
    pair.b.registered = []
    worker = fake_server.Worker(BUILD, state, pair.b)
    read_end, write_end = os.pipe()
    os.write(write_end, json.dumps({"node_key": pair.b.node_key}).encode())
    os.close(write_end)
    with open(state / "worker.log", "ab") as log:
        worker.process = subprocess.Popen(
            [str(BUILD / "space"), "worker", "--state", str(state), "--listen", "127.0.0.1:0", "--server-url", pair.b.url,
             "--secrets-fd", str(read_end), "--fake-driver", "--agent", str(BUILD / "agent" / "space-agent")],
            pass_fds=[read_end], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    os.close(read_end)
    try:
        wait_for(lambda: pair.sql("SELECT instance FROM nodes") not in ("", builder.instance))
        body = {"isolation": "container"}
        answer = wait_for(lambda: (r := pair.a.request("POST", "/v1/sandboxes", body, headers={"Prefer": "wait=30"}))[0]
                          in (200, 201) and r[1])
        assert answer["operation"]["state"] == "succeeded", (answer, worker.log())
        box = answer["sandbox"]["id"]
        for server in pair.servers:
            ran = server.call("POST", f"/v1/sandboxes/{box}/exec", {"command": ["/bin/echo", "-n", "hello"]})
            assert ran["exit_code"] == 0 and ran["stdout"] == "hello", ran
        pair.b.kill()  # the worker goes on, and tells later
        ran = pair.a.call("POST", f"/v1/sandboxes/{box}/exec", {"command": ["/bin/echo", "-n", "alone"]})
        assert ran["stdout"] == "alone"
        pair.b.start()
        assert pair.a.delete(box)["operation"]["state"] == "succeeded"
        assert os.listdir(state / "run" / "sandboxes") == []
    finally:
        for left in os.listdir(state / "run" / "sandboxes"):  # after a failure
            pair.a.request("DELETE", f"/v1/sandboxes/{left}", headers={"Prefer": "wait=20"})
        worker.stop()
        shutil.rmtree(state, ignore_errors=True)


# --- the options

def server_says(directory, *options, env=None):
    """What `space server` says when it cannot start."""
    read_end, write_end = os.pipe()
    os.write(write_end, json.dumps({"node_key": secret("nk"), "api_key_hash": "0" * 64}).encode())
    os.close(write_end)
    done = subprocess.run([str(BUILD / "space"), "server", "--state", str(directory), "--listen", "127.0.0.1:0",
                           "--secrets-fd", str(read_end), *options], pass_fds=[read_end], capture_output=True, text=True,
                          timeout=60, check=False, env={**os.environ, **(env or {})})
    os.close(read_end)
    assert done.returncode != 0
    return done.stderr


def test_passwords_are_not_shown(tmp_path):
    secret_url = "postgresql://me:sesame@/x?host=/nonexistent"
    said = server_says(tmp_path, "--database", secret_url)
    assert "--database-file" in said and "sesame" not in said
    file = tmp_path / "url"
    file.write_text(secret_url + "\n")
    for said in (server_says(tmp_path, "--database-file", str(file)),
                 server_says(tmp_path, env={"SPACE_DATABASE": secret_url}),
                 server_says(tmp_path, env={"SPACE_DATABASE": "postgresql://me:sesame%zz@h/x"}),
                 server_says(tmp_path, env={"SPACE_DATABASE": "mysql://me:sesame@h/x"})):
        assert "sesame" not in said and ("cannot reach the database" in said or "URL" in said), said
    assert not (tmp_path / "space.db").exists()


def up_command(state, *options):
    from fake_worker import free_port  # ports of this call only
    return [str(BUILD / "space"), "up", "--fake-driver", "--state", str(state), "--api", f"127.0.0.1:{free_port()}",
            "--data", f"127.0.0.1:{free_port()}", *options]


def run_up(command, env=None):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, **(env or {})})
    lines = [process.stdout.readline() for _ in range(2)]
    assert lines[1], process.communicate(timeout=20)
    return process, dict(line.split() for line in lines)


def test_up_on_postgres(cluster, tmp_path):
    """The database is kept in mind; another one is refused while sandboxes are there; doctor names it."""
    if os.geteuid() != 0:
        pytest.fail("`space up` needs root")
    url = cluster.make("up").replace("space@", "space:sesame@")
    state = tmp_path / "state"
    process, said = run_up(up_command(state), env={"SPACE_DATABASE": url})
    try:
        assert cluster.sql("SELECT count(*) FROM nodes", "up") == "1"
        assert not (state / "server" / "space.db").exists()
        kept = state / "database"
        assert kept.read_text().strip() == url and kept.stat().st_mode & 0o777 == 0o600
        for proc in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if str(state).encode() in (proc / "cmdline").read_bytes() and int(proc.name) != process.pid:
                    assert b"sesame" not in (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
            except OSError:
                continue
        doctor = subprocess.run([str(BUILD / "space"), "doctor", "--state", str(state)], capture_output=True, text=True,
                                check=False)
        line = next(line for line in doctor.stdout.splitlines() if " database " in line)
        assert line.startswith("ok") and "postgresql://" in line and "/up" in line and "sesame" not in doctor.stdout
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        process, again = run_up(up_command(state))  # it is kept in mind
        assert again["key:"] == said["key:"] and not (state / "server" / "space.db").exists()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0

        (state / "run" / "sandboxes" / "sbx_left").mkdir(parents=True)
        done = subprocess.run(up_command(state, "--database", "sqlite"), capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode != 0 and "space down" in done.stderr and "sesame" not in done.stderr
        (state / "run" / "sandboxes" / "sbx_left").rmdir()
        process, _ = run_up(up_command(state, "--database", "sqlite"))
        assert (state / "server" / "space.db").exists() and not kept.exists()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        # what stands in the environment by now has no say in an installation that is there
        subprocess.run([str(BUILD / "space"), "down", "--fake-driver", "--state", str(state)], check=True, timeout=90,
                       capture_output=True, env={**os.environ, "SPACE_DATABASE": "postgresql://me@/x?host=/nonexistent"})
    for path in state.rglob("*"):
        if path.is_file() and path.stat().st_size < 1 << 20:
            assert b"sesame" not in path.read_bytes(), path


def test_up_refuses_a_database_that_is_not_there(tmp_path):
    begun = time.monotonic()
    done = subprocess.run(up_command(tmp_path / "state", "--database", "postgresql://me@/x?host=/nonexistent"),
                          capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 125 and "cannot reach the database" in done.stderr and "/nonexistent" in done.stderr
    assert time.monotonic() - begun < 20
    assert not (tmp_path / "state" / "database").exists()
