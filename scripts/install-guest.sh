#!/bin/sh
# Run by `meson install`: copies the guest kernel of the build directory. Usage: install-guest.sh DIR
set -eu

from=$MESON_BUILD_ROOT/guest
to=$MESON_INSTALL_DESTDIR_PREFIX/$1
if [ ! -s "$from/version" ]; then
    echo "No guest kernel in $from: microVMs will need one (scripts/setup/guest-kernel.sh)."
    exit 0
fi
rm -rf "$to"
mkdir -p "$to/modules"
install -m 644 "$from/vmlinux" "$from/version" "$to"
install -m 644 "$from"/modules/* "$to/modules"
