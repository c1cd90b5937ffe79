/* SPDX-License-Identifier: Apache-2.0 */
/* The one table of element types: sizes, and what other systems call them. */
#include "proto/tensor.h"

#include <string.h>

#include "proto/err.h"

/* code, item bytes, canonical, NumPy, torch, safetensors, Triton, DLPack code, bits. Triton's BYTES is a list of
 * strings with lengths, which our opaque bytes are not. */
static const struct rs_dtype_info dtypes[RS_DTYPE_COUNT] = {
    [RS_BOOL] = {RS_BOOL, 1, "bool", "b1", "bool", "BOOL", "BOOL", 6, 8},
    [RS_UINT8] = {RS_UINT8, 1, "uint8", "u1", "uint8", "U8", "UINT8", 1, 8},
    [RS_UINT16] = {RS_UINT16, 2, "uint16", "u2", "uint16", "U16", "UINT16", 1, 16},
    [RS_UINT32] = {RS_UINT32, 4, "uint32", "u4", "uint32", "U32", "UINT32", 1, 32},
    [RS_UINT64] = {RS_UINT64, 8, "uint64", "u8", "uint64", "U64", "UINT64", 1, 64},
    [RS_INT8] = {RS_INT8, 1, "int8", "i1", "int8", "I8", "INT8", 0, 8},
    [RS_INT16] = {RS_INT16, 2, "int16", "i2", "int16", "I16", "INT16", 0, 16},
    [RS_INT32] = {RS_INT32, 4, "int32", "i4", "int32", "I32", "INT32", 0, 32},
    [RS_INT64] = {RS_INT64, 8, "int64", "i8", "int64", "I64", "INT64", 0, 64},
    [RS_FLOAT16] = {RS_FLOAT16, 2, "float16", "f2", "float16", "F16", "FP16", 2, 16},
    [RS_BFLOAT16] = {RS_BFLOAT16, 2, "bfloat16", NULL, "bfloat16", "BF16", "BF16", 4, 16},
    [RS_FLOAT32] = {RS_FLOAT32, 4, "float32", "f4", "float32", "F32", "FP32", 2, 32},
    [RS_FLOAT64] = {RS_FLOAT64, 8, "float64", "f8", "float64", "F64", "FP64", 2, 64},
    [RS_COMPLEX64] = {RS_COMPLEX64, 8, "complex64", "c8", "complex64", "C64", NULL, 5, 64},
    [RS_COMPLEX128] = {RS_COMPLEX128, 16, "complex128", "c16", "complex128", NULL, NULL, 5, 128},
    [RS_FLOAT8_E4M3FN] = {RS_FLOAT8_E4M3FN, 1, "float8_e4m3fn", NULL, "float8_e4m3fn", "F8_E4M3",
                          NULL, 10, 8},
    [RS_FLOAT8_E5M2] = {RS_FLOAT8_E5M2, 1, "float8_e5m2", NULL, "float8_e5m2", "F8_E5M2", NULL, 12,
                        8},
    [RS_FLOAT8_E4M3FNUZ] = {RS_FLOAT8_E4M3FNUZ, 1, "float8_e4m3fnuz", NULL, "float8_e4m3fnuz",
                            "F8_E4M3FNUZ", NULL, 11, 8},
    [RS_FLOAT8_E5M2FNUZ] = {RS_FLOAT8_E5M2FNUZ, 1, "float8_e5m2fnuz", NULL, "float8_e5m2fnuz",
                            "F8_E5M2FNUZ", NULL, 13, 8},
    [RS_FLOAT8_E8M0FNU] = {RS_FLOAT8_E8M0FNU, 1, "float8_e8m0fnu", NULL, "float8_e8m0fnu",
                           "F8_E8M0", NULL, 14, 8},
    [RS_BYTES] = {RS_BYTES, 1, "bytes", "V1", NULL, NULL, NULL, 1, 8},
};

const struct rs_dtype_info *rs_dtype_info(unsigned code)
{
    return code > RS_DTYPE_NONE && code < RS_DTYPE_COUNT ? &dtypes[code] : NULL;
}

static bool same(const char *column, const char *name)
{
    return column != NULL && strcmp(column, name) == 0;
}

static int code_from_numpy(const char *name)
{
    if (name[0] != '\0' && strchr("<|=", name[0]) != NULL)
        name++;
    if (strcmp(name, "?") == 0)
        return RS_BOOL;
    for (unsigned code = 1; code < RS_DTYPE_COUNT; code++) {
        if (same(dtypes[code].numpy, name))
            return (int)code;
    }
    return -RINGSIDE_E_DTYPE;
}

int rs_dtype_from_name(const char *name)
{
    if (name == NULL)
        return -RINGSIDE_E_DTYPE;
    if (strncmp(name, "torch.", 6) == 0)
        name += 6;
    for (unsigned code = 1; code < RS_DTYPE_COUNT; code++) {
        const struct rs_dtype_info *info = &dtypes[code];

        if (same(info->name, name) || same(info->torch, name) || same(info->safetensors, name) ||
            same(info->triton, name))
            return (int)code;
    }
    return code_from_numpy(name);
}

/* Whether `name` is `stem`, perhaps with more after an underscore ("float4_e2m1fn_x2"). */
static bool is_kind(const char *name, const char *stem)
{
    size_t length = strlen(stem);

    return strncmp(name, stem, length) == 0 && (name[length] == '\0' || name[length] == '_');
}

const char *rs_dtype_refusal(const char *name)
{
    static const char *const packed[] = {"int1",  "int2",  "int3",  "int4",  "int5",  "int6",
                                         "int7",  "uint1", "uint2", "uint3", "uint4", "uint5",
                                         "uint6", "uint7", "INT4",  "UINT4", "I4",    "U4",
                                         "float4", "F4",   "float6", "F6",   "FP4",   "FP6"};

    if (name == NULL)
        return NULL;
    if (name[0] == '>' || name[0] == '!')
        return "big-endian elements are not carried; convert them to little-endian first";
    if (strncmp(name, "torch.", 6) == 0)
        name += 6;
    for (size_t i = 0; i < sizeof packed / sizeof packed[0]; i++) {
        if (is_kind(name, packed[i]))
            return "elements of less than 8 bits are not carried; pack them and send uint8";
    }
    return NULL;
}
