#!/bin/sh
# Inside the VM: all suites, or what the arguments name; fails when one does.
cd /opt/space || exit 1
result=0
export SPACE_BUILD=/opt/space/build SPACE_TEST_STATE=/var/lib/space-test
pytest() {
    /usr/bin/python3 -B -m pytest -p no:cacheprovider -v -ra --durations=15 "$@" || result=1
}
# meson's environment of these tests (tests/unit/*/meson.build)
export SPACE_GOLDEN_DIR=/opt/space/tests/unit/driver/golden SP_SOURCE_ROOT=/opt/space
export SPACE_STANDIN=/opt/space/build/tests/unit/driver/test-standin-agent
unit() {
    echo "== $1"
    # Left out: 46 000 files, and 100 forms, which take a minute and a half each here.
    timeout 600 "build/tests/unit/$1" -s /layer/inodes -s /container_save/nothing_is_left ||
        { echo "$1: exit code $?"; result=1; }
}
arguments=/opt/space/pytest-arguments
if [ -s "$arguments" ]; then
    # shellcheck disable=SC2046
    set -- $(cat "$arguments")
    while [ $# -gt 0 ] && [ -x "build/tests/unit/$1" ]; do
        unit "$1"
        shift
    done
    [ $# = 0 ] || pytest "$@"
    exit $result
fi
# First, while the root group is as it was after booting.
echo "== groups"
pytest tests/v2vm

for test in os/test-os-cgroup os/test-os-fdpass_pidfd os/test-os-file_lock os/test-os-mount os/test-os-seccomp \
    disk/test-disk-clone disk/test-disk-copy_tree disk/test-disk-image disk/test-disk-layer disk/test-disk-program \
    disk/test-disk-saved disk/test-disk-volume \
    driver/test-driver-launcher driver/test-driver-container driver/test-driver-container_save driver/test-driver-container_criu; do
    unit "$test"
done

echo "== end to end"
# Of the agent's own tests those about its groups: others measure time, which emulation has little of.
pytest tests/e2e/test_agent.py -k "forget_kills or session_scope or cgroup or namespace or oom or processes or reaped or protected"
pytest tests/e2e/test_run_verb.py tests/e2e/test_http_walk.py tests/e2e/test_inside.py tests/e2e/test_requests.py \
    tests/e2e/test_crash.py -k "not microvm"
# Of the lifecycle's those that are run in each tier.
pytest tests/e2e/test_lifecycle_pause.py tests/e2e/test_lifecycle_suspend.py tests/e2e/test_lifecycle_fork.py \
    tests/e2e/test_lifecycle_adopt.py -m "not slow" -k "container and not microvm"
exit $result
