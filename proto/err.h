/* SPDX-License-Identifier: Apache-2.0 */
/* Error numbers shared by every part: negative errno from the system, negative RINGSIDE_E* of ours. */
#ifndef RINGSIDE_PROTO_ERR_H
#define RINGSIDE_PROTO_ERR_H

/* gRPC status codes, the only ones that travel on a socket. */
enum rs_status {
    RS_STATUS_OK = 0,
    RS_STATUS_CANCELLED = 1,
    RS_STATUS_UNKNOWN = 2,
    RS_STATUS_INVALID_ARGUMENT = 3,
    RS_STATUS_DEADLINE_EXCEEDED = 4,
    RS_STATUS_NOT_FOUND = 5,
    RS_STATUS_ALREADY_EXISTS = 6,
    RS_STATUS_PERMISSION_DENIED = 7,
    RS_STATUS_RESOURCE_EXHAUSTED = 8,
    RS_STATUS_FAILED_PRECONDITION = 9,
    RS_STATUS_ABORTED = 10,
    RS_STATUS_OUT_OF_RANGE = 11,
    RS_STATUS_UNIMPLEMENTED = 12,
    RS_STATUS_INTERNAL = 13,
    RS_STATUS_UNAVAILABLE = 14,
    RS_STATUS_DATA_LOSS = 15,
    RS_STATUS_UNAUTHENTICATED = 16,
};

/* X(name, number, gRPC status, text). Numbers are part of the ABI: append, never renumber. */
#define RINGSIDE_ERRORS(X)                                                                         \
    X(INVALID, 1000, INVALID_ARGUMENT, "invalid argument")                                         \
    X(TIMEOUT, 1001, DEADLINE_EXCEEDED, "the time allowed for the call is over")                   \
    X(FULL, 1002, RESOURCE_EXHAUSTED, "no free slot or no room in the inbox")                      \
    X(TOO_BIG, 1003, OUT_OF_RANGE, "the message fits no slot class")                               \
    X(STALE_TICKET, 1004, NOT_FOUND, "the ticket's message has been freed or its slot reused")     \
    X(FOREIGN_TICKET, 1005, FAILED_PRECONDITION, "the ticket belongs to a ring not attached here") \
    X(MALFORMED_TICKET, 1006, INVALID_ARGUMENT, "not a ticket")                                    \
    X(EXPIRED_TICKET, 1007, ABORTED, "the ticket's time to live is over")                          \
    X(NO_ROUTE, 1008, NOT_FOUND, "no such route")                                                  \
    X(UNAVAILABLE, 1009, UNAVAILABLE, "the sidecar or the peer cannot be reached")                 \
    X(DRAINING, 1010, UNAVAILABLE, "the sidecar is draining and takes nothing new")                \
    X(VERSION, 1011, FAILED_PRECONDITION, "incompatible layout or protocol version")               \
    X(DENIED, 1012, PERMISSION_DENIED, "not allowed")                                              \
    X(FORKED, 1013, FAILED_PRECONDITION, "connection used in a forked child; connect anew there")  \
    X(LIMIT, 1014, RESOURCE_EXHAUSTED, "a configured limit is reached")                            \
    X(STATE, 1015, FAILED_PRECONDITION, "the slot or message is not in a state that allows this")  \
    X(DTYPE, 1016, INVALID_ARGUMENT, "unknown or unsupported dtype")                               \
    X(CORRUPT, 1017, DATA_LOSS, "shared memory holds nonsense or lost its pages")                  \
    X(INTERNAL, 1018, INTERNAL, "internal error")                                                  \
    X(PROTOCOL, 1019, INTERNAL, "malformed frame or message from the peer")                        \
    X(CANCELLED, 1020, CANCELLED, "cancelled")                                                     \
    X(SHAPE, 1021, INVALID_ARGUMENT, "invalid shape, stride or tensor count")                      \
    X(IN_USE, 1022, ALREADY_EXISTS, "already in use by a living process")                          \
    X(UNIMPLEMENTED, 1023, UNIMPLEMENTED, "not implemented")

#define RS_X(name, number, status, text) RINGSIDE_E_##name = number,
enum rs_error { RINGSIDE_ERRORS(RS_X) };
#undef RS_X

/* Text for a negative errno or -RINGSIDE_E_*; never NULL; static storage. */
const char *rs_strerror(int error);

/* Symbolic name ("STALE_TICKET", "ENOENT"); never NULL; static storage. */
const char *rs_error_name(int error);

/* gRPC status for a negative error (0 and above: OK), and the error that stands for a status. */
enum rs_status rs_error_status(int error);
int rs_status_error(int status);

/* -RINGSIDE_E_* for a symbolic name, or 0 when unknown: how an error keeps its identity on a socket. */
int rs_error_from_name(const char *name);

/* An invariant of ours, checked in every build; never used on a peer's data. */
#define RS_REQUIRE(condition)                                                                      \
    ((condition) ? (void)0 : rs_require_failed(#condition, __FILE__, __LINE__))
_Noreturn void rs_require_failed(const char *condition, const char *file, int line);

#endif
