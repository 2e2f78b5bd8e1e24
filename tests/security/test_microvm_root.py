"""Root of a microVM owns that guest and its kernel. What it can do with them ends at the VM, and the host says so."""

import time

from installation import ApiError


def quietly(api, box, *command, **more):
    try:
        return api.exec(box["id"], *command, **more)
    except ApiError as e:
        return e


def state_after(api, box, seconds):
    """The sandbox, when it is no longer running or the time is over."""
    deadline = time.monotonic() + seconds
    while True:
        seen = api.get(f"/v1/sandboxes/{box['id']}")
        if seen["state"] != "running" or time.monotonic() > deadline:
            return seen
        time.sleep(0.1)


def ends(api, script):
    box = api.create(isolation="microvm")
    try:
        quietly(api, box, "sh", "-c", script, user="root", timeout="5s", grace="1s")
        seen = state_after(api, box, 10)
        assert seen["state"] == "failed" and seen["state_reason"], seen
    finally:
        api.delete(box["id"])


def test_a_panic_is_seen_at_once(api):
    ends(api, "echo c > /proc/sysrq-trigger")


def test_a_reboot_is_an_end(api):
    ends(api, "echo b > /proc/sysrq-trigger")


def test_a_power_off_is_an_end(api):
    ends(api, "echo o > /proc/sysrq-trigger")


def test_the_first_vm_of_an_image_may_use_all_its_memory(api):
    """The guest's untouched pages are holes of the shared image: filling one costs the first VM two pages."""
    box = api.create(isolation="microvm", resources={"memory_mb": 640, "disk_mb": 512})
    try:
        bomb = "import os,time\nfor i in range(40):\n  if os.fork()==0:\n    x=b'x'*(20<<20); time.sleep(2); os._exit(0)\n"
        quietly(api, box, "python3", "-c", bomb, timeout="15s", grace="1s")
        time.sleep(1)
        seen = api.get(f"/v1/sandboxes/{box['id']}")
        assert seen["state"] == "running", seen
    finally:
        api.delete(box["id"])


def test_a_frozen_agent_costs_only_its_sandbox(api):
    """ptrace of pid 1 by root: requests to it end with an error in bounded time, others are served, delete works."""
    box, other = api.create(isolation="microvm"), api.create(isolation="container")
    try:
        stop = ("import ctypes,time\nl=ctypes.CDLL(None)\nassert l.ptrace(0x4206,1,0,0)==0\nl.ptrace(0x4207,1,0,0)\n"
                "time.sleep(60)")
        begun = time.monotonic()
        answer = quietly(api, box, "python3", "-c", stop, user="root", timeout="5s", grace="1s")
        assert isinstance(answer, ApiError) and answer.status == 503, answer
        assert time.monotonic() - begun < 40
        assert api.exec(other["id"], "echo", "alive")["stdout"] == "alive\n"
    finally:
        api.delete(other["id"])
        api.delete(box["id"])
