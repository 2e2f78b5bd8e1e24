"""Every probe of probes.py, in each tier, as the ordinary user and as root: contained.

probes.py runs once for each (tier, user); the table below says where 'ok' is meant, and why.
"""

import json
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import probes  # noqa: E402

SOURCE = (pathlib.Path(__file__).parent / "probes.py").read_text()
CASES = ["container user", "container root", "microvm user", "microvm root"]

# The guest's own kernel answers these. It is the boundary of nothing but the user's own rights.
GUEST_KERNEL = {"unshare user", "clone user", "clone3 user", "keyctl", "add_key", "io_uring_setup", "modify_ldt",
                "personality", "int 0x80", "socket netlink audit", "socket netlink uevent", "read /proc/keys",
                "kallsyms shows addresses", "listns"}
# Signals to pid 1 are sent and have no effect (test_inside.py, test_root_cannot_kill_the_agent).
ALLOWED = {"container user": set(), "container root": {"signal 1"}, "microvm user": GUEST_KERNEL}
# Root owns the guest's kernel: only what leads out of the VM is asked.
ROOT_OF_A_VM = ["write /dev/vport0p1", "write /dev/kvm", "write /dev/hvc0", "socket AF_VSOCK", "connect documentation IPv4",
                "connect documentation IPv6", "inherited descriptors"]
NAMES = sorted(probes.probes()) + ["inherited descriptors"]
# What is not an errno.
EXACT = {"core limit": {"container": "(1, 1)", "microvm": "(0, 0)"}, "orphans": {"container": "done", "microvm": "done"},
         "inherited descriptors": {"container": "none", "microvm": "none"},
         "abstract sockets of others": {"container": "none", "microvm": "none"},
         "connect documentation IPv4": {"container": "ENETUNREACH", "microvm": "ENETUNREACH"},
         "connect documentation IPv6": {"container": "ENETUNREACH", "microvm": "ENETUNREACH"}}


@pytest.fixture(scope="module")
def results(installation):
    """(tier, user) -> {probe: result}; the sandbox still works when all is done."""
    api = installation.api()
    found = {}
    for tier in ("container", "microvm"):
        box = api.create(isolation=tier)
        try:
            for user in ("user", "root"):
                only = ROOT_OF_A_VM if (tier, user) == ("microvm", "root") else []
                done = api.exec(box["id"], "python3", "-c", SOURCE, *only, user=user, timeout="60s")
                assert done["exit_code"] == 0, done
                found[f"{tier} {user}"] = json.loads(done["stdout"])
                assert api.exec(box["id"], "echo", "alive")["stdout"] == "alive\n"
        finally:
            api.delete(box["id"])
    return found


@pytest.mark.parametrize("case,probe", [(case, probe) for case in CASES
                                        for probe in (ROOT_OF_A_VM if case == "microvm root" else NAMES)])
def test_contained(results, case, probe):
    got = results[case][probe]
    if probe in EXACT:
        assert got == EXACT[probe][case.split()[0]], got
    elif got.startswith("ok"):
        assert probe in ALLOWED.get(case, set()), f"{probe} as {case}: {got}"
