"""The first session as README shows it, by HTTP alone: create, session, attach, process_exited, delete."""

import base64
import json
import subprocess
import time

import pytest

from installation import ApiError


def test_walk_with_prefer_wait(api, tier):
    """X1, X2: success comes from the command's own exit, and every later reader is told the same."""
    status, answer, _ = api.request("POST", "/v1/sandboxes", {"isolation": tier}, headers={"Prefer": "wait=60"})
    assert status == 201, answer
    box, operation = answer["sandbox"], answer["operation"]
    assert (box["state"], operation["state"], operation["kind"]) == ("running", "succeeded", "create")
    assert box["isolation"] == tier and box["isolation_reason"]
    assert box["template"] == "seed:latest" and box["template_digest"].startswith("sha256:")

    session = api.session(box["id"], "python3", "-c", "import sys; print('out'); print('err', file=sys.stderr)")
    assert session["session"]["state"] == "pending"  # it starts when the client attaches
    events = [event for _, event in api.attach(session["attach"])]
    assert events[0]["type"] == "started" and events[0]["pid"] > 0
    assert events[-1]["type"] == "process_exited" and events[-1]["exit_code"] == 0
    assert b"".join(base64.b64decode(e["data"]) for e in events if e["type"] == "stdout") == b"out\n"
    assert b"".join(base64.b64decode(e["data"]) for e in events if e["type"] == "stderr") == b"err\n"

    ended = api.get(f"/v1/sessions/{session['session']['id']}")
    assert ended["state"] == "exited" and ended["exit"]["exit_code"] == 0, ended

    status, answer, _ = api.request("DELETE", f"/v1/sandboxes/{box['id']}", headers={"Prefer": "wait=60"})
    assert status == 200 and answer["operation"]["state"] == "succeeded", answer
    with pytest.raises(ApiError) as gone:
        api.get(f"/v1/sandboxes/{box['id']}")
    assert gone.value.status == 404


def test_the_three_documented_waits(api, tier):
    """Accepted is not succeeded is not running is not exited: each is asked for by itself."""
    status, answer, _ = api.request("POST", "/v1/sandboxes", {"isolation": tier})
    assert status == 202
    sandbox_id, operation_id = answer["sandbox"]["id"], answer["operation"]["id"]
    deadline = time.monotonic() + 60
    while (op := api.get(f"/v1/operations/{operation_id}"))["state"] in ("pending", "running"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert op["state"] == "succeeded", op
    assert op["steps"], "the record says where the time went"
    assert api.get(f"/v1/sandboxes/{sandbox_id}")["state"] == "running"
    assert api.get(f"/v1/sandboxes/{sandbox_id}/processes")["items"] == []
    assert api.run(sandbox_id, "true")["exit"]["exit_code"] == 0
    api.delete(sandbox_id)


def test_by_curl_alone(installation, tier):
    """X5: a strict client reads the stream to its proper end."""
    def curl(*args):
        return subprocess.run(["curl", "-sS", "--fail-with-body", "--max-time", "60", *args], capture_output=True,
                              check=True).stdout
    auth = ["-H", f"Authorization: Bearer {installation.key}", "-H", "Content-Type: application/json"]
    url = installation.url
    box = json.loads(curl(*auth, "-H", "Prefer: wait=60", f"{url}/v1/sandboxes", "-d",
                          json.dumps({"isolation": tier})))["sandbox"]
    answer = json.loads(curl(*auth, f"{url}/v1/sandboxes/{box['id']}/sessions", "-d",
                             '{"command":["python3","-c","print(6*7)"]}'))
    stream = curl("-N", "-H", f"Authorization: Bearer {answer['attach']['token']}", answer["attach"]["url"]).decode()
    assert '"type":"process_exited"' in stream and "NDIK" in stream  # base64 of "42\n"
    curl(*auth, "-H", "Prefer: wait=60", "-X", "DELETE", f"{url}/v1/sandboxes/{box['id']}")


def test_credentials_are_not_interchangeable(api, sandbox):
    session = api.session(sandbox["id"], "true")
    with pytest.raises(ApiError) as refused:
        api.attach({"url": session["attach"]["url"], "token": api.key})
    assert refused.value.status == 401
    for path in ["/v1/sandboxes", f"/v1/sandboxes/{sandbox['id']}", "/v1/operations"]:
        status, answer, _ = api.request("GET", path, key=session["attach"]["token"])
        assert status == 401 and answer["error"]["code"] == "unauthenticated"
    other = api.session(sandbox["id"], "true")
    with pytest.raises(ApiError) as refused:
        api.attach({"url": other["attach"]["url"], "token": session["attach"]["token"]})
    assert refused.value.status == 401


def test_a_fresh_attachment_token(api, sandbox):
    session = api.session(sandbox["id"], "echo", "again")
    fresh = api.call("POST", f"/v1/sessions/{session['session']['id']}/attachments", {})
    attach = fresh.get("attach", fresh)
    assert attach["token"] != session["attach"]["token"]
    events = [e for _, e in api.attach(attach)]
    assert events[-1]["type"] == "process_exited"


def test_replay_by_last_event_id(api, sandbox):
    session = api.session(sandbox["id"], "sh", "-c", "for i in 1 2 3 4 5; do echo line$i; done")
    first = list(api.attach(session["attach"]))
    ids = [i for i, _ in first]
    assert ids == sorted(set(ids))
    again = list(api.attach(session["attach"], last_event_id=ids[0]))
    assert again == first[1:]


def test_timeout_ends_the_whole_tree(api, sandbox):
    """P2: setsid grandchildren included."""
    result = api.run(sandbox["id"], "sh", "-c", "sleep 1000 & setsid sleep 1000 & (setsid sh -c 'sleep 1000 &') ; exec sleep 1000",
                     timeout="500ms", grace="200ms")
    assert result["exit"]["timed_out"] is True
    left = api.exec(sandbox["id"], "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 100[0]'")
    assert left["stdout"].strip() == "0", left


def test_stdin_by_http(api, sandbox):
    session = api.session(sandbox["id"], "cat", stdin="open")
    stream = api.attach(session["attach"])
    events = iter(stream)
    assert next(events)[1]["type"] == "started"
    base = session["attach"]["url"].rsplit("/", 1)[0]
    token = session["attach"]["token"]

    def post(verb, raw=b""):
        import http.client
        import urllib.parse
        parts = urllib.parse.urlsplit(base)
        conn = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
        conn.request("POST", f"{parts.path}/{verb}", body=raw, headers={"Authorization": f"Bearer {token}"})
        answer = conn.getresponse()
        answer.read()
        conn.close()
        return answer.status

    assert post("stdin", b"one\n") == 200
    assert base64.b64decode(next(events)[1]["data"]) == b"one\n"
    assert post("stdin", b"two\n") == 200
    assert post("close-stdin") == 200
    rest = [e for _, e in events]
    assert rest[-1]["exit_code"] == 0
    assert post("stdin", b"late") == 409  # X14: the process has ended, and that is what it says


def test_missing_command_cwd_and_user_are_typed(api, sandbox):
    for body, field in [({"command": ["nosuch"]}, "/command/0"), ({"command": ["true"], "cwd": "/nosuch"}, "/cwd"),
                        ({"command": ["true"], "user": "nobodyhere"}, "/user")]:
        with pytest.raises(ApiError) as refused:
            api.call("POST", f"/v1/sandboxes/{sandbox['id']}/exec", body)
        assert refused.value.status == 400 and refused.value.error["field"] == field
    result = api.run(sandbox["id"], "nosuch")
    assert result["exit"]["type"] == "error" and result["exit"]["code"] == "command_not_found"


def test_exec_in_one_call(api, sandbox):
    done = api.exec(sandbox["id"], "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (done["exit_code"], done["stdout"], done["stderr"], done["timed_out"]) == (3, "out\n", "err\n", False)
    done = api.exec(sandbox["id"], "head", "-c", "3000000", "/dev/zero")
    assert done["exit_code"] == 0 and done["truncated"], "head and tail are kept and the total is said"


def test_processes_and_signal(api, sandbox):
    session = api.session(sandbox["id"], "sleep", "1000", detach=True)
    items = api.get(f"/v1/sandboxes/{sandbox['id']}/processes")["items"]
    assert [p["process_id"] for p in items] == [session["session"]["process_id"]]
    assert items[0]["command"] == ["sleep", "1000"] and items[0]["user"] == "user"
    api.call("POST", f"/v1/sandboxes/{sandbox['id']}/processes/{items[0]['process_id']}/signal", {"signal": "SIGKILL"})
    events = [e for _, e in api.attach(session["attach"])]
    assert events[-1]["type"] == "process_exited" and events[-1]["signal"] in (9, "SIGKILL")
    assert events[-1]["exit_code"] == 137
    assert api.get(f"/v1/sandboxes/{sandbox['id']}/processes")["items"] == []
