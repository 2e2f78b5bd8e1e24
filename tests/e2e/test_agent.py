"""The agent by itself: the real binary as PID 1 of its own pid and mount namespace, spoken to over its
socket. Needs root; SPACE_AGENT names the binary (default: the one in $SPACE_BUILD or build/)."""

import hashlib
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

import pytest

sys.path.insert(0, os.path.dirname(__file__))
import agent_link as al  # noqa: E402
from agent_link import AgentError, Link, Reader, frame, text  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CGROUP = "/sys/fs/cgroup/unified" if os.path.isdir("/sys/fs/cgroup/unified") else "/sys/fs/cgroup"

# The namespace's own /etc, so that nothing the agent writes reaches the machine.
SET_UP = """
set -e
mount -t tmpfs tmpfs "$1"
mkdir "$1/etc" "$1/home"
chown 4242:4242 "$1/home"
chmod 755 "$1"
mount --bind "$1/etc" /etc
mount -t tmpfs -o mode=755 tmpfs /run
printf 'root:x:0:0:root:/root:/bin/sh\\nuser:x:4242:4242::%s/home:/bin/sh\\nbroken line\\nno:x:y:z\\n' "$1" > /etc/passwd
printf 'root:x:0:\\nuser:x:4242:\\nextra:x:4300:nobody,user\\nmore:x:4301:user\\n' > /etc/group
shift
exec "$@"
"""

# A user namespace with ids 0…65535 of its own; a child that stays outside writes the maps.
ENTER_USER_NAMESPACE = """
import ctypes, os, sys
(ready, tell_ready), (mapped, tell_mapped), me = os.pipe(), os.pipe(), os.getpid()
helper = os.fork()
if helper == 0:
    os.read(ready, 1)
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/{me}/{name}", "w") as f:
            f.write("0 200000 65536")
    os.write(tell_mapped, b"x")
    os._exit(0)
assert ctypes.CDLL(None).unshare(0x10000000) == 0  # CLONE_NEWUSER
os.write(tell_ready, b"x")
os.read(mapped, 1)
os.waitpid(helper, 0)
os.setresgid(0, 0, 0)
os.setresuid(0, 0, 0)
os.setgroups([])
os.execvp(sys.argv[1], sys.argv[1:])
"""


def find_agent():
    path = os.environ.get("SPACE_AGENT") or os.path.join(
        os.environ.get("SPACE_BUILD", os.path.join(ROOT, "build")), "agent", "space-agent")
    if not os.path.exists(path):
        pytest.fail(f"{path} is not built (SPACE_AGENT names another)")
    return path


def is_sanitized():
    """AddressSanitizer keeps freed memory: sizes say nothing then."""
    with open(find_agent(), "rb") as f:
        return b"__asan_init" in f.read()


class Agent:
    """A running agent and the resources around it."""

    def __init__(self, cgroup=True, oom_file=None, user_namespace=False, cgroup_directory=None):
        self.dir = tempfile.TemporaryDirectory(prefix="space-agent-test-")
        self.mnt = os.path.join(self.dir.name, "mnt")
        os.mkdir(self.mnt)
        os.chmod(self.dir.name, 0o755)
        self.path = os.path.join(self.dir.name, "link")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self.path)
        listener.listen(16)
        fds = [listener.fileno()]
        options = [f"--link-fd={listener.fileno()}"]
        self.cgroup = None
        if cgroup:
            self.cgroup = tempfile.mkdtemp(prefix="space-agent-test-", dir=CGROUP)
            fds.append(os.open(self.cgroup, os.O_RDONLY | os.O_DIRECTORY))
            if user_namespace:  # as the launcher hands it over
                for name in ("", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"):
                    os.chown(os.path.join(self.cgroup, name), 200000, 200000)
            options.append(f"--cgroup-fd={fds[-1]}")
        if cgroup_directory:  # something that only looks like a group
            fds.append(os.open(cgroup_directory, os.O_RDONLY | os.O_DIRECTORY))
            options.append(f"--cgroup-fd={fds[-1]}")
        if oom_file:
            fds.append(os.open(oom_file, os.O_RDONLY))
            options.append(f"--oom-fd={fds[-1]}")
        users = []
        binary = find_agent()
        if user_namespace:
            os.chmod(self.mnt, 0o777)
            # the build may lie below a directory that only root can walk
            binary = shutil.copy(binary, os.path.join(self.dir.name, "agent"))
            users = [sys.executable, "-c", ENTER_USER_NAMESPACE]
        self.process = subprocess.Popen(
            ["sh", "-c", 'test -z "$1" || echo 0 > "$1/cgroup.procs"; shift; exec "$@"', "sh", self.cgroup or "",
             *users, "unshare", "--pid", "--fork", "--kill-child", "--mount", "--uts", "--mount-proc",
             "sh", "-c", SET_UP, "sh", self.mnt, binary, *options],
            pass_fds=fds, stdin=subprocess.DEVNULL)
        listener.close()
        for fd in fds[1:]:
            os.close(fd)

    @property
    def pid(self):
        """The agent's pid outside."""
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as f:
            return int(f.read().split()[0])

    def link(self, **options):
        return Link(self.path, **options)

    def alive(self):
        return self.process.poll() is None

    def fds(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def rss_kib(self):
        if is_sanitized():
            return 0
        with open(f"/proc/{self.pid}/status") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))

    def stop(self):
        alive = self.alive()
        if alive:
            os.kill(self.pid, signal.SIGKILL)
        self.process.wait(10)
        if self.cgroup:
            for name in [d.path for d in os.scandir(self.cgroup) if d.is_dir()] + [self.cgroup]:
                for _ in range(200):
                    try:
                        os.rmdir(name)
                        break
                    except OSError:
                        time.sleep(0.01)
            assert not os.path.exists(self.cgroup), "processes are left in the group"
        self.dir.cleanup()
        assert alive, "the agent has died"


@pytest.fixture
def agent():
    a = Agent()
    yield a
    a.stop()


@pytest.fixture
def link(agent):
    connection = agent.link()
    connection.identity()
    yield connection
    connection.close()


def wait_until(condition, seconds=5):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)


def pids_of(marker):
    """Processes (outside pids) with this argument in their command line."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as f:
                    if marker.encode() in f.read().split(b"\0"):
                        found.append(int(name))
            except OSError:
                pass
    return found


# --- opening -----------------------------------------------------------------------------------


def test_hello(agent):
    first = agent.link()
    assert first.version == 1 and first.identified == 0 and first.features & 1
    assert first.build.startswith("space-agent")
    assert first.request(al.PING, b"abc") == (al.PONG, b"abc")
    second = agent.link()  # replaces the first
    assert second.instance == first.instance
    with pytest.raises(al.Cut):
        first.request(al.PING)
    second.hello(versions=(2, 9))
    assert second.version == 0
    second.send(frame(al.PING, 5))
    second.hello()
    assert second.version == 1


def test_locked_until_identity(agent):
    link = agent.link()
    with pytest.raises(AgentError) as e:
        link.start("a", ["/bin/true"])
    assert e.value.code == "not_identified"
    link.identity(hostname="box-1", machine_id="0123456789abcdef" * 2)
    out, _, end, _ = link.run("a", ["/bin/sh", "-c", "hostname; cat /etc/hostname /etc/machine-id; grep box /etc/hosts"])
    assert end.exit_code == 0
    assert out == b"box-1\nbox-1\n" + b"0123456789abcdef" * 2 + b"\n127.0.1.1\tbox-1\n"
    assert link.request(al.QUIESCE)[0] == al.OK
    with pytest.raises(TimeoutError):  # silent until the next HELLO
        link.timeout = 0.3
        link.request(al.PING)
    link.timeout = 10
    link.hello()
    assert link.identified == 0
    with pytest.raises(AgentError) as e:
        link.start("b", ["/bin/true"])
    assert e.value.code == "not_identified"
    assert link.start("a", ["/bin/true"]).state == 2  # known: that is its state
    link.identity(hostname="box-2")
    assert link.run("b", ["hostname"])[0] == b"box-2\n"


@pytest.mark.parametrize("payload,code", [
    (struct.pack("<Q", 0) + text(b"x" * 8) + text("") + text("") + struct.pack("<IIQ", 0, 0, 0), "invalid"),
    (struct.pack("<Q", 0) + text("") + text("bad name") + text("") + struct.pack("<IIQ", 0, 0, 0), "invalid"),
    (struct.pack("<Q", 0) + text("") + text("") + text("xyz") + struct.pack("<IIQ", 0, 0, 0), "invalid"),
])
def test_identity_refused(agent, payload, code):
    link = agent.link()
    with pytest.raises(AgentError) as e:
        link.request(al.IDENTITY, payload)
    assert e.value.code == code
    link.hello()
    assert link.identified == 0


def test_entropy_is_taken(agent):
    link = agent.link()
    link.identity(entropy=os.urandom(32))  # the test machine's own pool: harmless
    link.hello()
    assert link.identified == 1


# --- commands ----------------------------------------------------------------------------------


def test_echo(link):
    started = link.start("s1", ["/bin/echo", "hello"])
    assert started.state == 1 and started.pid > 1 and not started.failed
    out, err, end, events = link.collect("s1")
    assert (out, err) == (b"hello\n", b"")
    assert events[0][1] == al.E_STARTED and struct.unpack("<i", events[0][2])[0] == started.pid
    assert end.exit_code == 0 and end.signal == 0 and end.flags == 0
    assert 0 < end.duration_us < 5_000_000 and end.peak_memory_bytes > 0
    again = link.start("s1", ["/bin/echo", "never"])
    assert again.state == 2 and again.exit.exit_code == 0 and again.next == len(events) + 1
    assert link.stat("s1") == again
    assert link.collect("s1")[3] == events  # replayed
    link.forget("s1")
    with pytest.raises(AgentError) as e:
        link.stat("s1")
    assert e.value.code == "not_found"


@pytest.mark.parametrize("script,code,number", [
    ("exit 0", 0, 0), ("exit 7", 7, 0), ("exit 255", 255, 0),
    ("kill -9 $$", 137, 9), ("kill -15 $$", 143, 15), ("kill -1 $$", 129, 1),
])
def test_exit(link, script, code, number):
    end = link.run("s", ["sh", "-c", script])[2]
    assert (end.exit_code, end.signal) == (code, number)
    assert not end.oom and not end.timed_out


def test_process_exited_always(link):
    for i in range(20):
        _, err, end, events = link.run(f"s{i}", ["sh", "-c", "nosuch"])
        assert end.exit_code == 127 and b"not found" in err
        assert [k for _, k, _ in events].count(al.E_EXITED) == 1


@pytest.mark.parametrize("options,code", [
    (dict(argv=["nosuch"]), "command_not_found"),
    (dict(argv=["/nosuch/x"]), "command_not_found"),
    (dict(argv=["/bin/true/x"]), "command_not_found"),
    (dict(argv=["/etc/passwd"]), "not_executable"),
    (dict(argv=["/bin"]), "not_executable"),
    (dict(argv=["/bin/true"], cwd="/nosuch"), "cwd_not_found"),
    (dict(argv=["/bin/true"], cwd="/etc/passwd"), "cwd_not_found"),
    (dict(argv=["/bin/true"], user="nosuch"), "user_not_found"),
    (dict(argv=["/bin/true"], user="no"), "user_not_found"),
    (dict(argv=["x"], env=["PATH="]), "command_not_found"),
])
def test_cannot_run(agent, link, options, code):
    before = agent.fds()
    started = link.start("s", **options)
    assert started.state == 2 and started.failed == 1 and started.pid == 0
    _, _, end, events = link.collect("s")
    assert end is None and len(events) == 1 and events[0][1] == al.E_ERROR
    assert Reader(events[0][2]).str() == code
    expected = {"command_not_found": 127, "not_executable": 126}.get(code, 125)
    assert started.exit.exit_code == expected
    assert agent.fds() <= before + 1  # /dev/null


def test_not_executable_kinds(agent, link):
    d = agent.mnt
    link.run("w", ["sh", "-c", f"""printf 'echo no shell' > {d}/plain; printf '#!/nosuch\\n' > {d}/script
                    cp /bin/true {d}/private; chmod 755 {d}/plain {d}/script; chmod 700 {d}/private"""])
    for i, (name, user) in enumerate([("plain", "root"), ("script", "root"), ("private", "user")]):
        link.start(f"s{i}", [f"{d}/{name}"], user=user, cwd="/")
        assert Reader(link.collect(f"s{i}")[3][0][2]).str() == "not_executable", name
    # PATH: one that cannot be run is passed over for one that can
    out = link.run("p", ["private"], user="user", cwd="/", env=[f"PATH={d}:/nosuch:/bin"])
    assert Reader(out[3][0][2]).str() == "not_executable"
    link.run("c", ["sh", "-c", f"mkdir {d}/second; printf '#!/bin/sh\\necho second' > {d}/second/private; chmod 755 {d}/second/private"])
    out = link.run("q", ["private"], user="user", cwd="/", env=[f"PATH={d}:{d}/second"])
    assert out[0] == b"second\n"


def test_environment(agent, link):
    link.identity(env=["A=default", "B=default", "PATH=/usr/bin:/bin", "HOME=/wrong"])
    out = link.run("s", ["env"], user="user", env=["B=own", "C=1=2", "EMPTY="])[0].decode().splitlines()
    assert sorted(out) == sorted([
        "A=default", "B=own", "C=1=2", "EMPTY=", "PATH=/usr/bin:/bin", f"HOME={agent.mnt}/home",
        "USER=user", "LOGNAME=user", "SHELL=/bin/sh"])
    link.identity(env=[])
    assert b"PATH=/usr/local/sbin:" in link.run("t", ["env"])[0]


def test_long_search_while_the_agent_waits(link):
    """The child and the waiting agent share one memory: an errno of the agent's own must not be taken for execve's."""
    path = "PATH=" + ":".join(["/x"] * 15000 + ["/bin"])
    for i in range(10):
        assert link.run(f"long{i}", ["true"], env=[path])[2].exit_code == 0


def test_user_and_directory(agent, link):
    script = "id -u; id -G; pwd; grep -E '^(NoNewPrivs|SigBlk|SigIgn|Seccomp):' /proc/self/status"
    out = link.run("s", ["sh", "-c", script], user="user")[0].decode().split()
    assert out[:4] == ["4242", "4242", "4300", "4301"]
    assert out[4] == f"{agent.mnt}/home"
    assert out[5:] == ["SigBlk:", "0" * 16, "SigIgn:", "0" * 16, "NoNewPrivs:", "1", "Seccomp:", "2"]
    assert link.run("d", ["sh", "-c", "id -u"], user="")[0] == b"4242\n"
    assert link.run("n", ["sh", "-c", "id -u; pwd"], user="4711")[0] == b"4711\n/\n"
    assert link.run("c", ["pwd"], cwd="/usr")[0] == b"/usr\n"
    assert link.run("r", ["./true"], cwd="/bin")[2].exit_code == 0


def test_only_three_descriptors(link):
    out = link.run("s", ["ls", "/proc/self/fd"])[0].split()
    assert out == [b"0", b"1", b"2", b"3"]  # 3 is the directory ls reads


def test_clone3_is_not_there(link):
    script = "import ctypes,os; c=ctypes.CDLL(None,use_errno=True); c.syscall(435,0,0); print(ctypes.get_errno())"
    assert link.run("s", ["/usr/bin/python3", "-c", script])[0] == b"38\n"
    threads = "import threading; t=threading.Thread(target=print,args=('t',)); t.start(); t.join()"
    assert link.run("t", ["/usr/bin/python3", "-c", threads])[0] == b"t\n"


def test_agent_is_protected(link):
    script = "kill -9 1; kill -STOP 1; kill -TERM 1; cat /proc/1/mem /proc/1/environ; ls -l /proc/1/fd; exit 3"
    assert link.run("s", ["sh", "-c", script], user="user")[2].exit_code == 3
    assert link.request(al.PING)[0] == al.PONG


def test_hostile_passwd(agent, link):
    for i, setup in enumerate(["mkfifo /etc/passwd", "ln -s /dev/zero /etc/passwd", "mkdir /etc/passwd",
                               "head -c 3000000 /dev/urandom > /etc/passwd"]):
        link.run(f"w{i}", ["sh", "-c", f"rm -rf /etc/passwd; {setup}"])
        started = link.start(f"s{i}", ["/bin/true"], user="user")
        assert started.failed
        assert link.run(f"r{i}", ["/bin/true"], user="root")[2].exit_code == 0


# --- output ------------------------------------------------------------------------------------


def test_output_exact(agent, link):
    """1 MiB of random bytes on each of stdout and stderr."""
    script = f"head -c 1048576 /dev/urandom > {agent.mnt}/o; head -c 1048576 /dev/urandom > {agent.mnt}/e;" \
             f"sha256sum {agent.mnt}/o {agent.mnt}/e > {agent.mnt}/sums; cat {agent.mnt}/o & cat {agent.mnt}/e >&2; wait"
    out, err, end, _ = link.run("s", ["sh", "-c", script])
    sums = link.run("t", ["cat", f"{agent.mnt}/sums"])[0].decode().split()
    assert end.exit_code == 0
    assert [hashlib.sha256(out).hexdigest(), hashlib.sha256(err).hexdigest()] == sums[::2]


def test_slow_subscriber_blocks_the_child(agent, link):
    link.start("s", ["sh", "-c", f"yes 0123456789abcde | head -c 16000000; echo done > {agent.mnt}/done"])
    link.subscribe("s", 7, 0, credit=200_000)
    got, data, last = 0, b"", 0
    with pytest.raises(TimeoutError):
        while True:
            _, number, kind, rest, size = link.next_event(time.monotonic() + 0.5)
            got += size
            last = number
            if kind == al.E_STDOUT:
                data += rest
    assert 100_000 < got <= 200_000
    assert agent.rss_kib() < 4096 and link.stat("s").state == 1
    total, credit = got, 200_000
    deadline = time.monotonic() + 20
    pieces = [data]
    while True:
        credit += 1_000_000
        link.credit(7, credit, last)
        done = False
        while total < credit - 70_000 and not done:
            _, number, kind, rest, size = link.next_event(deadline)
            assert number == last + 1
            last, total = number, total + size
            if kind == al.E_STDOUT:
                pieces.append(rest)
            done = kind == al.E_EXITED
        if done:
            break
    data = b"".join(pieces)
    assert len(data) == 16_000_000 and data == (b"0123456789abcde\n" * 1_000_000)
    assert agent.rss_kib() < 4096


def test_second_subscriber_slows_down(link):
    """The slowest subscription counts."""
    link.start("s", ["sh", "-c", "yes | head -c 4000000"], ring=65536)
    link.subscribe("s", 1)
    link.subscribe("s", 2)
    seen = {1: 0, 2: 0}
    last = 0
    with pytest.raises(TimeoutError):
        while True:
            tag, number, kind, rest, _ = link.next_event(time.monotonic() + 0.4)
            if kind == al.E_STDOUT:
                seen[tag] += len(rest)
            last = max(last, number)
            if tag == 1:
                link.credit(1, 1 << 40, number)
    assert seen[1] == seen[2] <= 65536
    link.send(frame(al.UNSUBSCRIBE, 2))
    link.credit(1, 1 << 40, last)
    while True:
        _, number, kind, rest, _ = link.next_event()
        link.credit(1, 1 << 40, number)
        seen[1] += len(rest) if kind == al.E_STDOUT else 0
        if kind == al.E_EXITED:
            break
    assert seen[1] == 4_000_000


def test_drop_mode(agent, link):
    link.start("s", ["sh", "-c", "yes | head -c 5000000; yes | head -c 300000 >&2"], drop=1, ring=65536)
    wait_until(lambda: link.stat("s").state == 2)
    out, err, end, events = link.collect("s")
    dropped = {2: 0, 3: 0}
    for _, kind, rest in events:
        if kind == al.E_DROPPED:
            stream, count = struct.unpack("<BQ", rest)
            dropped[stream] += count
    assert len(out) + dropped[2] == 5_000_000 and len(err) + dropped[3] == 300_000
    assert dropped[2] > 4_000_000 and end.exit_code == 0
    assert out == (b"y\n" * 2_500_000)[:len(out)]


def test_replay_and_gap(agent, link):
    link.start("s", ["sh", "-c", "yes abcdefg | head -c 600000; sleep 0.2; yes abcdefg | head -c 600000"], ring=131072)
    events = link.collect("s")[3]
    s = link.stat("s")
    assert s.oldest > 1 and s.next == len(events) + 1
    assert link.collect("s", after=s.oldest - 1)[3] == events[s.oldest - 1:]
    assert link.collect("s", after=s.next - 2)[3] == events[-1:]
    gap = link.subscribe("s", 9, after=0)
    assert gap.gap == 1 and gap.first == s.next - 1 and gap.oldest == s.oldest
    assert link.next_event()[1] == s.next - 1
    for after in (s.next, s.next + 1, 1 << 63):
        with pytest.raises(AgentError) as e:
            link.subscribe("s", 10, after=after)
        assert e.value.code == "invalid"


def test_many_subscribers(link):
    link.start("s", ["sh", "-c", "for i in 1 2 3 4 5; do echo $i; sleep 0.02; done"])
    for tag in range(1, 60):
        link.subscribe("s", tag)
    got = {tag: b"" for tag in range(1, 60)}
    ended = 0
    while ended < 59:
        tag, _, kind, rest, _ = link.next_event()
        got[tag] += rest if kind == al.E_STDOUT else b""
        ended += kind == al.E_EXITED
    assert set(got.values()) == {b"1\n2\n3\n4\n5\n"}


def test_pipe_held_open(link):
    begin = time.monotonic()
    out, _, end, _ = link.run("s", ["sh", "-c", "echo a; sleep 30.125 & echo b"])
    assert out == b"a\nb\n" and end.pipe_held_open and end.exit_code == 0
    assert 0.15 < time.monotonic() - begin < 2
    assert pids_of("30.125"), "a normal end kills nothing"
    link.forget("s")
    wait_until(lambda: not pids_of("30.125"))


def test_pipe_held_open_by_a_writer(link):
    """All that was written before the leader's end arrives, and the end comes although `yes` goes on."""
    out, _, end, _ = link.run("s", ["sh", "-c", "yes & sleep 0.1; kill -0 $!; echo over >&2"])
    assert end.pipe_held_open and len(out) > 60000
    assert set(out.split(b"\n")) <= {b"y", b""}
    link.forget("s")


def test_background_server_lives_on(link):
    _, _, end, _ = link.run("s", ["sh", "-c", "sleep 30.25 >/dev/null 2>&1 </dev/null & exit 4"])
    assert end.exit_code == 4 and not end.pipe_held_open
    assert pids_of("30.25")
    link.signal("s", signal.SIGTERM, scope=1)
    wait_until(lambda: not pids_of("30.25"))
    wait_until(lambda: link.request(al.PING) and not _signal_ok(link, "s"))


def _signal_ok(link, sid):
    try:
        link.signal(sid, signal.SIGTERM, scope=1)
        return True
    except AgentError as e:
        assert e.code == "process_exited"
        return False


# --- input -------------------------------------------------------------------------------------


def test_stdin_none(link):
    assert link.run("s", ["cat"])[2].exit_code == 0
    with pytest.raises(AgentError) as e:
        link.stdin("s", 0, b"x")
    assert e.value.code in ("stdin_closed", "process_exited")


def test_stdin_offsets(link):
    link.start("s", ["cat"], stdin=1)
    ack = link.stdin("s", 0, b"hello ")
    assert ack.accepted == 6 and not ack.closed and ack.window_end > 60000
    assert link.stdin("s", 0, b"hello ").accepted == 6  # a repeat
    assert link.stdin("s", 3, b"lo world").accepted == 11  # an overlap
    with pytest.raises(AgentError) as e:
        link.stdin("s", 12, b"x")
    assert e.value.code == "invalid"
    with pytest.raises(AgentError) as e:
        link.stdin_close("s", 12)
    assert e.value.code == "invalid"
    assert link.stdin_query("s").accepted == 11
    assert link.stdin_close("s", 11).closed == 1
    out, _, end, _ = link.collect("s")
    assert out == b"hello world" and end.exit_code == 0
    assert link.stdin_close("s", 11).closed == 1  # a repeat, after the end
    for code, call in (("stdin_closed", lambda: link.stdin("s", 11, b"x")), ("not_found", lambda: link.stdin("t", 0, b"x"))):
        with pytest.raises(AgentError) as e:
            call()
        assert e.value.code == code


def test_stdin_window(link):
    """A child that does not read: the window closes, and opens by itself when it does."""
    link.start("s", ["sh", "-c", "read go < /tmp/space-agent-none 2>/dev/null; sleep 0.5; wc -c"], stdin=1)
    offset, block = 0, b"z" * 50_000
    while True:
        ack = link.stdin("s", offset, block)
        assert offset <= ack.accepted <= offset + len(block)
        offset = ack.accepted
        if ack.window_end == ack.accepted:
            break
        assert offset < 400_000
    deadline = time.monotonic() + 5
    while not link.acks:
        link.keep(*link.receive(deadline))
    assert link.acks[-1].window_end > offset
    link.stdin_close("s", offset)
    assert int(link.collect("s")[0]) == offset


def test_stdin_closed_by_child(link):
    link.start("s", ["sh", "-c", "exec <&-; sleep 1"], stdin=1)
    time.sleep(0.1)
    ack = link.stdin("s", 0, b"x")
    assert ack.closed and ack.accepted == 0
    with pytest.raises(AgentError) as e:
        link.stdin("s", 0, b"x")
    assert e.value.code == "stdin_closed"
    link.run("t", ["true"], stdin=1)
    with pytest.raises(AgentError) as e:
        link.stdin("t", 0, b"x")
    assert e.value.code == "process_exited"


def test_stdin_closes_while_shut(link):
    link.start("s", ["sh", "-c", "sleep 0.5; exec <&-; sleep 0.5"], stdin=1)
    offset = 0
    while True:
        ack = link.stdin("s", offset, b"q" * 60_000)
        offset = ack.accepted
        if ack.window_end == offset:
            break
    deadline = time.monotonic() + 5
    while not link.acks:
        link.keep(*link.receive(deadline))
    assert link.acks[-1].closed == 1


# --- signals, time-outs -------------------------------------------------------------------------


def test_signal(link):
    link.start("s", ["sh", "-c", "trap 'echo got; exit 9' TERM; echo ready; while :; do sleep 0.02; done"])
    link.subscribe("s", 1)
    while link.next_event()[2] != al.E_STDOUT:
        pass
    link.signal("s", signal.SIGTERM)
    out, _, end, _ = link.collect("s")
    assert out.endswith(b"got\n") and end.exit_code == 9
    for sid, code in (("s", "process_exited"), ("t", "not_found")):
        with pytest.raises(AgentError) as e:
            link.signal(sid, signal.SIGTERM)
        assert e.value.code == code
    with pytest.raises(AgentError) as e:
        link.signal("s", 65)
    assert e.value.code == "invalid"


TREE = "sleep {0} & setsid sleep {0} & (setsid sh -c 'setsid sleep {0} & sleep {0}' &) ; trap '' TERM; while :; do sleep {0}; done"


def test_timeout_kills_the_tree(link):
    begin = time.monotonic()
    link.start("s", ["sh", "-c", TREE.format("31.5")], timeout_ms=400, grace_ms=300)
    time.sleep(0.2)
    assert len(pids_of("31.5")) >= 4
    _, _, end, _ = link.collect("s")
    took = time.monotonic() - begin
    assert end.timed_out and end.signal == 9 and end.exit_code == 137 and not end.oom
    assert 0.65 < took < 2 and not pids_of("31.5")


def test_timeout_ends_by_term(link):
    begin = time.monotonic()
    link.start("s", ["sh", "-c", "trap 'exit 3' TERM; sleep 32.5 & setsid sleep 32.5 & wait"], timeout_ms=200, grace_ms=5000)
    _, _, end, _ = link.collect("s")
    assert end.timed_out and end.exit_code == 3 and end.signal == 0
    assert time.monotonic() - begin < 2 and not pids_of("32.5")


def test_kill_session_scope(link):
    link.start("s", ["sh", "-c", TREE.format("33.5")])
    wait_until(lambda: len(pids_of("33.5")) >= 4)
    link.signal("s", signal.SIGKILL, scope=1)
    end = link.collect("s")[2]
    assert end.signal == 9 and not end.timed_out and not pids_of("33.5")


def test_forget_kills(agent, link):
    link.start("s", ["sh", "-c", TREE.format("34.5")])
    wait_until(lambda: len(pids_of("34.5")) >= 4)
    link.forget("s")
    wait_until(lambda: not pids_of("34.5"))
    wait_until(lambda: not [d for d in os.scandir(agent.cgroup) if d.is_dir()])
    assert link.start("s", ["true"]).state == 1  # the id is free again


def test_without_cgroup():
    a = Agent(cgroup=False)
    try:
        link = a.link()
        assert not link.features & 1
        link.identity()
        link.start("s", ["sh", "-c", "sleep 35.5 & (sleep 35.5 &); setsid sleep 35.5 & trap '' TERM; while :; do sleep 35.5; done"],
                   timeout_ms=300, grace_ms=200)
        end = link.collect("s")[2]
        assert end.timed_out and end.signal == 9
        wait_until(lambda: not pids_of("35.5"))
        assert link.run("t", ["echo", "x"])[0] == b"x\n"
    finally:
        a.stop()


def test_in_a_user_namespace():
    """As in the container tier: uid 0 of a user namespace, the group handed over to it."""
    a = Agent(user_namespace=True)
    try:
        link = a.link()
        link.identity(hostname="inner")
        out, _, end, _ = link.run("s", ["sh", "-c", "id -u; id -G; hostname; cat /proc/self/cgroup"], user="user")
        lines = out.decode().split()
        assert lines[:5] == ["4242", "4242", "4300", "4301", "inner"]
        assert any(line.startswith("0::") and line.endswith("/s1") for line in lines), "born in its own group"
        link.start("n", ["true"], user="70000")  # not mapped
        assert Reader(link.collect("n")[3][0][2]).str() == "user_not_found"
        link.start("t", ["sh", "-c", TREE.format("38.5")], timeout_ms=300, grace_ms=100)
        assert link.collect("t")[2].timed_out and not pids_of("38.5")
    finally:
        a.stop()


def test_oom_counter():
    with tempfile.NamedTemporaryFile("w+") as counter:
        counter.write("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
        counter.flush()
        a = Agent(oom_file=counter.name)
        try:
            link = a.link()
            assert link.features & 2
            link.identity()
            assert not link.run("s", ["sh", "-c", "kill -9 $$"])[2].oom
            link.start("t", ["sh", "-c", "sleep 0.3; kill -9 $$"])
            counter.seek(0)
            counter.write("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
            counter.flush()
            assert link.collect("t")[2].oom
            assert not link.run("u", ["sh", "-c", "exit 137"])[2].oom
        finally:
            a.stop()


def test_processes(link):
    link.start("s", ["sleep", "36.5"], user="user")
    link.start("t", ["sh", "-c", "while :; do :; done"])
    link.run("u", ["true"])
    time.sleep(0.2)
    truncated, found = link.processes()
    assert not truncated and [p.session for p in found] == ["s", "t"]
    assert found[0].argv == ["sleep", "36.5"] and found[0].user == "user" and found[0].rss > 0
    assert found[1].cpu_ms > 20 and abs(found[1].started_ms - time.time() * 1000) < 5000
    link.forget("s")
    link.forget("t")


def test_terminal(link):
    link.start("s", ["sh", "-c", "tty; stty size; read x; echo got $x; stty size; cat"], rows=24, cols=80, stdin=1)
    link.subscribe("s", 1)
    out = b""
    while b"24 80" not in out:
        out += link.next_event()[3]
    assert out.startswith(b"\0") or b"/dev/pts/" in out
    link.request(al.RESIZE, text("s") + struct.pack("<HH", 50, 132))
    link.stdin("s", 0, b"word\n")
    while b"50 132" not in out:
        out += link.next_event()[3]
    assert b"got word\r\n" in out
    link.stdin_close("s", 5)
    assert link.collect("s")[2].exit_code == 0
    with pytest.raises(AgentError) as e:
        link.request(al.RESIZE, text("s") + struct.pack("<HH", 50, 132))
    assert e.value.code == "not_a_terminal"


# --- the link is cut ----------------------------------------------------------------------------


def test_cut_at_random_bytes(agent):
    """8 MiB each way through `cat`, the connection cut 50 times in the middle of anything."""
    rng = random.Random(20240607)
    size = 8 << 20
    data = rng.randbytes(size)
    link = agent.link()
    link.identity()
    link.start("s", ["cat"], stdin=1, ring=262144)
    received = bytearray()
    last_event, offset, cuts, closed = 0, 0, 0, False
    end = None
    deadline = time.monotonic() + 30
    while end is None:
        assert time.monotonic() < deadline
        budget = rng.randrange(20, 2 * size // 50) if cuts < 50 else 1 << 60
        try:
            subscribed = link.subscribe("s", 5, after=last_event)
            assert not subscribed.gap and subscribed.first == last_event + 1
            offset = link.stdin_query("s").accepted
            in_flight = False
            while end is None:
                if not in_flight:
                    if offset < size:
                        chunk = data[offset:offset + rng.randrange(1, 60000)]
                        out = frame(al.STDIN, 77, text("s") + struct.pack("<Q", offset) + chunk)
                        if budget < len(out):  # cut inside what we send
                            link.send(out[:budget])
                            raise al.Cut
                        budget -= len(out)
                        link.send(out)
                        in_flight = True
                    elif not closed:
                        closed = bool(link.stdin_close("s", size).closed)
                if link.events:
                    _, number, kind, rest, _ = link.events.pop(0)
                    assert number == last_event + 1, "lost or doubled"
                    last_event = number
                    if kind == al.E_STDOUT:
                        received += rest
                    elif kind == al.E_EXITED:
                        end = al.read_exit(Reader(rest))
                    link.credit(5, 1 << 40, number)
                    continue
                if budget <= 0:
                    raise al.Cut
                kind, tag, payload = link.receive(deadline)
                budget -= 16 + len(payload)
                if kind == al.STDIN_ACK:
                    ack = link.parse_ack(payload)
                    if tag == 77:
                        in_flight = ack.window_end == ack.accepted and ack.accepted < size
                    elif ack.window_end > ack.accepted:
                        in_flight = False
                    offset = ack.accepted
                else:
                    link.keep(kind, tag, payload)
        except al.Cut:
            cuts += 1
            link.close()
            link = agent.link(max_event_data=rng.choice([1024, 4096, 16384, 60000]))
    assert cuts >= 50 and end.exit_code == 0
    assert len(received) == size and bytes(received) == data
    link.close()


def test_hello_after_half_a_frame(agent):
    link = agent.link()
    link.identity()
    link.send(frame(al.STDIN, 1, b"x" * 60000)[:30000])
    time.sleep(0.05)
    link.send(bytes(16 + 65536))  # completes whatever the agent waits for
    link.hello(resync=True)
    assert link.request(al.PING, b"1")[0] == al.PONG
    for junk in (b"S", b"SPA", b"SPA1\x01\0\0\0", b"\xff" * 100, b"SPA1\x20\0\0\0\xff\xff\xff\xff" + b"z" * 40):
        link.send(junk)
        link.send(bytes(16 + 65536))
        link.hello(resync=True)
        assert link.request(al.PING, junk[:60])[0] == al.PONG


def test_hello_while_output_is_queued(agent):
    """The answer to a HELLO comes on a frame boundary even when the queue was full."""
    link = agent.link()
    link.identity()
    link.start("s", ["sh", "-c", "yes | head -c 900000"])
    link.subscribe("s", 3)
    time.sleep(0.3)  # we do not read: socket and queue fill
    nonce = os.urandom(16)
    link.send(frame(al.HELLO, 0, struct.pack("<II16sI", 1, 1, nonce, 4096) + text("x")))
    while True:
        kind, _, payload = link.receive()
        if kind == al.HELLO_OK:
            break
        assert kind in (al.EVENT, al.STARTED, al.SUBSCRIBED)
    assert payload[4:20] == nonce
    out = link.collect("s", tag=4)[0]
    assert out == b"y\n" * 450_000


# --- hostile and endurance -----------------------------------------------------------------------


def test_hostile_frames(agent):
    rng = random.Random(7)
    link = agent.link()
    link.identity()
    link.close()
    types = [al.PING, al.START, al.SESSION_STAT, al.SIGNAL, al.FORGET, al.PROCESSES, al.RESIZE, al.SUBSCRIBE,
             al.UNSUBSCRIBE, al.CREDIT, al.STDIN, al.STDIN_CLOSE, al.STDIN_QUERY, 5, 6, 53, 99, 255]
    for _ in range(40):
        link = agent.link()
        data = b""
        for _ in range(50):
            kind = rng.choice(types)
            payload = rng.choice([b"", rng.randbytes(rng.randrange(200)), text("s") + rng.randbytes(rng.randrange(40)),
                                  struct.pack("<I", rng.choice([0, 1, 0xffffffff, 65536, 1 << 31])) + rng.randbytes(9)])
            data += frame(kind, rng.randrange(1, 1 << 32), payload)
        data += rng.choice([b"", rng.randbytes(500), frame(al.HELLO, 1, b"short"), b"SPA1" * 300])
        link.send(data)
        link.close()
    link = agent.link()
    assert link.request(al.PING)[0] == al.PONG
    with pytest.raises(AgentError) as e:
        link.request(200, b"")
    assert e.value.code == "unsupported"
    with pytest.raises(AgentError) as e:
        link.request(al.START, b"\1")
    assert e.value.code == "invalid"
    link.send(frame(201, 0, b"no answer is wanted"))
    assert link.run("x", ["echo", "fine"])[0] == b"fine\n"


STOPPER = """
import os, signal, time
end = time.monotonic() + 1.5
while time.monotonic() < end:
    try:
        os.kill(-1, signal.SIGSTOP)
    except OSError:
        pass
"""


def test_a_child_stopped_before_its_execve(link):
    """A process of the same user stops whatever it can see, all the time: the agent still answers."""
    link.start("stopper", ["/usr/bin/python3", "-c", STOPPER], user="user", cwd="/")
    begin = time.monotonic()
    slowest, count = 0, 0
    while time.monotonic() - begin < 1.2:
        before = time.monotonic()
        link.start(f"s{count}", ["/bin/true"], user="user", cwd="/")
        slowest, count = max(slowest, time.monotonic() - before), count + 1
        link.forget(f"s{count - 1}")
    print(f"\n{count} starts, the slowest took {slowest * 1000:.0f} ms")
    assert count > 20 and slowest < 13, (count, slowest)
    assert link.request(al.PING)[0] == al.PONG
    link.forget("stopper")


def test_too_many(agent, link):
    for i in range(256):
        link.start(f"s{i}", ["sleep", "37.5"])
    with pytest.raises(AgentError) as e:
        link.start("one-more", ["true"])
    assert e.value.code == "too_many"
    for i in range(256):
        link.forget(f"s{i}")
    wait_until(lambda: not pids_of("37.5"))
    assert link.run("now", ["echo", "x"])[0] == b"x\n"


def test_orphans_are_reaped(agent, link):
    link.run("s", ["sh", "-c", "i=0; while [ $i -lt 300 ]; do (true &) ; i=$((i+1)); done"])
    def zombies():
        with open(f"/proc/{agent.pid}/task/{agent.pid}/children") as f:
            return len(f.read().split())
    wait_until(lambda: zombies() == 0)


def test_500_commands_do_not_grow(agent, link):
    def batch(first, count):
        for i in range(first, first + count):
            link.start(f"s{i}", ["/bin/true"])
            assert link.collect(f"s{i}")[2].exit_code == 0
    batch(0, 300)  # more than are kept
    fds, rss = agent.fds(), agent.rss_kib()
    begin = time.monotonic()
    batch(300, 500)
    took = (time.monotonic() - begin) / 500
    print(f"\nstart to exit event of /bin/true: {took * 1000:.2f} ms")
    assert agent.fds() <= fds and agent.rss_kib() <= rss + 64
    with pytest.raises(AgentError):
        link.stat("s0")  # the oldest are forgotten
    assert link.stat("s799").state == 2
    groups = [d for d in os.listdir(agent.cgroup) if os.path.isdir(os.path.join(agent.cgroup, d))]
    assert len(groups) <= 1


def test_no_busy_loop(agent, link):
    """A finished reader, a blocked child, an idle link: none costs time."""
    link.start("s", ["sh", "-c", "yes"])
    link.subscribe("s", 1, credit=70000)
    time.sleep(0.3)
    def cpu():
        with open(f"/proc/{agent.pid}/stat") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])
    before = cpu()
    time.sleep(1)
    assert cpu() - before <= 2  # clock ticks of 10 ms
