/* SPDX-License-Identifier: Apache-2.0 */
/* Formatting for people; every character's width comes from the locale. */
#include "client/cli/output.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#define GAP            2 /* columns between two columns of a table */
#define YIELDS_DOWN_TO 6 /* columns that a yielding column keeps */
#define ESCAPE_BYTES   4 /* longest escape of one byte: "\x1b" */

void *output_need(void *memory)
{
    if (memory == NULL) {
        fputs("ringside: out of memory\n", stderr);
        exit(1);
    }
    return memory;
}

/* Three digits of value / unit, cut rather than rounded: 999.9 must not become 1000. */
static char *three_digits(char *text, uint64_t value, uint64_t unit, const char *name)
{
    uint64_t whole = value / unit;
    unsigned tenth = (unsigned)(value % unit * 10 / unit); /* units end at 2^60: fits */

    if (whole >= 100 || tenth == 0)
        snprintf(text, OUTPUT_NUMBER_BYTES, "%" PRIu64 "%s", whole, name);
    else
        snprintf(text, OUTPUT_NUMBER_BYTES, "%" PRIu64 ".%u%s", whole, tenth, name);
    return text;
}

char *output_duration(char *text, uint64_t duration_ns)
{
    uint64_t seconds = duration_ns / 1000000000;

    if (duration_ns < 1000)
        snprintf(text, OUTPUT_NUMBER_BYTES, "%" PRIu64 "ns", duration_ns);
    else if (duration_ns < 1000000)
        three_digits(text, duration_ns, 1000, "us");
    else if (duration_ns < 1000000000)
        three_digits(text, duration_ns, 1000000, "ms");
    else if (seconds < 60)
        three_digits(text, duration_ns, 1000000000, "s");
    else if (seconds < 3600)
        snprintf(text, OUTPUT_NUMBER_BYTES, "%" PRIu64 "m%02" PRIu64 "s", seconds / 60,
                 seconds % 60);
    else if (seconds < 86400)
        snprintf(text, OUTPUT_NUMBER_BYTES, "%" PRIu64 "h%02" PRIu64 "m", seconds / 3600,
                 seconds / 60 % 60);
    else
        snprintf(text, OUTPUT_NUMBER_BYTES, "%" PRIu64 "d%02" PRIu64 "h", seconds / 86400,
                 seconds / 3600 % 24);
    return text;
}

char *output_bytes(char *text, uint64_t bytes)
{
    static const char *const names[] = {"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"};
    unsigned power = 0;

    while (bytes >> (10 * power) >= 1024)
        power++;
    return three_digits(text, bytes, UINT64_C(1) << (10 * power), names[power]);
}

char *output_count(char *text, uint64_t count)
{
    static const char *const names[] = {"", "k", "M", "G", "T", "P", "E"};
    uint64_t unit = 1;
    unsigned power = 0;

    for (; count / unit >= 1000; unit *= 1000)
        power++;
    return three_digits(text, count, unit, names[power]);
}

/* Bytes of the first character and its columns; 0 columns when it must not be printed as it is. */
static size_t next_character(const char *text, size_t *columns)
{
    mbstate_t state = {0};
    wchar_t character;
    size_t bytes = mbrtowc(&character, text, strlen(text), &state);

    *columns = 0;
    if (bytes == 0 || bytes == (size_t)-1 || bytes == (size_t)-2)
        return 1;
    int width = wcwidth(character);
    if (width > 0)
        *columns = (size_t)width;
    return bytes;
}

size_t output_width(const char *text)
{
    size_t width = 0;

    while (*text != '\0') {
        size_t columns;
        text += next_character(text, &columns);
        width += columns;
    }
    return width;
}

static char *escape_byte(char *out, unsigned char byte)
{
    static const char named[] = "\aa\bb\tt\nn\vv\ff\rr\\\\";
    const char *name = strchr(named, byte);

    if (name != NULL && (name - named) % 2 == 0)
        return out + sprintf(out, "\\%c", name[1]);
    return out + sprintf(out, "\\x%02x", byte);
}

char *output_escape(const char *text)
{
    if (text == NULL)
        text = "";
    char *copy = output_need(malloc(ESCAPE_BYTES * strlen(text) + 1));
    char *out = copy;

    while (*text != '\0') {
        size_t columns;
        size_t bytes = next_character(text, &columns);
        bool printable = columns > 0 && *text != '\\';
        for (; bytes > 0; bytes--, text++) {
            if (printable)
                *out++ = *text;
            else
                out = escape_byte(out, (unsigned char)*text);
        }
    }
    *out = '\0';
    return copy;
}

void output_field(FILE *file, const char *text, size_t columns, bool right)
{
    size_t width = output_width(text);

    if (width <= columns) {
        int padding = (int)(columns - width);
        fprintf(file, "%*s%s%*s", right ? padding : 0, "", text, right ? 0 : padding, "");
        return;
    }
    /* The mark is one column wide. */
    size_t printed = 0;
    while (*text != '\0') {
        size_t step;
        size_t bytes = next_character(text, &step);
        if (printed + step + 1 > columns)
            break;
        fwrite(text, 1, bytes, file);
        text += bytes;
        printed += step;
    }
    if (columns > 0)
        fputs(MB_CUR_MAX > 1 ? "\u2026" : "~", file);
    fprintf(file, "%*s", columns > printed + 1 ? (int)(columns - printed - 1) : 0, "");
}

void output_paragraph(FILE *file, const char *title, const char *text, size_t indent,
                      size_t columns)
{
    char *words = output_need(strdup(text));
    char *rest = NULL;
    size_t at = indent;
    bool first = true;

    output_field(file, title, indent, false);
    for (char *word = strtok_r(words, " ", &rest); word != NULL;
         word = strtok_r(NULL, " ", &rest)) {
        size_t width = output_width(word);
        if (!first && at + 1 + width > columns) {
            fprintf(file, "\n%*s", (int)indent, "");
            at = indent;
            first = true;
        }
        fprintf(file, "%s%s", first ? "" : " ", word);
        at += width + (first ? 0 : 1);
        first = false;
    }
    fputc('\n', file);
    free(words);
}

size_t output_columns(void)
{
    struct winsize size;

    if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    return OUTPUT_COLUMNS;
}

void output_line(const char *title, size_t indent, const char *text)
{
    char *safe = output_escape(text);

    output_paragraph(stdout, title, safe, indent, output_columns());
    free(safe);
}

void table_init(struct table *table, const struct table_column *columns, size_t column_count)
{
    *table = (struct table){.columns = columns, .column_count = column_count};
}

void table_finish(struct table *table)
{
    if (table == NULL)
        return;
    for (size_t i = 0; i < table->cell_count; i++)
        free(table->cells[i]);
    free(table->cells);
    *table = (struct table){.columns = table->columns, .column_count = table->column_count};
}

static void add(struct table *table, char *cell)
{
    if (table->cell_count == table->cell_room) {
        table->cell_room = table->cell_room > 0 ? 2 * table->cell_room : 64;
        table->cells =
            output_need(reallocarray(table->cells, table->cell_room, sizeof *table->cells));
    }
    table->cells[table->cell_count++] = cell;
}

void table_text(struct table *table, const char *text)
{
    add(table, output_escape(text));
}

void table_format(struct table *table, const char *format, ...)
{
    va_list arguments;
    char *cell;

    va_start(arguments, format);
    if (vasprintf(&cell, format, arguments) < 0)
        cell = NULL;
    va_end(arguments);
    add(table, output_need(cell));
}

void table_duration(struct table *table, uint64_t duration_ns)
{
    char text[OUTPUT_NUMBER_BYTES];

    add(table, output_need(strdup(output_duration(text, duration_ns))));
}

void table_bytes(struct table *table, uint64_t bytes)
{
    char text[OUTPUT_NUMBER_BYTES];

    add(table, output_need(strdup(output_bytes(text, bytes))));
}

void table_count(struct table *table, uint64_t count)
{
    char text[OUTPUT_NUMBER_BYTES];

    add(table, output_need(strdup(output_count(text, count))));
}

/* Takes columns from the widest that yields until the table fits. */
static void fit(const struct table *table, size_t *widths, size_t columns)
{
    size_t total = GAP * (table->column_count - 1);

    for (size_t i = 0; i < table->column_count; i++)
        total += widths[i];
    for (; total > columns; total--) {
        size_t widest = table->column_count;
        for (size_t i = 0; i < table->column_count; i++) {
            if (table->columns[i].yields && widths[i] > YIELDS_DOWN_TO &&
                (widest == table->column_count || widths[i] > widths[widest]))
                widest = i;
        }
        if (widest == table->column_count)
            return;
        widths[widest]--;
    }
}

static const char *cell_of(const struct table *table, size_t begin, size_t column)
{
    if (begin == SIZE_MAX)
        return table->columns[column].title;
    return begin + column < table->cell_count ? table->cells[begin + column] : "";
}

/* The row whose cells begin at `begin`, or the titles for SIZE_MAX; no blanks at the end. */
static void print_row(const struct table *table, FILE *file, const size_t *widths, size_t begin)
{
    size_t count = table->column_count;

    while (count > 0 && cell_of(table, begin, count - 1)[0] == '\0')
        count--;
    for (size_t i = 0; i < count; i++) {
        const char *cell = cell_of(table, begin, i);
        size_t width = output_width(cell);
        bool pads = table->columns[i].right || i + 1 < count || width > widths[i];
        output_field(file, cell, pads ? widths[i] : width, table->columns[i].right);
        if (i + 1 < count)
            fprintf(file, "%*s", GAP, "");
    }
    fputc('\n', file);
}

void table_print(const struct table *table, FILE *file, size_t columns)
{
    size_t *widths = output_need(calloc(table->column_count, sizeof *widths));

    for (size_t i = 0; i < table->column_count; i++)
        widths[i] = output_width(table->columns[i].title);
    for (size_t i = 0; i < table->cell_count; i++) {
        size_t width = output_width(table->cells[i]);
        if (width > widths[i % table->column_count])
            widths[i % table->column_count] = width;
    }
    fit(table, widths, columns);
    print_row(table, file, widths, SIZE_MAX);
    for (size_t i = 0; i < table->cell_count; i += table->column_count)
        print_row(table, file, widths, i);
    free(widths);
}
