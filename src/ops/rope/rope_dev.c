/* Rotary position embedding on other devices than the CPU: see rope.h for the equations.
 *
 * The table, class turns64: angles are counted in turns, as fractions of 64 bits, where a whole turn is an overflow and does not matter. So no
 * device needs doubles, and none its own cosine: the product of a position with a pair's turns is exact, and cosine and sine are Taylor's polynomials
 * on an eighth of a turn, in the same integers, rounded to FP32 once. The turns of pair i are made of powers of theta^(-2/n) that the host gives.
 *
 * The rotation: an item a pair, or an element that is copied; products and sums apart, as on the CPU. */
#include "device/dialect.h"
#include "ops/types_dev.h"

enum { ITEMS = 64, POWERS = 8 };

/* Fractions of 2^64. */
DEV u64 times(u64 a, u64 b) { /* the upper half of a product */
  const u64 low = (a & 0xffffffffu) * (b & 0xffffffffu), ab = (a >> 32) * (b & 0xffffffffu), ba = (a & 0xffffffffu) * (b >> 32);
  return (a >> 32) * (b >> 32) + (ab >> 32) + (ba >> 32) + (((ab & 0xffffffffu) + (ba & 0xffffffffu) + (low >> 32)) >> 32);
}

/* a / f, modulo 1, for f from 2^-16 on */
DEV u64 divided(u64 a, f32 f) {
  const u32 bits = f32_bits(f);
  const u64 mantissa = (bits & 0x7fffffu) | 0x800000u;
  const i32 up = 150 - (i32)(bits >> 23 & 255u);
  if (up < 0) return up > -64 ? a / mantissa >> -up : 0;
  return ((a / mantissa) << up) + ((a % mantissa) << up) / mantissa;
}

/* cosine and sine of `turns`, times `m`, 2^60 of which are one */
DEV void turn(u64 turns, u64 m, f32 *cosine, f32 *sine) {
  const u64 quarter = (turns + ((u64)1 << 61)) >> 62, rest = turns - (quarter << 62), back = rest >> 63;
  const u64 x = times((back ? (u64)0 - rest : rest) << 2, 0xc90fdaa22168c235u) << 1, square = times(x, x); /* pi / 4 */
  u64 c = ~(u64)0, s = ~(u64)0;
  for (u64 k = 18; k > 0; k -= 2) {
    c = ~(u64)0 - times(square, c) / (k * (k - 1));
    s = ~(u64)0 - times(square, s) / (k * (k + 1));
  }
  const f32 a = (f32)times(c, m) * 8.67361737988403547e-19f; /* 2^-60 */
  f32 b = (f32)times(times(x, s), m) * 8.67361737988403547e-19f;
  if (back) b = -b;
  *cosine = quarter == 0 ? a : quarter == 1 ? -b : quarter == 2 ? -a : b;
  *sine = quarter == 0 ? b : quarter == 1 ? a : quarter == 2 ? -b : -a;
}

/* pos, freq_factors, table; n: theta^(-2/n) to the powers 1, 2, 4, ...; freq_scale and ext_factor (1 - freq_scale), of which 2^48 are one; low and, from
 * bit 32 on, high; m, of which 2^60 are one */
KERNEL(rope_table, ITEMS, 3) {
  const i64 r = group(0), i = (i64)group(1) * ITEMS + item(), pairs = EXT(2, 1) / 2;
  if (r >= LIVE(0) || i >= pairs) return;
  u64 turns = 0x28be60db9391054bu; /* 1 / 2 pi */
  for (i32 j = 0; j < POWERS; j++)
    if (i >> j & 1) turns = times(turns, (u64)c->n[j]);
  const i64 low = c->n[POWERS + 2] & 0xffffffff, high = c->n[POWERS + 2] >> 32, at = i < low ? low : i < high ? i : high;
  const u64 scale = (u64)(c->n[POWERS] + c->n[POWERS + 1] * (high - at) / (high - low));
  turns = (times(turns, scale) << 16) + (turns * scale >> 48);
  if (HAS(1)) turns = divided(turns, float_at((i32)c->arg[1].dtype, ROW(const u8, 1, i), 0));
  turns *= (u64)(i64)*ROW(const i32, 0, r);
  f32 cosine, sine;
  turn(turns, (u64)c->n[POWERS + 3], &cosine, &sine);
  ROW(f32, 2, r)[i] = cosine;
  ROW(f32, 2, r)[pairs + i] = sine;
}

/* x, table, y; n: neox, inverse */
KERNEL(rope_f32, ITEMS, 3) {
  const i64 r = group(0), Dh = EXT(0, 2), n = EXT(1, 1), pairs = n / 2, units = pairs + Dh - n;
  const i64 u = (i64)group(1) * ITEMS + item(), h = u / units, i = u % units;
  if (r >= LIVE(0) || h >= EXT(0, 1)) return;
  GLOBAL const f32 *x = ROW(const f32, 0, r) + h * Dh, *table = ROW(const f32, 1, r);
  GLOBAL f32 *y = ROW(f32, 2, r) + h * Dh;
  if (i >= pairs) {
    y[pairs + i] = x[pairs + i];
    return;
  }
  const i64 ia = c->n[0] ? i : 2 * i, ib = c->n[0] ? i + pairs : 2 * i + 1;
  const f32 a = x[ia], b = x[ib], cosine = table[i], sine = c->n[1] ? -table[pairs + i] : table[pairs + i];
  y[ia] = a * cosine - b * sine;
  y[ib] = b * cosine + a * sine;
}

#if WR_DEV_HOST
#include "ops/rope/rope.h"
#include "ops/rope/rope_i.h"

wr_launch_fn rope_table_dev, rope_f32_dev;

void rope_table_dev(const wr_call *c, wr_launch *out) {
  const wr_rope_params *p = &((const wr_rope_table_params *)c->params)->rope;
  double low, high;
  wr_rope_ramp(p, &low, &high);
  low = fmin(low, p->n_dims);
  for (int j = 0; j < POWERS; j++)
    out->n[j] = (int64_t)(uint64_t)ldexp(pow((double)p->theta, -2.0 * (1 << j) / p->n_dims), 64);
  out->n[POWERS] = (int64_t)ldexp((double)p->freq_scale, 48);
  out->n[POWERS + 1] = (int64_t)ldexp((double)p->ext_factor * (1 - (double)p->freq_scale), 48);
  out->n[POWERS + 2] = (int64_t)low | (int64_t)fmax(high, low + 1) << 32;
  out->n[POWERS + 3] = (int64_t)ldexp(wr_rope_magnitude(p), 60);
  wr_launch_add(out, &rope_table, c->args[ROPE_TABLE_POS].ext[0], (p->n_dims / 2 + ITEMS - 1) / ITEMS, 1);
}

void rope_f32_dev(const wr_call *c, wr_launch *out) {
  const wr_rope_turn_params *p = c->params;
  const wr_arg *x = &c->args[ROPE_X];
  const int64_t units = x->ext[1] * (x->ext[2] - c->args[ROPE_TABLE].ext[1] / 2);
  out->n[0] = p->neox;
  out->n[1] = p->inverse;
  wr_launch_add(out, &rope_f32, x->ext[0], (units + ITEMS - 1) / ITEMS, 1);
}
#endif
