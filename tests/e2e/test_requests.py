"""Idempotency and refusals of the real server."""

import concurrent.futures
import uuid

import pytest

from installation import ApiError


def test_same_key_same_body_is_one_sandbox(api):
    """L4: twenty at once with one key."""
    key = str(uuid.uuid4())
    body = {"isolation": "container", "metadata": {"job": key}}

    def create():
        return api.call("POST", "/v1/sandboxes", body, headers={"Idempotency-Key": key, "Prefer": "wait=60"})

    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        answers = [f.result() for f in [pool.submit(create) for _ in range(20)]]
    assert len({a["sandbox"]["id"] for a in answers}) == 1
    assert len({a["operation"]["id"] for a in answers}) == 1
    found = api.get(f"/v1/sandboxes?metadata.job={key}")["items"]
    assert len(found) == 1
    with pytest.raises(ApiError) as conflict:
        api.call("POST", "/v1/sandboxes", {"isolation": "container"}, headers={"Idempotency-Key": key})
    assert conflict.value.status == 409 and conflict.value.error["code"] == "idempotency_conflict"
    api.delete(found[0]["id"])


@pytest.mark.parametrize("body,field", [
    ({"nope": 1}, "/nope"),
    ({"resources": {"cpu": 1}}, "/resources/cpu"),
    ({"resources": {"cpus": 0}}, "/resources/cpus"),
    ({"resources": {"cpus": "1"}}, "/resources/cpus"),
    ({"resources": {"memory_mb": -1}}, "/resources/memory_mb"),
    ({"resources": {"memory_mb": 10**12}}, "/resources/memory_mb"),
    ({"resources": {"pids": 0}}, "/resources/pids"),
    ({"isolation": "vm"}, "/isolation"),
    ({"template": "no such"}, "/template"),
    ({"template": "nosuch:latest"}, "/template"),
    ({"env": {"A=B": "x"}}, "/env/A=B"),
    ({"env": {"A": 1}}, "/env/A"),
    ({"idle_timeout": 30}, "/idle_timeout"),
    ({"name": "Not A Name"}, "/name"),
])
def test_bad_create_names_the_field(api, body, field):
    status, answer, _ = api.request("POST", "/v1/sandboxes", body)
    assert status == 400, answer
    assert answer["error"]["code"] == "invalid_request" and answer["error"]["field"] == field
    assert answer["error"]["request_id"].startswith("req_")


@pytest.mark.parametrize("raw", [b"{", b'{"a":1,"a":2}', b"[]", b'"x"', b"\xff"])
def test_bad_json_is_refused(api, raw):
    status, answer, _ = api.request("POST", "/v1/sandboxes", raw=raw)
    assert status == 400 and answer["error"]["code"] == "invalid_request"


def test_delete_twice_is_the_same_operation_and_unknown_is_404(api):
    box = api.create(isolation="container")
    first = api.delete(box["id"])["operation"]["id"]
    assert api.delete(box["id"])["operation"]["id"] == first
    for path in ("/v1/sandboxes/sbx_00000000000000000000000000", "/v1/sandboxes/..%2f..%2fetc"):
        with pytest.raises(ApiError) as missing:
            api.call("DELETE", path)
        assert missing.value.status in (400, 404)


def test_no_get_says_running_after_delete_was_accepted(api, tier):
    """L1, against the real worker: delete while the create is in flight."""
    for _ in range(5):
        box = api.call("POST", "/v1/sandboxes", {"isolation": tier})["sandbox"]
        status, answer, _ = api.request("DELETE", f"/v1/sandboxes/{box['id']}")
        assert status in (200, 202), answer
        while True:
            status, seen, _ = api.request("GET", f"/v1/sandboxes/{box['id']}")
            if status == 404:
                break
            assert seen["state"] != "running"
        assert api.get(f"/v1/operations/{answer['operation']['id']}")["state"] == "succeeded"
