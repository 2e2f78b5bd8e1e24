"""`space run` against the real daemons: output, exit codes, input, errors (issue 2, "What it must show")."""

import hashlib

import pytest


def run(cli, tier, *args, **kw):
    return cli("run", "--isolation", tier, *args, **kw)


def test_prints_42(cli, tier):
    done = run(cli, tier, "--", "python3", "-c", "print(6*7)")
    assert (done.returncode, done.stdout) == (0, b"42\n"), done


def test_exits_with_the_commands_code(cli, tier):
    assert run(cli, tier, "--", "sh", "-c", "exit 7").returncode == 7


def test_signal_is_128_plus_n(cli, tier):
    assert run(cli, tier, "--", "sh", "-c", "kill -TERM $$").returncode == 128 + 15


def test_missing_command_is_127_at_once_with_a_message(cli, tier):
    done = run(cli, tier, "--", "nosuch")
    assert done.returncode == 127
    assert b"nosuch" in done.stderr


def test_input_from_a_pipe(cli, tier):
    done = run(cli, tier, "-i", "--", "cat", stdin=b"abc")
    assert (done.returncode, done.stdout) == (0, b"abc"), done


def test_without_i_the_command_sees_end_of_input(cli, tier):
    done = run(cli, tier, "--", "cat", stdin=b"not for you")
    assert (done.returncode, done.stdout) == (0, b""), done


def test_binary_output_is_exact(cli, tier):
    """X10: NUL bytes and everything else come through on both streams."""
    program = ("import os,sys,hashlib\n"
               "a=os.urandom(1<<20); b=os.urandom(1<<20)\n"
               "sys.stdout.buffer.write(a); sys.stdout.flush(); sys.stderr.buffer.write(b); sys.stderr.flush()\n"
               "open('/tmp/sums','w').write(hashlib.sha256(a).hexdigest()+' '+hashlib.sha256(b).hexdigest())\n")
    box = cli("create", "--isolation", tier, "--json")
    assert box.returncode == 0, box
    import json
    sandbox = json.loads(box.stdout)
    sandbox_id = (sandbox.get("sandbox") or sandbox)["id"]
    try:
        done = cli("exec", sandbox_id, "--", "python3", "-c", program)
        assert done.returncode == 0, done.stderr[:500]
        sums = cli("exec", sandbox_id, "--", "cat", "/tmp/sums").stdout.decode().split()
        assert [hashlib.sha256(done.stdout).hexdigest(), hashlib.sha256(done.stderr).hexdigest()] == sums
        assert len(done.stdout) == len(done.stderr) == 1 << 20
    finally:
        assert cli("rm", sandbox_id).returncode == 0


def test_binary_input_is_exact(cli, tier):
    data = bytes(range(256)) * 4096
    done = run(cli, tier, "-i", "--", "sha256sum", stdin=data)
    assert done.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_env_cwd_user_and_timeout(cli, tier):
    done = run(cli, tier, "--env", "GREETING=hello world", "--", "sh", "-c", 'echo "$GREETING"; pwd; id -u')
    assert done.stdout == b"hello world\n/workspace\n1000\n", done
    done = run(cli, tier, "--timeout", "300ms", "--", "sleep", "60")
    assert done.returncode == 124


def test_exit_125_is_the_platforms(cli):
    done = cli("run", "--template", "nosuch:latest", "--", "true")
    assert done.returncode == 125
    assert b"/template" in done.stderr


@pytest.mark.parametrize("n", [1, 7])
def test_deleted_afterwards(cli, api, tier, n):
    assert run(cli, tier, "--", "sh", "-c", f"exit {n}").returncode == n
    assert api.get("/v1/sandboxes")["items"] == []
