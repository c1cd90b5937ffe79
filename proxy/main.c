/* SPDX-License-Identifier: Apache-2.0 */
/* Command line of ringside-proxy. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/config.h"
#include "proxy/exit_code.h"
#include "proxy/proxy.h"

static const char usage[] = "Usage: ringside-proxy [--config] FILE\n"
                            "       ringside-proxy --check FILE\n"
                            "       ringside-proxy --help | --version\n";

static const char help[] =
    "\n"
    "The sidecar of one pipeline stage: it owns the stage's ring of shared memory, lets workers\n"
    "attach over a UNIX socket, links the stage to its neighbours and repairs what a dying worker\n"
    "leaves behind. Tensors do not pass through it.\n"
    "\n"
    "Options:\n"
    "  -c, --config FILE  Run with this configuration (JSON; stage.schema.json describes it).\n"
    "      --check FILE   Validate FILE, print what it resolves to with all defaults, and exit.\n"
    "  -h, --help         Show this text.\n"
    "  -V, --version      Show the version.\n"
    "\n"
    "Environment:\n"
    "  RINGSIDE_SOCKET       Path of the control socket, instead of socket.path.\n"
    "  RINGSIDE_CONTROL_DIR  Directory of the control file, instead of ring.control_dir.\n"
    "  RINGSIDE_BODY_DIR     Directory of the body file, instead of ring.body_dir.\n"
    "  NOTIFY_SOCKET         Told READY=1 and STOPPING=1 as by sd_notify(3).\n"
    "\n"
    "Signals:\n"
    "  TERM, INT  Take no new workers and loans, wait until nothing is queued or held, nobody is\n"
    "             left to take it or drain_timeout_ms is over, then exit. A second one exits at\n"
    "             once.\n"
    "  KILL       Is survived by the ring: the next sidecar of the stage takes it over, and\n"
    "             workers go on in the meantime.\n"
    "\n"
    "Files:\n"
    "  <socket.path>                        Control socket; mount its directory, not the file.\n"
    "  <socket.path>.lock                   Locked by the sidecar that serves the socket.\n"
    "  <ring.control_dir>/<stage>.control   State of the ring.\n"
    "  <ring.control_dir>/<stage>.sessions  Session tokens, private.\n"
    "  <ring.body_dir>/<stage>.body         Tensors.\n"
    "  All are removed at the end unless a worker or a message still needs them.\n"
    "\n"
    "The log goes to standard error, one line per event.\n"
    "\n"
    "Exit status:\n"
    "  0  Ended as told; --check: the configuration is valid.\n"
    "  1  The configuration is refused, or the start failed.\n"
    "  2  Wrong usage.\n"
    "  3  A living sidecar already has the socket or the ring.\n";

enum action { RUN, CHECK, HELP, VERSION, WRONG };

static enum action parse(int argc, char **argv, const char **file)
{
    enum action action = RUN;

    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];

        if (strcmp(word, "-h") == 0 || strcmp(word, "--help") == 0)
            return HELP;
        if (strcmp(word, "-V") == 0 || strcmp(word, "--version") == 0)
            return VERSION;
        if (strncmp(word, "--config=", 9) == 0 || strncmp(word, "--check=", 8) == 0) {
            action = word[3] == 'h' ? CHECK : RUN;
            word = strchr(word, '=') + 1;
        } else if (strcmp(word, "-c") == 0 || strcmp(word, "--config") == 0 ||
                   strcmp(word, "--check") == 0) {
            action = strcmp(word, "--check") == 0 ? CHECK : RUN;
            if (++i == argc) {
                fprintf(stderr, "ringside-proxy: %s needs a file\n", word);
                return WRONG;
            }
            word = argv[i];
        } else if (word[0] == '-' && word[1] != '\0') {
            fprintf(stderr, "ringside-proxy: unknown option %s\n", word);
            return WRONG;
        }
        if (*file != NULL) {
            fprintf(stderr, "ringside-proxy: one configuration at a time: %s and %s\n", *file,
                    word);
            return WRONG;
        }
        *file = word;
    }
    if (*file != NULL)
        return action;
    fprintf(stderr, "ringside-proxy: which configuration?\n");
    return WRONG;
}

static int load(struct rs_config *config, const char *file)
{
    char error[RS_CONFIG_ERROR_BYTES];

    int rc = rs_config_load(config, file, error, sizeof error);
    if (rc == 0) {
        rc = rs_config_apply_environment(config, error, sizeof error);
        if (rc < 0)
            rs_config_finish(config);
    }
    if (rc < 0)
        fprintf(stderr, "ringside-proxy: %s\n", error);
    return rc;
}

static int finish_output(void)
{
    return fflush(stdout) != 0 || ferror(stdout) ? EXIT_CODE_FAILURE : EXIT_CODE_OK;
}

/* Else the next file that is opened gets the number, and what is printed goes into it. */
static bool fill_standard_descriptors(void)
{
    int fd;

    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    return fd >= 0 && close(fd) == 0;
}

int main(int argc, char **argv)
{
    struct rs_config config = {0};
    const char *file = NULL;
    int rc;

    if (!fill_standard_descriptors())
        return EXIT_CODE_FAILURE;
    switch (parse(argc, argv, &file)) {
    case HELP:
        fputs(usage, stdout);
        fputs(help, stdout);
        return finish_output();
    case VERSION:
        puts("ringside-proxy " RINGSIDE_VERSION);
        return finish_output();
    case WRONG:
        fputs(usage, stderr);
        return EXIT_CODE_USAGE;
    case CHECK:
        if (load(&config, file) < 0)
            return EXIT_CODE_FAILURE;
        rc = rs_config_print(&config, stdout);
        rs_config_finish(&config);
        return rc < 0 ? EXIT_CODE_FAILURE : finish_output();
    case RUN:
        break;
    }
    return load(&config, file) < 0 ? EXIT_CODE_FAILURE : proxy_run(&config);
}
