/* Zeroing on the CPU: memory is written once, so one form for all instruction sets will do. */
#include "ops/arg_i.h"
#include "ops/optim/optim.h"
#include "ops/optim/optim_i.h"

WR_ROW_FN(zero_any_cpu);

WR_ROW_FN(zero_any_cpu) {
  const wr_arg *x = &c->args[ZERO_X];
  const wr_layout layout = (wr_layout)x->layout;
  const size_t bytes = wr_layout_row_bytes(layout, (wr_dtype)x->dtype, wr_inner(x));
  const int64_t units = layout == WR_PLAIN ? x->ext[0] : (x->ext[0] + WR_PACK_ROWS - 1) / WR_PACK_ROWS;
  int64_t begin, end;
  while (wr_take(w, 0, units, wr_rows_grain((int64_t)bytes / 4), &begin, &end))
    for (int64_t r = begin; r < end; r++) memset(wr_arg_row(x, r), 0, bytes);
}
