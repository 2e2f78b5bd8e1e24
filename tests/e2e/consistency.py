"""Whether server, worker and host agree: asked after every test of races."""

import http.client
import time

from installation import ApiError
from leaks import Inventory

STEADY = {"running": "running", "paused": "paused", "suspended": "suspended"}


def settle(inst, seconds=60):
    """Waits until no operation is open; all operations that were ever seen must have ended."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            api = inst.api()
            open_ones = [op for state in ("pending", "running") for op in api.get(f"/v1/operations?state={state}")["items"]]
            if not open_ones:
                return
        except (OSError, http.client.HTTPException, ApiError) as e:
            open_ones = [repr(e)]
        assert time.monotonic() < deadline, f"still open: {open_ones}"
        time.sleep(0.02)


def disagreement(inst):
    """What server and worker do not agree about; empty when all is well."""
    api = inst.api()
    live = api.live()
    held = {s["id"]: s for s in inst.inventory()["sandboxes"]}
    wrong = []
    for box in live.values():
        if box["state"] == "failed":
            if held.get(box["id"], {}).get("presence", "absent") != "absent":
                wrong.append((box, held[box["id"]]))
        elif box["state"] not in STEADY or box["desired_state"] != box["state"] or \
                held.get(box["id"], {}).get("presence") != STEADY[box["state"]]:
            wrong.append((box, held.get(box["id"])))
    wrong += [("nobody wants", s) for s in held.values() if s["id"] not in live and s["presence"] != "absent"]
    snapshots = {s["id"]: s["state"] for s in api.get("/v1/snapshots?limit=1000")["items"]}
    kinds = Inventory.take(inst.state).kinds
    with_form = {i for i, state in snapshots.items() if state == "ready"} | {i for i, b in live.items() if b["state"] == "suspended"}
    if kinds["saved forms"] != with_form:
        wrong.append(("saved forms", sorted(kinds["saved forms"]), "not", sorted(with_form)))
    wrong += [("snapshot", i, state) for i, state in snapshots.items() if state not in ("ready", "failed")]
    there = {i for i, b in live.items() if b["state"] in STEADY}
    if kinds["run directories"] != there:
        wrong.append(("run directories", sorted(kinds["run directories"]), "not", sorted(there)))
    if kinds["half made"]:
        wrong.append(("half made", kinds["half made"]))
    return wrong


def check(inst, seconds=20):
    """Live set = database set = what is on the host; waits for what ends in the background."""
    settle(inst)
    deadline = time.monotonic() + seconds
    while True:
        try:
            wrong = disagreement(inst)
        except (OSError, http.client.HTTPException, ApiError) as e:
            wrong = [repr(e)]
        if not wrong:
            return
        assert time.monotonic() < deadline, wrong
        time.sleep(0.05)


def clean(inst):
    """Deletes everything; nothing may be left of it."""
    api = inst.api()
    for box in api.live():
        api.delete(box)
    for snapshot in api.get("/v1/snapshots?limit=1000")["items"]:
        api.delete_snapshot(snapshot["id"])
    check(inst)
    kinds = Inventory.take(inst.state).kinds
    left = {kind: kinds[kind] for kind in ("run directories", "layers", "saved forms", "half made", "cgroups") if kinds[kind]}
    assert not left, left
