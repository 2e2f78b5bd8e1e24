"""Desired state done right: whatever happens at once, fails, or is killed, server, worker and host agree afterwards and a delete wins (L1, L2, L5).

The many combinations run with the fake driver, which does the whole way from the API to the worker in milliseconds; a sample runs in
the real tiers. What fails where is said by the failpoints of docs/failpoints.md, every one of which is used."""

import concurrent.futures
import http.client
import itertools
import os
import pathlib
import random
import re
import signal
import threading
import time

import pytest

from conftest import BUILD, ROOT
from consistency import check, clean, settle
from installation import ApiError
from tiny import tiny_installation

SEED = int(os.environ.get("SPACE_TEST_SEED", "7"))
TRIPLES = int(os.environ.get("SPACE_TEST_TRIPLES", "60"))


@pytest.fixture(scope="module")
def one_tiny():
    inst = tiny_installation(BUILD, failpoints=True)
    clean(inst)
    yield inst
    inst.failpoint()
    clean(inst)
    inst.stop()
    inst.down()


@pytest.fixture
def tiny(one_tiny):
    """Empty, whatever the test before has left."""
    one_tiny.failpoint()
    one_tiny.api().wait_ready()
    remove(one_tiny)
    return one_tiny


# --- what can happen to a sandbox: each takes (inst, box, snapshot) and may be refused
def post(api, path, body=None):
    return api.call("POST", path, body or {})


OPERATIONS = {
    "pause": lambda api, box, snp: post(api, f"/v1/sandboxes/{box}/pause"),
    "suspend": lambda api, box, snp: post(api, f"/v1/sandboxes/{box}/suspend"),
    "suspend-disk": lambda api, box, snp: post(api, f"/v1/sandboxes/{box}/suspend", {"memory": False}),
    "wake": lambda api, box, snp: post(api, f"/v1/sandboxes/{box}/wake"),
    "snapshot": lambda api, box, snp: post(api, f"/v1/sandboxes/{box}/snapshots"),
    "fork": lambda api, box, snp: post(api, f"/v1/sandboxes/{box}/fork", {"count": 2}),
    "rollback": lambda api, box, snp: post(api, f"/v1/sandboxes/{box}/rollback", {"snapshot_id": snp}),
    "delete": lambda api, box, snp: api.call("DELETE", f"/v1/sandboxes/{box}"),
    "delete-snapshot": lambda api, box, snp: api.call("DELETE", f"/v1/snapshots/{snp}"),
    "create-from": lambda api, box, snp: post(api, "/v1/sandboxes", {"snapshot_id": snp}),
    "exec": lambda api, box, snp: api.exec(box, "sleep", "0.05"),
}
REFUSALS = ("conflict", "failed_precondition", "not_found", "unavailable", "unsupported", "invalid_request")


def attempt(inst, name, box, snapshot, outcome):
    """Does it; notes whether it was accepted. A refusal is a typed one; a broken connection is one when a daemon was killed."""
    try:
        OPERATIONS[name](inst.api(), box, snapshot)
        outcome.append((name, "accepted"))
    except ApiError as e:
        assert e.error.get("code") in REFUSALS, (name, e)
        outcome.append((name, e.error["code"]))
    except (OSError, http.client.HTTPException) as e:
        outcome.append((name, repr(e)))


def together(inst, names, box, snapshot, gaps=()):
    """All at once, or each so many seconds after the one before."""
    outcome = []
    threads = [threading.Thread(target=attempt, args=(inst, name, box, snapshot, outcome), daemon=True) for name in names]
    for thread, gap in itertools.zip_longest(threads, gaps, fillvalue=0):
        thread.start()
        time.sleep(gap)
    for name, thread in zip(names, threads):
        thread.join(1 if name == "exec" else 60)  # one that was paused in the middle goes on when it is woken, later
        assert name == "exec" or not thread.is_alive(), (name, outcome)
    return outcome


def gone(api, box):
    with pytest.raises(ApiError) as e:
        api.get(f"/v1/sandboxes/{box}")
    return e.value.status == 404


def proof(inst, box, outcome):
    """After it: all agree, an accepted delete has won, and what is there can be used."""
    check(inst)
    api = inst.api()
    live = api.live()
    if ("delete", "accepted") in outcome:
        assert box not in live and gone(api, box), outcome
    for other in live.values():
        if other["state"] == "failed":
            assert other["state_reason"], other
            continue
        if other["state"] != "running":
            api.change(other["id"], "wake")
        assert api.exec(other["id"], "echo", other["id"])["stdout"] == other["id"] + "\n"


def fresh(inst):
    """A running sandbox with a snapshot."""
    api = inst.api()
    box = api.create()["id"]
    return box, api.snapshot(box)["id"]


def remove(inst):
    api = inst.api()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(api.delete, api.live()))
        list(pool.map(lambda s: api.delete_snapshot(s["id"]), api.get("/v1/snapshots?limit=1000")["items"]))



@pytest.mark.slow
@pytest.mark.parametrize("first", OPERATIONS)
def test_all_pairs(tiny, first):
    """L1: every pair at once and one shortly after the other."""
    r = random.Random(f"{SEED} {first}")
    for second in OPERATIONS:
        box, snapshot = fresh(tiny)
        if r.random() < 0.4:  # some begin elsewhere than running
            tiny.api().change(box, r.choice(["pause", "suspend"]))
        outcome = together(tiny, [first, second], box, snapshot, [r.choice([0, 0, 0.002, 0.01, 0.03])])
        proof(tiny, box, outcome)
        remove(tiny)
    clean(tiny)


@pytest.mark.slow
def test_many_triples_with_failures_and_deaths(tiny):
    """L1, L2: three at once; in the middle a step of the worker fails, or a daemon is killed."""
    r = random.Random(SEED)
    names = failpoints()
    for number in range(TRIPLES):
        box, snapshot = fresh(tiny)
        if r.random() < 0.4:
            tiny.api().change(box, r.choice(["pause", "suspend"]))
        three = r.sample(list(OPERATIONS), 3)
        kind = r.choice(["none", "error", "error", "kill", "worker", "server"])
        if kind in ("error", "kill"):
            tiny.failpoint(*(f"{name} {kind}" for name in r.sample(names, 6 if kind == "error" else 1)))
        killer = threading.Timer(r.choice([0, 0.005, 0.02]), kill, (tiny, kind)) if kind in ("worker", "server") else None
        if killer:
            killer.start()
        outcome = together(tiny, three, box, snapshot, [r.choice([0, 0.003, 0.02]) for _ in range(2)])
        if killer:
            killer.join()
        tiny.api().wait_ready()
        tiny.failpoint()
        try:
            proof(tiny, box, outcome)
        except BaseException:
            print(f"triple {number} of seed {SEED}: {three}, {kind}, {outcome}")
            raise
        remove(tiny)
    clean(tiny)


def kill(inst, name):
    try:
        os.kill(inst.daemon_pid(name), signal.SIGKILL)
    except (LookupError, OSError):
        pass


# --- every failpoint
def failpoints():
    """All names in the worker's source but those of pools, which these installations have not."""
    found = set()
    for path in pathlib.Path(ROOT / "src").rglob("*.c"):
        found.update(re.findall(r'sp_failpoint\("([^"]+)"', path.read_text()))
    return sorted(name for name in found if not name.startswith("pool."))


# Which walks pass through the failpoints of a family. A walk: what the sandbox goes through before, and what then happens.
WALKS = {
    "create": [([], "create-from"), ([], "create")],
    "destroy": [([], "delete"), (["suspend"], "delete")],
    "adopt": [([], "restart"), (["pause"], "restart"), (["suspend"], "restart")],
    "pause": [([], "pause")],
    "resume": [(["pause"], "wake")],
    "suspend": [([], "suspend"), (["pause"], "suspend"), ([], "suspend-disk")],
    "wake": [(["suspend"], "wake"), (["suspend-disk"], "wake")],
    "snapshot": [([], "snapshot"), (["suspend"], "snapshot"), ([], "delete-snapshot"), ([], "fork")],
    "rollback": [([], "rollback"), (["suspend"], "rollback")],
    "still": [([], "snapshot"), ([], "pause"), (["pause"], "wake"), ([], "suspend")],
}


def walk(inst, box, snapshot, then):
    if then == "restart":
        old = inst.daemon_pid("worker")
        kill(inst, "worker")
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                if inst.daemon_pid("worker") != old and inst.inventory():
                    break
            except (LookupError, OSError, http.client.HTTPException):
                pass
            time.sleep(0.02)
        return [("restart", "accepted")]
    if then == "create":
        try:
            inst.api().call("POST", "/v1/sandboxes", {})
        except (ApiError, OSError, http.client.HTTPException):
            pass
        return [("create", "accepted")]
    outcome = []
    attempt(inst, then, box, snapshot, outcome)
    return outcome


def live_a_little(inst):
    """A worker that has lived for a second is started again at once when it dies (src/cli/supervisor.c), others with growing pauses."""
    ticks = int(pathlib.Path(f"/proc/{inst.daemon_pid('worker')}/stat").read_text().rsplit(")", 1)[1].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    time.sleep(max(0, 1.1 - age))


def used(inst, name):
    """Whether the failpoint's line was used up."""
    try:
        return name not in inst.failpoint_file.read_text()
    except OSError:
        return True


@pytest.mark.slow
@pytest.mark.parametrize("action", ["error", "kill"])
@pytest.mark.parametrize("family", WALKS)
def test_every_step_fails_and_dies(tiny, family, action):
    """L2, L5: at each step of each action: it fails there, or the worker dies there. The sandbox is then as it was, or as was wanted, and the operation says so."""
    names = [name for name in failpoints() if name.split(".")[0] == family]
    assert names, f"no failpoint of {family} is left: mend WALKS"
    for name in names:
        passed = False
        for before, then in WALKS[family]:
            if passed and action == "kill":
                break  # a death is a death, whatever led there; and it costs a restart
            box, snapshot = fresh(tiny)
            for verb in before:
                OPERATIONS[verb](tiny.api(), box, snapshot)
                settle(tiny)
            if action == "kill" or then == "restart":
                live_a_little(tiny)
            tiny.failpoint(f"{name} {action}")
            outcome = walk(tiny, box, snapshot, then)
            try:
                settle(tiny)
                passed = passed or used(tiny, name)
                tiny.failpoint()
                proof(tiny, box, outcome)
            except BaseException:
                print(f"{name} {action}: {before}, {then}: {outcome}")
                raise
            remove(tiny)
        assert passed, f"no walk of {family} passes through {name}: mend WALKS"
    clean(tiny)


def test_every_failpoint_has_a_walk():
    assert {name.split(".")[0] for name in failpoints()} <= set(WALKS)


# --- the real tiers
OFFSETS_S = (0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4)


def never_running_again(api, box, seconds=0.3):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert gone(api, box) and box not in api.live()
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("during", ["create", "pause", "suspend", "wake", "snapshot", "fork", "rollback"])
def test_a_delete_during(api, installation, tier, during):
    """L1: at many offsets in time: after the answer to the DELETE it never runs again, and nothing is left over."""
    memory = tier == "microvm" or installation.tier_status(tier).get("save_memory", False)
    for offset in OFFSETS_S:
        body = {} if memory else {"memory": False}
        if during == "create":
            box = api.call("POST", "/v1/sandboxes", {"isolation": tier})["sandbox"]["id"]
        else:
            box = api.create(isolation=tier)["id"]
            snapshot = api.snapshot(box, **body)["id"] if during == "rollback" else None
            if during == "wake":
                api.change(box, "suspend", **body)
            path, body = {"pause": ("pause", {}), "suspend": ("suspend", body), "wake": ("wake", {}), "snapshot": ("snapshots", body),
                          "fork": ("fork", {"count": 2, **body}), "rollback": ("rollback", {"snapshot_id": snapshot})}[during]
            api.call("POST", f"/v1/sandboxes/{box}/{path}", body)
        time.sleep(offset)
        api.delete(box)
        never_running_again(api, box)
        settle(installation)
        for child in api.live().values():
            if child["state"] == "running":
                assert api.exec(child["id"], "echo", "x")["stdout"] == "x\n"
        remove(installation)
        check(installation)


SAMPLE = ["still.held", "still.paused", "suspend.captured", "suspend.before_commit", "suspend.committed", "wake.before_create", "wake.created",
          "wake.identified", "wake.committed", "snapshot.captured", "snapshot.finished", "rollback.copied", "rollback.committed", "destroy.before_form"]


@pytest.mark.slow
@pytest.mark.parametrize("action", ["error", "kill"])
def test_real_machines_fail_and_die_at_a_sample_of_steps(api, installation, action):
    """L2, L5: in the real tiers."""
    for name in SAMPLE:
        family = name.split(".")[0]
        before, then = WALKS[family][0]
        box = api.create(isolation="microvm")["id"]
        snapshot = api.snapshot(box)["id"]
        api.exec(box, "sh", "-c", "echo kept > /workspace/file")
        for verb in before:
            OPERATIONS[verb](api, box, snapshot)
            settle(installation)
        installation.failpoint(f"{name} {action}")
        outcome = walk(installation, box, snapshot, then)
        settle(installation)
        installation.failpoint()
        proof(installation, box, outcome)
        if then not in ("rollback", "delete"):
            assert api.exec(box, "cat", "/workspace/file")["stdout"] == "kept\n", name
        remove(installation)
    check(installation)
