#!/usr/bin/env python3
"""`make bench`: SPACE beside crun and bubblewrap, doing the same work in the same run.

Contenders of a row take turns (one call each, round after round), so that whatever else the machine does hits all alike.
Prints a table and writes bench/results/<time>.json. Nothing is asserted: speed is shown here and never tested.
"""

import argparse
import base64
import concurrent.futures
import http.client
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from installation import Installation  # noqa: E402
from lifecycle import bench_lifecycle  # noqa: E402

POOL, BURST = 10, 100
STATIC_C = "int main(void) { return 0; }\n"


class KeepAlive:
    """One kept connection to the API, as an SDK would hold it."""

    def __init__(self, api):
        self.api = api
        self.conn = http.client.HTTPConnection(api.host, api.port, timeout=120)

    def call(self, method, path, body=None, wait=None):
        headers = {"Authorization": f"Bearer {self.api.key}", "Content-Type": "application/json"}
        if wait:
            headers["Prefer"] = f"wait={wait}"
        self.conn.request(method, path, body=json.dumps(body) if body is not None else None, headers=headers)
        answer = self.conn.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:500]!r}")
        return json.loads(content or b"{}")


def timed(fn):
    t = time.perf_counter()
    result = fn()
    return (time.perf_counter() - t) * 1000, result


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))]


class Row:
    def __init__(self, name, unit="ms"):
        self.name, self.unit, self.values = name, unit, {}

    def add(self, contender, value):
        self.values.setdefault(contender, []).append(value)

    def summary(self):
        return {c: {"n": len(v), "min": min(v), "median": statistics.median(v), "p90": quantile(v, .9),
                    "p99": quantile(v, .99)} for c, v in self.values.items()}

    def print(self):
        print(f"\n{self.name} [{self.unit}]")
        print(f"  {'':28}{'n':>5}{'min':>9}{'median':>9}{'p90':>9}{'p99':>9}{'ratio':>8}")
        first = None
        for contender, s in self.summary().items():
            first = first or s["median"]
            print(f"  {contender:28}{s['n']:5}{s['min']:9.2f}{s['median']:9.2f}{s['p90']:9.2f}{s['p99']:9.2f}"
                  f"{s['median'] / first:8.2f}")


class Peers:
    """crun and bwrap on the same image, without a daemon: each call is one whole run of /bin/true."""

    def __init__(self, image_dir):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="space-bench-"))
        self.root = self.dir / "rootfs"
        self.root.mkdir()
        subprocess.run(["mount", "-t", "erofs", "-o", "ro,loop", str(image_dir / "image.erofs"), str(self.root)],
                       check=True)
        self.contenders = {}
        if shutil.which("bwrap"):
            self.contenders["bwrap"] = ["bwrap", "--ro-bind", str(self.root), "/", "--proc", "/proc", "--dev", "/dev",
                                        "--tmpfs", "/tmp", "--unshare-all", "--die-with-parent"]
        if shutil.which("crun"):
            self._bundle()
        for missing in {"bwrap", "crun"} - set(self.contenders):
            print(f"NOT MEASURED: {missing} is not installed", file=sys.stderr)

    def _bundle(self):
        subprocess.run(["crun", "spec"], cwd=self.dir, check=True)  # writes config.json
        spec = json.loads((self.dir / "config.json").read_text())
        spec["root"] = {"path": "rootfs", "readonly": True}
        spec["process"]["terminal"] = False
        self.spec = spec
        self.contenders["crun"] = None

    def command(self, name, argv):
        if name == "bwrap":
            return self.contenders["bwrap"] + list(argv)
        spec = dict(self.spec)
        spec["process"] = dict(spec["process"], args=list(argv))
        (self.dir / "config.json").write_text(json.dumps(spec))
        run = f"exec crun run --bundle {self.dir} bench-{os.getpid()}"
        if os.path.ismount("/sys/fs/cgroup/unified"):
            # crun refuses the hybrid layout; hiding the unified mount is the known way round
            return ["unshare", "-m", "--propagation", "private", "sh", "-c", f"umount /sys/fs/cgroup/unified; {run}"]
        return ["sh", "-c", run]

    def run(self, name, argv):
        subprocess.run(self.command(name, argv), check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def close(self):
        subprocess.run(["umount", str(self.root)], check=False)
        shutil.rmtree(self.dir, ignore_errors=True)


def static_binary():
    """A program of nothing but an exit, statically linked, as base64."""
    with tempfile.TemporaryDirectory() as d:
        src, out = pathlib.Path(d, "t.c"), pathlib.Path(d, "t")
        src.write_text(STATIC_C)
        subprocess.run(["musl-gcc", "-static", "-Os", "-s", "-o", str(out), str(src)], check=True)
        return base64.b64encode(out.read_bytes()).decode()


def bench_create(http_, peers, tiers, n):
    whole = Row("create → run /bin/true → delete, whole")
    ready = Row("create → running without a pool, API with wait")
    delete = Row("delete, API with wait")
    steps = {}
    for i in range(n + 2):
        for tier in tiers:
            t0 = time.perf_counter()
            ms, answer = timed(lambda: http_.call("POST", "/v1/sandboxes", {"isolation": tier}, wait=120))
            box = answer["sandbox"]["id"]
            http_.call("POST", f"/v1/sandboxes/{box}/exec", {"command": ["/bin/true"]})
            delete_ms, _ = timed(lambda: http_.call("DELETE", f"/v1/sandboxes/{box}", wait=120))
            if i >= 2:  # two rounds to warm up
                ready.add(f"space {tier}", ms)
                delete.add(f"space {tier}", delete_ms)
                whole.add(f"space {tier}", (time.perf_counter() - t0) * 1000)
                for step in answer["operation"].get("steps", []):
                    steps.setdefault(tier, {}).setdefault(step["name"], []).append(step["duration_ms"])
        for name in peers.contenders:
            ms, _ = timed(lambda: peers.run(name, ["/bin/true"]))
            if i >= 2:
                whole.add(name + " run", ms)
    return [whole, ready, delete], steps


def ready_members(api, tier):
    """Of the pool that has most, as /metrics says (a heartbeat late)."""
    _, text, _ = api.request("GET", "/metrics")
    return max([float(line.rsplit(" ", 1)[1]) for line in text.decode().splitlines()
                if line.startswith("space_pool_ready{") and f'"{tier}"' in line], default=0)


def fill_pool(http_, tier, n):
    """A first create, so that there is a pool; then waits for it."""
    box = http_.call("POST", "/v1/sandboxes", {"isolation": tier}, wait=300)["sandbox"]["id"]
    http_.call("DELETE", f"/v1/sandboxes/{box}", wait=120)
    deadline = time.monotonic() + 300
    while ready_members(http_.api, tier) < n:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the pool of {tier} did not fill")
        time.sleep(0.5)


def is_claim(answer):
    return any(step["name"] == "claim" for step in answer["operation"].get("steps", []))


def bench_claim(http_, tiers, n):
    """Creates that find a member. The pause between them is for the refill; a create that found none is not of this row."""
    row = Row("create → running from the pool, API with wait")
    steps, misses = {}, 0
    for tier in tiers:
        fill_pool(http_, tier, POOL)
        for _ in range(4 * n):
            ms, answer = timed(lambda: http_.call("POST", "/v1/sandboxes", {"isolation": tier}, wait=120))
            http_.call("DELETE", f"/v1/sandboxes/{answer['sandbox']['id']}", wait=120)
            time.sleep(0.2)
            if not is_claim(answer):
                misses += 1
                continue
            row.add(f"space {tier}", ms)
            for step in answer["operation"]["steps"]:
                steps.setdefault(tier + ", from the pool", {}).setdefault(step["name"], []).append(step["duration_ms"])
            if len(row.values[f"space {tier}"]) >= n:
                break
    if misses:
        print(f"creates of the claim row that found no member: {misses}")
    return [row], steps


def bench_burst(inst, http_, tiers):
    """A hundred creates at once, ten of which find a member."""
    each, whole = Row(f"burst of {BURST} creates at once, each"), Row(f"burst of {BURST} creates, whole time ÷ {BURST}")
    for tier in tiers:
        fill_pool(http_, tier, POOL)

        def create(_):
            try:
                return timed(lambda: KeepAlive(inst.api()).call("POST", "/v1/sandboxes", {"isolation": tier}, wait=300))
            except RuntimeError as e:
                print(f"a create of the burst failed: {e}")
                return None

        with concurrent.futures.ThreadPoolExecutor(BURST) as threads:
            ms, all_answers = timed(lambda: list(threads.map(create, range(BURST))))
        answers = [a for a in all_answers if a]
        whole.add(f"space {tier}", ms / BURST)
        running = sum(answer["sandbox"]["state"] == "running" for _, answer in answers)
        claims = sum(is_claim(answer) for _, answer in answers)
        print(f"burst of {BURST}, {tier}: {running} run, {claims} from the pool, {ms:.0f} ms in all")
        for one, answer in answers:
            each.add(f"space {tier}, " + ("from the pool" if is_claim(answer) else "made"), one)
        with concurrent.futures.ThreadPoolExecutor(10) as threads:
            list(threads.map(lambda a: KeepAlive(inst.api()).call("DELETE", f"/v1/sandboxes/{a[1]['sandbox']['id']}", wait=300),
                             answers))
    return [each, whole]


def bench_exec(http_, peers, tiers, n):
    program = static_binary()
    boxes = {t: http_.call("POST", "/v1/sandboxes", {"isolation": t}, wait=120)["sandbox"]["id"] for t in tiers}
    put = ("import base64,os; open('/tmp/static','wb').write(base64.b64decode(%r)); os.chmod('/tmp/static',0o755)"
           % program)
    cases = {"static binary": ["/tmp/static"], "/bin/true": ["/bin/true"], "python3 -c pass": ["/usr/bin/python3", "-c", "pass"]}
    rows = [Row(f"exec of {name}, whole API call") for name in cases]
    try:
        for box in boxes.values():
            http_.call("POST", f"/v1/sandboxes/{box}/exec", {"command": ["python3", "-c", put]})
        for i in range(n + 2):
            for row, argv in zip(rows, cases.values()):
                for tier, box in boxes.items():
                    ms, answer = timed(lambda: http_.call("POST", f"/v1/sandboxes/{box}/exec", {"command": argv}))
                    if answer["exit_code"] != 0:
                        raise RuntimeError(answer)
                    if i >= 2:
                        row.add(f"space {tier}", ms)
                if row is rows[0]:
                    continue  # the peers' image has no such file
                for name in peers.contenders:
                    ms, _ = timed(lambda: peers.run(name, argv))
                    if i >= 2:
                        row.add(name + " run", ms)
                ms, _ = timed(lambda: subprocess.run(argv, check=True))
                if i >= 2:
                    row.add("on the host, no sandbox", ms)
    finally:
        for box in boxes.values():
            http_.call("DELETE", f"/v1/sandboxes/{box}", wait=120)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=50, help="rounds (at least 50 for a result worth quoting)")
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument("--state", default=None)
    args = parser.parse_args()

    state = args.state or os.path.join(args.build, "e2e-state")
    inst = Installation(args.build, state)
    inst.up()
    try:
        inst.ensure_template("seed", ROOT / "templates" / "seed")
        tiers = []
        for tier in ("container", "microvm"):
            status = inst.tier_status(tier)
            print(f"tier {tier}: {'works' if status['available'] else 'NOT MEASURED'} ({status.get('detail')})")
            if status["available"]:
                tiers.append(tier)
        digest = inst.api().get("/v1/templates/seed:latest")["digest"].removeprefix("sha256:")
        peers = Peers(pathlib.Path(state) / "data" / "templates" / digest)
        try:
            http_ = KeepAlive(inst.api())
            rows, steps = bench_create(http_, peers, tiers, args.n)
            rows += bench_exec(http_, peers, tiers, args.n)
            lifecycle_rows, lifecycle_steps = bench_lifecycle(Row, http_, inst.api(), tiers, args.n)
            rows += lifecycle_rows
        finally:
            peers.close()
        inst.stop()
        inst.more = ["--pool-min", str(POOL), "--pool-max", str(2 * POOL)]
        inst.up()
        for tier in tiers:
            while not inst.tier_status(tier)["available"]:
                time.sleep(0.2)
        http_ = KeepAlive(inst.api())
        claim_rows, claim_steps = bench_claim(http_, tiers, args.n)
        rows += claim_rows + bench_burst(inst, http_, tiers)
        steps.update(claim_steps)
    finally:
        inst.stop()
        inst.down()

    print(f"\nload {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, kernel {platform.release()}, n = {args.n}; "
          "ratio = median / first line's median")
    for row in rows:
        row.print()
    titles = {**{f"create, {tier}": names for tier, names in steps.items()}, **lifecycle_steps}
    for title, names in titles.items():
        print(f"\nwhere the time goes: {title} [ms, median]")
        for name, values in names.items():
            print(f"  {name:28}{statistics.median(values):9.2f}")

    results = ROOT / "bench" / "results"
    results.mkdir(exist_ok=True)
    out = results / time.strftime("%Y%m%dT%H%M%SZ.json", time.gmtime())
    out.write_text(json.dumps({"n": args.n, "kernel": platform.release(), "cpus": os.cpu_count(),
                               "rows": [{"name": r.name, "unit": r.unit, "contenders": r.summary()} for r in rows],
                               "create_steps_ms": {t: {k: statistics.median(v) for k, v in s.items()}
                                                   for t, s in steps.items()},
                               "lifecycle_steps_ms": {t: {k: statistics.median(v) for k, v in s.items()}
                                                      for t, s in lifecycle_steps.items()}}, indent=1) + "\n")
    print(f"\nwritten to {out.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
