"""Runs inside a sandbox: tries many ways out and prints one JSON object, probe -> what came of it.

Only the standard library. Nothing here is sent to any address outside: an address of a
documentation range is connected to for its errno alone.
"""

import ctypes
import errno
import json
import os
import platform
import signal
import socket
import stat
import sys

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

# Numbers of x86-64; those from 424 on are the same everywhere.
NR = {
    "mount": 165, "umount2": 166, "pivot_root": 155, "setns": 308, "unshare": 272, "bpf": 321, "perf_event_open": 298,
    "keyctl": 250, "add_key": 248, "request_key": 249, "io_uring_setup": 425, "userfaultfd": 323,
    "open_by_handle_at": 304, "name_to_handle_at": 303, "init_module": 175, "finit_module": 313, "delete_module": 176,
    "kexec_load": 246, "kexec_file_load": 320, "swapon": 167, "swapoff": 168, "settimeofday": 164,
    "clock_settime": 227, "adjtimex": 159, "acct": 163, "iopl": 172, "ioperm": 173, "quotactl": 179, "syslog": 103,
    "personality": 135, "kcmp": 312, "fsopen": 430, "open_tree": 428, "move_mount": 429, "mount_setattr": 442,
    "fanotify_init": 300, "lookup_dcookie": 212, "modify_ldt": 154, "vhangup": 153, "move_pages": 279,
    "process_vm_readv": 310, "process_vm_writev": 311, "ptrace": 101, "pidfd_open": 434, "pidfd_getfd": 438,
    "clone": 56, "clone3": 435, "chroot": 161, "prlimit64": 302, "sethostname": 170, "mknod": 133, "memfd_secret": 447,
    "listns": 470, "statmount": 457, "quotactl_fd": 443, "process_madvise": 440,
}
NAMESPACES = {"user": 0x10000000, "mnt": 0x20000, "net": 0x40000000, "pid": 0x20000000, "ipc": 0x8000000,
              "uts": 0x4000000, "cgroup": 0x2000000}


def call(name, *args):
    """'ok', or the name of the errno."""
    number = NR[name] if isinstance(name, str) else name
    fixed = [a.encode() if isinstance(a, str) else a for a in args]
    fixed = [ctypes.c_long(a) if isinstance(a, int) else a for a in fixed]
    ctypes.set_errno(0)
    r = libc.syscall(ctypes.c_long(number), *fixed)
    return "ok" if r >= 0 else errno.errorcode.get(ctypes.get_errno(), str(ctypes.get_errno()))


def child(action):
    """The result of action() in a process of its own; 'signal N' if it was killed."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(r)
        try:
            out = action()
        except OSError as e:
            out = errno.errorcode.get(e.errno, str(e.errno))
        except BaseException as e:  # noqa: BLE001 - whatever it was is the answer
            out = type(e).__name__
        os.write(w, str(out).encode())
        os._exit(0)
    os.close(w)
    with os.fdopen(r, "rb") as f:
        text = f.read().decode()
    _, status = os.waitpid(pid, 0)
    return text if text else f"signal {status & 127}"


def opened(path, flags):
    def action():
        os.close(os.open(path, flags | os.O_NONBLOCK))
        return "ok"
    return action


def read(path):
    """'ok' if there is anything to be read."""
    def action():
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        return "ok" if os.read(fd, 4096) else "empty"
    return action


def written(path, text=b"1"):
    def action():
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, text)
        return "ok"
    return action


def sock(family, kind=socket.SOCK_DGRAM, protocol=0):
    def action():
        socket.socket(family, kind, protocol).close()
        return "ok"
    return action


def clone_new(flag):
    def action():
        pid = libc.syscall(ctypes.c_long(NR["clone"]), ctypes.c_long(flag | signal.SIGCHLD), ctypes.c_long(0),
                           ctypes.c_long(0), ctypes.c_long(0), ctypes.c_long(0))
        if pid == 0:
            os._exit(0)
        return "ok" if pid > 0 else errno.errorcode[ctypes.get_errno()]
    return action


def clone3_new():
    args = (ctypes.c_uint64 * 11)(NAMESPACES["user"], 0, 0, 0, signal.SIGCHLD)
    pid = libc.syscall(ctypes.c_long(NR["clone3"]), args, ctypes.c_long(88))
    if pid == 0:
        os._exit(0)
    return "ok" if pid > 0 else errno.errorcode[ctypes.get_errno()]


def vm_read():
    data = ctypes.create_string_buffer(8)
    local = (ctypes.c_uint64 * 2)(ctypes.addressof(data), 8)
    remote = (ctypes.c_uint64 * 2)(0x400000, 8)
    return call("process_vm_readv", 1, local, 1, remote, 1, 0)


def getfd():
    pidfd = libc.syscall(ctypes.c_long(NR["pidfd_open"]), ctypes.c_long(1), ctypes.c_long(0))
    if pidfd < 0:
        return errno.errorcode[ctypes.get_errno()]
    found = [n for n in range(16) if libc.syscall(ctypes.c_long(NR["pidfd_getfd"]), ctypes.c_long(pidfd),
                                                  ctypes.c_long(n), ctypes.c_long(0)) >= 0]
    return "ok" if found else errno.errorcode[ctypes.get_errno()]


def limit_of(pid, resource):
    """Sets the limit of another process to what it is: shows whether it may be changed."""
    old = (ctypes.c_uint64 * 2)()
    r = call("prlimit64", pid, resource, 0, old)
    return r if r != "ok" else call("prlimit64", pid, resource, (ctypes.c_uint64 * 2)(*old), 0)


def core_limit():
    """A core_pattern of the host that is a pipe runs for every limit but 1 (core(5))."""
    import resource
    before = resource.getrlimit(resource.RLIMIT_CORE)
    for wanted in ((0, 0), (0, before[1]), (resource.RLIM_INFINITY, resource.RLIM_INFINITY)):
        try:
            resource.setrlimit(resource.RLIMIT_CORE, wanted)
        except (OSError, ValueError):
            pass
    return str(resource.getrlimit(resource.RLIMIT_CORE))


def int80():
    """fork by the 32-bit entry: int $0x80 with eax=2."""
    import mmap
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20 (getpid); int 0x80; ret
    run = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    return "ok" if run() > 0 else "refused"


def connect(family, address):
    def action():
        with socket.socket(family, socket.SOCK_STREAM) as s:
            s.settimeout(2)
            s.connect(address)
        return "ok"
    return action


def netlink_new_link():
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as s:
        # RTM_NEWLINK, NLM_F_REQUEST|ACK|CREATE|EXCL, a dummy ifinfomsg with IFLA_IFNAME "evil"
        body = bytes(16) + b"\x09\x00\x03\x00evil\x00\x00\x00\x00"
        s.send((16 + len(body)).to_bytes(4, "little") + (16).to_bytes(2, "little") + (0x605).to_bytes(2, "little") +
               bytes(8) + body)
        answer = s.recv(4096)
        code = -int.from_bytes(answer[16:20], "little", signed=True)
        return "ok" if code == 0 else errno.errorcode.get(code, str(code))


def setuid_program():
    """Runs a set-user-id program of the image."""
    found = []
    for name in ("newgrp", "su", "mount", "passwd", "chsh"):
        path = "/usr/bin/" + name
        if os.path.exists(path) and os.stat(path).st_mode & 0o4000 and os.stat(path).st_uid == 0:
            found.append(path)
    if not found:
        return "no such program"
    # newgrp waits for nothing and says nothing of its uid: what counts is the new process's status.
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        call("ptrace", 0, 0, 0, 0)  # PTRACE_TRACEME: stops behind its execve (and loses the bit itself if root)
        os.close(w)
        os.execv(found[0], [found[0]])
    os.close(w)
    os.waitpid(pid, 0)
    status = open(f"/proc/{pid}/status").read()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(r)
    euid = next(l for l in status.splitlines() if l.startswith("Uid:")).split()[2]
    return "no gain" if int(euid) == os.getuid() and "NoNewPrivs:\t1" in status else "ok"


def many_orphans():
    """Double forks: pid 1 has to reap them all."""
    for _ in range(50):
        pid = os.fork()
        if pid == 0:
            if os.fork() == 0:
                os._exit(0)
            os._exit(0)
        os.waitpid(pid, 0)
    return "done"


def device(kind, major, minor):
    def action():
        path = f"/tmp/node{os.getpid()}"
        os.mknod(path, kind | 0o600, os.makedev(major, minor))
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            return "ok"
        finally:
            os.unlink(path)
    return action


def self_exe():
    """CVE-2019-5736: the platform's own program, opened through a process that runs it."""
    fd = os.open("/dev/.space/agent", os.O_RDONLY)
    return opened(f"/proc/self/fd/{fd}", os.O_WRONLY)()


def escape_chroot():
    os.mkdir("/tmp/jail") if not os.path.isdir("/tmp/jail") else None
    top = os.open("/", os.O_RDONLY)
    os.chroot("/tmp/jail")
    os.fchdir(top)
    for _ in range(64):
        os.chdir("..")
    os.chroot(".")
    return "host" if os.path.exists("/var/lib/space") or os.path.exists("/sys/fs/cgroup/unified") else "own root"


def probes():
    p = {}
    for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sys/net/ipv4/ip_forward",
                 "/proc/sys/kernel/modprobe", "/proc/sysrq-trigger", "/proc/sys/fs/binfmt_misc/register",
                 "/sys/kernel/uevent_helper", "/sys/fs/cgroup/cgroup.procs", "/proc/1/mem",
                 "/proc/self/setgroups", "/dev/.space/agent", "/dev/kmsg",
                 "/dev/mem", "/dev/vda", "/dev/vdb", "/dev/vport0p1", "/dev/loop0", "/dev/kvm", "/dev/fuse",
                 "/dev/net/tun", "/dev/hvc0"):
        p["write " + path] = opened(path, os.O_WRONLY)
    for path in ("/proc/kcore", "/proc/kmsg", "/proc/keys", "/proc/1/environ", "/proc/1/maps", "/proc/1/mem",
                 "/proc/1/auxv", "/proc/1/stack", "/proc/1/syscall", "/dev/mem", "/dev/port", "/dev/kmsg",
                 "/dev/vda", "/dev/vdb", "/dev/vport0p1", "/proc/vmallocinfo", "/proc/slabinfo", "/proc/timer_list"):
        p["read " + path] = read(path)
    for path, text in (("/proc/1/attr/current", b"x"), ("/proc/1/uid_map", b"0 0 1"), ("/proc/self/uid_map", b"0 0 1")):
        p["write " + path] = written(path, text)
    p["kallsyms shows addresses"] = lambda: "ok" if any(
        int(l.split()[0], 16) for l in open("/proc/kallsyms").read(4096).splitlines()[:20]) else "hidden"
    p["follow /proc/1/fd"] = lambda: os.readlink("/proc/1/fd/" + os.listdir("/proc/1/fd")[0]) and "ok"
    p["list /proc/1/root"] = lambda: "ok" if os.listdir("/proc/1/root/") else ""
    p["readlink /proc/1/exe"] = lambda: "ok" if os.readlink("/proc/1/exe") else ""
    p["readlink /proc/1/ns/mnt"] = lambda: "ok" if os.readlink("/proc/1/ns/mnt") else ""
    p["list /proc/1/map_files"] = lambda: os.listdir("/proc/1/map_files") is not None and "ok"
    p["mount"] = lambda: call("mount", "none", "/tmp", "tmpfs", 0, 0)
    p["mount proc"] = lambda: call("mount", "none", "/mnt", "proc", 0, 0)
    p["mount cgroup2"] = lambda: call("mount", "none", "/mnt", "cgroup2", 0, 0)
    p["remount /dev"] = lambda: call("mount", "none", "/dev", "none", 32, 0)
    p["umount2"] = lambda: call("umount2", "/proc/sys", 2)
    p["pivot_root"] = lambda: call("pivot_root", ".", ".")
    p["fsopen"] = lambda: call("fsopen", "tmpfs", 0)
    p["open_tree"] = lambda: call("open_tree", -100, "/", 1)
    p["move_mount"] = lambda: call("move_mount", -100, "/proc", -100, "/mnt", 0)
    p["mount_setattr"] = lambda: call("mount_setattr", -100, "/dev", 0, (ctypes.c_uint64 * 4)(), 32)
    for name, flag in NAMESPACES.items():
        p["unshare " + name] = lambda flag=flag: call("unshare", flag)
        p["clone " + name] = clone_new(flag)
        p["setns " + name] = lambda name=name, flag=flag: call(
            "setns", os.open(f"/proc/self/ns/{name}", os.O_RDONLY), flag)
    p["clone3 user"] = clone3_new
    p["bpf"] = lambda: call("bpf", 0, (ctypes.c_uint64 * 16)(1 | 4 << 32, 4 | 1 << 32), 72)
    p["perf_event_open"] = lambda: call("perf_event_open", (ctypes.c_uint64 * 16)(112 << 32), 0, -1, -1, 0)
    p["keyctl"] = lambda: call("keyctl", 0, -3, 1)
    p["add_key"] = lambda: call("add_key", "user", "x", "y", 1, -3)
    p["io_uring_setup"] = lambda: call("io_uring_setup", 4, (ctypes.c_uint64 * 32)())
    p["userfaultfd"] = lambda: call("userfaultfd", 0)
    p["open_by_handle_at"] = lambda: call("open_by_handle_at", os.open("/", 0), (ctypes.c_uint32 * 8)(8, 1, 2, 0), 0)
    for name in ("init_module", "finit_module", "delete_module", "kexec_load", "swapon", "swapoff", "settimeofday",
                 "adjtimex", "acct", "quotactl", "kcmp", "fanotify_init", "lookup_dcookie", "vhangup", "modify_ldt"):
        p[name] = lambda name=name: call(name, 0, 0, 0, 0, 0)
    p["clock_settime"] = lambda: call("clock_settime", 0, (ctypes.c_int64 * 2)(1, 0))
    p["iopl"] = lambda: call("iopl", 3)
    p["ioperm"] = lambda: call("ioperm", 0x70, 1, 1)
    p["syslog"] = lambda: call("syslog", 3, ctypes.create_string_buffer(64), 64)
    p["personality"] = lambda: call("personality", 0x0040000)
    p["sethostname"] = lambda: call("sethostname", "evil", 4)
    p["chroot escape"] = escape_chroot
    p["new system call 470"] = lambda: call(470, (ctypes.c_uint64 * 4)(32), 0, 0, 0)
    p["x32 call"] = lambda: call(0x40000000 + 39)
    p["int 0x80"] = int80
    for name, family, kind, protocol in (
            ("AF_PACKET", 17, 3, 768), ("AF_VSOCK", 40, 1, 0), ("AF_ALG", 38, 5, 0), ("AF_XDP", 44, 3, 0),
            ("AF_TIPC", 30, 4, 0), ("AF_KEY", 15, 3, 2), ("AF_RDS", 21, 5, 0), ("AF_BLUETOOTH", 31, 3, 1),
            ("raw IPv4", 2, 3, 1), ("raw IPv6", 10, 3, 58), ("netlink audit", 16, 3, 9),
            ("netlink netfilter", 16, 3, 12), ("netlink uevent", 16, 3, 15), ("AF_CAN", 29, 3, 1), ("AF_SMC", 43, 1, 0),
            ("AF_QIPCRTR", 42, 2, 0), ("AF_NFC", 39, 5, 1), ("AF_IB", 27, 2, 0), ("SCTP", 2, 1, 132)):
        p["socket " + name] = sock(family, kind, protocol)
    p["netlink new link"] = netlink_new_link
    p["connect documentation IPv4"] = connect(socket.AF_INET, ("192.0.2.1", 80))
    p["connect documentation IPv6"] = connect(socket.AF_INET6, ("2001:db8::1", 80))
    p["abstract sockets of others"] = lambda: "ok" if [
        l for l in open("/proc/net/unix").read().splitlines()[1:] if "@" in l] else "none"
    p["block device"] = device(stat.S_IFBLK, 254, 0)
    p["char device /dev/mem"] = device(stat.S_IFCHR, 1, 1)
    p["char device vport"] = device(stat.S_IFCHR, 245, 1)
    p["set-user-id programs"] = setuid_program
    p["ptrace attach 1"] = lambda: call("ptrace", 16, 1, 0, 0)
    p["ptrace seize 1"] = lambda: call("ptrace", 0x4206, 1, 0, 0)
    p["process_vm_readv 1"] = vm_read
    p["pidfd_getfd 1"] = getfd
    p["prlimit 1"] = lambda: limit_of(1, 7)
    p["signal 1"] = lambda: [os.kill(1, s) for s in (9, 19, 15, 11, 6, 3, 20)] and "ok"
    p["core limit"] = core_limit
    p["agent by /proc/self/fd"] = self_exe
    p["orphans"] = many_orphans
    return p


def other_fds():
    """What a command got besides 0, 1 and 2."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append((int(name), os.readlink(f"/proc/self/fd/{name}")))
        except OSError:
            pass  # the directory's own
    return ",".join(f"{n}:{where}" for n, where in sorted(found) if n > 2) or "none"


def main():
    fds = other_fds()
    table = probes()
    table["inherited descriptors"] = lambda: fds
    only = sys.argv[1:]
    done = {}
    for name, action in table.items():
        if not only or name in only:
            done[name] = child(action)
    done["machine"] = platform.machine()
    print(json.dumps(done))


if __name__ == "__main__":
    main()
