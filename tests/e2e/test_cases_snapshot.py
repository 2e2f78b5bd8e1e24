"""The cases S… (snapshot, resume, fork) that no older test shows. docs/cases.md lists all of them with their tests."""

import base64
import hashlib
import json
import os
import random
import subprocess
import threading
import time
import urllib.parse

import pytest

from guest_programs import python, start_counter
from installation import Api, ApiError
from test_lifecycle_fork import cleaned, machine  # noqa: F401
from test_lifecycle_suspend import drop_page_cache, saves_memory

STOOD_STILL_S = 3  # a gap between two readings of the clock that only a stop can make


def wait_until(condition, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"it did not happen: {what}"
        time.sleep(0.2)
    return value


def detached(api, box, program, *args):
    return api.session(box, "python3", "-c", program, *args, detach=True)["session"]["id"]


def send(attach, data):
    """Bytes for a session's standard input."""
    parts = urllib.parse.urlsplit(attach["url"])
    path = parts.path.removesuffix("/events") + "/stdin"
    status, body, _ = Api(f"http://{parts.netloc}", attach["token"]).request(
        "POST", path, raw=data, headers={"Content-Type": "application/octet-stream"})
    return status, body


# --- S2
# Reads the clocks in a tight loop, and 100 timer ticks a second of each clock. When more than 3 s lie between two readings it ends with a line that says:
# the how manieth reading, the readings before and after, a second pair after it, and how many ticks had come due meanwhile.
CLOCKS = r"""
import ctypes, json, os, time
libc = ctypes.CDLL(None, use_errno=True)
def ticks(clock):
    fd = libc.timerfd_create(clock, os.O_NONBLOCK)
    spec = (ctypes.c_long * 4)(0, 10_000_000, 0, 10_000_000)
    assert fd >= 0 and libc.timerfd_settime(fd, 0, spec, None) == 0
    return fd
timers = {"realtime": ticks(0), "monotonic": ticks(1)}
def due():
    found = {}
    for name, fd in timers.items():
        try:
            found[name] = int.from_bytes(os.read(fd, 8), "little")
        except BlockingIOError:
            found[name] = 0
    return found
out = open("/workspace/clocks", "a", buffering=1)
out.write(json.dumps({"begun": time.time()}) + "\n")
n, m0, w0 = 0, time.monotonic(), time.time()
while True:
    w = time.time()
    m = time.monotonic()
    n += 1
    if w - w0 > 3:
        w2, m2, w3 = time.time(), time.monotonic(), time.time()
        out.write(json.dumps({"n": n, "before": w0, "mono_before": m0, "first": w, "second": w2, "mono": m2, "third": w3, "due": due()}) + "\n")
        break
    elif n % 1000 == 0:
        due()
    m0, w0 = m, w
"""
# Answers each byte with its clocks.
ECHO = r"""
import os, sys, time
sys.stdout.write("ready\n")
sys.stdout.flush()
while os.read(0, 1):
    sys.stdout.write(f"{time.time():.6f} {time.monotonic():.6f}\n")
    sys.stdout.flush()
"""


def gaps(api, box):
    text = api.exec(box, "cat", "/workspace/clocks")["stdout"]
    return [json.loads(line) for line in text.split("\n")[:-1]][1:]


def start_clocks(api, box):
    detached(api, box, CLOCKS)
    wait_until(lambda: api.exec(box, "cat", "/workspace/clocks")["stdout"].endswith("\n"), "the clocks are read")


class Probe:
    """How far the clock of the inside is from the host's: bounds, from what was said after which question and before which answer came."""

    def __init__(self, api, box):
        session = api.session(box, "python3", "-c", ECHO, stdin="open")
        self.attach = session["attach"]
        self.lines, self.text = [], b""
        self.stream = api.attach(self.attach)
        threading.Thread(target=self._read, daemon=True).start()
        wait_until(lambda: self.lines, "the probe answers")

    def _read(self):
        try:
            for _, event in self.stream:
                if event["type"] == "stdout":
                    self.text += base64.b64decode(event["data"])
                    got = time.time()
                    *whole, self.text = self.text.split(b"\n")
                    self.lines += [(line.decode(), got) for line in whole]
        except (OSError, ValueError, AttributeError):
            pass  # closed

    def bounds(self, close_to=0.05, seconds=60):
        """(lower, upper) of inside minus host, and inside's (wall - monotonic) when it was asked last."""
        lower, upper = -1e9, 1e9
        deadline = time.monotonic() + seconds
        while (lower <= -close_to or upper >= close_to) and time.monotonic() < deadline:
            known, asked = len(self.lines), time.time()
            assert send(self.attach, b"x")[0] == 200
            while len(self.lines) <= known:
                assert time.time() < asked + 30, "the probe does not answer"
                time.sleep(0.002)
            line, got = self.lines[known]
            wall, mono = map(float, line.split())
            lower, upper, offset = max(lower, wall - got), min(upper, wall - asked), wall - mono
        return lower, upper, offset

    def close(self):
        self.stream.close()


def check_first_readings(api, box, gap, asked, mono_stands_still, held_s=0):
    """The first reading after the stop, and all later ones, were right within 50 ms. held_s: how long the machine ran with its user's
    processes held."""
    assert gap["before"] <= asked - 2, "it ran on although it was stopped"
    probe = Probe(api, box)
    lower, upper, offset = probe.bounds()
    probe.close()
    assert lower > -0.05 and upper < 0.05, f"the clock inside is wrong by {lower:.3f} to {upper:.3f} s"
    # Right at the first reading: not before the wake was asked for, and no step of the clock between it and now.
    assert gap["first"] >= asked - 0.05, f"the first reading after the wake was {asked - gap['first']:.3f} s too early"
    at_first = (gap["second"] + gap["third"]) / 2 - gap["mono"]
    unsure = (gap["third"] - gap["second"]) / 2
    assert abs(at_first - offset) < 0.05 + unsure, f"the clock was stepped by {offset - at_first:.3f} s after the first instruction"
    ran = gap["mono"] - gap["mono_before"]
    if mono_stands_still:
        assert gap["third"] - gap["first"] <= ran + 0.05, "the clock was stepped after the first reading"
        assert ran < 2 + held_s, f"the monotonic clock went on by {ran:.3f} s"
        assert gap["due"]["monotonic"] <= ran * 100 + 20, f"a backlog of timers: {gap['due']}"
    else:
        assert abs(ran - (gap["second"] - gap["before"])) < 0.5, f"the monotonic clock went on by {ran:.3f} s only"
    return {"wall error s": (round(lower, 4), round(upper, 4)), "ran s": round(ran, 3), "ticks due": gap["due"]}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["pause", "suspend"])
def test_S2_the_first_instruction_after_a_wake_sees_the_right_time(api, installation, sandbox, how):
    """S2: within 50 ms, over a stop of five seconds. The monotonic clock stands still, and its timers have no backlog; but over the pause of a
    container it goes on, being the host's."""
    box = sandbox["id"]
    if how == "suspend" and not saves_memory(installation, sandbox["isolation"]):
        with pytest.raises(ApiError) as e:
            api.change(box, "suspend")
        assert e.value.error["code"] == "unsupported"  # nothing to show here: memory is never kept
        return
    start_clocks(api, box)
    api.change(box, how)
    time.sleep(5)
    asked = time.time()
    api.change(box, "wake")
    found = wait_until(lambda: gaps(api, box), "the gap is seen")
    assert len(found) == 1, found
    print(how, check_first_readings(api, box, found[0], asked, how == "suspend" or sandbox["isolation"] == "microvm"))


@pytest.mark.slow
def test_S2_S3_nothing_runs_before_clock_and_identity_are_there(api, installation, machine, cleaned):  # noqa: F811
    """S2, S3: of one saved state several are woken, one of them with seconds between its start and its identity. In each the very
    same reading is the first one of the new life, so none has run an instruction in between."""
    start_clocks(api, machine)
    api.change(machine, "suspend")
    time.sleep(4)
    asked = {}
    try:
        for name, point in (("fast", None), ("slow", "create.linked delay:4000")):
            installation.failpoint(*([point] if point else []))
            asked[name] = time.time()
            child = api.fork(machine, 1)[0]["id"]
            cleaned[0].append(child)
            asked[child] = asked[name] + (4 if point else 0)
            assert not point or "create.linked" not in installation.failpoint_file.read_text(), "nothing was delayed"
    finally:
        installation.failpoint()
    asked[machine] = time.time()
    api.change(machine, "wake")
    first = {}
    for box in (machine, *cleaned[0]):
        found = wait_until(lambda: gaps(api, box), "the gap is seen")  # pylint: disable=cell-var-from-loop
        first[box] = found[0]
        check_first_readings(api, box, found[0], asked[box], True, held_s=4 if box == cleaned[0][-1] else 0)
    assert len({gap["n"] for gap in first.values()}) == 1, f"some had run before: {first}"
    assert len({gap["before"] for gap in first.values()}) == 1


# --- S3
# Generators in user space, seeded long before, as a warm template has them; all drawn from again after a restore. Those that the hook of
# docs/restore-hooks.md seeds again stand under "hook".
WARM_PYTHON = r"""
import json, os, random, secrets, signal, socket, ssl, time, uuid
random.random(); ssl.RAND_bytes(16); secrets.token_hex(8)
def restored(signum, frame):
    random.seed()
    ssl.RAND_add(os.urandom(48), 48.0)
signal.signal(signal.SIGUSR2, restored)
with open(f"/run/space/restored/{os.getpid()}", "w") as f:
    f.write(str(int(signal.SIGUSR2)))
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
def client_random():
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(into, out, server_hostname="test.invalid")
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()[11:43].hex()
client_random()
out = open("/workspace/python", "a", buffering=1)
while True:
    out.write(json.dumps({"generation": open("/run/space/generation").read(), "host": socket.gethostname(),
        "hook": {"random": random.random(), "openssl": ssl.RAND_bytes(16).hex(), "tls client random": client_random()},
        "kernel": {"urandom": os.urandom(16).hex(), "uuid4": str(uuid.uuid4()), "secrets": secrets.token_hex(16),
                   "kernel uuid": open("/proc/sys/kernel/random/uuid").read().strip()}}) + "\n")
    time.sleep(0.2)
"""
# Neither V8's generator nor OpenSSL's inside Node can be seeded again by a program: its hook draws from the kernel from then on.
WARM_NODE = r"""
const crypto = require("crypto"), fs = require("fs"), os = require("os");
let plain = Math.random, bytes = n => crypto.randomBytes(n);
plain(); bytes(16); crypto.randomUUID();
function kernel(n) {
  const fd = fs.openSync("/dev/urandom", "r"), b = Buffer.alloc(n);
  fs.readSync(fd, b, 0, n, null);
  fs.closeSync(fd);
  return b;
}
process.on("SIGUSR2", () => {
  bytes = kernel;
  Math.random = () => kernel(6).readUIntBE(0, 6) / 2 ** 48;
});
fs.writeFileSync("/run/space/restored/" + process.pid, "12");
setInterval(() => {
  fs.appendFileSync("/workspace/node", JSON.stringify({
    generation: fs.readFileSync("/run/space/generation", "utf8"), host: os.hostname(),
    hook: {"Math.random": Math.random(), bytes: bytes(16).toString("hex")},
    untold: {"Math.random": plain(), randomBytes: crypto.randomBytes(16).toString("hex"), randomUUID: crypto.randomUUID()},
    kernel: {urandom: kernel(16).toString("hex")}}) + "\n");
}, 200);
"""
IDENTITY = r"""
import glob, json, socket
read = lambda p: open(p).read().strip()
print(json.dumps({"machine-id": read("/etc/machine-id"), "hostname": socket.gethostname(), "boot_id": read("/proc/sys/kernel/random/boot_id"),
                  "generation": read("/run/space/generation").split()[1], "ssh": sorted(read(p) for p in glob.glob("/etc/ssh/ssh_host_*_key.pub"))}))
"""


def lines(api, box, name):
    return [json.loads(line) for line in api.exec(box, "cat", f"/workspace/{name}")["stdout"].split("\n")[:-1]]


def new_lines(api, box, name, old):
    """What a copy has said in its own life."""
    return [line for line in lines(api, box, name) if line["generation"] not in old]


@pytest.mark.slow
def test_S3_no_two_copies_draw_the_same(api, machine, cleaned):  # noqa: F811
    """S3: kernel, Python, OpenSSL, a TLS client's random, Node, by the hook where they are in user space; and names and ids.
    (Eight children, with fewer generators: test_lifecycle_fork.)"""
    detached(api, machine, WARM_PYTHON)
    api.session(machine, "node", "-e", WARM_NODE, detach=True)
    for name in ("python", "node"):
        wait_until(lambda: len(lines(api, machine, name)) >= 3, f"{name} is warm", 120)  # pylint: disable=cell-var-from-loop
    boot_id = api.exec(machine, "cat", "/proc/sys/kernel/random/boot_id")["stdout"].strip()  # the kernel makes it at the first reading
    children = [child["id"] for child in api.fork(machine, 2)]
    cleaned[0].extend(children)
    old = {lines(api, machine, name)[0]["generation"] for name in ("python", "node")}
    for box in children:
        for name in ("python", "node"):
            wait_until(lambda: len(new_lines(api, box, name, old)) >= 4, f"{name} goes on in {box}", 120)  # pylint: disable=cell-var-from-loop
    for box in (machine, *children):
        api.exec(box, "pkill", "-f", "/workspace/")
    repeated = {}
    for name in ("python", "node"):
        origin = lines(api, machine, name)
        copies = [line for box in children for line in new_lines(api, box, name, old)[1:]]  # the first may have been half made
        for kind in ("hook", "kernel", "untold"):
            for what in origin[0].get(kind, {}):
                values = [line[kind][what] for line in origin + copies]
                if kind == "untold":
                    repeated[what] = f"{len(values) - len(set(values))} of {len(values)}"
                else:
                    assert len(set(values)) == len(values), f"{what} of {name} came twice"
        hosts = {line["host"] for line in copies}
        assert len(hosts) == len(children) and origin[0]["host"] not in hosts, "a name of another was seen"
    print("values that came twice in programs that do not use the hook:", repeated)
    who = [json.loads(python(api, box, IDENTITY)) for box in (machine, *children)]
    for what in ("machine-id", "hostname", "generation"):
        assert len({w[what] for w in who}) == 3, (what, who)
    assert {w["boot_id"] for w in who} == {boot_id}, "docs/restore-hooks.md says that the boot id stays"
    keys = [key for w in who for key in w["ssh"]]
    assert len(set(keys)) == len(keys), "two machines have the same SSH host key"


# --- S5, S8
LISTENER = r"""
import os, socket, sys
while True:
    line = sys.stdin.readline()
    if not line:
        break
    with open("/workspace/heard", "a") as f:
        f.write(line)
    print(socket.gethostname(), line.strip(), flush=True)
"""


def test_S5_S8_what_was_open_to_the_origin_stays_the_origins(api, machine, cleaned):  # noqa: F811
    """S5, S8: a client that was attached while its sandbox was forked goes on with the origin alone: nothing of the child comes out of its
    stream, nothing it types comes in there, and none of its tokens opens the child. (Sockets to the outside: issue 7.)"""
    session = api.session(machine, "python3", "-u", "-c", LISTENER, stdin="open")
    heard = []
    stream = api.attach(session["attach"])

    def listen():
        try:
            for _, event in stream:
                if event["type"] == "stdout":
                    heard.append(base64.b64decode(event["data"]).decode())
        except (OSError, ValueError, AttributeError):
            pass

    threading.Thread(target=listen, daemon=True).start()
    assert send(session["attach"], b"before\n")[0] == 200
    wait_until(lambda: "before" in "".join(heard), "the origin answers")
    child = api.fork(machine, 1)[0]["id"]
    cleaned[0].append(child)
    assert send(session["attach"], b"after\n")[0] == 200
    wait_until(lambda: "after" in "".join(heard), "the origin answers after the fork")
    own = python(api, machine, "import socket; print(socket.gethostname())").strip()
    assert {line.split()[0] for line in "".join(heard).splitlines()} == {own}
    assert api.exec(machine, "cat", "/workspace/heard")["stdout"] == "before\nafter\n"
    assert api.exec(child, "cat", "/workspace/heard")["stdout"] == "before\n", "what was typed for the origin came to the child"
    processes = api.get(f"/v1/sandboxes/{child}/processes")["items"]
    assert len(processes) == 1, processes
    api.delete(machine)
    assert send(session["attach"], b"child\n")[0] in (401, 404, 409), "a token of the origin's still types"
    for call in (lambda: list(api.attach(session["attach"])), lambda: api.call("POST", f"/v1/sessions/{session['session']['id']}/attachments")):
        with pytest.raises(ApiError) as e:
            call()
        assert e.value.status in (401, 404, 409), e.value
    assert api.exec(child, "cat", "/workspace/heard")["stdout"] == "before\n"
    stream.close()


# --- S7
def manifest_of(installation, name):
    return installation.state / "data/saved" / name / "manifest.json"


def signed(raw, change):
    """The manifest with something changed, and the right hash over it."""
    head, digest, rest = raw[:11], raw[11:75], raw[75:]
    skip = next(n for n in range(4) if hashlib.sha256(rest[n:]).hexdigest().encode() == digest)
    new = change(rest)
    assert new != rest
    return head + hashlib.sha256(new[skip:]).hexdigest().encode() + new


@pytest.mark.parametrize("field,value", [("qemu_version", '"1.2.3"'), ("host_cpu", '"GenuineOther 6-1-1"'), ("accel", '"other"'), ("vcpus", "63")])
def test_S7_what_another_machine_has_saved_is_refused_and_not_tried(api, installation, machine, field, value):  # noqa: F811
    """S7: a form of another QEMU or CPU (its hash is right): refused, both sides named, and it is still there."""
    counter = start_counter(api, machine)
    try:
        api.change(machine, "suspend")
        path = manifest_of(installation, machine)
        raw = path.read_bytes()
        old = json.dumps(json.loads(raw)["machine"][field], separators=(",", ":")).encode()
        path.write_bytes(signed(raw, lambda rest: rest.replace(f'"{field}":'.encode() + old, f'"{field}":{value}'.encode())))
        with pytest.raises(ApiError) as e:
            api.change(machine, "wake")
        assert e.value.error["code"] == "failed_precondition", e.value.body
        message = e.value.error["message"]
        assert value.strip('"') in message and str(json.loads(old)) in message, message
        assert api.live()[machine]["state"] == "suspended"
        path.write_bytes(raw)
        before = counter.count()
        api.change(machine, "wake")
        counter.wait_count(before + 3)
        counter.check()
    finally:
        counter.close()


# --- S11
# Takes memory until little is left, keeps it, and writes its hash into a file whenever SIGUSR1 comes.
HOG = r"""
import hashlib, os, random, signal
def available_mb():
    return next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemAvailable")) >> 10
r, blocks = random.Random(5), []
while available_mb() > 24 and len(blocks) < 200:
    blocks.append(r.randbytes(1 << 20))
told = 0
def tell(*_):
    global told
    told += 1
    with open("/workspace/hog.new", "w") as f:
        f.write(f"{told} {len(blocks)} " + hashlib.sha256(b"".join(hashlib.sha256(b).digest() for b in blocks)).hexdigest())
    os.rename("/workspace/hog.new", "/workspace/hog")
signal.signal(signal.SIGUSR1, tell)
tell()
while True:
    signal.pause()
"""
# And files are written all the time, so that the kernel has to take pages from somewhere.
CHURN = r"""
import hashlib, os
n = 0
while True:
    n += 1
    data = hashlib.sha256(str(n).encode()).digest() * 32768
    with open(f"/workspace/churn.{n % 8}.new", "wb") as f:
        f.write(data + hashlib.sha256(data).digest())
    os.rename(f"/workspace/churn.{n % 8}.new", f"/workspace/churn.{n % 8}")
"""
CHECK_CHURN = r"""
import glob, hashlib
good = 0
for path in glob.glob("/workspace/churn.[0-9]"):
    raw = open(path, "rb").read()
    assert hashlib.sha256(raw[:-32]).digest() == raw[-32:], path
    good += 1
print(good)
"""


def ask_hog(api, box, times):
    """[how often it was asked, blocks, their hash]"""
    if times > 1:
        assert api.exec(box, "pkill", "-USR1", "-f", "r.randbytes")["exit_code"] == 0, "the process with all the memory is gone"
    return wait_until(lambda: (said := api.exec(box, "cat", "/workspace/hog")["stdout"].split()) and said[0] == str(times) and said, "the hash", 120)


@pytest.mark.slow
def test_S11_a_snapshot_under_memory_pressure_is_whole(api, machine, cleaned):  # noqa: F811
    """S11: hardly any memory is left in the guest and its page cache is full of what is being written."""
    detached(api, machine, HOG)
    _, blocks, digest = ask_hog(api, machine, 1)
    assert int(blocks) > 40, blocks
    detached(api, machine, CHURN)
    wait_until(lambda: api.exec(machine, "sh", "-c", "ls /workspace/churn.7")["exit_code"] == 0, "files are written")
    snapshot = api.snapshot(machine)
    cleaned[1].append(snapshot["id"])
    assert snapshot["size_bytes"] > int(blocks) << 20, snapshot
    api.change(machine, "suspend")
    api.change(machine, "wake")
    child = api.call("POST", "/v1/sandboxes", {"snapshot_id": snapshot["id"]}, headers={"Prefer": "wait=120"})["sandbox"]
    cleaned[0].append(child["id"])
    assert child["state"] == "running", child
    for box in (machine, child["id"]):
        assert api.exec(box, "pkill", "-f", "churn")["exit_code"] == 0, "the process that writes is gone"
    for box in (machine, child["id"]):
        assert ask_hog(api, box, 2) == ["2", blocks, digest]
        assert int(python(api, box, CHECK_CHURN)) >= 8


# --- S12
def marker(seed, size=65536):
    return random.Random(seed).randbytes(size)


def places(volume, needle):
    """Where bytes lie in the volume's own file."""
    found = []
    with open(volume, "rb") as f:
        end, at = os.fstat(f.fileno()).st_size, 0
        while True:
            try:
                at = os.lseek(f.fileno(), at, os.SEEK_DATA)
            except OSError:
                return found
            hole = os.lseek(f.fileno(), at, os.SEEK_HOLE)
            tail = b""
            while at < hole:
                chunk = os.pread(f.fileno(), min(8 << 20, hole - at), at)
                window = tail + chunk
                hit = window.find(needle)
                while hit >= 0:
                    found.append(at - len(tail) + hit)
                    hit = window.find(needle, hit + 1)
                tail = window[-(len(needle) - 1):]
                at += len(chunk)
            if at >= end:
                return found


class BadSector:
    """One block of the volume with other bytes than its checksum says: the file system answers EIO, as for a sector that cannot be read."""

    def __init__(self, installation, needle):
        self.path = installation.state / "data.btrfs"
        subprocess.run(["btrfs", "filesystem", "sync", str(installation.state / "data")], check=True, capture_output=True)
        os.sync()
        self.old = {}
        for at in places(self.path, needle):
            block = at & ~4095
            with open(self.path, "r+b") as f:
                self.old[block] = os.pread(f.fileno(), 4096, block)
                os.pwrite(f.fileno(), bytes(b ^ 0x5a for b in self.old[block]), block)
                os.fsync(f.fileno())
        drop_page_cache()

    def mend(self):
        with open(self.path, "r+b") as f:
            for block, old in self.old.items():
                os.pwrite(f.fileno(), old, block)
            os.fsync(f.fileno())
        drop_page_cache()


READ_FILE = r"""
import os
fd = os.open("/workspace/precious", os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
try:
    n = 0
    while data := os.read(fd, 4096):
        n += len(data)
    print("read", n)
except OSError as e:
    print("errno", e.errno)
"""
WRITE_FILE = r"""
import os, random, sys
fd = os.open("/workspace/precious", os.O_CREAT | os.O_WRONLY, 0o600)
os.write(fd, random.Random(int(sys.argv[1])).randbytes(65536))
os.fsync(fd)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
"""
HOLD_MEMORY = "import random, sys, time; keep = random.Random(int(sys.argv[1])).randbytes(1 << 20); print(len(keep), flush=True); time.sleep(600)"


@pytest.fixture
def neighbours(api):
    """Two sandboxes that have nothing to do with it; at the end they still count."""
    boxes = [api.create(isolation=t)["id"] for t in ("container", "microvm")]
    counters = [start_counter(api, box) for box in boxes]
    yield
    try:
        for counter in counters:
            counter.wait_count(counter.count() + 5)
            counter.check()
            counter.close()
    finally:
        for box in boxes:
            api.delete(box)


@pytest.mark.slow
def test_S12_a_bad_sector_is_one_sandboxs_read_error(api, installation, sandbox, neighbours):
    """S12: a block under a running sandbox's disk cannot be read: it sees EIO, everybody else and the worker live."""
    box, worker = sandbox["id"], installation.daemon_pid("worker")
    seed = random.randrange(1 << 60)
    python(api, box, WRITE_FILE, str(seed))
    sector = BadSector(installation, marker(seed)[8192:8704])
    try:
        assert sector.old, "the file's block was not found in the volume: this test has shown nothing"
        assert python(api, box, READ_FILE).strip() == "errno 5"
        assert api.exec(box, "echo", "alive")["stdout"] == "alive\n"
    finally:
        sector.mend()
    assert python(api, box, READ_FILE).strip() == "read 65536"
    assert installation.daemon_pid("worker") == worker, "the worker died of it"


@pytest.mark.slow
def test_S12_a_bad_sector_in_saved_memory_fails_one_wake(api, installation, machine, neighbours):  # noqa: F811
    """S12: of a suspended sandbox's memory a block cannot be read: its wake fails and says so, it stays as it was, the others and the worker live."""
    worker = installation.daemon_pid("worker")
    seed = random.randrange(1 << 60)
    session = api.session(machine, "python3", "-c", HOLD_MEMORY, str(seed))
    events = iter(api.attach(session["attach"]))
    while next(events)[1]["type"] != "stdout":
        pass
    counter = start_counter(api, machine)
    try:
        api.change(machine, "suspend")
        sector = BadSector(installation, marker(seed, 1 << 20)[9000:9200])
        try:
            assert sector.old, "the memory's block was not found in the volume: this test has shown nothing"
            with pytest.raises(ApiError) as e:
                api.change(machine, "wake")
            assert "Input/output error" in e.value.error["message"], e.value.body
            print("the wake says:", e.value.error)
            row = api.live()[machine]
            assert row["state"] == "suspended" and row["desired_state"] == "suspended", row
        finally:
            sector.mend()
        before = counter.count()
        api.change(machine, "wake")
        counter.wait_count(before + 3)
        counter.check()
        assert installation.daemon_pid("worker") == worker, "the worker died of it"
    finally:
        counter.close()
