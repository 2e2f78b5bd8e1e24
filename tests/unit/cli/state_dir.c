#include <glib.h>
#include <glib/gstdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/client_conf.h"
#include "cli/state_dir.h"
#include "disk/tree.h"

static char *make_place(void)
{
    g_autofree char *dir = g_dir_make_tmp("space-state-XXXXXX", NULL);
    return g_build_filename(dir, "state", NULL);
}

static void remove_place(const char *state)
{
    g_autofree char *dir = g_path_get_dirname(state);
    g_assert_cmpint(sp_tree_remove(dir), ==, 0);
}

static int mode_of(const struct sp_state_dir *state, const char *name)
{
    g_autofree char *path = sp_state_dir_file(state, name);
    struct stat st;
    g_assert_cmpint(stat(path, &st), ==, 0);
    return (int)(st.st_mode & 07777);
}

static void test_made_and_kept(void)
{
    g_autofree char *place = make_place();
    struct sp_state_dir state = {0};
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_state_dir_open(place, &state, &error));
    g_assert_cmpint(mode_of(&state, ""), ==, 0711);
    g_assert_cmpint(mode_of(&state, "server"), ==, 0700);
    g_assert_cmpint(mode_of(&state, "log"), ==, 0700);
    g_assert_cmpint(mode_of(&state, "node.key"), ==, 0600);
    g_assert_true(g_str_has_prefix(state.node_key, "nk_"));
    g_assert_true(g_str_has_prefix(state.api_key, "sk_"));
    g_autofree char *node_key = g_strdup(state.node_key);
    g_autofree char *api_key = g_strdup(state.api_key);
    struct sp_client_conf conf = {.url = (char *)"http://127.0.0.1:1", .key = api_key};
    g_autofree char *conf_path = sp_state_dir_file(&state, "client.conf");
    g_assert_true(sp_client_conf_save(conf_path, &conf, NULL));
    sp_state_dir_close(&state);

    g_assert_true(sp_state_dir_open(place, &state, &error));
    g_assert_cmpstr(state.node_key, ==, node_key);
    g_assert_cmpstr(state.api_key, ==, api_key);
    sp_state_dir_close(&state);
    remove_place(place);
}

/* The lock is a process's, so the other one is a real other one. */
static void test_one_at_a_time(void)
{
    g_autofree char *place = make_place();
    struct sp_state_dir state = {0};
    g_assert_true(sp_state_dir_open(place, &state, NULL));
    g_autofree char *says = g_strdup_printf("pid %d", (int)getpid());
    pid_t pid = fork();
    if (pid == 0) {
        struct sp_state_dir other = {0};
        GError *error = NULL;
        bool refused = !sp_state_dir_open(place, &other, &error) &&
                       g_error_matches(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION) &&
                       strstr(error->message, says) && sp_state_dir_holder(place) == getppid();
        _exit(refused ? 0 : 1);
    }
    int status = 1;
    g_assert_cmpint(waitpid(pid, &status, 0), ==, pid);
    g_assert_cmpint(status, ==, 0);
    sp_state_dir_close(&state);
    g_assert_cmpint(sp_state_dir_holder(place), ==, 0);
    remove_place(place);
}

static void test_daemon_lock(void)
{
    g_autofree char *place = make_place();
    struct sp_state_dir state = {0};
    g_autoptr(GError) error = NULL;
    g_assert_true(sp_state_dir_open(place, &state, NULL));
    int first = sp_state_dir_lock_daemon(&state, "worker", 0, &error);
    g_assert_cmpint(first, >=, 0);
    g_assert_cmpint(sp_state_dir_lock_daemon(&state, "worker", 50, &error), ==, -1);
    g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
    int other = sp_state_dir_lock_daemon(&state, "server", 0, NULL);
    g_assert_cmpint(other, >=, 0);
    close(first);
    close(other);
    first = sp_state_dir_lock_daemon(&state, "worker", 50, NULL);
    g_assert_cmpint(first, >=, 0);
    close(first);
    sp_state_dir_close(&state);
    remove_place(place);
}

static void test_refused_places(void)
{
    g_autofree char *place = make_place();
    struct sp_state_dir state = {0};
    g_autoptr(GError) error = NULL;
    g_assert_cmpint(g_mkdir(place, 0777), ==, 0);
    g_assert_cmpint(chmod(place, 0777), ==, 0);
    g_assert_false(sp_state_dir_open(place, &state, &error));
    g_assert_error(error, SP_ERROR, SP_ERROR_FAILED_PRECONDITION);
    g_assert_cmpint(chmod(place, 0755), ==, 0);
    g_autofree char *key = g_build_filename(place, "node.key", NULL);
    g_assert_true(g_file_set_contents(key, "garbage", -1, NULL));
    g_clear_error(&error);
    g_assert_false(sp_state_dir_open(place, &state, &error));
    remove_place(place);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/state-dir/made-and-kept", test_made_and_kept);
    g_test_add_func("/state-dir/one-at-a-time", test_one_at_a_time);
    g_test_add_func("/state-dir/daemon-lock", test_daemon_lock);
    g_test_add_func("/state-dir/refused-places", test_refused_places);
    return g_test_run();
}
