/* Gradients of matmul over plain FP32: lanes are neighbouring columns k, so that no sum crosses lanes.
 *   matmul_dx_f32  class f32n: dx[m, k] = fma over n ascending;  matmul_dw_f32  class f32m: dw[n, k] = fma over live m
 *   ascending.
 * Where the call adds to its output, the finished sum is added once. A tile is four rows of the output by up to 64 columns. */
#include "core/core.h"
#include "ops/arg_i.h"
#include "ops/matmul/matmul_i.h"
#include "ops/simd_i.h"

WR_ROW_FN(WR_KERNEL(matmul_dx_f32_cpu));
WR_ROW_FN(WR_KERNEL(matmul_dw_f32_cpu));

enum { ROWS = 4, VECTORS = 4, COLUMNS = VECTORS * WR_LANES };

/* out[r, k] = sum_i a_r[i] * b[i, k] for R rows of the output and V vectors of columns, of which the last has `tail` columns.
 * a_r[i] lies a_step bytes apart along i; rows of b lie b_step apart. */
WR_INLINE void tile(int R, int V, int tail, const uint8_t *const *a, int64_t a_step, const uint8_t *b, int64_t b_step,
                    int64_t n, float *const *out, bool add) {
  v16 acc[ROWS][VECTORS];
#pragma GCC unroll 4
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) acc[r][v] = v16_zero();
  for (int64_t i = 0; i < n; i++) {
    const float *row = (const float *)(const void *)(b + i * b_step);
    v16 column[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) column[v] = v == V - 1 && tail < 16 ? v16_load_n(row + 16 * v, tail) : v16_load(row + 16 * v);
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
      const v16 x = v16_set1(*(const float *)(const void *)(a[r] + i * a_step));
#pragma GCC unroll 4
      for (int v = 0; v < V; v++) acc[r][v] = v16_fma(x, column[v], acc[r][v]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) {
      const int lanes = v == V - 1 ? tail : 16;
      v16 sum = acc[r][v];
      if (add) sum = v16_add(v16_load_n(out[r] + 16 * v, lanes), sum);
      v16_store_n(out[r] + 16 * v, sum, lanes);
    }
}

/* Up to COLUMNS columns of up to ROWS rows. */
static void strip(int64_t columns, const uint8_t *const *a, int64_t a_step, const uint8_t *b, int64_t b_step, int64_t n,
                  float *const *out, int rows, bool add) {
  if (columns == COLUMNS && rows == ROWS) {
    tile(ROWS, VECTORS, 16, a, a_step, b, b_step, n, out, add);
    return;
  }
  for (int64_t k = 0; k < columns; k += 16)
    for (int r = 0; r < rows; r++) {
      float *to[1] = {out[r] + k};
      tile(1, 1, (int)WR_MIN(columns - k, (int64_t)16), a + r, a_step, b + 4 * k, b_step, n, to, add);
    }
}

WR_ROW_FN(WR_KERNEL(matmul_dx_f32_cpu)) {
  const wr_arg *dy = &c->args[WR_MM_DX_DY], *wt = &c->args[WR_MM_DX_W], *dx = &c->args[WR_MM_DX_DX];
  const int64_t M = wr_live_rows(c, WR_MM_DX_DY), K = wr_inner(dx), strips = (K + COLUMNS - 1) / COLUMNS;
  int64_t begin, end;
  while (wr_take(w, 0, (M + ROWS - 1) / ROWS * strips, 1, &begin, &end))
    for (int64_t u = begin; u < end; u++) {
      const int64_t m = u / strips * ROWS, k = u % strips * COLUMNS;
      const int rows = (int)WR_MIN(M - m, (int64_t)ROWS);
      const uint8_t *a[ROWS];
      float *out[ROWS];
      for (int r = 0; r < rows; r++) a[r] = wr_arg_row(dy, m + r), out[r] = wr_arg_f32(dx, m + r) + k;
      strip(WR_MIN(K - k, (int64_t)COLUMNS), a, 4, (const uint8_t *)wt->data + 4 * k, wt->stride_bytes, wt->ext[0], out, rows,
            c->acc >> WR_MM_DX_DX & 1);
    }
}

WR_ROW_FN(WR_KERNEL(matmul_dw_f32_cpu)) {
  const wr_arg *dy = &c->args[WR_MM_DW_DY], *x = &c->args[WR_MM_DW_X];
  const wr_arg *dw = &c->args[WR_MM_DW_DW], *dbias = &c->args[WR_MM_DW_DBIAS];
  const int64_t M = wr_live_rows(c, WR_MM_DW_X), N = wr_inner(dy), K = wr_inner(x), strips = (K + COLUMNS - 1) / COLUMNS;
  int64_t begin, end;
  while (wr_take(w, 0, (N + ROWS - 1) / ROWS * strips, 1, &begin, &end))
    for (int64_t u = begin; u < end; u++) {
      const int64_t n = u / strips * ROWS, k = u % strips * COLUMNS;
      const int rows = (int)WR_MIN(N - n, (int64_t)ROWS);
      const uint8_t *a[ROWS];
      float *out[ROWS];
      for (int r = 0; r < rows; r++) a[r] = (const uint8_t *)dy->data + 4 * (n + r), out[r] = wr_arg_f32(dw, n + r) + k;
      const uint8_t *columns = (const uint8_t *)x->data + 4 * k;
      strip(WR_MIN(K - k, (int64_t)COLUMNS), a, dy->stride_bytes, columns, x->stride_bytes, M, out, rows,
            c->acc >> WR_MM_DW_DW & 1);
      for (int r = 0; r < rows && k == 0 && dbias->data; r++) {
        float sum = 0, *to = wr_arg_f32(dbias, n + r);
        for (int64_t m = 0; m < M; m++) sum += *(const float *)(const void *)(a[r] + m * dy->stride_bytes);
        *to = c->acc >> WR_MM_DW_DBIAS & 1 ? *to + sum : sum;
      }
    }
}
