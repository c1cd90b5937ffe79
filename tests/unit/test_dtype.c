/* SPDX-License-Identifier: Apache-2.0 */
/* The table of element types and their names in other systems. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "proto/control.pb-c.h"
#include "proto/err.h"
#include "proto/tensor.h"

static void dtype_every_name_leads_back(void **state)
{
    (void)state;
    for (unsigned code = 1; code < RS_DTYPE_COUNT; code++) {
        const struct rs_dtype_info *info = rs_dtype_info(code);
        const char *names[] = {info->name, info->numpy, info->torch, info->safetensors,
                               info->triton};

        assert_int_equal(info->code, code);
        assert_non_null(info->name);
        assert_int_equal(info->dlpack_bits, 8 * info->item_bytes);
        for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
            if (names[i] != NULL) {
                assert_int_equal(rs_dtype_from_name(names[i]), code);
                assert_null(rs_dtype_refusal(names[i]));
            }
        }
    }
}

static void dtype_numbers_are_those_of_the_socket(void **state)
{
    (void)state;
    assert_int_equal(RS_DTYPE_COUNT, ringside__v1__dtype__descriptor.n_values);
    for (unsigned code = 1; code < RS_DTYPE_COUNT; code++) {
        const ProtobufCEnumValue *value =
            protobuf_c_enum_descriptor_get_value(&ringside__v1__dtype__descriptor, (int)code);

        assert_non_null(value);
        assert_int_equal(strcasecmp(value->name, rs_dtype_info(code)->name), 0);
    }
}

static void dtype_item_sizes(void **state)
{
    (void)state;
    assert_int_equal(rs_dtype_info(RS_BOOL)->item_bytes, 1);
    assert_int_equal(rs_dtype_info(RS_BFLOAT16)->item_bytes, 2);
    assert_int_equal(rs_dtype_info(RS_FLOAT8_E8M0FNU)->item_bytes, 1);
    assert_int_equal(rs_dtype_info(RS_COMPLEX64)->item_bytes, 8);
    assert_int_equal(rs_dtype_info(RS_COMPLEX128)->item_bytes, 16);
    assert_int_equal(rs_dtype_info(RS_BYTES)->item_bytes, 1);
}

static void dtype_numpy_byte_order(void **state)
{
    (void)state;
    assert_int_equal(rs_dtype_from_name("<f4"), RS_FLOAT32);
    assert_int_equal(rs_dtype_from_name("=f4"), RS_FLOAT32);
    assert_int_equal(rs_dtype_from_name("|b1"), RS_BOOL);
    assert_int_equal(rs_dtype_from_name("|V1"), RS_BYTES);
    assert_int_equal(rs_dtype_from_name("?"), RS_BOOL);
    assert_int_equal(rs_dtype_from_name("torch.float8_e4m3fn"), RS_FLOAT8_E4M3FN);
}

static void dtype_big_endian_refused(void **state)
{
    (void)state;
    assert_int_equal(rs_dtype_from_name(">f4"), -RINGSIDE_E_DTYPE);
    assert_int_equal(rs_dtype_from_name("!f4"), -RINGSIDE_E_DTYPE);
    assert_non_null(strstr(rs_dtype_refusal(">f4"), "big-endian"));
}

static void dtype_sub_byte_refused_by_name(void **state)
{
    static const char *const names[] = {"int4", "uint4", "INT4", "UINT4", "I4", "U4",
                                        "float4_e2m1fn", "float4_e2m1fn_x2", "F4", "F6_E2M3",
                                        "torch.int4", "uint1"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_int_equal(rs_dtype_from_name(names[i]), -RINGSIDE_E_DTYPE);
        assert_non_null(strstr(rs_dtype_refusal(names[i]), "8 bits"));
    }
    assert_int_equal(rs_dtype_from_name("i4"), RS_INT32); /* NumPy counts bytes */
    assert_int_equal(rs_dtype_from_name("u4"), RS_UINT32);
}

static void dtype_unknown(void **state)
{
    static const char *const names[] = {"", "<", "f", "f44", "Float32", "float32 ", "float8_e4m3",
                                        "F8_E4M3FN", "V2", "<", "torch.", "object", "O"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_int_equal(rs_dtype_from_name(names[i]), -RINGSIDE_E_DTYPE);
        assert_null(rs_dtype_refusal(names[i]));
    }
    assert_int_equal(rs_dtype_from_name(NULL), -RINGSIDE_E_DTYPE);
    assert_null(rs_dtype_refusal(NULL));
    assert_null(rs_dtype_info(0));
    assert_null(rs_dtype_info(RS_DTYPE_COUNT));
    assert_null(rs_dtype_info(UINT32_MAX));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dtype_every_name_leads_back),
        cmocka_unit_test(dtype_numbers_are_those_of_the_socket),
        cmocka_unit_test(dtype_item_sizes),
        cmocka_unit_test(dtype_numpy_byte_order),
        cmocka_unit_test(dtype_big_endian_refused),
        cmocka_unit_test(dtype_sub_byte_refused_by_name),
        cmocka_unit_test(dtype_unknown),
    };

    return cmocka_run_group_tests_name("dtype", tests, NULL, NULL);
}
