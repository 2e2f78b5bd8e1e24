"""`space doctor --repair`: each inconsistency is made by hand on a real installation (with the fake driver), found, and mended or left.

What may be mended is a table of its own (tests/unit/cli/findings.c); here it is shown that it is found on a real host, that mending
really takes it away, and that nothing else goes with it.
"""

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

from conftest import BUILD
from leaks import Inventory
from test_cli_up import ENV, Up, wait_for

SPACE = str(BUILD / "space")
GHOST = "sbx_" + "0" * 25 + "1"
OLD_S = 2 * 60 * 60

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: making leftovers needs root")


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    up = Up(tmp_path_factory.mktemp("doctor"))
    up.start()
    yield up
    if up.process.poll() is None:
        up.stop()
    assert up.down().returncode == 0


def doctor(up, *args):
    done = subprocess.run([SPACE, "doctor", "--json", "--state", str(up.state), *args], capture_output=True, timeout=60, env=ENV,
                          check=False)
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["ok"] else 1)
    return report["state"]


def found(up, *args):
    """{(kind, name): finding}"""
    return {(f["kind"], f["name"]): f for f in doctor(up, *args)["findings"]}


def age(path, seconds=OLD_S):
    then = time.time() - seconds
    os.utime(path, (then, then), follow_symlinks=False)


def group_dirs(up, name):
    """Of a control group, in every hierarchy that the installation uses."""
    root = Inventory.group_name(os.path.realpath(up.state))
    top = pathlib.Path("/sys/fs/cgroup")
    if (top / "cgroup.controllers").exists():
        return [top / root / name]
    more = ["unified"] if (top / "unified").is_dir() else ["freezer", "cpuacct"]
    return [top / part / root / name for part in [*more, "memory", "pids", "cpu"]]


def make_layer(up, name=GHOST):
    path = up.state / "data/layers" / name
    if subprocess.run(["btrfs", "subvolume", "create", str(path)], capture_output=True, check=False).returncode:
        path.mkdir()
    (path / "upper").mkdir()
    (path / "upper/file").write_text("x")
    return path


def make_disk(up):
    path = up.state / "data/layers" / (GHOST + ".disk")
    path.write_bytes(bytes(4096))
    return path


def make_tmp(up):
    path = up.state / "data/tmp" / "new-something"
    (path / "deep").mkdir(parents=True)
    return path


def make_group(up):
    dirs = group_dirs(up, GHOST)
    for path in dirs:
        path.mkdir(parents=True)
    return dirs[0]


def make_run(up, name=GHOST):
    path = up.state / "run/sandboxes" / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def make_saved(up, name=GHOST):
    path = up.state / "data/saved" / name
    path.mkdir(parents=True)
    (path / "manifest.json").write_text("{}")
    return path


MENDED = [("layer", GHOST, make_layer), ("layer", GHOST + ".disk", make_disk), ("tmp", "new-something", make_tmp),
          ("cgroup", GHOST, make_group)]


def test_an_installation_in_order_has_no_findings(up):
    state = doctor(up)
    assert state["looked"] and state["findings"] == [] and state["server"] == "answers" and state["worker"] == "answers"


@pytest.mark.parametrize("kind,name,make", MENDED)
def test_what_no_record_names_goes(up, kind, name, make):
    """L9: found, and mended by `--repair` alone."""
    path = make(up)
    assert (kind, name) not in found(up), "what is young may be in the making"
    assert (kind, name) not in found(up, "--repair") and path.exists()
    age(path)
    finding = found(up)[kind, name]
    assert not finding["mended"] and "hint" not in finding and path.exists(), "only --repair changes anything"
    assert found(up, "--repair")[kind, name]["mended"]
    assert not path.exists() and found(up) == {}


def test_processes_in_a_group_without_a_record_are_left(up):
    first = make_group(up)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        for path in group_dirs(up, GHOST):
            (path / "cgroup.procs").write_text(str(process.pid))
        age(first)
        finding = found(up, "--repair")["cgroup", GHOST]
        assert not finding["mended"] and "processes" in finding["hint"] and process.poll() is None
        process.communicate(b"\n", timeout=10)
    assert found(up, "--repair")["cgroup", GHOST]["mended"] and not first.exists()


@pytest.mark.parametrize("kind,make", [("saved form", make_saved), ("run directory", make_run)])
def test_unknown_is_not_deleted(up, kind, make):
    """L7, L9: a sandbox that the server never heard of is shown and left."""
    path = make(up)
    if kind == "run directory":
        (path / "instance.ini").write_text("[instance]\nid=" + GHOST + "\n")
    age(path)
    try:
        finding = found(up, "--repair")[kind, GHOST]
        assert not finding["mended"] and "never heard" in finding["hint"] and path.exists()
    finally:
        subprocess.run(["rm", "-r", str(path)], check=True)


def test_an_empty_run_directory_goes(up):
    path = make_run(up)
    age(path)
    assert found(up, "--repair")["run directory", GHOST]["mended"] and not path.exists()


def test_a_row_without_a_sandbox_and_two_owners_are_shown(up):
    first, second = GHOST, GHOST[:-1] + "2"
    for name in (first, second):
        (make_run(up, name) / "instance.ini").write_text(
            f"[instance]\nid={name}\ntier=container\ntemplate_digest=x\nboot_id=x\nslot=7\nstarted=true\npid=0\npid_start_ticks=0\n")
    try:
        finding = found(up)["two owners", f"{first}, {second}"] if ("two owners", f"{first}, {second}") in found(up) \
            else found(up)["two owners", f"{second}, {first}"]
        assert "slot 7" in finding["what"] and "hint" in finding
    finally:
        for name in (first, second):
            subprocess.run(["rm", "-r", str(up.state / "run/sandboxes" / name)], check=True)


def test_without_daemons_it_mends_what_needs_no_server(up):
    up.stop()
    layer, tmp, group, run, saved = make_layer(up), make_tmp(up), make_group(up), make_run(up, GHOST[:-1] + "3"), make_saved(up)
    mount = up.state / "data/layers" / (GHOST[:-1] + "4")
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(mount)], check=True)
    try:
        state = doctor(up)
        assert state["server"] == state["worker"] == "it does not run"
        findings = found(up, "--repair")
        assert {k for k, f in findings.items() if f["mended"]} == {
            ("layer", GHOST), ("tmp", "new-something"), ("cgroup", GHOST), ("mount", mount.name), ("layer", mount.name)}
        assert not any(p.exists() for p in (layer, tmp, group, mount))
        assert run.exists() and saved.exists() and "not asked" in findings["saved form", GHOST]["hint"]
    finally:
        subprocess.run(["rm", "-r", str(saved), str(run)], check=False)
        up.start()
    wait_for(up.ready)


def test_it_says_so_in_words(up):
    path = make_disk(up)
    age(path)
    done = subprocess.run([SPACE, "doctor", "--state", str(up.state)], capture_output=True, text=True, timeout=60, env=ENV, check=False)
    assert done.returncode == 1 and f"WRONG    layer {GHOST}.disk: no record names it" in done.stdout
    done = subprocess.run([SPACE, "doctor", "--repair", "--state", str(up.state)], capture_output=True, text=True, timeout=60, env=ENV,
                          check=False)
    assert f"mended   layer {GHOST}.disk" in done.stdout and not path.exists()
