#!/bin/sh
# The first process of the VM of scripts/test-cgroup-v2.sh: sets the system up as systemd would, runs the tests, ends.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
for line in "proc /proc" "sysfs /sys" "devtmpfs /dev" "tmpfs /run" "tmpfs /tmp"; do
    # shellcheck disable=SC2086
    set -- $line
    mountpoint -q "$2" || mount -t "$1" "$1" "$2"
done
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t cgroup2 -o nsdelegate,memory_recursiveprot cgroup2 /sys/fs/cgroup
mount --make-rshared /
ip link set lo up
hostname v2vm
modprobe -a loop btrfs overlay erofs
uname -a
cat /proc/cmdline /sys/fs/cgroup/cgroup.controllers

/opt/space/tests/v2vm/run.sh </dev/null 2>&1
result=$?
echo
[ "$result" = 0 ] && echo "v2vm: passed" || echo "v2vm: FAILED"
sync
echo o >/proc/sysrq-trigger
sleep 60
