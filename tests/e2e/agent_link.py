"""A second implementation of docs/agent-protocol.md, the host's side, for the tests of the agent.

It is written from the document, not from the C code, so that a mistake in the codec shows.
"""

import os
import socket
import struct
import time

HELLO, HELLO_OK, PING, PONG, OK, ERROR = 1, 2, 3, 4, 5, 6
IDENTITY, QUIESCE, HOLD, RELEASE = 16, 17, 18, 19
START, STARTED, SESSION_STAT, SIGNAL, FORGET, PROCESSES, PROCESS_LIST, RESIZE = 32, 33, 34, 35, 36, 37, 38, 39
SUBSCRIBE, SUBSCRIBED, UNSUBSCRIBE, CREDIT, EVENT = 48, 49, 50, 51, 52
STDIN, STDIN_CLOSE, STDIN_QUERY, STDIN_ACK = 64, 65, 66, 67
E_STARTED, E_STDOUT, E_STDERR, E_DROPPED, E_EXITED, E_ERROR = 1, 2, 3, 4, 5, 6


def text(s):
    s = s.encode() if isinstance(s, str) else s
    return struct.pack("<I", len(s)) + s


def strings(items):
    return struct.pack("<I", len(items)) + b"".join(text(i) for i in items)


def frame(kind, tag=0, payload=b""):
    return b"SPA1" + struct.pack("<B3xII", kind, len(payload), tag) + payload


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, fmt):
        values = struct.unpack_from("<" + fmt, self.data, self.at)
        self.at += struct.calcsize("<" + fmt)
        return values[0] if len(values) == 1 else values

    def str(self):
        n = self.take("I")
        s = self.data[self.at:self.at + n]
        assert len(s) == n
        self.at += n
        return s.decode()

    def rest(self):
        s = self.data[self.at:]
        self.at = len(self.data)
        return s


class AgentError(Exception):
    def __init__(self, code, message):
        super().__init__(f"{code}: {message}")
        self.code = code


class Cut(Exception):
    """The connection is gone."""


class Exit(dict):
    __getattr__ = dict.__getitem__


def read_exit(r):
    names = ("exit_code", "signal", "flags", "duration_us", "cpu_us", "peak_memory_bytes")
    e = Exit(zip(names, r.take("iiBQQQ")))
    for bit, name in ((1, "core_dumped"), (2, "oom"), (4, "timed_out"), (8, "pipe_held_open")):
        e[name] = bool(e["flags"] & bit)
    return e


class Link:
    """One connection. Frames that are not the awaited answer are kept in `events` and `acks`."""

    def __init__(self, path, max_event_data=16384, hello=True, timeout=10):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(path)
        self.sock.settimeout(timeout)
        self.timeout = timeout
        self.buffer = b""
        self.events, self.acks = [], []
        self.next_tag = 1
        if hello:
            self.hello(max_event_data)

    def close(self):
        self.sock.close()

    def send(self, data):
        try:
            self.sock.sendall(data)
        except OSError as e:
            raise Cut from e

    def receive(self, deadline=None):
        """The next frame: (type, tag, payload)."""
        deadline = deadline or time.monotonic() + self.timeout
        while True:
            if len(self.buffer) >= 16:
                magic, kind, length, tag = struct.unpack_from("<4sB3xII", self.buffer)
                assert magic == b"SPA1", self.buffer[:16]
                assert length <= 65536
                if len(self.buffer) >= 16 + length:
                    payload = self.buffer[16:16 + length]
                    self.buffer = self.buffer[16 + length:]
                    return kind, tag, payload
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("no frame from the agent")
            self.sock.settimeout(left)
            try:
                data = self.sock.recv(262144)
            except (socket.timeout, TimeoutError):
                raise TimeoutError("no frame from the agent") from None
            except OSError as e:
                raise Cut from e
            if not data:
                raise Cut
            self.buffer += data

    def keep(self, kind, tag, payload):
        if kind == EVENT:
            r = Reader(payload)
            number, what = r.take("QB")
            self.events.append((tag, number, what, r.rest(), len(payload)))
        elif kind == STDIN_ACK:
            self.acks.append(self.parse_ack(payload))
        else:
            raise AssertionError(f"frame {kind} for tag {tag} was not expected")

    def request(self, kind, payload=b"", tag=None):
        if tag is None:
            tag = self.next_tag
            self.next_tag += 1
        self.send(frame(kind, tag, payload))
        while True:
            got, got_tag, answer = self.receive()
            if got_tag == tag and got not in (EVENT,):
                if got == ERROR:
                    r = Reader(answer)
                    raise AgentError(r.str(), r.str())
                return got, answer
            self.keep(got, got_tag, answer)

    def hello(self, max_event_data=16384, versions=(1, 1), resync=False):
        nonce = os.urandom(16)
        self.send(frame(HELLO, 0, struct.pack("<II16sI", *versions, nonce, max_event_data) + text("sbx_test")))
        if resync:  # left-overs of before: look for the answer with our nonce
            deadline = time.monotonic() + self.timeout
            while nonce not in self.buffer:
                self.sock.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    data = self.sock.recv(262144)
                except (socket.timeout, TimeoutError):
                    raise TimeoutError("no HELLO_OK") from None
                if not data:
                    raise Cut
                self.buffer += data
            self.buffer = self.buffer[self.buffer.index(nonce) - 4 - 16:]
        kind, _, payload = self.receive()
        assert kind == HELLO_OK
        r = Reader(payload)
        self.version = r.take("I")
        assert r.take("16s") == nonce
        self.instance = r.take("16s")
        self.identified, self.features = r.take("BI")
        self.build = r.str()

    def identity(self, env=("LANG=C.UTF-8",), hostname="", machine_id="", realtime_ns=0, entropy=b""):
        payload = (struct.pack("<Q", realtime_ns) + text(entropy) + text(hostname) + text(machine_id)
                   + strings(env) + struct.pack("<IQ", 0, 0))
        assert self.request(IDENTITY, payload)[0] == OK

    def hold(self, sync=False, timeout_ms=0):
        assert self.request(HOLD, struct.pack("<II", int(sync), timeout_ms)) == (OK, b"")

    def release(self, realtime_ns=0):
        assert self.request(RELEASE, struct.pack("<Q", realtime_ns)) == (OK, b"")

    def start(self, sid, argv, env=(), cwd="", user="root", stdin=0, timeout_ms=0, grace_ms=0, drop=0,
              ring=0, rows=0, cols=0):
        payload = (text(sid) + strings(argv) + strings(env) + text(cwd) + text(user)
                   + struct.pack("<BQQBIHH", stdin, timeout_ms, grace_ms, drop, ring, rows, cols))
        kind, answer = self.request(START, payload)
        assert kind == STARTED
        return self.parse_started(answer)

    @staticmethod
    def parse_started(answer):
        r = Reader(answer)
        state, pid, oldest, following = r.take("BiQQ")
        ended = read_exit(r)
        failed = r.take("B")
        assert r.at == len(answer)
        return Exit(state=state, pid=pid, oldest=oldest, next=following, exit=ended, failed=failed)

    def stat(self, sid):
        return self.parse_started(self.request(SESSION_STAT, text(sid))[1])

    def signal(self, sid, number, scope=0):
        self.request(SIGNAL, text(sid) + struct.pack("<iB", number, scope))

    def forget(self, sid):
        self.request(FORGET, text(sid))

    def processes(self):
        r = Reader(self.request(PROCESSES)[1])
        truncated, count = r.take("BI")
        out = []
        for _ in range(count):
            p = Exit(session=r.str(), pid=r.take("i"), user=r.str())
            p["argv"] = [r.str() for _ in range(r.take("I"))]
            p["started_ms"], p["cpu_ms"], p["rss"] = r.take("QQQ")
            out.append(p)
        assert r.at == len(r.data)
        return truncated, out

    def subscribe(self, sid, tag, after=0, credit=1 << 40):
        kind, answer = self.request(SUBSCRIBE, text(sid) + struct.pack("<QQ", after, credit), tag)
        assert kind == SUBSCRIBED
        names = ("oldest", "next", "first", "gap")
        return Exit(zip(names, struct.unpack("<QQQB", answer)))

    def credit(self, tag, total, acked):
        self.send(frame(CREDIT, tag, struct.pack("<QQ", total, acked)))

    @staticmethod
    def parse_ack(payload):
        r = Reader(payload)
        r.str()
        return Exit(zip(("accepted", "window_end", "closed"), r.take("QQB")))

    def stdin(self, sid, offset, data):
        return self.parse_ack(self.request(STDIN, text(sid) + struct.pack("<Q", offset) + data)[1])

    def stdin_close(self, sid, offset):
        return self.parse_ack(self.request(STDIN_CLOSE, text(sid) + struct.pack("<Q", offset))[1])

    def stdin_query(self, sid):
        return self.parse_ack(self.request(STDIN_QUERY, text(sid))[1])

    def next_event(self, deadline=None):
        while not self.events:
            self.keep(*self.receive(deadline))
        return self.events.pop(0)

    def collect(self, sid, after=0, tag=1000, ack=True, timeout=10):
        """All events of a session up to its end: (stdout, stderr, last event, all events)."""
        self.subscribe(sid, tag, after)
        out, err, seen = [], [], []
        expected = after + 1
        deadline = time.monotonic() + timeout
        while True:
            got_tag, number, kind, rest, _ = self.next_event(deadline)
            if got_tag != tag:
                continue
            assert number == expected, (number, expected)
            expected += 1
            seen.append((number, kind, rest))
            if kind == E_STDOUT:
                out.append(rest)
            elif kind == E_STDERR:
                err.append(rest)
            if ack:
                self.credit(tag, 1 << 40, number)
            if kind in (E_EXITED, E_ERROR):
                self.send(frame(UNSUBSCRIBE, tag))
                end = read_exit(Reader(rest)) if kind == E_EXITED else None
                return b"".join(out), b"".join(err), end, seen

    def run(self, sid, argv, **options):
        self.start(sid, argv, **options)
        return self.collect(sid)
