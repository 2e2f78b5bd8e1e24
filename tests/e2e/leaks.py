"""What SPACE has on this host right now, so that a test can show that nothing was left over."""

import glob
import hashlib
import os
import re


def _read(path):
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError:
        return b""


def _names(folder):
    return set(os.listdir(folder)) if os.path.isdir(folder) else set()


class Inventory:
    """Sets of names by kind; a kind maps to what exists of it."""

    def __init__(self, kinds):
        self.kinds = kinds

    @classmethod
    def take(cls, state):
        state = os.path.realpath(state)
        own = cls.group_name(state)
        return cls({
            "processes": cls._processes(own),
            "mounts": cls._mounts(state),
            "cgroups": cls._cgroups(own),
            "network namespaces": cls._net_namespaces(own),
            "loop devices": cls._loops(),
            "run directories": _names(f"{state}/run/sandboxes"),
            "layers": _names(f"{state}/data/layers"),
            "saved forms": _names(f"{state}/data/saved"),
            "half made": {name for name in _names(f"{state}/data/tmp") if not name.startswith(".")},
        })

    def beyond(self, earlier):
        """What is here and was not in the earlier inventory."""
        extra = {}
        for kind, names in self.kinds.items():
            more = names - earlier.kinds[kind]
            if more:
                extra[kind] = sorted(more)
        return extra

    @staticmethod
    def group_name(state):
        """The control group of an installation (src/cli/up_start.c)."""
        return "space-" + hashlib.sha256(state.encode()).hexdigest()[:8]

    @staticmethod
    def _foreign(pid_dir, own):
        """Whether a process belongs to another installation on this host."""
        groups = set(re.findall(rb"space-[0-9a-f]{8}", _read(f"{pid_dir}/cgroup")))
        return bool(groups) and own.encode() not in groups

    @classmethod
    def _processes(cls, own):
        found = set()
        for stat in glob.glob("/proc/[0-9]*/stat"):
            raw = _read(stat).decode(errors="replace")
            if not raw or ") " not in raw:
                continue
            name = raw[raw.index("(") + 1:raw.rindex(")")]
            if (name in ("space-agent", "agent") or name.startswith("qemu-system")) \
                    and not cls._foreign(os.path.dirname(stat), own):
                found.add(f"{raw.split(' ', 1)[0]}:{name}")
        return found

    @staticmethod
    def _mounts(state):
        lines = _read("/proc/self/mountinfo").decode().splitlines()
        # the data volume and template images belong to the installation, not to a sandbox
        return {line.split()[4] for line in lines
                if line.split()[4].startswith(state + "/") and "/run/images/" not in line
                and line.split()[4] != f"{state}/data"}

    @staticmethod
    def _cgroups(own):
        found = set()
        for root in ["/sys/fs/cgroup"] + glob.glob("/sys/fs/cgroup/*/"):
            found.update(glob.glob(os.path.join(root, own, "*/")))
        return found

    @classmethod
    def _net_namespaces(cls, own):
        found = set()
        for link in glob.glob("/proc/[0-9]*/ns/net"):
            try:
                if not cls._foreign(link.rsplit("/", 2)[0], own):
                    found.add(os.readlink(link))
            except OSError:
                pass
        return found

    @staticmethod
    def _loops():
        return {path for path in glob.glob("/sys/block/loop*/loop/backing_file")
                if b"/images/" not in _read(path) and b"image.erofs" not in _read(path)
                and b"data.btrfs" not in _read(path)}
