"""Code that uses up what it may have: the sandbox stays usable, its neighbours and the daemons do not notice."""

import http.client
import os
import pathlib
import time
import urllib.parse

import pytest

from installation import ApiError

FORK_BOMB = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    try:
        if os.fork() == 0:
            try: os.setsid()
            except OSError: pass
    except OSError: time.sleep(0.05)
"""


@pytest.fixture
def container(api):
    box = api.create(isolation="container", resources={"pids": 64})
    yield box
    api.delete(box["id"])


@pytest.mark.parametrize("user", ["user", "root"])
def test_a_fork_bomb_ends_with_its_time(api, container, user):
    """An exec finds no process left and says so at once; the session's time-out takes the whole tree, setsid or not."""
    api.session(container["id"], "python3", "-c", FORK_BOMB, user=user, detach=True, timeout="4s", grace="1s")
    deadline = time.monotonic() + 10
    while True:
        begun = time.monotonic()
        try:
            assert api.exec(container["id"], "true")["exit_code"] == 0
        except ApiError as e:
            assert e.status == 409 and "resource_limit" in e.error["message"] and time.monotonic() - begun < 2
            break
        assert time.monotonic() < deadline, "the bomb did not fill the limit"
    assert api.get(f"/v1/sandboxes/{container['id']}")["state"] == "running"
    while True:
        try:
            assert api.exec(container["id"], "echo", "alive")["stdout"] == "alive\n"
            break
        except ApiError:
            assert time.monotonic() < deadline + 5, "the bomb outlived its session"
            time.sleep(0.1)


def test_a_daemon_does_not_survive_delete(api, tier):
    """Double fork, its own session, all signals ignored. (The leak check of the module looks for it as well.)"""
    box = api.create(isolation=tier)
    name = "space-daemon-" + box["id"][-8:]
    script = (f"import os,signal,time\nfor s in range(1,32):\n  try: signal.signal(s,signal.SIG_IGN)\n  except (OSError,ValueError): pass\n"
              f"if os.fork()==0:\n  os.setsid()\n  if os.fork()==0:\n    os.close(0); os.close(1); os.close(2)\n"
              f"    os.execv('/bin/sh',['{name}','-c','while :; do sleep 1; done'])\n  os._exit(0)\n")
    api.run(box["id"], "python3", "-c", script)
    api.delete(box["id"])
    argvs = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                argvs.append(pathlib.Path(f"/proc/{entry}/cmdline").read_bytes())
            except OSError:
                pass
    assert not [a for a in argvs if name.encode() in a]


HOSTILE_FILES = {
    "fifo": "rm -f $f; mkfifo $f", "zero": "ln -sf /dev/zero $f", "loop": "rm -f $f; ln -s $f $f", "directory": "rm -f $f; mkdir $f",
    "huge": "rm -f $f; truncate -s 1G $f", "own memory": "ln -sf /proc/1/mem $f", "socket": "rm -f $f; python3 -c "
    "'import socket,sys;s=socket.socket(socket.AF_UNIX);s.bind(sys.argv[1])' $f", "garbage": "head -c 200000 /dev/urandom > $f",
    "root for everyone": "echo 'user:x:0:0::/:/bin/sh' > $f", "gone": "rm -rf $f",
}


@pytest.mark.parametrize("kind", HOSTILE_FILES)
def test_hostile_files_in_etc(api, container, kind):
    """Root has replaced what the agent reads to find a user: the agent neither hangs nor ends, and serves the next one."""
    script = "for f in /etc/passwd /etc/group /etc/hosts /etc/hostname /etc/machine-id; do " + HOSTILE_FILES[kind] + "; done"
    assert api.exec(container["id"], "sh", "-c", script, user="root", timeout="10s")["exit_code"] == 0
    begun = time.monotonic()
    try:
        api.exec(container["id"], "/usr/bin/id", user="user")
    except ApiError as e:
        assert e.status in (400, 404, 409), e
    assert api.exec(container["id"], "/usr/bin/id", "-u", user="1234")["stdout"] == "1234\n"
    assert api.exec(container["id"], "/usr/bin/id", "-u", user="0")["stdout"] == "0\n"
    assert time.monotonic() - begun < 5


def rss_mb(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) >> 10
    return 0


def test_readers_that_never_read_cost_little(api, installation, container):
    """SSE clients with a full socket: the command blocks, the worker's memory is bounded."""
    worker = installation.daemon_pid("worker")
    before = rss_mb(worker)
    session = api.session(container["id"], "yes", detach=True)
    url, token = urllib.parse.urlsplit(session["attach"]["url"]), session["attach"]["token"]
    readers = []
    try:
        for _ in range(30):
            conn = http.client.HTTPConnection(url.hostname, url.port, timeout=10)
            conn.request("GET", url.path, headers={"Authorization": f"Bearer {token}"})
            readers.append(conn)
        time.sleep(2)
        assert rss_mb(worker) - before < 80
        assert api.exec(container["id"], "echo", "alive")["stdout"] == "alive\n"
    finally:
        for conn in readers:
            conn.close()


def test_secrets_are_nowhere_they_should_not_be(api, installation):
    """Modes of the state directory; keys in no log, argv or environment."""
    node_key = (installation.state / "node.key").read_text().split()[-1]
    assert api.key.startswith("sk_") and len(node_key) > 40
    for name in ("client.conf", "node.key", "server", "log", "data.btrfs", "microvm"):
        assert (installation.state / name).stat().st_mode & 0o077 == 0, name
    secrets = [api.key.encode(), node_key.encode()]
    for path in list((installation.state / "log").iterdir()) + list((installation.state / "server").iterdir()):
        text = path.read_bytes()
        assert not any(s in text for s in secrets), path
    for daemon in ("server", "worker"):
        pid = installation.daemon_pid(daemon)
        for what in ("cmdline", "environ"):
            text = pathlib.Path(f"/proc/{pid}/{what}").read_bytes()
            assert not any(s in text for s in secrets), (daemon, what)


def test_keys_open_only_their_own_doors(api, container):
    first, second = (api.session(container["id"], "true", detach=True)["attach"] for _ in range(2))
    url = urllib.parse.urlsplit(first["url"])

    def status(method, path, token):
        conn = http.client.HTTPConnection(url.hostname, url.port, timeout=10)
        conn.request(method, path, headers={"Authorization": f"Bearer {token}"} if token else {})
        code = conn.getresponse().status
        conn.close()
        return code

    assert status("GET", url.path, first["token"]) in (200, 204)
    for wrong in (api.key, second["token"], first["token"][:-1], first["token"] + "x", None):
        assert status("GET", url.path, wrong) == 401, wrong
    for wrong in (api.key, first["token"], "nk_" + "0" * 52, None):
        assert status("POST", f"/node/v1/sandboxes/{container['id']}/exec", wrong) == 401
    for path in ("/v1/sandboxes", "/worker/v1/desired"):
        assert api.request("GET", path, key=first["token"])[0] == 401
    assert api.request("GET", "/worker/v1/desired")[0] == 401
