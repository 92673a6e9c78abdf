/* The definition of the attention family: see attention.h for the equations. Scores are computed again wherever they are
 * needed: no T x T. Each thread has a row of sums in scratch. */
#include <math.h>

#include "ops/attention/attention.h"
#include "ops/attention/attention_i.h"
#include "ops/ref_i.h"

WR_ROW_FN(attention_ref);
WR_ROW_FN(attention_bwd_ref);
WR_ROW_FN(kv_store_ref);
WR_ROW_FN(attention_paged_ref);

size_t attention_ref_scratch(const wr_call *c, int n_threads) {
  wr_call view;
  c = wr_attn_apart(c, &view);
  return sizeof(double) * (size_t)n_threads * (size_t)(c->args[ATTN_V].ext[2]);
}
size_t attention_bwd_ref_scratch(const wr_call *c, int n_threads) {
  wr_call view;
  c = wr_attn_bwd_apart(c, &view);
  return sizeof(double) * (size_t)n_threads * (size_t)(c->args[ATTN_BWD_Q].ext[2] + c->args[ATTN_BWD_V].ext[2]);
}
size_t attention_paged_ref_scratch(const wr_call *c, int n_threads) {
  return sizeof(double) * (size_t)n_threads * (size_t)(c->args[PAGED_VCACHE].ext[3]);
}

/* Elements [at_a, +n) of a row against [at_b, +n) of another. */
static double dot(const wr_arg *a, int64_t row_a, int64_t at_a, const wr_arg *b, int64_t row_b, int64_t at_b, int64_t n) {
  double sum = 0;
  for (int64_t d = 0; d < n; d++) sum += wr_get(a, row_a, at_a + d) * wr_get(b, row_b, at_b + d);
  return sum;
}

static double capped(const wr_attention_params *p, double s) {
  return p->softcap != 0 ? (double)p->softcap * tanh(s / (double)p->softcap) : s;
}

/* First and one past the last position of its sequence that row b0 + t attends to. */
static void allowed(const wr_attention_params *p, const wr_arg *table, int64_t b0, int64_t t, int64_t *first, int64_t *past) {
  *past = p->bidirectional ? p->T : t + 1;
  *first = wr_attn_first(p, table, b0, t);
}

/* ---- training form: rows of q, k, v are b*T + t */

static double score(const wr_attention_params *p, const wr_arg *q, const wr_arg *k, int64_t t, int64_t j, int64_t h,
                    int64_t kv) {
  return capped(p, (double)p->scale * dot(q, t, h * q->ext[2], k, j, kv * k->ext[2], q->ext[2]));
}

WR_ROW_FN(attention_ref) {
  wr_call view;
  c = wr_attn_apart(c, &view);
  const wr_attention_params *p = c->params;
  const wr_arg *q = &c->args[ATTN_Q], *k = &c->args[ATTN_K], *v = &c->args[ATTN_V];
  int64_t Nq = q->ext[1], group = Nq / k->ext[1], Dv = v->ext[2], begin, end;
  double *y = (double *)c->scratch + w->tid * Dv;
  while (wr_take(w, 0, p->B * p->T * Nq, 1, &begin, &end))
    for (int64_t u = begin; u < end; u++) {
      int64_t row = u / Nq, h = u % Nq, first, past, b0 = row / p->T * p->T;
      allowed(p, &c->args[ATTN_FIRST], b0, row - b0, &first, &past);
      double max = -INFINITY, sum = 0;
      for (int64_t j = first; j < past; j++) max = fmax(max, score(p, q, k, row, b0 + j, h, h / group));
      for (int64_t j = first; j < past; j++) sum += exp(score(p, q, k, row, b0 + j, h, h / group) - max);
      wr_ref_put(c, ATTN_LSE, row, h, max + log(sum));
      for (int64_t d = 0; d < Dv; d++) y[d] = 0;
      for (int64_t j = first; j < past; j++) {
        double prob = exp(score(p, q, k, row, b0 + j, h, h / group) - max) / sum;
        for (int64_t d = 0; d < Dv; d++) y[d] += prob * wr_get(v, b0 + j, h / group * Dv + d);
      }
      for (int64_t d = 0; d < Dv; d++) wr_ref_put(c, ATTN_Y, row, h * Dv + d, y[d]);
    }
}

/* p_tj and ds_tj of head h; rows of the whole batch */
static void backward_pair(const wr_call *c, int64_t t, int64_t j, int64_t h, double *prob, double *ds) {
  const wr_attention_params *p = c->params;
  const wr_arg *q = &c->args[ATTN_BWD_Q], *k = &c->args[ATTN_BWD_K], *v = &c->args[ATTN_BWD_V], *dy = &c->args[ATTN_BWD_DY];
  int64_t kv = h / (q->ext[1] / k->ext[1]), Dv = v->ext[2];
  double s = score(p, q, k, t, j, h, kv);
  *prob = exp(s - wr_get(&c->args[ATTN_BWD_LSE], t, h));
  *ds = *prob * (dot(dy, t, h * Dv, v, j, kv * Dv, Dv) - dot(dy, t, h * Dv, &c->args[ATTN_BWD_Y], t, h * Dv, Dv));
  if (p->softcap != 0) *ds *= 1 - s * s / (double)p->softcap / (double)p->softcap;
}

static bool attends(const wr_call *c, int64_t b0, int64_t t, int64_t j) {
  int64_t first, past;
  allowed(c->params, &c->args[ATTN_BWD_FIRST], b0, t, &first, &past);
  return j >= first && j < past;
}

WR_ROW_FN(attention_bwd_ref) {
  wr_call view;
  c = wr_attn_bwd_apart(c, &view);
  const wr_attention_params *p = c->params;
  const wr_arg *q = &c->args[ATTN_BWD_Q], *k = &c->args[ATTN_BWD_K], *dy = &c->args[ATTN_BWD_DY];
  int64_t Nq = q->ext[1], Nkv = k->ext[1], group = Nq / Nkv, Dqk = q->ext[2], Dv = dy->ext[2], begin, end;
  double prob, ds, *dk = (double *)c->scratch + w->tid * (Dqk + Dv), *dv = dk + Dqk; /* dk holds dq first */
  if (c->args[ATTN_BWD_DQ].data)
    while (wr_take(w, 0, p->B * p->T * Nq, 1, &begin, &end))
      for (int64_t u = begin; u < end; u++) {
        int64_t row = u / Nq, h = u % Nq, first, past, b0 = row / p->T * p->T;
        allowed(p, &c->args[ATTN_BWD_FIRST], b0, row - b0, &first, &past);
        for (int64_t d = 0; d < Dqk; d++) dk[d] = 0;
        for (int64_t j = first; j < past; j++) {
          backward_pair(c, row, b0 + j, h, &prob, &ds);
          for (int64_t d = 0; d < Dqk; d++) dk[d] += ds * wr_get(k, b0 + j, h / group * Dqk + d);
        }
        for (int64_t d = 0; d < Dqk; d++) wr_ref_put(c, ATTN_BWD_DQ, row, h * Dqk + d, (double)p->scale * dk[d]);
      }
  while (wr_take(w, 1, p->B * p->T * Nkv, 1, &begin, &end))
    for (int64_t u = begin; u < end; u++) {
      int64_t row = u / Nkv, kv = u % Nkv, b0 = row / p->T * p->T;
      for (int64_t d = 0; d < Dqk + Dv; d++) dk[d] = 0;
      for (int64_t h = kv * group; h < (kv + 1) * group; h++)
        for (int64_t t = 0; t < p->T; t++) {
          if (!attends(c, b0, t, row - b0)) continue;
          backward_pair(c, b0 + t, row, h, &prob, &ds);
          for (int64_t d = 0; d < Dqk; d++) dk[d] += ds * wr_get(q, b0 + t, h * Dqk + d);
          for (int64_t d = 0; d < Dv; d++) dv[d] += prob * wr_get(dy, b0 + t, h * Dv + d);
        }
      for (int64_t d = 0; d < Dqk; d++) wr_ref_put(c, ATTN_BWD_DK, row, kv * Dqk + d, (double)p->scale * dk[d]);
      for (int64_t d = 0; d < Dv; d++) wr_ref_put(c, ATTN_BWD_DV, row, kv * Dv + d, dv[d]);
    }
}

/* ---- paged form */

/* The place of (head, position in the page, d) within a page's row. */
static int64_t key_at(const wr_arg *kc, int64_t head, int64_t place, int64_t d) {
  return (head * kc->ext[2] + d) * kc->ext[3] + place;
}
static int64_t value_at(const wr_arg *vc, int64_t head, int64_t place, int64_t d) {
  return (head * vc->ext[2] + place) * vc->ext[3] + d;
}

/* Elements of one row and head, into their places of a cache. */
static void store(const wr_arg *x, int64_t r, const wr_arg *cache, bool keys, int64_t slot, int64_t h) {
  const wr_dtype_info *t = &wr_dtypes[cache->dtype];
  const int64_t D = x->ext[2], P = cache->ext[keys ? 3 : 2], page = slot / P, place = slot % P;
  for (int64_t d = 0; d < D; d += t->block) {
    float block[32];
    uint8_t code[sizeof block];
    if (t->kind == WR_FLOAT) {
      wr_set(cache, page, keys ? key_at(cache, h, place, d) : value_at(cache, h, place, d), wr_get(x, r, h * D + d));
      continue;
    }
    for (int i = 0; i < t->block; i++) block[i] = (float)wr_get(x, r, h * D + d + i);
    t->from_float(block, code, t->block);
    wr_kv_put(cache, keys, page, h, place, d, t->block, code);
  }
}

/* A thread has whole heads: places of a page share bytes. */
WR_ROW_FN(kv_store_ref) {
  const wr_arg *kc = &c->args[STORE_KCACHE];
  int64_t rows = wr_live_rows(c, STORE_K), begin, end;
  while (wr_take(w, 0, kc->ext[1], 1, &begin, &end))
    for (int64_t h = begin; h < end; h++)
      for (int64_t r = 0; r < rows; r++) {
        const int64_t slot = wr_ref_int(c, STORE_SLOT, r);
        if (slot < 0) continue;
        store(&c->args[STORE_K], r, kc, true, slot, h);
        store(&c->args[STORE_V], r, &c->args[STORE_VCACHE], false, slot, h);
      }
}

/* The score of row r, head h, with position j of its sequence. */
static double paged_score(const wr_call *c, int64_t r, int64_t h, int64_t j) {
  const wr_arg *q = &c->args[PAGED_Q], *kc = &c->args[PAGED_KCACHE], *table = &c->args[PAGED_TABLE];
  const wr_attention_params *p = c->params;
  int64_t P = kc->ext[3], kv = h / (q->ext[1] / kc->ext[1]);
  int64_t page = (int64_t)wr_get(table, wr_ref_int(c, PAGED_SEQ, r), j / P);
  double sum = 0;
  for (int64_t d = 0; d < kc->ext[2]; d++) sum += wr_get(q, r, h * kc->ext[2] + d) * wr_get(kc, page, key_at(kc, kv, j % P, d));
  return capped(p, (double)p->scale * sum);
}

WR_ROW_FN(attention_paged_ref) {
  const wr_attention_params *p = c->params;
  const wr_arg *q = &c->args[PAGED_Q], *kc = &c->args[PAGED_KCACHE], *vc = &c->args[PAGED_VCACHE],
               *table = &c->args[PAGED_TABLE];
  int64_t Nq = q->ext[1], group = Nq / kc->ext[1], P = kc->ext[3], Dv = vc->ext[3], begin, end;
  double *y = (double *)c->scratch + w->tid * Dv;
  while (wr_take(w, 0, wr_live_rows(c, PAGED_Q) * Nq, 1, &begin, &end))
    for (int64_t u = begin; u < end; u++) {
      int64_t r = u / Nq, h = u % Nq, seq = wr_ref_int(c, PAGED_SEQ, r), past = wr_ref_int(c, PAGED_POS, r) + 1;
      int64_t first = p->window && past > p->window ? past - p->window : 0;
      double max = -INFINITY, sum = 0;
      for (int64_t j = first; j < past; j++) max = fmax(max, paged_score(c, r, h, j));
      for (int64_t j = first; j < past; j++) sum += exp(paged_score(c, r, h, j) - max);
      for (int64_t d = 0; d < Dv; d++) y[d] = 0;
      for (int64_t j = first; j < past; j++) {
        double prob = exp(paged_score(c, r, h, j) - max) / sum;
        int64_t page = (int64_t)wr_get(table, seq, j / P);
        for (int64_t d = 0; d < Dv; d++) y[d] += prob * wr_get(vc, page, value_at(vc, h / group, j % P, d));
      }
      for (int64_t d = 0; d < Dv; d++) wr_ref_put(c, PAGED_Y, r, h * Dv + d, y[d]);
    }
}
