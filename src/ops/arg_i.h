/* Rows of plain arguments as C arrays, for kernels whose types column has made sure of the dtype. */
#ifndef WR_OPS_ARG_I_H
#define WR_OPS_ARG_I_H

#include "device/device.h"

static inline void *wr_arg_row(const wr_arg *a, int64_t row) { return (char *)a->data + row * a->stride_bytes; }
static inline float *wr_arg_f32(const wr_arg *a, int64_t row) { return (float *)wr_arg_row(a, row); }
static inline int32_t wr_arg_i32(const wr_arg *a, int64_t row) { return *(const int32_t *)wr_arg_row(a, row); }
/* Rows in one unit of shared work: about 4,096 elements, so that a share outweighs the cost of asking for it. */
static inline int64_t wr_rows_grain(int64_t inner) { return inner >= 4096 ? 1 : 4096 / WR_MAX(inner, (int64_t)1); }

#endif
