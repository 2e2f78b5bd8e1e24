#include "driver/microvm/verify.h"

struct sp_verify {
    const struct sp_form *form;
    const char *const *names;
    GThread *thread;
    GError *error;
};

static void *run(void *user)
{
    struct sp_verify *v = user;
    for (const char *const *name = v->names; *name; name++) {
        const struct sp_saved_file *file = sp_saved_manifest_file(&v->form->manifest, *name);
        if (file && *file->sha256 && !sp_form_verify(v->form, *name, &v->error))
            break;
    }
    return NULL;
}

struct sp_verify *sp_verify_start(const struct sp_form *form, const char *const *names)
{
    struct sp_verify *v = g_new0(struct sp_verify, 1);
    v->form = form;
    v->names = names;
    v->thread = g_thread_new("verify", run, v);
    return v;
}

bool sp_verify_end(struct sp_verify *v, GError **error)
{
    if (!v)
        return true;
    g_thread_join(v->thread);
    bool ok = !v->error;
    if (!ok)
        g_propagate_error(error, v->error);
    g_free(v);
    return ok;
}
