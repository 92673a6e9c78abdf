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

/* Where the element of row r and column d of a group of sixteen rows stands: r row + d column, in floats from the group's begin. */
typedef struct place {
  int64_t group, row, column;
} place;
static place place_of(const wr_arg *a) {
  const int64_t stride = a->stride_bytes / (int64_t)sizeof(float);
  return a->layout == WR_PLAIN ? (place){WR_PACK_ROWS * stride, stride, 1} : (place){stride, 1, WR_PACK_ROWS};
}

/* Sixteen columns of a group at a time, by way of a square that stays in the first cache: so each line of either side is touched once. */
WR_ROW_FN(relayout_f32_cpu) {
  const wr_arg *x = &c->args[RELAYOUT_X], *y = &c->args[RELAYOUT_Y];
  const place px = place_of(x), py = place_of(y);
  const int64_t D = wr_inner(x), rows = x->ext[0], side = WR_PACK_ROWS;
  int64_t begin, end;
  while (wr_take(w, 0, (rows + side - 1) / side, 1, &begin, &end))
    for (int64_t g = begin; g < end; g++) {
      const int64_t n = WR_MIN(rows - g * side, side);
      if (n < side && y->layout != WR_PLAIN) memset((float *)y->data + g * py.group, 0, (size_t)y->stride_bytes);
      for (int64_t d = 0; d < D; d += side) {
        const int64_t m = WR_MIN(D - d, side);
        const float *from = (const float *)x->data + g * px.group + d * px.column;
        float *to = (float *)y->data + g * py.group + d * py.column, square[WR_PACK_ROWS][WR_PACK_ROWS]; /* [row][column] */
        if (px.column == 1)
          for (int64_t r = 0; r < n; r++) memcpy(square[r], from + r * px.row, (size_t)m * sizeof *from);
        else
          for (int64_t k = 0; k < m; k++)
            for (int64_t r = 0; r < n; r++) square[r][k] = from[k * side + r];
        if (py.column == 1)
          for (int64_t r = 0; r < n; r++) memcpy(to + r * py.row, square[r], (size_t)m * sizeof *to);
        else
          for (int64_t k = 0; k < m; k++)
            for (int64_t r = 0; r < n; r++) to[k * side + r] = square[r][k];
      }
    }
}
