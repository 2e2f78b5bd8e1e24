#include "disk/template_build.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/ids.h"
#include "base/time.h"
#include "disk/apt_sources.h"
#include "disk/btrfs.h"
#include "disk/template.h"
#include "disk/template_script.h"
#include "disk/tree.h"
#include "os/file_lock.h"
#include "os/mount.h"

#define PREFIX "tpl"
#define ROOT_LIMIT_BYTES (16ULL << 30) /* a runaway build does not fill the volume */
#define REMOVE_MS 10000
/* The time stamp of every file in every image (2024-01-01), and the identity of the file system:
 * fixed, so that the digest depends on content only. */
#define EPOCH "1704067200"
#define IMAGE_UUID "00000000-0000-4000-8000-000000000001"

/* One build. Paths are below work, which only this build uses. */
struct build {
    const struct sp_volume *volume;
    const struct sp_template_recipe *recipe;
    int64_t deadline_ms;
    GCancellable *cancellable;
    sp_progress_fn progress;
    void *user;
    char *work;    /* <data>/tmp/tpl_… */
    char *root;    /* work/root: the new root file system */
    char *out;     /* work/out: the template directory to be */
    bool in_setup; /* the lines that come are the recipe's own */
};

static void say(struct build *build, const char *line)
{
    if (build->progress != NULL) {
        build->progress(build->user, line);
    }
}

/* A line of a program that was started for the stage said last: indented, so that a reader who
 * wants the stages only can tell (docs/templates.md). */
static void say_detail(struct build *build, const char *line)
{
    g_autofree char *text = g_strconcat("  ", line, NULL);
    say(build, text);
}

/* "Get:7 URL SUITE ARCH NAME ARCH VERSION [SIZE]" of apt, without the mirror: which one this
 * machine uses is nobody's business. NULL: another kind of download. */
static char *describe_download(const char *line)
{
    g_auto(GStrv) words = g_strsplit(line, " ", -1);
    return g_strv_length(words) >= 7 ? g_strdup_printf("Downloading %s %s", words[4], words[6])
                                     : NULL;
}

/* Of mmdebstrap's and apt's output, what tells a human how far it is. */
static void relay(void *user, const char *line)
{
    static const char *const shown[] = {"I: ", "E: ", "Unpacking ", "Setting up "};
    struct build *build = user;
    if (g_str_has_prefix(line, "I: running --customize-hook")) {
        build->in_setup = strstr(line, "/setup.sh") != NULL;
        return;
    }
    if (g_str_has_prefix(line, "I: ")) {
        build->in_setup = false;
    }
    if (build->in_setup) {
        say_detail(build, line);
        return;
    }
    if (g_str_has_prefix(line, "Get:")) {
        g_autofree char *text = describe_download(line);
        if (text != NULL) {
            say_detail(build, text);
        }
        return;
    }
    for (size_t i = 0; i < G_N_ELEMENTS(shown); i++) {
        if (g_str_has_prefix(line, shown[i])) {
            say_detail(build, line);
            return;
        }
    }
}

/* Runs a program in mount and pid namespaces of its own, so that neither a mount nor a process of
 * it stays; it also ends when this thread does. args: NULL-terminated. */
static bool run_apart(struct build *build, const GPtrArray *args, sp_progress_fn progress,
                      void *user, GError **error)
{
    /* In a chroot that is not a mount point there is nothing that could be made private. */
    const char *propagation = sp_mount_is_point("/") ? "private" : "unchanged";
    const char *const wrapper[] = {"setpriv", "--pdeathsig",   "KILL",         "unshare",
                                   "--mount", "--propagation", propagation,    "--pid",
                                   "--fork",  "--kill-child",  "--mount-proc", "--"};
    g_autoptr(GPtrArray) argv = g_ptr_array_new();
    for (size_t i = 0; i < G_N_ELEMENTS(wrapper); i++) {
        g_ptr_array_add(argv, (gpointer)wrapper[i]);
    }
    for (guint i = 0; i < args->len; i++) {
        g_ptr_array_add(argv, args->pdata[i]);
    }
    /* What a killed program leaves goes with the work directory. */
    g_autofree char *tmp = g_strconcat("TMPDIR=", build->work, NULL);
    const char *const env[] = {"SOURCE_DATE_EPOCH=" EPOCH, "DEBIAN_FRONTEND=noninteractive", tmp,
                               NULL};
    const struct sp_program program = {
        .argv = (const char *const *)argv->pdata,
        .env = env,
        .timeout_ms = build->deadline_ms - sp_time_monotonic_ms(),
        .cancellable = build->cancellable,
        .progress = progress,
        .user = user,
    };
    if (!sp_program_run(&program, error)) {
        g_prefix_error(error, "%s: ", (char *)args->pdata[0]);
        return false;
    }
    return true;
}

static bool write_file(const struct build *build, const char *name, const char *text,
                       char **ret_path, GError **error)
{
    g_autofree char *path = g_build_filename(build->work, name, NULL);
    if (!g_file_set_contents(path, text, -1, error)) {
        return false;
    }
    *ret_path = g_steal_pointer(&path);
    return true;
}

/* A hook of mmdebstrap that runs a script file inside the new root. */
static char *hook(const char *script_path, const char *a, const char *b)
{
    g_autofree char *file = g_shell_quote(script_path);
    g_autofree char *first = g_shell_quote(a);
    g_autofree char *second = g_shell_quote(b);
    return g_strdup_printf("--customize-hook=chroot \"$1\" sh -euc \"$(cat %s)\" setup %s %s", file,
                           first, second);
}

static bool make_root(struct build *build, GError **error)
{
    const struct sp_template_recipe *recipe = build->recipe;
    int64_t left_ms = build->deadline_ms - sp_time_monotonic_ms();
    g_autofree char *codename = NULL, *sources_path = NULL, *apt_path = NULL, *account_path = NULL,
                    *setup_path = NULL;
    g_autofree char *sources = sp_apt_debian_sources(left_ms, build->cancellable, &codename, error);
    g_autofree char *apt =
        sources != NULL ? sp_apt_acquire_settings(left_ms, build->cancellable, error) : NULL;
    g_autofree char *setup = recipe->setup != NULL ? g_strjoinv("\n", recipe->setup) : g_strdup("");
    if (apt == NULL || !write_file(build, "sources.list", sources, &sources_path, error) ||
        !write_file(build, "apt.conf", apt, &apt_path, error) ||
        !write_file(build, "account.sh", sp_template_account_script, &account_path, error) ||
        !write_file(build, "setup.sh", setup, &setup_path, error)) {
        return false;
    }
    g_autofree char *packages = recipe->packages != NULL ? g_strjoinv(",", recipe->packages) : NULL;
    g_autofree char *include = g_strconcat("--include=", packages, NULL);
    g_autofree char *apt_option = g_strconcat("--aptopt=", apt_path, NULL);
    g_autofree char *account = hook(account_path, recipe->workdir, recipe->user);
    g_autofree char *run_setup = hook(setup_path, "", "");
    const char *const args[] = {
        "mmdebstrap", "--verbose", "--mode=root", "--format=directory", "--variant=minbase",
        apt_option, "--aptopt=Acquire::Languages \"none\"", "--aptopt=APT::Sandbox::User \"root\"",
        "--dpkgopt=force-unsafe-io",
        /* Licences stay, manuals and translations go. */
        "--dpkgopt=path-exclude=/usr/share/doc/*",
        "--dpkgopt=path-include=/usr/share/doc/*/copyright",
        "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/info/*",
        "--dpkgopt=path-exclude=/usr/share/locale/*", "--dpkgopt=path-exclude=/usr/share/lintian/*",
        account, run_setup};
    g_autoptr(GPtrArray) argv = g_ptr_array_new();
    for (size_t i = 0; i < G_N_ELEMENTS(args); i++) {
        g_ptr_array_add(argv, (gpointer)args[i]);
    }
    if (packages != NULL && packages[0] != '\0') {
        g_ptr_array_add(argv, include);
    }
    char *const tail[] = {codename, build->root, sources_path, NULL};
    for (size_t i = 0; i < G_N_ELEMENTS(tail); i++) {
        g_ptr_array_add(argv, tail[i]);
    }
    return run_apart(build, argv, relay, build, error);
}

static bool run_script(struct build *build, const char *script, GError **error)
{
    const char *const args[] = {"chroot", build->root, "sh", "-euc", script, NULL};
    g_autoptr(GPtrArray) argv = g_ptr_array_new();
    for (size_t i = 0; i < G_N_ELEMENTS(args); i++) {
        g_ptr_array_add(argv, (gpointer)args[i]);
    }
    return run_apart(build, argv, relay, build, error);
}

static void collect(void *user, const char *line)
{
    g_ptr_array_add(user, g_strdup(line));
}

static int compare_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* config.json with the versions that are really there. */
static bool write_config(struct build *build, GError **error)
{
    const char *const args[] = {
        "chroot", build->root, "dpkg-query", "-W", "-f", "${Package}=${Version}\n", NULL};
    g_autoptr(GPtrArray) argv = g_ptr_array_new();
    for (size_t i = 0; i < G_N_ELEMENTS(args); i++) {
        g_ptr_array_add(argv, (gpointer)args[i]);
    }
    g_autoptr(GPtrArray) packages = g_ptr_array_new_with_free_func(g_free);
    if (!run_apart(build, argv, collect, packages, error)) {
        return false;
    }
    g_ptr_array_sort(packages, compare_text);
    g_ptr_array_add(packages, NULL);
    const struct sp_template_config config = {
        .format = 1,
        .name = build->recipe->name,
        .user = build->recipe->user,
        .workdir = build->recipe->workdir,
        .env = build->recipe->env,
        .ready = build->recipe->ready,
        .packages = (char **)packages->pdata,
    };
    return sp_template_config_save(build->out, &config, error);
}

static bool sync_path(const char *path, GError **error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int failure = fd < 0 || fsync(fd) < 0 ? errno : 0;
    if (fd >= 0) {
        close(fd);
    }
    if (failure != 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, failure, "sync %s", path);
    }
    return failure == 0;
}

static bool make_image(struct build *build, GError **error)
{
    g_autofree char *image = g_build_filename(build->out, "image.erofs", NULL);
    const char *const argv[] = {"mkfs.erofs", "--quiet",   "-T" EPOCH, "-U" IMAGE_UUID,
                                image,        build->root, NULL};
    const struct sp_program mkfs = {
        .argv = argv,
        .timeout_ms = build->deadline_ms - sp_time_monotonic_ms(),
        .cancellable = build->cancellable,
    };
    return sp_program_run(&mkfs, error) && sync_path(image, error);
}

/* Moves the finished directory to its place. */
static bool publish(struct build *build, char **ret_digest, GError **error)
{
    g_autofree char *digest = sp_template_digest(build->out, error);
    if (digest == NULL || !sync_path(build->out, error)) {
        return false;
    }
    g_autofree char *dir = sp_template_dir(build->volume, digest);
    g_autofree char *parent = g_path_get_dirname(dir);
    if (rename(build->out, dir) < 0 && errno != EEXIST && errno != ENOTEMPTY) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "rename to %s", dir);
        return false;
    }
    if (!sync_path(parent, error)) {
        return false;
    }
    g_autofree char *line = g_strdup_printf("image of %" G_GINT64_FORMAT " MiB, %s",
                                            sp_template_image_bytes(dir) >> 20, digest);
    say(build, line);
    *ret_digest = g_steal_pointer(&digest);
    return true;
}

/* The working directory of a build with all in it. The processes of a build that was ended may take
 * a moment to die, hence the repetition. */
static bool remove_work(const char *work, GError **error)
{
    int64_t deadline = sp_time_monotonic_ms() + REMOVE_MS;
    int failure;
    do {
        failure = 0;
        int fd = open(work, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0) {
            if (sp_btrfs_is(fd)) {
                sp_btrfs_subvolume_destroy(fd, "root");
            }
            close(fd);
        }
        if (sp_tree_remove(work) == 0) {
            return true;
        }
        failure = errno;
        g_usleep(50000);
    } while (sp_time_monotonic_ms() < deadline);
    sp_error_set_errno(error, SP_ERROR_INTERNAL, failure, "remove %s", work);
    return false;
}

static bool make_work(struct build *build, GError **error)
{
    char id[SP_ID_MAX];
    sp_id_new(PREFIX, id);
    build->work = g_build_filename(sp_volume_dir(build->volume), "tmp", id, NULL);
    build->root = g_build_filename(build->work, "root", NULL);
    build->out = g_build_filename(build->work, "out", NULL);
    bool made = mkdir(build->work, 0700) == 0 && mkdir(build->out, 0755) == 0;
    if (made && sp_volume_kind(build->volume) == SP_VOLUME_BTRFS) {
        /* A subvolume goes at once, however many files it has. */
        int fd = open(build->work, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        made = fd >= 0 && sp_btrfs_subvolume_create(fd, "root", ROOT_LIMIT_BYTES) == 0;
        if (fd >= 0) {
            close(fd);
        }
    } else if (made) {
        made = mkdir(build->root, 0755) == 0;
    }
    if (!made) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "make %s", build->work);
    }
    return made;
}

static bool build_steps(struct build *build, char **ret_digest, GError **error)
{
    if (!make_work(build, error)) {
        return false;
    }
    say(build, "installing packages");
    if (!make_root(build, error)) {
        return false;
    }
    say(build, "tidying the root file system");
    if (!run_script(build, sp_template_finish_script, error) || !write_config(build, error)) {
        return false;
    }
    say(build, "writing the image");
    return make_image(build, error) && publish(build, ret_digest, error);
}

static char *lock_path(const struct sp_volume *volume)
{
    return g_build_filename(sp_volume_dir(volume), "tmp", ".lock", NULL);
}

/* With the lock held, everything in tmp/ is of the dead. */
static bool clean_locked(const struct sp_volume *volume, GError **error)
{
    g_autofree char *tmp = g_build_filename(sp_volume_dir(volume), "tmp", NULL);
    g_autoptr(GDir) dir = g_dir_open(tmp, 0, error);
    if (dir == NULL) {
        return false;
    }
    const char *name;
    while ((name = g_dir_read_name(dir)) != NULL) {
        g_autofree char *path = g_build_filename(tmp, name, NULL);
        if ((sp_id_valid(name, PREFIX) || sp_id_valid(name, "rm")) && !remove_work(path, error)) {
            return false;
        }
    }
    return true;
}

bool sp_template_clean(const struct sp_volume *volume, GError **error)
{
    g_autofree char *path = lock_path(volume);
    int lock = sp_file_lock(path, 0, NULL);
    if (lock < 0) {
        return true;
    }
    bool done = clean_locked(volume, error);
    close(lock);
    return done;
}

bool sp_template_build(const struct sp_volume *volume, const struct sp_template_recipe *recipe,
                       int64_t timeout_ms, GCancellable *cancellable, sp_progress_fn progress,
                       void *user, char **ret_digest, GError **error)
{
    struct build build = {
        .volume = volume,
        .recipe = recipe,
        .deadline_ms = sp_time_monotonic_ms() + timeout_ms,
        .cancellable = cancellable,
        .progress = progress,
        .user = user,
    };
    g_autofree char *path = lock_path(volume);
    int lock = sp_file_lock(path, timeout_ms, error);
    if (lock < 0) {
        return false;
    }
    bool built = clean_locked(volume, error) && build_steps(&build, ret_digest, error);
    if (build.work != NULL) {
        /* What cannot be removed now is removed by the next build or start. */
        remove_work(build.work, NULL);
    }
    close(lock);
    g_free(build.work);
    g_free(build.root);
    g_free(build.out);
    if (!built) {
        g_prefix_error(error, "template %s: ", recipe->name);
    }
    return built;
}
