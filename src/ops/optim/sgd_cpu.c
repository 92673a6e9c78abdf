/* SGD and sums of squares on the CPU, FP32, compiled once for each instruction set; the same bits from each. */
#include <math.h>

#include "ops/arg_i.h"
#include "ops/flat_i.h"
#include "ops/optim/optim.h"
#include "ops/optim/optim_i.h"
#include "ops/simd_i.h"

WR_ROW_FN(WR_KERNEL(sgd_f32_cpu));
WR_ROW_FN(WR_KERNEL(sumsq_f32_cpu));

enum { PIECE = 4096 };

WR_ROW_FN(WR_KERNEL(sgd_f32_cpu)) {
  const wr_sgd_params *p = c->params;
  const wr_arg *am = &c->args[SGD_M];
  const v16 scale = v16_set1(c->regs->grad_scale != 0 ? c->regs->grad_scale : 1), rate = v16_set1(-c->regs->lr);
  const v16 decay = v16_set1((float)p->weight_decay), momentum = v16_set1((float)p->momentum);
  int64_t rows, inner, begin, end;
  if (c->regs->found_inf) return;
  wr_flat(c, 3, &rows, &inner);
  const int64_t pieces = (inner + PIECE - 1) / PIECE;
  while (wr_take(w, 0, rows * pieces, wr_rows_grain(WR_MIN(inner, (int64_t)PIECE)), &begin, &end))
    for (int64_t u = begin; u < end; u++) {
      const int64_t r = u / pieces, from = u % pieces * PIECE, to = WR_MIN(from + PIECE, inner);
      float *x = wr_arg_f32(&c->args[SGD_PARAM], r), *m = am->data ? wr_arg_f32(am, r) : NULL;
      const float *grad = wr_arg_f32(&c->args[SGD_GRAD], r);
      for (int64_t i = from; i < to; i += WR_LANES) {
        const int n = wr_lanes(to - i);
        const v16 old = v16_load_n(x + i, n);
        v16 g = v16_fma(decay, old, v16_mul(v16_load_n(grad + i, n), scale));
        if (m) {
          const v16 m1 = v16_fma(momentum, v16_load_n(m + i, n), g);
          v16_store_n(m + i, m1, n);
          g = p->nesterov ? v16_fma(momentum, m1, g) : m1;
        }
        v16_store_n(x + i, v16_fma(rate, g, old), n);
      }
    }
}

WR_ROW_FN(WR_KERNEL(sumsq_f32_cpu)) {
  double *sums = c->scratch, total = 0;
  int64_t rows, inner, begin, end;
  wr_flat(c, 1, &rows, &inner);
  const int64_t pieces = (inner + WR_SUMSQ_PIECE - 1) / WR_SUMSQ_PIECE;
  while (wr_take(w, 0, rows * pieces, wr_rows_grain(WR_MIN(inner, (int64_t)WR_SUMSQ_PIECE)), &begin, &end))
    for (int64_t u = begin; u < end; u++) {
      const int64_t from = u % pieces * WR_SUMSQ_PIECE, n = WR_MIN((int64_t)WR_SUMSQ_PIECE, inner - from);
      const float *x = wr_arg_f32(&c->args[SUMSQ_X], u / pieces) + from;
      v16 s[4] = {v16_zero(), v16_zero(), v16_zero(), v16_zero()};
      for (int64_t i = 0, j = 0; i < n; i += WR_LANES, j = (j + 1) % 4) {
        const v16 a = v16_load_n(x + i, wr_lanes(n - i));
        s[j] = v16_fma(a, a, s[j]);
      }
      sums[u] = (double)v16_sum(v16_add(v16_add(s[0], s[1]), v16_add(s[2], s[3])));
    }
  wr_barrier(w);
  if (w->tid) return;
  for (int64_t u = 0; u < rows * pieces; u++) total += sums[u];
  *(double *)c->args[SUMSQ_Y].data = total;
}
