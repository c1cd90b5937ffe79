/* SPDX-License-Identifier: Apache-2.0 */
/* Strict reading of JSON: every refusal names the source, the place, the value and what is allowed.
 */
#include "config/json.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/err.h"

enum {
    POINTER_BYTES = 256, /* the deepest pointer is /routes/<63>/when_full */
    VALUE_BYTES = 72,    /* more of a wrong value helps nobody */
    KEY_BYTES = 32,      /* longer than every key that we know */
    MESSAGE_BYTES = 1024,
};

static bool is_control(char character)
{
    return (unsigned char)character < 0x20 || character == 0x7f;
}

static void report_refuse(struct rs_json_report *report, int status, const char *format,
                          va_list arguments)
{
    int used;

    if (report->status != 0)
        return;
    report->status = status;
    if (report->error_bytes == 0)
        return;
    used = snprintf(report->error, report->error_bytes, "%s: ", report->name);
    if (used >= 0 && (size_t)used < report->error_bytes)
        vsnprintf(report->error + used, report->error_bytes - (size_t)used, format, arguments);
    /* Names, keys and excerpts come from outside, the message goes to terminals and logs. */
    for (char *character = report->error; *character != '\0'; character++)
        if (is_control(*character))
            *character = '?';
}

void rs_json_report_refuse(struct rs_json_report *report, int status, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    report_refuse(report, status, format, arguments);
    va_end(arguments);
}

/* Appends "/key" or "/index" for every step below the document. */
static size_t put_pointer(const struct rs_json *at, char *text)
{
    size_t used = 0;
    int added;

    text[0] = '\0';
    if (at->parent == NULL)
        return 0;
    used = put_pointer(at->parent, text);
    if (at->key != NULL)
        added = snprintf(text + used, POINTER_BYTES - used, "/%s", at->key);
    else
        added = snprintf(text + used, POINTER_BYTES - used, "/%zu", at->index);
    used += (size_t)added;
    return used < POINTER_BYTES ? used : POINTER_BYTES - 1;
}

/* Escaped and cut, so that a hostile value neither floods nor disguises the message. */
static void dump(const json_t *scalar, char text[VALUE_BYTES])
{
    char *whole = json_dumps(scalar, JSON_ENCODE_ANY | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(15));

    if (whole == NULL)
        snprintf(text, VALUE_BYTES, "a value");
    else if (snprintf(text, VALUE_BYTES, "%s", whole) >= VALUE_BYTES)
        memcpy(text + VALUE_BYTES - 5, "...\"", 5);
    free(whole);
}

static void describe(const json_t *value, char text[VALUE_BYTES])
{
    if (json_is_object(value))
        snprintf(text, VALUE_BYTES, "an object");
    else if (json_is_array(value))
        snprintf(text, VALUE_BYTES, "an array of %zu", json_array_size(value));
    else
        dump(value, text);
}

void rs_json_refuse(struct rs_json at, const char *format, ...)
{
    char pointer[POINTER_BYTES], value[VALUE_BYTES], expected[MESSAGE_BYTES];
    va_list arguments;

    put_pointer(&at, pointer);
    describe(at.value, value);
    va_start(arguments, format);
    vsnprintf(expected, sizeof(expected), format, arguments);
    va_end(arguments);
    rs_json_report_refuse(at.report, -RINGSIDE_E_INVALID, "%s%sgot %s; expected %s", pointer,
                          pointer[0] != '\0' ? ": " : "", value, expected);
}

static void refuse_syntax(struct rs_json_report *report, const json_error_t *syntax)
{
    const char *text = syntax->text;

    switch (json_error_code(syntax)) {
    case json_error_null_character:
    case json_error_null_byte_in_key:
        text = "a string holds a NUL character (\\u0000)";
        break;
    case json_error_stack_overflow:
        text = "nested too deep";
        break;
    case json_error_duplicate_key:
        rs_json_report_refuse(report, -RINGSIDE_E_INVALID,
                              "line %d, column %d: %s; say each thing once", syntax->line,
                              syntax->column, text);
        return;
    case json_error_numeric_overflow:
        rs_json_report_refuse(report, -RINGSIDE_E_INVALID,
                              "line %d, column %d: %s; the largest integer is 2^63 - 1",
                              syntax->line, syntax->column, text);
        return;
    default:
        break;
    }
    /* jansson has no words for most failed allocations (some it calls an invalid token). */
    if (text[0] == '\0')
        rs_json_report_refuse(report, -ENOMEM, "out of memory");
    else
        rs_json_report_refuse(report, -RINGSIDE_E_INVALID, "line %d, column %d: %s", syntax->line,
                              syntax->column, text);
}

json_t *rs_json_parse(struct rs_json_report *report, const char *text, size_t length)
{
    static const char bom[] = "\xef\xbb\xbf";
    json_error_t syntax = {.line = -1};
    json_t *value;

    if (length >= 3 && memcmp(text, bom, 3) == 0) {
        rs_json_report_refuse(report, -RINGSIDE_E_INVALID,
                              "line 1, column 1: starts with a byte-order mark; "
                              "save it as UTF-8 without one");
        return NULL;
    }
    value = json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &syntax);
    if (value == NULL)
        refuse_syntax(report, &syntax);
    return value;
}

struct rs_json rs_json_member(const struct rs_json *object, const char *key)
{
    return (struct rs_json){
        .report = object->report,
        .parent = object,
        .key = key,
        .value = json_object_get(object->value, key),
    };
}

struct rs_json rs_json_element(const struct rs_json *array, size_t index)
{
    return (struct rs_json){
        .report = array->report,
        .parent = array,
        .index = index,
        .value = json_array_get(array->value, index),
    };
}

struct rs_json rs_json_required(const struct rs_json *object, const char *key)
{
    struct rs_json member = rs_json_member(object, key);
    char pointer[POINTER_BYTES];

    if (member.value == NULL) {
        put_pointer(object, pointer);
        rs_json_report_refuse(object->report, -RINGSIDE_E_INVALID, "%s%smissing key \"%s\"",
                              pointer, pointer[0] != '\0' ? ": " : "", key);
    }
    return member;
}

/* Levenshtein distance, case ignored; both strings are shorter than KEY_BYTES. */
static size_t distance(const char *left, const char *right)
{
    size_t row[KEY_BYTES], columns = strlen(right);

    for (size_t j = 0; j <= columns; j++)
        row[j] = j;
    for (size_t i = 0; left[i] != '\0'; i++) {
        size_t diagonal = row[0];

        row[0] = i + 1;
        for (size_t j = 0; j < columns; j++) {
            bool same = tolower((unsigned char)left[i]) == tolower((unsigned char)right[j]);
            size_t best = diagonal + !same;

            diagonal = row[j + 1];
            if (diagonal + 1 < best)
                best = diagonal + 1;
            if (row[j] + 1 < best)
                best = row[j] + 1;
            row[j + 1] = best;
        }
    }
    return row[columns];
}

/* The known key that somebody may have meant, or NULL when none is near. */
static const char *nearest(const char *key, const char *const *keys)
{
    size_t length = strlen(key), limit = length < 6 ? 1 : length / 3;
    const char *best = NULL;

    if (length >= KEY_BYTES)
        return NULL;
    if (limit > 3)
        limit = 3;
    for (; *keys != NULL; keys++) {
        size_t near = distance(key, *keys);

        if (near <= limit && near < length) {
            best = *keys;
            limit = near - 1; /* never 0: an equal key is not unknown, unless by case */
            if (near <= 1)
                break;
        }
    }
    return best;
}

static void join(const char *const *words, char *text, size_t text_bytes)
{
    size_t used = 0;

    text[0] = '\0';
    for (size_t i = 0; words[i] != NULL && used < text_bytes; i++)
        used += (size_t)snprintf(text + used, text_bytes - used, "%s\"%s\"", i == 0 ? "" : ", ",
                                 words[i]);
}

static void refuse_key(const struct rs_json *at, const char *key, const char *const *keys)
{
    char pointer[POINTER_BYTES], quoted[VALUE_BYTES], hint[MESSAGE_BYTES];
    const char *meant = nearest(key, keys);
    json_t *string;

    put_pointer(at, pointer);
    string = json_string_nocheck(key);
    dump(string, quoted);
    json_decref(string);
    if (meant != NULL)
        snprintf(hint, sizeof(hint), "did you mean \"%s\"?", meant);
    else {
        int used = snprintf(hint, sizeof(hint), "allowed: ");
        join(keys, hint + used, sizeof(hint) - (size_t)used);
    }
    rs_json_report_refuse(at->report, -RINGSIDE_E_INVALID, "%s%sunknown key %s; %s", pointer,
                          pointer[0] != '\0' ? ": " : "", quoted, hint);
}

static bool is_among(const char *word, const char *const *words)
{
    for (; *words != NULL; words++)
        if (strcmp(word, *words) == 0)
            return true;
    return false;
}

bool rs_json_is_object(struct rs_json at, const char *const *keys)
{
    const char *key;
    json_t *value;

    if (at.value == NULL)
        return false;
    if (!json_is_object(at.value)) {
        rs_json_refuse(at, "an object");
        return false;
    }
    if (keys == NULL)
        return true;
    json_object_foreach(at.value, key, value)
    {
        if (!is_among(key, keys)) {
            refuse_key(&at, key, keys);
            return false;
        }
    }
    return true;
}

size_t rs_json_array(struct rs_json at, size_t min, size_t max)
{
    size_t count = json_array_size(at.value);

    if (at.value == NULL)
        return 0;
    if (!json_is_array(at.value)) {
        rs_json_refuse(at, "an array of %zu to %zu elements", min, max);
        return 0;
    }
    if (count < min || count > max) {
        rs_json_refuse(at, "%zu to %zu elements", min, max);
        return 0;
    }
    return count;
}

uint64_t rs_json_integer(struct rs_json at, uint64_t min, uint64_t max, uint64_t fallback)
{
    json_int_t value = json_integer_value(at.value);

    if (at.value == NULL)
        return fallback;
    if (!json_is_integer(at.value) || value < 0 || (uint64_t)value < min || (uint64_t)value > max) {
        rs_json_refuse(at, "an integer from %" PRIu64 " to %" PRIu64, min, max);
        return fallback;
    }
    return (uint64_t)value;
}

const char *rs_json_text(struct rs_json at, const char *expected)
{
    if (at.value == NULL)
        return NULL;
    if (!json_is_string(at.value)) {
        rs_json_refuse(at, "%s", expected);
        return NULL;
    }
    for (const char *character = json_string_value(at.value); *character != '\0'; character++) {
        if (is_control(*character)) {
            rs_json_refuse(at, "%s, without control characters", expected);
            return NULL;
        }
    }
    return json_string_value(at.value);
}

unsigned rs_json_choice(struct rs_json at, const char *const *names, unsigned fallback)
{
    const char *text = json_string_value(at.value);
    char all[MESSAGE_BYTES];

    if (at.value == NULL)
        return fallback;
    for (unsigned i = 0; text != NULL && names[i] != NULL; i++)
        if (strcmp(text, names[i]) == 0)
            return i;
    join(names, all, sizeof(all));
    rs_json_refuse(at, "one of %s", all);
    return fallback;
}
