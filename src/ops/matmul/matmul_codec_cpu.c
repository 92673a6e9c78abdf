/* matmul over weights in the file's own layout, of any dtype: rows of weights are decoded to FP32, four at a time, and serve
 * all rows of x. Class dot32: 32 partial sums, element k in the sum k mod 32, k ascending; the two halves are added, then the
 * lanes as a tree. For types and layouts without a kernel of their own, and for weights that change from step to step. */
#include "core/core.h"
#include "ops/arg_i.h"
#include "ops/matmul/matmul_i.h"
#include "ops/simd_i.h"

WR_ROW_FN(WR_KERNEL(matmul_codec_cpu));

enum { TILE = 4 };

/* R rows of x against R2 rows of weights: R * R2 sums. */
WR_INLINE void dots(int R, int R2, const float *const *x, const float *const *w, int64_t K, float *out) {
  v16 acc[TILE * TILE][2];
#pragma GCC unroll 16
  for (int i = 0; i < R * R2; i++) acc[i][0] = acc[i][1] = v16_zero();
  int64_t k = 0;
  for (; k + 32 <= K; k += 32)
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++)
#pragma GCC unroll 4
      for (int j = 0; j < R2; j++) {
        const v16 a = v16_load(w[j] + k + 16 * h);
#pragma GCC unroll 4
        for (int i = 0; i < R; i++) acc[i * R2 + j][h] = v16_fma(a, v16_load(x[i] + k + 16 * h), acc[i * R2 + j][h]);
      }
  for (int h = 0; k < K; k += 16, h++) {
    const int n = (int)WR_MIN(K - k, (int64_t)16);
    for (int j = 0; j < R2; j++)
      for (int i = 0; i < R; i++)
        acc[i * R2 + j][h] = v16_fma(v16_load_n(w[j] + k, n), v16_load_n(x[i] + k, n), acc[i * R2 + j][h]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < R * R2; i++) out[i] = v16_sum(v16_add(acc[i][0], acc[i][1]));
}

static void dots_4_2(const float *const *x, const float *const *w, int64_t K, float *out) { dots(4, 2, x, w, K, out); }
static void dots_1_4(const float *const *x, const float *const *w, int64_t K, float *out) { dots(1, 4, x, w, K, out); }

static void put(const wr_call *c, int64_t m, int64_t n, float sum) {
  const wr_arg *bias = &c->args[WR_MM_BIAS], *res = &c->args[WR_MM_RES];
  if (bias->data) sum += ((const float *)bias->data)[n];
  if (res->data) sum += wr_arg_f32(res, m)[n];
  wr_arg_f32(&c->args[WR_MM_Y], m)[n] = sum;
}

/* All live rows of x against four decoded rows of weights, of which the first `count` are there. */
static void strip(const wr_call *c, int64_t n, int count, const float *const *w) {
  const wr_arg *x = &c->args[WR_MM_X];
  const int64_t rows = wr_live_rows(c, WR_MM_X), K = wr_inner(x);
  float out[TILE * 2];
  int64_t m = 0;
  for (; m + TILE <= rows; m += TILE) {
    const float *xs[TILE] = {wr_arg_f32(x, m), wr_arg_f32(x, m + 1), wr_arg_f32(x, m + 2), wr_arg_f32(x, m + 3)};
    for (int j = 0; j < count; j += 2) {
      dots_4_2(xs, w + j, K, out);
      for (int i = 0; i < TILE; i++)
        for (int jj = 0; jj < WR_MIN(2, count - j); jj++) put(c, m + i, n + j + jj, out[2 * i + jj]);
    }
  }
  for (; m < rows; m++) {
    const float *xs[1] = {wr_arg_f32(x, m)};
    dots_1_4(xs, w, K, out);
    for (int j = 0; j < count; j++) put(c, m, n + j, out[j]);
  }
}

WR_ROW_FN(WR_KERNEL(matmul_codec_cpu)) {
  const wr_arg *wt = &c->args[WR_MM_W];
  const int64_t K = wr_inner(wt);
  wr_decode_fn *decode = wr_decoder((wr_dtype)wt->dtype, WR_ISA_LEVEL);
  const size_t per_thread = wr_mm_codec_bytes(K), per_row = per_thread / TILE;
  uint8_t *room = (uint8_t *)c->scratch + (size_t)w->tid * per_thread;
  int64_t begin, end;
  while (wr_take(w, 0, wt->ext[0], 16, &begin, &end))
    for (int64_t n = begin; n < end; n += TILE) {
      const int count = (int)WR_MIN(end - n, (int64_t)TILE);
      const float *rows[TILE] = {NULL};
      for (int j = 0; j < count; j++) {
        float *decoded = (float *)(void *)(room + (size_t)j * per_row);
        if (wt->dtype == WR_F32)
          rows[j] = wr_arg_f32(wt, n + j);
        else
          decode(wr_arg_row(wt, n + j), decoded, K), rows[j] = decoded;
      }
      for (int j = count; j < TILE; j++) rows[j] = rows[0];
      strip(c, n, count, rows);
    }
}
