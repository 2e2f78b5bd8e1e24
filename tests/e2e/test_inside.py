"""What code inside a sandbox sees and may do, in each tier (product.md §5, "Always")."""

import glob
import os
import socket
import time

import pytest


def sh(api, box, script, **more):
    return api.exec(box["id"], "sh", "-c", script, **more)


def test_ordinary_user(api, sandbox):
    assert sh(api, sandbox, "id -u; id -g; id -un")["stdout"].split() == ["1000", "1000", "user"]


def test_hostname_is_the_sandboxs(api, sandbox):
    name = sh(api, sandbox, "hostname 2>/dev/null || cat /proc/sys/kernel/hostname")["stdout"].strip()
    assert name and name != socket.gethostname()
    assert sh(api, sandbox, "cat /etc/hostname")["stdout"].strip() == name


def test_machine_ids_differ(api, tier):
    boxes = [api.create(isolation=tier) for _ in range(2)]
    try:
        ids = [sh(api, b, "cat /etc/machine-id")["stdout"].strip() for b in boxes]
        assert all(len(i) == 32 for i in ids) and ids[0] != ids[1]
        seeds = [sh(api, b, "head -c 16 /dev/urandom | od -An -tx1")["stdout"] for b in boxes]
        assert seeds[0] != seeds[1]  # S3: clones do not share entropy
    finally:
        for b in boxes:
            api.delete(b["id"])


def test_no_host_path_in_mountinfo_or_environ(api, installation, sandbox):
    host = [str(installation.state.resolve()), str(installation.build.resolve().parent), "/var/lib/space"]
    for script in ("cat /proc/self/mountinfo /proc/self/mounts", "env; cat /proc/self/environ /proc/self/cgroup"):
        text = sh(api, sandbox, script)["stdout"]
        assert text
        for path in host:
            assert path not in text, f"{path} in {text}"


def test_no_network(api, sandbox):
    interfaces = sh(api, sandbox, "tail -n +3 /proc/net/dev | cut -d: -f1")["stdout"].split()
    assert set(interfaces) <= {"lo"}, interfaces
    routes = sh(api, sandbox, "tail -n +2 /proc/net/route")["stdout"]
    assert routes == ""


@pytest.mark.parametrize("path,writable", [
    ("/workspace", True), ("/tmp", True), ("/home/user", True), ("/dev/shm", True),
    ("/", False), ("/etc", False), ("/usr/bin", False), ("/proc/sys/kernel", False), ("/sys", False), ("/dev", False),
])
def test_writable_only_where_meant(api, sandbox, path, writable):
    code = sh(api, sandbox, f"touch {path}/probe 2>/dev/null && rm {path}/probe")["exit_code"]
    assert (code == 0) is writable, path


def test_root_inside_cannot_write_the_template(api, installation, tier):
    """A write by the sandbox's root stays in this sandbox."""
    one, two = api.create(isolation=tier), api.create(isolation=tier)
    try:
        done = sh(api, one, "echo changed > /etc/motd && cat /etc/motd", user="root")
        assert done["stdout"] == "changed\n", done
        assert "changed" not in sh(api, two, "cat /etc/motd")["stdout"]
    finally:
        api.delete(one["id"])
        api.delete(two["id"])


def test_memory_limit_holds(api, tier):
    box = api.create(isolation=tier, resources={"memory_mb": 256})
    try:
        done = sh(api, box, "python3 -c \"b=bytearray(); \nwhile True: b.extend(b'x'*(1<<20))\"", timeout="60s")
        assert done["exit_code"] != 0 and not done["timed_out"], done
        assert done["oom"] or "MemoryError" in done["stderr"], done
        assert sh(api, box, "echo alive")["stdout"] == "alive\n"
    finally:
        api.delete(box["id"])


def test_pids_limit_holds(api, tier):
    box = api.create(isolation=tier, resources={"pids": 32})
    try:
        script = ("import os,time\nn=0\ntry:\n  while n<200:\n    if os.fork()==0: time.sleep(30); os._exit(0)\n    n+=1\n"
                  "except OSError as e: print(n, e.errno)\n")
        done = api.exec(box["id"], "python3", "-c", script, timeout="20s", grace="1s")
        made = int(done["stdout"].split()[0])
        assert 10 <= made <= 32 and done["stdout"].split()[1] == "11", done  # EAGAIN
        assert sh(api, box, "echo alive")["stdout"] == "alive\n"
    finally:
        api.delete(box["id"])


def host_cpu_seconds(sandbox_id):
    """CPU time that the processes of a sandbox's control group have used, by the host's clock."""
    pids = set()
    for procs in glob.glob(f"/sys/fs/cgroup/**/*{sandbox_id}*/cgroup.procs", recursive=True):
        with open(procs, encoding="ascii") as f:
            pids.update(f.read().split())
    assert pids, "the sandbox has processes on this host"
    ticks = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
            ticks += sum(int(n) for n in f.read().rsplit(")", 1)[1].split()[11:15])  # own and reaped children's
    return ticks / os.sysconf("SC_CLK_TCK")


def test_cpu_limit_holds(api, tier):
    """Two busy seconds at half a CPU: seen from the host, since a guest's clock does not see its VMM being throttled."""
    box = api.create(isolation=tier, resources={"cpus": 0.5})
    try:
        spin = "import time\nend=time.monotonic()+2\nwhile time.monotonic()<end: pass\n"
        before, began = host_cpu_seconds(box["id"]), time.monotonic()
        assert api.exec(box["id"], "python3", "-c", spin)["exit_code"] == 0
        used, wall = host_cpu_seconds(box["id"]) - before, time.monotonic() - began
        assert 0.2 * wall < used < 0.7 * wall, (used, wall)
    finally:
        api.delete(box["id"])


def test_disk_limit_holds(api, tier):
    box = api.create(isolation=tier, resources={"disk_mb": 256})
    try:
        done = sh(api, box, "head -c 400M /dev/zero > /workspace/big; echo $?; stat -c %s /workspace/big", timeout="60s")
        code, size = done["stdout"].split()
        assert code != "0" and int(size) <= 256 << 20, done
        assert sh(api, box, "rm /workspace/big && echo alive")["stdout"] == "alive\n"
    finally:
        api.delete(box["id"])


def test_agent_cannot_be_touched(api, sandbox):
    """By the ordinary user in each tier; in the container by its root too. Root of a microVM owns that kernel."""
    probe = "kill -9 1; cat /proc/1/environ /proc/1/maps /proc/1/mem; readlink /proc/1/fd/*; ls /proc/1/root/; echo end"
    for user in ("user", "root") if sandbox["isolation"] == "container" else ("user",):
        assert sh(api, sandbox, f"({probe}) 2>/dev/null", user=user)["stdout"] == "end\n", user
        assert sh(api, sandbox, "echo alive")["stdout"] == "alive\n"


def test_root_cannot_kill_the_agent(api, sandbox):
    sh(api, sandbox, "kill -9 1; kill -STOP 1; kill -TERM -1; true", user="root", timeout="20s")
    assert sh(api, sandbox, "echo alive")["stdout"] == "alive\n"


def test_signals_have_their_defaults(api, sandbox):
    """Nothing that a daemon ignores reaches a command: `yes | head` ends by SIGPIPE."""
    status = sh(api, sandbox, "cat /proc/self/status")["stdout"]
    assert "SigIgn:\t0000000000000000" in status and "SigBlk:\t0000000000000000" in status
    assert sh(api, sandbox, "yes | head -n 1", timeout="10s")["stdout"] == "y\n"


def test_no_new_privileges(api, sandbox):
    assert "NoNewPrivs:\t1" in sh(api, sandbox, "cat /proc/self/status")["stdout"]
    caps = [l for l in sh(api, sandbox, "cat /proc/self/status")["stdout"].splitlines() if l.startswith("CapEff")]
    assert caps[0].split()[1].strip("0") == "", caps
