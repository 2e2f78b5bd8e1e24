/* 64 clients at once on kept connections; the latencies are printed, not judged. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/time.h"
#include "http/client.h"
#include "http/server.h"

#define CLIENTS 64
#define CALLS 200

static gint handled;

static void on_add(struct sp_http_request *request, void *user)
{
    g_atomic_int_inc(&handled);
    g_autoptr(GError) error = NULL;
    g_autoptr(json_t) body = sp_http_body_json(request, &error);
    g_assert_no_error(error);
    const json_int_t n = json_integer_value(json_object_get(body, "n"));
    sp_http_respond_json(request, 200, json_pack("{s:I}", "n", n + 1));
}

static const struct sp_http_route routes[] = {
    {.method = "POST", .pattern = "/v1/{}/add", .handler = on_add, .max_body_bytes = 1000},
    {NULL},
};

struct worker {
    struct sp_http_client *client;
    int64_t took_us[CALLS];
    unsigned failed;
};

static gpointer worker_run(gpointer data)
{
    struct worker *worker = data;
    for (int i = 0; i < CALLS; i++) {
        g_autoptr(json_t) request = json_pack("{s:i}", "n", i);
        g_autoptr(GError) error = NULL;
        const int64_t begin_us = sp_time_monotonic_us();
        g_autoptr(json_t) answer =
            sp_http_call_json(worker->client, "POST", "/v1/x/add", request, 30000, NULL, &error);
        worker->took_us[i] = sp_time_monotonic_us() - begin_us;
        if (!answer || json_integer_value(json_object_get(answer, "n")) != i + 1) {
            worker->failed++;
            g_test_message("call failed: %s", error ? error->message : "wrong answer");
        }
    }
    return NULL;
}

static gint by_value(gconstpointer a, gconstpointer b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static void test_many_clients(void)
{
    g_autoptr(GError) error = NULL;
    struct sp_http_server *server = sp_http_server_start(
        &(struct sp_http_server_config){.address = "127.0.0.1:0", .routes = routes}, &error);
    g_assert_no_error(error);
    g_autofree char *url = g_strconcat("http://", sp_http_server_address(server), NULL);
    struct sp_http_client *client = sp_http_client_new(url, NULL);
    g_autofree struct worker *workers = g_new0(struct worker, CLIENTS);
    GThread *threads[CLIENTS];
    const int64_t begin_us = sp_time_monotonic_us();
    for (int i = 0; i < CLIENTS; i++) {
        workers[i].client = client;
        threads[i] = g_thread_new("client", worker_run, &workers[i]);
    }
    g_autofree int64_t *all = g_new(int64_t, CLIENTS * CALLS);
    for (int i = 0; i < CLIENTS; i++) {
        g_thread_join(threads[i]);
        g_assert_cmpuint(workers[i].failed, ==, 0);
        memcpy(all + (gsize)i * CALLS, workers[i].took_us, sizeof(workers[i].took_us));
    }
    const double seconds = (double)(sp_time_monotonic_us() - begin_us) / 1e6;
    const unsigned n = CLIENTS * CALLS;
    qsort(all, n, sizeof(all[0]), by_value);
    g_test_message("%u calls of %u clients: %.0f/s, p50 %.2f ms, p95 %.2f ms, p99 %.2f ms, "
                   "worst %.2f ms",
                   n, CLIENTS, n / seconds, (double)all[n / 2] / 1e3,
                   (double)all[n * 95 / 100] / 1e3, (double)all[n * 99 / 100] / 1e3,
                   (double)all[n - 1] / 1e3);
    g_assert_cmpint(g_atomic_int_get(&handled), ==, (gint)n);
    sp_http_client_free(client);
    sp_http_server_stop(server, 2000);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/http_load/many_clients", test_many_clients);
    return g_test_run();
}
