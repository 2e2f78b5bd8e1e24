#include "identity.h"

#include "hold.h"
#include "link.h"
#include "restored.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/random.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#ifndef RNDRESEEDCRNG
#define RNDRESEEDCRNG _IO('R', 0x07) /* random(4), since Linux 4.17 */
#endif

#define OWN_HOST_LINE "127.0.1.1"
#define HOSTS_MAX_BYTES 16384u

/* Mixes bytes into the kernel's pool and makes the generator start from it at once. Clones of one
 * memory image would else hand out the same "random" bytes. */
static bool add_entropy(struct agent *a, struct sp_span entropy)
{
    struct {
        int entropy_bits, bytes;
        uint8_t data[SP_MSG_ENTROPY_MAX];
    } pool = {.entropy_bits = (int)(8 * entropy.len), .bytes = (int)entropy.len};
    uint8_t probe[16];

    int fd = a->random_fd >= 0 ? a->random_fd : open("/dev/urandom", O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return false;
    memcpy(pool.data, entropy.bytes, entropy.len);
    bool done = ioctl(fd, RNDADDENTROPY, &pool) == 0 && ioctl(fd, RNDRESEEDCRNG) == 0 &&
                getrandom(probe, sizeof probe, GRND_NONBLOCK) == (ssize_t)sizeof probe;
    explicit_bzero(&pool, sizeof pool);
    if (fd != a->random_fd)
        close(fd);
    return done;
}

/* Opens a file of /etc to replace its content; a link is replaced, never followed. Not truncated:
 * ext4 writes a truncated file back as soon as it is closed (auto_da_alloc), which a create would
 * wait for. */
static int open_for_write(const char *path)
{
    int flags = O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY;
    int fd = open(path, flags, 0644);
    if (fd < 0 && errno == ELOOP && unlink(path) == 0)
        fd = open(path, flags, 0644);
    struct stat st;
    if (fd >= 0 && (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* The beginning of a regular file; 0 bytes if there is none. */
static size_t read_file(const char *path, char *ret, size_t size)
{
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    struct stat st;
    ssize_t n = 0;
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        n = read(fd, ret, size);
    if (fd >= 0)
        close(fd);
    return n > 0 ? (size_t)n : 0;
}

/* Best effort: a root that cannot be written is no reason not to serve. */
static void write_if_changed(struct agent *a, const char *path, const char *text, size_t len)
{
    char *old = (char *)a->scratch + AGENT_SCRATCH_BYTES / 2;
    size_t old_len = read_file(path, old, HOSTS_MAX_BYTES);
    if (old_len == len && memcmp(old, text, len) == 0)
        return;
    int fd = open_for_write(path);
    if (fd < 0)
        return;
    if (write(fd, text, len) == (ssize_t)len && old_len > len)
        (void)!ftruncate(fd, (off_t)len);
    close(fd);
}

size_t identity_hosts(const char *old, size_t old_len, const char *hostname, char *ret, size_t size)
{
    size_t len = 0, own = strlen(OWN_HOST_LINE);
    if (old_len == 0) {
        old = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n";
        old_len = strlen(old);
    }
    for (size_t at = 0; at < old_len;) {
        const char *line = old + at;
        const char *end = memchr(line, '\n', old_len - at);
        size_t line_len = end ? (size_t)(end - line) : old_len - at;
        at += line_len + 1;
        if (line_len > own && memcmp(line, OWN_HOST_LINE, own) == 0 &&
            (line[own] == ' ' || line[own] == '\t'))
            continue;
        if (len + line_len + 1 > size)
            return 0;
        memcpy(ret + len, line, line_len);
        len += line_len;
        ret[len++] = '\n';
    }
    int n = snprintf(ret + len, size - len, OWN_HOST_LINE "\t%s\n", hostname);
    return n > 0 && (size_t)n < size - len ? len + (size_t)n : 0;
}

static void write_names(struct agent *a, const struct sp_msg_identity *m)
{
    char text[SP_MSG_HOSTNAME_MAX + 2];
    if (m->machine_id.len > 0) {
        snprintf(text, sizeof text, "%.*s\n", (int)m->machine_id.len,
                 (const char *)m->machine_id.bytes);
        write_if_changed(a, "/etc/machine-id", text, m->machine_id.len + 1);
    }
    if (m->hostname.len == 0)
        return;
    /* In a container the launcher has done it, and we may not. */
    (void)!sethostname((const char *)m->hostname.bytes, m->hostname.len);
    snprintf(text, sizeof text, "%.*s\n", (int)m->hostname.len, (const char *)m->hostname.bytes);
    write_if_changed(a, "/etc/hostname", text, m->hostname.len + 1);

    text[m->hostname.len] = '\0';
    char *old = (char *)a->scratch;
    char *hosts = old + HOSTS_MAX_BYTES;
    size_t old_len = read_file("/etc/hosts", old, HOSTS_MAX_BYTES);
    size_t len = identity_hosts(old, old_len, text, hosts, HOSTS_MAX_BYTES);
    if (len > 0)
        write_if_changed(a, "/etc/hosts", hosts, len);
}

static bool take_environment(struct agent *a, const struct sp_msg_list *env)
{
    uint8_t *bytes = malloc(env->raw.len ? env->raw.len : 1);
    if (!bytes)
        return false;
    if (env->raw.len > 0)
        memcpy(bytes, env->raw.bytes, env->raw.len);
    free((void *)(uintptr_t)a->env.raw.bytes);
    a->env = (struct sp_msg_list){.count = env->count, .raw = {bytes, env->raw.len}};
    return true;
}

static void write_limit(const struct agent *a, const char *file, uint64_t value)
{
    char text[24];
    int fd = openat(a->cgroup_fd, file, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    int len = snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    (void)!write(fd, text, (size_t)len);
    close(fd);
}

/* microVM: the group of all user processes. The rest of the memory is the kernel's and ours. */
static void set_limits(struct agent *a, const struct sp_msg_identity *m)
{
    struct sysinfo info;
    if (!a->is_vm || a->cgroup_fd < 0)
        return;
    if (m->pids_max > 0)
        write_limit(a, "pids.max", m->pids_max);
    if (m->memory_reserve_bytes == 0 || sysinfo(&info) < 0)
        return;
    uint64_t total = (uint64_t)info.totalram * info.mem_unit;
    if (total > m->memory_reserve_bytes)
        write_limit(a, "memory.max", total - m->memory_reserve_bytes);
    if (m->memory_reserve_bytes / 2 < a->pool.max) /* the rings live in the reserve */
        a->pool.max = (size_t)(m->memory_reserve_bytes / 2);
}

/* The steps in their order: nothing runs before the last one, and none after the first that fails.
 * Returns the code of the error, NULL when all went well. */
static const char *become(struct agent *a, const struct sp_msg_identity *m, const char **ret_why)
{
    if (m->entropy.len > 0 && !add_entropy(a, m->entropy)) {
        *ret_why = "the kernel did not take the entropy";
        return "entropy_failed";
    }
    if (m->realtime_ns > 0 && !restored_set_clock(a, m->realtime_ns)) {
        *ret_why = "the clock cannot be set";
        return "internal";
    }
    write_names(a, m);
    if (!take_environment(a, &m->env)) {
        *ret_why = "no memory";
        return "internal";
    }
    set_limits(a, m);
    return NULL;
}

void identity_set(struct agent *a, uint32_t tag, const struct sp_msg_identity *m)
{
    bool is_new = a->held || !a->identified;
    const char *why = NULL;
    a->identified = false;
    a->hold_locked = a->held;
    const char *code = become(a, m, &why);
    if (!code && is_new)
        restored_new_generation(a, a->held);
    if (!code && a->held) {
        restored_signal(a);
        if (!hold_thaw(a)) {
            code = "internal";
            why = "the processes cannot be thawed";
        }
    }
    if (code) {
        link_reply_error(&a->link, tag, code, why);
        return;
    }
    a->identified = true;
    link_reply_ok(&a->link, tag);
}

void identity_quiesce(struct agent *a, uint32_t tag)
{
    a->identified = false;
    a->hold_locked = a->held;
    if (a->is_vm) {
        sync();
    } else { /* sync(2) would write back every file system of the host */
        int fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0) {
            (void)syncfs(fd);
            close(fd);
        }
    }
    link_reply_ok(&a->link, tag);
    a->link.quiet = true;
}
