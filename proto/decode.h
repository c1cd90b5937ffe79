/* SPDX-License-Identifier: Apache-2.0 */
/* Protobuf decoding of bytes that nobody vouches for: bounded memory, depth and strings. */
#ifndef RINGSIDE_PROTO_DECODE_H
#define RINGSIDE_PROTO_DECODE_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

#define RS_DECODE_DEPTH 12 /* messages within messages, so that a stack of 64 KiB is ample */

/*
 * What decoding may allocate, in all. The worst that we define is a long list of free slots: 14
 * bytes each on the wire, some 230 in memory with what protobuf-c needs meanwhile.
 */
#define RS_DECODE_BUDGET(bytes) (24 * (size_t)(bytes) + (64u << 10))

/*
 * Decodes `bytes` of `data` as a message of `type`. Before anything is allocated the bytes are
 * checked: well-formed, at most RS_DECODE_DEPTH deep, no singular message field twice, strings
 * valid UTF-8 without NUL (they become C strings). On success *message is the caller's:
 * protobuf_c_message_free_unpacked(*message, NULL). Fails with -RINGSIDE_E_INVALID (malformed),
 * -RINGSIDE_E_LIMIT (would take more memory than RS_DECODE_BUDGET), -ENOMEM; *message is then NULL.
 * Any thread.
 */
int rs_decode(const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t bytes,
              ProtobufCMessage **message);

/* Bytes of the UTF-8 character at `text`, 0 when it is not one. `bytes` is at least 1. */
size_t rs_utf8_character(const uint8_t *text, size_t bytes);

#endif
