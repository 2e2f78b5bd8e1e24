"""Fixtures of test_api_*.py: the real server and the fake worker, one pair a module."""

import pytest

from fake_worker import FakeWorker, Server


def make_pair(directory):
    """Yields (server, worker); stopped afterwards."""
    server = Server(directory)
    server.start()
    worker = FakeWorker(server)
    worker.start()
    worker.make_template()
    try:
        yield server, worker
    finally:
        worker.stop()
        if server.process.poll() is None:
            server.stop()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    yield from make_pair(tmp_path_factory.mktemp("server"))


@pytest.fixture
def server(pair):
    return pair[0]


@pytest.fixture
def worker(pair):
    """As well-behaved as at the start, whatever the last test asked of it."""
    worker = pair[1]
    yield worker
    worker.create_delay = worker.delete_delay = 0.0
    worker.create_error = worker.build_error = None
    worker.change_delay = worker.snapshot_delay = worker.snapshot_delete_delay = 0.0
    worker.change_error = worker.snapshot_error = worker.child_error = None
    worker.child_failures = 0
    worker.hold = False
    worker.exec_status, worker.exec_body = 200, b'{"exit_code":0,"stdout":"out","stderr":""}'
