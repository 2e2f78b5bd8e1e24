"""What a worker does with the templates on its disk that the server has deleted."""

from fake_server import DIGEST_HEX
from worker_fixtures import fresh_rig  # noqa: F401


def registrations(server, more):
    """Waits until the worker has registered so often from now on."""
    wanted = len(server.registered) + more
    server.wait_for("register", lambda: len(server.registered) >= wanted, timeout=20)


def test_deleted_template_is_removed(fresh_rig):
    server, worker = fresh_rig
    digest = f"sha256:{DIGEST_HEX}"
    folder = worker.state / "data" / "templates" / DIGEST_HEX
    other = folder.with_name("cd" * 32)
    other.mkdir()
    box = server.want()
    server.wait_state(box, "running")
    # In use: it stays whatever the server says, also when the sandbox is one that the server does not describe.
    server.deleted_templates = [digest, "sha256:" + "ef" * 32, "sha256:../..", 7]
    registrations(server, 1)
    row = server.rows.pop(box)
    worker.kill()
    worker.start()
    registrations(server, 1)
    assert folder.is_dir()
    server.rows[box] = row
    server.want(box, "deleted")
    server.wait_state(box, "deleted")
    server.wait_for("a shorter list of templates",
                    lambda: server.registered[-1]["templates"] == ["sha256:" + "cd" * 32], timeout=20)
    assert not folder.exists() and other.is_dir(), "only what was named goes"
    assert [path.name for path in (worker.state / "data" / "tmp").iterdir()] == [".lock"]
