/* Casts between F32, F16 and BF16 on the CPU, compiled once for each instruction set; the same bits from each. */
#include "core/core.h"
#include "ops/arg_i.h"
#include "ops/copy/copy.h"
#include "ops/copy/copy_i.h"
#include "ops/simd_i.h"

WR_ROW_FN(WR_KERNEL(copy_any_cpu));

WR_INLINE v16 load(const wr_arg *a, const char *row, int64_t i, int n) {
  if (a->dtype == WR_F32) return v16_load_n((const float *)row + i, n);
  if (a->dtype == WR_F16) return v16_load_f16_n((const uint16_t *)row + i, n);
  return v16_load_bf16_n((const uint16_t *)row + i, n);
}

WR_INLINE void store(const wr_arg *a, char *row, int64_t i, v16 v, int n) {
  if (a->dtype == WR_F32)
    v16_store_n((float *)row + i, v, n);
  else if (a->dtype == WR_F16)
    v16_store_f16_n((uint16_t *)row + i, v, n);
  else
    v16_store_bf16_n((uint16_t *)row + i, v, n);
}

WR_ROW_FN(WR_KERNEL(copy_any_cpu)) {
  const wr_arg *x = &c->args[COPY_X], *y = &c->args[COPY_Y];
  int64_t inner = wr_inner(x), begin, end;
  while (wr_take(w, 0, wr_live_rows(c, COPY_X), wr_rows_grain(inner), &begin, &end))
    for (int64_t r = begin; r < end; r++) {
      const char *from = wr_arg_row(x, r);
      char *to = wr_arg_row(y, r);
      if (x->dtype == y->dtype) {
        memcpy(to, from, (size_t)(inner * wr_dtypes[x->dtype].block_bytes));
        continue;
      }
      for (int64_t i = 0; i < inner; i += WR_LANES) {
        int n = wr_lanes(inner - i);
        store(y, to, i, load(x, from, i, n), n);
      }
    }
}
