/* Values of weights as flat arrays of FP32, for kernels that treat each element alone: any layout, padding and all. */
#ifndef WR_OPS_FLAT_I_H
#define WR_OPS_FLAT_I_H

#include "core/core.h"

/* Arguments 0 .. n - 1 have one type. As `rows` rows of `inner` floats each: one row where there are no gaps, packed ones with their padding. */
static inline void wr_flat(const wr_call *c, int n, int64_t *rows, int64_t *inner) {
  const wr_arg *a = &c->args[0];
  *rows = a->ext[0];
  *inner = wr_inner(a);
  if (a->layout != WR_PLAIN) {
    *inner = (int64_t)(wr_layout_bytes((wr_layout)a->layout, (wr_dtype)a->dtype, *rows, *inner) / sizeof(float));
    *rows = 1;
    return;
  }
  for (int i = 0; i < n; i++)
    if (c->args[i].rank && c->args[i].stride_bytes != *inner * (int64_t)sizeof(float)) return;
  *inner *= *rows;
  *rows = 1;
}

/* The most pieces of so many floats that an argument is cut into: plain rows with gaps are cut row by row. */
static inline int64_t wr_flat_pieces(const wr_arg *a, int64_t piece) {
  const int64_t rows = (a->ext[0] + WR_PACK_ROWS - 1) / WR_PACK_ROWS * WR_PACK_ROWS;
  return rows * (wr_inner(a) / piece + 1);
}

#endif
