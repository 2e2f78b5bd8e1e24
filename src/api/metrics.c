#include "api/metrics.h"

#include <string.h>

#include "api/api.h"

#define MAX_ROUTES 64
#define N_STATUS 600

static const double bounds_s[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                  0.25,  0.5,    1,     2.5,  5,     10,   30};
#define N_BOUNDS G_N_ELEMENTS(bounds_s)

struct histogram {
    uint64_t buckets[N_BOUNDS]; /* each counts only its own range */
    uint64_t count;
    double sum_s;
};

struct sp_metrics {
    GMutex lock; /* a leaf */
    uint32_t requests[MAX_ROUTES][N_STATUS];
    struct histogram durations[MAX_ROUTES];
    struct histogram operations[SP_N_OPERATION_KINDS];
};

struct sp_metrics *sp_metrics_new(void)
{
    struct sp_metrics *m = g_new0(struct sp_metrics, 1);
    g_mutex_init(&m->lock);
    return m;
}

void sp_metrics_free(struct sp_metrics *m)
{
    g_mutex_clear(&m->lock);
    g_free(m);
}

static void observe(struct histogram *h, int64_t duration_us)
{
    double s = (double)duration_us / 1e6;
    for (unsigned i = 0; i < N_BOUNDS; i++) {
        if (s <= bounds_s[i]) {
            h->buckets[i]++;
            break;
        }
    }
    h->count++;
    h->sum_s += s;
}

void sp_metrics_request(struct sp_metrics *m, unsigned route, int status, int64_t duration_us)
{
    if (route >= MAX_ROUTES || status < 0 || status >= N_STATUS)
        return;
    g_mutex_lock(&m->lock);
    m->requests[route][status]++;
    observe(&m->durations[route], duration_us);
    g_mutex_unlock(&m->lock);
}

void sp_metrics_operation(struct sp_metrics *m, enum sp_operation_kind kind, int64_t duration_us)
{
    g_mutex_lock(&m->lock);
    observe(&m->operations[kind], duration_us);
    g_mutex_unlock(&m->lock);
}

static void write_number(GString *out, double value)
{
    char text[G_ASCII_DTOSTR_BUF_SIZE];
    g_string_append(out, g_ascii_formatd(text, sizeof text, "%.9g", value));
    g_string_append_c(out, '\n');
}

/* labels: "" or 'route="…",' */
static void write_histogram(GString *out, const char *name, const char *labels,
                            const struct histogram *h)
{
    uint64_t below = 0;
    char bound[G_ASCII_DTOSTR_BUF_SIZE];
    for (unsigned i = 0; i < N_BOUNDS; i++) {
        below += h->buckets[i];
        g_string_append_printf(out, "%s_bucket{%sle=\"%s\"} %" G_GUINT64_FORMAT "\n", name, labels,
                               g_ascii_formatd(bound, sizeof bound, "%g", bounds_s[i]), below);
    }
    size_t len = strlen(labels);
    g_autofree char *own = len ? g_strdup_printf("{%.*s}", (int)len - 1, labels) : g_strdup("");
    g_string_append_printf(out, "%s_bucket{%sle=\"+Inf\"} %" G_GUINT64_FORMAT "\n", name, labels,
                           h->count);
    g_string_append_printf(out, "%s_sum%s ", name, own);
    write_number(out, h->sum_s);
    g_string_append_printf(out, "%s_count%s %" G_GUINT64_FORMAT "\n", name, own, h->count);
}

void sp_metrics_write(struct sp_metrics *m, GString *out)
{
    g_mutex_lock(&m->lock);
    g_string_append(out, "# TYPE space_http_requests_total counter\n");
    for (unsigned r = 0; r < MAX_ROUTES && sp_api_routes[r].method; r++) {
        for (unsigned status = 0; status < N_STATUS; status++) {
            if (m->requests[r][status])
                g_string_append_printf(
                    out, "space_http_requests_total{method=\"%s\",route=\"%s\",status=\"%u\"} %u\n",
                    sp_api_routes[r].method, sp_api_routes[r].pattern, status,
                    m->requests[r][status]);
        }
    }
    g_string_append(out, "# TYPE space_http_request_duration_seconds histogram\n");
    for (unsigned r = 0; r < MAX_ROUTES && sp_api_routes[r].method; r++) {
        if (m->durations[r].count == 0)
            continue;
        g_autofree char *labels = g_strdup_printf(
            "method=\"%s\",route=\"%s\",", sp_api_routes[r].method, sp_api_routes[r].pattern);
        write_histogram(out, "space_http_request_duration_seconds", labels, &m->durations[r]);
    }
    g_string_append(out, "# TYPE space_sandbox_create_seconds histogram\n");
    write_histogram(out, "space_sandbox_create_seconds", "", &m->operations[SP_OPERATION_CREATE]);
    g_string_append(out, "# TYPE space_operation_seconds histogram\n");
    for (unsigned k = 0; k < SP_N_OPERATION_KINDS; k++) {
        if (m->operations[k].count == 0)
            continue;
        g_autofree char *labels = g_strdup_printf("kind=\"%s\",", sp_operation_kind_names[k]);
        write_histogram(out, "space_operation_seconds", labels, &m->operations[k]);
    }
    g_mutex_unlock(&m->lock);
}
