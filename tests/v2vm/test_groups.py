"""Where SPACE puts control groups on a machine with cgroup v2 only, and that it moves nobody else's processes.

Run by scripts/test-cgroup-v2.sh inside its VM, where this file's groups are in nobody's way.
"""

import os
import pathlib
import subprocess
import sys
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

from installation import Installation  # noqa: E402
from leaks import Inventory  # noqa: E402

TOP = pathlib.Path("/sys/fs/cgroup")
BUILD = pathlib.Path(os.environ["SPACE_BUILD"])
STATE = pathlib.Path(os.environ["SPACE_TEST_STATE"])
OWN = Inventory.group_name(os.path.realpath(STATE))


def group_of(pid):
    """The path of a process's group, or None when the process is gone or a kernel thread."""
    try:
        if not os.path.exists(f"/proc/{pid}/exe"):
            return None
        return pathlib.Path(f"/proc/{pid}/cgroup").read_text().strip().removeprefix("0::")
    except OSError:
        return None


def started(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]


def everybody():
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if group := group_of(pid):
            try:
                found[pid, started(pid)] = group
            except OSError:
                pass
    return found


def assert_nobody_moved(before):
    after = everybody()
    assert {k: v for k, v in after.items() if k in before} == {k: v for k, v in before.items() if k in after}


def in_group(group):
    """For preexec_fn: starts a process inside a group."""
    return lambda: (group / "cgroup.procs").write_text("0")


class Service(Installation):
    """An installation whose `space up` a service manager has put into a group."""

    def __init__(self, group=None):
        super().__init__(BUILD, STATE)
        self.group = group

    def __enter__(self):
        back = group_of("self")
        if self.group:  # `up` inherits it
            (self.group / "cgroup.procs").write_text(str(os.getpid()))
        try:
            self.up()
        finally:
            (pathlib.Path(f"{TOP}{back}") / "cgroup.procs").write_text(str(os.getpid()))
        return self

    def __exit__(self, *_):
        self.stop()
        self.down()
        assert str(STATE) not in pathlib.Path("/proc/self/mountinfo").read_text()


@pytest.fixture
def groups():
    """Makes groups, and removes them with what runs in them."""
    made = []

    def make(path):
        group = TOP / path
        group.mkdir()
        made.append(group)
        return group

    yield make
    for group in reversed(made):
        (group / "cgroup.kill").write_text("1")
        deadline = time.monotonic() + 20
        for below in [*(p for p in group.iterdir() if p.is_dir()), group]:
            while True:
                try:
                    below.rmdir()
                    break
                except OSError:
                    assert time.monotonic() < deadline, f"{below} stays"
                    time.sleep(0.05)


@pytest.fixture
def sleepers():
    made = []

    def make(group):
        made.append(subprocess.Popen(["sleep", "3600"], preexec_fn=in_group(group)))
        return made[-1].pid

    yield make
    for process in made:
        process.kill()
        process.wait()


def agent_of(box):
    """The host's pid of a sandbox's first process."""
    group = TOP / OWN / box["id"]
    return (group / "cgroup.procs").read_text().split()[0]


def test_busy_root_without_controllers():
    """As after booting without a manager: all processes are in the root group, which hands out nothing yet."""
    assert (TOP / "cgroup.subtree_control").read_text().split() == []
    assert group_of("self") == "/"
    before = everybody()
    with Service() as inst:
        box = inst.api().create(isolation="container", resources={"memory_mb": 256, "pids": 64, "cpus": 0.5})
        group = TOP / OWN / box["id"]
        assert (group / "memory.max").read_text().strip() == str(256 << 20)
        assert (group / "memory.swap.max").read_text().strip() == "0"
        assert (group / "pids.max").read_text().strip() == "64"
        assert (group / "cpu.max").read_text().split() == ["50000", "100000"]
        assert inst.api().exec(box["id"], "echo", "hello")["stdout"] == "hello\n"
        assert_nobody_moved(before)
        assert group_of(inst.process.pid) == "/"
        inst.api().delete(box["id"])
        assert not group.exists()
    assert not (TOP / OWN).exists()
    assert_nobody_moved(before)


def test_below_a_service_manager(groups, sleepers):
    """The daemons are in their service's group and stay there; stopping it, whatever it kills, spares sandboxes."""
    groups("system.slice")
    (TOP / "system.slice/cgroup.subtree_control").write_text("+memory +pids")
    service, other = groups("system.slice/space.service"), groups("system.slice/other.service")
    sleepers(other), sleepers(TOP), sleepers(service)
    before = everybody()
    with Service(service) as inst:
        box = inst.api().create(isolation="container")
        agent = agent_of(box)
        assert group_of(agent) == f"/{OWN}/{box['id']}"
        daemons = [inst.process.pid, inst.daemon_pid("server"), inst.daemon_pid("worker")]
        assert {group_of(pid) for pid in daemons} == {"/system.slice/space.service"}
        assert_nobody_moved(before)
        (service / "cgroup.kill").write_text("1")  # KillMode=control-group at its worst
        inst.process.wait(30)
    assert_nobody_moved(before)
    assert not (TOP / OWN).exists()


def test_service_restart_adopts(groups):
    groups("system.slice")
    service = groups("system.slice/space.service")
    inst = Service(service).__enter__()
    box = inst.api().create(isolation="container")
    agent = agent_of(box)
    (service / "cgroup.kill").write_text("1")
    inst.process.wait(30)
    assert group_of(agent) == f"/{OWN}/{box['id']}"
    with Service(service) as again:
        again.api().wait_ready()
        assert agent_of(box) == agent
        assert again.api().exec(box["id"], "echo", "adopted")["stdout"] == "adopted\n"
        again.api().delete(box["id"])
        assert group_of(agent) is None
    assert not (TOP / OWN).exists()


def test_out_of_memory_is_told_of_the_command_that_was():
    hog = ["python3", "-c", "a = []\nwhile True: a.append(b'x' * (1 << 20))"]
    with Service() as inst:
        api = inst.api()
        box = api.create(isolation="container", resources={"memory_mb": 128})
        done = api.exec(box["id"], *hog, timeout="100s")
        assert done["oom"] and not done["timed_out"] and done["exit_code"] != 0, done
        assert "\noom_kill 1\n" in (TOP / OWN / box["id"] / "memory.events").read_text()
        done = api.exec(box["id"], "sh", "-c", "kill -9 $$")
        assert not done["oom"], done
        api.delete(box["id"])


def test_group_without_controllers_is_mended():
    """What a worker leaves that died between making the installation's group and enabling controllers in it."""
    (TOP / OWN).mkdir()
    with Service() as inst:
        box = inst.api().create(isolation="container")
        assert inst.api().exec(box["id"], "echo", "hello")["stdout"] == "hello\n"
        inst.api().delete(box["id"])
    assert not (TOP / OWN).exists()


def run_apart(group, *own_pids):
    """inside_namespace.py in a cgroup namespace whose top is group, with a cgroup file system of its own."""
    join = 'echo 0 >"$1/cgroup.procs" && shift && exec unshare --mount --cgroup "$@"'
    mount = 'umount /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup && "$@"; exit $?'
    program = [sys.executable, "-B", str(HERE / "inside_namespace.py")]
    return subprocess.run([*own_pids, "sh", "-c", join, "sh", str(group), "sh", "-c", mount, "sh", *program],
                          timeout=300, capture_output=True, text=True, check=False)


def test_top_of_a_container(groups):
    """cgroup v2 hands out nothing from a busy top that is not the root of all: the container's processes step aside."""
    (TOP / "cgroup.subtree_control").write_text("+memory +pids +cpu")
    container = groups("container")
    before = everybody()
    done = run_apart(container, "unshare", "--pid", "--fork", "--mount-proc")
    assert done.returncode == 0 and done.stdout.endswith("hello\n"), done
    assert_nobody_moved(before)


def test_busy_top_that_is_not_ours(groups, sleepers):
    """Not a container of our own (its first process is elsewhere), and there is someone else's process: refused."""
    (TOP / "cgroup.subtree_control").write_text("+memory +pids +cpu")
    part = groups("part")
    pid = sleepers(part)
    before = everybody()
    done = run_apart(part)
    assert done.returncode != 0 and "not SPACE's to move" in done.stdout + done.stderr, done
    assert group_of(pid) == "/part"
    assert_nobody_moved(before)
