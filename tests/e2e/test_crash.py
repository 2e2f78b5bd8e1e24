"""kill -9 of a daemon in the middle of things (L5): operations end, sandboxes live on, nothing is left."""

import os
import select
import signal
import threading
import time

import pytest

from installation import output_of


def create_and_wait(api, tier, results):
    """Creates without waiting in the server, then follows the operation across the crash."""
    answer = api.call("POST", "/v1/sandboxes", {"isolation": tier})
    results.append((answer["sandbox"]["id"], answer["operation"]["id"]))


def follow(api, operation_id, seconds=90):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            op = api.get(f"/v1/operations/{operation_id}")
            if op["state"] in ("succeeded", "failed"):
                return op
        except OSError:
            pass
        time.sleep(0.02)
    raise AssertionError(f"operation {operation_id} did not end")


@pytest.mark.slow
@pytest.mark.parametrize("daemon", ["worker", "server"])
def test_killed_in_the_middle_of_creates(installation, api, tier, daemon):
    """L5: at several moments after the creates were accepted, so that different steps are cut."""
    for delay in (0.0, 0.01, 0.05):
        results = []
        for _ in range(4):
            create_and_wait(api, tier, results)
        time.sleep(delay)
        installation.kill_daemon(daemon)
        for sandbox_id, operation_id in results:
            op = follow(api, operation_id)
            if op["state"] == "succeeded":
                assert api.exec(sandbox_id, "echo", "alive")["stdout"] == "alive\n"
            else:
                assert op["error"]["code"], op
            api.delete(sandbox_id)
    assert api.get("/v1/sandboxes")["items"] == []


def test_a_request_during_the_restart_waits_for_it(installation, api, tier):
    """A worker that is being restarted is no error for the client: nothing was sent yet, so the server tries again."""
    box = api.create(isolation=tier)
    try:
        for _ in range(2):
            old = installation.daemon_pid("worker")
            gone = os.pidfd_open(old)
            os.kill(old, signal.SIGKILL)
            select.select([gone], [], [], 10)  # while it dies, its socket still takes connections
            os.close(gone)
            assert api.exec(box["id"], "echo", "alive")["stdout"] == "alive\n"
            assert installation.daemon_pid("worker") != old
    finally:
        api.delete(box["id"])


def test_a_session_outlives_the_worker(installation, api, tier):
    """The agent owns the output: after kill -9 of the worker the stream goes on by Last-Event-ID, byte for byte."""
    box = api.create(isolation=tier)
    try:
        script = "i=0; while [ $i -lt 400 ]; do echo line $i; i=$((i+1)); sleep 0.01; done"
        session = api.session(box["id"], "sh", "-c", script)
        events = []
        stream = api.attach(session["attach"])
        last = 0
        killed = threading.Event()
        try:
            for last, event in stream:
                events.append(event)
                if len(events) == 20 and not killed.is_set():
                    killed.set()
                    threading.Thread(target=installation.kill_daemon, args=("worker",)).start()
        except (OSError, Exception) as cut:  # the worker is gone: the connection is cut, no exit is invented
            assert not isinstance(cut, AssertionError), cut
        assert killed.is_set() and events[-1]["type"] != "process_exited"
        deadline = time.monotonic() + 30
        while events[-1]["type"] != "process_exited":
            assert time.monotonic() < deadline
            try:
                for last, event in api.attach(session["attach"], last_event_id=last):
                    assert event["type"] != "resync_required"
                    events.append(event)
            except OSError:
                time.sleep(0.05)
        assert output_of(events, "stdout").decode() == "".join(f"line {i}\n" for i in range(400))
    finally:
        installation.api().wait_ready()
        api.delete(box["id"])
