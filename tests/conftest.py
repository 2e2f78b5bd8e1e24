"""Fixtures of the end-to-end and the security tests: one real `space up` for the whole run, and a leak check for each module.

The installation under test lives in $SPACE_TEST_STATE (default: build/e2e-state), which keeps its
template between runs so that only the first one builds it. Tests talk to the real daemons only.
"""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "e2e"))

from installation import Installation  # noqa: E402
from leaks import Inventory  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("SPACE_BUILD", ROOT / "build"))
TIERS = ["container", "microvm"]


def pytest_configure(config):
    # A run in the background (nohup, `&` in a script) ignores these, and programs under test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    config.addinivalue_line("markers", "slow: takes more than about ten seconds")
    config.addinivalue_line("markers", "own_daemons: starts its own daemons instead of the shared installation")


@pytest.fixture(scope="session")
def installation():
    """A running `space up` with the seed template built; stopped, and all of it taken down, at the end."""
    state = pathlib.Path(os.environ.get("SPACE_TEST_STATE", BUILD / "e2e-state"))
    inst = Installation(BUILD, state, failpoints=True)
    inst.up()
    try:
        inst.ensure_template("seed", ROOT / "templates" / "seed")
        yield inst
    finally:
        inst.stop()
        inst.down()


@pytest.fixture
def api(installation):
    return installation.api()


@pytest.fixture(params=TIERS)
def tier(request, installation):
    """Each isolation tier. A tier that this host cannot have fails the test: it is not skipped in silence."""
    status = installation.tier_status(request.param)
    if not status["available"]:
        pytest.fail(f"the {request.param} tier does not work on this host: {status.get('detail')}")
    return request.param


@pytest.fixture
def sandbox(api, tier):
    """A running sandbox in each tier; deleted after the test."""
    box = api.create(isolation=tier)
    yield box
    api.delete(box["id"])


@pytest.fixture(scope="module", autouse=True)
def nothing_left_over(request):
    """What a module makes on the host is gone when it ends: processes, mounts, cgroups, namespaces, loops, files."""
    uses_shared = any("installation" in item.fixturenames for item in request.session.items
                      if item.module is request.module)
    if not uses_shared:
        yield
        return
    installation = request.getfixturevalue("installation")
    before = Inventory.take(installation.state)
    yield
    deadline = time.monotonic() + 20
    while True:
        after = Inventory.take(installation.state)
        extra = after.beyond(before)
        if not extra or time.monotonic() > deadline:
            break
        time.sleep(0.1)  # background removal has no event that an outsider could wait for
    assert not extra, f"left over after {request.module.__name__}: {extra}"


def run_cli(installation, *args, stdin=b"", timeout=120):
    """Runs the real CLI; returns the CompletedProcess with bytes."""
    return subprocess.run([str(BUILD / "space"), *args], input=stdin, capture_output=True, timeout=timeout,
                          env=installation.env(), check=False)


@pytest.fixture
def cli(installation):
    def run(*args, stdin=b"", timeout=120):
        return run_cli(installation, *args, stdin=stdin, timeout=timeout)
    return run
