#include "restored.h"

#include "procs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define RUN_DIR "/run/space"
#define NAMES_MAX 4096u  /* looked at in one walk */
#define SIGNALS_MAX 256u /* processes signalled in one walk */
#define CONTENT_BYTES 16u
#define SIGNAL_MAX 64
#define START_SLACK_MS 50 /* starts are told in hundredths of a second */
#define NSEC_PER_SEC 1000000000ll
#define ID_BYTES 16u

/* One file of the directory that may be what it says. */
struct registration {
    int dir_fd, fd;
    const char *name;
    pid_t pid;
    uid_t owner;
    int64_t time_ns; /* last written, CLOCK_REALTIME */
};

/* --- the directory -------------------------------------------------------------------------- */

static void new_generation_file(struct agent *a)
{
    (void)unlinkat(a->run_fd, "generation", 0);
    a->generation_fd =
        openat(a->run_fd, "generation", O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444);
}

void restored_init(struct agent *a)
{
    struct stat st;
    a->generation_fd = -1;
    (void)mkdir(RUN_DIR, 0755);
    a->run_fd = open(RUN_DIR, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (a->run_fd < 0)
        return;
    /* What was there before us may belong to anybody. */
    bool ours = fstat(a->run_fd, &st) == 0 && st.st_uid == geteuid() && !(st.st_mode & 022);
    if (ours) {
        (void)mkdirat(a->run_fd, "restored", 0700);
        int fd = openat(a->run_fd, "restored", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        ours = fd >= 0 && fchmod(fd, 01777) == 0;
        if (fd >= 0)
            close(fd);
    }
    if (!ours) {
        close(a->run_fd);
        a->run_fd = -1;
        return;
    }
    new_generation_file(a);
    restored_new_generation(a, false);
}

void restored_new_generation(struct agent *a, bool count)
{
    uint8_t id[ID_BYTES];
    char text[2 * ID_BYTES + 16], hex[2 * ID_BYTES + 1];
    if (count)
        a->restores++;
    if (a->generation_fd < 0 || getrandom(id, sizeof id, GRND_NONBLOCK) != (ssize_t)sizeof id)
        return;
    for (unsigned i = 0; i < ID_BYTES; i++)
        snprintf(hex + 2 * i, 3, "%02x", id[i]);
    int len = snprintf(text, sizeof text, "%010u %s\n", a->restores, hex);
    /* Always the same length, in place: also who has mapped the file sees it. */
    (void)!pwrite(a->generation_fd, text, (size_t)len, 0);
}

/* --- what a file says ----------------------------------------------------------------------- */

pid_t restored_parse_name(const char *name)
{
    long pid = 0;
    if (name[0] < '1' || name[0] > '9')
        return 0;
    for (unsigned i = 0; name[i]; i++) {
        if (name[i] < '0' || name[i] > '9' || i >= 9)
            return 0;
        pid = 10 * pid + (name[i] - '0');
    }
    return pid > 1 ? (pid_t)pid : 0;
}

int restored_parse_signal(const char *text, size_t len)
{
    int number = 0;
    while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == ' '))
        len--;
    if (len == 0)
        return SIGUSR2;
    if (len > 2)
        return 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9')
            return 0;
        number = 10 * number + (text[i] - '0');
    }
    return number <= SIGNAL_MAX ? number : 0;
}

static int64_t clock_ns(clockid_t clock)
{
    struct timespec now = {0};
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * NSEC_PER_SEC + now.tv_nsec;
}

/* Whether the process is there, runs as the file's owner in every respect, and is not younger than
 * the file. */
static bool is_current(const struct registration *r)
{
    struct procs_stat stat;
    if (r->pid == getpid() || !procs_read(r->pid, &stat) || stat.zombie ||
        !procs_runs_as(r->pid, r->owner))
        return false;
    int64_t age_ms = clock_ns(CLOCK_BOOTTIME) / 1000000 - (int64_t)stat.start_ms;
    int64_t started_ms = clock_ns(CLOCK_REALTIME) / 1000000 - age_ms;
    return started_ms <= r->time_ns / 1000000 + START_SLACK_MS;
}

/* A link, also a hard one to somebody else's file, is not looked at; nor does a pipe block us. */
static bool open_registration(int dir_fd, const char *name, struct registration *ret)
{
    struct stat st;
    struct registration r = {.dir_fd = dir_fd, .name = name, .pid = restored_parse_name(name)};
    if (!r.pid)
        return false;
    r.fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (r.fd < 0)
        return false;
    if (fstat(r.fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_nlink != 1) {
        close(r.fd);
        return false;
    }
    r.owner = st.st_uid;
    r.time_ns = (int64_t)st.st_mtim.tv_sec * NSEC_PER_SEC + st.st_mtim.tv_nsec;
    *ret = r;
    return true;
}

/* --- walks ---------------------------------------------------------------------------------- */

/* What is done to each of them; true counts. */
typedef bool visit_fn(const struct registration *r, int64_t value);

static void walk(const struct agent *a, visit_fn *visit, int64_t value, unsigned visits_max)
{
    if (a->run_fd < 0)
        return;
    int fd = openat(a->run_fd, "restored", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *list = fd < 0 ? NULL : fdopendir(fd);
    if (!list) {
        if (fd >= 0)
            close(fd);
        return;
    }
    unsigned counted = 0;
    struct dirent *e;
    for (unsigned i = 0; i < NAMES_MAX && counted < visits_max && (e = readdir(list)); i++) {
        struct registration r;
        if (!open_registration(dirfd(list), e->d_name, &r))
            continue;
        counted += visit(&r, value);
        close(r.fd);
    }
    closedir(list);
}

static bool visit_prune(const struct registration *r, int64_t value)
{
    (void)value;
    if (is_current(r))
        return false;
    (void)unlinkat(r->dir_fd, r->name, 0);
    return true;
}

/* The descriptor comes before the checks: it stays with the process that was checked. */
static bool visit_signal(const struct registration *r, int64_t value)
{
    (void)value;
    char text[CONTENT_BYTES];
    int process = (int)syscall(SYS_pidfd_open, r->pid, 0);
    bool sent = false;
    if (is_current(r) && process >= 0) {
        ssize_t n = pread(r->fd, text, sizeof text, 0);
        int number = n >= 0 ? restored_parse_signal(text, (size_t)n) : 0;
        sent = number > 0 && syscall(SYS_pidfd_send_signal, process, number, NULL, 0) == 0;
    }
    if (process >= 0)
        close(process);
    return sent;
}

static bool visit_move(const struct registration *r, int64_t delta_ns)
{
    int64_t at = r->time_ns + delta_ns, rest = at % NSEC_PER_SEC;
    if (rest < 0)
        rest += NSEC_PER_SEC;
    struct timespec times[2] = {
        {.tv_nsec = UTIME_OMIT},
        {.tv_sec = (time_t)((at - rest) / NSEC_PER_SEC), .tv_nsec = (long)rest},
    };
    return futimens(r->fd, times) == 0;
}

void restored_prune(struct agent *a)
{
    walk(a, visit_prune, 0, NAMES_MAX);
}

void restored_signal(struct agent *a)
{
    walk(a, visit_signal, 0, SIGNALS_MAX);
}

void restored_move_times(struct agent *a, int64_t delta_ns)
{
    walk(a, visit_move, delta_ns, NAMES_MAX);
}

bool restored_set_clock(struct agent *a, uint64_t realtime_ns)
{
    struct timespec now = {(time_t)(realtime_ns / (uint64_t)NSEC_PER_SEC),
                           (long)(realtime_ns % (uint64_t)NSEC_PER_SEC)};
    int64_t before = clock_ns(CLOCK_REALTIME);
    if (clock_settime(CLOCK_REALTIME, &now) < 0)
        return false;
    restored_move_times(a, (int64_t)realtime_ns - before);
    return true;
}
