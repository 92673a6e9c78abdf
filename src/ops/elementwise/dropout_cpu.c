/* Dropout on the CPU, FP32, compiled once for each instruction set; the same bits from each.
 *
 * Sixteen counters at a time give the bits of 64 neighbouring elements. */
#include "ops/arg_i.h"
#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/elementwise_i.h"
#include "ops/simd_i.h"

WR_ROW_FN(WR_KERNEL(dropout_f32_cpu));

enum { STRIP = 4 * WR_LANES, ROUNDS = 10 };

/* wr_philox of base/base.h in sixteen lanes. */
WR_INLINE void philox(uint64_t key, v16i c[4]) {
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  for (int round = 0; round < ROUNDS; round++) {
    v16i high0, high1;
    const v16i low0 = v16i_mul_u32(c[0], 0xD2511F53u, &high0), low1 = v16i_mul_u32(c[2], 0xCD9E8D57u, &high1);
    c[0] = v16i_xor(v16i_xor(high1, c[1]), v16i_set1((int32_t)k0));
    c[2] = v16i_xor(v16i_xor(high0, c[3]), v16i_set1((int32_t)k1));
    c[1] = low1;
    c[3] = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

WR_ROW_FN(WR_KERNEL(dropout_f32_cpu)) {
  static const int32_t lanes[WR_LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const wr_dropout_params *p = c->params;
  const wr_arg *ax = &c->args[DROPOUT_X];
  const int64_t inner = wr_inner(ax);
  const v16 rate = v16_set1(p->rate * 0x1p24f), scale = v16_set1((float)(1 / (1 - (double)p->rate)));
  const v16i lane = v16i_load(lanes);
  int64_t begin, end;
  while (wr_take(w, 0, wr_live_rows(c, DROPOUT_X), wr_rows_grain(inner), &begin, &end))
    for (int64_t r = begin; r < end; r++) {
      const float *x = wr_arg_f32(ax, r);
      float *y = wr_arg_f32(&c->args[DROPOUT_Y], r);
      for (int64_t i = 0; i < inner; i += STRIP) {
        v16i bits[4] = {v16i_add(v16i_set1((int32_t)(i / 4)), lane), v16i_set1((int32_t)r), v16i_set1((int32_t)c->regs->step),
                        v16i_set1((int32_t)p->name)};
        philox(c->regs->seed, bits);
        for (int64_t j = 0; j < 4 && i + j * WR_LANES < inner; j++) {
          const int64_t at = i + j * WR_LANES;
          const int n = wr_lanes(inner - at);
          const m16 drop = v16_lt(v16_from_i32(v16i_shr(bits[j], 8)), rate);
          v16_store_n(y + at, v16_select(drop, v16_zero(), v16_mul(v16_load_n(x + at, n), scale)), n);
        }
      }
    }
}
