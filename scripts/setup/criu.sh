#!/bin/sh
# Builds CRIU from an unpacked source tree (4.2 or newer) and puts the program where it is wanted.
# Usage: criu.sh SOURCE [DESTINATION], by default /usr/local/sbin/criu. Debian 12 has none that works on
# new kernels (docs/container.md); a worker tries out what it finds in PATH or in SPACE_CRIU.
set -eu

source=${1:?Usage: criu.sh SOURCE [DESTINATION]}
destination=${2:-/usr/local/sbin/criu}
major=$(sed -n 's/^CRIU_VERSION_MAJOR[^0-9]*\([0-9]*\).*/\1/p' "$source/Makefile.versions")
minor=$(sed -n 's/^CRIU_VERSION_MINOR[^0-9]*\([0-9]*\).*/\1/p' "$source/Makefile.versions")
if [ "${major:-0}" -lt 4 ] || { [ "$major" -eq 4 ] && [ "${minor:-0}" -lt 2 ]; }; then
    echo "criu.sh: $source is version ${major:-?}.${minor:-?}; 4.2 or newer is needed" >&2
    exit 1
fi
if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends gcc make pkg-config \
        python3-protobuf protobuf-compiler protobuf-c-compiler libprotobuf-dev libprotobuf-c-dev \
        libnl-3-dev libnl-route-3-dev libnet1-dev uuid-dev libaio-dev libbsd-dev libcap-dev \
        libgnutls28-dev iproute2 tar >/dev/null
fi
make -C "$source" -j"$(nproc)" criu NO_AMDGPU=1 >/dev/null
install -D -m 755 "$source/criu/criu" "$destination"
"$destination" --version
