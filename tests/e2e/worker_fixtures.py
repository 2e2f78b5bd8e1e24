"""Fixtures of the worker's own tests: a fake server, a worker with the fake driver, one running sandbox."""

import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

from fake_server import FakeServer, Worker

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("SPACE_BUILD", ROOT / "build"))


def make_rig():
    """Yields (server, worker); afterwards nothing of them is left."""
    if os.geteuid() != 0:
        pytest.fail("the fake driver makes namespaces: run as root")
    server = FakeServer()
    state = tempfile.mkdtemp(prefix="space-worker-")
    worker = Worker(BUILD, state, server)
    worker.start()
    try:
        yield server, worker
        if worker.process.poll() is not None:
            worker.start()
        boxes = os.listdir(f"{state}/run/sandboxes")
        for box in boxes:
            server.want(box, "deleted")
        for box in boxes:
            server.wait_state(box, "deleted")
        assert os.listdir(f"{state}/run/sandboxes") == []
        assert worker.stop() == 0, worker.log()
        left = subprocess.run(["pgrep", "-f", state], capture_output=True, check=False).stdout
        assert not left, f"processes are left: {left}"
    finally:
        if worker.process.poll() is None:
            worker.kill()
        server.close()
        shutil.rmtree(state, ignore_errors=True)


@pytest.fixture(scope="module")
def rig():
    yield from make_rig()


@pytest.fixture
def fresh_rig():
    """For tests that kill the worker or the sandbox."""
    yield from make_rig()


@pytest.fixture(scope="module")
def box(rig):
    server, worker = rig
    sandbox_id = server.want()
    server.wait_state(sandbox_id, "running")
    return sandbox_id
