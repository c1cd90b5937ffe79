/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and strides of tensors, the empty and the huge included. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "proto/err.h"
#include "proto/tensor.h"

static int size_of(uint8_t dtype, uint8_t rank, const int64_t *shape, uint64_t *bytes)
{
    struct rs_tensor tensor = {.dtype = dtype, .rank = rank};
    int error;

    for (unsigned i = 0; i < rank && i < RS_MAX_RANK; i++)
        tensor.shape[i] = shape[i];
    error = rs_tensor_size(&tensor);
    *bytes = tensor.bytes;
    return error;
}
#define SHAPE(...) (const int64_t[]){__VA_ARGS__}

static void tensor_size_ordinary(void **state)
{
    uint64_t bytes;

    (void)state;
    assert_int_equal(size_of(RS_FLOAT32, 3, SHAPE(1, 80, 3000), &bytes), 0);
    assert_int_equal(bytes, 960000);
    assert_int_equal(size_of(RS_COMPLEX128, 1, SHAPE(3), &bytes), 0);
    assert_int_equal(bytes, 48);
}

static void tensor_size_scalar_and_empty(void **state)
{
    uint64_t bytes = 1;

    (void)state;
    assert_int_equal(size_of(RS_FLOAT64, 0, NULL, &bytes), 0);
    assert_int_equal(bytes, 8);
    assert_int_equal(size_of(RS_FLOAT64, 1, SHAPE(0), &bytes), 0);
    assert_int_equal(bytes, 0);
    assert_int_equal(size_of(RS_FLOAT64, 4, SHAPE(1, 8, 0, 128), &bytes), 0);
    assert_int_equal(bytes, 0);
}

static void tensor_size_overflow(void **state)
{
    uint64_t bytes;

    (void)state;
    assert_int_equal(size_of(RS_UINT8, 2, SHAPE(1LL << 32, 1LL << 32), &bytes), -RINGSIDE_E_SHAPE);
    assert_int_equal(size_of(RS_UINT8, 2, SHAPE(1LL << 31, 1LL << 32), &bytes), -RINGSIDE_E_SHAPE);
    assert_int_equal(size_of(RS_FLOAT64, 1, SHAPE(1LL << 60), &bytes), -RINGSIDE_E_SHAPE);
    assert_int_equal(size_of(RS_UINT8, 1, SHAPE(INT64_MAX), &bytes), 0);
    assert_int_equal(bytes, INT64_MAX);
    /* Strides of an empty tensor must fit, too, wherever the zero stands. */
    assert_int_equal(size_of(RS_UINT8, 3, SHAPE(0, 1LL << 32, 1LL << 32), &bytes),
                     -RINGSIDE_E_SHAPE);
    assert_int_equal(size_of(RS_UINT8, 3, SHAPE(1LL << 32, 1LL << 32, 0), &bytes),
                     -RINGSIDE_E_SHAPE);
}

static void tensor_size_refused(void **state)
{
    uint64_t bytes;

    (void)state;
    assert_int_equal(size_of(RS_UINT8, 2, SHAPE(0, -1), &bytes), -RINGSIDE_E_SHAPE);
    assert_int_equal(size_of(RS_UINT8, 1, SHAPE(INT64_MIN), &bytes), -RINGSIDE_E_SHAPE);
    assert_int_equal(size_of(RS_UINT8, 9, SHAPE(1, 1, 1, 1, 1, 1, 1, 1, 1), &bytes),
                     -RINGSIDE_E_SHAPE);
    assert_int_equal(size_of(0, 1, SHAPE(1), &bytes), -RINGSIDE_E_DTYPE);
    assert_int_equal(size_of(RS_DTYPE_COUNT, 1, SHAPE(1), &bytes), -RINGSIDE_E_DTYPE);
}

static void tensor_strides(void **state)
{
    struct rs_tensor tensor = {.dtype = RS_FLOAT32, .rank = 3, .shape = {2, 1, 5}};
    struct rs_tensor empty = {.dtype = RS_FLOAT32, .rank = 2, .shape = {4, 0}};
    struct rs_tensor scalar = {.dtype = RS_FLOAT32, .rank = 0};

    (void)state;
    assert_true(rs_tensor_is_contiguous(&tensor, SHAPE(20, 20, 4)));
    assert_true(rs_tensor_is_contiguous(&tensor, SHAPE(20, -77, 4)));
    assert_true(rs_tensor_is_contiguous(&tensor, NULL));
    assert_false(rs_tensor_is_contiguous(&tensor, SHAPE(24, 20, 4)));
    assert_false(rs_tensor_is_contiguous(&tensor, SHAPE(20, 20, -4)));
    assert_false(rs_tensor_is_contiguous(&tensor, SHAPE(4, 20, 8)));
    assert_true(rs_tensor_is_contiguous(&empty, SHAPE(3, 9)));
    assert_true(rs_tensor_is_contiguous(&scalar, NULL));
    tensor.dtype = 99;
    assert_false(rs_tensor_is_contiguous(&tensor, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_size_ordinary),
        cmocka_unit_test(tensor_size_scalar_and_empty),
        cmocka_unit_test(tensor_size_overflow),
        cmocka_unit_test(tensor_size_refused),
        cmocka_unit_test(tensor_strides),
    };

    return cmocka_run_group_tests_name("tensor", tests, NULL, NULL);
}
