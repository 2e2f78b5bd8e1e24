/*
 * libFuzzer target of the QMP parser: what is accepted is of exactly one kind and can be cleared.
 * Build and run:
 *   clang -g -O1 -D_GNU_SOURCE -fsanitize=fuzzer,address,undefined -Isrc $(pkg-config --cflags
 * glib-2.0 jansson) \ tests/fuzz/qmp.c src/wire/qmp.c src/base/{json,error,time}.c $(pkg-config
 * --libs glib-2.0 jansson) -o fuzz-qmp && ./fuzz-qmp
 */
#include "wire/qmp.h"

#include <stddef.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    const char *text = (const char *)bytes;
    size_t at = 0;
    for (;;) {
        size_t n = sp_qmp_line_length(text + at, len - at);
        struct sp_qmp_message m = {.kind = SP_QMP_EVENT};
        if (sp_qmp_parse(text + at, n > 0 ? n : len - at, &m, NULL)) {
            if ((m.kind == SP_QMP_RETURN) != (m.name == NULL) ||
                (m.kind == SP_QMP_FAILURE) != (m.text != NULL))
                __builtin_trap();
        } else if (m.name || m.text || m.data) {
            __builtin_trap();
        }
        sp_qmp_message_clear(&m);
        if (n == 0)
            return 0;
        at += n;
    }
}
