#include "wire/agent_msg.h"

#include "agent_msg_recode.h"

#include <glib.h>

static uint8_t buffer[SP_FRAME_MAX_PAYLOAD];

static struct sp_pack fresh(void)
{
    struct sp_pack p;
    sp_pack_init(&p, buffer, sizeof buffer);
    return p;
}

static recode_fn *recode_of(const char *name)
{
    for (unsigned i = 0; i < G_N_ELEMENTS(recodes); i++) {
        if (strcmp(recodes[i].name, name) == 0)
            return recodes[i].recode;
    }
    g_assert_not_reached();
}

/* The message comes back as it was; every shorter one fails (down from where `rest` begins), and so
 * does one with a byte too many. Buffers have the exact size, so that ASan sees any read beyond. */
static void check(const char *name, const struct sp_pack *p, size_t rest)
{
    recode_fn *recode = recode_of(name);
    g_assert_false(p->overflow);
    g_autofree uint8_t *whole = g_memdup2(p->bytes, p->len);
    g_autofree uint8_t *again = g_malloc(p->len);
    struct sp_pack out;
    sp_pack_init(&out, again, p->len);
    g_assert_true(recode(whole, p->len, &out));
    g_assert_false(out.overflow);
    g_assert_cmpmem(again, out.len, whole, p->len);

    for (size_t len = 0; len < p->len - rest; len++) {
        g_autofree uint8_t *part = g_memdup2(whole, len);
        g_autofree uint8_t *space = g_malloc(p->len);
        sp_pack_init(&out, space, p->len);
        if (recode(part, len, &out))
            g_error("%s: %zu of %zu bytes were accepted", name, len, p->len);
    }
    if (rest == 0) {
        g_autofree uint8_t *longer = g_malloc0(p->len + 1);
        g_autofree uint8_t *space = g_malloc(p->len + 1);
        memcpy(longer, whole, p->len);
        sp_pack_init(&out, space, p->len + 1);
        g_assert_false(recode(longer, p->len + 1, &out));
    }
}

static const char *const env[] = {"A=1", "LANG=C.UTF-8", "E="};
static const char *const argv_strings[] = {"sh", "-c", "", "echo \xff\xfe"};

static struct sp_msg_start start_message(void)
{
    return (struct sp_msg_start){.session_id = sp_span_of("ses_1"),
                                 .argv = {.count = 4, .strings = argv_strings},
                                 .env = {.count = 3, .strings = env},
                                 .cwd = sp_span_of("/work"),
                                 .user = sp_span_of("user"),
                                 .stdin_open = 1,
                                 .timeout_ms = UINT64_MAX,
                                 .grace_ms = 5,
                                 .overflow = SP_OVERFLOW_DROP,
                                 .ring_bytes = 77,
                                 .rows = 24,
                                 .cols = 80};
}

static struct sp_msg_identity identity_message(void)
{
    static const uint8_t entropy[32] = {1, 0, 2};
    return (struct sp_msg_identity){.realtime_ns = 1,
                                    .entropy = {entropy, sizeof entropy},
                                    .hostname = sp_span_of("box-1.local"),
                                    .machine_id = sp_span_of("0123456789abcdef0123456789abcdef"),
                                    .env = {.count = 3, .strings = env},
                                    .pids_max = 100,
                                    .memory_reserve_bytes = 1u << 30};
}

static void test_opening(void)
{
    struct sp_pack p = fresh();
    sp_msg_hello_encode(&p, &(struct sp_msg_hello){1, 3, {1, 2, 3}, 60000, sp_span_of("sbx_1")});
    check("hello", &p, 0);
    p = fresh();
    sp_msg_hello_ok_encode(
        &p, &(struct sp_msg_hello_ok){1, {1}, {2}, 1, 3, sp_span_of("space-agent 1")});
    check("hello_ok", &p, 0);
    p = fresh();
    sp_msg_error_encode(&p, &(struct sp_msg_error){sp_span_of("invalid"), sp_span_of("why")});
    check("error", &p, 0);
    p = fresh();
    struct sp_msg_identity identity = identity_message();
    sp_msg_identity_encode(&p, &identity);
    check("identity", &p, 0);
    p = fresh();
    sp_msg_hold_encode(&p, &(struct sp_msg_hold){SP_HOLD_SYNC, SP_MSG_HOLD_TIMEOUT_MS_MAX});
    check("hold", &p, 0);
    p = fresh();
    sp_msg_release_encode(&p, &(struct sp_msg_release){UINT64_MAX});
    check("release", &p, 0);
}

static void test_sessions(void)
{
    struct sp_pack p = fresh();
    struct sp_msg_start start = start_message();
    sp_msg_start_encode(&p, &start);
    check("start", &p, 0);
    p = fresh();
    sp_msg_session_encode(
        &p, &(struct sp_msg_session){SP_MSG_SESSION_ENDED, 9, 1, 8, {137, 9, 5, 1, 2, 3}, 0});
    check("session", &p, 0);
    p = fresh();
    sp_msg_ref_encode(&p, sp_span_of("s"));
    check("ref", &p, 0);
    p = fresh();
    sp_msg_signal_encode(&p, &(struct sp_msg_signal){sp_span_of("s"), 64, SP_SIGNAL_SESSION});
    check("signal", &p, 0);
    p = fresh();
    sp_msg_resize_encode(&p, &(struct sp_msg_resize){sp_span_of("s"), 1, 65535});
    check("resize", &p, 0);
    p = fresh();
    sp_msg_process_list_encode(&p, 1, 2);
    for (int i = 0; i < 2; i++)
        sp_msg_process_encode(&p, &(struct sp_msg_process){sp_span_of("s"),
                                                           i,
                                                           sp_span_of("root"),
                                                           {.count = 4, .strings = argv_strings},
                                                           1,
                                                           2,
                                                           3});
    check("process_list", &p, 0);
}

static void test_events(void)
{
    struct sp_pack p = fresh();
    sp_msg_subscribe_encode(&p, &(struct sp_msg_subscribe){sp_span_of("s"), 1, UINT64_MAX});
    check("subscribe", &p, 0);
    p = fresh();
    sp_msg_subscribed_encode(&p, &(struct sp_msg_subscribed){2, 9, 9, 1});
    check("subscribed", &p, 0);
    p = fresh();
    sp_msg_credit_encode(&p, &(struct sp_msg_credit){1, 2});
    check("credit", &p, 0);
    const struct sp_msg_event events[] = {
        {.event_id = 1, .kind = SP_EVENT_STARTED, .pid = 12},
        {.event_id = 2, .kind = SP_EVENT_STDOUT, .data = sp_span_of("hello")},
        {.event_id = 3, .kind = SP_EVENT_STDERR, .data = sp_span_of("xy")},
        {.event_id = 4, .kind = SP_EVENT_DROPPED, .dropped_stream = 3, .dropped_bytes = 1 << 20},
        {.event_id = 5, .kind = SP_EVENT_EXITED, .exit = {-1, 9, 15, 1, 2, UINT64_MAX}},
        {.event_id = 6, .kind = SP_EVENT_ERROR, .failed = {sp_span_of("internal"), {0}}},
    };
    for (unsigned i = 0; i < G_N_ELEMENTS(events); i++) {
        p = fresh();
        sp_msg_event_encode(&p, &events[i]);
        check("event", &p, events[i].data.len > 0 ? events[i].data.len - 1 : 0);
    }
    for (unsigned kind = 0; kind < 256; kind++) { /* no other kind can be made or read */
        p = fresh();
        sp_msg_event_encode(&p, &(struct sp_msg_event){.event_id = 1, .kind = (uint8_t)kind});
        g_assert_cmpint(p.overflow, ==, kind < 1 || kind > 6);
        uint8_t bytes[9] = {1, 0, 0, 0, 0, 0, 0, 0, (uint8_t)kind};
        struct sp_msg_event m;
        g_assert_false(sp_msg_event_decode(bytes, sizeof bytes, &m));
    }
}

static void test_input(void)
{
    struct sp_pack p = fresh();
    sp_msg_stdin_encode(&p, &(struct sp_msg_stdin){sp_span_of("s"), 7, sp_span_of("data")});
    check("stdin", &p, 4);
    p = fresh();
    sp_msg_stdin_close_encode(&p, sp_span_of("s"), 7);
    check("stdin_close", &p, 0);
    p = fresh();
    sp_msg_stdin_ack_encode(&p, &(struct sp_msg_stdin_ack){sp_span_of("s"), 1, 2, 1});
    check("stdin_ack", &p, 0);
}

static void test_list(void)
{
    struct sp_pack p = fresh();
    struct sp_msg_start start = start_message(), out;
    sp_msg_start_encode(&p, &start);
    g_assert_true(sp_msg_start_decode(p.bytes, p.len, &out));
    struct sp_span item;
    size_t at = 0;
    for (unsigned i = 0; i < 4; i++) {
        g_assert_true(sp_msg_list_next(&out.argv, &at, &item));
        g_assert_cmpmem(item.bytes, item.len, argv_strings[i], strlen(argv_strings[i]));
    }
    g_assert_false(sp_msg_list_next(&out.argv, &at, &item));
}

#define REFUSED_START(change)                                                                      \
    do {                                                                                           \
        struct sp_msg_start m = start_message(), out;                                              \
        struct sp_pack p = fresh();                                                                \
        change;                                                                                    \
        sp_msg_start_encode(&p, &m);                                                               \
        g_assert_false(p.overflow);                                                                \
        g_assert_false(sp_msg_start_decode(p.bytes, p.len, &out));                                 \
    } while (0)

static void test_start_limits(void)
{
    g_autofree char *long_id = g_strnfill(SP_MSG_SESSION_ID_MAX + 1, 'x');
    g_autofree char *long_path = g_strnfill(SP_MSG_PATH_MAX + 1, '/');
    static const char *const no_equals[] = {"A"}, *const no_name[] = {"=x"}, *const empty[] = {""};
    static const char *many[SP_MSG_LIST_MAX + 1];
    for (unsigned i = 0; i < G_N_ELEMENTS(many); i++)
        many[i] = "x";
    REFUSED_START(m.session_id = sp_span_of(""));
    REFUSED_START(m.session_id = sp_span_of(long_id));
    REFUSED_START(m.argv = (struct sp_msg_list){0});
    REFUSED_START(m.argv = ((struct sp_msg_list){.count = 1, .strings = empty}));
    REFUSED_START(m.argv = ((struct sp_msg_list){.count = SP_MSG_LIST_MAX + 1, .strings = many}));
    REFUSED_START(m.env = ((struct sp_msg_list){.count = 1, .strings = no_equals}));
    REFUSED_START(m.env = ((struct sp_msg_list){.count = 1, .strings = no_name}));
    REFUSED_START(m.cwd = sp_span_of(long_path));
    REFUSED_START(m.cwd = ((struct sp_span){(const uint8_t *)"/a\0b", 4}));
    REFUSED_START(m.user = sp_span_of(long_path));
    REFUSED_START(m.stdin_open = 2);
    REFUSED_START(m.overflow = 2);
    REFUSED_START(m.rows = 0);
    REFUSED_START(m.cols = 0);
}

#define REFUSED_IDENTITY(change)                                                                   \
    do {                                                                                           \
        struct sp_msg_identity m = identity_message(), out;                                        \
        struct sp_pack p = fresh();                                                                \
        change;                                                                                    \
        sp_msg_identity_encode(&p, &m);                                                            \
        g_assert_false(sp_msg_identity_decode(p.bytes, p.len, &out));                              \
    } while (0)

static void test_identity_limits(void)
{
    static const uint8_t much[SP_MSG_ENTROPY_MAX + 1];
    g_autofree char *long_name = g_strnfill(SP_MSG_HOSTNAME_MAX + 1, 'x');
    REFUSED_IDENTITY(m.entropy.len = 31);
    REFUSED_IDENTITY(m.entropy = ((struct sp_span){much, sizeof much}));
    REFUSED_IDENTITY(m.hostname = sp_span_of("a b"));
    REFUSED_IDENTITY(m.hostname = sp_span_of("a\n127.0.0.1"));
    REFUSED_IDENTITY(m.hostname = sp_span_of(long_name));
    REFUSED_IDENTITY(m.machine_id = sp_span_of("0123456789ABCDEF0123456789abcdef"));
    REFUSED_IDENTITY(m.machine_id = sp_span_of("0123"));
    struct sp_msg_identity empty = {0}, out;
    struct sp_pack p = fresh();
    sp_msg_identity_encode(&p, &empty);
    g_assert_true(sp_msg_identity_decode(p.bytes, p.len, &out));
}

#define REFUSED(name, ...)                                                                         \
    do {                                                                                           \
        struct sp_msg_##name out;                                                                  \
        struct sp_pack p = fresh();                                                                \
        sp_msg_##name##_encode(&p, &(struct sp_msg_##name){__VA_ARGS__});                          \
        g_assert_false(sp_msg_##name##_decode(p.bytes, p.len, &out));                              \
    } while (0)

static void test_other_limits(void)
{
    REFUSED(hello, 2, 1, {0}, 4096, {0});
    REFUSED(hello, 1, 1, {0}, 1023, {0});
    REFUSED(hello, 1, 1, {0}, 60001, {0});
    REFUSED(error, {0}, {0});
    REFUSED(hello_ok, .identified = 2);
    REFUSED(hold, .flags = 2);
    REFUSED(hold, .flags = 1u << 31);
    REFUSED(hold, .timeout_ms = SP_MSG_HOLD_TIMEOUT_MS_MAX + 1);
    REFUSED(signal, sp_span_of("s"), 0, 0);
    REFUSED(signal, sp_span_of("s"), 65, 0);
    REFUSED(signal, sp_span_of("s"), -1, 0);
    REFUSED(signal, sp_span_of("s"), 1, 2);
    REFUSED(session, 0, 1, 1, 1, {0}, 0);
    REFUSED(session, 3, 1, 1, 1, {0}, 0);
    REFUSED(session, 1, 1, 0, 1, {0}, 0);
    REFUSED(session, 1, 1, 3, 2, {0}, 0);
    REFUSED(session, 1, 1, 1, 2, {0}, 2);
    REFUSED(resize, sp_span_of("s"), 0, 1);
    REFUSED(subscribed, 0, 1, 1, 0);
    REFUSED(subscribed, 3, 2, 3, 0);
    REFUSED(subscribed, 3, 5, 2, 0);
    REFUSED(subscribed, 3, 5, 6, 0);
    REFUSED(subscribed, 3, 5, 5, 2);
    REFUSED(event, .event_id = 0, .kind = SP_EVENT_STARTED);
    REFUSED(event, .event_id = 1, .kind = SP_EVENT_STDOUT);
    REFUSED(event, .event_id = 1, .kind = SP_EVENT_DROPPED, .dropped_stream = 1);
    REFUSED(stdin, sp_span_of("s"), UINT64_MAX, sp_span_of("x"));
    REFUSED(stdin_ack, sp_span_of("s"), 5, 4, 0);
    REFUSED(stdin_ack, sp_span_of("s"), 5, 5, 2);
}

/* Lists of SP_MSG_LISTS_BYTES_MAX leave room for every other field at its largest. */
static void test_largest_lists(void)
{
    g_autofree char *id = g_strnfill(SP_MSG_SESSION_ID_MAX, 'x');
    g_autofree char *path = g_strnfill(SP_MSG_PATH_MAX, '/');
    g_autofree char *name = g_strnfill(SP_MSG_NAME_MAX, 'u');
    g_autofree char *host = g_strnfill(SP_MSG_HOSTNAME_MAX, 'h');
    g_autofree char *big = g_strnfill(SP_MSG_LISTS_BYTES_MAX - SP_MSG_ITEM_OVERHEAD - 2, 'v');
    g_autofree char *variable = g_strconcat("A=", big, NULL);
    static uint8_t entropy[SP_MSG_ENTROPY_MAX];
    const char *list[] = {variable};
    struct sp_msg_start start = start_message(), start_out;
    start.session_id = sp_span_of(id);
    start.argv = (struct sp_msg_list){1, list, {NULL, 0}};
    start.env = (struct sp_msg_list){0, NULL, {NULL, 0}};
    start.cwd = sp_span_of(path);
    start.user = sp_span_of(name);
    struct sp_pack p = fresh();
    sp_msg_start_encode(&p, &start);
    g_assert_false(p.overflow);
    g_assert_true(sp_msg_start_decode(p.bytes, p.len, &start_out));

    struct sp_msg_identity out, identity = {
                                    .entropy = {entropy, sizeof entropy},
                                    .hostname = sp_span_of(host),
                                    .machine_id = sp_span_of("0123456789abcdef0123456789abcdef"),
                                    .env = {1, list, {NULL, 0}},
                                };
    p = fresh();
    sp_msg_identity_encode(&p, &identity);
    g_assert_false(p.overflow);
    g_assert_true(sp_msg_identity_decode(p.bytes, p.len, &out));
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/msg/opening", test_opening);
    g_test_add_func("/msg/sessions", test_sessions);
    g_test_add_func("/msg/events", test_events);
    g_test_add_func("/msg/input", test_input);
    g_test_add_func("/msg/list", test_list);
    g_test_add_func("/msg/limits/start", test_start_limits);
    g_test_add_func("/msg/limits/largest_lists", test_largest_lists);
    g_test_add_func("/msg/limits/identity", test_identity_limits);
    g_test_add_func("/msg/limits/others", test_other_limits);
    return g_test_run();
}
