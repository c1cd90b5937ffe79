/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and strides of dense, row-major tensors. */
#include "proto/tensor.h"

#include "proto/err.h"

int rs_tensor_size(struct rs_tensor *tensor)
{
    const struct rs_dtype_info *info = rs_dtype_info(tensor->dtype);
    int64_t bytes;
    bool empty = false;

    if (info == NULL)
        return -RINGSIDE_E_DTYPE;
    if (tensor->rank > RS_MAX_RANK)
        return -RINGSIDE_E_SHAPE;
    bytes = info->item_bytes;
    for (unsigned i = 0; i < tensor->rank; i++) {
        int64_t dim = tensor->shape[i];

        if (dim < 0)
            return -RINGSIDE_E_SHAPE;
        /* An extent of 0 counts as 1, so that strides of empty tensors fit 63 bits, too. */
        if (dim == 0)
            empty = true;
        else if (__builtin_mul_overflow(bytes, dim, &bytes))
            return -RINGSIDE_E_SHAPE;
    }
    tensor->bytes = empty ? 0 : (uint64_t)bytes;
    return 0;
}

bool rs_tensor_is_contiguous(const struct rs_tensor *tensor, const int64_t *strides_bytes)
{
    const struct rs_dtype_info *info = rs_dtype_info(tensor->dtype);
    int64_t expected;

    if (info == NULL || tensor->rank > RS_MAX_RANK)
        return false;
    if (strides_bytes == NULL || tensor->rank == 0)
        return true;
    for (unsigned i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] == 0)
            return true;
    }
    expected = info->item_bytes;
    for (unsigned i = tensor->rank; i-- > 0;) {
        if (tensor->shape[i] != 1 && strides_bytes[i] != expected)
            return false;
        if (__builtin_mul_overflow(expected, tensor->shape[i], &expected))
            return false;
    }
    return true;
}
