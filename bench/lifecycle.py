"""The rows of the lifecycle for bench.py: pause, suspend, wake, fork, memory of an idle sandbox; and where the time goes, by the steps of the
operation records."""

import pathlib
import re
import time

# 50 MiB that were written to, as in the targets of the design; bytes that cannot be left out.
TOUCH = "import time; keep = [bytes([i + 1]) * (1 << 20) for i in range(50)]; print('ready', flush=True); time.sleep(3600)"
SHAPE = {"memory_mb": 256}
IDLE = 10


def timed(fn):
    t = time.perf_counter()
    result = fn()
    return (time.perf_counter() - t) * 1000, result


def note(steps, name, operation):
    for step in operation.get("steps", []):
        steps.setdefault(name, {}).setdefault(step["name"], []).append(step["duration_ms"])


def machine(http_, api, tier, touched):
    """A sandbox of 256 MiB, with a process that has written to 50 MiB."""
    box = http_.call("POST", "/v1/sandboxes", {"isolation": tier, "resources": SHAPE}, wait=300)["sandbox"]["id"]
    if touched:
        stream = iter(api.attach(api.session(box, "python3", "-c", TOUCH)["attach"]))
        while next(stream)[1]["type"] != "stdout":
            pass
        time.sleep(0.5)
    return box


def change(http_, box, verb, body=None):
    answer = http_.call("POST", f"/v1/sandboxes/{box}/{verb}", body or {}, wait=120)
    return answer


def bench_pause(row, http_, api, tiers, n):
    pause, resume = row("pause, API with wait"), row("wake from paused, API with wait")
    steps = {}
    for tier in tiers:
        box = machine(http_, api, tier, False)
        for i in range(n + 2):
            for verb, r in (("pause", pause), ("wake", resume)):
                ms, answer = timed(lambda: change(http_, box, verb))
                if i >= 2:
                    r.add(f"space {tier}", ms)
                    note(steps, f"{verb}{' from paused' if verb == 'wake' else ''}, {tier}", answer["operation"])
        http_.call("DELETE", f"/v1/sandboxes/{box}", wait=120)
    return [pause, resume], steps


def bench_suspend(row, http_, api, tiers, n):
    """With memory in the microVM tier; of the container tier the disk only."""
    suspend, wake = row("suspend (256 MiB, 50 touched; durable), API with wait"), row("wake from disk, API with wait")
    steps = {}
    for tier in tiers:
        memory = tier == "microvm"
        label = f"space {tier}" + ("" if memory else ", disk only")
        box = machine(http_, api, tier, memory)
        for i in range(n + 2):
            for verb, r in (("suspend", suspend), ("wake", wake)):
                ms, answer = timed(lambda: change(http_, box, verb, {"memory": memory} if verb == "suspend" else None))
                if i >= 2:
                    r.add(label, ms)
                    note(steps, f"{verb}{' from disk' if verb == 'wake' else ''}, {tier}", answer["operation"])
        http_.call("DELETE", f"/v1/sandboxes/{box}", wait=120)
    return [suspend, wake], steps


def bench_fork(row, http_, api, tiers, n):
    """Children one by one and eight at once; how long a live sandbox stands still is a step of the snapshot's operation."""
    one, eight = row("fork of a live sandbox, one child, API with wait"), row("fork of eight children, whole time ÷ 8")
    still = row("source pause of a snapshot, as the worker measures it")
    steps = {}
    for tier in tiers:
        memory = {"memory": tier == "microvm"}
        label = f"space {tier}" + ("" if memory["memory"] else ", disk only")
        box = machine(http_, api, tier, memory["memory"])
        for i in range(n + 1):
            ms, answer = timed(lambda: http_.call("POST", f"/v1/sandboxes/{box}/fork", {"count": 1, **memory}, wait=300))
            result = answer["results"][0]
            if i >= 1:
                one.add(label, ms)
                note(steps, f"fork, a child, {tier}", result["operation"])
            http_.call("DELETE", f"/v1/sandboxes/{result['sandbox']['id']}", wait=120)
            answer = http_.call("POST", f"/v1/sandboxes/{box}/snapshots", memory, wait=300)
            if i >= 1:
                note(steps, f"snapshot, {tier}", answer["operation"])
                for step in answer["operation"]["steps"]:
                    if step["name"] == "pause":
                        still.add(label, step["duration_ms"])
            http_.call("DELETE", f"/v1/snapshots/{answer['snapshot']['id']}", wait=120)
        for _ in range(max(1, n // 10)):
            ms, answer = timed(lambda: http_.call("POST", f"/v1/sandboxes/{box}/fork", {"count": 8, **memory}, wait=300))
            eight.add(label, ms / 8)
            for result in answer["results"]:
                http_.call("DELETE", f"/v1/sandboxes/{result['sandbox']['id']}", wait=120)
        http_.call("DELETE", f"/v1/sandboxes/{box}", wait=120)
    return [one, eight, still], steps


def pss_mb(box):
    """PSS of all processes in the control group that has the sandbox's name (proc_pid_smaps(5))."""
    total = 0
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if box not in (path / "cgroup").read_text():
                continue
            match = re.search(r"^Pss:\s+(\d+) kB", (path / "smaps_rollup").read_text(), re.M)
        except OSError:
            continue
        total += int(match.group(1)) if match else 0
    return total / 1024


def available_mb():
    return int(re.search(r"MemAvailable:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text()).group(1)) / 1024


def settled_available_mb(samples=8):
    values = []
    for _ in range(samples):
        values.append(available_mb())
        time.sleep(0.25)
    return sorted(values)[len(values) // 2]


def bench_memory(row, http_, api, tiers):
    """Ten idle sandboxes; and ten children of one live sandbox."""
    pss, host = row("memory of an idle sandbox: PSS", "MiB"), row(f"memory of an idle sandbox: MemAvailable ÷ {IDLE}", "MiB")
    for tier in tiers:
        kinds = [("", None)] + ([(", child of a fork", machine(http_, api, tier, False))] if tier == "microvm" else [])
        for label, origin in kinds:
            before = settled_available_mb()
            if origin:
                answer = http_.call("POST", f"/v1/sandboxes/{origin}/fork", {"count": IDLE}, wait=300)
                boxes = [result["sandbox"]["id"] for result in answer["results"]]
            else:
                boxes = [machine(http_, api, tier, False) for _ in range(IDLE)]
            time.sleep(2)
            host.add(f"space {tier}{label}", (before - settled_available_mb()) / IDLE)
            for box in boxes:
                value = pss_mb(box)
                if value:  # a member of a pool keeps the group's name that it was made with
                    pss.add(f"space {tier}{label}", value)
            for box in boxes + ([origin] if origin else []):
                http_.call("DELETE", f"/v1/sandboxes/{box}", wait=120)
    return [pss, host]


def bench_lifecycle(row, http_, api, tiers, n):
    """All rows, and {title: {step: [ms]}}."""
    rows, steps = [], {}
    for part in (bench_pause, bench_suspend, bench_fork):
        more, where = part(row, http_, api, tiers, n)
        rows += more
        steps.update(where)
    return rows + bench_memory(row, http_, api, tiers), steps
