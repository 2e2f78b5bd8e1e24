#!/bin/sh
# Installs the Debian packages that SPACE needs, if any is missing. Usage: packages.sh GROUP…
# Groups: build, run, test, bench, fuzz, format. Quiet when there is nothing to do; needs root otherwise.
set -eu

packages_of() {
    case $1 in
    build)
        echo gcc libc6-dev make pkg-config meson ninja-build musl-tools linux-libc-dev \
            libglib2.0-dev libjansson-dev libmicrohttpd-dev libcurl4-gnutls-dev libsqlite3-dev libpq-dev \
            libseccomp-dev libcap-dev libgnutls28-dev python3
        ;;
    run)
        echo qemu-system-x86 mmdebstrap erofs-utils btrfs-progs util-linux mount \
            debian-archive-keyring ca-certificates lz4 python3 procps
        ;;
    test) echo python3-pytest curl iproute2 jq postgresql ;;
    bench) echo crun bubblewrap ;;
    fuzz) echo clang ;;
    format) echo clang-format ;;
    *)
        echo "packages.sh: no group \"$1\"" >&2
        exit 2
        ;;
    esac
}

is_installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# Any variant of libcurl's headers will do, and they exclude each other.
is_there() {
    is_installed "$1" || { [ "$1" = libcurl4-gnutls-dev ] && pkg-config --exists libcurl 2>/dev/null; }
}

missing=
for group in "$@"; do
    list=$(packages_of "$group")
    for package in $list; do
        is_there "$package" || missing="$missing $package"
    done
done
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "These packages are missing, and this is not a Debian system:$missing" >&2
    exit 1
fi
sudo=
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "As root: apt-get install --no-install-recommends$missing" >&2
        exit 1
    fi
    sudo=sudo
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
echo "Installing$missing …"

# The tests start PostgreSQL themselves: Debian's package is to make and start no cluster of its own
# (pg_createcluster(8)). Where it is installed already, nothing is changed.
case " $missing " in
*" postgresql "*)
    $sudo mkdir -p /etc/postgresql-common/createcluster.d
    echo "create_main_cluster = false" |
        $sudo tee /etc/postgresql-common/createcluster.d/space-tests.conf >/dev/null
    ;;
esac

# A fresh system has no lists of packages yet, and old lists name files that are gone from the mirror.
# shellcheck disable=SC2086
install() {
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
        -o Dpkg::Use-Pty=0 $missing >>"$log" 2>&1
}
if ! install; then
    echo "Reading the lists of packages …"
    if ! $sudo apt-get update -q >>"$log" 2>&1 || ! install; then
        tail -n 30 "$log" >&2
        echo "apt-get could not install:$missing" >&2
        exit 1
    fi
fi
