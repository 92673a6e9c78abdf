/* AdamW on the CPU, FP32, compiled once for each instruction set; the same bits from each. Every element stands alone, so
 * values are taken flat (flat_i.h). The corrections for the step's number are computed once, in double. */
#include <math.h>

#include "ops/arg_i.h"
#include "ops/flat_i.h"
#include "ops/optim/optim.h"
#include "ops/optim/optim_i.h"
#include "ops/simd_i.h"

WR_ROW_FN(WR_KERNEL(adamw_f32_cpu));

enum { PIECE = 4096 };

WR_ROW_FN(WR_KERNEL(adamw_f32_cpu)) {
  const wr_adamw_params *p = c->params;
  const wr_arg *param = &c->args[ADAMW_PARAM];
  const double lr = (double)c->regs->lr, step = (double)c->regs->step;
  const double correct1 = 1 - pow(p->beta1, step), correct2 = 1 - pow(p->beta2, step);
  const v16 scale = v16_set1(c->regs->grad_scale != 0 ? c->regs->grad_scale : 1), eps = v16_set1((float)p->eps);
  const v16 keep1 = v16_set1((float)p->beta1), take1 = v16_set1((float)(1 - p->beta1));
  const v16 keep2 = v16_set1((float)p->beta2), take2 = v16_set1((float)(1 - p->beta2));
  const v16 decay = v16_set1((float)(1 - lr * p->weight_decay)), rate = v16_set1((float)(-lr / correct1));
  const v16 root = v16_set1((float)(1 / sqrt(correct2)));
  int64_t rows, inner, begin, end;
  if (c->regs->found_inf) return;
  wr_flat(c, 4, &rows, &inner);
  const int64_t pieces = (inner + PIECE - 1) / PIECE;
  while (wr_take(w, 0, rows * pieces, wr_rows_grain(WR_MIN(inner, (int64_t)PIECE)), &begin, &end))
    for (int64_t u = begin; u < end; u++) {
      const int64_t r = u / pieces, from = u % pieces * PIECE, to = WR_MIN(from + PIECE, inner);
      float *x = wr_arg_f32(param, r), *m = wr_arg_f32(&c->args[ADAMW_M], r), *v = wr_arg_f32(&c->args[ADAMW_V], r);
      const float *grad = wr_arg_f32(&c->args[ADAMW_GRAD], r);
      for (int64_t i = from; i < to; i += WR_LANES) {
        const int n = wr_lanes(to - i);
        const v16 g = v16_mul(v16_load_n(grad + i, n), scale);
        const v16 m1 = v16_fma(take1, g, v16_mul(keep1, v16_load_n(m + i, n)));
        const v16 v1 = v16_fma(v16_mul(take2, g), g, v16_mul(keep2, v16_load_n(v + i, n)));
        const v16 below = v16_fma(v16_sqrt(v1), root, eps);
        v16_store_n(m + i, m1, n);
        v16_store_n(v + i, v1, n);
        v16_store_n(x + i, v16_fma(rate, v16_div(m1, below), v16_mul(v16_load_n(x + i, n), decay)), n);
      }
    }
}
