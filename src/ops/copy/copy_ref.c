/* The definition of the copy family, and gather's only fast form: rows are moved by memcpy. See copy.h. */
#include "ops/arg_i.h"
#include "ops/copy/copy.h"
#include "ops/copy/copy_i.h"
#include "ops/ref_i.h"

WR_ROW_FN(relayout_ref);
WR_ROW_FN(relayout_f32_cpu);
WR_ROW_FN(copy_ref);
WR_ROW_FN(gather_ref);
WR_ROW_FN(gather_any_cpu);
WR_ROW_FN(gather_bwd_ref);

WR_ROW_FN(copy_ref) {
  const wr_arg *x = &c->args[COPY_X];
  int64_t inner = wr_inner(x), begin, end;
  while (wr_take(w, 0, wr_live_rows(c, COPY_X), 1, &begin, &end))
    for (int64_t r = begin; r < end; r++)
      for (int64_t i = 0; i < inner; i++) wr_ref_put(c, COPY_Y, r, i, wr_get(x, r, i));
}

WR_ROW_FN(gather_ref) {
  const wr_arg *x = &c->args[GATHER_X];
  int64_t inner = wr_inner(x), begin, end;
  while (wr_take(w, 0, wr_live_rows(c, GATHER_Y), 1, &begin, &end))
    for (int64_t o = begin; o < end; o++)
      for (int64_t i = 0; i < inner; i++) wr_ref_put(c, GATHER_Y, o, i, wr_get(x, wr_ref_int(c, GATHER_IDX, o), i));
}

WR_ROW_FN(gather_any_cpu) {
  const wr_arg *x = &c->args[GATHER_X], *y = &c->args[GATHER_Y], *idx = &c->args[GATHER_IDX];
  int64_t begin, end, row_bytes = wr_inner(x) * wr_dtypes[x->dtype].block_bytes;
  while (wr_take(w, 0, wr_live_rows(c, GATHER_Y), wr_rows_grain(wr_inner(x)), &begin, &end))
    for (int64_t o = begin; o < end; o++) memcpy(wr_arg_row(y, o), wr_arg_row(x, wr_arg_i32(idx, o)), (size_t)row_bytes);
}

WR_ROW_FN(gather_bwd_ref) {
  const wr_arg *dy = &c->args[GATHER_BWD_DY], *idx = &c->args[GATHER_BWD_IDX];
  int64_t inner = wr_inner(dy), n = wr_live_rows(c, GATHER_BWD_DY), begin, end;
  while (wr_take(w, 0, wr_live_rows(c, GATHER_BWD_DX), 1, &begin, &end))
    for (int64_t r = begin; r < end; r++)
      for (int64_t i = 0; i < inner; i++) {
        double sum = 0;
        for (int64_t o = 0; o < n; o++)
          if (wr_arg_i32(idx, o) == r) sum += wr_get(dy, o, i);
        wr_ref_put(c, GATHER_BWD_DX, r, i, sum);
      }
}

WR_ROW_FN(relayout_ref) {
  const wr_arg *x = &c->args[RELAYOUT_X];
  int64_t begin, end;
  wr_ref_clear(c, RELAYOUT_Y, w);
  while (wr_take(w, 0, (x->ext[0] + WR_PACK_ROWS - 1) / WR_PACK_ROWS, 1, &begin, &end))
    for (int64_t r = begin * WR_PACK_ROWS; r < WR_MIN(end * WR_PACK_ROWS, x->ext[0]); r++)
      for (int64_t i = 0; i < wr_inner(x); i++) wr_set(&c->args[RELAYOUT_Y], r, i, wr_get(x, r, i));
}

/* Sixteen rows at a time: a group of pack16 on either side. */
WR_ROW_FN(relayout_f32_cpu) {
  const wr_arg *x = &c->args[RELAYOUT_X], *y = &c->args[RELAYOUT_Y];
  const int64_t D = wr_inner(x), rows = x->ext[0];
  const int64_t row_x = x->layout == WR_PLAIN ? x->stride_bytes / 4 : 1,
                row_y = y->layout == WR_PLAIN ? y->stride_bytes / 4 : 1;
  const int64_t col_x = x->layout == WR_PLAIN ? 1 : WR_PACK_ROWS, col_y = y->layout == WR_PLAIN ? 1 : WR_PACK_ROWS;
  const int64_t group_x = x->layout == WR_PLAIN ? 16 * row_x : x->stride_bytes / 4;
  const int64_t group_y = y->layout == WR_PLAIN ? 16 * row_y : y->stride_bytes / 4;
  int64_t begin, end;
  while (wr_take(w, 0, (rows + WR_PACK_ROWS - 1) / WR_PACK_ROWS, 1, &begin, &end))
    for (int64_t g = begin; g < end; g++) {
      const float *from = (const float *)x->data + g * group_x;
      float *to = (float *)y->data + g * group_y;
      const int64_t n = WR_MIN(rows - g * WR_PACK_ROWS, (int64_t)WR_PACK_ROWS);
      if (n < WR_PACK_ROWS && y->layout != WR_PLAIN) memset(to, 0, (size_t)y->stride_bytes);
      for (int64_t d = 0; d < D; d++)
        for (int64_t r = 0; r < n; r++) to[r * row_y + d * col_y] = from[r * row_x + d * col_x];
    }
}
