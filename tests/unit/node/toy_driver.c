/* See toy_driver.h. */
#include "toy_driver.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "driver/record.h"
#include "wire/agent_msg.h"

/* --- an agent that can do what a create needs */

struct toy_agent {
    int fd;
    struct toy *toy; /* a reference; mute: HELLO is all that it answers */
};

static void put_frame(int fd, uint8_t type, uint32_t tag, const struct sp_pack *p)
{
    uint8_t frame[256];
    size_t len = p ? p->len : 0;
    struct sp_frame_header header = {type, (uint32_t)len, tag};
    sp_frame_header_encode(&header, frame);
    if (len)
        memcpy(frame + SP_FRAME_HEADER_BYTES, p->bytes, len);
    ssize_t n = send(fd, frame, SP_FRAME_HEADER_BYTES + len, MSG_NOSIGNAL);
    (void)n;
}

static void put_event(int fd, uint32_t sub, uint64_t id, uint8_t kind)
{
    uint8_t bytes[200];
    struct sp_pack p;
    struct sp_msg_event event = {.event_id = id, .kind = kind, .pid = 7};
    sp_pack_init(&p, bytes, sizeof(bytes));
    sp_msg_event_encode(&p, &event);
    put_frame(fd, SP_FRAME_EVENT, sub, &p);
}

static void answer(struct toy_agent *agent, const struct sp_frame_header *h, const uint8_t *payload)
{
    uint8_t bytes[200];
    struct sp_pack p;
    struct sp_msg_hello hello;
    struct sp_msg_hello_ok ok = {.version = 1};
    struct sp_msg_session session = {
        .state = SP_MSG_SESSION_RUNNING, .pid = 7, .oldest_event = 1, .next_event = 3};
    struct sp_msg_subscribed subscribed = {1, 3, 1, 0};
    sp_pack_init(&p, bytes, sizeof(bytes));
    if (h->type == SP_FRAME_HELLO) {
        g_assert_true(sp_msg_hello_decode(payload, h->payload_len, &hello));
        memcpy(ok.nonce, hello.nonce, sizeof(ok.nonce));
        sp_msg_hello_ok_encode(&p, &ok);
        put_frame(agent->fd, SP_FRAME_HELLO_OK, h->tag, &p);
    } else if (g_atomic_int_get(&agent->toy->mute)) {
        return;
    } else if (h->type == SP_FRAME_START) {
        sp_msg_session_encode(&p, &session);
        put_frame(agent->fd, SP_FRAME_STARTED, h->tag, &p);
    } else if (h->type == SP_FRAME_SUBSCRIBE) {
        sp_msg_subscribed_encode(&p, &subscribed);
        put_frame(agent->fd, SP_FRAME_SUBSCRIBED, h->tag, &p);
        put_event(agent->fd, h->tag, 1, SP_EVENT_STARTED);
        put_event(agent->fd, h->tag, 2, SP_EVENT_EXITED);
    } else if (h->type == SP_FRAME_PING) {
        put_frame(agent->fd, SP_FRAME_PONG, h->tag, NULL);
    } else if (h->type == SP_FRAME_IDENTITY) {
        put_frame(agent->fd, SP_FRAME_OK, h->tag, NULL);
    }
}

static bool read_all(int fd, uint8_t *bytes, size_t len)
{
    for (size_t at = 0; at < len;) {
        ssize_t n = recv(fd, bytes + at, len - at, 0);
        if (n <= 0)
            return false;
        at += (size_t)n;
    }
    return true;
}

static void toy_unref(struct toy *toy)
{
    if (g_atomic_int_dec_and_test(&toy->refs))
        g_free(toy);
}

static void *agent_thread(void *data)
{
    struct toy_agent *agent = data;
    uint8_t head[SP_FRAME_HEADER_BYTES], payload[4096];
    struct sp_frame_header h;
    while (read_all(agent->fd, head, sizeof(head))) {
        g_assert_true(sp_frame_header_decode(head, &h));
        g_assert_cmpuint(h.payload_len, <=, sizeof(payload));
        if (!read_all(agent->fd, payload, h.payload_len))
            break;
        answer(agent, &h, payload);
    }
    close(agent->fd);
    toy_unref(agent->toy);
    g_free(agent);
    return NULL;
}

/* --- the driver */

static struct toy_driver *toy_driver_of(struct sp_driver *driver)
{
    return (struct toy_driver *)driver;
}

static void toy_probe(struct sp_driver *driver, struct sp_tier_status *ret)
{
    *ret = (struct sp_tier_status){true, g_strdup("toy")};
}

static bool toy_prepare(struct sp_driver *driver, const char *template_dir,
                        const struct sp_shape *shape, sp_progress_fn progress, void *user,
                        GError **error)
{
    return true;
}

static struct sp_instance *toy_create(struct sp_driver *base, const struct sp_driver_spec *spec,
                                      sp_step_fn step, void *user, GError **error)
{
    struct toy_driver *driver = toy_driver_of(base);
    struct sp_record record = {.id = (char *)spec->id,
                               .tier = (char *)"container",
                               .template_digest = (char *)spec->template_digest,
                               .slot = spec->slot,
                               .started = true};
    g_assert_true(g_str_has_prefix(spec->name, "pool_"));
    g_usleep((gulong)driver->create_us);
    g_mutex_lock(&driver->lock);
    driver->creates++;
    bool refuse = driver->refuse_create;
    g_mutex_unlock(&driver->lock);
    if (refuse) {
        g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "refused");
        return NULL;
    }
    g_assert_true(sp_record_save(spec->run_dir, &record, error));
    struct toy *toy = g_new0(struct toy, 1);
    toy->refs = 1;
    toy->base.driver = base;
    toy->run_dir = g_strdup(spec->run_dir);
    toy->end_fd = eventfd(0, EFD_CLOEXEC);
    g_mutex_lock(&driver->lock);
    g_hash_table_insert(driver->instances, toy->run_dir, toy);
    g_mutex_unlock(&driver->lock);
    return &toy->base;
}

static int toy_connect(struct sp_instance *instance, GError **error)
{
    int fds[2];
    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), ==, 0);
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    struct toy_agent *agent = g_new0(struct toy_agent, 1);
    agent->fd = fds[1];
    agent->toy = (struct toy *)instance;
    g_atomic_int_inc(&agent->toy->refs);
    g_thread_unref(g_thread_new("agent", agent_thread, agent));
    return fds[0];
}

static int toy_pidfd(struct sp_instance *instance)
{
    return ((struct toy *)instance)->end_fd;
}

static bool toy_claim(struct sp_instance *instance, const char *id, const char *run_dir,
                      const char *hostname, GError **error)
{
    struct toy *toy = (struct toy *)instance;
    struct toy_driver *driver = toy_driver_of(instance->driver);
    bool fine = false;
    g_mutex_lock(&driver->lock);
    if (driver->refuse_claim) {
        g_set_error(error, SP_ERROR, SP_ERROR_UNAVAILABLE, "refused");
    } else if (rename(toy->run_dir, run_dir) < 0) {
        sp_error_set_errno(error, SP_ERROR_INTERNAL, errno, "rename");
    } else {
        g_hash_table_remove(driver->instances, toy->run_dir);
        g_free(toy->run_dir);
        toy->run_dir = g_strdup(run_dir);
        g_hash_table_insert(driver->instances, toy->run_dir, toy);
        fine = true;
    }
    g_mutex_unlock(&driver->lock);
    return fine;
}

static bool toy_destroy(struct sp_driver *base, const char *run_dir, GError **error)
{
    struct toy_driver *driver = toy_driver_of(base);
    g_mutex_lock(&driver->lock);
    driver->destroys++;
    g_mutex_unlock(&driver->lock);
    return true;
}

void toy_free(struct sp_instance *instance)
{
    struct toy *toy = (struct toy *)instance;
    struct toy_driver *driver = toy_driver_of(instance->driver);
    g_mutex_lock(&driver->lock);
    g_hash_table_remove(driver->instances, toy->run_dir);
    g_mutex_unlock(&driver->lock);
    close(toy->end_fd);
    g_free(toy->run_dir);
    toy_unref(toy);
}

static void toy_driver_free(struct sp_driver *base)
{
    struct toy_driver *driver = toy_driver_of(base);
    g_hash_table_destroy(driver->instances);
    g_free(driver);
}

static const struct sp_driver_ops ops = {
    .tier = "container",
    .probe = toy_probe,
    .prepare = toy_prepare,
    .create = toy_create,
    .destroy = toy_destroy,
    .connect_agent = toy_connect,
    .pidfd = toy_pidfd,
    .claim = toy_claim,
    .max_event_data = 32768,
    .instance_free = toy_free,
    .driver_free = toy_driver_free,
};

struct toy_driver *toy_driver_new(void)
{
    struct toy_driver *driver = g_new0(struct toy_driver, 1);
    driver->base.ops = &ops;
    g_mutex_init(&driver->lock);
    driver->instances = g_hash_table_new(g_str_hash, g_str_equal);
    return driver;
}
