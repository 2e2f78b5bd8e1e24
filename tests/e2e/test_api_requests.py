"""Idempotency, refusals, credentials, sessions, exec: the real server with a fake worker."""

import concurrent.futures
import http.client
import json
import time

import pytest

from api_fixtures import pair, server, worker  # noqa: F401
from fake_worker import secret, token_hash


def test_same_key_same_body_is_one_sandbox_also_at_once(server, worker):
    """L4: also while the first one is in flight."""
    worker.create_delay = 0.2
    key = {"Idempotency-Key": "one", "Prefer": "wait=20"}
    body = {"metadata": {"job": "one"}, "name": "n"}
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        answers = [f.result() for f in [pool.submit(server.request, "POST", "/v1/sandboxes", body, headers=key)
                                        for _ in range(20)]]
    assert {a[0] for a in answers} == {201}
    assert len({a[1]["sandbox"]["id"] for a in answers}) == len({a[1]["operation"]["id"] for a in answers}) == 1
    assert len(server.call("GET", "/v1/sandboxes?metadata.job=one")["items"]) == 1
    sandbox_id = answers[0][1]["sandbox"]["id"]
    assert worker.created.count(sandbox_id) == 1
    # the order of fields and white space are no difference; another value, path or method is
    again = server.request("POST", "/v1/sandboxes", raw=b'{ "name":"n", "metadata":{"job":"one"} }', headers=key)
    assert again[1]["sandbox"]["id"] == sandbox_id
    for method, path, other in [("POST", "/v1/sandboxes", {"name": "m"}),
                                ("DELETE", f"/v1/sandboxes/{sandbox_id}", None),
                                ("PATCH", f"/v1/sandboxes/{sandbox_id}", {"name": "m"}),
                                ("POST", f"/v1/sandboxes/{sandbox_id}/sessions", {"command": ["true"]}),
                                ("POST", f"/v1/sandboxes/{sandbox_id}/exec", {"command": ["true"]})]:
        status, answer, _ = server.request(method, path, other, headers=key)
        assert status == 409 and answer["error"]["code"] == "idempotency_conflict", (method, path, answer)
    server.delete(sandbox_id)
    # a lost answer: the same create again after the delete tells what became of it
    status, late, _ = server.request("POST", "/v1/sandboxes", body, headers={"Idempotency-Key": "one"})
    assert status == 202 and late["sandbox"]["id"] == sandbox_id and late["sandbox"]["state"] == "deleted"


def test_a_refused_request_does_not_use_up_its_key(server):
    headers = {"Idempotency-Key": "refused", "Prefer": "wait=20"}
    assert server.request("POST", "/v1/sandboxes", {"isolation": "vm"}, headers=headers)[0] == 400
    status, answer, _ = server.request("POST", "/v1/sandboxes", {}, headers=headers)
    assert status == 201
    server.delete(answer["sandbox"]["id"])


@pytest.mark.parametrize("headers,field", [
    ({"Idempotency-Key": "x" * 201}, "Idempotency-Key"), ({"Idempotency-Key": "a\tb"}, "Idempotency-Key"),
    ({"Idempotency-Key": "\xe9"}, "Idempotency-Key"), ({"Prefer": "wait=0"}, "Prefer"), ({"Prefer": "wait=601"}, "Prefer"),
    ({"Prefer": "wait=1.5"}, "Prefer"), ({"Prefer": "wait="}, "Prefer")])
def test_bad_headers_are_named(server, headers, field):
    status, answer, _ = server.request("POST", "/v1/sandboxes", {}, headers=headers)
    assert status == 400 and answer["error"]["field"] == field


LONG = "x" * 70000


@pytest.mark.parametrize("body,field", [
    ({"nope": 1}, "/nope"), ({"resources": {"cpu": 1}}, "/resources/cpu"), ({"resources": {"cpus": 0.05}}, "/resources/cpus"),
    ({"resources": {"cpus": 65}}, "/resources/cpus"), ({"resources": {"cpus": "1"}}, "/resources/cpus"),
    ({"resources": {"memory_mb": 63}}, "/resources/memory_mb"), ({"resources": {"memory_mb": 1.5}}, "/resources/memory_mb"),
    ({"resources": {"disk_mb": 10**12}}, "/resources/disk_mb"), ({"resources": {"pids": 7}}, "/resources/pids"),
    ({"resources": []}, "/resources"), ({"isolation": "vm"}, "/isolation"), ({"untrusted": "yes"}, "/untrusted"),
    ({"template": "no such"}, "/template"), ({"template": "nosuch:latest"}, "/template"), ({"template": "sha256:12"}, "/template"),
    ({"env": {"A=B": "x"}}, "/env/A=B"), ({"env": {"1A": "x"}}, "/env/1A"), ({"env": {"A": 1}}, "/env/A"),
    ({"env": {"A": LONG}}, "/env/A"), ({"env": {f"K{i}": "" for i in range(257)}}, "/env"),
    ({"metadata": {"a b": "x"}}, "/metadata/a b"), ({"metadata": {"a": "x" * 1025}}, "/metadata/a"),
    ({"idle_timeout": 30}, "/idle_timeout"), ({"idle_timeout": "9s"}, "/idle_timeout"), ({"idle_timeout": "31d"}, "/idle_timeout"),
    ({"max_lifetime": "-1s"}, "/max_lifetime"), ({"on_idle": "sleep"}, "/on_idle"), ({"name": "Not A Name"}, "/name"),
    ({"name": "-a"}, "/name"), ({"name": "a" * 64}, "/name"), ({"user": "a b"}, "/user"), ({"network": {"deny": []}}, "/network/deny")])
def test_bad_create_names_the_field(server, body, field):
    status, answer, _ = server.request("POST", "/v1/sandboxes", body)
    assert status == 400, answer
    assert answer["error"]["code"] == "invalid_request" and answer["error"]["field"] == field, answer


@pytest.mark.parametrize("body", [{"network": {"allow": ["example.com"]}}])
def test_what_is_not_there_yet_says_so(server, body):
    status, answer, _ = server.request("POST", "/v1/sandboxes", body)
    assert status == 409 and answer["error"]["code"] == "unsupported"


@pytest.mark.parametrize("raw", [b"{", b'{"a":1,"a":2}', b"[]", b'"x"', b"\xff", b"[" * 100000])
def test_bad_json_is_refused(server, raw):
    status, answer, _ = server.request("POST", "/v1/sandboxes", raw=raw)
    assert status == 400 and answer["error"]["code"] == "invalid_request"


def test_too_large_and_unknown(server):
    assert server.request("POST", "/v1/sandboxes", raw=b"x" * 300000)[0] == 413
    for path in ("/v1/nope", "/v1/sandboxes/sbx_00000000000000000000000000/pause", "/v1/snapshots", "/"):
        assert server.request("POST", path, {})[0] in (404, 405)


def test_credentials(server, worker):
    box = server.create()["sandbox"]
    session = server.call("POST", f"/v1/sandboxes/{box['id']}/sessions", {"command": ["true"]})
    paths = [("GET", "/v1/sandboxes"), ("POST", "/v1/sandboxes"), ("GET", f"/v1/sandboxes/{box['id']}"),
             ("DELETE", f"/v1/sandboxes/{box['id']}"), ("GET", "/metrics"), ("GET", "/v1/nodes"), ("GET", "/v1/templates")]
    for method, path in paths:
        for key in (secret("sk"), "sk_", session["attach"]["token"], server.node_key):
            status, answer, headers = server.request(method, path, key=key)
            assert status == 401 and answer["error"]["code"] == "unauthenticated", (method, path)
            assert headers["WWW-Authenticate"] == "Bearer"
        status, _, _ = server.request(method, path, headers={"Authorization": "Basic eDp5"})
        assert status == 401
    for path in ("/worker/v1/desired?node=local", f"/worker/v1/sessions/{session['session']['id']}"):
        assert server.request("GET", path)[0] == 401  # the API key is no node key
    for path in ("/healthz", "/readyz", "/version"):
        assert server.request("GET", path, headers={"Authorization": ""})[0] == 200
    server.delete(box["id"])


def test_sessions(server, worker):
    box = server.create()["sandbox"]
    path = f"/v1/sandboxes/{box['id']}/sessions"
    body = {"command": ["sh", "-c", "exit 3"], "env": {"A": "1"}, "timeout": "30s", "pty": {"rows": 24, "cols": 80}}
    status, answer, _ = server.request("POST", path, body, headers={"Idempotency-Key": "ses"})
    session, attach = answer["session"], answer["attach"]
    assert status == 201 and session["state"] == "pending" and session["process_id"].startswith("prc_")
    assert attach["url"] == f"{worker.data_url}/v1/attach/{session['id']}/events" and attach["token"].startswith("at_")
    _, told, _ = worker.call("GET", f"/worker/v1/sessions/{session['id']}")
    assert told["spec"] == {"command": ["sh", "-c", "exit 3"], "env": {"A": "1"}, "timeout_ms": 30000, "grace_ms": 10000,
                            "stdin": "none", "overflow": "block", "pty": {"rows": 24, "cols": 80}}
    assert [t["sha256"] for t in told["tokens"]] == [token_hash(attach["token"])]
    assert attach["token"] not in json.dumps(told)

    again = server.call("POST", path, body, headers={"Idempotency-Key": "ses"})
    assert again["session"]["id"] == session["id"] and again["attach"]["token"] != attach["token"]
    fresh = server.call("POST", f"/v1/sessions/{session['id']}/attachments", {})
    _, told, _ = worker.call("GET", f"/worker/v1/sessions/{session['id']}")
    assert {t["sha256"] for t in told["tokens"]} == {token_hash(a["token"]) for a in
                                                    (attach, again["attach"], fresh["attach"])}

    worker.post("/worker/v1/sessions", {"node": "local", "sessions": [{"id": session["id"], "state": "running"}]})
    assert server.call("GET", f"/v1/sandboxes/{box['id']}")["busy"]["sessions"] == 1
    worker.post("/worker/v1/sessions", {"node": "local", "sessions": [
        {"id": session["id"], "state": "exited", "exit": {"exit_code": 3, "signal": None}}]})
    worker.post("/worker/v1/sessions", {"node": "local", "sessions": [{"id": session["id"], "state": "running"}]})
    ended = server.call("GET", f"/v1/sessions/{session['id']}")
    assert ended["state"] == "exited" and ended["exit"]["exit_code"] == 3 and ended["ended_at"]
    assert server.call("GET", f"/v1/sandboxes/{box['id']}")["busy"]["sessions"] == 0

    open_one = server.call("POST", path, {"command": ["cat"]})["session"]["id"]
    server.delete(box["id"])
    assert worker.call("GET", f"/worker/v1/sessions/{open_one}")[0] == 404
    assert server.call("GET", f"/v1/sessions/{open_one}")["state"] == "lost"
    assert server.request("POST", path, {"command": ["true"]})[0] == 404


def test_sessions_need_a_running_sandbox(server, worker):
    worker.create_delay = 1
    box = server.create(wait=0)["sandbox"]
    for verb in ("sessions", "exec"):
        status, answer, _ = server.request("POST", f"/v1/sandboxes/{box['id']}/{verb}", {"command": ["true"]})
        assert status == 409 and answer["error"]["code"] == "failed_precondition"
        assert "creating" in answer["error"]["message"]
    assert server.request("GET", f"/v1/sandboxes/{box['id']}/processes")[0] == 409
    server.delete(box["id"])


@pytest.mark.parametrize("body,field", [
    ({}, "/command"), ({"command": []}, "/command"), ({"command": "true"}, "/command"), ({"command": [""]}, "/command/0"),
    ({"command": ["a", 1]}, "/command/1"), ({"command": ["x"] * 1025}, "/command"), ({"command": ["x"], "cwd": "rel"}, "/cwd"),
    ({"command": ["x"], "timeout": "0s"}, "/timeout"), ({"command": ["x"], "grace": "6m"}, "/grace"),
    ({"command": ["x"], "stdin": "maybe"}, "/stdin"), ({"command": ["x"], "pty": {"rows": 0, "cols": 1}}, "/pty/rows"),
    ({"command": ["x"], "pty": {"rows": 1}}, "/pty/cols"), ({"command": ["x"], "env": {"a-b": ""}}, "/env/a-b"),
    ({"command": ["x"], "shell": True}, "/shell")])
def test_bad_sessions_name_the_field(server, body, field):
    box = server.create()["sandbox"]
    status, answer, _ = server.request("POST", f"/v1/sandboxes/{box['id']}/sessions", body)
    assert status == 400 and answer["error"]["field"] == field, answer
    server.delete(box["id"])


def test_exec_passes_on_and_runs_once_per_key(server, worker):
    box = server.create()["sandbox"]
    path = f"/v1/sandboxes/{box['id']}/exec"
    assert server.call("POST", path, {"command": ["echo", "x"]}) == {"exit_code": 0, "stdout": "out", "stderr": ""}
    target, sent = worker.requests[-1]
    assert target == f"/node/v1/sandboxes/{box['id']}/exec" and sent["command"] == ["echo", "x"]
    assert sent["timeout_ms"] == 600000 and sent["process_id"].startswith("prc_")
    status, answer, _ = server.request("POST", path, {"command": ["x"], "pty": {"rows": 1, "cols": 1}})
    assert status == 400 and answer["error"]["field"] == "/pty"

    worker.exec_status = 400
    worker.exec_body = b'{"error":{"code":"invalid_request","message":"no such program","field":"/command/0"}}'
    key = {"Idempotency-Key": "exec"}
    status, answer, _ = server.request("POST", path, {"command": ["nosuch"]}, headers=key)
    assert status == 400 and answer["error"]["field"] == "/command/0"
    worker.exec_status, worker.exec_body = 200, b'{"exit_code":0}'
    assert server.call("POST", path, {"command": ["nosuch"]}, headers=key) == {"exit_code": 0}
    count = len(worker.requests)
    status, answer, _ = server.request("POST", path, {"command": ["nosuch"]}, headers=key)
    assert status == 409 and answer["error"]["code"] == "conflict" and len(worker.requests) == count
    server.delete(box["id"])


def test_processes_and_signal(server, worker):
    box = server.create()["sandbox"]
    path = f"/v1/sandboxes/{box['id']}/processes"
    assert server.call("GET", path) == {"items": []}
    process = "prc_" + "0" * 26
    key = {"Idempotency-Key": "kill"}
    for _ in range(2):
        assert server.call("POST", f"{path}/{process}/signal", {"signal": "SIGKILL"}, headers=key) == {}
    sent = [body for target, body in worker.requests if target.endswith("/signal")]
    assert sent == [{"signal": "SIGKILL"}]
    status, answer, _ = server.request("POST", f"{path}/{process}/signal", {"signal": "SIGFOO"})
    assert status == 400 and answer["error"]["field"] == "/signal"
    assert server.request("POST", f"{path}/1/signal", {"signal": "SIGKILL"})[0] == 404
    detached = server.call("POST", f"/v1/sandboxes/{box['id']}/sessions", {"command": ["x"], "detach": True})
    assert worker.requests[-1][0] == f"/node/v1/sessions/{detached['session']['id']}/start"
    server.delete(box["id"])


def test_health_version_metrics_nodes(server, worker):
    assert server.call("GET", "/readyz") == {"ready": True, "store": True, "worker": True}
    assert server.call("GET", "/version")["api"] == "v1"
    text = server.call("GET", "/metrics").decode()
    assert 'space_http_requests_total{method="POST",route="/v1/sandboxes",status="201"}' in text
    assert 'space_sandboxes{state="running"} 0' in text and "space_sandbox_create_seconds_count" in text
    for line in text.splitlines():
        assert line.startswith("# TYPE ") or len(line.rsplit(" ", 1)) == 2 and float(line.rsplit(" ", 1)[1]) >= 0
    node = server.call("GET", "/v1/nodes")["items"][0]
    assert node["name"] == "local" and node["ready"] is True and node["data_url"] == worker.data_url


def test_worker_protocol_refusals(server, worker):
    good = {"protocol": 1, "node": "local", "instance": "i", "data_url": "http://127.0.0.1:1", "tiers": [], "templates": []}
    status, answer, _ = worker.call("POST", "/worker/v1/register", {**good, "protocol": 2})
    assert status == 409 and answer["error"]["code"] == "unsupported"
    for change in ({"node": "A/B"}, {"data_url": "ftp://x"}, {"tiers": 1}, {"node": None}):
        assert worker.call("POST", "/worker/v1/register", {**good, **change})[0] == 400
    assert worker.call("GET", "/worker/v1/desired?node=local&after=x")[0] == 400
    begun = time.monotonic()
    _, wanted, _ = worker.call("GET", "/worker/v1/desired?node=nobody&after=0&wait_ms=300")
    assert wanted["sandboxes"] == [] and 0.25 < time.monotonic() - begun < 2
    _, wanted, _ = worker.call("GET", "/worker/v1/desired?node=local&after=999999999&wait_ms=100")
    assert wanted["revision"] < 999999999


def test_a_restarted_worker_tries_its_tiers(server, worker):
    """Until it knows, what worked is taken to work; what did not is no more said to be impossible."""
    register = {"protocol": 1, "node": "other", "data_url": "http://127.0.0.1:1", "templates": []}
    known = [{"tier": "container", "available": True, "detail": "v2", "save_memory": True},
             {"tier": "gvisor", "available": True, "detail": "it is", "save_memory": False},
             {"tier": "microvm", "available": False, "detail": "no QEMU"}]
    trying = [{"tier": t["tier"], "available": False, "detail": "being tried", "probing": True} for t in known]
    expected = [{**known[0], "probing": None}, {**known[1], "probing": True}, trying[2]]
    for instance, tiers, told in (("a", known, known), ("b", trying, expected)):
        assert worker.call("POST", "/worker/v1/register", {**register, "instance": instance, "tiers": tiers})[0] == 200
        node = next(n for n in server.call("GET", "/v1/nodes")["items"] if n["name"] == "other")
        assert [{k: t.get(k) for k in e} for t, e in zip(node["tiers"], told)] == told, node


def test_keep_alive(server):
    conn = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    for _ in range(50):
        conn.request("GET", "/v1/sandboxes", headers={"Authorization": f"Bearer {server.key}"})
        answer = conn.getresponse()
        assert answer.status == 200 and answer.read()
    conn.close()
