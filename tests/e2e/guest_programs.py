"""Programs that the lifecycle tests run inside sandboxes, and readers of what they say."""

import http.client
import threading
import time

from installation import output_of

# Counts for ever: a line "n wall" on stdout and in a file each tick. Whoever reads the lines can tell whether one is missing, came twice, or
# was made while the sandbox stood still.
COUNTER = r"""
import os, sys, time
out = open("/workspace/counter", "a", buffering=1)
n = 0
while True:
    n += 1
    line = f"{n} {time.time():.3f}\n"
    out.write(line)
    sys.stdout.write(line)
    sys.stdout.flush()
    time.sleep(0.02)
"""

# argv: seed. Prints the hash of the tree as it finds it, makes files of many sizes in it without any sync, and prints its hash then.
TREE_HASH = r"""
import hashlib, os
def tree_hash(top):
    h = hashlib.sha256()
    for at, dirs, files in os.walk(top):
        dirs.sort()
        for name in sorted(files):
            path = os.path.join(at, name)
            h.update(path.encode() + b"\0" + str(os.stat(path).st_mode).encode() + b"\0")
            h.update(open(path, "rb").read())
    return h.hexdigest()
"""
WRITE_TREE = TREE_HASH + r"""
import random, shutil, sys
print(tree_hash("/workspace/tree"))
r = random.Random(int(sys.argv[1]))
top = f"/workspace/tree/{sys.argv[1]}"
for i in range(r.randrange(4, 16)):
    at = os.path.join(top, *(str(r.randrange(4)) for _ in range(r.randrange(3))))
    os.makedirs(at, exist_ok=True)
    with open(os.path.join(at, f"f{i}"), "wb") as f:
        f.write(r.randbytes(r.choice([0, 1, 511, 4095, 4096, 4097, 70000])))
        if r.random() < 0.1:
            f.truncate(r.randrange(200000))
old = f"/workspace/tree/{int(sys.argv[1]) - 3}"
shutil.rmtree(old, ignore_errors=True)
print(tree_hash("/workspace/tree"))
"""
READ_TREE = TREE_HASH + r"""
print(tree_hash("/workspace/tree"))
"""


def python(api, box, program, *args, timeout="60s"):
    """Runs a program in the sandbox's Python; its output as text."""
    done = api.exec(box, "python3", "-c", program, *args, timeout=timeout)
    assert done["exit_code"] == 0, done
    return done["stdout"]


class Follower(threading.Thread):
    """Reads a session's events over any number of cuts, restarts and suspends, as a patient client does."""

    def __init__(self, api, session):
        super().__init__(daemon=True)
        self.api, self.attach = api, session["attach"]
        self.session_id = session["session"]["id"]
        self.events, self.last_id = [], None
        self.suspended = 0  # streams that ended with the event `suspended`
        self.error = None
        self.stopping = False
        self.stream = None
        self.start()

    def run(self):
        while not self.stopping and not self.over():
            try:
                self.stream = self.api.attach(self.attach, last_event_id=self.last_id)
                for event_id, event in self.stream:
                    self.take(event_id, event)
            except (OSError, http.client.HTTPException, ValueError, AttributeError) as cut:
                self.error = cut
            except Exception as refused:  # ApiError: the sandbox is suspended, or the token is old
                self.error = refused
                if getattr(refused, "status", 0) == 401:
                    self.renew()
            time.sleep(0.02)

    def renew(self):
        try:
            self.attach = self.api.call("POST", f"/v1/sessions/{self.session_id}/attachments")["attach"]
        except Exception as refused:
            self.error = refused

    def take(self, event_id, event):
        if event["type"] == "suspended":
            self.suspended += 1
            return
        assert event["type"] != "resync_required", "events are gone from the ring"
        if event_id is not None:
            if self.last_id is not None and event_id != self.last_id + 1:
                self.events.append({"type": "GAP", "after": self.last_id, "id": event_id})
            self.last_id = event_id
        self.events.append(event)

    def over(self):
        return bool(self.events) and self.events[-1]["type"] in ("process_exited", "error")

    def lines(self):
        """[(n, wall)] of a COUNTER, whole lines only."""
        text = output_of(list(self.events), "stdout").decode()
        return [(int(n), float(wall)) for n, wall in (line.split() for line in text.split("\n")[:-1])]

    def count(self):
        lines = self.lines()
        return lines[-1][0] if lines else 0

    def wait_count(self, at_least, seconds=30):
        deadline = time.monotonic() + seconds
        while self.count() < at_least:
            assert time.monotonic() < deadline, (self.count(), at_least, self.error, self.events[-3:])
            time.sleep(0.02)

    def check(self):
        """Every number once and in order, and no event was lost."""
        assert not [e for e in self.events if e["type"] == "GAP"], self.events
        numbers = [n for n, _ in self.lines()]
        assert numbers == list(range(1, len(numbers) + 1))

    def close(self):
        self.stopping = True
        if self.stream:
            self.stream.close()
        self.join(20)


def start_counter(api, box):
    """A COUNTER that runs, and its follower."""
    follower = Follower(api, api.session(box, "python3", "-c", COUNTER))
    follower.wait_count(3)
    return follower


def counter_file(api, box):
    """The numbers in the counter's file; they must be 1, 2, 3, …"""
    numbers = [int(line.split()[0]) for line in api.exec(box, "cat", "/workspace/counter")["stdout"].splitlines() if " " in line]
    return numbers
