"""kill -9 and SIGTERM of the server, with the worker going on."""

import concurrent.futures
import sqlite3
import threading
import time

import pytest

from api_fixtures import make_pair
from fake_worker import Server


@pytest.fixture
def own(tmp_path):
    yield from make_pair(tmp_path)


def wait_ready(server):
    deadline = time.monotonic() + 20
    while server.request("GET", "/readyz")[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_l4_l5_kill_in_the_middle_of_creates(own):
    server, worker = own
    for _ in range(3):
        worker.create_delay = 0.5
        key = {"Idempotency-Key": f"crash-{time.monotonic()}"}
        answers = [server.call("POST", "/v1/sandboxes", {}, headers=key)]
        answers += [server.create(wait=0) for _ in range(4)]
        server.kill()
        server.start()
        wait_ready(server)
        again = server.call("POST", "/v1/sandboxes", {}, headers=key)  # the client lost the answer
        assert again["sandbox"]["id"] == answers[0]["sandbox"]["id"]
        for answer in answers:
            assert server.operation_end(answer["operation"]["id"])["state"] == "succeeded"
            server.delete(answer["sandbox"]["id"])
    assert server.call("GET", "/v1/sandboxes")["items"] == [] and worker.running == {}


def test_kill_in_the_middle_of_deletes(own):
    server, worker = own
    boxes = [server.create()["sandbox"]["id"] for _ in range(4)]
    worker.delete_delay = 0.4
    operations = [server.delete(box, wait=0)["operation"]["id"] for box in boxes]
    server.kill()
    server.start()
    for box in boxes:
        status, seen, _ = server.request("GET", f"/v1/sandboxes/{box}")
        assert status == 404 or seen["state"] == "deleting"
    for operation in operations:
        assert server.operation_end(operation)["state"] == "succeeded"
    assert worker.running == {}


def test_l3_many_creates_at_once_with_kills(own):
    """The worker's live set equals the database's at the end, whatever clients and server did between."""
    server, worker = own
    worker.create_delay = 0.05

    def create(i):
        for _ in range(200):
            try:
                status, answer, _ = server.request("POST", "/v1/sandboxes", {},
                                                   headers={"Idempotency-Key": f"k{i}", "Prefer": "wait=20"})
                if status in (201, 202):
                    return answer["sandbox"]["id"]
            except (OSError, ConnectionError, Exception):  # the server is away: that is the point
                pass
            time.sleep(0.05)
        raise AssertionError("never answered")

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        futures = [pool.submit(create, i) for i in range(60)]
        for _ in range(3):
            time.sleep(0.15)
            server.kill()
            server.start()
        ids = [f.result() for f in futures]
    assert len(set(ids)) == 60
    deadline = time.monotonic() + 20
    while any(b["state"] != "running" for b in server.call("GET", "/v1/sandboxes?limit=1000")["items"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert {b["id"] for b in server.call("GET", "/v1/sandboxes?limit=1000")["items"]} == set(ids) == set(worker.running)


def test_stop_is_quick_with_waits_open(own):
    server, worker = own
    worker.hold = True
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(
        server.request("POST", "/v1/sandboxes", {}, headers={"Prefer": "wait=600"}))) for _ in range(10)]
    for thread in threads:
        thread.start()
    while len(server.call("GET", "/v1/sandboxes")["items"]) < 10:
        time.sleep(0.02)
    assert server.stop() < 2
    for thread in threads:
        thread.join(5)
    assert [a[0] for a in answers] == [202] * 10  # not an error: the operations go on


def test_create_without_a_worker(tmp_path):
    server = Server(tmp_path)
    server.start()
    try:
        assert server.request("GET", "/readyz")[0] == 503
        status, answer, _ = server.request("POST", "/v1/templates", {"name": "seed", "recipe": {}})
        assert status == 503 and answer["error"]["code"] == "unavailable"
        status, answer, _ = server.request("POST", "/v1/sandboxes", {})
        assert status == 400 and answer["error"]["field"] == "/template"
    finally:
        server.stop()


def test_a_node_whose_lease_ran_out_is_not_ready(own):
    server, worker = own
    box = server.create()["sandbox"]
    worker.stopping.set()  # no more heartbeats
    deadline = time.monotonic() + 20
    while server.request("GET", "/readyz")[0] == 200:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert server.call("GET", "/v1/nodes")["items"][0]["ready"] is False
    status, answer, _ = server.request("POST", "/v1/sandboxes", {})
    assert status == 503 and answer["error"]["code"] == "unavailable"
    assert server.call("GET", f"/v1/sandboxes/{box['id']}")["state"] == "running"  # L7: nothing is deleted for that


def test_another_process_may_open_the_database(own):
    """A backup or a shell, as docs/database.md allows: SQLite takes the log away when it believes to be the last one."""
    server, _ = own
    inode = server.database.stat().st_ino
    for _ in range(20):
        with open("/proc/locks", encoding="ascii") as locks:
            assert any(f":{inode} " in line and f" {server.process.pid} " in line for line in locks)
        other = sqlite3.connect(server.database)
        assert other.execute("SELECT COUNT(*) FROM sandboxes").fetchone()[0] >= 0
        other.close()
        server.delete(server.create()["sandbox"]["id"])


def test_another_process_may_open_the_database_of_a_server_without_standard_input(own):
    server, _ = own
    server.stop()
    server.wrapper = ["sh", "-c", 'exec "$0" "$@" <&-']
    server.start()
    wait_ready(server)
    test_another_process_may_open_the_database(own)
