/* Products of many rows with float weights in layout pack16, and the gradients of FP32 ones: what training spends its time in, and prompts of
 * float models. The loops are those of
 * ops/gemm_i.h; this file cuts the products into units of work and parts that fit the caches.
 *
 *   matmul      class f32k   panels are the weights as they lie, or widened to FP32 in scratch, a part at a time; a is x
 *   matmul_dx   class f32n   panels are columns of w, turned in scratch, a part of n at a time; a is dy
 *   matmul_dw   class f32m   dy and x as they lie, a part of m at a time; a is x, its columns the rows of a tile, so that dw comes out in
 *                            the layout of w. Only columns past the last whole sixteen are packed. dbias: m ascending.
 *
 * Every element of a gradient is one chain, which begins with what is there where the call adds to it.
 */
#include "core/core.h"
#include "ops/arg_i.h"
#include "ops/gemm_i.h"
#include "ops/matmul/matmul.h"
#include "ops/matmul/matmul_i.h"

WR_ROW_FN(WR_KERNEL(matmul_f32_gemm_cpu));
WR_ROW_FN(WR_KERNEL(matmul_f16_gemm_cpu));
WR_ROW_FN(WR_KERNEL(matmul_bf16_gemm_cpu));
WR_ROW_FN(WR_KERNEL(matmul_dx_f32_gemm_cpu));
WR_ROW_FN(WR_KERNEL(matmul_dw_f32_gemm_cpu));

static int64_t step_of(const wr_arg *a) { return a->stride_bytes / (int64_t)sizeof(float); }
/* Where the i-th of `parts` parts of n begins, in multiples of `of`. */
static int64_t cut(int64_t n, int64_t i, int64_t parts, int64_t of) {
  return i == parts ? n : WR_MIN((n + of - 1) / of * i / parts * of, n);
}

/* 16 lanes of weights of a type, n columns of a group, as floats. */
WR_INLINE void widen(wr_dtype t, const uint16_t *from, int64_t n, float *to) {
  for (int64_t k = 0; k < n; k++)
    v16_store(to + 16 * k, t == WR_F16 ? v16_load_f16(from + 16 * k) : v16_load_bf16(from + 16 * k));
}

/* t: F32, whose groups are panels as they lie, or F16 or BF16, of which a part is widened for a unit. */
WR_INLINE void forward(wr_dtype t, const wr_call *c, const wr_worker *w) {
  const wr_arg *x = &c->args[WR_MM_X], *wt = &c->args[WR_MM_W], *y = &c->args[WR_MM_Y];
  const wr_arg *bias = &c->args[WR_MM_BIAS], *res = &c->args[WR_MM_RES];
  const int64_t M = wr_live_rows(c, WR_MM_X), K = wr_inner(x), N = wt->ext[0], groups = (N + 15) / 16;
  const size_t stride_bytes = (size_t)wt->stride_bytes;
  const int64_t ms = wr_mm_parts(M, WR_MM_GEMM_ROWS), ns = wr_mm_parts(groups, WR_MM_GEMM_GROUPS),
                ks = wr_mm_parts(K, WR_MM_GEMM_SUM);
  float *const sums =
      (float *)c->scratch + (int64_t)w->tid * (t == WR_F32 ? WR_MM_GEMM_SUMS : WR_MM_GEMM_SUMS + WR_MM_GEMM_WIDE);
  float *const wide = sums + WR_MM_GEMM_SUMS;
  int64_t begin, end;
  while (wr_take(w, 0, ms * ns, 1, &begin, &end))
    for (int64_t u = begin; u < end; u++) {
      const int64_t m = cut(M, u % ms, ms, WR_GEMM_ROWS), rows = cut(M, u % ms + 1, ms, WR_GEMM_ROWS) - m;
      const int64_t g0 = cut(groups, u / ms, ns, WR_GEMM_PANELS), g1 = cut(groups, u / ms + 1, ns, WR_GEMM_PANELS);
      for (int64_t p = 0; p < ks; p++) {
        const int64_t k = cut(K, p, ks, 16), width = (g1 - g0) * 16;
        const int64_t n = cut(K, p + 1, ks, 16) - k;
        const bool last = p == ks - 1;
        const uint8_t *const from = (const uint8_t *)wt->data + (size_t)g0 * stride_bytes;
        if (t != WR_F32)
          for (int64_t i = 0; i < g1 - g0; i++)
            widen(t, (const uint16_t *)(const void *)(from + (size_t)i * stride_bytes) + 16 * k, n, wide + 16 * n * i);
        wr_gemm g = {.a = wr_arg_f32(x, m) + k,
                     .a_row = step_of(x),
                     .a_step = 1,
                     .b = t == WR_F32 ? (const float *)(const void *)from + 16 * k : wide,
                     .b_step = 16,
                     .b_panel = t == WR_F32 ? (int64_t)(stride_bytes / sizeof(float)) : 16 * n,
                     .n = n,
                     .from = p ? sums : NULL,
                     .from_row = width,
                     .from_panel = 16,
                     .to = last ? wr_arg_f32(y, m) + 16 * g0 : sums,
                     .to_row = last ? step_of(y) : width,
                     .to_panel = 16,
                     .lanes = (int)WR_MIN(N - 16 * (g1 - 1), (int64_t)16)};
        if (last && bias->data) g.bias = (const float *)bias->data + 16 * g0;
        if (last && res->data) g.res = wr_arg_f32(res, m) + 16 * g0, g.res_row = step_of(res);
        wr_gemm_block(&g, rows, g1 - g0);
      }
    }
}

WR_ROW_FN(WR_KERNEL(matmul_f32_gemm_cpu)) { forward(WR_F32, c, w); }
WR_ROW_FN(WR_KERNEL(matmul_f16_gemm_cpu)) { forward(WR_F16, c, w); }
WR_ROW_FN(WR_KERNEL(matmul_bf16_gemm_cpu)) { forward(WR_BF16, c, w); }

WR_ROW_FN(WR_KERNEL(matmul_dx_f32_gemm_cpu)) {
  const wr_arg *dy = &c->args[WR_MM_DX_DY], *wt = &c->args[WR_MM_DX_W], *dx = &c->args[WR_MM_DX_DX];
  const int64_t M = wr_live_rows(c, WR_MM_DX_DY), K = wr_inner(dx), N = wt->ext[0], stride = step_of(wt);
  const int64_t panels = (K + 15) / 16, groups = (N + 15) / 16;
  const int64_t ms = wr_mm_parts(M, WR_MM_GEMM_REUSE), ks = wr_mm_parts(panels, WR_MM_GEMM_PACKED),
                ns = wr_mm_parts(groups, WR_MM_GEMM_SUM / 16);
  float *const packed = (float *)c->scratch + (int64_t)w->tid * WR_MM_GEMM_PANELS;
  const bool add = c->acc >> WR_MM_DX_DX & 1;
  int64_t begin, end;
  while (wr_take(w, 0, ms * ks, 1, &begin, &end))
    for (int64_t u = begin; u < end; u++) {
      const int64_t m = cut(M, u % ms, ms, WR_GEMM_ROWS), rows = cut(M, u % ms + 1, ms, WR_GEMM_ROWS) - m;
      const int64_t p0 = cut(panels, u / ms, ks, WR_GEMM_PANELS), p1 = cut(panels, u / ms + 1, ks, WR_GEMM_PANELS);
      for (int64_t p = 0; p < ns; p++) {
        const int64_t g0 = cut(groups, p, ns, 1), g1 = cut(groups, p + 1, ns, 1);
        wr_gemm_pack_turned((const float *)wt->data + g0 * stride, stride, g1 - g0, 16 * p0, K, p1 - p0, packed);
        float *to = wr_arg_f32(dx, m) + 16 * p0;
        const wr_gemm g = {.a = wr_arg_f32(dy, m) + 16 * g0,
                           .a_row = step_of(dy),
                           .a_step = 1,
                           .b = packed,
                           .b_step = 16,
                           .b_panel = (g1 - g0) * 256,
                           .n = WR_MIN(N, 16 * g1) - 16 * g0,
                           .from = p || add ? to : NULL,
                           .from_row = step_of(dx),
                           .from_panel = 16,
                           .to = to,
                           .to_row = step_of(dx),
                           .to_panel = 16,
                           .lanes = (int)WR_MIN(K - 16 * (p1 - 1), (int64_t)16)};
        wr_gemm_block(&g, rows, p1 - p0);
      }
    }
}

/* dbias of `columns` columns of dy: to[n] (+)= sum over rows, ascending. */
static void add_rows(const float *dy, int64_t step, int64_t rows, int64_t columns, bool add, float *to) {
  for (int64_t n = 0; n < columns; n += 16) {
    const int lanes = (int)WR_MIN(columns - n, (int64_t)16);
    v16 sum = add ? v16_load_n(to + n, lanes) : v16_zero();
    for (int64_t m = 0; m < rows; m++) sum = v16_add(sum, v16_load_n(dy + m * step + n, lanes));
    v16_store_n(to + n, sum, lanes);
  }
}

WR_ROW_FN(WR_KERNEL(matmul_dw_f32_gemm_cpu)) {
  const wr_arg *dy = &c->args[WR_MM_DW_DY], *x = &c->args[WR_MM_DW_X];
  const wr_arg *dw = &c->args[WR_MM_DW_DW], *dbias = &c->args[WR_MM_DW_DBIAS];
  const int64_t M = wr_live_rows(c, WR_MM_DW_X), N = wr_inner(dy), K = wr_inner(x), groups = (N + 15) / 16,
                stride = step_of(dw);
  const int64_t ks = wr_mm_parts(K, WR_MM_GEMM_REUSE), ns = wr_mm_parts(groups, WR_MM_GEMM_PACKED),
                ms = wr_mm_parts(M, WR_MM_GEMM_SUM);
  float *const padded = (float *)c->scratch + (int64_t)w->tid * WR_MM_GEMM_PANELS;
  const bool add = c->acc >> WR_MM_DW_DW & 1, add_bias = c->acc >> WR_MM_DW_DBIAS & 1;
  int64_t begin, end;
  while (wr_take(w, 0, ks * ns, 1, &begin, &end))
    for (int64_t u = begin; u < end; u++) {
      const int64_t k = cut(K, u % ks, ks, WR_GEMM_ROWS), rows = cut(K, u % ks + 1, ks, WR_GEMM_ROWS) - k;
      const int64_t g0 = cut(groups, u / ks, ns, WR_GEMM_PANELS), g1 = cut(groups, u / ks + 1, ns, WR_GEMM_PANELS);
      const int64_t whole = WR_MIN(g1, N / 16); /* groups that dy has all columns of */
      for (int64_t p = 0; p < ms; p++) {
        const int64_t m = cut(M, p, ms, 1), n = cut(M, p + 1, ms, 1) - m;
        const float *from = wr_arg_f32(dy, m) + 16 * g0;
        float *to = (float *)dw->data + g0 * stride + 16 * k;
        if (u % ks == 0 && dbias->data)
          add_rows(from, step_of(dy), n, WR_MIN(N, 16 * g1) - 16 * g0, p || add_bias, (float *)dbias->data + 16 * g0);
        wr_gemm g = {.a = wr_arg_f32(x, m) + k,
                     .a_row = 1,
                     .a_step = step_of(x),
                     .b = from,
                     .b_step = step_of(dy),
                     .b_panel = 16,
                     .n = n,
                     .from = p || add ? to : NULL,
                     .from_row = 16,
                     .from_panel = stride,
                     .to = to,
                     .to_row = 16,
                     .to_panel = stride,
                     .lanes = 16};
        wr_gemm_block(&g, rows, whole - g0);
        if (whole == g1) continue;
        for (int64_t i = 0; i < n; i++)
          v16_store(padded + 16 * i, v16_load_n(from + i * step_of(dy) + 16 * (whole - g0), (int)(N % 16)));
        to += (whole - g0) * stride;
        g.b = padded, g.b_step = 16, g.to = to;
        if (g.from) g.from = to;
        wr_gemm_block(&g, rows, 1);
      }
    }
}
