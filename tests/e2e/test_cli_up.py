"""`space up` and `space down` with the real daemons, but the fake driver: no sandbox of the host's is made."""

import json
import os
import pathlib
import re
import signal
import socket
import stat
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from conftest import BUILD
from installation import free_port

SPACE = str(BUILD / "space")
ENV = {k: v for k, v in os.environ.items() if not k.startswith("SPACE_")}
ROOT = os.geteuid() == 0


class Up:
    """One `space up` on a state directory; the ports stay the same over restarts."""

    def __init__(self, state):
        self.state = pathlib.Path(state)
        self.api, self.data = free_port(), free_port()
        self.process = None

    def command(self, *more):
        return [SPACE, "up", "--fake-driver", "--state", str(self.state), "--api", f"127.0.0.1:{self.api}", "--data",
                f"127.0.0.1:{self.data}", *more]

    def start(self):
        self.process = subprocess.Popen(self.command(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV, text=True)
        lines = [self.process.stdout.readline() for _ in range(2)]
        if not lines[1]:
            raise RuntimeError(self.process.communicate(timeout=10))
        return dict(line.split() for line in lines)

    def daemons(self):
        """{name: pid} of the running daemons of this state directory, whoever their parent is."""
        found = {}
        for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                argv = entry.read_bytes().split(b"\0")
                alive = b") Z " not in (entry.parent / "stat").read_bytes()
            except OSError:
                continue
            if alive and argv[0] == b"space" and any(str(self.state).encode() in a for a in argv[2:]):
                found[argv[1].decode()] = int(entry.parent.name)
        return found

    def ready(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.api}/readyz", timeout=2) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err

    def down(self):
        return subprocess.run([SPACE, "down", "--fake-driver", "--state", str(self.state)], capture_output=True, text=True,
                              timeout=90, env=ENV, check=False)


def wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return value


@pytest.fixture
def up(tmp_path):
    os.chmod(tmp_path, 0o700)  # closed to the server's uid, as /root is
    installation = Up(tmp_path / "state")
    yield installation
    if installation.process and installation.process.poll() is None:
        installation.process.kill()
        installation.process.wait()
    wait_for(lambda: not installation.daemons())
    done = installation.down()
    assert done.returncode == 0, done
    assert str(tmp_path) not in pathlib.Path("/proc/self/mountinfo").read_text()


def test_ready_key_and_files(up):
    said = up.start()
    assert said["url:"] == f"http://127.0.0.1:{up.api}" and re.fullmatch(r"sk_[\w-]{43}", said["key:"])
    assert up.ready()
    conf = up.state / "client.conf"
    assert stat.S_IMODE(conf.stat().st_mode) == 0o600 and said["key:"] in conf.read_text()
    assert stat.S_IMODE(up.state.stat().st_mode) == 0o711
    assert subprocess.run([SPACE, "ls", "--state", str(up.state)], env=ENV, capture_output=True, check=True).stdout
    code, out, err = up.stop()
    assert code == 0 and "no sandboxes" in out and err == ""
    assert not up.daemons()


def test_the_key_is_in_client_conf_alone(up):
    key = up.start()["key:"].encode()
    node_key = (up.state / "node.key").read_bytes().strip()
    for pid in [up.process.pid, *up.daemons().values()]:
        for name in ("cmdline", "environ"):
            raw = pathlib.Path(f"/proc/{pid}/{name}").read_bytes()
            assert key not in raw and node_key not in raw
    up.stop()
    for path in up.state.rglob("*"):
        if path.is_file() and path.stat().st_size < 1 << 24 and path.name not in ("client.conf", "node.key"):
            raw = path.read_bytes()
            assert key not in raw and node_key not in raw, path


@pytest.mark.skipif(not ROOT, reason="only root can give privileges away")
def test_the_server_is_unprivileged(up):
    up.start()
    status = pathlib.Path(f"/proc/{up.daemons()['server']}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert "0" not in fields["Uid"].split() + fields["Gid"].split()
    assert fields["Groups"].strip() == "" and fields["NoNewPrivs"] == "1"
    for caps in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(fields[caps], 16) == 0, caps


def test_the_key_stays_over_restarts(up):
    first = up.start()
    up.stop()
    assert up.start() == first


def test_two_on_one_state_directory(up):
    up.start()
    done = subprocess.run(up.command(), capture_output=True, text=True, timeout=20, env=ENV, check=False)
    assert done.returncode == 125 and f"pid {up.process.pid}" in done.stderr
    assert up.ready()


@pytest.mark.parametrize("name", ["server", "worker"])
def test_a_daemon_that_dies_is_started_again(up, name):
    up.start()
    for _ in range(4):  # more often than would be allowed before it was ready
        old = up.daemons()[name]
        os.kill(old, signal.SIGKILL)
        wait_for(lambda: up.daemons().get(name) not in (None, old) and up.ready())
    code, _, err = up.stop()
    assert code == 0
    assert [json.loads(line)["name"] for line in err.splitlines()] == [name] * 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_other_ways_to_stop(up, number):
    up.start()
    assert up.stop(number)[0] == 0 and not up.daemons()


def test_daemons_end_when_up_is_killed(up):
    first = up.start()
    up.process.kill()
    up.process.wait()
    assert up.start() == first  # at once: it waits for the earlier ones to end
    assert up.ready() and set(up.daemons()) >= {"server", "worker"}
    up.process.kill()
    up.process.wait()
    wait_for(lambda: not up.daemons(), 10)


@pytest.mark.parametrize("which", ["api", "data"])
def test_an_address_in_use_is_said_at_once(up, which):
    with socket.socket() as s:
        s.bind(("127.0.0.1", getattr(up, which)))
        s.listen()
        start = time.monotonic()
        done = subprocess.run(up.command(), capture_output=True, text=True, timeout=20, env=ENV, check=False)
    assert done.returncode == 125 and f"--{which}" in done.stderr and "in use" in done.stderr
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999", "example.org:80"])
def test_bad_addresses(up, address):
    done = subprocess.run([*up.command(), "--api", address], capture_output=True, text=True, timeout=20, env=ENV,
                          check=False)
    assert done.returncode == 125 and "--api" in done.stderr


def test_a_daemon_that_cannot_start_ends_up_with_its_words(up):
    up.start()
    up.stop()
    for path in (up.state / "server").iterdir():
        path.write_bytes(b"this is no database" * 1000)
    done = subprocess.run(up.command(), capture_output=True, text=True, timeout=60, env=ENV, check=False)
    assert done.returncode == 125 and "space server does not start" in done.stderr and "cannot run" in done.stderr
    assert not up.daemons()


def test_detach_and_down(up):
    done = subprocess.run(up.command("--detach"), capture_output=True, text=True, timeout=60, env=ENV, check=False)
    assert done.returncode == 0 and "key: " in done.stdout, done
    assert up.ready()
    assert "ended" in up.down().stdout
    assert not up.daemons() and not up.ready()


def test_logs_are_json_lines(up):
    up.start()
    up.stop()
    for name in ("server", "worker"):
        lines = (up.state / "log" / f"{name}.log").read_text().splitlines()
        assert lines and all(json.loads(line)["daemon"] == name for line in lines)


def test_log_to_stderr(up):
    up.process = subprocess.Popen(up.command("--log-stderr"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV,
                                  text=True)
    assert up.process.stdout.readline().startswith("url: ")
    _, _, err = up.stop()
    assert {json.loads(line)["daemon"] for line in err.splitlines()} >= {"server", "worker"}


def test_down_where_nothing_is(tmp_path):
    done = subprocess.run([SPACE, "down", "--state", str(tmp_path / "none")], capture_output=True, text=True, timeout=20,
                          env=ENV, check=False)
    assert done.returncode == 0 and "nothing" in done.stdout


@pytest.mark.parametrize("verb", ["server", "worker"])
def test_daemons_by_hand_are_refused_without_their_secrets(verb, tmp_path):
    done = subprocess.run([SPACE, verb, "--state", str(tmp_path)], capture_output=True, text=True, timeout=20, env=ENV,
                          check=False)
    assert done.returncode == 125 and "--secrets-fd" in done.stderr
