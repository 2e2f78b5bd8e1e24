#!/bin/sh
# Inside the VM: all suites; fails when one does.
cd /opt/space || exit 1
result=0
export SPACE_BUILD=/opt/space/build SPACE_TEST_STATE=/var/lib/space-test
pytest() {
    /usr/bin/python3 -B -m pytest -p no:cacheprovider -v -ra --durations=15 "$@" || result=1
}
# First, while the root group is as it was after booting.
echo "== groups"
pytest tests/v2vm

# meson's environment of these tests (tests/unit/*/meson.build)
export SPACE_GOLDEN_DIR=/opt/space/tests/unit/driver/golden SP_SOURCE_ROOT=/opt/space
export SPACE_STANDIN=/opt/space/build/tests/unit/driver/test-standin-agent
for test in os/test-os-cgroup os/test-os-fdpass_pidfd os/test-os-mount os/test-os-seccomp \
    disk/test-disk-clone disk/test-disk-image disk/test-disk-layer disk/test-disk-volume disk/test-disk-program \
    driver/test-driver-launcher driver/test-driver-container; do
    echo "== $test"
    timeout 600 "build/tests/unit/$test" || { result=1; echo "$test: exit code $?"; }
done

echo "== end to end"
arguments=/opt/space/pytest-arguments
if [ -s "$arguments" ]; then
    # shellcheck disable=SC2046
    set -- $(cat "$arguments")
    pytest "$@"
    exit $result
fi
# Of the agent's own tests those about its groups: others measure time, which emulation has little of.
pytest tests/e2e/test_agent.py -k "forget_kills or session_scope or cgroup or namespace or oom or processes or reaped or protected"
pytest tests/e2e/test_run_verb.py tests/e2e/test_http_walk.py tests/e2e/test_inside.py tests/e2e/test_requests.py \
    tests/e2e/test_crash.py -k "not microvm"
exit $result
