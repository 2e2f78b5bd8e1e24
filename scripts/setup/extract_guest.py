#!/usr/bin/env python3
"""Takes what the microVM tier boots out of an unpacked kernel package.

Usage: extract_guest.py PACKAGE_ROOT OUT_DIR

Writes OUT_DIR/vmlinux (the ELF kernel inside the bzImage, which QEMU starts through its PVH entry),
OUT_DIR/modules/*.ko and OUT_DIR/modules/order (file names, one a line, each after those it depends on).
"""

import pathlib
import re
import shutil
import struct
import subprocess
import sys

# What the agent, as the guest's first process, loads; what these depend on is added.
WANTED = """virtio_ring virtio virtio_mmio virtio_console virtio_blk failover net_failover virtio_net virtio-rng
            overlay crc32c-intel crc32c_generic libcrc32c erofs""".split()

# First bytes of a compressed stream, and the command that unpacks it from stdin.
UNPACKERS = [
    (b"\x02\x21\x4c\x18", ["lz4", "-d", "-c", "-"]),  # LZ4, the old framing, as the kernel uses it
    (b"\x1f\x8b", ["gzip", "-d", "-c"]),
    (b"\xfd7zXZ", ["xz", "-d", "-c"]),
    (b"\x28\xb5\x2f\xfd", ["zstd", "-d", "-c", "-q"]),
]


def unpack(data, what):
    for magic, command in UNPACKERS:
        if data.startswith(magic):
            if shutil.which(command[0]) is None:
                sys.exit(f"{command[0]} is needed to unpack {what}, and is not installed")
            # Behind the stream may be padding that the tool complains about after all of it is out.
            return subprocess.run(command, input=data, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    return data


def extract_vmlinux(bzimage):
    """The payload of a bzImage (Linux, Documentation/arch/x86/boot.rst): its offset counts from the
    protected-mode code, which comes after the boot sector and setup_sects sectors."""
    setup_sects = bzimage[0x1F1] or 4
    magic, version = struct.unpack_from("<4sH", bzimage, 0x202)
    if magic != b"HdrS" or version < 0x208:
        sys.exit("the kernel image is not a bzImage of boot protocol 2.08 or later")
    offset, length = struct.unpack_from("<II", bzimage, 0x248)
    start = (setup_sects + 1) * 512 + offset
    # The last four bytes are the unpacked size (not part of the LZ4 stream).
    payload = bzimage[start:start + length]
    size = struct.unpack_from("<I", payload, length - 4)[0]
    if payload.startswith(b"\x02\x21\x4c\x18"):
        payload = payload[:-4]
    vmlinux = unpack(payload, "the kernel")
    if not vmlinux.startswith(b"\x7fELF") or len(vmlinux) != size:
        sys.exit(f"the kernel's payload does not unpack to an ELF file of {size} bytes")
    return vmlinux


def key(name):
    return name.replace("-", "_")


def main():
    root, out = map(pathlib.Path, sys.argv[1:3])
    images = sorted(root.glob("boot/vmlinuz-*"))
    if len(images) != 1:
        sys.exit(f"expected one kernel in {root}/boot, found {len(images)}")
    release = images[0].name.removeprefix("vmlinuz-")
    tree = next((d for d in (root / "lib/modules" / release, root / "usr/lib/modules" / release) if d.is_dir()), None)
    if tree is None:
        sys.exit(f"no modules of {release} in the package")
    (out / "modules").mkdir(parents=True, exist_ok=True)
    (out / "vmlinux").write_bytes(extract_vmlinux(images[0].read_bytes()))

    files = {key(re.sub(r"\.ko(\.\w+)?$", "", p.name)): p for p in tree.rglob("*.ko*")}
    builtin = {key(pathlib.Path(line).stem) for line in (tree / "modules.builtin").read_text().splitlines()}
    order = []

    def add(name, needed_by):
        if key(name) in builtin or any(key(name) == key(done[:-3]) for done in order):
            return
        path = files.get(key(name))
        if path is None:
            sys.exit(f"the kernel has no module {name} (needed by {needed_by})")
        module = unpack(path.read_bytes(), path.name)
        depends = re.search(rb"\0depends=([^\0]*)\0", module)
        for other in depends.group(1).decode().split(",") if depends and depends.group(1) else []:
            add(other, name)
        file_name = re.sub(r"\.ko(\.\w+)?$", ".ko", path.name)
        (out / "modules" / file_name).write_bytes(module)
        order.append(file_name)

    for name in WANTED:
        add(name, "SPACE")
    (out / "modules" / "order").write_text("".join(f"{name}\n" for name in order))


if __name__ == "__main__":
    main()
