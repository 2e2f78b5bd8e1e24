"""The API's tests once more, with a server on PostgreSQL: all that is asked of the store is in SQL that both databases take."""

import importlib
import pathlib

import pytest

from api_fixtures import server, worker  # noqa: F401
from fake_worker import FakeWorker, Server, secret, token_hash
from postgres_cluster import Cluster

# Requests that do not get as far as the store, and tests that bring servers of their own.
WITHOUT = ["test_api_requests", "test_api_crash", "test_api_postgres"]


def take_tests(module):
    for name, value in list(vars(module).items()):
        if name.startswith("test_"):
            globals()[f"{module.__name__}_{name.removeprefix('test_')}"] = value
        elif hasattr(value, "_pytestfixturefunction") and name not in globals():
            globals()[name] = value


MODULES = sorted({path.stem for path in pathlib.Path(__file__).parent.glob("test_api_*.py")} - set(WITHOUT))
assert MODULES
for module_name in MODULES:
    take_tests(importlib.import_module(module_name))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with Cluster() as cluster:
        made = Server(tmp_path_factory.mktemp("server"))
        made.database = cluster.make("api")
        made.cluster = cluster
        made.start()
        worker = FakeWorker(made)  # noqa: F811
        worker.start()
        worker.make_template()
        try:
            yield made, worker
        finally:
            worker.stop()
            made.stop()


@pytest.fixture
def other(server, worker):  # noqa: F811
    """The API key of another tenant, as test_api_snapshots.py puts one into SQLite."""
    key = secret("sk")
    server.cluster.sql("INSERT INTO api_keys (id, tenant, name, role, hash, created_at)"
                       f" VALUES ('key_other', 'other', 'o', 'admin', '{token_hash(key)}', 0)"
                       " ON CONFLICT (id) DO UPDATE SET hash = excluded.hash", "api")
    return key
