/* The definition of the copy family, and gather's only fast form: rows are moved by memcpy. See copy.h. */
#include "ops/arg_i.h"
#include "ops/copy/copy.h"
#include "ops/copy/copy_i.h"
#include "ops/ref_i.h"

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
