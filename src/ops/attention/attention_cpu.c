/* The paged cache on the CPU, compiled once for each instruction set; the same bits from each.
 *
 * A unit of work is a row and a key head, with all query heads that share it (at most GROUP at once), page by page:
 * attention_page_i.h. Splits of WR_ATTN_SPLIT_PAGES pages begin from nothing and are merged in ascending order, whether one
 * thread does them in turn or several side by side.
 *
 * Places of a page past the row's position may hold anything, NaN too: their scores are replaced before use, their values
 * never read.
 */
#include <math.h>

#include "core/core.h"
#include "ops/arg_i.h"
#include "ops/attention/attention.h"
#include "ops/attention/attention_i.h"
#include "ops/attention/attention_page_i.h"
#include "ops/simd_i.h"

WR_ROW_FN(WR_KERNEL(kv_store_any_cpu));
WR_ROW_FN(WR_KERNEL(attention_paged_f32_cpu));
WR_ROW_FN(WR_KERNEL(attention_paged_f16_cpu));

/* ------------------------------------------------------------------------------------------------------------------ store */

/* Sixteen key elements of all rows: they go to the lines of their d, one place in each. */
static void store_keys(const wr_call *c, int64_t rows, int64_t h, int64_t d, int n) {
  const wr_arg *k = &c->args[STORE_K], *kc = &c->args[STORE_KCACHE];
  int64_t Dqk = kc->ext[2], P = kc->ext[3];
  for (int64_t r = 0; r < rows; r++) {
    int64_t slot = wr_arg_i32(&c->args[STORE_SLOT], r);
    if (slot < 0) continue;
    const float *from = wr_arg_f32(k, r) + h * Dqk + d;
    int64_t at = (h * Dqk + d) * P + slot % P;
    if (kc->dtype == WR_F32) {
      float *to = wr_arg_f32(kc, slot / P) + at;
      for (int i = 0; i < n; i++) to[i * P] = from[i];
    } else {
      uint16_t half[WR_LANES], *to = (uint16_t *)wr_arg_row(kc, slot / P) + at;
      v16_store_f16_n(half, v16_load_n(from, n), n);
      for (int i = 0; i < n; i++) to[i * P] = half[i];
    }
  }
}

static void store_values(const wr_call *c, int64_t r) {
  const wr_arg *v = &c->args[STORE_V], *vc = &c->args[STORE_VCACHE];
  int64_t P = vc->ext[2], Dv = vc->ext[3], slot = wr_arg_i32(&c->args[STORE_SLOT], r);
  if (slot < 0) return;
  for (int64_t h = 0; h < vc->ext[1]; h++) {
    const float *from = wr_arg_f32(v, r) + h * Dv;
    int64_t at = (h * P + slot % P) * Dv;
    if (vc->dtype == WR_F32) {
      memcpy(wr_arg_f32(vc, slot / P) + at, from, (size_t)Dv * sizeof *from);
      continue;
    }
    uint16_t *to = (uint16_t *)wr_arg_row(vc, slot / P) + at;
    for (int64_t d = 0; d < Dv; d += WR_LANES) v16_store_f16_n(to + d, v16_load_n(from + d, part(Dv - d)), part(Dv - d));
  }
}

WR_ROW_FN(WR_KERNEL(kv_store_any_cpu)) {
  const wr_arg *kc = &c->args[STORE_KCACHE];
  int64_t rows = wr_live_rows(c, STORE_K), blocks = (kc->ext[2] + WR_LANES - 1) / WR_LANES, begin, end;
  while (wr_take(w, 0, kc->ext[1] * blocks, rows > 64 ? 1 : 64, &begin, &end))
    for (int64_t u = begin; u < end; u++) {
      int64_t d = u % blocks * WR_LANES;
      store_keys(c, rows, u / blocks, d, part(kc->ext[2] - d));
    }
  while (wr_take(w, 1, rows, 16, &begin, &end))
    for (int64_t r = begin; r < end; r++) store_values(c, r);
}

/* -------------------------------------------------------------------------------------------------------------- attention */

enum { P = WR_KV_PAGE, GROUP = WR_ATTN_GROUP };

/* Pages [page, end) of one split, from nothing. */
WR_INLINE void attend_pages(const wr_call *c, const target *t, int64_t page, int64_t end, sums *out, const int G,
                            const bool half) {
  const wr_arg *kc = &c->args[PAGED_KCACHE], *vc = &c->args[PAGED_VCACHE];
  const size_t size = half ? sizeof(uint16_t) : sizeof(float);
  memset(out->acc, 0, (size_t)(G * t->Dv) * sizeof *out->acc);
  for (int g = 0; g < G; g++) out->max[g] = -INFINITY, out->total[g] = 0;
  for (; page < end; page++) {
    const char *k = wr_arg_row(kc, t->pages[page]), *v = wr_arg_row(vc, t->pages[page]);
    attend_page(t, k + (size_t)(t->kv_head * t->Dqk * P) * size, v + (size_t)(t->kv_head * P * t->Dv) * size, page * P, out, G,
                half);
  }
}

WR_INLINE void attend_any(const wr_call *c, const target *t, int64_t page, int64_t end, sums *out, const int G, bool half) {
  if (half)
    attend_pages(c, t, page, end, out, G, true);
  else
    attend_pages(c, t, page, end, out, G, false);
}

static int64_t n_splits(const target *t) {
  return t->past > t->first ? (t->past + P * WR_ATTN_SPLIT_PAGES - 1) / (P * WR_ATTN_SPLIT_PAGES) : 0;
}

/* Split number `split`: absolute positions, so that a window moves its start only. */
static void attend_split(const wr_call *c, const target *t, int64_t split, int g, sums *out, bool half) {
  int64_t page = split * WR_ATTN_SPLIT_PAGES, end = (t->past + P - 1) / P;
  if (page + WR_ATTN_SPLIT_PAGES < end) end = page + WR_ATTN_SPLIT_PAGES;
  if (page < t->first / P) page = t->first / P;
  switch (g) {
  case 1: attend_any(c, t, page, end, out, 1, half); break;
  case 2: attend_any(c, t, page, end, out, 2, half); break;
  case 3: attend_any(c, t, page, end, out, 3, half); break;
  case 4: attend_any(c, t, page, end, out, 4, half); break;
#if WR_ISA_LEVEL >= 2
  case 5: attend_any(c, t, page, end, out, 5, half); break;
  case 6: attend_any(c, t, page, end, out, 6, half); break;
  case 7: attend_any(c, t, page, end, out, 7, half); break;
  case 8: attend_any(c, t, page, end, out, 8, half); break;
#endif
  default: break;
  }
}

/* a = a and b together; a comes first. */
static void merge(sums *a, const sums *b, int g, int64_t Dv) {
  float scales[WR_LANES] = {0};
  for (int i = 0; i < g; i++) {
    float max = a->max[i] > b->max[i] ? a->max[i] : b->max[i];
    scales[i] = a->max[i] - max;
    scales[GROUP + i] = b->max[i] - max;
    a->max[i] = max;
  }
  v16_store(scales, v16_exp(v16_load(scales)));
  for (int i = 0; i < g; i++) {
    v16 sa = v16_set1(scales[i]), sb = v16_set1(scales[GROUP + i]);
    a->total[i] = a->total[i] * scales[i] + b->total[i] * scales[GROUP + i];
    for (int64_t d = 0; d < Dv; d += WR_LANES) {
      int n = part(Dv - d);
      float *at = a->acc + i * Dv + d;
      v16_store_n(at, v16_fma(v16_load_n(b->acc + i * Dv + d, n), sb, v16_mul(v16_load_n(at, n), sa)), n);
    }
  }
}

static void divide(const sums *a, int g, int64_t Dv) {
  for (int i = 0; i < g; i++)
    for (int64_t d = 0; d < Dv; d += WR_LANES) {
      float *at = a->acc + i * Dv + d;
      int n = part(Dv - d);
      v16_store_n(at, v16_div(v16_load_n(at, n), v16_set1(a->total[i])), n);
    }
}

/* How the heads of a row are cut into units of at most GROUP query heads with one key head. */
typedef struct cut {
  int64_t per_kv, units;
  int group;
} cut;

static target target_of(const wr_call *c, const cut *k, int64_t row, int64_t unit, int *g, float **y) {
  const wr_arg *q = &c->args[PAGED_Q], *kc = &c->args[PAGED_KCACHE];
  const wr_attention_params *p = c->params;
  int64_t kv = unit / k->per_kv, h = kv * k->group + unit % k->per_kv * GROUP, Dv = c->args[PAGED_VCACHE].ext[3];
  int64_t past = (int64_t)wr_arg_i32(&c->args[PAGED_POS], row) + 1;
  *g = (int)WR_MIN((kv + 1) * k->group - h, (int64_t)GROUP);
  *y = wr_arg_f32(&c->args[PAGED_Y], row) + h * Dv;
  return (target){.q = wr_arg_f32(q, row) + h * kc->ext[2],
                  .kv_head = kv,
                  .first = p->window && past > p->window ? past - p->window : 0,
                  .past = past,
                  .pages = wr_arg_row(&c->args[PAGED_TABLE], wr_arg_i32(&c->args[PAGED_SEQ], row)),
                  .Dqk = kc->ext[2],
                  .Dv = Dv,
                  .v_stride = Dv,
                  .scale = p->scale,
                  .softcap = p->softcap};
}

static int64_t first_split(const target *t) { return t->first / (P * WR_ATTN_SPLIT_PAGES); }

/* A whole unit by one thread; `spare` holds one split. */
static void attend_unit(const wr_call *c, const cut *k, int64_t row, int64_t unit, float *spare, bool half) {
  int g;
  float max[2][8], total[2][8], *y;
  target t = target_of(c, k, row, unit, &g, &y);
  sums all = {y, max[0], total[0]}, one = {spare, max[1], total[1]};
  int64_t n = n_splits(&t), split = first_split(&t);
  if (!n) {
    memset(y, 0, (size_t)(g * t.Dv) * sizeof *y);
    return;
  }
  attend_split(c, &t, split++, g, &all, half);
  for (; split < n; split++) {
    attend_split(c, &t, split, g, &one, half);
    merge(&all, &one, g, t.Dv);
  }
  divide(&all, g, t.Dv);
}

/* Where the sums of (row, unit, split) stand in scratch: at most GROUP heads of Dv, then maxima and totals. */
static sums slot_of(const wr_call *c, const cut *k, int64_t splits, int64_t row, int64_t unit, int64_t split) {
  const wr_arg *q = &c->args[PAGED_Q];
  int64_t Dv = c->args[PAGED_VCACHE].ext[3], heads = q->ext[1], kv = unit / k->per_kv;
  int64_t h = kv * k->group + unit % k->per_kv * GROUP;
  float *base = (float *)c->scratch + ((row * splits + split) * heads + h) * (Dv + 2);
  int64_t g = WR_MIN((kv + 1) * k->group - h, (int64_t)GROUP);
  return (sums){base, base + g * Dv, base + g * Dv + g};
}

/* Few rows: their splits are shared out, then merged. */
static void attend_shared(const wr_call *c, const wr_worker *w, const cut *k, int64_t rows, int64_t splits, bool half) {
  int64_t begin, end;
  float *y;
  int g;
  while (wr_take(w, 0, rows * k->units * splits, 1, &begin, &end))
    for (int64_t u = begin; u < end; u++) {
      int64_t split = u % splits, unit = u / splits % k->units, row = u / splits / k->units;
      target t = target_of(c, k, row, unit, &g, &y);
      sums out = slot_of(c, k, splits, row, unit, split);
      if (split >= first_split(&t) && split < n_splits(&t)) attend_split(c, &t, split, g, &out, half);
    }
  wr_barrier(w);
  while (wr_take(w, 1, rows * k->units, 1, &begin, &end))
    for (int64_t u = begin; u < end; u++) {
      target t = target_of(c, k, u / k->units, u % k->units, &g, &y);
      int64_t split = first_split(&t), n = n_splits(&t);
      if (!n) memset(y, 0, (size_t)(g * t.Dv) * sizeof *y);
      if (!n) continue;
      sums all = slot_of(c, k, splits, u / k->units, u % k->units, split++);
      for (; split < n; split++) {
        sums one = slot_of(c, k, splits, u / k->units, u % k->units, split);
        merge(&all, &one, g, t.Dv);
      }
      divide(&all, g, t.Dv);
      memcpy(y, all.acc, (size_t)(g * t.Dv) * sizeof *y);
    }
}

WR_INLINE void attention_paged(const wr_call *c, const wr_worker *w, const bool half) {
  const wr_arg *q = &c->args[PAGED_Q], *kc = &c->args[PAGED_KCACHE];
  int64_t rows = wr_live_rows(c, PAGED_Q), Nkv = kc->ext[1], Dv = c->args[PAGED_VCACHE].ext[3], past = 0, begin, end;
  int group = (int)(q->ext[1] / Nkv);
  cut k = {.per_kv = (group + GROUP - 1) / GROUP, .group = group};
  k.units = Nkv * k.per_kv;
  int64_t few = wr_attn_split_rows(q->ext[0], Nkv, w->n_threads);
  for (int64_t r = 0; r < rows && rows <= few; r++) past = WR_MAX(past, (int64_t)wr_arg_i32(&c->args[PAGED_POS], r) + 1);
  int64_t splits = (past + P * WR_ATTN_SPLIT_PAGES - 1) / (P * WR_ATTN_SPLIT_PAGES);
  if (rows <= few && splits > 1 && w->n_threads > 1) {
    attend_shared(c, w, &k, rows, splits, half);
    return;
  }
  int64_t booked =
      (c->args[PAGED_TABLE].ext[1] + WR_ATTN_SPLIT_PAGES - 1) / WR_ATTN_SPLIT_PAGES * few; /* the shared form's part */
  float *spare = (float *)c->scratch + (booked + w->tid) * q->ext[1] * (Dv + 2);
  while (wr_take(w, 0, rows * k.units, 1, &begin, &end))
    for (int64_t u = begin; u < end; u++) attend_unit(c, &k, u / k.units, u % k.units, spare, half);
}

WR_ROW_FN(WR_KERNEL(attention_paged_f32_cpu)) { attention_paged(c, w, false); }
WR_ROW_FN(WR_KERNEL(attention_paged_f16_cpu)) { attention_paged(c, w, true); }
