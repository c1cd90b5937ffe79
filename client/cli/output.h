/* SPDX-License-Identifier: Apache-2.0 */
/* What people read: durations, quantities, text from strangers, and tables that fit the terminal.
 */
#ifndef RINGSIDE_CLI_OUTPUT_H
#define RINGSIDE_CLI_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define OUTPUT_COLUMNS      80 /* where no terminal says otherwise */
#define OUTPUT_NUMBER_BYTES 24 /* room for any duration or quantity */

/* All write at most OUTPUT_NUMBER_BYTES and return `text`. Three digits are enough for people. */
char *output_duration(char *text, uint64_t duration_ns); /* "850ns", "1.2ms", "3m05s" */
char *output_bytes(char *text, uint64_t bytes);          /* "256Ki", "1.4Mi", "100" */
char *output_count(char *text, uint64_t count);          /* "999", "1.2k", "34M" */

/* Columns that text takes on a terminal. */
size_t output_width(const char *text);

/*
 * A copy that is safe to print, the caller's to free: control characters, backslashes and whatever
 * the locale cannot show or gives no width (marks that turn the line around) become "\n", "\\" or
 * "\x1b". NULL counts as "".
 */
char *output_escape(const char *text);

/* Prints printable text in `columns` columns, cut with a mark or padded. */
void output_field(FILE *file, const char *text, size_t columns, bool right);

/* Prints printable text, broken at blanks and indented by `indent` columns, `title` in front. */
void output_paragraph(FILE *file, const char *title, const char *text, size_t indent,
                      size_t columns);

/* A paragraph of a stranger's text on standard output, as wide as that is. */
void output_line(const char *title, size_t indent, const char *text);

/* Width of the terminal that standard output leads to, else OUTPUT_COLUMNS. */
size_t output_columns(void);

struct table_column {
    const char *title; /* printable */
    bool right;        /* aligned to the right: numbers */
    bool yields;       /* may be cut when the table is too wide */
};

struct table {
    const struct table_column *columns; /* `column_count` of them; the caller's */
    size_t column_count;
    char **cells; /* owned, row by row */
    size_t cell_count;
    size_t cell_room;
};

void table_init(struct table *table, const struct table_column *columns, size_t column_count);
void table_finish(struct table *table);

/* The next cell, from left to right; rows follow by themselves. Ends the process without memory. */
void table_text(struct table *table, const char *text); /* from a stranger: escaped */
void table_format(struct table *table, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void table_duration(struct table *table, uint64_t duration_ns);
void table_bytes(struct table *table, uint64_t bytes);
void table_count(struct table *table, uint64_t count);

/* Titles and rows, each line at most `columns` wide as far as the yielding columns allow. */
void table_print(const struct table *table, FILE *file, size_t columns);

/* Ends the process with a message when `memory` is NULL, else returns it. */
void *output_need(void *memory);

#endif
