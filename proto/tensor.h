/* SPDX-License-Identifier: Apache-2.0 */
/* dtypes, shapes, the layout of tensors in a slot, and the message header: encode, copy once, validate. */
#ifndef RINGSIDE_PROTO_TENSOR_H
#define RINGSIDE_PROTO_TENSOR_H

#include "proto/ring_layout.h"

/* Numbers are those of control.proto's Dtype; never renumber. */
enum rs_dtype {
    RS_DTYPE_NONE = 0,
    RS_BOOL = 1, RS_UINT8, RS_UINT16, RS_UINT32, RS_UINT64, RS_INT8, RS_INT16, RS_INT32, RS_INT64,
    RS_FLOAT16, RS_BFLOAT16, RS_FLOAT32, RS_FLOAT64, RS_COMPLEX64, RS_COMPLEX128,
    RS_FLOAT8_E4M3FN, RS_FLOAT8_E5M2, RS_FLOAT8_E4M3FNUZ, RS_FLOAT8_E5M2FNUZ, RS_FLOAT8_E8M0FNU,
    RS_BYTES,
    RS_DTYPE_COUNT
};

/* One row per dtype: the only table of names. NULL where that system has no such type. */
struct rs_dtype_info {
    uint8_t code;             /* enum rs_dtype */
    uint8_t item_bytes;
    const char *name;         /* canonical: "float32", "bfloat16", "float8_e4m3fn", "bytes" */
    const char *numpy;        /* dtype.str without byte order: "f4", "c8", "b1"; NULL: no native type */
    const char *torch;        /* "float32", "float8_e4m3fn" */
    const char *safetensors;  /* "F32", "BF16", "F8_E4M3" */
    const char *triton;       /* "FP32", "BF16" */
    uint8_t dlpack_code;      /* kDLInt 0, kDLUInt 1, kDLFloat 2, kDLBfloat 4, kDLComplex 5, kDLBool 6, fp8 7..14 */
    uint8_t dlpack_bits;
};

/* NULL when the code is unknown. */
const struct rs_dtype_info *rs_dtype_info(unsigned code);
/* Code for a canonical, torch ("torch." is allowed in front), safetensors or Triton name or a NumPy type string ("<f4",
 * "f4", "?"), or -RINGSIDE_E_DTYPE. NumPy's "f4" and "i4" are 4 bytes, safetensors' "F4" is 4 bits.
 * Big-endian and sub-byte kinds are refused; rs_dtype_refusal says why for the kinds refused by name (else NULL). */
int rs_dtype_from_name(const char *name);
const char *rs_dtype_refusal(const char *name);

struct rs_tensor {
    uint8_t dtype;               /* enum rs_dtype */
    uint8_t rank;                /* 0..8 */
    int64_t shape[RS_MAX_RANK];  /* each >= 0 */
    uint64_t offset;             /* bytes from the start of the slot */
    uint64_t bytes;              /* product(shape) * item size */
};

/* Fills tensor->bytes. -RINGSIDE_E_DTYPE, -RINGSIDE_E_SHAPE (rank, negative dim, or the product of all extents but the
 * zeroes and the item size is past 2^63 - 1). */
int rs_tensor_size(struct rs_tensor *tensor);
/* True when strides (in bytes) are row-major for the shape; strides of dims of extent 1, and all strides of an empty
 * tensor, are ignored. NULL strides are row-major. */
bool rs_tensor_is_contiguous(const struct rs_tensor *tensor, const int64_t *strides_bytes);

struct rs_message {
    uint8_t tensor_count;      /* 1..64 */
    uint8_t metadata_kind;     /* 0 opaque, 1 JSON, 2 tree */
    uint32_t metadata_bytes;
    uint64_t metadata_offset;  /* bytes from the start of the slot */
    uint64_t publish_ns;       /* CLOCK_MONOTONIC */
    uint64_t ttl_ns;           /* after publish_ns; 0: none */
    uint64_t stream_id;
    uint64_t sequence;
    uint64_t trace_id[2];
    uint64_t origin_ticket;    /* 0 unless from another node */
    uint64_t call_id;          /* 0 unless it is a request or a reply: then the next four are set */
    uint64_t call;             /* see rs_call_request, rs_call_reply */
    uint64_t admission;        /* of a request: the caller's nonce in the callee's ring */
    uint64_t method_offset;    /* of a request: bytes from the start of the slot */
    uint8_t method_bytes;      /* of a request: 1..63; of a reply: 0 */
    struct rs_tensor tensors[RS_MAX_TENSORS]; /* only tensor_count are set */
};

/* Lays out tensors (dtype, rank, shape given; bytes and offset filled) and reserved metadata: the descriptors of all
 * but the first tensor at offset 0, the data each 256-byte aligned (a single tensor at offset 0, page-aligned), then the
 * metadata, 8-byte aligned. *total_bytes is the slot size needed.
 * 0, -RINGSIDE_E_DTYPE, -RINGSIDE_E_SHAPE (also for a count outside 1..64). */
int rs_message_plan(struct rs_message *message, uint32_t metadata_bytes, uint64_t *total_bytes);

/* Where metadata may begin in a planned message: the first aligned byte after the last tensor. */
uint64_t rs_message_metadata_offset(const struct rs_message *message);

/* Writes the header into the slot record and the further descriptors to the start of the slot's body (`body` is the
 * slot's first byte; may be NULL with one tensor). The slot is LOANED. Words of lines 2 and 3 are written only when used:
 * a message of one tensor with rank <= 2, without metadata, stream or trace, touches only the first two lines. */
void rs_message_store(const struct rs_message *message, struct rs_slot *slot, uint8_t *body);

/* Copies header and descriptors to *message once and validates the copy against slot_bytes: count, dtypes, ranks,
 * extents, products, alignment, everything inside the slot, flags and kind known. Tensors may overlap each other.
 * 0 or -RINGSIDE_E_CORRUPT (then *message is undefined). `body` is the slot's first byte; NULL when only the first tensor
 * is wanted (then tensor_count says how many there are, and only tensors[0] is set). */
int rs_message_load(struct rs_message *message, const struct rs_slot *slot, const uint8_t *body,
                    uint64_t slot_bytes);

/* Whether the header in the record is that of a request: for who holds a delivery of it, or sweeps one. */
bool rs_message_is_request(const struct rs_slot *slot);

/* Age and expiry from the header words alone: publish and time to live, without validation. */
void rs_message_times(const struct rs_slot *slot, uint64_t *publish_ns, uint64_t *ttl_ns);

#endif
