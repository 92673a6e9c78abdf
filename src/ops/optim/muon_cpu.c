/* Muon's elementwise steps on the CPU, FP32, compiled once for each instruction set; the same bits from each.
 *
 * The norm: squares of pieces at fixed places in FP32 lanes, pieces added in double in ascending order by every thread for itself. */
#include <math.h>

#include "ops/arg_i.h"
#include "ops/flat_i.h"
#include "ops/optim/muon.h"
#include "ops/optim/muon_i.h"
#include "ops/simd_i.h"

WR_ROW_FN(WR_KERNEL(muon_direction_f32_cpu));
WR_ROW_FN(WR_KERNEL(muon_apply_f32_cpu));

enum { PIECE = WR_MUON_PIECE, GRAIN = 4 };

WR_ROW_FN(WR_KERNEL(muon_direction_f32_cpu)) {
  const wr_muon_params *p = c->params;
  const v16 scale = v16_set1(c->regs->grad_scale != 0 ? c->regs->grad_scale : 1);
  const v16 keep = v16_set1((float)p->momentum), take = v16_set1((float)(1 - p->momentum));
  double *sums = c->scratch, total = 0;
  int64_t rows, inner, begin, end;
  wr_flat(c, 3, &rows, &inner);
  const int64_t pieces = (inner + PIECE - 1) / PIECE;
  while (wr_take(w, 0, rows * pieces, GRAIN, &begin, &end))
    for (int64_t k = begin; k < end; k++) {
      const int64_t r = k / pieces, from = k % pieces * PIECE, to = WR_MIN(from + PIECE, inner);
      float *m = wr_arg_f32(&c->args[MUON_M], r), *u = wr_arg_f32(&c->args[MUON_U], r);
      const float *grad = wr_arg_f32(&c->args[MUON_GRAD], r);
      v16 s = v16_zero();
      for (int64_t i = from; i < to; i += WR_LANES) {
        const int n = wr_lanes(to - i);
        const v16 g = v16_mul(take, v16_mul(v16_load_n(grad + i, n), scale));
        const v16 m1 = v16_fma(keep, v16_load_n(m + i, n), g), look = v16_fma(keep, m1, g);
        if (!c->regs->found_inf) v16_store_n(m + i, m1, n);
        v16_store_n(u + i, look, n);
        s = v16_fma(look, look, s);
      }
      sums[k] = (double)v16_sum(s);
    }
  wr_barrier(w);
  for (int64_t k = 0; k < rows * pieces; k++) total += sums[k];
  const v16 factor = v16_set1((float)(1 / fmax(sqrt(total), p->eps)));
  while (wr_take(w, 1, rows * pieces, GRAIN, &begin, &end))
    for (int64_t k = begin; k < end; k++) {
      const int64_t from = k % pieces * PIECE, to = WR_MIN(from + PIECE, inner);
      float *u = wr_arg_f32(&c->args[MUON_U], k / pieces);
      for (int64_t i = from; i < to; i += WR_LANES) {
        const int n = wr_lanes(to - i);
        v16_store_n(u + i, v16_mul(v16_load_n(u + i, n), factor), n);
      }
    }
}

WR_ROW_FN(WR_KERNEL(muon_apply_f32_cpu)) {
  const wr_muon_apply_params *p = c->params;
  const double lr = (double)c->regs->lr;
  const v16 decay = v16_set1((float)(1 - lr * p->weight_decay)), rate = v16_set1((float)(-lr * p->scale));
  int64_t rows, inner, begin, end;
  if (c->regs->found_inf) return;
  wr_flat(c, 2, &rows, &inner);
  const int64_t pieces = (inner + PIECE - 1) / PIECE;
  while (wr_take(w, 0, rows * pieces, GRAIN, &begin, &end))
    for (int64_t k = begin; k < end; k++) {
      const int64_t r = k / pieces, from = k % pieces * PIECE, to = WR_MIN(from + PIECE, inner);
      float *x = wr_arg_f32(&c->args[MUON_APPLY_PARAM], r);
      const float *u = wr_arg_f32(&c->args[MUON_APPLY_U], r);
      for (int64_t i = from; i < to; i += WR_LANES) {
        const int n = wr_lanes(to - i);
        v16_store_n(x + i, v16_fma(rate, v16_load_n(u + i, n), v16_mul(v16_load_n(x + i, n), decay)), n);
      }
    }
}
