"""The client verbs against a fake API (fake_api.py): exit codes, exact streams, credentials, clean-up."""

import json
import os
import random
import re
import signal
import subprocess
import time

import pytest

from conftest import BUILD
from fake_api import KEY, FakeApi

SPACE = str(BUILD / "space")


@pytest.fixture
def fake():
    api = FakeApi()
    yield api
    api.close()


def env_of(fake, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("SPACE_")}
    return {**env, "SPACE_URL": fake.origin("control"), "SPACE_KEY": KEY, **more}


@pytest.fixture
def cli(fake):
    def run(*args, stdin=b"", timeout=60, **env):
        return subprocess.run([SPACE, *args], input=stdin, capture_output=True, timeout=timeout, env=env_of(fake, **env),
                              check=False)
    return run


# --- exit codes
@pytest.mark.parametrize("command,code,message", [
    (["exit", "0"], 0, None),
    (["exit", "7"], 7, None),
    (["exit", "125"], 125, None),
    (["exit", "255"], 255, None),
    (["signal", "15"], 143, None),
    (["signal", "9"], 137, None),
    (["timeout"], 124, b"time"),
    (["oom"], 137, b"out of memory"),
    (["nosuch"], 127, b"nosuch: no such command"),
    (["error", "not_executable"], 126, b"not_executable"),
    (["error", "cwd_not_found"], 127, b"cwd_not_found"),
    (["error", "user_not_found"], 125, b"user_not_found"),
    (["error", "internal"], 125, b"internal"),
    (["newer"], 0, None),
])
def test_exit_codes(cli, fake, command, code, message):
    done = cli("run", "--", *command)
    assert done.returncode == code, done
    if message:
        assert message in done.stderr
    else:
        assert done.stderr == b""
    assert not fake.sandboxes and len(fake.deleted) == 1


def test_api_error_is_125_and_names_the_field(cli):
    done = cli("run", "--template", "nosuch:latest", "--", "exit", "0")
    assert (done.returncode, done.stdout) == (125, b"")
    assert done.stderr == b"space: there is no such template (invalid_request, field /template)\n"


def test_wrong_key_is_125(cli):
    done = cli("run", "--", "exit", "0", SPACE_KEY="sk_wrong")
    assert done.returncode == 125 and b"unauthenticated" in done.stderr


@pytest.mark.parametrize("args", [["run"], ["run", "--nope", "--", "x"], ["run", "--cpus", "-1", "--", "x"],
                                  ["run", "--memory", "0", "--", "x"], ["exec", "sbx"], ["get"], ["get", "a", "b"],
                                  ["nosuchverb"], ["run", "-t", "--", "x"], ["run", "--env", "=x", "--", "x"], []])
def test_bad_usage_is_125_and_makes_nothing(cli, fake, args):
    done = cli(*args)
    assert done.returncode == 125
    assert (done.stderr.startswith(b"space: ") or not args) and fake.create_bodies == []


def test_failed_create_is_125_with_its_reason_and_nothing_left(cli, fake):
    fake.create_fails = True
    done = cli("run", "--", "exit", "0")
    assert done.returncode == 125 and b"no room (unavailable)" in done.stderr
    assert not fake.sandboxes


def test_create_that_is_not_waited_for_is_followed(cli, fake):
    fake.never_wait = True
    assert cli("run", "--", "exit", "3").returncode == 3
    assert any(r["path"].startswith("/v1/operations/") for r in fake.requests)


# --- streams
def test_output_is_exact_on_both_streams(cli, fake):
    fake.blob = random.Random(1).randbytes(1 << 20)
    done = cli("run", "--", "blob")
    assert done.returncode == 0 and done.stdout == fake.blob
    at, step, reverse = 0, 1, b""
    while at < len(fake.blob):
        reverse += fake.blob[at:at + step][::-1]
        at, step = at + step, min(step * 2 + 1, 50000)
    assert done.stderr == reverse


@pytest.mark.parametrize("size", [0, 3, 70_000, 3_000_000])
def test_input_is_exact(cli, size):
    raw = random.Random(size).randbytes(size)
    done = cli("run", "-i", "--", "cat", stdin=raw)
    assert done.returncode == 0 and done.stdout == raw


def test_input_arrives_while_more_is_to_come(fake):
    """At a terminal every line is there at once, and no request hangs while nobody types."""
    with subprocess.Popen([SPACE, "run", "-i", "--", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          env=env_of(fake)) as p:
        for word in (b"one\n", b"two\n"):
            p.stdin.write(word)
            p.stdin.flush()
            assert p.stdout.readline() == word
            time.sleep(0.1)
        p.stdin.close()
        assert p.stdout.read() == b"" and p.wait(20) == 0
    session = next(iter(fake.sessions.values()))
    assert session.uploads == 2


def test_without_i_input_is_not_touched(cli, fake):
    assert cli("run", "--", "exit", "0", stdin=b"not for you").returncode == 0
    session = next(iter(fake.sessions.values()))
    assert session.spec["stdin"] == "none" and session.stdin == b""


def test_a_command_that_ends_without_reading_its_input(cli):
    start = time.monotonic()
    done = cli("run", "-i", "--", "early", stdin=b"x" * 5_000_000)
    assert done.returncode == 3 and time.monotonic() - start < 10


def test_a_command_that_ends_while_input_is_open(fake):
    with subprocess.Popen([SPACE, "run", "-i", "--", "early"], stdin=subprocess.PIPE, env=env_of(fake)) as p:
        assert p.wait(10) == 3  # our own input is still open


def test_closed_output_ends_quietly_and_cleans_up(fake):
    fake.blob = bytes(4 << 20)
    read, write = os.pipe()
    os.close(read)
    with subprocess.Popen([SPACE, "run", "--", "blob"], stdout=write, stderr=subprocess.DEVNULL, env=env_of(fake)) as p:
        os.close(write)
        assert p.wait(20) == 128 + signal.SIGPIPE
    assert not fake.sandboxes


def test_full_output_is_125(fake):
    with open("/dev/full", "wb") as full:
        p = subprocess.run([SPACE, "run", "--", "echo", "x"], stdout=full, stderr=subprocess.PIPE, env=env_of(fake),
                           timeout=20, check=False)
    assert p.returncode == 125 and b"No space left" in p.stderr


# --- broken streams
@pytest.mark.parametrize("cut_after,max_cuts", [(0, 1), (1, 1), (50, 1), (30, 5), (3, 60)])
def test_a_cut_stream_goes_on_where_it_was(cli, fake, cut_after, max_cuts):
    fake.cut_after, fake.max_cuts = cut_after, max_cuts
    done = cli("run", "--", "lines")
    assert done.returncode == 5
    assert done.stdout.decode() == "".join(f"line {i}\n" for i in range(200))
    ids = [r["headers"].get("Last-Event-ID") for r in fake.sent_to("data") if r["path"].endswith("/events")]
    assert len(ids) == fake.cuts + 1 and ids[0] is None
    assert ids[1:] == [str(cut_after * (i + 1)) if cut_after else None for i in range(fake.cuts)]


def test_a_stream_that_ends_without_the_exit_is_125(cli, fake):
    done = cli("run", "--", "truncated")
    assert (done.returncode, done.stdout) == (125, b"half")
    assert b"without the command's exit" in done.stderr and b"lost" in done.stderr
    assert not fake.sandboxes


def test_a_stream_that_is_always_cut_is_125_in_bounded_time(cli, fake):
    fake.cut_after, fake.max_cuts = 0, 10**6
    start = time.monotonic()
    done = cli("run", "--", "echo", "x")
    assert done.returncode == 125 and done.stdout == b"" and time.monotonic() - start < 50


def test_a_data_plane_that_is_starting_is_waited_for(cli, fake):
    fake.refuse_attach = 3
    assert cli("run", "--", "exit", "4").returncode == 4


@pytest.mark.parametrize("code,result", [("0", 125), ("9", 9)])
def test_lost_output_is_no_success(cli, code, result):
    done = cli("run", "--", "resync", code)
    assert done.returncode == result and b"lost" in done.stderr


def test_requests_without_an_answer_are_sent_again_with_the_same_key(cli, fake):
    fake.drop_next = 2
    assert cli("run", "--", "exit", "0").returncode == 0
    keys = [r["headers"]["Idempotency-Key"] for r in fake.requests if r["path"] == "/v1/sandboxes"]
    assert len(keys) == 3 and len(set(keys)) == 1 and len(fake.deleted) == 1


def test_no_server_is_125_soon(cli):
    start = time.monotonic()
    done = cli("ls", SPACE_URL="http://127.0.0.1:9")
    assert done.returncode == 125 and b"no answer" in done.stderr and time.monotonic() - start < 15


def test_every_mutation_has_a_key(cli, fake):
    cli("run", "--", "exit", "0")
    for r in fake.sent_to("control"):
        assert (r["method"] == "GET") == ("Idempotency-Key" not in r["headers"]), r


# --- credentials
def test_each_server_gets_its_own_credential(cli, fake):
    assert cli("run", "-i", "--", "cat", stdin=b"x").returncode == 0
    token = next(iter(fake.sessions.values())).token
    assert {r["bearer"] for r in fake.sent_to("control")} == {KEY}
    assert {r["bearer"] for r in fake.sent_to("data")} == {token}


@pytest.mark.parametrize("url", [
    "{elsewhere}/v1/attach/SESSION/events",
    "{data}/v1/attach/SESSION/events?x=1",
    "{data}/v1/attach/SESSION/events#x",
    "{data}/v1/attach/SESSION/../SESSION/events",
    "{data}/v1/attach/ses_00000000000000000000000000/events",
    "{data}/v1/attach/SESSION/%65vents",
    "http://127.0.0.1@{data_host}/v1/attach/SESSION/events",
    "http://user:pw@{data_host}/v1/attach/SESSION/events",
    "ftp://{data_host}/v1/attach/SESSION/events",
    "http://[::1]/v1/attach/SESSION/events",
    "/v1/attach/SESSION/events",
    "",
])
@pytest.mark.parametrize("configured", [True, False])
def test_the_token_goes_nowhere_else(cli, fake, url, configured):
    fake.attach_url = url.format(elsewhere=fake.origin("elsewhere"), data=fake.origin("data"),
                                 data_host=fake.origin("data").removeprefix("http://")) or "x"
    more = {"SPACE_DATA_URL": fake.origin("data")} if configured else {}
    done = cli("run", "--", "exit", "0", **more)
    assert done.returncode == 125 and b"permission_denied" in done.stderr
    assert fake.sent_to("elsewhere") == [] and fake.sent_to("data") == []
    assert not fake.sandboxes
    assert not re.search(rb"at_\d", done.stderr)


def test_the_configured_data_plane_is_the_only_one(cli, fake):
    done = cli("run", "--", "exit", "0", SPACE_DATA_URL=fake.origin("elsewhere"))
    assert done.returncode == 125 and fake.sent_to("data") == []


def test_redirects_are_not_followed(cli, fake):
    fake.redirect_to = fake.origin("elsewhere") + "/v1/attach/x/events"
    done = cli("run", "--", "exit", "0")
    assert done.returncode == 125 and b"redirect" in done.stderr
    assert fake.sent_to("elsewhere") == []


def test_no_proxy_from_the_environment(cli, fake):
    proxy = fake.origin("elsewhere")
    assert cli("run", "--", "exit", "0", http_proxy=proxy, HTTP_PROXY=proxy, ALL_PROXY=proxy).returncode == 0
    assert fake.sent_to("elsewhere") == []


def test_a_token_that_is_about_to_expire_is_renewed(cli, fake):
    fake.expires_at = "2020-01-01T00:00:00.000Z"
    assert cli("run", "--", "exit", "6").returncode == 6
    assert any(r["path"].endswith("/attachments") for r in fake.requests)


# --- ^C
def start_asleep(fake, *args):
    p = subprocess.Popen([SPACE, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env_of(fake))
    assert p.stdout.readline() == b"asleep\n"
    return p


def test_first_interrupt_goes_to_the_command(fake):
    p = start_asleep(fake, "run", "--", "sleep")
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=20)
    assert p.returncode == 130 and next(iter(fake.sessions.values())).signals == ["SIGINT"]
    assert not fake.sandboxes


def test_second_interrupt_cleans_up_and_leaves(fake):
    p = start_asleep(fake, "run", "--", "deaf")
    p.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert p.poll() is None
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=20)
    assert p.returncode == 130 and not fake.sandboxes and len(fake.deleted) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_termination_deletes_the_sandbox(fake, number):
    p = start_asleep(fake, "run", "--", "deaf")
    p.send_signal(number)
    p.communicate(timeout=20)
    assert p.returncode == 128 + number and not fake.sandboxes


def test_interrupt_while_the_sandbox_is_being_made(fake):
    fake.hold_create = 5
    with subprocess.Popen([SPACE, "run", "--", "sleep"], env=env_of(fake)) as p:
        while not fake.create_bodies:
            time.sleep(0.01)
        p.send_signal(signal.SIGINT)
        assert p.wait(20) == 130
    assert not fake.sandboxes and len(fake.deleted) == 1


def test_interrupted_exec_leaves_the_sandbox(fake, cli):
    box = cli("create").stdout.decode().strip()
    p = start_asleep(fake, "exec", box, "--", "deaf")
    p.send_signal(signal.SIGTERM)
    p.communicate(timeout=20)
    assert p.returncode == 143 and list(fake.sandboxes) == [box]


# --- the other verbs
def test_options_of_run_reach_the_api(cli, fake):
    done = cli("run", "--isolation", "microvm", "--cpus", "0.5", "--memory=256", "--disk", "100", "--pids", "9", "--name",
               "box", "--metadata", "a=b", "--env", "X=1=2", "-e", "HOME_OF", "--user", "root", "--cwd", "/tmp", "--timeout",
               "3s", "--untrusted", "env", "--", "-x", HOME_OF="me")
    assert done.returncode == 0, done
    assert fake.create_bodies == [{"isolation": "microvm", "name": "box", "metadata": {"a": "b"}, "untrusted": True,
                                   "on_idle": "delete", "idle_timeout": "10m",
                                   "resources": {"cpus": 0.5, "memory_mb": 256, "disk_mb": 100, "pids": 9}}]
    assert json.loads(done.stdout) == {"command": ["env", "--", "-x"], "env": {"X": "1=2", "HOME_OF": "me"},
                                       "user": "root", "cwd": "/tmp", "timeout": "3s", "stdin": "none"}


def test_rm_false_keeps_it_and_says_where(cli, fake):
    done = cli("run", "--rm=false", "--", "exit", "0")
    assert done.returncode == 0 and list(fake.sandboxes)[0].encode() in done.stderr
    assert "on_idle" not in fake.create_bodies[0]


def test_create_ls_get_exec_rm(cli, fake):
    done = cli("create", "--name", "box", "--env", "A=1")
    box = done.stdout.decode().strip()
    assert done.returncode == 0 and list(fake.sandboxes) == [box]
    assert fake.create_bodies[0]["env"] == {"A": "1"}
    assert box in cli("ls").stdout.decode()
    assert "running" in cli("get", "box").stdout.decode()
    assert cli("exec", "box", "--", "exit", "5").returncode == 5
    assert cli("exec", box, "exit", "6").returncode == 6
    assert cli("exec", "-i", box, "--", "cat", stdin=b"in").stdout == b"in"
    assert cli("rm", box).returncode == 0 and not fake.sandboxes
    gone = cli("rm", box)
    assert gone.returncode == 125 and b"not_found" in gone.stderr
    assert cli("rm", "--force", box).returncode == 0
    assert cli("get", box).returncode == 125


# --- the lifecycle
@pytest.fixture
def box(cli):
    return cli("create", "--name", "box").stdout.decode().strip()


@pytest.mark.parametrize("never_wait", [False, True])
def test_pause_suspend_wake(cli, fake, box, never_wait):
    fake.never_wait = never_wait
    for args, state, body in [(["pause"], "paused", {}), (["wake"], "running", {}), (["suspend"], "suspended", {}),
                              (["suspend", "--no-memory"], "suspended", {"memory": False}), (["wake"], "running", {})]:
        done = cli(*args, "box")
        assert (done.returncode, done.stdout.decode(), done.stderr) == (0, box + "\n", b""), args
        assert fake.sandboxes[box]["state"] == state and fake.change_bodies[-1] == (args[0], box, body)
    answer = json.loads(cli("pause", "--json", box).stdout)
    assert answer["sandbox"]["state"] == "paused" and answer["operation"]["state"] == "succeeded"


def test_every_id_is_tried_and_one_failure_is_125(cli, fake, box):
    done = cli("pause", "nosuch", box)
    assert done.returncode == 125 and done.stdout.decode() == box + "\n" and b"not_found" in done.stderr
    fake.change_errors["wake"] = ("conflict", "operation op_x is under way")
    done = cli("wake", box)
    assert (done.returncode, done.stdout, done.stderr) == (125, b"", b"space: operation op_x is under way (conflict)\n")


def test_a_refusal_says_what_to_do(cli, fake, box):
    fake.change_errors["suspend"] = ("unsupported", "no CRIU here; use memory: false", "/memory")
    assert cli("suspend", box).stderr == b"space: no CRIU here; use memory: false (unsupported, field /memory)\n"


@pytest.mark.parametrize("never_wait", [False, True])
def test_fork_prints_the_children(cli, fake, box, never_wait):
    fake.never_wait = never_wait
    done = cli("fork", "-n", "3", "box")
    children = done.stdout.decode().split()
    assert done.returncode == 0 and len(children) == 3 and set(children) | {box} == set(fake.sandboxes)
    assert fake.change_bodies[-1] == ("fork", box, {"count": 3})
    cli("fork", "--no-memory", box)
    assert fake.change_bodies[-1] == ("fork", box, {"count": 1, "memory": False})
    assert cli("fork", "-n", "0", box).returncode == 125


@pytest.mark.parametrize("json_too", [False, True])
def test_fork_says_which_children_failed_and_removes_them(cli, fake, box, json_too):
    fake.fork_refuses, fake.fork_fails = {1}, {2}
    done = cli("fork", "-n", "4", box, *(["--json"] if json_too else []))
    assert done.returncode == 125
    assert b"no more than that (quota_exceeded)" in done.stderr and b"no room for this one (unavailable)" in done.stderr
    if json_too:
        results = json.loads(done.stdout)["results"]
        assert ["error" in r for r in results] == [False, True, True, False]
        assert results[2]["error"]["code"] == "unavailable"
    else:
        assert len(done.stdout.split()) == 2
    assert len(fake.sandboxes) == 3 and len(fake.deleted) == 1


@pytest.mark.parametrize("never_wait", [False, True])
def test_snapshots_from_beginning_to_end(cli, fake, box, never_wait):
    fake.never_wait = never_wait
    first = cli("snapshot", "--name", "one", "box").stdout.decode().strip()
    second = cli("snapshot", "--no-memory", box).stdout.decode().strip()
    assert list(fake.snapshots) == [first, second]
    assert [b for c, _, b in fake.change_bodies if c == "snapshots"] == [{"name": "one"}, {"memory": False}]
    listed = cli("snapshot", "ls").stdout.decode()
    assert first in listed and second in listed and "4.1\u00a0kB" in listed
    assert json.loads(cli("snapshot", "ls", "--json", "--sandbox", "box").stdout)["items"] == list(fake.snapshots.values())
    assert json.loads(cli("snapshot", "get", "--json", "one").stdout) == fake.snapshots[first]
    assert "sandbox_id" in cli("snapshot", "get", first).stdout.decode()
    assert cli("rollback", "box", "one").stdout.decode() == box + "\n"
    assert fake.change_bodies[-1] == ("rollback", box, {"snapshot_id": first})
    assert json.loads(cli("rollback", "--json", box, second).stdout)["operation"]["kind"] == "rollback"
    assert cli("rollback", box, "nosuch").returncode == 125 and cli("rollback", box).returncode == 125
    old = fake.snapshots["snp_" + "0" * 26] = dict(fake.snapshots[first], id="snp_" + "0" * 26, state="deleting")
    assert json.loads(cli("snapshot", "get", "--json", "one").stdout)["id"] == first  # that one is as good as gone
    del fake.snapshots[old["id"]]
    assert cli("snapshot", "rm", "one", second).returncode == 0 and fake.snapshots == {}
    gone = cli("snapshot", "rm", first)
    assert gone.returncode == 125 and b"not_found" in gone.stderr


def test_create_and_run_from_a_snapshot(cli, fake, box):
    snapshot = cli("snapshot", "--name", "ready", box).stdout.decode().strip()
    assert cli("create", "--snapshot", "ready").returncode == 0
    assert cli("run", "--snapshot", snapshot, "--", "exit", "4").returncode == 4
    assert [b.get("snapshot_id") for b in fake.create_bodies] == [None, snapshot, snapshot]
    cli("snapshot", "--name", "ready", box)
    twice = cli("create", "--snapshot", "ready")
    assert twice.returncode == 125 and b"more than one" in twice.stderr and len(fake.create_bodies) == 3


def test_a_suspended_sandbox_ends_the_stream_with_125(cli, fake, box):
    done = cli("exec", box, "--", "napping")
    assert (done.returncode, done.stdout) == (125, b"half\n")
    assert done.stderr == b"space: the sandbox was suspended; the command goes on after `space wake`\n"
    done = cli("run", "--", "napping")  # whoever suspended it wants it again: it stays
    assert done.returncode == 125 and b"the sandbox stays" in done.stderr and not fake.deleted
    events = [json.loads(line) for line in cli("exec", "--json", box, "--", "napping").stdout.splitlines()]
    assert [e["type"] for e in events] == ["started", "stdout", "suspended"]


def test_get_says_how_busy_it_is(cli, fake, box):
    fake.sandboxes[box]["busy"] = {"sessions": 2, "attached": 1, "executions": 0, "cpu": 3.5}
    assert "sessions 2, attached 1, executions 0, cpu 3.5 % of a core" in cli("get", box).stdout.decode()
    assert json.loads(cli("get", "--json", box).stdout)["busy"]["cpu"] == 3.5


def test_a_name_that_two_have_is_refused(cli):
    cli("create", "--name", "twin")
    cli("create", "--name", "twin")
    done = cli("rm", "twin")
    assert done.returncode == 125 and b"more than one" in done.stderr


def test_lists_are_read_to_their_end(cli, fake):
    fake.page_size = 2
    boxes = sorted(cli("create").stdout.decode().strip() for _ in range(5))
    listed = json.loads(cli("ls", "--json").stdout)
    assert [b["id"] for b in listed["items"]] == boxes and listed["next_cursor"] is None


def test_json_is_the_apis_own(cli, fake):
    created = json.loads(cli("create", "--json").stdout)
    box = created["sandbox"]["id"]
    assert created["operation"]["state"] == "succeeded"
    assert json.loads(cli("get", "--json", box).stdout) == fake.sandboxes[box]
    ops = json.loads(cli("ops", "--json").stdout)
    assert ops["items"][0]["kind"] == "create"
    assert json.loads(cli("ops", "--json", ops["items"][0]["id"]).stdout) == ops["items"][0]
    assert json.loads(cli("template", "ls", "--json").stdout)["items"][0]["name"] == "seed"
    events = [json.loads(line) for line in cli("exec", "--json", box, "--", "echo", "hi").stdout.splitlines()]
    assert [e["type"] for e in events] == ["started", "stdout", "process_exited"]
    assert json.loads(cli("rm", "--json", box).stdout)["operation"]["kind"] == "delete"
    first, *events = [json.loads(line) for line in cli("run", "--json", "--", "exit", "3").stdout.splitlines()]
    assert first["sandbox"]["id"] and events[-1]["exit_code"] == 3
    assert b"at_" not in cli("run", "--json", "--", "exit", "0").stdout


def test_ops_shows_steps(cli):
    cli("create")
    op = json.loads(cli("ops", "--json").stdout)["items"][0]["id"]
    assert "1.5 ms" in cli("ops", op).stdout.decode()


def test_foreign_text_does_not_reach_the_terminal_raw(cli, fake):
    cli("create", "--name", "x")
    next(iter(fake.sandboxes.values()))["name"] = "evil\x1b[2Jname"
    for verb in (["ls"], ["get", next(iter(fake.sandboxes))]):
        assert b"\x1b" not in cli(*verb).stdout


def test_template_build_follows_and_prints_the_digest(cli, fake, tmp_path):
    (tmp_path / "recipe.json").write_text('{"name": "mine", "packages": ["bash"]}')
    done = cli("template", "build", "--tag", "v2", str(tmp_path))
    assert done.returncode == 0 and done.stdout.decode() == "sha256:" + "a" * 64 + "\n"
    assert done.stderr == b"step one\nstep two\n"
    assert fake.build_bodies == [{"name": "mine", "tag": "v2", "recipe": {"name": "mine", "packages": ["bash"]}}]
    fake.build_fails = True
    done = cli("template", "build", str(tmp_path))
    assert done.returncode == 125 and b"mmdebstrap failed" in done.stderr
    assert cli("template", "build", str(tmp_path / "none")).returncode == 125
    assert cli("template", "rm", "mine:v2").returncode == 0


def test_doctor_reports_checks_and_the_servers_tiers(cli, fake):
    done = cli("doctor", "--json")
    report = json.loads(done.stdout)
    assert {c["name"] for c in report["checks"]} >= {"kernel", "cgroups", "kvm", "qemu", "mkfs.erofs", "memory", "disk"}
    assert report["server"]["answers"] is True and report["server"]["nodes"][0]["tiers"] == fake.tiers
    assert done.returncode == (0 if report["ok"] else 1)
    fake.tiers = [{"tier": "microvm", "available": False, "detail": "no qemu here"}]
    done = cli("doctor")
    assert done.returncode == 1 and b"no qemu here" in done.stdout and b"suspend" not in done.stdout
    fake.tiers = [{"tier": "container", "available": True, "detail": "fake", "save_memory": False,
                   "save_memory_detail": "there is no CRIU"},
                  {"tier": "microvm", "available": True, "detail": "tcg", "save_memory": True}]
    done = cli("doctor")
    assert done.returncode == (0 if report["ok"] else 1)  # it is only better to have
    lines = [line.split(None, 2) for line in done.stdout.decode().splitlines() if " suspend " in line]
    assert [(line[0], line[2].split(" (")[0]) for line in lines] == [
        ("MISSING", "container there is no CRIU"), ("ok", "microvm  keeps memory")]


def test_configuration_by_file(fake, tmp_path):
    (tmp_path / "client.conf").write_text(f"url: {fake.origin('control')}\nkey: {KEY}\ndata_url: {fake.origin('data')}\n")
    env = {k: v for k, v in os.environ.items() if not k.startswith("SPACE_")}
    args = [SPACE, "run", "--state", str(tmp_path), "--", "exit", "8"]
    assert subprocess.run(args, env=env, timeout=20, check=False).returncode == 8
    assert all(r["path"] != "/v1/nodes" for r in fake.requests)  # the data plane is known
    # --state is meant: the environment does not override it
    env.update(SPACE_URL="http://127.0.0.1:9", SPACE_KEY="sk_other")
    assert subprocess.run(args, env=env, timeout=20, check=False).returncode == 8


def test_the_files_key_is_not_sent_to_another_server(fake, tmp_path, cli):
    done = cli("ls", SPACE_KEY="", SPACE_URL=fake.origin("elsewhere"))
    assert done.returncode == 125 and fake.sent_to("elsewhere") == []


def test_help_lists_every_verb_and_its_options(cli):
    listed = cli("help").stdout.decode()
    for verb in ("up", "down", "run", "create", "ls", "get", "rm", "exec", "template build", "doctor", "ops", "pause",
                 "suspend", "wake", "fork", "snapshot", "snapshot ls", "snapshot rm", "rollback"):
        assert verb in listed
        page = cli("help", *verb.split())
        assert page.returncode == 0 and b"--help" in page.stdout
        assert cli(*verb.split(), "--help").stdout == page.stdout
    for hidden in ("server", "worker", "launcher"):
        assert f"  {hidden} " not in listed
    assert cli("--version").stdout.startswith(b"space ")


def test_completion_is_valid_bash(cli):
    script = cli("completion", "bash").stdout.decode()
    check = script + '\nCOMP_WORDS=(space template b); COMP_CWORD=2; _space; echo "${COMPREPLY[@]}"' \
                     '\nCOMP_WORDS=(space run --iso); COMP_CWORD=2; _space; echo "${COMPREPLY[@]}"' \
                     '\nCOMP_WORDS=(space snapshot sbx --no); COMP_CWORD=3; _space; echo "${COMPREPLY[@]}"' \
                     '\nCOMP_WORDS=(space snapshot ls --sa); COMP_CWORD=3; _space; echo "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", check], capture_output=True, timeout=10, check=True)
    assert done.stdout == b"build\n--isolation\n--no-memory\n--sandbox\n"
