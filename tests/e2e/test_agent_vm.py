"""The agent in a real (emulated) machine that is held, saved, and woken twice as somebody else.

Needs QEMU and the guest kernel of the build (scripts/setup/guest-kernel.sh), and no worker.
"""

import json
import os
import socket
import subprocess
import sys
import time

import pytest

sys.path.insert(0, os.path.dirname(__file__))
import agent_link as al  # noqa: E402
from agent_link import AgentError, Link  # noqa: E402
from test_agent import ROOT, find_agent  # noqa: E402

GUEST = os.environ.get("SPACE_GUEST_DIR") or os.path.join(os.environ.get("SPACE_BUILD", os.path.join(ROOT, "build")), "guest")
HOUR_NS = 3600 * 10**9


class Machine:
    def __init__(self, directory, name, files, boot):
        self.log = os.path.join(directory, name + ".log")
        self.agent_path, self.qmp_path = (os.path.join(directory, f"{name}.{s}") for s in ("agent", "qmp"))
        argv = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
                "-M", "microvm,acpi=on,rtc=on,isa-serial=off,pcie=off", "-accel", "tcg,thread=multi,tb-size=64",
                "-cpu", "max,la57=off,smap=off,smep=off,pku=off,umip=off", "-m", "160",
                "-chardev", f"socket,id=ag,path={self.agent_path},server=on,wait=off",
                "-chardev", f"socket,id=mon,path={self.qmp_path},server=on,wait=off", "-mon", "chardev=mon,mode=control",
                "-device", "virtio-serial-device,max_ports=2", "-device", "virtserialport,chardev=ag,name=agent",
                "-drive", f"if=none,id=d0,file={files['root']},format=raw,readonly=on,file.locking=off",
                "-device", "virtio-blk-device,drive=d0,serial=root"]
        if boot:
            argv += ["-kernel", files["kernel"], "-initrd", files["initramfs"], "-append",
                     f"quiet panic=-1 reboot=t tsc_early_khz={files['khz']} tsc=reliable mitigations=off nopti "
                     "cryptomgr.notests lsm= ima=off"]
        else:
            argv += ["-incoming", "defer"]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.qmp = self.connect(self.qmp_path)
        self.replies = self.qmp.makefile("rb")
        self.replies.readline()  # the greeting
        self.command("qmp_capabilities")

    def connect(self, path):
        deadline = time.monotonic() + 20
        while True:
            s = socket.socket(socket.AF_UNIX)
            s.settimeout(120)
            try:
                s.connect(path)
                return s
            except OSError:
                s.close()
                with open(self.log) as f:
                    assert self.process.poll() is None and time.monotonic() < deadline, f.read()
                time.sleep(0.02)

    def command(self, name, fd=None, **arguments):
        line = json.dumps({"execute": name, "arguments": arguments}).encode() + b"\n"
        if fd is None:
            self.qmp.sendall(line)
        else:
            socket.send_fds(self.qmp, [line], [fd])
        while True:
            answer = json.loads(self.replies.readline())
            if "event" not in answer:
                assert "error" not in answer, answer
                return answer["return"]

    def wait_for(self, query, key, wanted, seconds=120):
        deadline = time.monotonic() + seconds
        while (got := self.command(query).get(key)) != wanted:
            assert got != "failed" and time.monotonic() < deadline, got
            time.sleep(0.02)

    def save(self, path):
        self.command("stop")
        self.command("migrate-set-parameters", **{"max-bandwidth": 1 << 40})
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self.command("getfd", fd=fd, fdname="state")
        os.close(fd)
        self.command("migrate", uri="fd:state")
        self.wait_for("query-migrate", "status", "completed")

    def restore(self, path):
        fd = os.open(path, os.O_RDONLY)
        self.command("getfd", fd=fd, fdname="state")
        os.close(fd)
        self.command("migrate-incoming", uri="fd:state")
        self.wait_for("query-migrate", "status", "completed")
        self.command("cont")

    def link(self, seconds=90):
        """A connection whose HELLO was answered: the agent may not be there yet."""
        deadline = time.monotonic() + seconds
        while True:
            link = Link(self.agent_path, hello=False, timeout=10)
            try:
                link.hello(resync=True)
                link.timeout = 30
                return link
            except (TimeoutError, al.Cut):
                assert self.process.poll() is None and time.monotonic() < deadline
                link.close()

    def stop(self):
        self.replies.close()
        self.qmp.close()
        self.process.kill()
        self.process.wait(10)


def write_initramfs(path):
    """The agent and the kernel's modules (format: the kernel's initramfs buffer format, "newc")."""
    modules = os.path.join(GUEST, "modules")
    entries = [("dev", 0o040755, b""), ("modules", 0o040755, b"")]
    for name, source, mode in [("init", find_agent(), 0o100755)] + [
            (f"modules/{m}", os.path.join(modules, m), 0o100644) for m in sorted(os.listdir(modules))]:
        with open(source, "rb") as f:
            entries.append((name, mode, f.read()))
    with open(path, "wb") as out:
        for number, (name, mode, data) in enumerate(entries + [("TRAILER!!!", 0, b"")], 1):
            fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
            head = b"070701" + b"".join(b"%08x" % f for f in fields) + name.encode() + b"\0"
            out.write(head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    if not os.path.exists(os.path.join(GUEST, "vmlinux")):
        pytest.fail(f"no guest kernel in {GUEST}: scripts/setup/guest-kernel.sh makes it (SPACE_GUEST_DIR names another place)")
    d = str(tmp_path_factory.mktemp("agent-vm"))
    root = os.path.join(d, "root")
    for name in ("etc", "tmp", "bin"):
        os.makedirs(os.path.join(root, name))
    watch = os.path.join(root, "bin", "watch")
    subprocess.run(["musl-gcc", "-std=gnu17", "-O1", "-static", "-D_GNU_SOURCE", "-idirafter",
                    subprocess.run(["gcc", "-print-file-name=include"], check=True, capture_output=True, text=True).stdout.strip(),
                    "-o", watch, os.path.join(os.path.dirname(__file__), "agent_vm_watch.c")], check=True)
    os.chmod(root, 0o755)
    subprocess.run(["mkfs.erofs", "--all-root", "--quiet", os.path.join(d, "root.erofs"), root], check=True,
                   stdout=subprocess.DEVNULL)
    archive = os.path.join(d, "init.cpio")
    write_initramfs(archive)
    khz = int(subprocess.run([watch, "khz"], check=True, capture_output=True, text=True).stdout)
    return {"root": os.path.join(d, "root.erofs"), "kernel": os.path.join(GUEST, "vmlinux"), "initramfs": archive,
            "khz": khz, "dir": d}


class Output:
    """What the watching program says, across connections."""

    def __init__(self, link):
        link.subscribe("watch", 9)
        self.link, self.lines, self.rest = link, [], b""

    def read(self, seconds):
        deadline = time.monotonic() + seconds
        try:
            tag, number, kind, rest, _ = self.link.next_event(deadline)
        except TimeoutError:
            return False
        if kind == al.E_STDOUT:
            *whole, self.rest = (self.rest + rest).split(b"\n")
            self.lines += [w.decode() for w in whole]
        assert kind not in (al.E_EXITED, al.E_ERROR), rest
        return True

    def until(self, word, seconds=30):
        deadline = time.monotonic() + seconds
        while True:
            for line in self.lines:
                if line.startswith(word):
                    self.lines.remove(line)
                    return line.split()
            assert time.monotonic() < deadline, (word, self.lines)
            self.read(1)

    def is_quiet(self, seconds=1.0):
        """Nothing comes any more, once what was under way has arrived."""
        deadline = time.monotonic() + seconds
        while self.read(0.5):
            if time.monotonic() > deadline + 1:
                return False
        return not self.read(seconds)


def test_held_saved_and_woken_as_two(files):
    state = os.path.join(files["dir"], "state")
    original = Machine(files["dir"], "original", files, boot=True)
    copies = []
    try:
        link = original.link()
        assert link.identified == 0 and link.features & 5 == 5
        link.identity(hostname="original", realtime_ns=time.time_ns(), entropy=os.urandom(32))
        link.start("watch", ["/bin/watch"], user="1000", cwd="/", timeout_ms=1_000_000)
        link.start("idle", ["/bin/watch"], user="root", cwd="/")
        output = Output(link)
        output.until("ready")
        output.until("tick")
        link.hold(sync=True)
        assert output.is_quiet()
        with pytest.raises(AgentError) as e:
            link.start("new", ["/bin/watch"])
        assert e.value.code == "held"
        original.save(state)
        link.close()

        original.command("cont")  # the same machine goes on
        link = original.link()
        assert link.identified == 0
        output = Output(link)
        assert output.is_quiet()
        link.release(realtime_ns=time.time_ns() + 24 * HOUR_NS)
        output.until("tick")
        link.hold()  # its clock has jumped by a day: who registered before is still registered
        link.identity(hostname="again", realtime_ns=time.time_ns() + 48 * HOUR_NS, entropy=os.urandom(32))
        woke = output.until("woke")
        assert woke[1] == "1" and woke[4] == "again", woke
        link.close()
        original.stop()

        seen = []
        for name in ("one", "two"):
            copy = Machine(files["dir"], name, files, boot=False)
            copies.append(copy)
            copy.restore(state)
            link = copy.link()
            assert link.identified == 0
            output = Output(link)
            output.lines.clear()
            assert output.is_quiet()
            later = time.time_ns() + HOUR_NS
            link.identity(hostname="copy-" + name, realtime_ns=later, entropy=os.urandom(32))
            word, told, realtime_ms, random, host, count, generation = output.until("woke")
            assert told == "1", "the signal came after the first instruction"
            assert later // 10**6 <= int(realtime_ms) < later // 10**6 + 30_000
            assert host == "copy-" + name and count == "0000000001"
            output.lines.clear()
            output.until("tick")
            assert link.stat("watch").state == 1 and link.stat("idle").state == 1
            seen.append((random, generation))
            link.close()
            copy.stop()
        assert seen[0][0] != seen[1][0] and seen[0][1] != seen[1][1]
    finally:
        for machine in [original, *copies]:
            if machine.process.poll() is None:
                machine.stop()
