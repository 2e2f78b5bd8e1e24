"""Containers with CRIU: processes of many kinds go on after suspends, snapshots and rollbacks. Says NOT TESTED where the host has no CRIU
that works ($SPACE_CRIU or criu in PATH, 4.2 or newer: scripts/setup/criu.sh)."""

import sys
import time

import pytest

from guest_programs import start_counter
from installation import ApiError

# Threads, a connection in itself, pipes to a child, an unlinked file, a socket pair with bytes in it, a timer, a memfd. Each round uses all.
MANY = r"""
import os, signal, socket, subprocess, tempfile, threading, time
listener = socket.create_server(("127.0.0.1", 8123))
client = socket.create_connection(("127.0.0.1", 8123))
server, _ = listener.accept()
a, b = socket.socketpair()
a.send(b"kept")
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
gone = tempfile.TemporaryFile(dir="/workspace")
memory = os.memfd_create("m")
os.write(memory, b"kept")
ticks = [0]
def tick(*_):
    ticks[0] += 1
signal.signal(signal.SIGALRM, tick)
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
beats = [0]
def beat():
    while True:
        beats[0] += 1
        time.sleep(0.01)
threading.Thread(target=beat, daemon=True).start()
out = open("/workspace/many", "a", buffering=1)
n, before, stuck = 0, (-1, -1), 0
while True:
    n += 1
    line = b"%d\n" % n
    client.sendall(line)
    assert server.recv(100) == line
    child.stdin.write(line)
    child.stdin.flush()
    assert child.stdout.readline() == line
    gone.write(line)
    assert a.fileno() >= 0 and b.recv(4, socket.MSG_PEEK) == b"kept" and os.pread(memory, 4, 0) == b"kept"
    time.sleep(0.05)
    now = (beats[0], ticks[0])
    stuck = 0 if now[0] > before[0] and now[1] > before[1] else stuck + 1  # a sleep may be over at once after a pause
    assert stuck < 10, (now, before)
    before = now
    out.write(f"{n} {os.getpid()} {child.pid}\n")
"""


@pytest.fixture
def box(api, installation):
    deadline = time.monotonic() + 20
    while not (status := installation.tier_status("container")).get("save_memory"):
        if "tried out;" not in status.get("save_memory_detail", "") or time.monotonic() > deadline:
            print(f"NOT TESTED: memory of containers: {status.get('save_memory_detail')}", file=sys.stderr)
            pytest.skip(f"NOT TESTED: {status.get('save_memory_detail')}")
        time.sleep(0.2)
    box = api.create(isolation="container")["id"]
    yield box
    api.delete(box)


def lines(api, box):
    return api.exec(box, "cat", "/workspace/many")["stdout"].split("\n")[:-1]


def goes_on(api, box, pids):
    """The processes are there, the same ones, and make progress without a gap."""
    start = len(lines(api, box))
    deadline = time.monotonic() + 20
    while len(found := lines(api, box)) < start + 3:
        assert time.monotonic() < deadline, api.exec(box, "cat", "/workspace/err")["stdout"]
        time.sleep(0.1)
    assert [int(line.split()[0]) for line in found] == list(range(1, len(found) + 1))
    assert {line.split(" ", 1)[1] for line in found} == {pids}


def test_processes_of_all_kinds(api, box):
    counter = start_counter(api, box)
    api.session(box, "sh", "-c", "exec python3 -c \"$0\" 2>/workspace/err", MANY, detach=True)
    deadline = time.monotonic() + 20
    while not api.exec(box, "sh", "-c", "cat /workspace/many 2>/dev/null")["stdout"].endswith("\n"):
        assert time.monotonic() < deadline, api.exec(box, "cat", "/workspace/err")["stdout"]
        time.sleep(0.1)
    pids = lines(api, box)[0].split(" ", 1)[1]
    took = []
    for _ in range(5):
        at = [time.monotonic()]
        assert api.change(box, "suspend")["state"] == "suspended"
        at.append(time.monotonic())
        before = counter.count()
        assert api.change(box, "wake")["state"] == "running"
        at.append(time.monotonic())
        goes_on(api, box, pids)
        counter.wait_count(before + 5)
        took.append([round((b - a) * 1000) for a, b in zip(at, at[1:])])
    print("suspend, wake in ms:", took)
    # And a kill of a session reaches processes that were restored.
    first = api.snapshot(box)
    goes_on(api, box, pids)
    api.exec(box, "sh", "-c", "echo later > /workspace/later")
    assert api.change(box, "rollback", snapshot_id=first["id"])["state"] == "running"
    assert api.exec(box, "sh", "-c", "test ! -e /workspace/later && echo gone")["stdout"] == "gone\n"
    goes_on(api, box, pids)
    api.delete_snapshot(first["id"])
    counter.close()


def test_root_inside_cannot_look_into_the_agent(api, box):
    """Also after a wake, when the agent is protected by a capability alone."""
    probe = ("import ctypes,os\nl=ctypes.CDLL(None,use_errno=True)\n"
             "print(l.ptrace(16,1,0,0), ctypes.get_errno())\n"
             "for n in 'mem','environ','root','fd/3','maps':\n"
             " try: os.open('/proc/1/'+n, os.O_RDONLY); print(n, 'OPEN')\n"
             " except OSError as e: print(n, e.errno)\n"
             "print([l for l in open('/proc/self/status') if l.startswith('CapBnd')][0])")
    expected = "-1 1\nmem 13\nenviron 13\nroot 13\nfd/3 13\nmaps 13\nCapBnd:\t00000000000405fb\n\n"
    assert api.exec(box, "python3", "-c", probe)["stdout"] == expected
    api.change(box, "suspend")
    api.change(box, "wake")
    assert api.exec(box, "python3", "-c", probe)["stdout"] == expected


CONFINEMENT = r"""
import os, re
for pid in "1", "self":
    for line in open(f"/proc/{pid}/status"):
        if re.match("Uid|Gid|Groups|NoNewPrivs|Seccomp:|Cap|NSpid", line) and not (pid == "self" and line.startswith("NSpid")):
            print(pid, line.strip())
    for name in "limits", "uid_map", "gid_map", "setgroups", "oom_score_adj", "cgroup", "personality":
        try:
            print(pid, name, re.sub("/s[0-9]+", "/sN", open(f"/proc/{pid}/{name}").read().strip()))
        except OSError as e:
            print(pid, name, e.errno)
for line in sorted(l.split(" ", 4)[4] for l in open("/proc/self/mountinfo")):
    print(re.sub(r" (shared|master):[0-9]+", r" \1", re.sub(r"(lowerdir|upperdir|workdir)=[^, ]*", r"\1", line)).replace(",uuid=on", "").strip())
print([os.path.basename(os.readlink(f"/proc/self/ns/{n}")).split(":")[0] for n in sorted(os.listdir("/proc/self/ns"))])
print(sorted(os.listdir("/sys")), sorted(os.listdir("/dev")), [open(f"/proc/sys/{n}").read() for n in ("kernel/hostname", "net/ipv4/ip_forward")])
for path in "/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/kcore", "/proc/keys", "/sys/x":
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT)); print(path, "OPEN")
    except OSError as e:
        print(path, e.errno)
"""


def test_confinement_is_the_same_after_a_wake(api, box):
    """What CRIU has built again has no other rights, mounts or limits than what the launcher had built."""
    before = api.exec(box, "python3", "-c", CONFINEMENT)["stdout"]
    assert "Seccomp:\t2" in before and "\n/proc " in before
    api.change(box, "suspend")
    api.change(box, "wake")
    assert api.exec(box, "python3", "-c", CONFINEMENT)["stdout"].splitlines() == before.splitlines()


def test_what_cannot_be_saved_runs_on(api, box):
    """A terminal whose shell keeps /dev/tty open, where CRIU refuses it: the sandbox is as before, and its disk can be saved."""
    api.session(box, "sh", "-c", "exec 9<>/dev/tty; echo $$ > /workspace/shell; while :; do sleep 1; done", pty={"rows": 24, "cols": 80}, detach=True)
    time.sleep(0.5)
    try:
        api.change(box, "suspend")
    except ApiError as e:
        assert e.error["code"] == "failed_precondition" and "CRIU" in e.error["message"], e.body
        assert api.get(f"/v1/sandboxes/{box}")["state"] == "running"
        assert api.exec(box, "sh", "-c", "kill -0 $(cat /workspace/shell) && echo runs")["stdout"] == "runs\n"
        api.change(box, "suspend", memory=False)
    assert api.change(box, "wake")["state"] == "running"
    assert api.exec(box, "cat", "/workspace/shell")["stdout"].strip().isdigit()
