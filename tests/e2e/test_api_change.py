"""Pause, suspend, wake and delete against the real server with a fake worker: docs/lifecycle.md §1."""

import concurrent.futures
import threading
import time

import pytest

from api_fixtures import make_pair, pair, server, worker  # noqa: F401

WAIT = {"Prefer": "wait=20"}


def microvm(server, **body):
    return server.create({"isolation": "microvm", **body})["sandbox"]


def post(server, box, verb, body=None, headers=WAIT):
    return server.request("POST", f"/v1/sandboxes/{box['id']}/{verb}", body or {}, headers=headers)


def get(server, box):
    return server.call("GET", f"/v1/sandboxes/{box['id']}")


def until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_every_change_and_its_repetition(server, worker):
    box = microvm(server)
    seen = []
    for verb, state in [("pause", "paused"), ("wake", "running"), ("suspend", "suspended"), ("wake", "running"),
                        ("pause", "paused"), ("suspend", "suspended"), ("wake", "running")]:
        status, answer, headers = post(server, box, verb)
        assert status == 200 and headers["Preference-Applied"] == "wait=20", answer
        op, now = answer["operation"], answer["sandbox"]
        assert (op["kind"], op["state"], op["sandbox_id"]) == (verb, "succeeded", box["id"])
        assert op["steps"] == [{"name": "change", "duration_ms": 0.25}]
        assert (now["state"], now["desired_state"]) == (state, state)
        assert now["generation"] == box["generation"] + len(seen) + 1
        assert worker.states[box["id"]] == state
        seen.append(op["id"])
        again = post(server, box, verb)[1]
        assert again["operation"]["id"] == op["id"] and again["sandbox"]["generation"] == now["generation"]
    assert len(set(seen)) == 7
    fresh = microvm(server)
    status, answer, _ = post(server, fresh, "wake")  # it has never been asleep
    assert status == 200 and answer["operation"]["state"] == "succeeded" and answer["sandbox"]["generation"] == 1
    assert post(server, fresh, "wake")[1]["operation"]["id"] == answer["operation"]["id"]
    server.delete(box["id"])
    server.delete(fresh["id"])


def test_without_wait_the_operation_tells(server, worker):
    box = microvm(server)
    worker.change_delay = 0.4
    status, answer, _ = post(server, box, "suspend", headers={})
    assert status == 202 and answer["operation"]["state"] in ("pending", "running")
    assert (answer["sandbox"]["state"], answer["sandbox"]["desired_state"]) == ("running", "suspended")
    again = post(server, box, "suspend", headers={})[1]  # under way: the same
    assert again["operation"]["id"] == answer["operation"]["id"]
    for verb, body in [("pause", None), ("wake", None), ("suspend", {"memory": False}), ("snapshots", None), ("fork", None)]:
        status, refused, _ = post(server, box, verb, body)
        assert status == 409 and refused["error"]["code"] == "conflict", (verb, refused)
        assert answer["operation"]["id"] in refused["error"]["message"]
    assert server.operation_end(answer["operation"]["id"])["state"] == "succeeded"
    server.delete(box["id"])


def test_what_is_not_possible_names_the_state(server, worker):
    box = microvm(server)
    post(server, box, "suspend")
    status, answer, _ = post(server, box, "pause")
    assert status == 409 and answer["error"]["code"] == "failed_precondition"
    assert "suspended" in answer["error"]["message"] and "wake" in answer["error"]["message"]
    worker.create_delay = 1
    young = server.create({"isolation": "microvm"}, wait=0)["sandbox"]
    for verb in ("pause", "suspend", "wake", "snapshots", "fork"):
        status, answer, _ = post(server, young, verb)
        assert status == 409 and answer["error"]["code"] == "failed_precondition", (verb, answer)
        assert "creating" in answer["error"]["message"]
    worker.delete_delay = 0.5
    server.delete(box["id"], wait=0)
    for verb in ("pause", "suspend", "wake", "snapshots", "fork"):
        status, answer, _ = post(server, box, verb)
        assert status == 409 and "deleting" in answer["error"]["message"], (verb, answer)
    server.delete(box["id"])
    server.delete(young["id"])
    worker.create_delay = worker.delete_delay = 0
    for verb in ("pause", "suspend", "wake", "snapshots", "fork"):
        assert post(server, box, verb)[0] == 404
        assert server.request("POST", f"/v1/sandboxes/nonsense/{verb}", {})[0] == 404


def test_a_failed_one_can_only_be_deleted(server, worker):
    worker.create_error = {"code": "internal", "message": "no"}
    answer = server.request("POST", "/v1/sandboxes", {}, headers=WAIT)[1]
    worker.create_error = None
    for verb in ("pause", "suspend", "wake", "snapshots", "fork"):
        status, refused, _ = post(server, answer["sandbox"], verb)
        assert status == 409 and "failed" in refused["error"]["message"]
    server.delete(answer["sandbox"]["id"])


@pytest.mark.parametrize("verb,body,field", [
    ("pause", {"memory": True}, "/memory"), ("wake", {"x": 1}, "/x"), ("suspend", {"memory": 1}, "/memory"),
    ("suspend", {"disk": True}, "/disk"), ("fork", {"count": 0}, "/count"), ("fork", {"count": 101}, "/count"),
    ("fork", {"count": 1.5}, "/count"), ("fork", {"memory": "no"}, "/memory"), ("fork", {"n": 1}, "/n"),
    ("snapshots", {"name": "A"}, "/name"), ("snapshots", {"name": ""}, "/name"), ("snapshots", {"name": "a" * 64}, "/name"),
    ("snapshots", {"memory": None, "durable": True}, "/durable"), ("rollback", {}, "/snapshot_id"),
    ("rollback", {"snapshot_id": 1}, "/snapshot_id"), ("rollback", {"snapshot_id": "../x"}, "/snapshot_id"),
    ("rollback", {"snapshot_id": "snp_00000000000000000000000000"}, "/snapshot_id")])
def test_bad_bodies_name_the_field(server, verb, body, field):
    box = microvm(server)
    status, answer, _ = post(server, box, verb, body)
    assert status == 400 and answer["error"]["field"] == field, answer
    assert get(server, box)["generation"] == 1
    server.delete(box["id"])


def test_memory_where_it_cannot_be_kept(server, worker):
    """The container tier without CRIU: refused with what to do; the disk alone works."""
    box = server.create()["sandbox"]
    for verb in ("suspend", "snapshots", "fork"):
        for body in ({}, {"memory": True}):
            status, answer, _ = post(server, box, verb, body)
            assert status == 409 and answer["error"]["code"] == "unsupported", answer
            assert answer["error"]["field"] == "/memory"
            for word in ("there is no CRIU", '"memory": false', "CRIU 4.2", "microvm"):
                assert word in answer["error"]["message"]
    assert get(server, box)["state"] == "running"
    assert post(server, box, "pause")[0] == 200
    status, answer, _ = post(server, box, "suspend", {"memory": False})
    assert status == 200 and answer["sandbox"]["state"] == "suspended"
    assert (box["id"], "suspended", False) in worker.log
    # of a suspended one there is nothing to decide any more
    status, answer, _ = post(server, box, "snapshots")
    assert status == 201 and answer["snapshot"]["memory"] is False
    server.call("DELETE", f"/v1/snapshots/{answer['snapshot']['id']}")
    assert post(server, box, "wake")[0] == 200
    server.delete(box["id"])


def test_asleep_it_refuses_commands_and_says_wake(server, worker):
    box = microvm(server)
    for verb, state in (("pause", "paused"), ("suspend", "suspended")):
        post(server, box, verb)
        for path in ("exec", "sessions"):
            status, answer, _ = post(server, box, path, {"command": ["true"]})
            assert status == 409 and answer["error"]["code"] == "failed_precondition"
            assert state in answer["error"]["message"] and "wake" in answer["error"]["message"]
        status, answer, _ = server.request("GET", f"/v1/sandboxes/{box['id']}/processes")
        assert status == 409 and "wake" in answer["error"]["message"]
    assert get(server, box)["state"] == "suspended"  # nothing has woken it
    post(server, box, "wake")
    assert server.call("POST", f"/v1/sandboxes/{box['id']}/exec", {"command": ["true"]})["exit_code"] == 0
    server.delete(box["id"])


def test_sessions_outlive_a_suspend(server, worker):
    box = microvm(server)
    session = server.call("POST", f"/v1/sandboxes/{box['id']}/sessions", {"command": ["cat"]})["session"]
    worker.post("/worker/v1/sessions", {"node": "local", "sessions": [{"id": session["id"], "state": "running"}]})
    for verb in ("pause", "suspend", "wake"):
        post(server, box, verb)
        assert server.call("GET", f"/v1/sessions/{session['id']}")["state"] == "running"
        assert server.call("POST", f"/v1/sessions/{session['id']}/attachments", {})["attach"]["token"]
        assert worker.call("GET", f"/worker/v1/sessions/{session['id']}")[0] == 200
    server.delete(box["id"])


@pytest.mark.parametrize("before,verb", [("running", "pause"), ("running", "suspend"), ("paused", "suspend"),
                                         ("paused", "wake"), ("suspended", "wake")])
def test_a_change_that_fails_leaves_it_as_it_was(server, worker, before, verb):
    box = microvm(server)
    if before != "running":
        post(server, box, before[:-1] if before == "paused" else "suspend")
    worker.change_error = {"code": "unavailable", "message": "no space left on the node"}
    generation = get(server, box)["generation"]
    status, answer, _ = post(server, box, verb)
    assert status == 503 and answer["error"]["message"] == "no space left on the node"
    assert answer["operation"]["state"] == "failed"
    now = answer["sandbox"]
    assert (now["state"], now["desired_state"], now["generation"]) == (before, before, generation + 2)
    assert now["state_reason"] == "no space left on the node"
    until(lambda: worker.wanted[box["id"]]["generation"] == generation + 2)
    time.sleep(0.1)  # the worker says once more, without a reason, that it is so
    assert worker.states[box["id"]] == before and get(server, box)["state_reason"] == "no space left on the node"
    worker.change_error = None
    status, answer, _ = post(server, box, verb)  # it can be tried again
    assert status == 200 and answer["sandbox"]["state_reason"] is None
    server.delete(box["id"])


def test_idempotency(server, worker):
    box = microvm(server)
    key = {"Idempotency-Key": f"pause-{box['id']}", **WAIT}
    first = post(server, box, "pause", headers=key)[1]["operation"]
    post(server, box, "wake")
    status, late, _ = post(server, box, "pause", headers=key)  # a lost answer: it is not paused again
    assert status == 200 and late["operation"]["id"] == first["id"] and late["sandbox"]["state"] == "running"
    status, answer, _ = post(server, box, "suspend", headers=key)
    assert status == 409 and answer["error"]["code"] == "idempotency_conflict"
    worker.change_delay = 0.3
    key = {"Idempotency-Key": f"suspend-{box['id']}", **WAIT}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: post(server, box, "suspend", headers=key), range(8)))
    assert {a[0] for a in answers} == {200} and len({a[1]["operation"]["id"] for a in answers}) == 1
    # a refused request does not use up its key
    worker.change_delay = 0
    key = {"Idempotency-Key": f"again-{box['id']}", **WAIT}
    assert post(server, box, "pause", headers=key)[0] == 409
    post(server, box, "wake")
    assert post(server, box, "pause", headers=key)[0] == 200
    server.delete(box["id"])


@pytest.mark.parametrize("verb", ["pause", "suspend", "wake", "rollback"])
def test_delete_wins_over_a_change(server, worker, verb):
    box = microvm(server)
    snapshot = post(server, box, "snapshots")[1]["snapshot"]["id"]
    if verb == "wake":
        post(server, box, "suspend")
    worker.change_delay = 0.5
    answers = []
    body = {"snapshot_id": snapshot} if verb == "rollback" else {}
    thread = threading.Thread(target=lambda: answers.append(post(server, box, verb, body)))
    thread.start()
    until(lambda: get(server, box)["generation"] > box["generation"] + (verb == "wake"))
    status, deleted, _ = server.request("DELETE", f"/v1/sandboxes/{box['id']}")
    assert status == 202
    while (seen := server.request("GET", f"/v1/sandboxes/{box['id']}"))[0] == 200:
        assert seen[1]["state"] == "deleting"
    thread.join()
    status, answer, _ = answers[0]
    assert status == 409 and answer["error"]["code"] == "conflict" and "deleted" in answer["error"]["message"]
    assert server.operation_end(deleted["operation"]["id"])["state"] == "succeeded"
    assert box["id"] not in worker.states
    server.call("DELETE", f"/v1/snapshots/{snapshot}", headers=WAIT)


def test_pairs_of_changes_at_once(server, worker):
    """Whatever two clients ask at the same moment: each answer is one of the allowed, and at the end the server
    and the worker agree."""
    worker.change_delay = 0.02
    verbs = ["pause", "suspend", "wake", "fork", "snapshots"]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for first in verbs:
            for second in verbs:
                box = microvm(server)
                answers = list(pool.map(lambda verb: post(server, box, verb), (first, second)))
                assert {a[0] for a in answers} <= {200, 201, 409}, answers
                assert any(a[0] < 300 for a in answers), (first, second)
                until(lambda: get(server, box)["state"] == get(server, box)["desired_state"])
                assert worker.states[box["id"]] == get(server, box)["state"]
                server.delete(box["id"])
    for snapshot in server.call("GET", "/v1/snapshots")["items"]:
        server.call("DELETE", f"/v1/snapshots/{snapshot['id']}", headers=WAIT)
    for box in server.call("GET", "/v1/sandboxes?limit=1000")["items"]:
        server.delete(box["id"])
    until(lambda: not worker.saved and not worker.states)


def test_restart_of_the_server_in_the_middle(tmp_path):
    pairs = make_pair(tmp_path)
    server, worker = next(pairs)
    try:
        box = microvm(server)
        for verb, state in (("suspend", "suspended"), ("wake", "running"), ("pause", "paused")):
            worker.change_delay = 0.4
            operation = post(server, box, verb, headers={})[1]["operation"]["id"]
            server.kill()
            server.start()
            assert server.operation_end(operation)["state"] == "succeeded"
            assert get(server, box)["state"] == state == worker.states[box["id"]]
        worker.snapshot_delay = worker.create_delay = 0.3
        results = post(server, box, "fork", {"count": 3}, headers={})[1]["results"]
        operations = [r["operation"]["id"] for r in results]
        operations.append(post(server, box, "snapshots", headers={})[1]["operation"]["id"])
        for _ in range(2):
            server.kill()
            server.start()
            time.sleep(0.2)
        assert [server.operation_end(op)["state"] for op in operations] == ["succeeded"] * 4
        until(lambda: len(worker.saved) == 1)  # the fork's own has gone
    finally:
        for _ in pairs:
            pass
