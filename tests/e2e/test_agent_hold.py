"""HOLD, RELEASE and IDENTITY of a held agent, and the hooks of programs that are restored. As test_agent.py."""

import os
import re
import shutil
import stat
import struct
import tempfile
import time

import pytest

import agent_link as al
from agent_link import AgentError, text
from test_agent import ROOT, Agent, agent, link, wait_until  # noqa: F401 (fixtures)

NEVER = 2**64 - 1  # a time no clock can be set to
RESTORED = "/run/space/restored"
COUNT = 'mkdir "$1"; i=0; while :; do i=$((i+1)); echo $i > "$1/n.new"; mv "$1/n.new" "$1/n"; done'


def inside(agent, path):
    """A path of the sandbox, seen from here."""
    return f"/proc/{agent.pid}/root{path}"


def read(agent, path):
    with open(inside(agent, path)) as f:
        return f.read()


def refused(code, call, *args, **options):
    with pytest.raises(AgentError) as e:
        call(*args, **options)
    assert e.value.code == code


class Counter:
    """A process that counts in a file, as fast as it can."""

    def __init__(self, agent, link, sid="count", **options):
        self.agent, self.path = agent, f"{agent.mnt}/home/{sid}" if "user" in options else f"{agent.mnt}/{sid}"
        link.start(sid, ["sh", "-c", COUNT, "sh", self.path], **options)
        wait_until(self.moves)

    def value(self):
        try:
            return read(self.agent, self.path + "/n")
        except FileNotFoundError:  # not yet
            return ""

    def moves(self, seconds=0.3):
        before, deadline = self.value(), time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.value() != before:
                return True
            time.sleep(0.01)
        return False


def generation(agent):
    line = read(agent, "/run/space/generation")
    assert re.fullmatch(r"\d{10} [0-9a-f]{32}\n", line), line
    return int(line[:10]), line[11:-1]


# --- held --------------------------------------------------------------------------------------


def test_hold_and_release(agent, link):
    assert link.features & 4
    counters = [Counter(agent, link), Counter(agent, link, "two", user="user", cwd="/")]
    link.start("old", ["true"])
    link.collect("old")
    link.hold(sync=True)
    assert not any(c.moves() for c in counters)
    assert link.request(al.PING, b"x") == (al.PONG, b"x")
    assert link.stat("count").state == 1 and link.stat("old").state == 2
    assert {p.session for p in link.processes()[1]} == {"count", "two"}
    refused("held", link.start, "new", ["true"])
    assert link.start("old", ["true"]).state == 2  # known: that is its state
    link.hold()
    link.hello()
    assert link.identified == 0
    again = agent.link()  # the hold belongs to no connection
    assert again.identified == 0
    refused("held", again.start, "new", ["true"])
    assert not any(c.moves() for c in counters)
    before = generation(agent)
    again.release()
    assert all(c.moves() for c in counters)
    again.hello()
    assert again.identified == 1
    assert again.run("new", ["echo", "on"])[0] == b"on\n"
    again.release()  # not held: nothing to do
    assert generation(agent) == before  # the same machine


@pytest.mark.parametrize("kind,payload", [
    (al.HOLD, b""), (al.HOLD, struct.pack("<II", 2, 0)), (al.HOLD, struct.pack("<II", 0, 10001)),
    (al.HOLD, struct.pack("<IIB", 0, 0, 0)), (al.RELEASE, b""), (al.RELEASE, bytes(9)),
])
def test_malformed(agent, link, kind, payload):
    counter = Counter(agent, link)
    refused("invalid", link.request, kind, payload)
    assert counter.moves()


def test_output_is_read_while_held(link):
    link.start("s", ["sh", "-c", "head -c 30000 /dev/zero; kill -STOP $$; echo more"])
    link.subscribe("s", 7, credit=100)  # far too little for an event
    time.sleep(0.3)
    link.hold()
    link.credit(7, 1 << 30, 0)
    got = 0
    while got < 30000:
        _, _, kind, rest, _ = link.next_event()
        got += len(rest) if kind == al.E_STDOUT else 0
    link.timeout = 0.3
    with pytest.raises(TimeoutError):
        link.next_event()
    link.timeout = 10
    link.release()
    link.signal("s", 18)
    assert link.next_event()[3] == b"more\n"


def test_many_holds_with_forking_processes(agent, link):
    link.start("s", ["sh", "-c", "while :; do (sh -c : & sh -c : | sh -c :); done"])
    counter = Counter(agent, link)
    for _ in range(30):
        link.hold()
        before = counter.value()
        time.sleep(0.02)
        assert counter.value() == before
        link.release()
    link.forget("s")


def test_time_held_does_not_count(link):
    link.start("s", ["sleep", "60"], timeout_ms=1000)
    link.start("t", ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"], timeout_ms=100, grace_ms=900)
    link.start("u", ["sleep", "0.8"])
    time.sleep(0.4)  # the grace of "t" has begun
    link.hold()
    time.sleep(1.5)
    assert [link.stat(s).state for s in "stu"] == [1, 1, 1]
    link.release()
    released = time.monotonic()
    time.sleep(0.2)
    assert [link.stat(s).state for s in "st"] == [1, 1]
    end = link.collect("s")[2]
    assert 0.3 < time.monotonic() - released < 2
    assert end.timed_out and 900_000 < end.duration_us < 1_400_000
    end = link.collect("t")[2]
    assert end.timed_out and end.signal == 9
    end = link.collect("u")[2]
    assert end.exit_code == 0 and end.duration_us < 1_400_000


def test_no_busy_loop_while_held(agent, link):
    link.start("s", ["sh", "-c", "sleep 60 & exit 0"], timeout_ms=100)
    link.start("t", ["sleep", "60"], timeout_ms=400)
    time.sleep(0.1)
    link.hold()

    def cpu():
        with open(f"/proc/{agent.pid}/stat") as f:
            return sum(int(x) for x in f.read().rsplit(")", 1)[1].split()[11:13])

    before = cpu()
    time.sleep(1)
    assert cpu() - before <= 3
    link.release()


def test_signals_while_held(link):
    link.start("term", ["sh", "-c", "trap 'echo got; exit 3' TERM; while :; do sleep 0.05; done"])
    link.start("kill", ["sleep", "60"])
    link.start("forget", ["sleep", "60"])
    time.sleep(0.2)
    link.hold()
    link.signal("term", 15)
    link.signal("kill", 9, scope=1)
    link.forget("forget")
    assert link.collect("kill", tag=5)[2].signal == 9  # the dead need no thaw
    assert link.stat("term").state == 1
    link.release()
    out, _, end, _ = link.collect("term", tag=6)
    assert (out, end.exit_code) == (b"got\n", 3)


def test_stdin_while_held(link):
    link.start("s", ["cat"], stdin=1)
    link.hold()
    assert link.stdin("s", 0, b"hello").accepted == 5
    link.stdin_close("s", 5)
    assert link.stat("s").state == 1
    link.release()
    assert link.collect("s")[0] == b"hello"


def test_busy_is_not_half_held(agent):
    """A group that never says it is frozen: files in a tmpfs take the kernel's place."""
    with tempfile.TemporaryDirectory(prefix="space-agent-test-") as fake:
        for name in (".", "s1"):
            os.makedirs(f"{fake}/{name}", exist_ok=True)
            for file, content in (("cgroup.freeze", "0\n"), ("cgroup.events", "populated 1\nfrozen 0\n")):
                with open(f"{fake}/{name}/{file}", "w") as f:
                    f.write(content)
        a = Agent(cgroup=False, cgroup_directory=fake)
        try:
            link = a.link()
            link.identity()
            began = time.monotonic()
            refused("busy", link.hold, timeout_ms=300)
            assert 0.25 < time.monotonic() - began < 2
            with open(f"{fake}/s1/cgroup.freeze") as f:
                assert f.read()[0] == "0"  # thawed again
            link.hello()
            assert link.identified == 1
            os.unlink(f"{fake}/s1/cgroup.freeze")
            refused("internal", link.hold)
            shutil.rmtree(f"{fake}/s1")
            link.hold()
        finally:
            a.stop()


def test_without_groups():
    a = Agent(cgroup=False)
    try:
        link = a.link()
        assert not link.features & 4
        link.identity()
        link.hold(sync=True)  # nothing stands still, and the features say so
        refused("held", link.start, "s", ["true"])
        link.release()
        assert link.run("s", ["true"])[2].exit_code == 0
    finally:
        a.stop()


# --- awake as somebody else --------------------------------------------------------------------


def test_identity_ends_the_hold(agent, link):
    """S2, S3: identity and clock come first, user code after them."""
    first = generation(agent)
    assert first[0] == 0
    counter = Counter(agent, link)
    link.hold()
    link.hello()
    assert link.identified == 0
    assert not counter.moves()
    link.identity(env=["WHO=copy"], hostname="copy-1", machine_id="0123456789abcdef" * 2, entropy=os.urandom(32))
    assert counter.moves()
    link.hello()
    assert link.identified == 1
    second = generation(agent)
    assert second[0] == 1 and second[1] != first[1]
    out = link.run("s", ["sh", "-c", "hostname; cat /etc/machine-id; echo $WHO"])[0]
    assert out == b"copy-1\n" + b"0123456789abcdef" * 2 + b"\ncopy\n"
    link.identity(hostname="copy-1")  # the answer was lost and it is repeated: no new life
    assert generation(agent) == second
    link.hold()
    link.identity()
    assert generation(agent)[0] == 2


def test_generation_is_new_for_each_first_identity(agent):
    link = agent.link()
    before = generation(agent)
    link.identity()
    after = generation(agent)
    assert before[0] == after[0] == 0 and before[1] != after[1]
    mode = os.stat(inside(agent, "/run/space/generation")).st_mode
    assert stat.S_IMODE(mode) == 0o444
    link.request(al.QUIESCE)
    link.hello()
    link.identity()
    assert generation(agent)[0] == 0 and generation(agent)[1] != after[1]


def test_a_failed_clock_stays_held(agent, link):
    """S2: fails closed."""
    counter = Counter(agent, link)
    link.hold()
    refused("internal", link.request, al.RELEASE, struct.pack("<Q", NEVER))
    assert not counter.moves()
    link.release()  # it is still who it was
    assert counter.moves()
    link.hold()
    before = generation(agent)
    refused("internal", link.identity, realtime_ns=NEVER)
    assert not counter.moves() and generation(agent) == before
    refused("not_identified", link.release)  # nobody knows how far it came
    link.hello()
    assert link.identified == 0
    refused("not_identified", link.start, "s", ["true"])
    link.hold()  # held already
    refused("not_identified", link.release)
    assert not counter.moves()
    link.identity()
    assert counter.moves()
    link.hold()
    link.release()  # all is forgotten
    assert counter.moves()


def test_failed_entropy_stays_held():
    """S3: the container's root may not add entropy: the one way to see the kernel refuse it."""
    a = Agent(user_namespace=True)
    try:
        link = a.link()
        link.identity()
        assert link.features & 4
        counter = Counter(a, link)
        link.hold()
        refused("entropy_failed", link.identity, entropy=os.urandom(32))
        assert not counter.moves()
        refused("not_identified", link.release)
        assert not counter.moves()
        link.identity()
        assert counter.moves()
        link.forget("count")
    finally:
        a.stop()


def test_quiesce_of_a_held_agent(agent, link):
    counter = Counter(agent, link)
    link.hold()
    link.request(al.QUIESCE)
    link.hello()
    refused("not_identified", link.release)
    assert not counter.moves()
    link.identity()
    assert counter.moves()


# --- hooks of programs -------------------------------------------------------------------------

# Tells every signal; says "ready <pid>". $1: the command that registers, $2: signals to trap
TRAPPER = """
for s in $2; do trap "echo signal $s" $s; done
eval "$1"
echo ready $$
while :; do sleep 0.05; done
"""


class Trapper:
    def __init__(self, agent, link, sid, register, signals="USR1 USR2 HUP", user="root"):
        self.link, self.sid, self.tag = link, sid, 100 + sum(sid.encode())
        self.pid = link.start(sid, ["sh", "-c", TRAPPER, "sh", register, signals], user=user, cwd="/").pid
        link.subscribe(sid, self.tag)
        self.text = b""
        self.until(b"ready")

    def until(self, wanted, seconds=5):
        deadline = time.monotonic() + seconds
        while wanted not in self.text:
            try:
                event = self.link.next_event(deadline)
            except TimeoutError:
                return False
            if event[0] == self.tag:
                self.text += event[3]
            else:
                others.setdefault(event[0], []).append(event[3])
            self.text += b"".join(others.pop(self.tag, []))
        return True


others = {}  # events of other trappers on the link, until they are asked for


@pytest.fixture(autouse=True)
def no_old_events():
    others.clear()


def restore(link):
    link.hold()
    link.hello()  # forgets the subscriptions
    link.identity()


def signals_of(agent, link, sid):
    """What a trapper has said in all."""
    time.sleep(0.3)
    link.subscribe(sid, 5000)
    out, last = b"", link.stat(sid).next - 1
    while True:
        tag, number, kind, rest, _ = link.next_event()
        if tag == 5000:
            out += rest if kind == al.E_STDOUT else b""
            if number >= last:
                link.send(al.frame(al.UNSUBSCRIBE, 5000))
                return re.findall(r"signal (\w+)", out.decode())


def test_hook_signals(agent, link):
    assert stat.S_IMODE(os.stat(inside(agent, RESTORED)).st_mode) == 0o1777
    for sid, register, user in [
            ("empty", ": > $D/$$", "user"), ("ten", "echo 10 > $D/$$", "user"), ("root", "echo 1 > $D/$$", "root"),
            ("none", ":", "user"), ("forked", "(: > $D/$$)", "user")]:
        Trapper(agent, link, sid, register.replace("$D", RESTORED), user=user)
    link.hold()
    link.hello()
    link.release()
    for sid in ("empty", "ten", "root", "none", "forked"):
        assert signals_of(agent, link, sid) == []  # the same machine: nobody is told
    restore(link)
    assert [signals_of(agent, link, s) for s in ("empty", "ten", "root", "none", "forked")] == [
        ["USR2"], ["USR1"], ["HUP"], [], ["USR2"]]
    link.identity()  # repeated
    assert signals_of(agent, link, "empty") == ["USR2"]
    restore(link)
    assert signals_of(agent, link, "empty") == ["USR2", "USR2"]


@pytest.mark.parametrize("content", [
    "0", "65", "-1", "12x", "0x0c", "x", "9 9", "100000000000000000000", "\\n\\n12", "12 #" + "x" * 5000, "\\000"])
def test_hook_bad_content(agent, link, content):
    Trapper(agent, link, "s", f"printf %b '{content}' > {RESTORED}/$$")
    restore(link)
    assert signals_of(agent, link, "s") == []


def test_hook_of_somebody_else(agent, link):
    root = Trapper(agent, link, "root", ":")
    other = Trapper(agent, link, "other", ":", user="user")
    link.run("a", ["sh", "-c", f"cd {RESTORED}; : > {root.pid}; echo 9 > 1"], user="user", cwd="/")
    # root may register for itself only, too: the file's owner is not the process's user
    link.run("b", ["sh", "-c", f"cd {RESTORED}; : > {other.pid}"])
    restore(link)
    assert signals_of(agent, link, "root") == [] and signals_of(agent, link, "other") == []
    assert agent.alive()
    assert str(other.pid) not in os.listdir(inside(agent, RESTORED))  # the owner can have the name


def test_hook_kinds_of_files(agent, link):
    pids = [Trapper(agent, link, f"s{i}", ":").pid for i in range(5)]
    good = Trapper(agent, link, "good", f": > {RESTORED}/$$")
    script = f"""cd {RESTORED}; : > /run/space-other; : > /run/space-third; ln -s /run/space-third {pids[0]}; ln /run/space-other {pids[1]}
        mkfifo {pids[2]}; mkdir {pids[3]}; : > 0{pids[4]}; : > +{pids[4]}; : > {pids[4]}x; : > 99999999999999999999
        : > 4194304; : > 2; ln -s {pids[4]} loop; : > ' 7'"""
    assert link.run("w", ["sh", "-c", script])[2].exit_code == 0
    restore(link)
    for i in range(5):
        assert signals_of(agent, link, f"s{i}") == [], i
    assert signals_of(agent, link, "good") == ["USR2"]
    left = os.listdir(inside(agent, RESTORED))
    assert str(good.pid) in left and "4194304" not in left
    assert os.path.exists(inside(agent, "/run/space-other"))


def test_hook_of_an_earlier_process(agent, link):
    s = Trapper(agent, link, "s", f": > {RESTORED}/$$; touch -d '1 hour ago' {RESTORED}/$$")
    restore(link)
    assert signals_of(agent, link, "s") == []
    assert str(s.pid) not in os.listdir(inside(agent, RESTORED))


def test_hook_crowd(agent, link):
    """Thousands of names: bounded work, and old ones go away."""
    script = f"cd {RESTORED}; i=100000; while [ $i -lt 110000 ]; do echo $i; i=$((i+1)); done | xargs touch"
    assert link.run("w", ["sh", "-c", script], user="user", cwd="/")[2].exit_code == 0
    began = time.monotonic()
    for _ in range(3):
        restore(link)
    assert time.monotonic() - began < 5
    assert os.listdir(inside(agent, RESTORED)) == []


def test_hook_directory_replaced(agent, link):
    """Root of the sandbox can break its own hooks, and nothing else."""
    s = Trapper(agent, link, "s", ":")
    script = f"mkdir /run/mine; : > /run/mine/{s.pid}; rmdir {RESTORED}; ln -s /run/mine {RESTORED}; rm /run/space/generation"
    assert link.run("w", ["sh", "-c", script])[2].exit_code == 0
    restore(link)
    assert signals_of(agent, link, "s") == []
    assert link.run("x", ["mv", "/run/space", "/run/gone"])[2].exit_code == 0
    restore(link)


def test_documented_example(agent, link):
    """S3: docs/restore-hooks.md: the numbers after the restore are not those of the original."""
    with open(os.path.join(ROOT, "docs", "restore-hooks.md")) as f:
        example = re.search(r"```python\n(.*?)```", f.read(), re.DOTALL).group(1)
    program = "import random, sys\nrandom.seed(7)\n" + example + """
print("ready", flush=True)
while True:
    line = sys.stdin.readline()
    if not line:
        break
    print(random.getrandbits(64), flush=True)
"""
    link.start("s", ["python3", "-c", program], stdin=1, user="user", cwd="/")
    link.subscribe("s", 3)

    def line(after=()):
        while True:
            _, _, kind, rest, _ = link.next_event()
            assert kind != al.E_EXITED
            if kind == al.E_STDOUT and rest not in after:
                return rest

    assert line() == b"ready\n"
    import random
    original = random.Random(7)
    link.stdin("s", 0, b"\n")
    first = b"%d\n" % original.getrandbits(64)
    assert line() == first
    link.hold()
    link.hello()
    link.release()
    link.subscribe("s", 3)
    link.stdin("s", 1, b"\n")
    second = b"%d\n" % original.getrandbits(64)  # the same machine goes on as it was
    assert line((b"ready\n", first)) == second
    link.hold()
    link.stdin("s", 2, b"\n")  # lies ready when the first instruction runs
    link.identity()
    assert line((b"ready\n", first, second)) != b"%d\n" % original.getrandbits(64)
