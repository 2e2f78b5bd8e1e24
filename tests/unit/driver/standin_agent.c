/*
 * Stands in for space-agent in the tests of the container driver: a static program that accepts
 * connections on fd 3, reads one command and answers with text. It acts as the sandbox's PID 1
 * would, and as an attacker who is root inside.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static void result(FILE *out, const char *name, long r)
{
    fprintf(out, "%s %s\n", name, r < 0 ? strerrorname_np(errno) : "ok");
}

static void cat(FILE *out, const char *path)
{
    char buffer[4096];
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        result(out, path, -1);
    ssize_t n;
    while (fd >= 0 && (n = read(fd, buffer, sizeof buffer)) > 0)
        fwrite(buffer, 1, (size_t)n, out);
    if (fd >= 0)
        close(fd);
}

static void write_text(FILE *out, const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT, 0644);
    ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));
    result(out, path, n);
    if (fd >= 0)
        close(fd);
}

static void list(FILE *out, const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *e;
    while (dir && (e = readdir(dir)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            fprintf(out, "%s\n", e->d_name);
    if (dir)
        closedir(dir);
}

static long write_at(int dir, const char *path, const char *text)
{
    int fd = openat(dir, path, O_WRONLY);
    long r = fd < 0 ? -1 : write(fd, text, strlen(text));
    int err = errno;
    if (fd >= 0)
        close(fd);
    errno = err;
    return r;
}

/* What the agent does for a session: a group of its own, kill of it all; and what it must not be
 * able to. */
static void groups(FILE *out)
{
    result(out, "mkdir", mkdirat(4, "s1", 0755));
    pid_t pid = fork();
    if (pid == 0)
        for (;;)
            pause();
    char text[16];
    snprintf(text, sizeof text, "%d", (int)pid);
    result(out, "move", write_at(4, "s1/cgroup.procs", text));
    result(out, "kill", write_at(4, "s1/cgroup.kill", "1"));
    int status = 0;
    waitpid(pid, &status, 0);
    fprintf(out, "status %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : -1);
    result(out, "rmdir", unlinkat(4, "s1", AT_REMOVEDIR));
    result(out, "limit", write_at(4, "cgroup.max.descendants", "max"));
    result(out, "freeze-self", write_at(4, "cgroup.freeze", "0"));
    struct stat here, up;
    bool same = fstat(4, &here) == 0 && fstatat(4, "..", &up, 0) == 0 && here.st_ino == up.st_ino;
    fprintf(out, "up %s\n", same ? "is here" : "ESCAPED");
    result(out, "oom", pread(5, text, sizeof text, 0));
    result(out, "oom-write", write(5, "x", 1));
}

static void attacks(FILE *out)
{
    result(out, "mount", mount("none", "/tmp", "tmpfs", 0, NULL));
    result(out, "umount", umount2("/proc/sys", MNT_DETACH));
    result(out, "unshare", unshare(CLONE_NEWUSER));
    result(out, "setns", setns(0, 0));
    result(out, "clone", syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0));
    result(out, "bpf", syscall(SYS_bpf, 0, NULL, 0));
    result(out, "keyctl", syscall(SYS_keyctl, 0, 0, 0, 0, 0));
    result(out, "io_uring", syscall(SYS_io_uring_setup, 1, NULL));
    result(out, "mknod", mknod("/tmp/sda", S_IFBLK | 0600, 0x800));
    result(out, "fifo", mknod("/tmp/fifo", S_IFIFO | 0600, 0));
    result(out, "packet", socket(AF_PACKET, SOCK_RAW, 0));
    result(out, "raw", socket(AF_INET, SOCK_RAW, 1));
    result(out, "inet", socket(AF_INET, SOCK_STREAM, 0));
    result(out, "netlink", socket(AF_NETLINK, SOCK_RAW, 0));
    result(out, "audit", socket(AF_NETLINK, SOCK_RAW, 9));
    result(out, "unknown", syscall(470));
    result(out, "hostname", sethostname("x", 1));
    result(out, "chroot", chroot("/"));
    result(out, "statmount", syscall(457, NULL, NULL, 0, 0));
}

static void status(FILE *out)
{
    char name[64] = "";
    gethostname(name, sizeof name);
    fprintf(out, "%d %d %d %s\n", (int)getuid(), (int)getgid(), (int)getpid(), name);
}

static void daemonize(FILE *out)
{
    for (int i = 0; i < 3; i++)
        if (fork() == 0) {
            close_range(3, ~0U, 0); /* the connection ends with the answer */
            setsid();
            if (fork() == 0)
                signal(SIGTERM, SIG_IGN);
            for (;;)
                pause();
        }
    fprintf(out, "ok\n");
}

/* How many children fit in beside this process, and what the next one meets. */
static void forks(FILE *out)
{
    int n = 0;
    pid_t pid;
    while (n < 1000 && (pid = fork()) >= 0) {
        if (pid == 0) {
            close_range(3, ~0U, 0);
            for (;;)
                pause();
        }
        n++;
    }
    fprintf(out, "%d %s\n", n, strerrorname_np(errno));
    kill(-1, SIGKILL); /* everyone but PID 1 */
    while (wait(NULL) > 0)
        ;
}

/* Touches memory in a child until something stops it. */
static void eat(FILE *out)
{
    pid_t pid = fork();
    if (pid == 0) {
        for (size_t mib = 0; mib < 512; mib++)
            memset(malloc(1 << 20), 1, 1 << 20);
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    char text[512] = "";
    ssize_t n = pread(5, text, sizeof text - 1, 0);
    const char *line = n > 0 ? strstr(text, "oom_kill ") : NULL;
    fprintf(out, "signal %d oom %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : 0,
            line ? (int)strtol(line + 9, NULL, 10) : -1);
}

/* One of everything that a layer can hold. Of the image: /etc/gone is removed, /home is replaced.
 */
static void fill(FILE *out)
{
    result(out, "gone", unlink("/etc/gone"));
    result(out, "opaque", unlink("/home/mine") || rmdir("/home") || mkdir("/home", 0750));
    write_text(out, "/a", "linked");
    result(out, "link", link("/a", "/home/b"));
    result(out, "owner", chown("/a", 1000, 65535));
    result(out, "setuid", chmod("/a", 06755));
    result(out, "xattr", setxattr("/a", "user.note", "hello", 5, 0));
    result(out, "symlink", symlink("nowhere", "/etc/sym"));
    result(out, "symlink owner", lchown("/etc/sym", 7, 8));
    result(out, "fifo", mkfifo("/etc/fifo", 0640));
    int fd = open("/sparse", O_WRONLY | O_CREAT, 0600);
    result(out, "sparse", pwrite(fd, "end", 3, 20 << 20));
    close(fd);
    result(out, "moved", rename("/etc/dir", "/etc/moved")); /* of the image: a redirect */
}

static void stat_one(FILE *out, const char *path)
{
    struct stat st;
    if (lstat(path, &st) < 0) {
        result(out, path, -1);
        return;
    }
    fprintf(out, "%s %s %d %d %o %d\n", path,
            S_ISREG(st.st_mode)   ? "file"
            : S_ISDIR(st.st_mode) ? "dir"
            : S_ISLNK(st.st_mode) ? "link"
                                  : "other",
            (int)st.st_uid, (int)st.st_gid, (unsigned)st.st_mode & 07777,
            S_ISDIR(st.st_mode) ? 0 : (int)st.st_nlink);
}

/* What fill() has made. */
static void show(FILE *out)
{
    static const char *const paths[] = {"/etc/gone",  "/home",    "/home/mine",  "/a",
                                        "/home/b",    "/etc/sym", "/etc/fifo",   "/sparse",
                                        "/etc/moved", "/etc/dir", "/etc/moved/x"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        stat_one(out, paths[i]);
    char text[16] = "";
    result(out, "xattr", getxattr("/home/b", "user.note", text, sizeof text));
    struct stat a, b;
    fprintf(out, "same %d %s\n",
            stat("/a", &a) == 0 && stat("/home/b", &b) == 0 && a.st_ino == b.st_ino, text);
    fprintf(out, "blocks %d\n", stat("/sparse", &a) == 0 && a.st_blocks < 100);
    cat(out, "/a");
    fputc('\n', out);
}

/* Writes until something stops it. */
static void fill_up(FILE *out)
{
    static char block[1 << 20];
    int fd = open("/big", O_WRONLY | O_CREAT, 0600);
    memset(block, 'x', sizeof block);
    /* The last ones tell why a large one was refused or short. Not byte by byte: near its limit
     * btrfs of Linux 6.1 commits at each. */
    for (size_t size = sizeof block; size >= 4096; size /= 16)
        while (write(fd, block, size) > 0)
            ;
    int failed = errno;
    long mib = (long)(lseek(fd, 0, SEEK_CUR) >> 20);
    fprintf(out, "%s %s\n", mib > 20 && mib < 64 ? "limited" : "WRONG", strerrorname_np(failed));
    close(fd);
    unlink("/big");
}

/* A child that counts in memory and writes the number; never ends. It is in a group of its own
 * where there are groups, as the agent's sessions are. */
static void count(FILE *out)
{
    mkdirat(4, "s7", 0755);
    if (fork() == 0) {
        write_at(4, "s7/cgroup.procs", "0");
        close_range(3, ~0U, 0);
        for (unsigned n = 1;; n++) {
            char text[16];
            int fd = open("/run/count", O_WRONLY | O_CREAT, 0600);
            (void)!pwrite(fd, text, (size_t)snprintf(text, sizeof text, "%010u", n), 0);
            close(fd);
            usleep(2000);
        }
    }
    fprintf(out, "ok\n");
}

/* Ends what count() has begun by its group. */
static void kill_group(FILE *out)
{
    result(out, "kill", write_at(4, "s7/cgroup.kill", "1"));
    int status = 0;
    while (waitpid(-1, &status, 0) < 0 && errno == EINTR)
        ;
    fprintf(out, "status %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : -1);
    result(out, "rmdir", unlinkat(4, "s7", AT_REMOVEDIR));
    result(out, "again", mkdirat(4, "s8", 0755) || unlinkat(4, "s8", AT_REMOVEDIR));
}

static void serve(int fd)
{
    char line[4096];
    ssize_t n = read(fd, line, sizeof line - 1);
    if (n <= 0)
        return;
    line[n] = '\0';
    char *argument = strchr(line, ' ');
    if (argument)
        *argument++ = '\0';
    FILE *out = fdopen(dup(fd), "w");
    if (strcmp(line, "cat") == 0)
        cat(out, argument);
    else if (strcmp(line, "write") == 0)
        write_text(out, argument, "data");
    else if (strcmp(line, "ls") == 0)
        list(out, argument);
    else if (strcmp(line, "groups") == 0)
        groups(out);
    else if (strcmp(line, "attacks") == 0)
        attacks(out);
    else if (strcmp(line, "forks") == 0)
        forks(out);
    else if (strcmp(line, "eat") == 0)
        eat(out);
    else if (strcmp(line, "daemonize") == 0)
        daemonize(out);
    else if (strcmp(line, "fill") == 0)
        fill(out);
    else if (strcmp(line, "fill-up") == 0)
        fill_up(out);
    else if (strcmp(line, "show") == 0)
        show(out);
    else if (strcmp(line, "stat") == 0)
        stat_one(out, argument);
    else if (strcmp(line, "kill-group") == 0)
        kill_group(out);
    else if (strcmp(line, "count") == 0)
        count(out);
    else
        status(out);
    fclose(out);
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    for (;;) {
        int fd = accept(3, NULL, NULL);
        if (fd < 0)
            continue;
        serve(fd);
        close(fd);
    }
}
