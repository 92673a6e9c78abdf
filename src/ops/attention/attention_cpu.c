/* The paged cache on the CPU, compiled once for each instruction set; the same bits from each.
 *
 * A unit of work is a tile and a key head: neighbouring rows that attend to neighbouring positions of one sequence, with all query heads
 * that share the key head. It goes over the context in splits of SPLIT positions at absolute places, each from nothing:
 *   keys of the split become floats, in panels of sixteen positions;  scores = q k^T;  softmax;
 *   its values become floats;  sums = p v
 * and the splits' sums are merged in ascending order. What a page holds is decoded once a tile, whatever its type: one codec a type, and
 * one pair of products (ops/gemm_i.h) for all; a single row, which has few heads to a key head, multiplies as it decodes, since the copy
 * would cost as much as the products. Decoding is exact, so a cache of Q8_0 gives the bits of one of F32 that holds its values.
 * Each query's sums are chains of its own (scores ascending over d, values over positions), so tiles change no bit. Where few rows have
 * long contexts, several threads share a tile's splits; they are merged in the same order.
 *
 * Places of a page past a row's position may hold anything, NaN too: their scores are replaced before use, their values never read.
 */
#include <math.h>

#include "core/core.h"
#include "ops/arg_i.h"
#include "ops/attention/attention.h"
#include "ops/attention/attention_i.h"
#include "ops/attention/attention_line_i.h"
#include "ops/gemm_i.h"
#include "ops/quant/quant.h"

WR_ROW_FN(WR_KERNEL(kv_store_any_cpu));
WR_ROW_FN(WR_KERNEL(attention_paged_any_cpu));

enum { P = WR_KV_PAGE, SPLIT = WR_ATTN_SPLIT, LINE = WR_ATTN_SPLIT_LINE, BLOCK = 32 };

/* ------------------------------------------------------------------------------------------------------------------ store */

/* Elements [d, d + 32) of head h of all rows. The keys of a page have lines in common, so one thread does all rows. */
static void store_block(const wr_call *c, bool keys, int64_t rows, int64_t h, int64_t d) {
  const wr_arg *x = &c->args[keys ? STORE_K : STORE_V], *cache = &c->args[keys ? STORE_KCACHE : STORE_VCACHE];
  const int64_t D = x->ext[2], places = cache->ext[keys ? 3 : 2];
  const int n = (int)WR_MIN(D - d, (int64_t)BLOCK);
  wr_quant_fn *const encode = wr_quantizer((wr_dtype)cache->dtype, WR_ISA_LEVEL);
  for (int64_t r = 0; r < rows; r++) {
    const int64_t slot = wr_arg_i32(&c->args[STORE_SLOT], r);
    _Alignas(8) uint8_t code[BLOCK * sizeof(float)];
    if (slot < 0) continue;
    encode(wr_arg_f32(x, r) + h * D + d, code, n);
    wr_kv_put(cache, keys, slot / places, h, slot % places, d, n, code);
  }
}

WR_ROW_FN(WR_KERNEL(kv_store_any_cpu)) {
  const wr_arg *k = &c->args[STORE_K], *v = &c->args[STORE_V];
  const int64_t rows = wr_live_rows(c, STORE_K), k_blocks = (k->ext[2] + BLOCK - 1) / BLOCK,
                blocks = k_blocks + (v->ext[2] + BLOCK - 1) / BLOCK;
  int64_t begin, end;
  while (wr_take(w, 0, k->ext[1] * blocks, rows > 16 ? 1 : 64, &begin, &end))
    for (int64_t u = begin; u < end; u++) {
      const int64_t block = u % blocks;
      const bool keys = block < k_blocks;
      store_block(c, keys, rows, u / blocks, (keys ? block : block - k_blocks) * BLOCK);
    }
}

/* ------------------------------------------------------------------------------------------------------------- pages as floats */

/* Sixteen of the 32 elements of a line, without their scale. */
WR_INLINE v16 lanes(const void *line, int half, const int type) {
  switch (type) {
  case WR_F32: return v16_load((const float *)line + WR_LANES * half);
  case WR_F16: return v16_load_f16((const uint16_t *)line + WR_LANES * half);
  case WR_BF16: return v16_load_bf16((const uint16_t *)line + WR_LANES * half);
  case WR_Q8_0: return v16_from_i32(v16i_load_i8((const int8_t *)line + WR_LANES * half));
  default: {
    const v16i two = v16i_load_u8(line), q = half ? v16i_shr(two, 4) : v16i_and(two, v16i_set1(15));
    return v16_from_i32(v16i_sub(q, v16i_set1(8)));
  }
  }
}

WR_INLINE bool scaled(const int type) { return type == WR_Q8_0 || type == WR_Q4_0; }
WR_INLINE int64_t line_bytes(const int type) {
  return type == WR_F32 ? 128 : type == WR_F16 || type == WR_BF16 ? 64 : type == WR_Q8_0 ? 32 : 16;
}

/* What a page's part of a head is used for. Copied, for many queries: keys, [D] lines of 32 positions, to panels [2][D][16]; values to rows
 * `step` apart. Or, by at most DIRECT queries of one row, multiplied as it is read: q[D] and scores, q and sums lie one query after
 * another. What is read next begins at `ahead`. */
enum { DIRECT = 4 };
typedef struct page_part {
  const uint8_t *from, *ahead;
  int64_t D;
  int lo, hi; /* values: places */
  float *to;  /* the copy; scores from the page's first on, LINE from a query to the next; sums */
  int64_t step;
  const float *x; /* queries; weights from the page's first on, LINE from a query to the next */
} page_part;

/* Vectors of a line that go together: what the registers hold of sums. */
WR_INLINE int halves(const int G) { return WR_ISA_LEVEL >= 2 || G <= 2 ? 2 : 1; }

WR_INLINE void keys_of_page(const page_part *k, const int G, const int type) {
  const int64_t D = k->D;
  for (int first = 0; first < 2; first += halves(G)) {
    const uint8_t *line = k->from + (scaled(type) ? wr_keys_scale_bytes(D) : 0);
    v16 sum[DIRECT][2];
    for (int g = 0; g < G; g++) sum[g][0] = sum[g][1] = v16_zero();
    for (int64_t block = 0; block < D; block += BLOCK) {
      v16 scale[2] = {v16_set1(1), v16_set1(1)};
      for (int half = 0; scaled(type) && half < 2; half++)
        scale[half] = v16_load_f16((const uint16_t *)k->from + block + WR_LANES * half);
      for (int64_t d = block; d < WR_MIN(block + BLOCK, D); d++, line += line_bytes(type)) {
        wr_prefetch(k->ahead + (line - k->from));
        for (int half = first; half < first + halves(G); half++) {
          v16 x = lanes(line, half, type);
          if (scaled(type)) x = v16_mul(x, scale[half]);
          if (!G) v16_store(k->to + (half * D + d) * WR_LANES, x);
          for (int g = 0; g < G; g++) sum[g][half] = v16_fma(v16_set1(k->x[g * D + d]), x, sum[g][half]);
        }
      }
    }
    for (int g = 0; g < G; g++)
      for (int half = first; half < first + halves(G); half++) v16_store(k->to + g * LINE + half * WR_LANES, sum[g][half]);
  }
}

/* Less than sixteen elements of a type without scales. */
WR_INLINE v16 some_lanes(const void *at, int n, const int type) {
  uint8_t padded[64] = {0};
  memcpy(padded, at, (size_t)(n * line_bytes(type) / BLOCK));
  return lanes(padded, 0, type);
}

/* Columns [d, d + 32 n) of values, n being 1 or 2. */
WR_INLINE void value_blocks(const page_part *v, const int G, const int type, int64_t d, const int n) {
  const int64_t D = v->D, block_bytes = line_bytes(type) + (scaled(type) ? 2 : 0), row_bytes = D * block_bytes / BLOCK;
  const uint8_t *const block = v->from + d / BLOCK * block_bytes;
  const int together = n == 2 ? 4 : halves(G);
  float scale[2][P];
  for (int b = 0; scaled(type) && b < n; b++) {
    uint16_t stored[P] = {0};
    for (int i = v->lo; i < v->hi; i++) memcpy(&stored[i], block + b * block_bytes + i * row_bytes, sizeof stored[i]);
    for (int half = 0; half < 2; half++) v16_store(scale[b] + WR_LANES * half, v16_load_f16(stored + WR_LANES * half));
  }
#pragma GCC unroll 2
  for (int first = 0; first < 2 * n; first += together) {
    v16 sum[DIRECT][4];
#pragma GCC unroll 4
    for (int g = 0; g < G; g++)
#pragma GCC unroll 4
      for (int j = first; j < first + together; j++) sum[g][j] = v16_load(v->to + g * D + d + WR_LANES * j);
    for (int i = v->lo; i < v->hi; i++) {
      const uint8_t *at = block + i * row_bytes;
#pragma GCC unroll 4
      for (int j = first; j < first + together; j++) {
        const uint8_t *of = at + j / 2 * block_bytes, *quants = of + (scaled(type) ? 2 : 0);
        const int64_t left = D - d - WR_LANES * j;
        if (j % 2 == 0 || together == 1) wr_prefetch(v->ahead + (of - v->from));
        if (!G && left <= 0) continue;
        v16 x = G || left >= WR_LANES ? lanes(quants, j % 2, type)
                                      : some_lanes(quants + j % 2 * line_bytes(type) / 2, (int)left, type);
        if (scaled(type)) x = v16_mul(x, v16_set1(scale[j / 2][i]));
        if (!G) v16_store(v->to + i * v->step + d + WR_LANES * j, x);
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) sum[g][j] = v16_fma(v16_set1(v->x[g * LINE + i]), x, sum[g][j]);
      }
    }
#pragma GCC unroll 4
    for (int g = 0; g < G; g++)
#pragma GCC unroll 4
      for (int j = first; j < first + together; j++) v16_store(v->to + g * D + d + WR_LANES * j, sum[g][j]);
  }
}

/* Two blocks at a time where the registers hold their sums: memory is then read in its own order. */
WR_INLINE void values_of_page(const page_part *v, const int G, const int type) {
  int64_t d = 0;
  for (; G && WR_ISA_LEVEL >= 2 && d + 2 * BLOCK <= v->D; d += 2 * BLOCK) value_blocks(v, G, type, d, 2);
  for (; d < v->D; d += BLOCK) value_blocks(v, G, type, d, 1);
}

/* [0] copies, [n] is for n queries */
typedef struct codec {
  void (*keys[DIRECT + 1])(const page_part *k);
  void (*values[DIRECT + 1])(const page_part *v);
} codec;
#define CODEC_OF(type, G) \
  static void keys_##type##_##G(const page_part *k) { keys_of_page(k, G, WR_##type); } \
  static void values_##type##_##G(const page_part *v) { values_of_page(v, G, WR_##type); }
#define CODEC(type) CODEC_OF(type, 0) CODEC_OF(type, 1) CODEC_OF(type, 2) CODEC_OF(type, 3) CODEC_OF(type, 4)
CODEC(F32)
CODEC(F16)
CODEC(BF16)
CODEC(Q8_0)
CODEC(Q4_0)
#define EACH(name, type) \
  { name##_##type##_0, name##_##type##_1, name##_##type##_2, name##_##type##_3, name##_##type##_4 }
#define ROW(type) [WR_##type] = {EACH(keys, type), EACH(values, type)}
static const codec codecs[WR_DTYPE_COUNT] = {ROW(F32), ROW(F16), ROW(BF16), ROW(Q8_0), ROW(Q4_0)};
#undef ROW
#undef EACH

/* -------------------------------------------------------------------------------------------------------------- tiles */

typedef struct tile {
  int64_t row, rows, kv, group; /* of q; key head; query heads that share it */
  int64_t past;                 /* positions that the first row attends to; the others one more each */
  const int32_t *pages;         /* of the sequence */
} tile;

static int64_t first_of(const wr_call *c, int64_t past) {
  const int64_t window = ((const wr_attention_params *)c->params)->window;
  return window && past > window ? past - window : 0;
}

static bool goes_on(const wr_call *c, int64_t row) {
  const wr_arg *seq = &c->args[PAGED_SEQ], *pos = &c->args[PAGED_POS];
  return wr_arg_i32(seq, row) == wr_arg_i32(seq, row - 1) && wr_arg_i32(pos, row) == wr_arg_i32(pos, row - 1) + 1;
}

/* The tile that begins with this row; false: it belongs to the one before. */
static bool tile_at(const wr_call *c, int64_t row, int64_t kv, tile *t) {
  const wr_arg *kc = &c->args[PAGED_KCACHE];
  const int64_t group = c->args[PAGED_Q].ext[1] / kc->ext[1], most = wr_attn_tile_rows(group), live = wr_live_rows(c, PAGED_Q);
  if (row % most && goes_on(c, row)) return false;
  *t = (tile){.row = row,
              .rows = 1,
              .kv = kv,
              .group = group,
              .past = (int64_t)wr_arg_i32(&c->args[PAGED_POS], row) + 1,
              .pages = wr_arg_row(&c->args[PAGED_TABLE], wr_arg_i32(&c->args[PAGED_SEQ], row))};
  while (row + t->rows < live && (row + t->rows) % most && goes_on(c, row + t->rows)) t->rows++;
  return true;
}

/* Splits [*begin, *end) hold all that any row of the tile attends to. */
static void splits_of(const wr_call *c, const tile *t, int64_t *begin, int64_t *end) {
  *begin = first_of(c, t->past) / SPLIT;
  *end = (t->past + t->rows - 1 + SPLIT - 1) / SPLIT;
}

/* Rows [*a, *b) of the tile attend to something in the split at `start`. */
static bool active_rows(const wr_call *c, const tile *t, int64_t start, int64_t *a, int64_t *b) {
  *a = WR_MIN(WR_MAX(start + 1 - t->past, (int64_t)0), t->rows);
  *b = t->rows;
  while (*b > *a && first_of(c, t->past + *b - 1) >= start + SPLIT) --*b;
  return *a < *b;
}

/* The queries of a tile, one row's heads after another's. */
static void take_queries(const wr_call *c, const tile *t, float *to) {
  const wr_arg *q = &c->args[PAGED_Q];
  const int64_t n = t->group * q->ext[2];
  for (int64_t r = 0; r < t->rows; r++) memcpy(to + r * n, wr_arg_f32(q, t->row + r) + t->kv * n, (size_t)n * sizeof *to);
}

/* -------------------------------------------------------------------------------------------------------------- a split */

/* The part of the tile's key head in page number `page` of its sequence. */
static const uint8_t *page_of(const wr_arg *cache, const tile *t, int64_t page) {
  return (const uint8_t *)wr_arg_row(cache, t->pages[page]) + t->kv * wr_kv_head_bytes(cache);
}

typedef struct split {
  const tile *t;
  int64_t start; /* position */
  int64_t a, b;  /* active rows */
} split;

/* sums of rows [a, b) += those over the positions [lo, hi) of the split. */
static void add_values(const split *s, const wr_paged_room *room, int64_t Dv, int64_t a, int64_t b, int64_t lo, int64_t hi,
                       float *acc) {
  const int64_t group = s->t->group, step = wr_whole16(Dv), panels = step / WR_LANES;
  if (lo >= hi || a >= b) return;
  float *to = acc + a * group * Dv;
  const wr_gemm g = {.a = room->p + a * group * LINE + lo,
                     .a_row = LINE,
                     .a_step = 1,
                     .b = room->pages + lo * step,
                     .b_step = step,
                     .b_panel = WR_LANES,
                     .n = hi - lo,
                     .from = to,
                     .from_row = Dv,
                     .from_panel = WR_LANES,
                     .to = to,
                     .to_row = Dv,
                     .to_panel = WR_LANES,
                     .lanes = (int)(Dv - WR_LANES * (panels - 1))};
  wr_gemm_block(&g, (b - a) * group, panels);
}

static int64_t row_lo(const wr_call *c, const split *s, int64_t r) {
  return WR_MAX(first_of(c, s->t->past + r) - s->start, (int64_t)0);
}
static int64_t row_hi(const split *s, int64_t r) { return WR_MIN(s->t->past + r - s->start, (int64_t)SPLIT); }

/* What all rows attend to at once, the ends of it row by row. The sums are zero before. */
static void add_all_values(const wr_call *c, const split *s, const wr_paged_room *room, int64_t Dv, float *acc) {
  const int64_t lo = row_lo(c, s, s->b - 1), least = row_hi(s, s->a), hi = WR_MAX(least, lo);
  for (int64_t r = s->a; r < s->b; r++) add_values(s, room, Dv, r, r + 1, row_lo(c, s, r), WR_MIN(lo, row_hi(s, r)), acc);
  add_values(s, room, Dv, s->a, s->b, lo, least, acc);
  for (int64_t r = s->a; r < s->b; r++) add_values(s, room, Dv, r, r + 1, hi, row_hi(s, r), acc);
}

/* Scores of the active rows against the pages [p0, p1) of the split, whose keys stand in room->pages. */
static void score(const split *s, const wr_paged_room *room, int64_t Dqk, int64_t p0, int64_t p1) {
  const int64_t group = s->t->group;
  const wr_gemm g = {.a = room->q + s->a * group * Dqk,
                     .a_row = Dqk,
                     .a_step = 1,
                     .b = room->pages + p0 * P * Dqk,
                     .b_step = WR_LANES,
                     .b_panel = WR_LANES * Dqk,
                     .n = Dqk,
                     .to = room->p + s->a * group * LINE + p0 * P,
                     .to_row = LINE,
                     .to_panel = WR_LANES,
                     .lanes = WR_LANES};
  wr_gemm_block(&g, (s->b - s->a) * group, (p1 - p0) * P / WR_LANES);
}

static void begin_sums(const wr_attn_sums *a, int64_t begin, int64_t end, int64_t Dv) {
  memset(a->acc + begin * Dv, 0, (size_t)((end - begin) * Dv) * sizeof *a->acc);
  for (int64_t i = begin; i < end; i++) a->max[i] = -INFINITY, a->total[i] = 0;
}

/* The sums of the active rows over split number `number`, from nothing. */
static void attend_split(const wr_call *c, const tile *t, int64_t number, const wr_paged_room *room, const wr_attn_sums *out) {
  const wr_arg *kc = &c->args[PAGED_KCACHE], *vc = &c->args[PAGED_VCACHE];
  const int64_t Dqk = kc->ext[2], Dv = vc->ext[3], group = t->group, step = wr_whole16(Dv), first_page = number * (SPLIT / P),
                last_page = (t->past + t->rows - 2) / P;
  const codec *type = &codecs[kc->dtype];
  split s = {.t = t, .start = number * SPLIT};
  if (!active_rows(c, t, s.start, &s.a, &s.b)) return;
  const int64_t lo = row_lo(c, &s, s.a), hi = row_hi(&s, s.b - 1), p0 = lo / P, p1 = (hi + P - 1) / P;
  const int direct = s.b - s.a == 1 && group <= DIRECT && Dv % BLOCK == 0 ? (int)group : 0;
  float *const p_of_row = room->p + s.a * group * LINE, *const sums_of_row = out->acc + s.a * group * Dv;
  for (int64_t p = p0; p < p1; p++) /* its values are what is read next but three pages of keys */
    type->keys[direct](&(page_part){.from = page_of(kc, t, first_page + p),
                                    .ahead = page_of(vc, t, first_page + p),
                                    .D = Dqk,
                                    .to = direct ? p_of_row + p * P : room->pages + p * P * Dqk,
                                    .x = room->q + s.a * group * Dqk});
  if (!direct) score(&s, room, Dqk, p0, p1);
  begin_sums(out, s.a * group, s.b * group, Dv);
  for (int64_t i = s.a * group, n; i < s.b * group; i += n) {
    int64_t first[SOFTEN_MOST], past[SOFTEN_MOST];
    float keep[SOFTEN_MOST];
    n = WR_MIN(s.b * group - i, (int64_t)SOFTEN_MOST);
    for (int64_t g = 0; g < n; g++) past[g] = t->past + (i + g) / group, first[g] = first_of(c, past[g]);
    soften[n - 1](c->params, room->p + i * LINE, LINE, p0 * P, p1 * P, s.start, first, past, out->max + i, out->total + i,
                  keep);
  }
  for (int64_t p = p0; p < p1; p++)
    type->values[direct](&(page_part){.from = page_of(vc, t, first_page + p),
                                      .ahead = page_of(kc, t, WR_MIN(first_page + p + SPLIT / P, last_page)),
                                      .D = Dv,
                                      .lo = (int)WR_MAX(lo - p * P, (int64_t)0),
                                      .hi = (int)WR_MIN(hi - p * P, (int64_t)P),
                                      .to = direct ? sums_of_row : room->pages + p * P * step,
                                      .step = step,
                                      .x = p_of_row + p * P});
  if (!direct) add_all_values(c, &s, room, Dv, out->acc);
}

/* --------------------------------------------------------------------------------------------------------- splits together */

/* a = a and b together, of queries [begin, end); a comes first. */
static void merge(const wr_attn_sums *a, const wr_attn_sums *b, int64_t begin, int64_t end, int64_t Dv) {
  for (int64_t i = begin; i < end; i += WR_LANES) {
    const int n = wr_lanes(end - i);
    const v16 am = v16_load_n(a->max + i, n), bm = v16_load_n(b->max + i, n), max = v16_max(am, bm);
    const v16 keep = v16_exp(v16_sub(am, max)), take = v16_exp(v16_sub(bm, max));
    const v16 total = v16_add(v16_mul(v16_load_n(a->total + i, n), keep), v16_mul(v16_load_n(b->total + i, n), take));
    float factors[2][WR_LANES];
    v16_store_n(a->max + i, max, n);
    v16_store_n(a->total + i, total, n);
    v16_store(factors[0], keep);
    v16_store(factors[1], take);
    for (int j = 0; j < n; j++)
      for (int64_t d = 0; d < Dv; d += WR_LANES) {
        const int some = wr_lanes(Dv - d);
        float *at = a->acc + (i + j) * Dv + d;
        const v16 kept = v16_mul(v16_load_n(at, some), v16_set1(factors[0][j]));
        v16_store_n(at, v16_fma(v16_load_n(b->acc + (i + j) * Dv + d, some), v16_set1(factors[1][j]), kept), some);
      }
  }
}

/* y = acc / total; 0 where a row attended to nothing. */
static void finish(const wr_call *c, const tile *t, const wr_attn_sums *a) {
  const int64_t Dv = c->args[PAGED_VCACHE].ext[3];
  for (int64_t i = 0; i < t->rows * t->group; i++) {
    float *y = wr_arg_f32(&c->args[PAGED_Y], t->row + i / t->group) + (t->kv * t->group + i % t->group) * Dv;
    for (int64_t d = 0; d < Dv; d += WR_LANES) {
      const int n = wr_lanes(Dv - d);
      const v16 sum = v16_load_n(a->acc + i * Dv + d, n);
      v16_store_n(y + d, a->total[i] != 0 ? v16_div(sum, v16_set1(a->total[i])) : sum, n);
    }
  }
}

/* A whole tile by one thread. `slots`: its splits' sums are there already. */
static void attend_tile(const wr_call *c, const tile *t, const wr_paged_room *room, bool slots) {
  const int64_t Dv = c->args[PAGED_VCACHE].ext[3];
  int64_t number, end, a, b;
  splits_of(c, t, &number, &end);
  begin_sums(&room->all, 0, t->rows * t->group, Dv);
  for (; number < end; number++) {
    const wr_attn_sums one = slots ? wr_attn_slot(c, room, number, t->kv, t->row, t->rows * t->group) : room->one;
    if (!slots) attend_split(c, t, number, room, &one);
    if (active_rows(c, t, number * SPLIT, &a, &b)) merge(&room->all, &one, a * t->group, b * t->group, Dv);
  }
  finish(c, t, &room->all);
}

WR_ROW_FN(WR_KERNEL(attention_paged_any_cpu)) {
  const wr_arg *q = &c->args[PAGED_Q], *kc = &c->args[PAGED_KCACHE];
  const int64_t rows = wr_live_rows(c, PAGED_Q), Nkv = kc->ext[1];
  const wr_paged_room room = wr_paged_room_of(c, w->n_threads, w->tid);
  int64_t past = 0, begin, end;
  bool shared = rows <= wr_attn_split_rows(q->ext[0], Nkv, w->n_threads) && w->n_threads > 1;
  for (int64_t r = 0; r < rows && shared; r++) past = WR_MAX(past, (int64_t)wr_arg_i32(&c->args[PAGED_POS], r) + 1);
  const int64_t splits = (past + SPLIT - 1) / SPLIT;
  shared = shared && splits > 1;
  tile t;
  while (shared && wr_take(w, 0, rows * Nkv * splits, 1, &begin, &end))
    for (int64_t u = begin; u < end; u++) {
      if (!tile_at(c, u / splits / Nkv, u / splits % Nkv, &t)) continue;
      const wr_attn_sums slot = wr_attn_slot(c, &room, u % splits, t.kv, t.row, t.rows * t.group);
      take_queries(c, &t, room.q);
      attend_split(c, &t, u % splits, &room, &slot);
    }
  if (shared) wr_barrier(w);
  while (wr_take(w, shared, rows * Nkv, 1, &begin, &end))
    for (int64_t u = begin; u < end; u++) {
      if (!tile_at(c, u / Nkv, u % Nkv, &t)) continue;
      if (!shared) take_queries(c, &t, room.q);
      attend_tile(c, &t, &room, shared);
    }
}
