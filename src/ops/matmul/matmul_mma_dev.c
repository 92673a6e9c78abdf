/* Products by tensor cores, or their twin (device/dialect_mma.h), for weights in F16 and BF16: see matmul.h for the equations.
 *
 * x is rounded to the type of w, which no other row does: F16 overflows beyond 65,504. So it stands behind the rows that keep x, and only
 * WEIR_USE=matmul:matmul_mma_dev takes it.
 *
 * A group makes a tile of TILE x TILE outputs in slices of SLICE summands, which pass through SHARED memory two a word; a warp has sixteen
 * rows of it. LINE keeps the items of a warp, which read eight lines at four words each, in different banks. */
#include "device/dialect_mma.h"

enum { ITEMS = 128, TILE = 64, SLICE = 32, WORDS = SLICE / 2, LINE = WORDS + 4 };

DEV u32 pair(f32 low, f32 high, i32 f16) {
  return f16 ? (u32)f32_f16(low) | (u32)f32_f16(high) << 16 : (u32)f32_bf16(low) | (u32)f32_bf16(high) << 16;
}

/* x, w, bias, res, norm, up, y; n: K, N, is w in F16? */
KERNEL(matmul_mma, ITEMS, 7) {
  SHARED u32 x_room[TILE * LINE], w_room[TILE * LINE], room[MMA_ROOM(ITEMS)];
  const i64 K = c->n[0], N = c->n[1], n0 = (i64)group(0) * TILE, m0 = (i64)group(1) * TILE, rows = LIVE(0);
  const i32 f16 = (i32)c->n[2], g = item() % 32 / 4, t = item() % 4, warp_row = item() / 32 * 16;
  const i32 shift = c->arg[1].layout == 0 ? 0 : 4, column = 1 << shift; /* plain, or sixteen rows side by side */
  f32 sum[TILE / 8][4];
  if (m0 >= rows) return;
  for (i32 j = 0; j < TILE / 8; j++)
    for (i32 i = 0; i < 4; i++) sum[j][i] = 0.0f;
  for (i64 k0 = 0; k0 < K; k0 += SLICE) {
    for (i32 p = item(); p < TILE * WORDS; p += ITEMS) {
      const i64 m = m0 + p / WORDS, n = n0 + p / WORDS, k = k0 + p % WORDS * 2;
      const i32 at = p / WORDS * LINE + p % WORDS;
      GLOBAL const f32 *x = ROW(const f32, 0, m) + k;
      GLOBAL const u16 *w = ROW(const u16, 1, n >> shift) + (n & (column - 1)) + k * column;
      x_room[at] = pair(m < rows && k < K ? x[0] : 0.0f, m < rows && k + 1 < K ? x[1] : 0.0f, f16);
      w_room[at] = (n < N && k < K ? (u32)w[0] : 0u) | (n < N && k + 1 < K ? (u32)w[column] : 0u) << 16;
    }
    BARRIER();
    for (i32 s = 0; s < WORDS; s += 8) {
      u32 a[4], b[2];
      for (i32 i = 0; i < 4; i++) a[i] = x_room[(warp_row + g + i % 2 * 8) * LINE + s + t + i / 2 * 4];
      for (i32 j = 0; j < TILE / 8; j++) {
        for (i32 i = 0; i < 2; i++) b[i] = w_room[(8 * j + g) * LINE + s + t + i * 4];
        if (f16)
          mma_f16(sum[j], a, b, room);
        else
          mma_bf16(sum[j], a, b, room);
      }
    }
    BARRIER();
  }
  for (i32 j = 0; j < TILE / 8; j++)
    for (i32 i = 0; i < 4; i++) {
      const i64 m = m0 + warp_row + g + i / 2 * 8, n = n0 + 8 * j + 2 * t + i % 2;
      if (m < rows && n < N)
        ROW(f32, 6, m)[n] = sum[j][i] + (HAS(2) ? ARG(const f32, 2)[n] : 0.0f) + (HAS(3) ? ROW(const f32, 3, m)[n] : 0.0f);
    }
}

#if WR_DEV_HOST
#include "ops/matmul/matmul_i.h"

wr_launch_fn matmul_mma_dev;

void matmul_mma_dev(const wr_call *c, wr_launch *out) {
  const wr_arg *x = &c->args[WR_MM_X], *w = &c->args[WR_MM_W];
  out->n[0] = wr_inner(x);
  out->n[1] = w->ext[0];
  out->n[2] = w->dtype == WR_F16;
  wr_launch_add(out, &matmul_mma, wr_mm_parts(w->ext[0], TILE), wr_mm_parts(x->ext[0], TILE), 1);
}
#endif
