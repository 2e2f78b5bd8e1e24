"""Snapshots, sandboxes from them, rollback and forks: the real server with a fake worker."""

import sqlite3
import subprocess
import threading
import time

import pytest

from api_fixtures import pair, server, worker  # noqa: F401
from fake_worker import secret, token_hash
from test_api_change import WAIT, get, microvm, post, until

FIELDS = {"id", "name", "sandbox_id", "parent_id", "state", "memory", "size_bytes", "created_at", "isolation",
          "template", "template_digest", "resources", "env_keys", "node"}


def take(server, box, **body):
    status, answer, _ = post(server, box, "snapshots", body)
    assert status == 201, answer
    return answer["snapshot"]


def drop(server, snapshot):
    return server.call("DELETE", f"/v1/snapshots/{snapshot['id']}", headers=WAIT)


def show(server, snapshot):
    return server.call("GET", f"/v1/snapshots/{snapshot['id']}")


def from_snapshot(server, snapshot, **body):
    return server.create({"snapshot_id": snapshot["id"], **body})["sandbox"]


@pytest.fixture
def box(server, worker):
    box = microvm(server, env={"TOKEN": "hush", "A": "1"}, user="root", name="origin", metadata={"k": "v"},
                  resources={"memory_mb": 256, "cpus": 0.5})
    yield box
    server.delete(box["id"])
    for snapshot in server.call("GET", "/v1/snapshots")["items"]:
        server.request("DELETE", f"/v1/snapshots/{snapshot['id']}", headers=WAIT)


@pytest.fixture
def other(server, worker):
    """The API key of another tenant."""
    key = secret("sk")
    sql = ("INSERT INTO api_keys (id, tenant, name, role, hash, created_at)"
           f" VALUES ('{secret('key')}', 'other', 'o', 'admin', '{token_hash(key)}', 0)")
    if str(server.database).startswith("postgres"):
        subprocess.run(["psql", "-qc", sql, server.database], check=True)
    else:
        with sqlite3.connect(server.database) as database:
            database.execute(sql)
    return key


def test_a_snapshot(server, worker, box):
    status, answer, headers = post(server, box, "snapshots", {"name": "first"})
    snapshot, op = answer["snapshot"], answer["operation"]
    assert status == 201 and headers["Location"] == f"/v1/snapshots/{snapshot['id']}"
    assert set(snapshot) == FIELDS and "hush" not in str(answer)
    assert (snapshot["name"], snapshot["state"], snapshot["memory"], snapshot["size_bytes"]) == ("first", "ready", True, 8192)
    assert snapshot["sandbox_id"] == box["id"] and snapshot["isolation"] == "microvm" and snapshot["parent_id"] is None
    assert snapshot["resources"] == box["resources"] and sorted(snapshot["env_keys"]) == ["A", "TOKEN"]
    assert (op["kind"], op["state"], op["snapshot_id"]) == ("snapshot", "succeeded", snapshot["id"])
    assert op["steps"] == [{"name": "pause", "duration_ms": 3}]
    assert show(server, snapshot) == snapshot
    assert worker.saved[snapshot["id"]]["durable"] is True and get(server, box)["generation"] == 1

    for state, verb in (("paused", "pause"), ("suspended", "suspend")):
        post(server, box, verb)
        again = take(server, box)
        assert again["id"] != snapshot["id"] and get(server, box)["state"] == state
    post(server, box, "wake")


def test_tree_pages_and_deletion(server, worker, box):
    chain = [take(server, box, name=f"n{i}") for i in range(5)]
    assert [s["parent_id"] for s in chain] == [None] + [s["id"] for s in chain[:-1]]
    child = from_snapshot(server, chain[1])
    assert child["parent_snapshot_id"] == chain[1]["id"]
    seen, cursor = [], ""
    for _ in range(3):
        page = server.call("GET", f"/v1/snapshots?limit=2&sandbox_id={box['id']}{cursor}")
        seen += [s["id"] for s in page["items"]]
        cursor = f"&cursor={page['next_cursor']}"
    assert page["next_cursor"] is None and seen == [s["id"] for s in reversed(chain)]
    assert server.call("GET", f"/v1/snapshots?sandbox_id={child['id']}")["items"] == []
    for query, field in (("state=ready", "state"), ("limit=0", "limit"), ("cursor=x", "cursor")):
        status, answer, _ = server.request("GET", f"/v1/snapshots?{query}")
        assert status == 400 and answer["error"]["field"] == field

    first = drop(server, chain[1])["operation"]
    assert (first["kind"], first["state"], first["snapshot_id"]) == ("snapshot_delete", "succeeded", chain[1]["id"])
    assert server.request("GET", f"/v1/snapshots/{chain[1]['id']}")[0] == 404
    assert drop(server, chain[1])["operation"]["id"] == first["id"]  # repeated: the same
    assert show(server, chain[2])["parent_id"] == chain[0]["id"]
    assert get(server, child)["parent_snapshot_id"] == chain[0]["id"]
    assert chain[1]["id"] not in worker.saved
    server.delete(child["id"])
    # they outlive their sandbox, and are of no use to a rollback of another
    stranger = microvm(server)
    status, answer, _ = post(server, stranger, "rollback", {"snapshot_id": chain[0]["id"]})
    assert status == 400 and answer["error"]["field"] == "/snapshot_id"
    server.delete(stranger["id"])
    for unknown in ("snp_00000000000000000000000000", "nonsense"):
        assert server.request("GET", f"/v1/snapshots/{unknown}")[0] == 404
        assert server.request("DELETE", f"/v1/snapshots/{unknown}")[0] == 404


def test_s9_a_snapshot_that_fails_is_not_listed(server, worker, box):
    worker.snapshot_error = {"code": "unavailable", "message": "no space left: 300 MiB needed, 100 MiB free"}
    status, answer, _ = post(server, box, "snapshots")
    assert status == 503 and "no space left" in answer["error"]["message"]
    assert answer["snapshot"]["state"] == "failed" and answer["snapshot"]["error"]["code"] == "unavailable"
    assert server.call("GET", "/v1/snapshots")["items"] == []
    now = get(server, box)
    assert (now["state"], now["generation"]) == ("running", 1)
    worker.snapshot_error = None
    status, refused, _ = server.request("POST", "/v1/sandboxes", {"snapshot_id": answer["snapshot"]["id"]})
    assert status == 409 and refused["error"]["code"] == "failed_precondition"
    assert drop(server, answer["snapshot"])["operation"]["state"] == "succeeded"
    assert take(server, box)["parent_id"] is None


def test_a_sandbox_from_a_snapshot(server, worker, box):
    snapshot = take(server, box)
    child = from_snapshot(server, snapshot, env={"A": "2", "B": "3"}, metadata={"x": "y"}, name="born", idle_timeout="1h")
    assert child["parent_snapshot_id"] == snapshot["id"] and child["isolation"] == "microvm"
    assert child["resources"] == box["resources"] and child["template_digest"] == box["template_digest"]
    assert sorted(child["env_keys"]) == ["A", "B", "TOKEN"] and child["metadata"] == {"x": "y"} and child["name"] == "born"
    told = worker.running[child["id"]]
    assert told["saved_from"] == snapshot["id"] and told["env"] == {"A": "2", "B": "3", "TOKEN": "hush"}
    assert told["user"] == "root" and told["hostname"] == "born"
    assert take(server, child)["parent_id"] == snapshot["id"]
    server.delete(child["id"])
    for field, value in (("template", "seed"), ("isolation", "microvm"), ("untrusted", True), ("resources", {"pids": 8})):
        status, answer, _ = server.request("POST", "/v1/sandboxes", {"snapshot_id": snapshot["id"], field: value})
        assert status == 400 and answer["error"]["field"] == f"/{field}"
    status, answer, _ = server.request("POST", "/v1/sandboxes", {"snapshot_id": "snp_00000000000000000000000000"})
    assert status == 400 and answer["error"]["field"] == "/snapshot_id"


def test_a_snapshot_in_use_is_not_deleted(server, worker, box):
    snapshot = take(server, box)
    worker.create_delay = 1
    child = server.create({"snapshot_id": snapshot["id"]}, wait=0)
    status, answer, _ = server.request("DELETE", f"/v1/snapshots/{snapshot['id']}")
    assert status == 409 and answer["error"]["code"] == "conflict"
    assert server.operation_end(child["operation"]["id"])["state"] == "succeeded"
    worker.create_delay, worker.change_delay = 0, 0.6
    rollback = post(server, box, "rollback", {"snapshot_id": snapshot["id"]}, headers={})[1]["operation"]
    status, answer, _ = server.request("DELETE", f"/v1/snapshots/{snapshot['id']}")
    assert status == 409 and answer["error"]["code"] == "conflict"
    assert server.operation_end(rollback["id"])["state"] == "succeeded"
    drop(server, snapshot)
    server.delete(child["sandbox"]["id"])


def test_deleting_one_that_is_being_taken(server, worker, box):
    worker.snapshot_delay = 0.6
    made = post(server, box, "snapshots", headers={})[1]
    status, answer, _ = post(server, box, "suspend")
    assert status == 409 and answer["error"]["code"] == "conflict" and made["operation"]["id"] in answer["error"]["message"]
    worker.snapshot_delete_delay = 1  # the worker is still busy with the taking
    assert drop(server, made["snapshot"])["operation"]["state"] == "succeeded"
    failed = server.operation_end(made["operation"]["id"])
    assert failed["state"] == "failed" and failed["error"]["code"] == "conflict"
    assert worker.saved == {}
    assert post(server, box, "suspend")[0] == 200
    post(server, box, "wake")


def test_rollback(server, worker, box):
    first = take(server, box)
    second = take(server, box)
    for i, verb in enumerate([None, "pause", "suspend"]):
        if verb:
            post(server, box, verb)
        status, answer, _ = post(server, box, "rollback", {"snapshot_id": first["id"]})
        assert status == 200, answer
        assert (answer["operation"]["kind"], answer["operation"]["snapshot_id"]) == ("rollback", first["id"])
        assert (answer["sandbox"]["state"], answer["sandbox"]["desired_state"]) == ("running", "running")
        assert [entry for entry in worker.log if entry[:2] == (box["id"], "rollback")] == [
            (box["id"], "rollback", first["id"])] * (i + 1)
    assert take(server, box)["parent_id"] == first["id"] != second["id"]
    # the snapshot that it was made from is as good as one of its own
    child = from_snapshot(server, second)
    assert post(server, child, "rollback", {"snapshot_id": second["id"]})[0] == 200
    assert post(server, child, "rollback", {"snapshot_id": first["id"]})[0] == 400
    server.delete(child["id"])


def test_a_failed_rollback_is_not_tried_again(server, worker, box):
    snapshot = take(server, box)
    worker.change_error = {"code": "failed_precondition", "message": "made by another CPU"}
    status, answer, _ = post(server, box, "rollback", {"snapshot_id": snapshot["id"]})
    assert status == 409 and answer["error"]["message"] == "made by another CPU"
    worker.change_error = None
    until(lambda: worker.wanted[box["id"]]["generation"] == 3)
    assert "rollback" not in worker.wanted[box["id"]]
    post(server, box, "pause")
    post(server, box, "wake")
    assert not [entry for entry in worker.log if entry[:2] == (box["id"], "rollback")]


def test_fork(server, worker, box):
    session = server.call("POST", f"/v1/sandboxes/{box['id']}/sessions", {"command": ["cat"]})["session"]
    status, answer, _ = post(server, box, "fork", {"count": 8})
    assert status == 201 and len(answer["results"]) == 8
    boxes = [r["sandbox"] for r in answer["results"]]
    assert len({b["id"] for b in boxes}) == 8 and all(b["state"] == "running" for b in boxes)
    told = [worker.running[b["id"]] for b in boxes]
    assert len({row["hostname"] for row in told} | {"origin"}) == 9
    assert len({row["saved_from"] for row in told}) == 1
    for result in answer["results"]:
        child, op = result["sandbox"], result["operation"]
        assert (op["kind"], op["state"], op["sandbox_id"]) == ("fork", "succeeded", child["id"])
        assert [step["name"] for step in op["steps"]] == ["pause", "start"] and "snapshot_id" not in op
        assert child["name"] is None and child["parent_snapshot_id"] is None and "error" not in result
        assert child["resources"] == box["resources"] and sorted(child["env_keys"]) == ["A", "TOKEN"]
        assert child["metadata"] == {"k": "v"} and child["busy"]["sessions"] == 0
    assert get(server, box)["generation"] == 1
    until(lambda: worker.saved == {})  # the fork's own goes when no child needs it
    assert server.call("GET", "/v1/snapshots")["items"] == []
    assert server.request("GET", f"/v1/snapshots/{told[0]['saved_from']}")[0] == 404
    for child in boxes:
        server.delete(child["id"])
    assert server.call("GET", f"/v1/sessions/{session['id']}")["state"] == "pending"


@pytest.mark.parametrize("verb", ["pause", "suspend"])
def test_fork_of_one_that_stands_still(server, worker, box, verb):
    post(server, box, verb)
    before = get(server, box)["state"]
    status, answer, _ = post(server, box, "fork")
    assert status == 201 and len(answer["results"]) == 1
    assert answer["results"][0]["sandbox"]["state"] == "running" and get(server, box)["state"] == before
    server.delete(answer["results"][0]["sandbox"]["id"])


def test_fork_with_some_children_that_fail(server, worker, box):
    worker.child_error, worker.child_failures = {"code": "quota_exceeded", "message": "no memory for it"}, 2
    status, answer, _ = post(server, box, "fork", {"count": 5})
    assert status == 201
    failed = [r for r in answer["results"] if "error" in r]
    assert len(failed) == 2
    for result in failed:
        assert result["error"] == {"code": "quota_exceeded", "message": "no memory for it"}
        assert result["sandbox"]["state"] == "failed" and result["operation"]["state"] == "failed"
    assert sum(r["sandbox"]["state"] == "running" for r in answer["results"]) == 3
    until(lambda: worker.saved == {})
    for result in answer["results"]:
        server.delete(result["sandbox"]["id"])


def test_fork_without_a_snapshot_fails_whole(server, worker, box):
    worker.snapshot_error = {"code": "unavailable", "message": "no space left"}
    status, answer, _ = post(server, box, "fork", {"count": 3})
    assert status == 201 and all(r["error"]["message"] == "no space left" for r in answer["results"])
    assert get(server, box)["state"] == "running"
    for result in answer["results"]:
        assert result["sandbox"]["id"] not in worker.created
        server.delete(result["sandbox"]["id"])


def test_fork_is_idempotent(server, worker, box):
    worker.snapshot_delay = 0.2
    key = {"Idempotency-Key": f"fork-{box['id']}"}
    first = post(server, box, "fork", {"count": 4}, headers=key)
    assert first[0] == 202 and all(r["sandbox"]["state"] == "creating" for r in first[1]["results"])
    again = post(server, box, "fork", {"count": 4}, headers={**key, **WAIT})
    ids = [[(r["sandbox"]["id"], r["operation"]["id"]) for r in a[1]["results"]] for a in (first, again)]
    assert again[0] == 201 and ids[0] == ids[1]
    status, answer, _ = post(server, box, "fork", {"count": 3}, headers=key)
    assert status == 409 and answer["error"]["code"] == "idempotency_conflict"
    # a lost answer, and the origin has gone since: the children are still told
    origin = microvm(server)
    key = {"Idempotency-Key": f"fork-{origin['id']}", **WAIT}
    first = post(server, origin, "fork", {"count": 1}, headers=key)[1]["results"][0]["sandbox"]["id"]
    server.delete(origin["id"])
    again = post(server, origin, "fork", {"count": 1}, headers=key)
    assert again[0] == 201 and again[1]["results"][0]["sandbox"]["id"] == first
    for child in [first] + [child for child, _ in ids[0]]:
        server.delete(child)


def test_deletes_around_a_fork(server, worker, box):
    """The origin, or children, deleted while the snapshot is taken and while children are made from it."""
    for moment in ("taking", "making"):
        worker.snapshot_delay, worker.create_delay = (0.5, 0) if moment == "taking" else (0, 0.5)
        origin = microvm(server)
        worker.create_delay = 0.5 if moment == "making" else 0
        results = post(server, origin, "fork", {"count": 4}, headers={})[1]["results"]
        children = [r["sandbox"]["id"] for r in results]
        if moment == "making":
            until(lambda: any(s["durable"] is False for s in worker.saved.values()))
        server.delete(children[0], wait=0)
        assert server.operation_end(results[0]["operation"]["id"])["error"]["code"] == "conflict"
        server.delete(origin["id"])
        for result in results[1:]:
            op = server.operation_end(result["operation"]["id"])
            state = get(server, result["sandbox"])["state"]
            if moment == "taking":
                assert (op["state"], op["error"]["code"], state) == ("failed", "conflict", "failed")
            else:
                assert (op["state"], state) == ("succeeded", "running")
        until(lambda: worker.saved == {})
        for child in children:
            server.delete(child)
        assert not set(children) & set(worker.states)


def test_deleting_the_origin_ends_its_snapshots(server, worker):
    origin = microvm(server)
    worker.snapshot_delay = 0.5
    made = post(server, origin, "snapshots", headers={})[1]
    server.delete(origin["id"])
    op = server.operation_end(made["operation"]["id"])
    assert op["state"] == "failed" and op["error"]["code"] == "conflict"
    assert show(server, made["snapshot"])["state"] == "failed"
    time.sleep(0.6)  # the worker had it all the same, and is told to remove it
    until(lambda: worker.saved == {})


def test_templates_in_use_by_snapshots(server, worker, box):
    snapshot = take(server, box)
    worker.build_digest = "sha256:" + "77" * 32
    worker.templates.append(worker.build_digest)
    worker.register()
    worker.make_template("other")
    mine = server.create({"template": "other", "isolation": "microvm"})["sandbox"]
    kept = take(server, mine)
    server.delete(mine["id"])
    status, answer, _ = server.request("DELETE", "/v1/templates/other")
    assert status == 409 and "1 snapshot" in answer["error"]["message"]
    assert worker.register()["deleted_templates"] == []
    child = from_snapshot(server, kept)
    assert child["template"] == "other:latest"
    server.delete(child["id"])
    drop(server, kept)
    assert server.call("DELETE", "/v1/templates/other") == {}
    assert worker.register()["deleted_templates"] == [worker.build_digest]
    worker.templates.remove(worker.build_digest)
    worker.build_digest = worker.templates[0]
    drop(server, snapshot)


def test_a3_tenants_do_not_see_each_other(server, worker, box, other):
    snapshot = take(server, box)
    session = server.call("POST", f"/v1/sandboxes/{box['id']}/sessions", {"command": ["cat"]})["session"]
    assert server.call("GET", "/v1/snapshots", key=other)["items"] == []
    assert server.call("GET", "/v1/operations", key=other)["items"] == []
    for method, path in [("GET", f"/v1/snapshots/{snapshot['id']}"), ("DELETE", f"/v1/snapshots/{snapshot['id']}")] + [
            ("POST", f"/v1/sandboxes/{box['id']}/{verb}") for verb in ("pause", "suspend", "wake", "fork", "snapshots")]:
        status, answer, _ = server.request(method, path, {} if method == "POST" else None, key=other)
        assert status == 404 and answer["error"]["code"] == "not_found", (method, path, answer)
    body = {"snapshot_id": snapshot["id"]}
    assert server.request("POST", f"/v1/sandboxes/{box['id']}/rollback", body, key=other)[0] == 404
    status, answer, _ = server.request("POST", "/v1/sandboxes", body, key=other)
    assert status == 400 and answer["error"]["field"] == "/snapshot_id"
    theirs = server.call("POST", "/v1/sandboxes", {"isolation": "microvm"}, key=other, headers=WAIT)["sandbox"]
    status, answer, _ = server.request("POST", f"/v1/sandboxes/{theirs['id']}/rollback", body, key=other)
    assert status == 400 and answer["error"]["field"] == "/snapshot_id"
    assert show(server, snapshot)["state"] == "ready" and get(server, box)["generation"] == 1
    assert server.call("GET", f"/v1/sessions/{session['id']}")["state"] == "pending"
    server.call("DELETE", f"/v1/sandboxes/{theirs['id']}", key=other, headers=WAIT)


def test_late_and_repeated_reports_change_nothing(server, worker, box):
    snapshot = take(server, box)
    row = worker.saved[snapshot["id"]]
    for state in ("failed", "deleted", "ready"):
        worker.snapshots_are(row, state, size_bytes=1)
        assert show(server, snapshot) == snapshot
    assert worker.call("POST", "/worker/v1/snapshots", {"node": "elsewhere", "snapshots": [
        {"id": snapshot["id"], "state": "deleted"}]})[0] == 200
    drop(server, snapshot)
    for state in ("ready", "failed", "deleted"):
        worker.snapshots_are(row, state)
        assert server.request("GET", f"/v1/snapshots/{snapshot['id']}")[0] == 404
    for bad in ({"state": "creating"}, {"state": "gone"}, {"state": 1}, {"size_bytes": -1, "state": "ready"}):
        assert worker.call("POST", "/worker/v1/snapshots", {"node": "local", "snapshots": [
            {"id": snapshot["id"], **bad}]})[0] == 400


def test_metrics(server, worker, box):
    take(server, box)
    post(server, box, "pause")
    worker.pools = [{"template_digest": box["template_digest"], "isolation": "microvm", "cpus": 1, "memory_mb": 512,
                     "disk_mb": 2048, "pids": 128, "ready": 3, "filling": 1, "low": 2, "high": 8, "hits": 5, "misses": 7},
                    {"template_digest": box["template_digest"], "isolation": "microvm", "cpus": 1, "memory_mb": 512,
                     "disk_mb": 4096, "pids": 128, "ready": 4},
                    {"template_digest": 'evil"} 1\n', "isolation": "microvm", "ready": 9}]
    worker.register()
    text = server.call("GET", "/metrics").decode()
    labels = (f'{{node="local",template_digest="{box["template_digest"]}",isolation="microvm",cpus="1",memory_mb="512",'
              'disk_mb="2048",pids="128"}')
    for line in ('space_sandboxes{state="paused"} 1', 'space_snapshots{state="ready"} 1', f"space_pool_ready{labels} 3",
                 f"space_pool_hits_total{labels} 5", 'space_operation_seconds_count{kind="pause"}',
                 'space_operation_seconds_count{kind="snapshot"}'):
        assert line in text, line
    assert "evil" not in text
    series = [line.rsplit(" ", 1)[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))  # each shape has its own
    for line in text.splitlines():
        assert line.startswith("# TYPE ") or float(line.rsplit(" ", 1)[1]) >= 0
    worker.pools = []
    worker.register()
    post(server, box, "wake")
