"""Pause and wake in every tier: memory stays, streams stay open and silent, nothing runs meanwhile and nothing is lost."""

import os
import time

import pytest

from guest_programs import python, start_counter
from installation import ApiError


def refused(api, box, word):
    """exec and session are refused in this state, by name."""
    for call in (lambda: api.exec(box, "true"), lambda: api.session(box, "true")):
        with pytest.raises(ApiError) as e:
            call()
        assert e.value.status == 409 and e.value.error["code"] == "failed_precondition" and word in e.value.error["message"], e.value.body
        assert "wake" in e.value.error["message"]


def test_a_silent_stream_stays_open(api, sandbox):
    box = sandbox["id"]
    counter = start_counter(api, box)
    try:
        for seconds in (0.5, 5):
            assert api.change(box, "pause")["state"] == "paused" and api.get(f"/v1/sandboxes/{box}")["state"] == "paused"
            stream, before = counter.stream, counter.count()
            time.sleep(0.3)
            settled = counter.count()  # what was on its way when the pause came
            time.sleep(seconds)
            assert counter.count() == settled and counter.stream is stream and counter.suspended == 0
            asked = time.time()
            assert api.change(box, "wake")["state"] == "running"
            counter.wait_count(settled + 5)
            # The first line after the pause was written with the right time, not with that of the pause.
            first = next(wall for n, wall in counter.lines() if n == settled + 2)
            assert asked - 0.05 <= first <= time.time() + 0.05, (asked, first, time.time())
            assert settled - before <= 3, "it counted on while it was paused"
        counter.check()
        assert counter.stream is stream, "the stream was cut"
    finally:
        counter.close()


def test_the_clock_is_right_at_once(api, sandbox):
    """S2: after a pause."""
    box = sandbox["id"]
    api.change(box, "pause")
    time.sleep(2)
    api.change(box, "wake")
    before = time.time()
    inside = float(python(api, box, "import time; print(time.time())"))
    assert before - 0.05 <= inside <= time.time() + 0.05


def test_refused_while_paused_and_repeats_are_fine(api, sandbox):
    box = sandbox["id"]
    assert api.change(box, "wake")["state"] == "running"  # it runs already
    generation = api.change(box, "pause")["generation"]
    assert api.change(box, "pause")["generation"] == generation
    refused(api, box, "paused")
    assert api.get(f"/v1/sandboxes?state=paused")["items"][0]["id"] == box
    assert api.change(box, "wake")["state"] == "running" and api.exec(box, "echo", "on")["stdout"] == "on\n"


def test_delete_of_a_paused_one(api, tier):
    box = api.create(isolation=tier)["id"]
    counter = start_counter(api, box)
    api.change(box, "pause")
    start = time.monotonic()
    api.delete(box)
    assert time.monotonic() - start < 15
    with pytest.raises(ApiError) as e:
        api.get(f"/v1/sandboxes/{box}")
    assert e.value.status == 404
    counter.close()


def test_paused_over_a_death_of_each_daemon(installation, api, sandbox):
    box = sandbox["id"]
    counter = start_counter(api, box)
    try:
        pid = api.exec(box, "pgrep", "-f", "counter")["stdout"]
        api.change(box, "pause")
        time.sleep(0.3)
        settled = counter.count()
        installation.kill_daemon("worker")
        installation.kill_daemon("server")
        assert api.get(f"/v1/sandboxes/{box}")["state"] == "paused"
        time.sleep(0.5)
        assert counter.count() <= settled + 3
        api.change(box, "wake")
        counter.wait_count(settled + 10)
        assert api.exec(box, "pgrep", "-f", "counter")["stdout"] == pid
        counter.check()
    finally:
        counter.close()


@pytest.mark.slow
def test_two_hundred_times(api, sandbox):
    box = sandbox["id"]
    counter = start_counter(api, box)
    try:
        for _ in range(200 if os.environ.get("SPACE_TEST_LONG") else 50):
            api.change(box, "pause")
            api.change(box, "wake")
        counter.wait_count(counter.count() + 10)
        counter.check()
    finally:
        counter.close()
