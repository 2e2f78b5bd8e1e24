"""What SPACE has on this host right now, so that a test can show that nothing was left over."""

import glob
import os


def _read(path):
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError:
        return b""


class Inventory:
    """Sets of names by kind; a kind maps to what exists of it."""

    def __init__(self, kinds):
        self.kinds = kinds

    @classmethod
    def take(cls, state):
        state = os.path.realpath(state)
        return cls({
            "processes": cls._processes(),
            "mounts": cls._mounts(state),
            "cgroups": cls._cgroups(),
            "network namespaces": cls._net_namespaces(),
            "loop devices": cls._loops(),
            "run directories": set(os.listdir(f"{state}/run/sandboxes"))
            if os.path.isdir(f"{state}/run/sandboxes") else set(),
            "layers": set(os.listdir(f"{state}/data/layers")) if os.path.isdir(f"{state}/data/layers") else set(),
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
    def _processes():
        found = set()
        for stat in glob.glob("/proc/[0-9]*/stat"):
            raw = _read(stat).decode(errors="replace")
            if not raw or ") " not in raw:
                continue
            name = raw[raw.index("(") + 1:raw.rindex(")")]
            if name in ("space-agent", "agent") or name.startswith("qemu-system"):
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
    def _cgroups():
        found = set()
        for root in ["/sys/fs/cgroup"] + glob.glob("/sys/fs/cgroup/*/"):
            for path in glob.glob(os.path.join(root, "space-*/*/")):
                found.add(path)
        return found

    @staticmethod
    def _net_namespaces():
        found = set()
        for link in glob.glob("/proc/[0-9]*/ns/net"):
            try:
                found.add(os.readlink(link))
            except OSError:
                pass
        return found

    @staticmethod
    def _loops():
        return {path for path in glob.glob("/sys/block/loop*/loop/backing_file")
                if b"/images/" not in _read(path) and b"image.erofs" not in _read(path)
                and b"data.btrfs" not in _read(path)}
