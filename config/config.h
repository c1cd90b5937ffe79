/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration of one pipeline stage: a strict JSON file, read into plain resolved values. */
#ifndef RINGSIDE_CONFIG_CONFIG_H
#define RINGSIDE_CONFIG_CONFIG_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

enum {
    RS_CONFIG_NAME_BYTES = 64,         /* stage and route names, with NUL */
    RS_CONFIG_SOCKET_PATH_BYTES = 108, /* sun_path, with NUL: longer paths are refused, never cut */
    RS_CONFIG_DIR_BYTES = 1024,        /* directories, with NUL; leaves room for file names */
    RS_CONFIG_GROUP_BYTES = 256,       /* group name, with NUL */
    RS_CONFIG_CLASSES_MAX = 8,         /* slot classes of a ring */
    RS_CONFIG_SLOTS_MAX = 1 << 20,     /* slots of a ring, all classes: the ticket's 20 bits */
    RS_CONFIG_ROUTES_MAX = 64,         /* routes of a stage */
    RS_CONFIG_TARGETS_MAX = 8,         /* addresses of a route: delivery words of a slot */
    RS_CONFIG_UIDS_MAX = 64,           /* allow_uids */
    RS_CONFIG_ERROR_BYTES = 1024,      /* room that fits every message of this loader */
    RS_CONFIG_FILE_BYTES_MAX = 1 << 20, /* larger files are refused unparsed */
};

enum { RS_CONFIG_NUMA_AUTO = -1, RS_CONFIG_NUMA_OFF = -2 };

enum rs_config_lock { RS_CONFIG_LOCK_AUTO, RS_CONFIG_LOCK_REQUIRE, RS_CONFIG_LOCK_OFF };
enum rs_config_when_full { RS_CONFIG_BLOCK, RS_CONFIG_ERROR, RS_CONFIG_DROP_OLDEST };
enum rs_config_log_level { RS_CONFIG_DEBUG, RS_CONFIG_INFO, RS_CONFIG_WARN, RS_CONFIG_LOG_ERROR };
enum rs_config_log_format { RS_CONFIG_TEXT, RS_CONFIG_JSON };

struct rs_config_class {
    uint64_t slot_bytes; /* multiple of 4096, larger than that of the class before */
    uint32_t slots;      /* >= 1; the sum over all classes is <= RS_CONFIG_SLOTS_MAX */
};

struct rs_config_route {
    char name[RS_CONFIG_NAME_BYTES];                             /* unique in the stage */
    char to[RS_CONFIG_TARGETS_MAX][RS_CONFIG_SOCKET_PATH_BYTES]; /* paths of "unix:" addresses */
    uint32_t to_count;                                           /* 1..RS_CONFIG_TARGETS_MAX */
    enum rs_config_when_full when_full;                          /* never block to itself */
    uint32_t attempts;                                           /* deliveries, 1..15 */
    uint64_t ttl_ms;                                             /* 0: no time to live */
};

struct rs_config {
    char stage[RS_CONFIG_NAME_BYTES]; /* never empty */
    uint16_t id;                      /* 0: taken from the incarnation */
    struct {
        char path[RS_CONFIG_SOCKET_PATH_BYTES];  /* absolute */
        mode_t mode;                             /* permission bits only */
        char group[RS_CONFIG_GROUP_BYTES];       /* name or decimal gid; empty: left alone */
        uint32_t allow_uids[RS_CONFIG_UIDS_MAX]; /* distinct */
        uint32_t allow_uid_count;                /* 0: everybody whom the mode lets in */
    } socket;
    struct {
        char control_dir[RS_CONFIG_DIR_BYTES];                 /* absolute */
        char body_dir[RS_CONFIG_DIR_BYTES];                    /* absolute */
        uint64_t page_bytes;                                   /* 0: auto; 4 KiB, 2 MiB, 1 GiB */
        int numa_node;                                         /* >= 0, or RS_CONFIG_NUMA_* */
        enum rs_config_lock lock;                              /* of the body in memory */
        struct rs_config_class classes[RS_CONFIG_CLASSES_MAX]; /* ascending by slot_bytes */
        uint32_t class_count;                                  /* 1..RS_CONFIG_CLASSES_MAX */
    } ring;
    struct {
        uint32_t cells; /* power of two */
        uint32_t depth; /* messages at which when_full acts, 1..cells */
    } inbox;
    struct {
        uint32_t max;     /* 1..4095: client 0 is the sidecar */
        uint32_t spin_us; /* before a waiting worker sleeps */
    } clients;
    struct rs_config_route *routes; /* owned; in the order of the file; may be NULL */
    uint32_t route_count;           /* 0..RS_CONFIG_ROUTES_MAX */
    struct {
        uint64_t ttl_ms; /* of tickets shared without one, >= 1 */
    } tickets;
    uint64_t drain_timeout_ms; /* 0: leave at once */
    uint64_t stall_report_ms;  /* lease age that is reported; 0: never */
    struct {
        enum rs_config_log_level level;
        enum rs_config_log_format format;
    } log;
};

/*
 * Reads and validates a file. Returns 0 and fills config, which the caller finishes; else -errno
 * (it cannot be read), -ENOMEM or -RINGSIDE_E_INVALID with a message in error, config then empty.
 * Any thread; uses no locale.
 */
int rs_config_load(struct rs_config *config, const char *path, char *error, size_t error_bytes);

/* The same for length bytes of text that messages call name; text need not end with NUL. */
int rs_config_parse(struct rs_config *config, const char *text, size_t length, const char *name,
                    char *error, size_t error_bytes);

/*
 * Lets RINGSIDE_SOCKET, RINGSIDE_CONTROL_DIR and RINGSIDE_BODY_DIR replace what the file said,
 * under the same rules; unset and empty variables change nothing. Returns as rs_config_parse; after
 * a refusal config may be half changed and is only good for rs_config_finish.
 * Not while another thread changes the environment.
 */
int rs_config_apply_environment(struct rs_config *config, char *error, size_t error_bytes);

/* Writes every value as JSON that rs_config_parse takes again. Returns 0, -ENOMEM or -EIO. */
int rs_config_print(const struct rs_config *config, FILE *file);

/* Frees what config owns and empties it; accepts NULL, an empty and a finished config. */
void rs_config_finish(struct rs_config *config);

/* Words of the enums and of page_bytes in the file, NULL-terminated and indexed by the enum. */
extern const char *const rs_config_lock_names[];
extern const char *const rs_config_when_full_names[];
extern const char *const rs_config_log_level_names[];
extern const char *const rs_config_log_format_names[];
extern const char *const rs_config_page_names[]; /* "auto", "4Ki", "2Mi", "1Gi" */
extern const uint64_t rs_config_page_bytes[];    /* 0, and the sizes of the other three */

#endif
