#include "account.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIELDS 7u /* passwd(5): name:password:uid:gid:gecos:home:shell; group(5) has 4 */

/* Decimal digits only, below 2^32 - 1 (which means "no change" to the kernel). */
static bool parse_id(struct sp_span s, uint32_t *ret)
{
    uint64_t v = 0;
    if (s.len == 0 || s.len > 10)
        return false;
    for (size_t i = 0; i < s.len; i++) {
        if (s.bytes[i] < '0' || s.bytes[i] > '9')
            return false;
        v = v * 10 + (uint64_t)(s.bytes[i] - '0');
    }
    if (v >= UINT32_MAX)
        return false;
    *ret = (uint32_t)v;
    return true;
}

/* Takes the next line of a text and splits it at ':'. Missing fields are empty. */
static bool next_line(const char *text, size_t len, size_t *at, struct sp_span ret[FIELDS])
{
    if (*at >= len)
        return false;
    const char *line = text + *at;
    const char *end = memchr(line, '\n', len - *at);
    size_t left = end ? (size_t)(end - line) : len - *at;
    *at += left + 1;
    for (unsigned i = 0; i < FIELDS; i++) {
        const char *colon = i + 1 < FIELDS ? memchr(line, ':', left) : NULL;
        size_t field = colon ? (size_t)(colon - line) : left;
        ret[i] = (struct sp_span){(const uint8_t *)line, field};
        size_t step = colon ? field + 1 : field;
        line += step;
        left -= step;
    }
    return true;
}

static bool span_is(struct sp_span s, const char *text)
{
    size_t len = strlen(text);
    return s.len == len && memcmp(s.bytes, text, len) == 0;
}

/* false: does not fit, or holds a NUL. */
static bool span_copy(struct sp_span s, char *ret, size_t size)
{
    if (s.len >= size || (s.len > 0 && memchr(s.bytes, 0, s.len)))
        return false;
    if (s.len > 0)
        memcpy(ret, s.bytes, s.len);
    ret[s.len] = '\0';
    return true;
}

bool account_find(const char *text, size_t len, const char *wanted, struct account *ret)
{
    uint32_t wanted_uid = 0;
    bool by_uid = parse_id(sp_span_of(wanted), &wanted_uid);
    struct sp_span f[FIELDS];
    for (size_t at = 0; next_line(text, len, &at, f);) {
        uint32_t uid, gid;
        if (!parse_id(f[2], &uid) || !parse_id(f[3], &gid) || f[0].len == 0)
            continue;
        if (by_uid ? uid != wanted_uid : !span_is(f[0], wanted))
            continue;
        struct account found = {.uid = uid, .gid = gid, .group_count = 1, .groups = {gid}};
        if (!span_copy(f[0], found.name, sizeof found.name) ||
            !span_copy(f[5], found.home, sizeof found.home) ||
            !span_copy(f[6], found.shell, sizeof found.shell))
            continue;
        *ret = found;
        return true;
    }
    return false;
}

static bool list_has(struct sp_span list, const char *name)
{
    size_t len = strlen(name);
    for (size_t at = 0; at < list.len;) {
        const uint8_t *item = list.bytes + at;
        const uint8_t *comma = memchr(item, ',', list.len - at);
        size_t item_len = comma ? (size_t)(comma - item) : list.len - at;
        if (item_len == len && memcmp(item, name, len) == 0)
            return true;
        at += item_len + 1;
    }
    return false;
}

void account_add_groups(const char *text, size_t len, struct account *account)
{
    struct sp_span f[FIELDS];
    for (size_t at = 0; next_line(text, len, &at, f);) {
        uint32_t gid;
        if (!parse_id(f[2], &gid) || gid == account->gid || !list_has(f[3], account->name))
            continue;
        if (account->group_count == ACCOUNT_GROUPS_MAX)
            return;
        account->groups[account->group_count++] = gid;
    }
}

/* Reads the beginning of a regular file. Opening never blocks (a FIFO may lie there). */
static size_t read_regular(const char *path, uint8_t *ret, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return 0;
    struct stat st;
    size_t len = 0;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
        ssize_t n;
        while (len < size && (n = read(fd, ret + len, size - len)) > 0) {
            len += (size_t)n;
            if (len >= (size_t)st.st_size)
                break; /* the usual case without another read */
        }
    }
    close(fd);
    return len;
}

bool account_load(struct agent *a, const char *wanted, struct account *ret)
{
    struct account found;
    char *text = (char *)a->scratch;
    size_t len = read_regular("/etc/passwd", a->scratch, sizeof a->scratch);
    uint32_t uid;
    if (!account_find(text, len, wanted, &found)) {
        bool root = strcmp(wanted, "root") == 0;
        if (!root && !parse_id(sp_span_of(wanted), &uid))
            return false;
        if (root)
            uid = 0;
        found = (struct account){.uid = uid, .gid = uid, .group_count = 1, .groups = {uid}};
        snprintf(found.name, sizeof found.name, "%s", uid == 0 ? "root" : wanted);
        snprintf(found.home, sizeof found.home, "%s", uid == 0 ? "/root" : "/");
    }
    if (found.home[0] != '/')
        snprintf(found.home, sizeof found.home, "/");
    if (!found.shell[0])
        snprintf(found.shell, sizeof found.shell, "/bin/sh");
    len = read_regular("/etc/group", a->scratch, sizeof a->scratch);
    account_add_groups(text, len, &found);
    *ret = found;
    return true;
}
