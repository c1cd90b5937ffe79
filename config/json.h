/* SPDX-License-Identifier: Apache-2.0 */
/* Strict reading of JSON: every refusal names the source, the place, the value and what is allowed.
 */
#ifndef RINGSIDE_CONFIG_JSON_H
#define RINGSIDE_CONFIG_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where the first refusal goes; later ones are ignored, so readers need no check after each step.
 */
struct rs_json_report {
    const char *name;   /* the file or variable that is read, first in every message; borrowed */
    char *error;        /* receives the message, always terminated; NULL if error_bytes is 0 */
    size_t error_bytes; /* room in error */
    int status;         /* 0, or the negative error of the first refusal */
};

/* A value together with the way to it, which is what a JSON pointer is made of. */
struct rs_json {
    struct rs_json_report *report; /* shared by all values of a document; borrowed */
    const struct rs_json *parent;  /* object or array that holds it, NULL for the document */
    const char *key;               /* name in parent, NULL for an element; printable, without / ~ */
    size_t index;                  /* number in parent when key is NULL */
    json_t *value;                 /* borrowed; NULL: absent, every reader then keeps its default */
};

/*
 * Parses a document. Returns the value, which the caller decrefs, or NULL after a refusal with the
 * line and column: syntax, duplicate keys, NUL, a byte-order mark, nesting too deep, huge numbers.
 */
json_t *rs_json_parse(struct rs_json_report *report, const char *text, size_t length);

struct rs_json rs_json_member(const struct rs_json *object, const char *key);
struct rs_json rs_json_element(const struct rs_json *array, size_t index);

/* A member whose absence is refused. */
struct rs_json rs_json_required(const struct rs_json *object, const char *key);

/* True when at is an object whose keys are all among keys (NULL-terminated; keys NULL: any). */
bool rs_json_is_object(struct rs_json at, const char *const *keys);

/* The number of elements of an array of min..max elements; 0 when absent or refused. */
size_t rs_json_array(struct rs_json at, size_t min, size_t max);

/* An integer of min..max; fallback when absent or refused. */
uint64_t rs_json_integer(struct rs_json at, uint64_t min, uint64_t max, uint64_t fallback);

/* A string without control characters, or NULL when absent or refused. Lives as long as the value.
 */
const char *rs_json_text(struct rs_json at, const char *expected);

/* The number of a string in names (NULL-terminated); fallback when absent or refused. */
unsigned rs_json_choice(struct rs_json at, const char *const *names, unsigned fallback);

/* Refuses a value: "<source>: <pointer>: got <value>; expected <what format says>". */
void rs_json_refuse(struct rs_json at, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Refuses with the message alone: "<source>: <message>". */
void rs_json_report_refuse(struct rs_json_report *report, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
