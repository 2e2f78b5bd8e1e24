/*
 * One QEMU process: its surroundings and its start.
 *
 * It runs under an unprivileged uid without capabilities, in namespaces of its own (mount, pid,
 * net, ipc, uts), in a read-only root that holds libraries, firmware and /proc, under QEMU's own
 * seccomp filter and cgroup limits. Everything it works on is passed as fds.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "driver/launcher.h"
#include "driver/microvm/argv.h"
#include "driver/plan.h"
#include "os/cgroup.h"

#define SP_VMM_QMP "qmp.sock"
#define SP_VMM_AGENT "agent.sock"
#define SP_VMM_LOG "qemu.log"

/* Threads of a VMM: main, one a CPU (64), QEMU's pool of disk workers (64), some to spare. */
#define SP_VMM_PIDS 160

/* All borrowed; fds may be -1 where the configuration does not need them. */
struct sp_vmm_spec {
    const char *name;    /* for messages */
    const char *run_dir; /* sockets and log are made here */
    struct sp_qemu_config config;
    const char *kvm_node; /* device node that any uid may open; KVM only */
    uint32_t uid;
    const struct sp_cgroup *cgroup; /* made already; NULL only in tests */
    uint64_t file_limit_bytes; /* no file may grow beyond: the size of the writable disk, and the
                                  log's bound */
    int memory_fd, root_fd, rw_fd, kernel_fd, initramfs_fd;
    bool track; /* load the library that lets its writes be tracked (track.h) */
};

/* The files that start() opens: /dev/kvm as a detached mount (which the plan takes over),
 * /dev/null, log, listening sockets, the library. */
struct sp_vmm_files {
    int kvm_fd, null_fd, log_fd, qmp_fd, agent_fd;
    int library_fd; /* only if spec->track */
};

/* The plan, without cgroup. Pure; fds may be -1 when it is only dumped. */
struct sp_plan *sp_vmm_plan(const struct sp_vmm_spec *spec, const struct sp_vmm_files *files);

/* Starts it. Sockets exist and take connections when this returns. On failure there is no process,
 * but sockets and log may be there. */
bool sp_vmm_start(struct sp_launcher *launcher, const struct sp_vmm_spec *spec, pid_t *ret_pid,
                  int *ret_pidfd, GError **error);

/* The end of the log as one line of printable text, at most 300 bytes; NULL when there is none. */
char *sp_vmm_log_tail(const char *run_dir);
/* Puts ": " and the end of the log behind the message. */
void sp_vmm_explain(const char *run_dir, GError **error);

/* Removes sockets and log. */
bool sp_vmm_remove_files(const char *run_dir, GError **error);
