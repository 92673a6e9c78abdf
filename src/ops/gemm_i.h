/* gemm_i.h: the inner loops of large FP32 products, for the files that are compiled once for each instruction set (*_cpu.c).
 *
 *   to[r][lane] = from[r][lane] + sum_i a[r][i] b[i][lane]        i ascending, one fused product after another
 *
 * b comes in panels of sixteen lanes, [n][16], as layout pack16 has the weights of a group of outputs; what must be turned to be so is
 * packed into panels, a part that fits the caches at a time. Columns of plain rows are panels whose rows lie far apart.
 * a is never packed: its elements are broadcast from where they are.
 * A tile is a few rows of a against one or two panels, as many sums as the registers hold.
 *
 * The chain of a sum goes from tile to tile through memory (`from`), so neither tiles, nor parts of n, nor who takes what, nor the
 * instruction set changes a bit. What is added at the end: (sum + bias) + res.
 * Sizes of tiles and parts, and what they were measured against: doc/notes/0004-training-products.md.
 */
#ifndef WR_OPS_GEMM_I_H
#define WR_OPS_GEMM_I_H

#include "ops/simd_i.h"

/* The largest tile: rows of a, panels of b. */
#if WR_ISA_LEVEL >= 2
enum { WR_GEMM_ROWS = 8, WR_GEMM_PANELS = 3 };
#elif WR_ISA_LEVEL == 1
enum { WR_GEMM_ROWS = 6, WR_GEMM_PANELS = 1 };
#else
enum { WR_GEMM_ROWS = 2, WR_GEMM_PANELS = 1 };
#endif

/* Steps are in floats. */
typedef struct wr_gemm {
  const float *a;
  int64_t a_row, a_step; /* from one row to the next, from one i to the next; one of them is 1 */
  const float *b;
  int64_t b_step, b_panel; /* from one i to the next, from a panel to the next */
  int64_t n;             /* summands */
  const float *from;     /* NULL: sums start from zero */
  int64_t from_row, from_panel;
  float *to;
  int64_t to_row, to_panel;
  int lanes;             /* of the last panel, 1..16: that many are read from `from` and written */
  const float *bias;     /* [lanes of all panels], NULL: none */
  const float *res;      /* like to; may be the same memory */
  int64_t res_row;
} wr_gemm;

/* Masks of all sixteen lanes are slow where they are not free. */
WR_INLINE v16 wr_gemm_load(const float *p, int lanes) { return lanes == 16 ? v16_load(p) : v16_load_n(p, lanes); }
WR_INLINE void wr_gemm_store(float *p, v16 a, int lanes) {
  if (lanes == 16)
    v16_store(p, a);
  else
    v16_store_n(p, a, lanes);
}

/* One tile. across: the rows of a lie next to each other (a_row 1), else its columns do (a_step 1). */
WR_INLINE void wr_gemm_tile(const int R, const int V, const bool across, const wr_gemm *g) {
  v16 acc[WR_GEMM_ROWS][WR_GEMM_PANELS];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 3
    for (int v = 0; v < V; v++) acc[r][v] = v16_zero();
  if (g->from) {
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 3
      for (int v = 0; v < V; v++)
        acc[r][v] = wr_gemm_load(g->from + r * g->from_row + v * g->from_panel, v == V - 1 ? g->lanes : 16);
  }
  const int64_t row = across ? 1 : g->a_row, step = across ? g->a_step : 1, b_step = g->b_step;
  const float *b[WR_GEMM_PANELS], *a[(WR_GEMM_ROWS + 2) / 3]; /* three rows a pointer: addresses are base + 0, 1, 2 rows */
#pragma GCC unroll 3
  for (int v = 0; v < V; v++) b[v] = g->b + v * g->b_panel;
#pragma GCC unroll 3
  for (int t = 0; t < (R + 2) / 3; t++) a[t] = g->a + 3 * t * row;
  for (int64_t i = 0; i < g->n; i++) {
    v16 x[WR_GEMM_PANELS];
#pragma GCC unroll 3
    for (int v = 0; v < V; v++) x[v] = v16_load(b[v]), b[v] += b_step;
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const v16 s = v16_set1(a[r / 3][r % 3 * row]);
#pragma GCC unroll 3
      for (int v = 0; v < V; v++) acc[r][v] = v16_fma(s, x[v], acc[r][v]);
    }
    if (across) wr_prefetch(a[0] + 16); /* the next tile's */
#pragma GCC unroll 3
    for (int t = 0; t < (R + 2) / 3; t++) a[t] += step;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 3
    for (int v = 0; v < V; v++) {
      const int lanes = v == V - 1 ? g->lanes : 16;
      v16 y = acc[r][v];
      if (g->bias) y = v16_add(y, wr_gemm_load(g->bias + 16 * v, lanes));
      if (g->res) y = v16_add(y, wr_gemm_load(g->res + r * g->res_row + 16 * v, lanes));
      wr_gemm_store(g->to + r * g->to_row + v * g->to_panel, y, lanes);
    }
}

typedef void wr_gemm_fn(const wr_gemm *g);
#define WR_GEMM_TILE(R, V) \
  static void wr_gemm_along_##R##_##V(const wr_gemm *g) { wr_gemm_tile(R, V, false, g); } \
  static void wr_gemm_across_##R##_##V(const wr_gemm *g) { wr_gemm_tile(R, V, true, g); }
#define WR_GEMM_ROW(V, R) {wr_gemm_along_##R##_##V, wr_gemm_across_##R##_##V}
#if WR_ISA_LEVEL >= 2
#define WR_GEMM_TILES(V) \
  WR_GEMM_TILE(1, V) WR_GEMM_TILE(2, V) WR_GEMM_TILE(3, V) WR_GEMM_TILE(4, V) WR_GEMM_TILE(5, V) WR_GEMM_TILE(6, V) \
  WR_GEMM_TILE(7, V) WR_GEMM_TILE(8, V)
WR_GEMM_TILES(1)
WR_GEMM_TILES(2)
WR_GEMM_TILES(3)
#define WR_GEMM_COLUMN(V) \
  {WR_GEMM_ROW(V, 1), WR_GEMM_ROW(V, 2), WR_GEMM_ROW(V, 3), WR_GEMM_ROW(V, 4), WR_GEMM_ROW(V, 5), WR_GEMM_ROW(V, 6), \
   WR_GEMM_ROW(V, 7), WR_GEMM_ROW(V, 8)}
static wr_gemm_fn *const wr_gemm_tiles[WR_GEMM_PANELS][WR_GEMM_ROWS][2] = {WR_GEMM_COLUMN(1), WR_GEMM_COLUMN(2), WR_GEMM_COLUMN(3)};
#elif WR_ISA_LEVEL == 1
WR_GEMM_TILE(1, 1) WR_GEMM_TILE(2, 1) WR_GEMM_TILE(3, 1) WR_GEMM_TILE(4, 1) WR_GEMM_TILE(5, 1) WR_GEMM_TILE(6, 1)
static wr_gemm_fn *const wr_gemm_tiles[WR_GEMM_PANELS][WR_GEMM_ROWS][2] = {
    {WR_GEMM_ROW(1, 1), WR_GEMM_ROW(1, 2), WR_GEMM_ROW(1, 3), WR_GEMM_ROW(1, 4), WR_GEMM_ROW(1, 5), WR_GEMM_ROW(1, 6)}};
#else
WR_GEMM_TILE(1, 1) WR_GEMM_TILE(2, 1)
static wr_gemm_fn *const wr_gemm_tiles[WR_GEMM_PANELS][WR_GEMM_ROWS][2] = {{WR_GEMM_ROW(1, 1), WR_GEMM_ROW(1, 2)}};
#endif

/* All tiles of `rows` rows against `panels` panels, of which the last has g->lanes lanes. The panels of a tile stay in the first-level
 * cache over all rows. */
static __attribute__((unused)) void wr_gemm_block(const wr_gemm *g, int64_t rows, int64_t panels) {
  const int across = g->a_row == 1 && g->a_step != 1;
  for (int64_t p = 0; p < panels;) {
    /* one more than a tile has: two and two */
    const int V = (int)(panels - p == WR_GEMM_PANELS + 1 ? (WR_GEMM_PANELS + 1) / 2 : WR_MIN(panels - p, (int64_t)WR_GEMM_PANELS));
    for (int64_t r = 0; r < rows; r += WR_GEMM_ROWS) {
      const int R = (int)WR_MIN(rows - r, (int64_t)WR_GEMM_ROWS);
      wr_gemm t = *g;
      t.a += r * g->a_row;
      t.b += p * g->b_panel;
      if (t.from) t.from += r * g->from_row + p * g->from_panel;
      t.to += r * g->to_row + p * g->to_panel;
      if (t.bias) t.bias += 16 * p;
      if (t.res) t.res += r * g->res_row + 16 * p;
      if (p + V < panels) t.lanes = 16;
      /* the lines of the next tile's results, while this one is computed */
      for (int i = R; i < WR_MIN(rows - r, (int64_t)(R + WR_GEMM_ROWS)); i++)
        for (int v = 0; v < V; v++) wr_prefetch(t.to + i * t.to_row + v * t.to_panel);
      wr_gemm_tiles[V - 1][R - 1][across](&t);
    }
    p += V;
  }
}

/* ---- packing into panels */

/* Sixteen vectors become their lanes: to[i][j] = from[j][i]. Rows of sixteen floats, from_step and to_step apart. */
#if WR_ISA_LEVEL >= 2
WR_INLINE void wr_turn16(const float *from, int64_t from_step, float *to, int64_t to_step) {
  __m512 a[16], b[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_ps(from + i * from_step);
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm512_shuffle_ps(b[i], b[i + 2], 0xee);
    a[i + 2] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm512_shuffle_ps(b[i + 1], b[i + 3], 0xee);
  }
  /* a[4q + j]: in 128-bit lane l the elements 4l + j of rows 4q .. 4q + 3 */
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    const __m512 lo01 = _mm512_shuffle_f32x4(a[j], a[4 + j], 0x88), hi01 = _mm512_shuffle_f32x4(a[j], a[4 + j], 0xdd);
    const __m512 lo23 = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0x88), hi23 = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0xdd);
    _mm512_storeu_ps(to + j * to_step, _mm512_shuffle_f32x4(lo01, lo23, 0x88));
    _mm512_storeu_ps(to + (4 + j) * to_step, _mm512_shuffle_f32x4(hi01, hi23, 0x88));
    _mm512_storeu_ps(to + (8 + j) * to_step, _mm512_shuffle_f32x4(lo01, lo23, 0xdd));
    _mm512_storeu_ps(to + (12 + j) * to_step, _mm512_shuffle_f32x4(hi01, hi23, 0xdd));
  }
}
#elif WR_ISA_LEVEL == 1 && defined(__aarch64__)
WR_INLINE void wr_turn16(const float *from, int64_t from_step, float *to, int64_t to_step) {
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    /* lane i of column k: from[4 j + k][i] */
    const v16 r0 = v16_load(from + 4 * j * from_step), r1 = v16_load(from + (4 * j + 1) * from_step);
    const v16 r2 = v16_load(from + (4 * j + 2) * from_step), r3 = v16_load(from + (4 * j + 3) * from_step);
#define WR_TURN4(x, i) \
  do { \
    const float32x4_t lo02 = vzip1q_f32(r0.x, r2.x), hi02 = vzip2q_f32(r0.x, r2.x); \
    const float32x4_t lo13 = vzip1q_f32(r1.x, r3.x), hi13 = vzip2q_f32(r1.x, r3.x); \
    float *const at = to + (i) * to_step + 4 * j; \
    vst1q_f32(at, vzip1q_f32(lo02, lo13)), vst1q_f32(at + to_step, vzip2q_f32(lo02, lo13)); \
    vst1q_f32(at + 2 * to_step, vzip1q_f32(hi02, hi13)), vst1q_f32(at + 3 * to_step, vzip2q_f32(hi02, hi13)); \
  } while (0)
    WR_TURN4(a, 0);
    WR_TURN4(b, 4);
    WR_TURN4(c, 8);
    WR_TURN4(d, 12);
#undef WR_TURN4
  }
}
#elif WR_ISA_LEVEL == 1
WR_INLINE void wr_turn8(const float *from, int64_t from_step, float *to, int64_t to_step) {
  __m256 a[8], b[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) a[i] = _mm256_loadu_ps(from + i * from_step);
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  }
#pragma GCC unroll 3
  for (int i = 0; i < 8; i += 4) {
    a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
    a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    _mm256_storeu_ps(to + j * to_step, _mm256_permute2f128_ps(a[j], a[4 + j], 0x20));
    _mm256_storeu_ps(to + (4 + j) * to_step, _mm256_permute2f128_ps(a[j], a[4 + j], 0x31));
  }
}
WR_INLINE void wr_turn16(const float *from, int64_t from_step, float *to, int64_t to_step) {
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++) wr_turn8(from + 8 * j * from_step + 8 * i, from_step, to + 8 * i * to_step + 8 * j, to_step);
}
#else
WR_INLINE void wr_turn16(const float *from, int64_t from_step, float *to, int64_t to_step) {
  for (int i = 0; i < 16; i++)
    for (int j = 0; j < 16; j++) to[i * to_step + j] = from[j * from_step + i];
}
#endif

/* Columns of a pack16 matrix as panels: to[p][n][lane] = w[n][k + 16 p + lane] for n groups of rows, from the group at w, `stride` floats
 * from one to the next; lanes past K become zero. */
static __attribute__((unused)) void wr_gemm_pack_turned(const float *w, int64_t stride, int64_t groups, int64_t k, int64_t K, int64_t panels, float *to) {
  for (int64_t p = 0; p < panels; p++, k += 16)
    for (int64_t g = 0; g < groups; g++, to += 256) {
      const float *from = w + g * stride + 16 * k;
      if (K - k >= 16) {
        wr_turn16(from, 16, to, 16);
        continue;
      }
      float padded[256] = {0};
      memcpy(padded, from, (size_t)(K - k) * 16 * sizeof *from);
      wr_turn16(padded, 16, to, 16);
    }
}

#endif
