/* SPDX-License-Identifier: Apache-2.0 */
/* A full-screen display on any terminal that knows ANSI's sequences; put back as it was, whatever
 * ends us. */
#ifndef RINGSIDE_CLI_TOP_SCREEN_H
#define RINGSIDE_CLI_TOP_SCREEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum screen_event { SCREEN_TIME, SCREEN_RESIZED, SCREEN_QUIT };

/* Takes the terminal of standard output (and its keys when standard input is one). There is one
 * screen a process. 0 or -errno. A signal that ends the process, and its exit, put the terminal
 * back; so does Ctrl-Z until the process goes on. */
int screen_begin(void);
void screen_end(void);

/* 80 x 24 where the terminal does not say. */
void screen_size(size_t *columns, size_t *rows);

/* Shows `text`, lines that end with '\n': the first `rows`, the last of them saying how many are
 * left out. 0 or -errno. */
int screen_show(const char *text);

/* Waits for a key that means something, another size, or until `at_ns` of CLOCK_MONOTONIC. */
enum screen_event screen_wait(uint64_t at_ns);

#endif
