"""Random requests of many clients, failing changes, lost workers' words and kill -9 of the server: at the end server
and worker agree, and nothing is left over. SPACE_SEED repeats a run."""

import concurrent.futures
import http.client
import os
import random
import threading
import time

import pytest

from api_fixtures import make_pair
from test_api_change import until

CLIENTS, SECONDS = 12, 12
VERBS = ["pause", "suspend", "wake", "fork", "snapshots", "rollback", "delete", "create", "from", "drop", "exec"]
ALLOWED = {"create": {202, 409}, "from": {202, 400, 409}, "rollback": {202, 400, 404, 409}, "exec": {200, 404, 409}}


class Crowd:
    def __init__(self, server, rng):
        self.server, self.rng = server, rng
        self.lock = threading.Lock()
        self.boxes, self.snapshots, self.deleted = [], [], set()
        self.wrong = []

    def pick(self, items):
        with self.lock:
            return self.rng.choice(items) if items else None

    def step(self, rng):
        verb = rng.choice(VERBS)
        box, snapshot = self.pick(self.boxes), None
        if verb in ("from", "drop", "rollback") and (pair := self.pick(self.snapshots)):
            snapshot, origin = pair
            box = origin if verb == "rollback" and rng.random() < 0.8 else box
        method, path, body = "POST", f"/v1/sandboxes/{box}/{verb}", {}
        if verb == "create" or (verb != "drop" and not box):
            verb, path, body = "create", "/v1/sandboxes", {"isolation": "microvm", "on_idle": "none"}
        elif verb in ("from", "drop", "rollback") and not snapshot:
            return
        elif verb == "from":
            path, body = "/v1/sandboxes", {"snapshot_id": snapshot, "on_idle": "none"}
        elif verb == "drop":
            method, path, body = "DELETE", f"/v1/snapshots/{snapshot}", None
        elif verb == "rollback":
            body = {"snapshot_id": snapshot}
        elif verb == "delete":
            method, path, body = "DELETE", f"/v1/sandboxes/{box}", None
        elif verb == "fork":
            body = {"count": rng.randrange(1, 4)}
        elif verb == "exec":
            body = {"command": ["true"]}
        key = {"Idempotency-Key": f"{rng.random()}"}
        while True:  # the answer may be lost with the server: the same request again
            try:
                status, answer, _ = self.server.request(method, path, body, headers=key, timeout=20)
            except (OSError, http.client.HTTPException):
                if verb == "exec":
                    return
                time.sleep(0.05)
                continue
            break
        self.take(verb, box, status, answer)

    def take(self, verb, box, status, answer):
        allowed = ALLOWED.get(verb, {200, 202, 404, 409})
        if status not in allowed and not (verb == "exec" and status in (409, 503)):
            self.wrong.append((verb, status, answer))
        if status >= 300:
            return
        with self.lock:
            if verb in ("create", "from"):
                self.boxes.append(answer["sandbox"]["id"])
            elif verb == "fork":
                self.boxes += [r["sandbox"]["id"] for r in answer["results"] if "sandbox" in r]
            elif verb == "snapshots" and answer["snapshot"]:
                self.snapshots.append((answer["snapshot"]["id"], box))
            elif verb == "delete":
                self.deleted.add(box)
        if verb == "delete":  # L1
            try:
                status, seen, _ = self.server.request("GET", f"/v1/sandboxes/{box}")
            except (OSError, http.client.HTTPException):
                return
            if status == 200 and seen["state"] != "deleting":
                self.wrong.append(("after delete", seen))

    def client(self, seed, end):
        rng = random.Random(seed)
        while time.monotonic() < end:
            self.step(rng)


def all_of(server, path):
    items, cursor = [], ""
    while True:
        page = server.call("GET", f"{path}?limit=1000{cursor}")
        items += page["items"]
        if not page["next_cursor"]:
            return items
        cursor = f"&cursor={page['next_cursor']}"


@pytest.fixture
def own(tmp_path):
    yield from make_pair(tmp_path)


def test_l1_l2_l3_random_changes(own):
    server, worker = own
    seed = int(os.environ.get("SPACE_SEED", "0")) or random.randrange(1, 10**9)
    print(f"SPACE_SEED={seed}")
    rng = random.Random(seed)
    failing = random.Random(seed + 1)
    error = {"code": "unavailable", "message": "injected"}
    worker.change_delay, worker.create_delay, worker.snapshot_delay, worker.delete_delay = 0.02, 0.01, 0.02, 0.01
    worker.change_error = lambda row: error if failing.random() < 0.2 else None
    worker.child_error = error
    crowd = Crowd(server, rng)
    end = time.monotonic() + SECONDS
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(crowd.client, seed + i, end) for i in range(CLIENTS)]
        while time.monotonic() < end:
            time.sleep(rng.uniform(0.5, 1.5))
            worker.snapshot_error = error if rng.random() < 0.3 else None
            worker.child_failures = rng.randrange(3)
            server.kill()
            server.start()
        for client in clients:
            client.result()
    worker.change_error = worker.snapshot_error = None
    worker.child_failures = 0
    assert crowd.wrong == []

    def settled():
        open_ones = [op for state in ("pending", "running") for op in
                     server.call("GET", f"/v1/operations?state={state}&limit=1000")["items"]]
        return not open_ones

    until(settled, 30)
    rows = {b["id"]: b for b in all_of(server, "/v1/sandboxes")}
    alive = {i: b["state"] for i, b in rows.items() if b["state"] != "failed"}
    until(lambda: worker.states == alive, 10)
    assert all(b["state"] == b["desired_state"] for b in rows.values() if b["state"] != "failed")
    assert not crowd.deleted & set(rows)
    kept = {s["id"] for s in all_of(server, "/v1/snapshots")}
    until(lambda: set(worker.saved) == kept, 10)
    kinds = {(op["kind"], op["state"]) for op in all_of(server, "/v1/operations")}
    for kind in ("create", "pause", "suspend", "wake", "snapshot", "fork", "rollback", "snapshot_delete", "delete"):
        assert (kind, "succeeded") in kinds, kind
    for kind in ("pause", "suspend", "wake", "snapshot", "fork"):
        assert (kind, "failed") in kinds, kind

    for box in rows:
        server.delete(box, wait=0)
    for snapshot in kept:
        server.call("DELETE", f"/v1/snapshots/{snapshot}")
    until(lambda: not worker.states and not worker.saved and not all_of(server, "/v1/sandboxes"), 30)
    assert all_of(server, "/v1/snapshots") == []
