"""Many at once, and many in a row: all succeed and nothing is left (the module's leak check)."""

import concurrent.futures

import pytest


@pytest.mark.slow
def test_fifty_creates_at_once(api, tier):
    """L3: each is there once."""
    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        try:
            boxes = [f.result() for f in [pool.submit(api.create, 300, isolation=tier) for _ in range(50)]]
            assert len({b["id"] for b in boxes}) == 50
            outputs = list(pool.map(lambda b: api.exec(b["id"], "echo", b["id"])["stdout"].strip(), boxes))
            assert outputs == [b["id"] for b in boxes]
        finally:
            live = api.get("/v1/sandboxes?limit=100")["items"]
            list(pool.map(lambda b: api.delete(b["id"], wait=300), live))
    assert api.get("/v1/sandboxes")["items"] == []


@pytest.mark.slow
def test_two_hundred_in_a_row(api, tier):
    for i in range(200):
        box = api.create(isolation=tier)
        if i % 20 == 0:
            assert api.exec(box["id"], "echo", str(i))["stdout"] == f"{i}\n"
        api.delete(box["id"])
    assert api.get("/v1/sandboxes")["items"] == []
