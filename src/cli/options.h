/*
 * Command-line options by table: one row an option, which drives parsing, `space help VERB` and
 * shell completion.
 *
 * Long options take their value as "--name=value" or "--name value"; a letter as "-x" (letters of
 * flags may be joined, "-it"), or "-x value". "--" ends the options.
 */
#pragma once

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum sp_option_kind {
    SP_OPTION_FLAG,    /* bool; "--name" sets it, "--name=false" clears it */
    SP_OPTION_NEGATED, /* bool that is the opposite of the flag: "--rm=false" sets it */
    SP_OPTION_STRING,  /* char *, owned */
    SP_OPTION_INT,     /* int64_t, > 0 unless it names a descriptor or an id: >= min */
    SP_OPTION_NUMBER,  /* double > 0 */
    SP_OPTION_LIST,    /* char **, owned strv; each use adds one */
};

struct sp_option {
    const char *name; /* without the dashes; NULL ends a table */
    char letter;      /* 0: none */
    enum sp_option_kind kind;
    size_t offset;          /* of the value in the struct of the verb's options */
    const char *value_name; /* shown in the help; NULL for flags */
    const char *help;
    int64_t min; /* SP_OPTION_INT: smallest value */
};

/* Parses argv[0..argc) (without verb) into *out, a zeroed struct, or one with defaults (owned
 * defaults are freed when replaced). What is no option is collected in *ret_operands (owned strv).
 * With stop_at_operand everything from the first operand on is taken as it is. false with
 * SP_ERROR_INVALID_REQUEST; *out may be partly filled. */
bool sp_options_parse(const struct sp_option *table, void *out, int argc, char **argv,
                      bool stop_at_operand, char ***ret_operands, GError **error);
/* Frees and zeroes the owned values. */
void sp_options_clear(const struct sp_option *table, void *out);
