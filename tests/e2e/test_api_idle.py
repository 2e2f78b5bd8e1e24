"""What is done to a sandbox that nobody uses: the real server with a fake worker. The rules with the clock set forward
are in tests/unit/store/idle.c."""

import time

import pytest

from api_fixtures import pair, server, worker  # noqa: F401
from test_api_change import get, microvm, post


def idle(server, on_idle, **more):
    return server.create({"idle_timeout": "10s", "on_idle": on_idle, **more})["sandbox"]


def state_of(server, box):
    """By the list: a GET of the sandbox itself is a use of it."""
    for row in server.call("GET", "/v1/sandboxes?limit=1000")["items"]:
        if row["id"] == box["id"]:
            return row["state"]
    return "deleted"


def test_idle_by_time(server, worker):
    """L11, L12: all at once, because each takes its ten seconds."""
    suspended = idle(server, "suspend", isolation="microvm")
    fallback = idle(server, "suspend", isolation="container")
    failing = idle(server, "suspend", isolation="microvm")
    paused = idle(server, "pause")
    deleted = idle(server, "delete")
    kept = idle(server, "none")
    session = idle(server, "delete")
    attached = idle(server, "delete")
    computing = idle(server, "delete")
    asked = idle(server, "delete")
    asleep = idle(server, "delete")
    post(server, asleep, "pause")
    made = server.call("POST", f"/v1/sandboxes/{session['id']}/sessions", {"command": ["cat"]})["session"]
    worker.post("/worker/v1/sessions", {"node": "local", "sessions": [{"id": made["id"], "state": "running"}]})
    wanted = {suspended["id"]: "suspended", fallback["id"]: "paused", failing["id"]: "paused", paused["id"]: "paused",
              deleted["id"]: "deleted", kept["id"]: "running", session["id"]: "running", attached["id"]: "running",
              computing["id"]: "running", asked["id"]: "running", asleep["id"]: "paused"}
    worker.change_error = lambda row: ({"code": "unavailable", "message": "no space left"} if row["id"] == failing["id"]
                                       and row["desired_state"] == "suspended" else None)
    begun = time.monotonic()
    while time.monotonic() - begun < 14:
        worker.activity(attached["id"], 2, 0)
        worker.activity(computing["id"], 0, 7.5)
        get(server, asked)
        time.sleep(0.5)
        if time.monotonic() - begun < 8:
            rows = {b["id"]: b["state"] for b in server.call("GET", "/v1/sandboxes?limit=1000")["items"]}
            assert all(rows[i] == ("paused" if i == asleep["id"] else "running") for i in wanted)
    assert {i: state_of(server, {"id": i}) for i in wanted} == wanted
    assert get(server, suspended)["state_reason"] == "idle_timeout is over"
    assert get(server, fallback)["state_reason"] == (
        "paused instead of suspended: the container tier cannot keep memory on this node: there is no CRIU")
    assert get(server, failing)["state_reason"] == "paused instead of suspended: no space left"
    kinds = [op["kind"] for op in server.call("GET", f"/v1/operations?sandbox_id={failing['id']}")["items"]]
    assert kinds == ["pause", "suspend", "create"]
    assert get(server, attached)["busy"] == {"sessions": 0, "attached": 2, "executions": 0, "cpu": 0}
    assert get(server, computing)["busy"] == {"sessions": 0, "attached": 0, "executions": 0, "cpu": 7.5}
    assert get(server, session)["busy"]["sessions"] == 1
    woken = post(server, fallback, "wake")[1]["sandbox"]
    assert woken["state"] == "running" and woken["state_reason"] is None
    for i in wanted:
        server.delete(i)


def test_what_is_not_a_use(server, worker):
    box = microvm(server)
    before = get(server, box)["last_active_at"]
    time.sleep(0.01)
    worker.activity(box["id"], 0, 4.9)
    seen = [b for b in server.call("GET", "/v1/sandboxes")["items"] if b["id"] == box["id"]][0]
    assert seen["last_active_at"] == before and seen["busy"]["cpu"] == 4.9
    worker.activity(box["id"], 1, 0)
    seen = [b for b in server.call("GET", "/v1/sandboxes")["items"] if b["id"] == box["id"]][0]
    assert seen["last_active_at"] > before and seen["busy"]["attached"] == 1
    post(server, box, "pause")  # what stands still uses nothing
    assert get(server, box)["busy"] == {"sessions": 0, "attached": 0, "executions": 0, "cpu": 0}
    assert worker.activity(box["id"], 5, 50) == {}  # a late word about one that does not run
    assert get(server, box)["busy"]["attached"] == 0
    server.delete(box["id"])


@pytest.mark.parametrize("item", [{"id": 1}, {}, {"attached": -1}, {"cpu_percent": "x"}, {"cpu_percent": -1}])
def test_bad_activity_is_refused(worker, item):
    item = {"id": "sbx_00000000000000000000000000", **item} if "id" not in item and item else item
    assert worker.call("POST", "/worker/v1/activity", {"node": "local", "sandboxes": [item]})[0] == 400
