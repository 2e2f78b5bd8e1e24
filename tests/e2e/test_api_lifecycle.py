"""Create, wait, get, list, patch, delete against the real server with a fake worker."""

import re
import threading
import time

import pytest

from api_fixtures import pair, server, worker  # noqa: F401

FIELDS = {"id", "name", "state", "desired_state", "state_reason", "generation", "template", "template_digest",
          "isolation", "isolation_reason", "resources", "env_keys", "metadata", "network", "created_at", "started_at",
          "last_active_at", "idle_timeout", "on_idle", "expires_at", "busy", "node", "parent_snapshot_id"}


def test_create_waits_until_running(server, worker):
    status, answer, headers = server.request(
        "POST", "/v1/sandboxes",
        {"name": "box-1", "env": {"TOKEN": "hush"}, "metadata": {"a": "1"}, "max_lifetime": "1h",
         "resources": {"cpus": 0.5, "memory_mb": 64}}, headers={"Prefer": "respond-async, wait=20"})
    assert status == 201 and headers["Preference-Applied"] == "wait=20"
    box, op = answer["sandbox"], answer["operation"]
    assert headers["Location"] == f"/v1/sandboxes/{box['id']}"
    assert set(box) == FIELDS
    assert (box["state"], box["desired_state"], box["name"]) == ("running", "running", "box-1")
    assert box["env_keys"] == ["TOKEN"] and "hush" not in str(answer)
    assert box["resources"] == {"cpus": 0.5, "memory_mb": 64, "disk_mb": 2048, "pids": 128}
    assert box["template"] == "seed:latest" and box["isolation"] == "container"
    assert box["isolation_reason"] == "auto: no KVM here" and box["node"] == "local"
    assert box["idle_timeout"] == "6h" and box["on_idle"] == "suspend"
    assert box["network"] == {"allow": [], "deny_private": True}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", box["started_at"])
    assert box["expires_at"] > box["created_at"]
    assert (op["kind"], op["state"], op["sandbox_id"]) == ("create", "succeeded", box["id"])
    assert op["steps"] == [{"name": "start", "duration_ms": 1.5}]
    assert server.call("GET", f"/v1/sandboxes/{box['id']}")["state"] == "running"
    row = worker.running[box["id"]]
    assert row["env"] == {"TOKEN": "hush"} and row["hostname"] == "box-1"
    server.delete(box["id"])


def test_without_wait_the_operation_tells(server, worker):
    worker.create_delay = 0.3
    status, answer, _ = server.request("POST", "/v1/sandboxes", {})
    assert status == 202 and answer["sandbox"]["state"] == "creating"
    assert answer["operation"]["state"] in ("pending", "running")
    op = server.operation_end(answer["operation"]["id"])
    assert op["state"] == "succeeded" and op["finished_at"] >= op["started_at"]
    server.delete(answer["sandbox"]["id"])


def test_a_wait_that_is_too_short_is_202(server, worker):
    """L15: the wait is honest."""
    worker.create_delay = 2.5
    begun = time.monotonic()
    status, answer, _ = server.request("POST", "/v1/sandboxes", {}, headers={"Prefer": "wait=1"})
    assert status == 202 and 0.9 < time.monotonic() - begun < 2.3
    server.operation_end(answer["operation"]["id"])
    server.delete(answer["sandbox"]["id"])


def test_a_failed_create_is_an_error_when_waited_for(server, worker):
    worker.create_error = {"code": "unavailable", "message": "no memory left on the node"}
    status, answer, _ = server.request("POST", "/v1/sandboxes", {}, headers={"Prefer": "wait=20"})
    assert status == 503
    assert answer["error"]["code"] == "unavailable" and answer["error"]["message"] == "no memory left on the node"
    assert answer["error"]["request_id"].startswith("req_")
    assert answer["sandbox"]["state"] == "failed" and answer["sandbox"]["state_reason"] == "it did not start"
    assert answer["operation"]["error"]["code"] == "unavailable"
    worker.create_error = None
    assert server.delete(answer["sandbox"]["id"])["operation"]["state"] == "succeeded"
    assert server.request("GET", f"/v1/sandboxes/{answer['sandbox']['id']}")[0] == 404


def test_delete_then_404_and_again_the_same_operation(server, worker):
    box = server.create()["sandbox"]
    worker.delete_delay = 0.3
    status, first, _ = server.request("DELETE", f"/v1/sandboxes/{box['id']}")
    assert status == 202 and first["operation"]["kind"] == "delete"
    seen = server.call("GET", f"/v1/sandboxes/{box['id']}")
    assert (seen["state"], seen["desired_state"], seen["generation"]) == ("deleting", "deleted", 2)
    status, again, _ = server.request("DELETE", f"/v1/sandboxes/{box['id']}", headers={"Prefer": "wait=20"})
    assert status == 200 and again["operation"]["id"] == first["operation"]["id"]
    assert again["operation"]["state"] == "succeeded"
    status, answer, _ = server.request("GET", f"/v1/sandboxes/{box['id']}")
    assert status == 404 and answer["error"]["code"] == "not_found"
    status, late, _ = server.request("DELETE", f"/v1/sandboxes/{box['id']}")
    assert status == 200 and late["operation"]["id"] == first["operation"]["id"]
    assert box["id"] not in worker.running
    for unknown in ("sbx_00000000000000000000000000", "nonsense"):
        assert server.request("DELETE", f"/v1/sandboxes/{unknown}")[0] == 404
        assert server.request("GET", f"/v1/sandboxes/{unknown}")[0] == 404


def test_l1_no_get_says_running_after_an_accepted_delete(server, worker):
    """Deletes at every moment of a create, with the create's report coming in late."""
    for i in range(12):
        worker.create_delay = 0.03
        box = server.create(wait=0)["sandbox"]
        time.sleep(0.008 * i)
        _, answer, _ = server.request("DELETE", f"/v1/sandboxes/{box['id']}")
        while True:
            status, seen, _ = server.request("GET", f"/v1/sandboxes/{box['id']}")
            if status == 404:
                break
            assert seen["state"] == "deleting"
        assert server.operation_end(answer["operation"]["id"])["state"] == "succeeded"


def test_delete_ends_the_create_that_somebody_waits_for(server, worker):
    worker.create_delay = 5
    answers = []
    body = {"metadata": {"job": "waited"}}
    thread = threading.Thread(target=lambda: answers.append(
        server.request("POST", "/v1/sandboxes", body, headers={"Prefer": "wait=20"})))
    thread.start()
    while not (found := server.call("GET", "/v1/sandboxes?metadata.job=waited")["items"]):
        time.sleep(0.01)
    begun = time.monotonic()
    server.delete(found[0]["id"])
    thread.join()
    assert time.monotonic() - begun < 3
    status, answer, _ = answers[0]
    assert status == 409 and answer["error"]["code"] == "conflict", answer


def test_list_pages_and_filters(server):
    ids = [server.create({"metadata": {"batch": "p", "n": str(i % 2)}})["sandbox"]["id"] for i in range(5)]
    seen, path = [], "/v1/sandboxes?metadata.batch=p&limit=2"
    cursor = ""
    for _ in range(3):
        page = server.call("GET", path + cursor)
        seen += [box["id"] for box in page["items"]]
        cursor = f"&cursor={page['next_cursor']}"
    assert page["next_cursor"] is None and seen == sorted(ids, reverse=True)
    odd = server.call("GET", "/v1/sandboxes?metadata.batch=p&metadata.n=1")["items"]
    assert sorted(b["id"] for b in odd) == sorted(ids[1::2])
    assert len(server.call("GET", "/v1/sandboxes?metadata.batch=p&state=running&template=seed")["items"]) == 5
    assert server.call("GET", "/v1/sandboxes?metadata.batch=p&state=failed")["items"] == []
    assert server.call("GET", "/v1/sandboxes?metadata.batch=p&template=other:1")["items"] == []
    ops = server.call("GET", f"/v1/operations?sandbox_id={ids[0]}&kind=create&state=succeeded")["items"]
    assert [op["sandbox_id"] for op in ops] == [ids[0]]
    for sandbox_id in ids:
        server.delete(sandbox_id)


@pytest.mark.parametrize("query,field", [("nope=1", "nope"), ("limit=0", "limit"), ("limit=x", "limit"),
                                         ("limit=1001", "limit"), ("cursor=abc", "cursor"), ("state=on", "state"),
                                         ("template=A B", "template"), ("metadata.=1", "metadata.")])
def test_bad_list_parameters_are_named(server, query, field):
    status, answer, _ = server.request("GET", "/v1/sandboxes?" + query.replace(" ", "%20"))
    assert status == 400 and answer["error"]["field"] == field


def test_patch(server):
    box = server.create({"metadata": {"a": "1"}, "name": "old"})["sandbox"]
    path = f"/v1/sandboxes/{box['id']}"
    new = server.call("PATCH", path, {"metadata": {"b": "2"}, "idle_timeout": "20m", "on_idle": "none",
                                      "max_lifetime": "2h", "network": {"deny_private": False}})
    assert new["network"] == {"allow": [], "deny_private": False}
    assert new["metadata"] == {"b": "2"} and new["name"] == "old" and new["on_idle"] == "none"
    assert new["idle_timeout"] == "20m" and new["expires_at"] and new["generation"] == box["generation"]
    assert [b["id"] for b in server.call("GET", "/v1/sandboxes?metadata.b=2")["items"]] == [box["id"]]
    assert server.call("GET", "/v1/sandboxes?metadata.a=1")["items"] == []
    status, answer, _ = server.request("PATCH", path, {"state": "paused"})
    assert status == 400 and answer["error"]["field"] == "/state"
    server.delete(box["id"])
    assert server.request("PATCH", path, {"name": "x"})[0] == 404


def test_max_lifetime_deletes(server):
    box = server.create({"max_lifetime": "10s"})["sandbox"]
    idle = server.create({"idle_timeout": "10s", "on_idle": "delete"})["sandbox"]
    deadline = time.monotonic() + 16
    while server.request("GET", f"/v1/sandboxes/{box['id']}")[0] != 404:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    while (items := server.call("GET", "/v1/sandboxes")["items"]) and any(b["id"] == idle["id"] for b in items):
        assert time.monotonic() < deadline + 5
        time.sleep(0.5)


def test_isolation(server, worker):
    status, answer, _ = server.request("POST", "/v1/sandboxes", {"isolation": "gvisor"})
    assert status == 409 and answer["error"]["code"] == "unsupported"
    assert "runsc is not installed" in answer["error"]["message"]
    box = server.create({"untrusted": True})["sandbox"]
    assert box["isolation"] == "microvm" and "untrusted" in box["isolation_reason"]
    server.delete(box["id"])
    status, answer, _ = server.request("POST", "/v1/sandboxes", {"untrusted": True, "isolation": "container"})
    assert status == 400 and answer["error"]["field"] == "/isolation"


def test_a_report_that_does_not_fit_is_ignored(server, worker):
    box = server.create()["sandbox"]
    row = worker.running[box["id"]]
    worker.observed({**row, "generation": 7}, "failed", reason="of the future")
    worker.observed({**row, "generation": 0}, "failed", reason="of the past")
    other = {"node": "elsewhere", "instance": "x", "sandboxes": [
        {"id": box["id"], "generation": 1, "state": "failed", "reason": "not mine"}]}
    assert worker.call("POST", "/worker/v1/observed", other)[0] == 200
    assert server.call("GET", f"/v1/sandboxes/{box['id']}")["state"] == "running"
    worker.observed(row, "deleted")  # nobody asked for that
    seen = server.call("GET", f"/v1/sandboxes/{box['id']}")
    assert seen["state"] == "failed" and "vanished" in seen["state_reason"]
    worker.observed(row, "running")  # an end stays
    assert server.call("GET", f"/v1/sandboxes/{box['id']}")["state"] == "failed"
    _, wanted, _ = worker.call("POST", "/worker/v1/desired_of", {
        "node": "local", "ids": [box["id"], "sbx_00000000000000000000000000"]})
    assert wanted["sandboxes"][0]["desired_state"] == "deleted" and wanted["sandboxes"][0]["was_running"] is True
    assert wanted["sandboxes"][1] == {"id": "sbx_00000000000000000000000000", "unknown": True}
    server.delete(box["id"])


def test_templates(server, worker):
    worker.build_digest = "sha256:" + "12" * 32
    worker.templates.append(worker.build_digest)
    worker.register()
    status, answer, _ = server.request("POST", "/v1/templates", {"name": "data", "tag": "1", "recipe": {"name": "data"}},
                                       headers={"Prefer": "wait=20"})
    assert status == 201 and answer["operation"]["kind"] == "template_build"
    assert answer["operation"]["template"] == "data:1" and answer["operation"]["sandbox_id"] is None
    listed = server.call("GET", "/v1/templates")["items"]
    assert [(t["name"], t["tag"]) for t in listed] == [("data", "1"), ("seed", "latest")]
    assert listed[0]["tiers"] == ["container", "microvm"] and listed[0]["config"] == {"user": "user"}
    by_digest = server.call("GET", f"/v1/templates/{listed[0]['digest']}")
    assert by_digest["digest"] == listed[0]["digest"]
    assert server.call("GET", "/v1/templates/data:1/build-log") == b"unpacking\ndone\n"
    assert server.call("DELETE", "/v1/templates/data:1") == {}
    assert server.request("GET", "/v1/templates/data:1")[0] == 404
    # The worker is told of what was deleted, and of nothing else.
    worker.templates = [t["digest"] for t in listed] + ["sha256:" + "00" * 32]
    assert worker.register()["deleted_templates"] == [by_digest["digest"]]
    worker.templates, worker.build_digest = worker.templates[1:2], worker.templates[1]

    box = server.create()["sandbox"]
    status, answer, _ = server.request("DELETE", "/v1/templates/seed:latest")
    assert status == 409 and answer["error"]["code"] == "failed_precondition" and "in use" in answer["error"]["message"]
    server.delete(box["id"])

    worker.build_error = {"code": "invalid_request", "message": "no such package"}
    status, answer, _ = server.request("POST", "/v1/templates", {"name": "bad", "recipe": {}},
                                       headers={"Prefer": "wait=20"})
    assert status == 400 and answer["error"]["message"] == "no such package"
    assert server.call("GET", "/v1/templates/bad/build-log") == b"unpacking\nno\n"


def test_a_build_ends_when_its_worker_restarts(server, worker):
    worker.create_delay = 3
    answer = server.call("POST", "/v1/templates", {"name": "slow", "recipe": {}})
    while server.call("GET", f"/v1/operations/{answer['operation']['id']}")["state"] != "running":
        time.sleep(0.01)
    worker.instance = "another"
    worker.register()
    op = server.operation_end(answer["operation"]["id"], timeout=1)
    assert op["state"] == "failed" and "restarted" in op["error"]["message"]
