#!/bin/sh
# Gets the kernel and the modules of the microVM tier: Debian's linux-image-cloud package, unpacked, not
# installed (docs/guest-kernel.md). Usage: guest-kernel.sh [GUEST_DIR] [--update]
# Does nothing when they are there; --update looks for a newer version.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
guest=build/guest
update=
for argument in "$@"; do
    case $argument in
    --update) update=1 ;;
    *) guest=$argument ;;
    esac
done

is_whole() {
    [ -s "$guest/vmlinux" ] && [ -s "$guest/modules/order" ] && [ -s "$guest/version" ]
}
if [ -z "$update" ] && is_whole; then
    exit 0
fi
if [ "$(dpkg --print-architecture)" != amd64 ]; then
    echo "The microVM tier needs an amd64 machine; leaving it out." >&2
    exit 0
fi

# The meta package depends on the package of one version: "linux-image-6.1.0-48-cloud-amd64 (= 6.1.170-1)".
meta=linux-image-cloud-amd64
find_kernel() {
    apt-cache show --no-all-versions "$meta" 2>/dev/null |
        sed -n 's/^Depends:.*\(linux-image-[^ ]*-cloud-amd64\) (= \([^)]*\)).*/\1=\2/p' | head -n 1
}
kernel=$(find_kernel)
if [ -z "$kernel" ]; then
    apt-get update -q >/dev/null
    kernel=$(find_kernel)
fi
if [ -z "$kernel" ]; then
    echo "apt knows no package $meta" >&2
    exit 1
fi
if is_whole && [ "$(cat "$guest/version")" = "$kernel" ]; then
    exit 0
fi

mkdir -p "$(dirname "$guest")"
guest=$(cd "$(dirname "$guest")" && pwd)/$(basename "$guest")
work=$(mktemp -d "$guest.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
echo "Getting the guest kernel $kernel …"
mkdir "$work/deb" "$work/root" "$work/guest"

# apt checks the package against the signed lists. Its own user cannot write here, hence the option.
download() {
    (cd "$work/deb" && apt-get download -q -o APT::Sandbox::User=root "$kernel" >"$work/log" 2>&1)
}
if ! download; then
    # The lists may be older than the mirror.
    apt-get update -q >/dev/null
    kernel=$(find_kernel)
    if ! download; then
        cat "$work/log" >&2
        echo "cannot download $kernel" >&2
        exit 1
    fi
fi
dpkg-deb -x "$work"/deb/*.deb "$work/root"
python3 "$here/extract_guest.py" "$work/root" "$work/guest"
echo "$kernel" >"$work/guest/version"

rm -rf "$guest"
mv "$work/guest" "$guest"
