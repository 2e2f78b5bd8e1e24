#!/bin/sh
# Runs the container tier where most machines are and this one may not be: Debian's own kernel with cgroup v2 only.
# Boots a Debian VM under QEMU's emulation (no KVM and no network are needed) and runs, inside it, the unit tests
# that depend on the kernel, the tests of tests/v2vm, and the end-to-end tests of the container tier.
# Usage: test-cgroup-v2.sh BUILD_DIR [ARGUMENTS]   Needs root. Keeps its system and template in BUILD_DIR/v2vm.
# With arguments, only what they name: first programs such as disk/test-disk-saved, then what pytest takes.
# With SPACE_CRIU the memory of containers is tested too.
set -eu

cd "$(dirname "$0")/.."
build=$(cd "$1" && pwd)
shift
work=$build/v2vm
minutes=${SPACE_V2VM_MINUTES:-60}
[ "$(id -u)" = 0 ] || { echo "test-cgroup-v2.sh needs root: it makes a root file system" >&2; exit 1; }
mkdir -p "$work"
scratch=$(mktemp -d "$work/run.XXXXXX")
state=$work/state
finish() {
    [ -e "$state/.template" ] || "$build/space" down --state "$state" >/dev/null 2>&1 || true
    rm -rf "$scratch"
}
trap finish EXIT
trap 'exit 1' INT TERM
# shellcheck source=/dev/null
codename=$(. /etc/os-release && echo "$VERSION_CODENAME")

# The packages of the libraries that the build, and CRIU, are linked with here.
libraries() {
    ldd "$build/space" ${SPACE_CRIU:+"$SPACE_CRIU"} | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p' | while read -r file; do
        dpkg-query -S "$file" 2>/dev/null || dpkg-query -S "/usr$file" 2>/dev/null || true
    done | sed 's/:.*//' | sort -u | tr '\n' ','
}

# A system with kernel and initramfs; made again when the list of packages changes.
packages=linux-image-cloud-amd64,zstd,kmod,iproute2,procps,util-linux,mount,erofs-utils,btrfs-progs,$(libraries)python3-pytest,curl,jq
root=$work/root
if [ "$(cat "$root/.packages" 2>/dev/null)" != "$packages" ]; then
    echo "Making a Debian system for the VM …"
    rm -rf --one-file-system "$root"
    if ! mmdebstrap --quiet --variant=minbase --include="$packages" "$codename" "$root" >"$scratch/log" 2>&1; then
        cat "$scratch/log" >&2
        exit 1
    fi
    echo "$packages" >"$root/.packages"
fi

# The seed template, built here, since the VM has no network to take packages from.
if [ ! -e "$state/.template" ]; then
    echo "Building the seed template for the VM …"
    rm -rf --one-file-system "$state"
    mkdir -p "$state"
    if ! "$build/space" up --state "$state" --api "127.0.0.1:$((20000 + $$ % 10000))" \
        --data "127.0.0.1:$((30000 + $$ % 10000))" --detach >"$scratch/log" 2>&1 ||
        ! "$build/space" template build --state "$state" templates/seed >>"$scratch/log" 2>&1; then
        cat "$scratch/log" >&2
        exit 1
    fi
    "$build/space" down --state "$state" >/dev/null
    rm -rf "$state/log" "$state/microvm"
    touch "$state/.template"
fi

# What is tested, at the place that the guest's script expects.
rm -rf "$root/opt/space" "$root/var/lib/space-test"
cp -al "$state" "$root/var/lib/space-test"
mkdir -p "$root/opt/space/build/agent"
cp -a tests templates "$root/opt/space/"
cp -a "$build/space" "$root/opt/space/build/"
cp -a "$build/agent/space-agent" "$root/opt/space/build/agent/"
rm -f "$root/usr/local/sbin/criu"
[ -z "${SPACE_CRIU:-}" ] || cp "$SPACE_CRIU" "$root/usr/local/sbin/criu"
(cd "$build" && find tests/unit -maxdepth 2 -type f -perm -100 -exec cp --parents -t "$root/opt/space/build" {} +)
echo "$*" | sed '/^$/d' >"$root/opt/space/pytest-arguments"
truncate -s 12G "$scratch/disk"
mkfs.ext4 -q -F -d "$root" "$scratch/disk"

echo "Booting the VM (emulated: $minutes minutes at most) …"
kernel=$(readlink -f "$root"/boot/vmlinuz-*)
timeout --foreground "${minutes}m" qemu-system-x86_64 -M q35 -accel tcg,thread=multi -cpu max,la57=off -smp 2 -m 3072 \
    -nographic -nodefaults -serial stdio -no-reboot -nic none -kernel "$kernel" -initrd "$root"/boot/initrd.img-* \
    -drive "file=$scratch/disk,if=virtio,format=raw,cache=unsafe" \
    -append "root=/dev/vda rw console=ttyS0 quiet panic=-1 no_timer_check mitigations=off cgroup_no_v1=all init=/opt/space/tests/v2vm/init.sh" \
    </dev/null | tee "$work/console.log" || true
# The guest's last line; nothing that a test prints begins so.
grep -q '^v2vm: passed' "$work/console.log"
