"""One client of test_lifecycle_crowd.py: random operations on sandboxes of its own and of others, until it is done or killed.

argv: url, key, seed, number of operations, tiers. Prints one line an operation: name and outcome."""

import http.client
import random
import sys
import time

from installation import Api, ApiError


def one(api, r, mine, tiers):
    live = list(api.live().values())
    name = r.choice(["create", "create", "exec", "exec", "pause", "suspend", "wake", "wake", "snapshot", "fork", "rollback", "delete", "delete-snapshot"])
    if name == "create" or not live:
        if len(live) > 30:
            return "create", "enough"
        body = {"isolation": r.choice(tiers), "resources": {"memory_mb": 128}, "metadata": {"client": str(mine)}}
        return "create", api.call("POST", "/v1/sandboxes", body, headers={"Prefer": "wait=120"} if r.random() < 0.5 else None)
    box = r.choice(live)
    memory = {} if box["isolation"] == "microvm" or tiers == ["fake"] else {"memory": False}
    path = f"/v1/sandboxes/{box['id']}"
    wait = {"Prefer": "wait=60"} if r.random() < 0.5 else None
    if name == "exec":
        return name, api.exec(box["id"], "echo", "x")
    if name == "delete":
        return name, api.call("DELETE", path, headers=wait)
    if name in ("rollback", "delete-snapshot"):
        snapshots = api.get("/v1/snapshots")["items"]
        if not snapshots:
            return name, "none"
        snapshot = r.choice(snapshots)
        if name == "delete-snapshot":
            return name, api.call("DELETE", f"/v1/snapshots/{snapshot['id']}", headers=wait)
        return name, api.call("POST", f"/v1/sandboxes/{snapshot['sandbox_id']}/rollback", {"snapshot_id": snapshot["id"]}, headers=wait)
    if name == "snapshot":
        if len(api.get("/v1/snapshots")["items"]) > 10:
            return name, "enough"
        return name, api.call("POST", path + "/snapshots", memory, headers=wait)
    if name == "fork":
        return name, "enough" if len(live) > 25 else api.call("POST", path + "/fork", {"count": 2, **memory}, headers=wait)
    return name, api.call("POST", f"{path}/{name}", memory if name == "suspend" else {}, headers=wait)


def main():
    url, key, seed, count, *tiers = sys.argv[1:]
    api, r = Api(url, key), random.Random(int(seed))
    for _ in range(int(count)):
        try:
            name, answer = one(api, r, seed, tiers)
            outcome = answer if isinstance(answer, str) else "accepted"
        except ApiError as e:
            name, outcome = "refused", e.error.get("code", "no code")
        except (OSError, http.client.HTTPException) as e:
            name, outcome = "broken", type(e).__name__
        print(name, outcome, flush=True)
        time.sleep(r.random() * 0.02)


if __name__ == "__main__":
    main()
