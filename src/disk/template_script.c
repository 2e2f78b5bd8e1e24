#include "disk/template_script.h"

const char sp_template_account_script[] =
    "umask 022\n"
    "groupadd --gid 1000 user\n"
    "useradd --uid 1000 --gid 1000 --create-home --home-dir /home/user --shell /bin/bash user\n"
    "install -d -o 1000 -g 1000 /workspace\n"
    "[ -d \"$1\" ] || install -d -o \"$2\" -g \"$2\" \"$1\"\n"
    "mkdir -p /etc/default\n"
    "echo LANG=C.UTF-8 > /etc/default/locale\n";

const char sp_template_finish_script[] =
    "umask 022\n"
    /* The build machine's mirrors, names and addresses. */
    "rm -rf /etc/apt/sources.list /etc/apt/sources.list.d /etc/apt/auth.conf /etc/apt/auth.conf.d\n"
    "rm -f /etc/apt/apt.conf.d/99mmdebstrap /etc/dpkg/dpkg.cfg.d/99mmdebstrap\n"
    "mkdir -p /etc/apt/sources.list.d /etc/apt/auth.conf.d\n"
    "for file in hostname machine-id resolv.conf; do\n"
    "    rm -f /etc/$file; : > /etc/$file; chmod 644 /etc/$file\n"
    "done\n"
    "printf '127.0.0.1\\tlocalhost\\n::1\\tlocalhost ip6-localhost ip6-loopback\\n' > /etc/hosts\n"
    "rm -f /etc/mtab /var/lib/dbus/machine-id\n"
    "ln -s ../proc/self/mounts /etc/mtab\n"
    /* Nobody becomes somebody else. */
    "find / -xdev -type f -perm /6000 -exec chmod ug-s {} +\n"
    /* Caches, logs, backups, dates. */
    "ldconfig\n"
    "rm -rf /var/lib/apt/lists /var/cache/apt /var/cache/ldconfig /var/cache/debconf/*-old\n"
    "mkdir -p /var/lib/apt/lists/partial /var/cache/apt/archives/partial\n"
    "rm -rf /var/lib/dpkg/*-old /etc/passwd- /etc/group- /etc/shadow- /etc/gshadow- /etc/subuid- "
    "/etc/subgid-\n"
    "sed -i -E 's/^([^:]*:[^:]*:)[0-9]+:/\\119723:/' /etc/shadow\n"
    "find /var/log -type f -delete\n"
    /* Byte code that is trusted without a look at the source: all files get one time stamp, so that
     * a comparison of times would throw it away at every start. */
    "if [ -x /usr/bin/python3 ]; then\n"
    "    find / -xdev -type d -name __pycache__ -prune -exec rm -rf {} +\n"
    "    for folder in /usr/lib/python3 /usr/lib/python3.* /usr/local/lib/python3.*; do\n"
    "        [ ! -d \"$folder\" ] || python3 -I -m compileall -q -j 1 "
    "--invalidation-mode unchecked-hash \"$folder\"\n"
    "    done\n"
    "fi\n"
    "find /tmp /var/tmp /run -mindepth 1 -delete\n"
    "mkdir -p /run/lock\n"
    "chmod 1777 /tmp /var/tmp /run/lock\n"
    "find /dev -mindepth 1 -delete\n";
