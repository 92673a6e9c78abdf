/* Rotation on the CPU, FP32, compiled once for each instruction set. Plain loops that the compiler vectorises: products and
 * sums stay apart (no contraction), so every instruction set gives the same bits. Both elements of a pair are read before
 * either is written: y may be x. */
#include "ops/arg_i.h"
#include "ops/rope/rope.h"
#include "ops/rope/rope_i.h"
#include "ops/simd_i.h"

WR_ROW_FN(WR_KERNEL(rope_f32_cpu));

WR_INLINE void turn_pairs(const float *x, float *y, const float *cosine, const float *sine, float sign, int64_t half) {
  for (int64_t i = 0; i < half; i++) {
    float a = x[2 * i], b = x[2 * i + 1], s = sign * sine[i];
    y[2 * i] = a * cosine[i] - b * s;
    y[2 * i + 1] = b * cosine[i] + a * s;
  }
}

WR_INLINE void turn_halves(const float *x, float *y, const float *cosine, const float *sine, float sign, int64_t half) {
  for (int64_t i = 0; i < half; i++) {
    float a = x[i], b = x[i + half], s = sign * sine[i];
    y[i] = a * cosine[i] - b * s;
    y[i + half] = b * cosine[i] + a * s;
  }
}

WR_ROW_FN(WR_KERNEL(rope_f32_cpu)) {
  const wr_arg *ax = &c->args[ROPE_X], *table = &c->args[ROPE_TABLE];
  const wr_rope_turn_params *p = c->params;
  const float sign = p->inverse ? -1.0f : 1.0f;
  int64_t Dh = ax->ext[2], n = table->ext[1], half = n / 2, begin, end;
  while (wr_take(w, 0, wr_live_rows(c, ROPE_X), wr_rows_grain(wr_inner(ax)), &begin, &end))
    for (int64_t r = begin; r < end; r++) {
      const float *cosine = wr_arg_f32(table, r), *sine = cosine + half;
      for (int64_t h = 0; h < ax->ext[1]; h++) {
        const float *x = wr_arg_f32(ax, r) + h * Dh;
        float *y = wr_arg_f32(&c->args[ROPE_Y], r) + h * Dh;
        if (p->neox)
          turn_halves(x, y, cosine, sine, sign, half);
        else
          turn_pairs(x, y, cosine, sine, sign, half);
        if (y != x) memcpy(y + n, x + n, (size_t)(Dh - n) * sizeof *y);
      }
    }
}
