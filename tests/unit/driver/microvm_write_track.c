/*
 * Write tracking (driver/microvm/track.h) without a VM: a process that is confined like a VMM, maps
 * a memfd privately and has its pages written by its threads and by the kernel; and what a hostile
 * one may try. With VMs: microvm_saved.
 */
#include <errno.h>
#include <fcntl.h>
#include <glib.h>
#include <grp.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "driver/microvm/delta.h"
#include "driver/microvm/memory.h"
#include "driver/microvm/track.h"
#include "driver/microvm/uffd/uffd_open.h"
#include "os/pidfd.h"

#define RAM_PAGES 16384u
#define RAM_BYTES ((int64_t)RAM_PAGES * SP_PAGE_BYTES)
#define ROUNDS 40
#define MEMORY_FD 3
#define FILE_FD 4
#define FILE_BYTES (4 * 1024 * 1024)
#define NOBODY 65534

/* --- the process that is looked at --- */

static uint8_t *victim_ram;

static uint32_t next_random(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* Half of the writes go to few pages, as a guest's do; a tenth of them are zeros. */
static uint64_t some_page(uint32_t *state)
{
    uint32_t r = next_random(state);
    return r & 1 ? (r >> 1) % 64 : (r >> 1) % RAM_PAGES;
}

static void *write_pages(void *user)
{
    uint32_t state = 1 + (uint32_t)GPOINTER_TO_UINT(user);
    for (unsigned n = 1;; n++) {
        uint64_t page = some_page(&state);
        uint64_t offset = next_random(&state) % (SP_PAGE_BYTES - 64);
        memset(victim_ram + page * SP_PAGE_BYTES + offset, n % 10 ? (int)(n & 0xff) : 0, 64);
        if (n % 64 == 0)
            g_usleep(500);
    }
    return NULL;
}

/* As QEMU reads a disk into guest RAM. */
static void *read_into_pages(void *user)
{
    uint32_t state = 77;
    for (;;) {
        uint64_t page = some_page(&state) % (RAM_PAGES - 16);
        size_t len = SP_PAGE_BYTES * (1 + next_random(&state) % 16);
        off_t at = (off_t)(next_random(&state) % (FILE_BYTES - 65536));
        g_assert_cmpint(pread(FILE_FD, victim_ram + page * SP_PAGE_BYTES, len, at), ==, len);
        g_usleep(2000);
    }
    return NULL;
}

/* What a hostile one does with its userfaultfd before it says that it is ready. */
static void misuse(const char *how)
{
    if (strcmp(how, "closed") == 0)
        g_assert_cmpint(close(SP_UFFD_FD), ==, 0);
    if (strcmp(how, "other") == 0)
        g_assert_cmpint(dup2(FILE_FD, SP_UFFD_FD), ==, SP_UFFD_FD);
    if (strcmp(how, "without") == 0) { /* without the asynchronous mode, every write would wait */
        struct uffdio_api api = {.api = UFFD_API};
        g_assert_cmpint(ioctl(SP_UFFD_FD, UFFDIO_API, &api), ==, 0);
    }
}

static int victim(const char *how)
{
    pthread_t thread;
    victim_ram = mmap(NULL, RAM_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, MEMORY_FD, 0);
    g_assert_true(victim_ram != MAP_FAILED);
    misuse(how);
    for (unsigned i = 0; i < 2; i++)
        g_assert_cmpint(pthread_create(&thread, NULL, write_pages, GUINT_TO_POINTER(i)), ==, 0);
    g_assert_cmpint(pthread_create(&thread, NULL, read_into_pages, NULL), ==, 0);
    g_assert_cmpint(write(STDOUT_FILENO, "!", 1), ==, 1);
    for (;;)
        pause();
    return 1;
}

/* --- who looks at it --- */

struct fixture {
    int base_fd, pidfd, out_fd;
    pid_t pid;
    struct sp_guest_ram ram;
};

static int make_base(void)
{
    g_autoptr(GError) error = NULL;
    int fd = sp_memory_new("space-vm", RAM_BYTES, &error);
    g_assert_no_error(error);
    g_autofree uint8_t *bytes = g_malloc(SP_PAGE_BYTES);
    for (unsigned page = 0; page < RAM_PAGES; page += 3) {
        memset(bytes, (int)(page & 0xff) | 1, SP_PAGE_BYTES);
        g_assert_true(
            sp_memory_write(fd, bytes, SP_PAGE_BYTES, page * (int64_t)SP_PAGE_BYTES, NULL));
    }
    g_assert_true(sp_memory_seal(fd, NULL));
    return fd;
}

static int make_file(void)
{
    int fd = sp_memory_new("disk", FILE_BYTES, NULL);
    g_autofree uint32_t *bytes = g_malloc(FILE_BYTES);
    for (unsigned i = 0; i < FILE_BYTES / 4; i++)
        bytes[i] = g_random_int();
    g_assert_true(sp_memory_write(fd, bytes, FILE_BYTES, 0, NULL));
    return fd;
}

/* In the child: no privilege, as in sp_vmm_plan(). */
static void become_victim(const struct fixture *f, int file_fd, int library_fd, int out_fd,
                          const char *how)
{
    char preload[64];
    snprintf(preload, sizeof preload, "LD_PRELOAD=/proc/self/fd/%d", SP_UFFD_FD);
    /* In a build with sanitizers the library goes before their run time, and what is killed has not freed. */
    const char *env[] = {preload, "ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0", NULL};
    /* Out of each other's way first. */
    int base = fcntl(f->base_fd, F_DUPFD, 100), file = fcntl(file_fd, F_DUPFD, 100);
    int library = fcntl(library_fd, F_DUPFD, 100), out = fcntl(out_fd, F_DUPFD, 100);
    dup2(base, MEMORY_FD);
    dup2(file, FILE_FD);
    dup2(out, STDOUT_FILENO);
    dup2(library, SP_UFFD_FD);
    close_range(SP_UFFD_FD + 1, ~0u, 0);
    if (setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 && setuid(NOBODY) == 0 &&
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
        execle("/proc/self/exe", "victim", "victim", how, (char *)NULL, env);
    _exit(127);
}

static void start(struct fixture *f, const char *how)
{
    g_autoptr(GError) error = NULL;
    int out[2];
    int file_fd = make_file();
    int library_fd =
        sp_memory_from_bytes("library", sp_uffd_library, sp_uffd_library_bytes, &error);
    g_assert_no_error(error);
    f->base_fd = make_base();
    g_assert_cmpint(pipe2(out, O_CLOEXEC), ==, 0);
    f->pid = fork();
    if (f->pid == 0)
        become_victim(f, file_fd, library_fd, out[1], how);
    g_assert_cmpint(f->pid, >, 0);
    close(out[1]);
    close(file_fd);
    close(library_fd);
    f->out_fd = out[0];
    f->pidfd = sp_pidfd_open(f->pid, &error);
    g_assert_no_error(error);
    char ready;
    g_assert_cmpint(read(f->out_fd, &ready, 1), ==, 1);
    sp_guest_ram_find(f->pid, f->pidfd, RAM_BYTES, &f->ram, &error);
    g_assert_no_error(error);
}

static void end(struct fixture *f)
{
    kill(f->pid, SIGKILL);
    g_assert_cmpint(waitpid(f->pid, NULL, 0), ==, f->pid);
    close(f->pidfd);
    close(f->out_fd);
    close(f->base_fd);
}

static void stop(struct fixture *f)
{
    int status;
    g_assert_cmpint(kill(f->pid, SIGSTOP), ==, 0);
    g_assert_cmpint(waitpid(f->pid, &status, WUNTRACED), ==, f->pid);
    g_assert_true(WIFSTOPPED(status));
}

static GArray *new_runs(void)
{
    return g_array_new(FALSE, FALSE, sizeof(struct sp_page_run));
}

/* The copy that is made of the RAM. */
struct copy {
    int fd;
    struct sp_page_map map;
};

static void copy_open(struct fixture *f, struct copy *copy)
{
    copy->fd = sp_memory_new("copy", RAM_BYTES, NULL);
    g_assert_true(sp_memory_copy(f->base_fd, copy->fd, NULL, NULL));
    sp_page_map_init(&copy->map, RAM_BYTES);
}

static void copy_close(struct copy *copy)
{
    close(copy->fd);
    sp_page_map_clear(&copy->map);
}

static uint64_t copy_written(struct fixture *f, struct copy *copy, bool protect)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GArray) runs = new_runs();
    sp_guest_ram_written(&f->ram, protect, runs, &error);
    g_assert_no_error(error);
    sp_delta_capture(&f->ram, runs, copy->fd, true, &copy->map, &error);
    g_assert_no_error(error);
    return sp_page_runs_total(runs);
}

/* The first round: everything private is copied, whatever is protected already. */
static void copy_private(struct fixture *f, struct copy *copy)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(GArray) written = new_runs();
    g_autoptr(GArray) runs = new_runs();
    sp_guest_ram_written(&f->ram, true, written, &error);
    g_assert_no_error(error);
    g_assert_true(sp_guest_ram_private(&f->ram, runs, NULL));
    sp_delta_capture(&f->ram, runs, copy->fd, true, &copy->map, &error);
    g_assert_no_error(error);
}

/* Pages of the process, which stands still, that the copy has not as they are. */
static unsigned differing(struct fixture *f, struct copy *copy)
{
    g_autoptr(GArray) runs = new_runs(), pieces = new_runs();
    struct sp_page_run all = {0, RAM_PAGES};
    g_autofree uint8_t *ours = g_malloc(RAM_BYTES), *theirs = g_malloc(RAM_BYTES);
    guint at = 0;
    uint64_t skip = 0;
    unsigned wrong = 0;
    g_array_append_val(runs, all);
    g_assert_true(sp_guest_ram_read(&f->ram, runs, &at, &skip, theirs, RAM_BYTES, pieces, NULL));
    g_assert_true(sp_memory_read(copy->fd, ours, RAM_BYTES, 0, NULL));
    for (unsigned i = 0; i < RAM_PAGES; i++)
        wrong += memcmp(ours + (size_t)i * SP_PAGE_BYTES, theirs + (size_t)i * SP_PAGE_BYTES,
                        SP_PAGE_BYTES) != 0;
    return wrong;
}

static struct sp_tracker *track(struct fixture *f)
{
    g_autoptr(GError) error = NULL;
    struct sp_tracker *tracker = sp_tracker_open(f->pidfd, &f->ram, &error);
    g_assert_no_error(error);
    g_assert_nonnull(tracker);
    return tracker;
}

static bool skip(void)
{
    g_autoptr(GError) why = NULL;
    if (geteuid() != 0) {
        g_test_skip("NOT TESTED: needs root");
        return true;
    }
    if (sp_tracker_possible(&why))
        return false;
    g_autofree char *text = g_strdup_printf("NOT TESTED: %s", why->message);
    g_test_skip(text);
    return true;
}

/* --- not one page is missed --- */

/* Also shows that the comparison can fail: before the rest is copied it must find differences. */
static void one_round(struct fixture *f, unsigned *missing)
{
    struct copy copy;
    copy_open(f, &copy);
    copy_private(f, &copy);
    for (unsigned i = 0; i < 3; i++)
        copy_written(f, &copy, true);
    g_usleep(2000);
    stop(f);
    *missing += differing(f, &copy);
    copy_written(f, &copy, false);
    g_assert_cmpuint(differing(f, &copy), ==, 0);
    g_assert_cmpint(kill(f->pid, SIGCONT), ==, 0);
    copy_close(&copy);
}

static void test_every_page(void)
{
    struct fixture f;
    unsigned missing = 0;
    if (skip())
        return;
    start(&f, "");
    struct sp_tracker *tracker = track(&f);
    for (unsigned i = 0; i < ROUNDS; i++) {
        /* Every tenth time it is given up and begun again. */
        if (i % 10 == 9) {
            sp_tracker_free(tracker);
            tracker = track(&f);
        }
        one_round(&f, &missing);
    }
    g_test_message("%u pages were written after the last round of copying, all found", missing);
    g_assert_cmpuint(missing, >, ROUNDS);
    sp_tracker_free(tracker);
    end(&f);
}

/* A round protects what it finds, and only that: the same again finds what was written since. */
static void test_still(void)
{
    struct fixture f;
    struct copy copy;
    if (skip())
        return;
    start(&f, "");
    g_usleep(20000);
    stop(&f);
    struct sp_tracker *tracker = track(&f);
    g_autoptr(GArray) private = new_runs();
    g_assert_true(sp_guest_ram_private(&f.ram, private, NULL));
    copy_open(&f, &copy);
    g_assert_cmpuint(copy_written(&f, &copy, true), ==, sp_page_runs_total(private));
    g_assert_cmpuint(copy_written(&f, &copy, true), ==, 0);
    /* A write from outside counts as well: so a wake by delta does. */
    uint8_t page[SP_PAGE_BYTES] = {1};
    uint64_t first = g_array_index(private, struct sp_page_run, 0).first;
    g_assert_true(sp_guest_ram_write(&f.ram, first, page, sizeof page, NULL));
    g_assert_cmpuint(copy_written(&f, &copy, false), ==, 1);
    g_assert_cmpuint(differing(&f, &copy), ==, 0);
    copy_close(&copy);
    sp_tracker_free(tracker);
    end(&f);
}

/* --- workers come and go --- */

static void test_killed_worker(void)
{
    struct fixture f;
    unsigned missing = 0;
    if (skip())
        return;
    start(&f, "");
    for (unsigned i = 0; i < 5; i++) {
        pid_t worker = fork();
        if (worker == 0) {
            struct copy copy;
            track(&f);
            copy_open(&f, &copy);
            copy_private(&f, &copy);
            _exit(copy_written(&f, &copy, true) > RAM_PAGES);
        }
        int status;
        g_assert_cmpint(waitpid(worker, &status, 0), ==, worker);
        g_assert_cmpint(status, ==, 0);
        /* It goes on although its pages are protected and nobody is there. */
        g_usleep(20000);
        struct sp_tracker *tracker = track(&f);
        one_round(&f, &missing);
        sp_tracker_free(tracker);
    }
    end(&f);
}

/* --- it cannot, or not any more --- */

static void expect_refused(struct fixture *f)
{
    g_autoptr(GError) error = NULL;
    struct sp_tracker *tracker = sp_tracker_open(f->pidfd, &f->ram, &error);
    g_assert_null(tracker);
    g_assert_error(error, SP_ERROR, SP_ERROR_UNSUPPORTED);
    g_test_message("refused: %s", error->message);
}

static void expect_not_tracked(struct fixture *f)
{
    for (unsigned protect = 0; protect < 2; protect++) {
        g_autoptr(GError) error = NULL;
        g_autoptr(GArray) runs = new_runs();
        g_assert_false(sp_guest_ram_written(&f->ram, protect, runs, &error));
        g_assert_nonnull(error);
    }
}

static void test_refused(void)
{
    static const char *const ways[] = {"closed", "other"};
    struct fixture f;
    if (skip())
        return;
    for (unsigned i = 0; i < G_N_ELEMENTS(ways); i++) {
        start(&f, ways[i]);
        expect_refused(&f);
        expect_not_tracked(&f);
        end(&f);
    }
}

/* A process that has put its userfaultfd into another mode hurts only itself: it is not taken for
 * tracked, and reading its memory does not wait. */
static void test_other_mode(void)
{
    struct fixture f;
    struct copy copy;
    if (skip())
        return;
    start(&f, "without");
    struct sp_tracker *tracker = sp_tracker_open(f.pidfd, &f.ram, NULL);
    expect_not_tracked(&f);
    copy_open(&f, &copy);
    stop(&f);
    g_autoptr(GArray) runs = new_runs();
    g_assert_true(sp_guest_ram_private(&f.ram, runs, NULL));
    g_assert_true(sp_delta_capture(&f.ram, runs, copy.fd, true, &copy.map, NULL));
    g_assert_cmpuint(differing(&f, &copy), ==, 0);
    copy_close(&copy);
    sp_tracker_free(tracker);
    end(&f);
}

/* The tracking ends between the rounds and the end: the last scan says so. */
static void test_lost(void)
{
    struct fixture f;
    struct copy copy;
    if (skip())
        return;
    start(&f, "");
    struct sp_tracker *tracker = track(&f);
    copy_open(&f, &copy);
    copy_private(&f, &copy);
    sp_tracker_free(tracker);
    expect_not_tracked(&f);
    stop(&f);
    tracker = track(&f);
    /* Begun again: nothing is protected, so all counts as written. */
    copy_written(&f, &copy, false);
    g_assert_cmpuint(differing(&f, &copy), ==, 0);
    sp_tracker_free(tracker);
    copy_close(&copy);
    end(&f);
}

static void test_ended(void)
{
    struct fixture f;
    if (skip())
        return;
    start(&f, "");
    struct sp_tracker *tracker = track(&f);
    g_assert_true(sp_pidfd_kill(f.pidfd, 5000, NULL));
    expect_refused(&f);
    sp_tracker_free(tracker);
    end(&f);
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "victim") == 0)
        return victim(argv[2]);
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/microvm_write_track/every_page", test_every_page);
    g_test_add_func("/microvm_write_track/still", test_still);
    g_test_add_func("/microvm_write_track/killed_worker", test_killed_worker);
    g_test_add_func("/microvm_write_track/refused", test_refused);
    g_test_add_func("/microvm_write_track/other_mode", test_other_mode);
    g_test_add_func("/microvm_write_track/lost", test_lost);
    g_test_add_func("/microvm_write_track/ended", test_ended);
    return g_test_run();
}
