/*
 * A plan as bytes. Both ends are the same executable, so the machine's own byte order serves; the
 * decoder checks all the same, so that a bug here ends in an error and not in a wild step.
 */
#include <string.h>

#include "base/error.h"
#include "driver/plan_private.h"

#define MAGIC 0x31505053u /* "SPP1" */
#define MAX_STRINGS 1024  /* of argv or env */

static void put(GByteArray *out, const void *bytes, size_t len)
{
    g_byte_array_append(out, bytes, (guint)len);
}

static void put_u64(GByteArray *out, uint64_t value)
{
    put(out, &value, sizeof value);
}

static void put_int(GByteArray *out, int value)
{
    put(out, &value, sizeof value);
}

/* Length + 1, then the bytes; 0 is NULL. */
static void put_text(GByteArray *out, const char *text)
{
    size_t len = text ? strlen(text) : 0;
    put_int(out, text ? (int)len + 1 : 0);
    put(out, text ? text : "", len);
}

static void put_list(GByteArray *out, char *const *list)
{
    put_int(out, list ? (int)g_strv_length((char **)list) : 0);
    for (; list && *list; list++)
        put_text(out, *list);
}

bool sp_plan_encode(const struct sp_plan *plan, GByteArray *ret_bytes, int ret_fds[SP_PLAN_MAX_FDS],
                    unsigned *ret_n_fds, GError **error)
{
    GByteArray *out = ret_bytes;
    g_assert(plan->exec_path && plan->argv && plan->argv[0]);
    put_int(out, (int)MAGIC);
    put_text(out, plan->name);
    put_u64(out, plan->namespaces);
    put_int(out, (int)plan->map_first);
    put_int(out, (int)plan->map_count);
    put_int(out, plan->cgroup_dir);
    put_int(out, (int)plan->n_cgroup_procs);
    put(out, plan->cgroup_procs, sizeof plan->cgroup_procs);
    put_int(out, (int)plan->n_fds);
    for (unsigned i = 0; i < plan->n_fds; i++) {
        put_text(out, plan->fds[i].label);
        put_int(out, plan->fds[i].pass_as);
        ret_fds[i] = plan->fds[i].fd;
    }
    put_int(out, (int)plan->n_steps);
    for (unsigned i = 0; i < plan->n_steps; i++) {
        const struct sp_step *step = &plan->steps[i];
        put_int(out, (int)step->kind);
        put_int(out, step->fd);
        put_int(out, step->number);
        put_u64(out, step->a);
        put_u64(out, step->b);
        for (unsigned t = 0; t < SP_STEP_TEXTS; t++)
            put_text(out, step->text[t]);
    }
    put_text(out, plan->chdir);
    put_text(out, plan->exec_path);
    put_list(out, plan->argv);
    put_list(out, plan->env);
    *ret_n_fds = plan->n_fds;
    if (out->len <= SP_PLAN_MAX_BYTES)
        return true;
    g_set_error(error, SP_ERROR, SP_ERROR_INVALID_REQUEST,
                "%s: the plan has %u bytes, at most %d fit", plan->name, out->len,
                SP_PLAN_MAX_BYTES);
    return false;
}

struct reader {
    const char *at, *end;
    bool bad;
};

static void get(struct reader *in, void *ret, size_t len)
{
    if (in->bad || (size_t)(in->end - in->at) < len) {
        in->bad = true;
        memset(ret, 0, len);
        return;
    }
    memcpy(ret, in->at, len);
    in->at += len;
}

static int get_int(struct reader *in, int low, int high)
{
    int value;
    get(in, &value, sizeof value);
    if (value < low || value > high)
        in->bad = true;
    return in->bad ? low : value;
}

static uint64_t get_u64(struct reader *in)
{
    uint64_t value;
    get(in, &value, sizeof value);
    return value;
}

static char *get_text(struct reader *in)
{
    int len = get_int(in, 0, SP_PLAN_MAX_BYTES) - 1;
    if (in->bad || len < 0)
        return NULL;
    if (in->end - in->at < len || memchr(in->at, '\0', (size_t)len)) {
        in->bad = true;
        return NULL;
    }
    char *text = g_strndup(in->at, (gsize)len);
    in->at += len;
    return text;
}

static char **get_list(struct reader *in)
{
    int n = get_int(in, 0, MAX_STRINGS);
    char **list = g_new0(char *, (gsize)n + 1);
    for (int i = 0; i < n && !in->bad; i++) {
        list[i] = get_text(in);
        in->bad |= !list[i];
    }
    return list;
}

static void get_fds(struct reader *in, struct sp_plan *plan, const int *fds, unsigned n_fds)
{
    unsigned n = (unsigned)get_int(in, 0, SP_PLAN_MAX_FDS);
    in->bad |= n != n_fds;
    for (unsigned i = 0; i < n && !in->bad; i++) {
        char *label = get_text(in);
        int number = get_int(in, -1, SP_PLAN_MAX_NUMBER);
        plan->fds[plan->n_fds++] =
            (struct sp_plan_fd){.label = label, .fd = fds[i], .owned = false, .pass_as = number};
    }
}

/* What each kind must have, so that the child need not check: number of texts, and a fd or not. */
static const struct {
    unsigned texts;
    bool fd;
} needs[SP_STEP_N_KINDS] = {
    [SP_STEP_ROOT_FD] = {0, true}, [SP_STEP_ATTACH] = {1, true},   [SP_STEP_MOUNT] = {2, false},
    [SP_STEP_BIND] = {2, false},   [SP_STEP_REMOUNT] = {1, false}, [SP_STEP_MKDIR] = {1, false},
    [SP_STEP_TOUCH] = {1, false},  [SP_STEP_SYMLINK] = {2, false}, [SP_STEP_HOSTNAME] = {1, false},
    [SP_STEP_SECCOMP] = {0, true}, [SP_STEP_LISTEN] = {1, false},
};

static void get_steps(struct reader *in, struct sp_plan *plan)
{
    unsigned n = (unsigned)get_int(in, 0, SP_PLAN_MAX_STEPS);
    for (unsigned i = 0; i < n && !in->bad; i++) {
        struct sp_step *step = &plan->steps[plan->n_steps++];
        step->kind = (enum sp_step_kind)get_int(in, 0, SP_STEP_N_KINDS - 1);
        step->fd = get_int(in, -1, (int)plan->n_fds - 1);
        step->number = get_int(in, 0, SP_PLAN_MAX_NUMBER);
        step->a = get_u64(in);
        step->b = get_u64(in);
        for (unsigned t = 0; t < SP_STEP_TEXTS; t++) {
            step->text[t] = get_text(in);
            in->bad |= t < needs[step->kind].texts && !step->text[t];
        }
        in->bad |= needs[step->kind].fd != (step->fd >= 0);
    }
}

struct sp_plan *sp_plan_decode(const void *bytes, size_t len, const int *fds, unsigned n_fds,
                               GError **error)
{
    struct reader in = {.at = bytes, .end = (const char *)bytes + len};
    int magic = 0;
    get(&in, &magic, sizeof magic);
    in.bad |= magic != (int)MAGIC;
    struct sp_plan *plan = g_new0(struct sp_plan, 1);
    plan->name = get_text(&in);
    plan->namespaces = get_u64(&in);
    plan->map_first = (uint32_t)get_int(&in, 0, G_MAXINT);
    plan->map_count = (uint32_t)get_int(&in, 0, G_MAXINT);
    plan->cgroup_dir = get_int(&in, -1, SP_PLAN_MAX_FDS - 1);
    plan->n_cgroup_procs = (unsigned)get_int(&in, 0, SP_CGROUP_MAX_ATTACH);
    for (unsigned i = 0; i < SP_CGROUP_MAX_ATTACH; i++)
        plan->cgroup_procs[i] = get_int(&in, 0, SP_PLAN_MAX_FDS - 1);
    get_fds(&in, plan, fds, n_fds);
    get_steps(&in, plan);
    plan->chdir = get_text(&in);
    plan->exec_path = get_text(&in);
    plan->argv = get_list(&in);
    plan->env = get_list(&in);
    in.bad |= in.at != in.end || !plan->name || !plan->exec_path || !plan->argv[0] ||
              plan->cgroup_dir >= (int)plan->n_fds;
    for (unsigned i = 0; i < plan->n_cgroup_procs; i++)
        in.bad |= plan->cgroup_procs[i] >= (int)plan->n_fds;
    if (in.bad) {
        sp_plan_free(plan);
        g_set_error_literal(error, SP_ERROR, SP_ERROR_INTERNAL, "not an encoded plan");
        return NULL;
    }
    for (unsigned i = 0; i < plan->n_fds; i++)
        plan->fds[i].owned = true;
    return plan;
}
