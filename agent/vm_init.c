#include "vm_init.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/reboot.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* sys/mount.h of the libcs and linux/mount.h do not go together: these are from mount(2). */
#define MOUNT_RDONLY 1ul
#define MOUNT_NOSUID 2ul
#define MOUNT_NODEV 4ul
#define MOUNT_NOEXEC 8ul
#define MOUNT_NOATIME 1024ul
#define MOUNT_MOVE 8192ul

#define DEVICE_WAIT_MS 10000
#define DEVICE_POLL_MS 5
#define NAME_BYTES 256

void vm_power_off(void)
{
    sync();
    reboot(RB_POWER_OFF);
    for (;;)
        pause();
}

static void must(struct agent *a, bool ok, const char *what)
{
    if (!ok)
        agent_fatal(a, what);
}

static bool mount_at(const char *source, const char *target, const char *type, unsigned long flags,
                     const char *data)
{
    return syscall(SYS_mount, source, target, type, flags, data) == 0;
}

static void make_dir(const char *path, mode_t mode)
{
    if (mkdir(path, mode) == 0)
        chmod(path, mode); /* without our umask */
}

/* Messages of a failing boot must be seen somewhere: the kernel log goes to the console. */
static void use_kernel_log(void)
{
    int fd = open("/dev/kmsg", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    if (fd > STDERR_FILENO)
        close(fd);
}

/* Loads the files named in /modules/order, one a line, in that order, and frees their memory. */
static void load_modules(void)
{
    FILE *order = fopen("/modules/order", "re");
    char line[NAME_BYTES], path[NAME_BYTES + 16];
    while (order && fgets(line, sizeof line, order)) {
        line[strcspn(line, "\r\n")] = '\0';
        if (!line[0] || line[0] == '#')
            continue;
        snprintf(path, sizeof path, "/modules/%s", line);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || (syscall(SYS_finit_module, fd, "", 0) < 0 && errno != EEXIST))
            fprintf(stderr, "space-agent: module %s: %s\n", line, strerror(errno));
        fflush(stderr);
        if (fd >= 0)
            close(fd);
        unlink(path); /* the initramfs is memory of the machine */
    }
    if (order)
        fclose(order);
}

static void wait_a_little(void)
{
    nanosleep(&(struct timespec){.tv_nsec = DEVICE_POLL_MS * 1000000L}, NULL);
}

/* Reads a one-line file below a directory of sysfs. */
static bool read_line(const char *dir, const char *name, const char *file, char ret[NAME_BYTES])
{
    char path[2 * NAME_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s/%s", dir, name, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, ret, NAME_BYTES - 1);
    close(fd);
    ret[n > 0 ? n : 0] = '\0';
    ret[strcspn(ret, "\n")] = '\0';
    return n >= 0;
}

/* Finds the entry of a sysfs class whose file holds `wanted`; writes "/dev/<entry>". Devices appear
 * a little after their driver: polled with a deadline, there is no event before udev. */
static bool find_device(const char *dir, const char *file, const char *wanted, int wait_ms,
                        char *ret_path, size_t size)
{
    for (int waited = 0;; waited += DEVICE_POLL_MS) {
        DIR *list = opendir(dir);
        char text[NAME_BYTES];
        for (struct dirent *e; list && (e = readdir(list));) {
            if (e->d_name[0] == '.' || !read_line(dir, e->d_name, file, text) ||
                strcmp(text, wanted) != 0)
                continue;
            snprintf(ret_path, size, "/dev/%.200s", e->d_name);
            closedir(list);
            return true;
        }
        if (list)
            closedir(list);
        if (waited >= wait_ms)
            return false;
        wait_a_little();
    }
}

/* The read-only image below, the writable disk above; without one, memory. */
static void mount_root(struct agent *a)
{
    char device[NAME_BYTES];
    make_dir("/lower", 0755);
    make_dir("/rw", 0755);
    make_dir("/root", 0755);
    must(a, find_device("/sys/block", "serial", "root", DEVICE_WAIT_MS, device, sizeof device),
         "no disk with serial root");
    must(a, mount_at(device, "/lower", "erofs", MOUNT_RDONLY | MOUNT_NODEV, NULL), "mount erofs");
    if (find_device("/sys/block", "serial", "rw", 100, device, sizeof device))
        must(a, mount_at(device, "/rw", "ext4", MOUNT_NOATIME | MOUNT_NODEV, NULL), "mount ext4");
    else
        must(a, mount_at("tmpfs", "/rw", "tmpfs", MOUNT_NODEV, "mode=755"), "mount tmpfs");
    make_dir("/rw/upper", 0755);
    make_dir("/rw/work", 0755);
    must(a,
         mount_at("overlay", "/root", "overlay", MOUNT_NOATIME | MOUNT_NODEV,
                  "lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work"),
         "mount overlay");
}

/* What every root needs, whatever the image holds. The current directory is the new root. */
static void mount_system(struct agent *a)
{
    make_dir("proc", 0555);
    make_dir("sys", 0555);
    make_dir("dev", 0755);
    make_dir("run", 0755);
    make_dir("tmp", 01777);
    chmod("tmp", 01777);
    must(a, mount_at("proc", "proc", "proc", MOUNT_NOSUID | MOUNT_NODEV | MOUNT_NOEXEC, NULL),
         "mount /proc");
    must(a, mount_at("sysfs", "sys", "sysfs", MOUNT_NOSUID | MOUNT_NODEV | MOUNT_NOEXEC, NULL),
         "mount /sys");
    must(a, mount_at("devtmpfs", "dev", "devtmpfs", MOUNT_NOSUID, "mode=0755"), "mount /dev");
    make_dir("dev/pts", 0755);
    make_dir("dev/shm", 01777);
    must(a,
         mount_at("devpts", "dev/pts", "devpts", MOUNT_NOSUID | MOUNT_NOEXEC,
                  "newinstance,gid=5,mode=620,ptmxmode=666"),
         "mount /dev/pts");
    must(a, mount_at("tmpfs", "dev/shm", "tmpfs", MOUNT_NOSUID | MOUNT_NODEV, "mode=1777"),
         "mount /dev/shm");
    must(a, mount_at("tmpfs", "run", "tmpfs", MOUNT_NOSUID | MOUNT_NODEV, "mode=755"),
         "mount /run");
    unlink("dev/ptmx");
    (void)!symlink("pts/ptmx", "dev/ptmx");
    (void)!symlink("/proc/self/fd", "dev/fd");
    (void)!symlink("/proc/self/fd/0", "dev/stdin");
    (void)!symlink("/proc/self/fd/1", "dev/stdout");
    (void)!symlink("/proc/self/fd/2", "dev/stderr");
}

/* A static program that every root has, whatever is in the image: the worker's proof that commands
 * run. */
static void install_agent(void)
{
    make_dir("dev/.space", 0755);
    int from = open("/init", O_RDONLY | O_CLOEXEC);
    int to = open("dev/.space/agent", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0555);
    if (from >= 0 && to >= 0) {
        while (sendfile(to, from, NULL, 1u << 20) > 0) {
        }
        fchmod(to, 0555);
    }
    if (from >= 0)
        close(from);
    if (to >= 0)
        close(to);
}

static void write_at(int dir, const char *file, const char *text)
{
    int fd = openat(dir, file, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    (void)!write(fd, text, strlen(text));
    close(fd);
}

/* cgroup2 as a detached mount: no path leads to it, only our descriptor. All user processes live
 * below "user", where pids and memory are limited; the agent stays outside. */
static void open_cgroups(struct agent *a)
{
    int fs = (int)syscall(SYS_fsopen, "cgroup2", 1 /* FSOPEN_CLOEXEC */);
    if (fs < 0)
        return;
    int top = -1;
    if (syscall(SYS_fsconfig, fs, 6 /* FSCONFIG_CMD_CREATE */, NULL, NULL, 0) == 0)
        top = (int)syscall(SYS_fsmount, fs, 1 /* FSMOUNT_CLOEXEC */, 0);
    close(fs);
    if (top < 0)
        return;
    write_at(top, "cgroup.subtree_control", "+memory");
    write_at(top, "cgroup.subtree_control", "+pids");
    if (mkdirat(top, "user", 0755) == 0 || errno == EEXIST)
        a->cgroup_fd = openat(top, "user", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (a->cgroup_fd >= 0) {
        write_at(a->cgroup_fd, "cgroup.subtree_control", "+memory");
        write_at(a->cgroup_fd, "cgroup.subtree_control", "+pids");
        a->has_memory_controller = faccessat(a->cgroup_fd, "memory.events", F_OK, 0) == 0;
    }
    close(top);
}

static void raise_loopback(void)
{
    struct ifreq request = {.ifr_name = "lo"};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    if (ioctl(fd, SIOCGIFFLAGS, &request) == 0) {
        request.ifr_flags |= IFF_UP;
        (void)ioctl(fd, SIOCSIFFLAGS, &request);
    }
    close(fd);
}

int vm_init(struct agent *a)
{
    char device[NAME_BYTES];
    make_dir("/proc", 0555);
    make_dir("/sys", 0555);
    make_dir("/dev", 0755);
    (void)mount_at("devtmpfs", "/dev", "devtmpfs", MOUNT_NOSUID, "mode=0755"); /* may be there */
    use_kernel_log();
    must(a, mount_at("proc", "/proc", "proc", 0, NULL), "mount proc");
    must(a, mount_at("sysfs", "/sys", "sysfs", 0, NULL), "mount sysfs");
    load_modules();
    mount_root(a);

    /* Before anything of the image can put other files in their place: */
    must(a,
         find_device("/sys/class/virtio-ports", "name", "agent", DEVICE_WAIT_MS, device,
                     sizeof device),
         "no virtio port named agent");
    int port = open(device, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    must(a, port >= 0, "open the agent port");
    a->random_fd = open("/dev/urandom", O_RDWR | O_CLOEXEC);
    a->null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    open_cgroups(a);

    must(a, chdir("/root") == 0, "enter the new root");
    mount_system(a);
    install_agent();
    must(a, mount_at(".", "/", NULL, MOUNT_MOVE, NULL), "move the root");
    must(a, chroot(".") == 0 && chdir("/") == 0, "chroot");
    raise_loopback();
    return port;
}
