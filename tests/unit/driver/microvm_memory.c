/* Guest RAM as files: sparse copies, their digest, seals. */
#include <errno.h>
#include <fcntl.h>
#include <glib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "driver/microvm/memory.h"

#define BLOCK 4096
#define SIZE (3 * 1024 * 1024 + 2 * BLOCK + 100) /* more than one chunk, and a part of a block */

static void put(int fd, off_t at, const char *text)
{
    g_assert_cmpint(pwrite(fd, text, strlen(text), at), ==, (ssize_t)strlen(text));
}

static int new_file(off_t size)
{
    g_autoptr(GError) error = NULL;
    int fd = sp_memory_new("test", size, &error);
    g_assert_no_error(error);
    return fd;
}

static void assert_same(int a, int b)
{
    static char x[SIZE + 1], y[SIZE + 1];
    g_assert_cmpint(pread(a, x, sizeof x, 0), ==, SIZE);
    g_assert_cmpint(pread(b, y, sizeof y, 0), ==, SIZE);
    g_assert_cmpint(memcmp(x, y, SIZE), ==, 0);
}

static void test_copy(void)
{
    int from = new_file(SIZE), to = new_file(0);
    put(from, 0, "first block");
    put(from, 7 * BLOCK + 3000, "over the end of a block");
    put(from, 1024 * 1024 - 5, "over the end of a chunk");
    put(from, SIZE - 4, "tail");
    struct sp_memory_copied copied;
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_memory_copy(from, to, &copied, &error));
    assert_same(from, to);
    g_assert_cmpint(copied.size_bytes, ==, SIZE);
    /* 1 + 1 + 2 blocks, and the partial one at the end. */
    g_assert_cmpint(copied.data_bytes, ==, 4 * BLOCK + 100);
    struct stat st;
    g_assert_cmpint(fstat(to, &st), ==, 0);
    g_assert_cmpint(st.st_blocks * 512, <=, 5 * BLOCK);

    /* Zeros that are stored give the same digest as holes. */
    static const char zeros[64 * BLOCK];
    int full = new_file(SIZE);
    g_assert_cmpint(pwrite(full, zeros, sizeof zeros, 100 * BLOCK), ==, sizeof zeros);
    put(full, 0, "first block");
    put(full, 7 * BLOCK + 3000, "over the end of a block");
    put(full, 1024 * 1024 - 5, "over the end of a chunk");
    put(full, SIZE - 4, "tail");
    struct sp_memory_copied again;
    g_assert_true(sp_memory_copy(full, -1, &again, &error));
    g_assert_cmpstr(again.sha256, ==, copied.sha256);
    g_assert_cmpint(again.data_bytes, ==, copied.data_bytes);

    /* One bit, or the same block elsewhere, gives another. */
    put(full, 7 * BLOCK + 3000, "Over");
    g_assert_true(sp_memory_copy(full, -1, &again, &error));
    g_assert_cmpstr(again.sha256, !=, copied.sha256);
    int moved = new_file(SIZE);
    put(moved, BLOCK, "first block");
    int unmoved = new_file(SIZE);
    put(unmoved, 0, "first block");
    struct sp_memory_copied a, b;
    g_assert_true(sp_memory_copy(moved, -1, &a, &error));
    g_assert_true(sp_memory_copy(unmoved, -1, &b, &error));
    g_assert_cmpstr(a.sha256, !=, b.sha256);
    int fds[] = {from, to, full, moved, unmoved};
    for (unsigned i = 0; i < G_N_ELEMENTS(fds); i++)
        close(fds[i]);
}

static void test_empty(void)
{
    int from = new_file(0), to = new_file(0);
    struct sp_memory_copied copied;
    g_assert_true(sp_memory_copy(from, to, &copied, NULL));
    g_assert_cmpint(copied.size_bytes, ==, 0);
    g_assert_cmpstr(copied.sha256, ==,
                    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    close(from);
    close(to);
}

static void test_sealed(void)
{
    g_autoptr(GError) error = NULL;
    int fd = sp_memory_from_bytes("test", "hello", 5, &error);
    g_assert_no_error(error);
    g_assert_cmpint(pwrite(fd, "x", 1, 0), ==, -1);
    g_assert_cmpint(errno, ==, EPERM);
    g_assert_cmpint(ftruncate(fd, 1), ==, -1);
    /* Shared and writable: no. Private and writable: what every VMM does. */
    g_assert_true(mmap(NULL, 5, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
    char *p = mmap(NULL, 5, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    g_assert_true(p != MAP_FAILED);
    p[0] = 'H';
    char back[6] = {0};
    g_assert_cmpint(pread(fd, back, 5, 0), ==, 5);
    g_assert_cmpstr(back, ==, "hello");
    munmap(p, 5);
    close(fd);
}

static void test_failures(void)
{
    g_autoptr(GError) error = NULL;
    int pipes[2];
    g_assert_cmpint(pipe2(pipes, O_CLOEXEC), ==, 0);
    int from = new_file(SIZE);
    put(from, 0, "data");
    struct sp_memory_copied copied;
    g_assert_false(sp_memory_copy(from, pipes[1], &copied, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_INTERNAL);
    int sealed = sp_memory_from_bytes("test", "", 0, NULL);
    g_clear_error(&error);
    g_assert_false(sp_memory_copy(from, sealed, &copied, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_INTERNAL);
    close(pipes[0]);
    close(pipes[1]);
    close(from);
    close(sealed);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/microvm/memory/copy", test_copy);
    g_test_add_func("/microvm/memory/empty", test_empty);
    g_test_add_func("/microvm/memory/sealed", test_sealed);
    g_test_add_func("/microvm/memory/failures", test_failures);
    return g_test_run();
}
