/* Attention: shape, gradient and cost rules, builders, test cases. Equations and the form of the cache: attention.h. */
#include "ops/attention/attention.h"

#include <math.h>

#include "ops/attention/attention_i.h"
#include "ops/cases.h"
#include "ops/rule_i.h"

static const char *refuse_paged(const wr_call *c) {
  if (c->args[PAGED_KCACHE].ext[3] != WR_KV_PAGE) return "takes pages of 32 positions only";
  return c->args[PAGED_KCACHE].dtype != c->args[PAGED_VCACHE].dtype ? "takes keys and values of one type only" : NULL;
}

static const char *refuse_store(const wr_call *c) {
  return c->args[STORE_KCACHE].dtype != c->args[STORE_VCACHE].dtype ? "takes keys and values of one type only" : NULL;
}

static size_t paged_scratch(const wr_call *c, int n_threads) {
  wr_call view = *c;
  view.scratch = NULL;
  return wr_paged_room_of(&view, n_threads, 0).bytes;
}

static size_t paged_dev_scratch(const wr_call *c, int n_threads) {
  (void)n_threads;
  return (size_t)(c->args[PAGED_Q].ext[0] * c->args[PAGED_Q].ext[1] * wr_paged_dev_splits(c) * (c->args[PAGED_VCACHE].ext[3] + 2)) *
         sizeof(float);
}

static size_t room_scratch(const wr_arg *q, const wr_arg *k, const wr_arg *v, int n_threads) {
  return (size_t)n_threads * wr_attn_room_of(NULL, 0, q->ext[2], v->ext[2], q->ext[1] / k->ext[1]).bytes;
}
static size_t train_scratch(const wr_call *c, int n_threads) {
  wr_call view;
  c = wr_attn_apart(c, &view);
  return room_scratch(&c->args[ATTN_Q], &c->args[ATTN_K], &c->args[ATTN_V], n_threads);
}
static size_t bwd_scratch(const wr_call *c, int n_threads) {
  wr_call view;
  c = wr_attn_bwd_apart(c, &view);
  return room_scratch(&c->args[ATTN_BWD_Q], &c->args[ATTN_BWD_K], &c->args[ATTN_BWD_V], n_threads);
}

/* A float for each row and query head. */
static size_t bwd_dev_scratch(const wr_call *c, int n_threads) {
  (void)n_threads;
  const wr_arg *lse = &c->args[ATTN_BWD_LSE];
  return (size_t)(lse->ext[0] * lse->ext[1]) * sizeof(float);
}

#define WR_ROWS_FILE "ops/attention/attention.def"
#include "ops/rows_i.h"

/* ------------------------------------------------------------------------------------------------------------------ rules */

static weir_status check_heads(const wr_vtype *q, int64_t Nkv, int64_t Dqk) {
  WR_TRY(wr_rule_ext("q", q, 2, Dqk, "the width of a key"));
  if (q->ext[1] % Nkv)
    return wr_fail(WEIR_EUSAGE, "%lld query heads cannot be shared out among %lld key heads", (long long)q->ext[1],
                   (long long)Nkv);
  return WEIR_OK;
}

static weir_status check_params(const wr_attention_params *p) {
  if (!(p->scale > 0) || p->window < 0 || !(p->softcap >= 0))
    return wr_fail(WEIR_EUSAGE, "scale %g must be above 0, window %d and softcap %g not below", (double)p->scale, p->window,
                   (double)p->softcap);
  return WEIR_OK;
}

/* The types of queries, keys and values where all three are parts of q. */
static weir_status split_types(const wr_attention_params *p, const wr_vtype *all, wr_vtype t[3]) {
  WR_TRY(wr_rule_float("q", all));
  WR_TRY(wr_rule_rank("q", all, 3));
  if (p->kv_heads < 1 || all->ext[1] <= 2 * p->kv_heads)
    return wr_fail(WEIR_EUSAGE, "q has %lld heads, which do not hold keys and values of %lld heads each",
                   (long long)all->ext[1], (long long)p->kv_heads);
  for (int i = 0; i < 3; i++) {
    t[i] = *all;
    t[i].ext[1] = i ? p->kv_heads : all->ext[1] - 2 * p->kv_heads;
  }
  return WEIR_OK;
}

/* q, k, v and first of the training form; the types of y and lse */
static weir_status check_train(const wr_attention_params *p, const wr_vtype *q, const wr_vtype *k, const wr_vtype *v,
                               const wr_vtype *first, wr_vtype *y, wr_vtype *lse) {
  wr_vtype parts[3];
  if (!k->rank != !v->rank) return wr_fail(WEIR_EUSAGE, "of k and v only one is there");
  if (!k->rank) {
    WR_TRY(split_types(p, q, parts));
    q = &parts[0], k = &parts[1], v = &parts[2];
  }
  const struct {
    const char *name;
    const wr_vtype *t;
  } in[] = {{"q", q}, {"k", k}, {"v", v}};
  WR_TRY(check_params(p));
  if (first->rank) {
    WR_TRY(wr_rule_table("first", first, p->B * p->T, "B times T"));
    if (p->bidirectional) return wr_fail(WEIR_EUSAGE, "first cannot be given with bidirectional");
  }
  for (int i = 0; i < 3; i++) {
    WR_TRY(wr_rule_float(in[i].name, in[i].t));
    WR_TRY(wr_rule_rank(in[i].name, in[i].t, 3));
    WR_TRY(wr_rule_ext(in[i].name, in[i].t, 0, p->B * p->T, "B times T"));
  }
  WR_TRY(check_heads(q, k->ext[1], k->ext[2]));
  WR_TRY(wr_rule_ext("v", v, 1, k->ext[1], "the number of key heads"));
  *y = *q;
  y->ext[2] = v->ext[2];
  *lse = wr_rule_type(wr_rule_stat_dtype(q), q->live, q->ext[0], q->ext[1], 0, 0);
  return WEIR_OK;
}

static weir_status attention_shape(const void *params, wr_vtype *t) {
  return check_train(params, &t[ATTN_Q], &t[ATTN_K], &t[ATTN_V], &t[ATTN_FIRST], &t[ATTN_Y], &t[ATTN_LSE]);
}

static weir_status attention_bwd_shape(const void *params, wr_vtype *t) {
  wr_vtype y, lse;
  WR_TRY(check_train(params, &t[ATTN_BWD_Q], &t[ATTN_BWD_K], &t[ATTN_BWD_V], &t[ATTN_BWD_FIRST], &y, &lse));
  WR_TRY(wr_rule_float("dy", &t[ATTN_BWD_DY]));
  WR_TRY(wr_rule_like("dy", &t[ATTN_BWD_DY], "what q and v give", &y));
  WR_TRY(wr_rule_like("y", &t[ATTN_BWD_Y], "what q and v give", &y));
  WR_TRY(wr_rule_like("lse", &t[ATTN_BWD_LSE], "the heads of q", &lse));
  t[ATTN_BWD_DQ] = t[ATTN_BWD_Q];
  t[ATTN_BWD_DK] = t[ATTN_BWD_K];
  t[ATTN_BWD_DV] = t[ATTN_BWD_V];
  return WEIR_OK;
}

static weir_status attention_grad(wr_grad *g, const wr_instr *i) {
  bool want[3];
  int args[WR_MAX_ARGS] = {wr_grad_of(g, i->args[ATTN_Y]),
                           i->args[ATTN_Q],
                           i->args[ATTN_K],
                           i->args[ATTN_V],
                           i->args[ATTN_FIRST],
                           i->args[ATTN_Y],
                           i->args[ATTN_LSE]};
  for (int k = 0; k < 3; k++) {
    want[k] = wr_grad_wanted(g, i->args[ATTN_Q + k]);
    args[ATTN_BWD_DQ + k] = want[k] ? WR_NEW : WR_NONE;
  }
  WR_TRY(wr_emit(wr_grad_program(g), &wr_op_attention_bwd, i->params, args));
  for (int k = 0; k < 3; k++)
    if (want[k]) wr_grad_add(g, i->args[ATTN_Q + k], args[ATTN_BWD_DQ + k]);
  return WEIR_OK;
}

/* Scores that are computed in one sequence of the training form. */
static double pairs(const wr_attention_params *p) {
  double T = (double)p->T, W = p->window ? WR_MIN((double)p->window, T) : T;
  if (p->bidirectional) return T * T;
  return W * (W + 1) / 2 + (T - W) * W;
}

/* What the fast rows of the training form pack: rows become panels always, as they lie only where a head is no whole ones. */
static double packed_width(int64_t turned, int64_t plain) {
  return (double)turned + (double)(plain % WR_PACK_ROWS ? plain : 0);
}
static bool packs(const wr_arg *k) { return k->dtype == WR_F32; }

/* Keys up to the end of each block of rows, or rows from each block of keys on. */
static double packed_rows(const wr_attention_params *p, int64_t block, bool of_keys) {
  double n = 0;
  for (int64_t at = 0; at < p->T; at += block)
    n += (double)(p->bidirectional ? p->T : of_keys ? p->T - at : WR_MIN(at + block, p->T));
  return n;
}

static void attention_cost(const wr_call *c, wr_cost *out) {
  const wr_attention_params *p = c->params;
  wr_call view;
  wr_cost_stream(&wr_op_attention, c, out);
  c = wr_attn_apart(c, &view);
  out->flop =
      2 * (double)p->B * pairs(p) * (double)c->args[ATTN_Q].ext[1] * (double)(c->args[ATTN_Q].ext[2] + c->args[ATTN_V].ext[2]);
  const wr_arg *k = &c->args[ATTN_K];
  if (packs(k))
    out->copy_bytes = sizeof(float) * (double)(p->B * k->ext[1]) * packed_rows(p, WR_ATTN_ROWS, false) *
                      packed_width(k->ext[2], c->args[ATTN_V].ext[2]);
}

static void attention_bwd_cost(const wr_call *c, wr_cost *out) {
  const wr_attention_params *p = c->params;
  wr_call view;
  wr_cost_stream(&wr_op_attention_bwd, c, out);
  c = wr_attn_bwd_apart(c, &view);
  out->flop = 2 * (double)p->B * pairs(p) * (double)c->args[ATTN_BWD_Q].ext[1] *
              (double)(3 * c->args[ATTN_BWD_Q].ext[2] + 2 * c->args[ATTN_BWD_V].ext[2]);
  const wr_arg *q = &c->args[ATTN_BWD_Q], *k = &c->args[ATTN_BWD_K];
  const int64_t Dqk = k->ext[2], Dv = c->args[ATTN_BWD_V].ext[2];
  if (packs(k)) /* k and v turned, k as it lies; q and dy as they lie, for each block of keys again */
    out->copy_bytes = sizeof(float) * (double)p->B *
                      ((double)(k->ext[1] * p->T) * packed_width(Dqk + Dv, Dqk) +
                       (double)q->ext[1] * packed_rows(p, WR_ATTN_KEYS, true) * (packed_width(0, Dqk) + packed_width(0, Dv)));
}

static void attention_print(const void *params, wr_str *s) {
  const wr_attention_params *p = params;
  wr_str_printf(s, "scale=%g", (double)p->scale);
  if (p->B) wr_str_printf(s, " B=%lld T=%lld", (long long)p->B, (long long)p->T);
  if (p->kv_heads) wr_str_printf(s, " kv_heads=%lld", (long long)p->kv_heads);
  if (p->bidirectional) wr_str_puts(s, " bidirectional");
  if (p->window) wr_str_printf(s, " window=%d", p->window);
  if (p->softcap != 0) wr_str_printf(s, " softcap=%g", (double)p->softcap);
}

/* Floats, or Q8_0 and Q4_0 where a head's elements of one position are whole blocks. */
static weir_status check_pages(const char *name, const wr_vtype *t, int width, wr_layout layout) {
  WR_TRY(wr_rule_rank(name, t, 4));
  if (t->dtype != WR_Q8_0 && t->dtype != WR_Q4_0) return wr_rule_float(name, t);
  if (t->layout != layout)
    return wr_fail(WEIR_EUSAGE, "%s is %s in layout %s, not %s", name, wr_dtypes[t->dtype].name,
                   wr_layout_name((wr_layout)t->layout), wr_layout_name(layout));
  if (t->ext[width] % wr_dtypes[t->dtype].block)
    return wr_fail(WEIR_EUSAGE, "%s cannot be %s: heads are %lld wide, which is no multiple of its blocks of %d", name,
                   wr_dtypes[t->dtype].name, (long long)t->ext[width], wr_dtypes[t->dtype].block);
  return WEIR_OK;
}

static weir_status check_cache(const wr_vtype *kc, const wr_vtype *vc) {
  WR_TRY(check_pages("kcache", kc, 2, WR_KEYS32));
  WR_TRY(check_pages("vcache", vc, 3, WR_PLAIN));
  if (kc->layout == WR_KEYS32) WR_TRY(wr_rule_ext("kcache", kc, 3, WR_KV_PAGE, "a page in layout keys32"));
  WR_TRY(wr_rule_ext("vcache", vc, 0, kc->ext[0], "the pages of kcache"));
  WR_TRY(wr_rule_ext("vcache", vc, 1, kc->ext[1], "the heads of kcache"));
  return wr_rule_ext("vcache", vc, 2, kc->ext[3], "the positions in a page of kcache");
}

static weir_status kv_store_shape(const void *params, wr_vtype *t) {
  (void)params;
  const wr_vtype *k = &t[STORE_K], *v = &t[STORE_V], *kc = &t[STORE_KCACHE], *vc = &t[STORE_VCACHE];
  WR_TRY(check_cache(kc, vc));
  WR_TRY(wr_rule_float("k", k));
  WR_TRY(wr_rule_float("v", v));
  WR_TRY(wr_rule_rank("k", k, 3));
  WR_TRY(wr_rule_rank("v", v, 3));
  WR_TRY(wr_rule_ext("k", k, 1, kc->ext[1], "the heads of kcache"));
  WR_TRY(wr_rule_ext("k", k, 2, kc->ext[2], "the width of kcache"));
  WR_TRY(wr_rule_ext("v", v, 0, k->ext[0], "the rows of k"));
  WR_TRY(wr_rule_ext("v", v, 1, vc->ext[1], "the heads of vcache"));
  WR_TRY(wr_rule_ext("v", v, 2, vc->ext[3], "the width of vcache"));
  return wr_rule_table("slot", &t[STORE_SLOT], k->ext[0], "the rows of k");
}

static double elem_bytes(const wr_arg *cache) {
  return (double)wr_dtypes[cache->dtype].block_bytes / wr_dtypes[cache->dtype].block;
}

static void kv_store_cost(const wr_call *c, wr_cost *out) {
  const double bytes = wr_cost_elems(c, STORE_K) * elem_bytes(&c->args[STORE_KCACHE]) +
                       wr_cost_elems(c, STORE_V) * elem_bytes(&c->args[STORE_VCACHE]);
  *out =
      (wr_cost){.read_bytes = wr_cost_bytes(c, STORE_K) + wr_cost_bytes(c, STORE_V), .write_bytes = bytes, .kv_bytes = bytes};
  out->copy_bytes = out->read_bytes + out->write_bytes;
}

static weir_status attention_paged_shape(const void *params, wr_vtype *t) {
  const wr_attention_params *p = params;
  const wr_vtype *q = &t[PAGED_Q], *kc = &t[PAGED_KCACHE], *vc = &t[PAGED_VCACHE], *table = &t[PAGED_TABLE];
  WR_TRY(check_params(p));
  if (p->bidirectional)
    return wr_fail(WEIR_EUSAGE, "positions that are not in the cache yet cannot be attended to (bidirectional)");
  WR_TRY(check_cache(kc, vc));
  WR_TRY(wr_rule_float("q", q));
  WR_TRY(wr_rule_rank("q", q, 3));
  WR_TRY(check_heads(q, kc->ext[1], kc->ext[2]));
  WR_TRY(wr_rule_table("seq", &t[PAGED_SEQ], q->ext[0], "the rows of q"));
  WR_TRY(wr_rule_table("pos", &t[PAGED_POS], q->ext[0], "the rows of q"));
  WR_TRY(wr_rule_rank("page_table", table, 2));
  if (table->dtype != WR_I32) return wr_fail(WEIR_EUSAGE, "page_table is %s, not i32", wr_dtypes[table->dtype].name);
  t[PAGED_Y] = *q;
  t[PAGED_Y].ext[2] = vc->ext[3];
  return WEIR_OK;
}

/* How many positions the rows attend to stands in a register, before a window cuts them; zero when the plan asks for the whole bucket:
 * then every page is. */
static void attention_paged_cost(const wr_call *c, wr_cost *out) {
  const wr_arg *q = &c->args[PAGED_Q], *kc = &c->args[PAGED_KCACHE], *vc = &c->args[PAGED_VCACHE];
  double tok = (double)c->regs->kv_tok;
  const double rows = (double)wr_live_rows(c, PAGED_Q), window = ((const wr_attention_params *)c->params)->window;
  if (tok <= 0) tok = rows * (double)(c->args[PAGED_TABLE].ext[1] * kc->ext[3]);
  if (window > 0) tok = WR_MIN(tok, rows * window);
  out->kv_bytes = tok * (double)kc->ext[1] * ((double)kc->ext[2] * elem_bytes(kc) + (double)vc->ext[3] * elem_bytes(vc));
  out->read_bytes = wr_cost_bytes(c, PAGED_Q) + out->kv_bytes;
  out->write_bytes = wr_cost_bytes(c, PAGED_Y);
  out->flop = 2 * tok * (double)q->ext[1] * (double)(kc->ext[2] + vc->ext[3]);
}

/* --------------------------------------------------------------------------------------------------------------- builders */

static wr_attention_params with_defaults(const wr_program *p, int q, const wr_attention_params *params) {
  wr_attention_params r = *params;
  if (r.scale == 0) r.scale = 1 / sqrtf((float)wr_type(p, q)->ext[2]);
  return r;
}

int wr_attention(wr_program *p, int q, int k, int v, int first, const wr_attention_params *params) {
  wr_attention_params full = with_defaults(p, q, params);
  int args[WR_MAX_ARGS] = {q, k, v, first, WR_NEW, WR_NEW};
  return wr_emit(p, &wr_op_attention, &full, args) == WEIR_OK ? args[ATTN_Y] : WR_NONE;
}

void wr_kv_store(wr_program *p, int k, int v, int kcache, int vcache, int slot) {
  int args[WR_MAX_ARGS] = {k, v, kcache, vcache, slot};
  (void)wr_emit(p, &wr_op_kv_store, NULL, args); /* a failure is kept in the program */
}

int wr_attention_paged(wr_program *p, int q, int kcache, int vcache, int seq, int pos, int page_table,
                       const wr_attention_params *params) {
  wr_attention_params full = with_defaults(p, q, params);
  int args[WR_MAX_ARGS] = {q, kcache, vcache, seq, pos, page_table, WR_NEW};
  return wr_emit(p, &wr_op_attention_paged, &full, args) == WEIR_OK ? args[PAGED_Y] : WR_NONE;
}

/* ------------------------------------------------------------------------------------------------------------------ cases */

static wr_attention_params case_params(wr_case *c) {
  return (wr_attention_params){.window = (int)wr_case_int(c, "window", 0),
                               .softcap = (float)wr_case_float(c, "softcap", 0),
                               .bidirectional = wr_case_int(c, "bidirectional", 0)};
}

typedef struct case_shape {
  int64_t Nq, Nkv, Dqk, Dv;
  int dtype;
} case_shape;
static case_shape case_heads(wr_case *c) {
  int64_t dqk = wr_case_int(c, "dqk", 16);
  return (case_shape){.Nq = wr_case_int(c, "nq", 2),
                      .Nkv = wr_case_int(c, "nkv", 1),
                      .Dqk = dqk,
                      .Dv = wr_case_int(c, "dv", dqk),
                      .dtype = wr_case_dtype(c, "dtype", WR_F32)};
}

/* Documents of one to seven positions, one after another; now and then no position of the sequence. */
static void fill_first(wr_case *c, const wr_arg *a, wr_rng *rng) {
  const int64_t T = wr_case_int(c, "t", 5);
  int64_t first = 0;
  for (int64_t r = 0; r < a->ext[0]; r++) {
    if (r % T == 0)
      first = 0;
    else if (wr_rng_uniform(rng) < 0.25)
      first = r % T;
    wr_set(a, r, 0, (double)(first ? first : r % 3 ? 0 : -1));
  }
}
static int case_first(wr_case *c, wr_program *p, int64_t R) {
  if (!wr_case_int(c, "first", 0)) return WR_NONE;
  return wr_case_input(c, p, WR_INPUT, "first", wr_rule_type(WR_I32, 0, R, 0, 0, 0), wr_fill_custom(fill_first));
}

/* q, k, v, or with fused=1 all of them in q: their values */
static void case_qkv(wr_case *c, wr_program *p, const case_shape *s, int64_t R, int v[3]) {
  const bool fused = wr_case_int(c, "fused", 0);
  const int64_t Nq = fused ? s->Nq + 2 * s->Nkv : s->Nq;
  v[0] = wr_case_input(c, p, WR_INPUT, "q", wr_rule_type(s->dtype, 0, R, Nq, s->Dqk, 0), wr_fill_normal(0, 1));
  v[1] = v[2] = WR_NONE;
  if (fused) return;
  v[1] = wr_case_input(c, p, WR_INPUT, "k", wr_rule_type(s->dtype, 0, R, s->Nkv, s->Dqk, 0), wr_fill_normal(0, 1));
  v[2] = wr_case_input(c, p, WR_INPUT, "v", wr_rule_type(s->dtype, 0, R, s->Nkv, s->Dv, 0), wr_fill_normal(0, 1));
}

/* b t nq nkv dqk dv [window softcap bidirectional dtype first fused] */
static weir_status attention_case(wr_case *c, wr_program *p) {
  wr_attention_params params = case_params(c);
  params.B = wr_case_int(c, "b", 2), params.T = wr_case_int(c, "t", 5);
  case_shape s = case_heads(c);
  int64_t R = params.B * params.T;
  int in[3];
  params.kv_heads = s.Nkv;
  case_qkv(c, p, &s, R, in);
  wr_attention(p, in[0], in[1], in[2], case_first(c, p, R), &params);
  return WEIR_OK;
}

/* y and lse are not those of q, k, v here: the rule is linear in what they bring, and finite differences test the whole. lse
 * is large, so that no e^{s - lse} is. */
static weir_status attention_bwd_case(wr_case *c, wr_program *p) {
  wr_attention_params params = case_params(c);
  params.B = wr_case_int(c, "b", 2), params.T = wr_case_int(c, "t", 5);
  case_shape s = case_heads(c);
  int64_t R = params.B * params.T;
  params.scale = 1 / sqrtf((float)s.Dqk);
  params.kv_heads = s.Nkv;
  wr_vtype y = wr_rule_type(s.dtype, 0, R, s.Nq, s.Dv, 0);
  int args[WR_MAX_ARGS];
  args[ATTN_BWD_DY] = wr_case_input(c, p, WR_INPUT, "dy", y, wr_fill_normal(0, 1));
  case_qkv(c, p, &s, R, args + ATTN_BWD_Q);
  args[ATTN_BWD_FIRST] = case_first(c, p, R);
  args[ATTN_BWD_Y] = wr_case_input(c, p, WR_INPUT, "y", y, wr_fill_normal(0, 0.5));
  wr_vtype lse = wr_rule_type(wr_rule_stat_dtype(&y), 0, R, s.Nq, 0, 0);
  args[ATTN_BWD_LSE] = wr_case_input(c, p, WR_INPUT, "lse", lse, wr_fill_uniform(2, 3));
  for (int i = 0; i < 3; i++) args[ATTN_BWD_DQ + i] = args[ATTN_BWD_Q + i] >= 0 ? WR_NEW : WR_NONE;
  return wr_emit(p, &wr_op_attention_bwd, &params, args);
}

/* Rows, sequences and positions of the paged cases: row r belongs to sequence r mod S, of a prompt to r S / rows. Every sequence has n
 * pages. */
static int64_t case_seq(wr_case *c, int64_t row) {
  const int64_t S = wr_case_int(c, "seqs", 2);
  return wr_case_int(c, "prompt", 0) ? row * S / wr_case_int(c, "rows", 3) : row % S;
}
static int64_t case_pos(wr_case *c, int64_t row) {
  int64_t ctx = wr_case_int(c, "ctx", 40);
  if (wr_case_int(c, "full", 0)) return ctx - 1;
  if (wr_case_int(c, "prompt", 0)) return WR_MAX(ctx - wr_case_int(c, "rows", 3) + row, (int64_t)-1);
  return row == 0 ? ctx - 1 : (row * 37 + 5) % ctx;
}
static int64_t case_pages(wr_case *c, int64_t P) { return (wr_case_int(c, "ctx", 40) + P - 1) / P + 1; }
/* Pages of a sequence stand backwards and interleaved with those of the others. */
static int64_t case_page(int64_t seq, int64_t i, int64_t S, int64_t n) { return n * S - 1 - (i * S + seq); }

static void fill_seq(wr_case *c, const wr_arg *a, wr_rng *rng) {
  (void)rng;
  for (int64_t r = 0; r < a->ext[0]; r++) wr_set(a, r, 0, (double)case_seq(c, r));
}
static void fill_pos(wr_case *c, const wr_arg *a, wr_rng *rng) {
  (void)rng;
  for (int64_t r = 0; r < a->ext[0]; r++) wr_set(a, r, 0, (double)case_pos(c, r));
}
static void fill_table(wr_case *c, const wr_arg *a, wr_rng *rng) {
  (void)c, (void)rng;
  for (int64_t s = 0; s < a->ext[0]; s++)
    for (int64_t i = 0; i < a->ext[1]; i++) wr_set(a, s, i, (double)case_page(s, i, a->ext[0], a->ext[1]));
}

/* Random numbers at one place of a page, or NaN: a scale's for quantised types. */
static void fill_place(const wr_arg *a, bool keys, int64_t page, int64_t place, bool there, wr_rng *rng) {
  const wr_dtype_info *t = &wr_dtypes[a->dtype];
  const int64_t D = a->ext[keys ? 2 : 3], P = a->ext[keys ? 3 : 2];
  for (int64_t h = 0; h < a->ext[1]; h++)
    for (int64_t d = 0; d < D; d += t->block) {
      float x[32];
      uint8_t code[sizeof x];
      for (int i = 0; i < t->block; i++) x[i] = there ? (float)wr_rng_normal(rng) : NAN;
      if (t->kind == WR_FLOAT) {
        wr_set(a, page, keys ? (h * D + d) * P + place : (h * P + place) * D + d, (double)x[0]);
        continue;
      }
      t->from_float(x, code, t->block);
      if (!there) memset(code, 0xff, 2);
      wr_kv_put(a, keys, page, h, place, d, t->block, code);
    }
}

/* Random numbers where a row may look, NaN in the places after a sequence's last position. */
static void fill_cache(wr_case *c, const wr_arg *a, wr_rng *rng, bool keys) {
  int64_t S = wr_case_int(c, "seqs", 2), P = a->ext[keys ? 3 : 2], n = a->ext[0] / S,
          rows = WR_MIN(wr_case_int(c, "rows", 3), c->regs.live[WR_LIVE_ROWS]);
  for (int64_t s = 0; s < S; s++) {
    int64_t last = -1;
    for (int64_t r = 0; r < rows; r++)
      if (case_seq(c, r) == s) last = WR_MAX(last, case_pos(c, r));
    for (int64_t at = 0; at < n * P; at++) fill_place(a, keys, case_page(s, at / P, S, n), at % P, at <= last, rng);
  }
}
static void fill_kcache(wr_case *c, const wr_arg *a, wr_rng *rng) { fill_cache(c, a, rng, true); }
static void fill_vcache(wr_case *c, const wr_arg *a, wr_rng *rng) { fill_cache(c, a, rng, false); }

static int cache_input(wr_case *c, wr_program *p, bool keys, int64_t pages, int64_t e1, int64_t e2, int64_t e3,
                       wr_fill_fn fill) {
  const int type = wr_case_dtype(c, "cache", WR_F32);
  wr_vtype t = wr_rule_type(type, 0, pages, e1, e2, e3);
  if (keys) t.layout = (uint8_t)wr_keys_layout((wr_dtype)type);
  return wr_case_input(c, p, WR_STATE, keys ? "kcache" : "vcache", t, wr_fill_custom(fill));
}

/* rows seqs ctx nq nkv dqk dv [cache page window softcap full=1: every row at the end of ctx; prompt=1: the last of ctx] */
static weir_status attention_paged_case(wr_case *c, wr_program *p) {
  wr_attention_params params = case_params(c);
  case_shape s = case_heads(c);
  int64_t R = wr_case_int(c, "rows", 3), S = wr_case_int(c, "seqs", 2), P = wr_case_int(c, "page", WR_KV_PAGE),
          n = case_pages(c, P);
  for (int64_t r = 0; r < WR_MIN(R, c->regs.live[WR_LIVE_ROWS]); r++) c->regs.kv_tok += case_pos(c, r) + 1;
  int q = wr_case_input(c, p, WR_INPUT, "q", wr_rule_type(s.dtype, WR_LIVE_ROWS, R, s.Nq, s.Dqk, 0), wr_fill_normal(0, 1));
  int kc = cache_input(c, p, true, n * S, s.Nkv, s.Dqk, P, fill_kcache);
  int vc = cache_input(c, p, false, n * S, s.Nkv, P, s.Dv, fill_vcache);
  int seq = wr_case_input(c, p, WR_INPUT, "seq", wr_rule_type(WR_I32, WR_LIVE_ROWS, R, 0, 0, 0), wr_fill_custom(fill_seq));
  int pos = wr_case_input(c, p, WR_INPUT, "pos", wr_rule_type(WR_I32, WR_LIVE_ROWS, R, 0, 0, 0), wr_fill_custom(fill_pos));
  int table = wr_case_input(c, p, WR_INPUT, "page_table", wr_rule_type(WR_I32, 0, S, n, 0, 0), wr_fill_custom(fill_table));
  wr_attention_paged(p, q, kc, vc, seq, pos, table, &params);
  return WEIR_OK;
}

/* Distinct slots, every fifth row not stored. */
static void fill_slot(wr_case *c, const wr_arg *a, wr_rng *rng) {
  (void)rng;
  int64_t slots = wr_case_int(c, "pages", 3) * wr_case_int(c, "page", WR_KV_PAGE);
  for (int64_t r = 0; r < a->ext[0]; r++) wr_set(a, r, 0, (double)(r % 5 == 4 ? -1 : (r + 29) % slots));
}

static void fill_stored_keys(wr_case *c, const wr_arg *a, wr_rng *rng) {
  (void)c;
  for (int64_t at = 0; at < a->ext[0] * a->ext[3]; at++) fill_place(a, true, at / a->ext[3], at % a->ext[3], true, rng);
}
static void fill_stored_values(wr_case *c, const wr_arg *a, wr_rng *rng) {
  (void)c;
  for (int64_t at = 0; at < a->ext[0] * a->ext[2]; at++) fill_place(a, false, at / a->ext[2], at % a->ext[2], true, rng);
}

/* rows pages nkv dqk dv [cache page] */
static weir_status kv_store_case(wr_case *c, wr_program *p) {
  case_shape s = case_heads(c);
  int64_t R = wr_case_int(c, "rows", 3), n = wr_case_int(c, "pages", 3), P = wr_case_int(c, "page", WR_KV_PAGE);
  int k = wr_case_input(c, p, WR_INPUT, "k", wr_rule_type(s.dtype, WR_LIVE_ROWS, R, s.Nkv, s.Dqk, 0), wr_fill_normal(0, 1));
  int v = wr_case_input(c, p, WR_INPUT, "v", wr_rule_type(s.dtype, WR_LIVE_ROWS, R, s.Nkv, s.Dv, 0), wr_fill_normal(0, 1));
  int kc = cache_input(c, p, true, n, s.Nkv, s.Dqk, P, fill_stored_keys);
  int vc = cache_input(c, p, false, n, s.Nkv, P, s.Dv, fill_stored_values);
  int slot = wr_case_input(c, p, WR_INPUT, "slot", wr_rule_type(WR_I32, WR_LIVE_ROWS, R, 0, 0, 0), wr_fill_custom(fill_slot));
  wr_kv_store(p, k, v, kc, vc, slot);
  return WEIR_OK;
}

/* -------------------------------------------------------------------------------------------------------------------- ops */

const wr_op wr_op_attention = {
    .name = "attention",
    .doc = "softmax attention over whole sequences, for training",
    .args = {{"q", WR_IN, WR_ARG_FLOAT, 0},
             {"k", WR_IN, WR_ARG_FLOAT | WR_ARG_OPTIONAL, 0},
             {"v", WR_IN, WR_ARG_FLOAT | WR_ARG_OPTIONAL, 0},
             {"first", WR_IN, WR_ARG_OPTIONAL, 0},
             {"y", WR_OUT, WR_ARG_FLOAT, 0},
             {"lse", WR_OUT, WR_ARG_OPTIONAL | WR_ARG_SAVED, 0}},
    .params_bytes = sizeof(wr_attention_params),
    .shape = attention_shape,
    .grad = attention_grad,
    .cost = attention_cost,
    .print = attention_print,
    .rows = attention_rows,
    .n_rows = WR_ARRAY_LEN(attention_rows),
    .make_case = attention_case,
};

const wr_op wr_op_attention_bwd = {
    .name = "attention_bwd",
    .doc = "gradients of attention",
    .args = {{"dy", WR_IN, WR_ARG_FLOAT, 0},
             {"q", WR_IN, WR_ARG_FLOAT, 0},
             {"k", WR_IN, WR_ARG_FLOAT | WR_ARG_OPTIONAL, 0},
             {"v", WR_IN, WR_ARG_FLOAT | WR_ARG_OPTIONAL, 0},
             {"first", WR_IN, WR_ARG_OPTIONAL, 0},
             {"y", WR_IN, WR_ARG_FLOAT, 0},
             {"lse", WR_IN, 0, 0},
             {"dq", WR_OUT, WR_ARG_FLOAT | WR_ARG_OPTIONAL | WR_ARG_ACC, 0},
             {"dk", WR_OUT, WR_ARG_FLOAT | WR_ARG_OPTIONAL | WR_ARG_ACC, 0},
             {"dv", WR_OUT, WR_ARG_FLOAT | WR_ARG_OPTIONAL | WR_ARG_ACC, 0}},
    .params_bytes = sizeof(wr_attention_params),
    .shape = attention_bwd_shape,
    .cost = attention_bwd_cost,
    .print = attention_print,
    .rows = attention_bwd_rows,
    .n_rows = WR_ARRAY_LEN(attention_bwd_rows),
    .make_case = attention_bwd_case,
};

const wr_op wr_op_kv_store = {
    .name = "kv_store",
    .doc = "keys and values into their places of a paged cache",
    .args = {{"k", WR_IN, WR_ARG_FLOAT, 0},
             {"v", WR_IN, WR_ARG_FLOAT, 0},
             {"kcache", WR_UPDATE, 0, 0},
             {"vcache", WR_UPDATE, 0, 0},
             {"slot", WR_IN, 0, 0}},
    .shape = kv_store_shape,
    .cost = kv_store_cost,
    .rows = kv_store_rows,
    .n_rows = WR_ARRAY_LEN(kv_store_rows),
    .make_case = kv_store_case,
};

const wr_op wr_op_attention_paged = {
    .name = "attention_paged",
    .doc = "softmax attention of rows over the paged cache of their sequences",
    .args = {{"q", WR_IN, WR_ARG_FLOAT, 0},
             {"kcache", WR_IN, 0, 0},
             {"vcache", WR_IN, 0, 0},
             {"seq", WR_IN, 0, 0},
             {"pos", WR_IN, 0, 0},
             {"page_table", WR_IN, 0, 0},
             {"y", WR_OUT, WR_ARG_FLOAT, 0}},
    .params_bytes = sizeof(wr_attention_params),
    .shape = attention_paged_shape,
    .cost = attention_paged_cost,
    .print = attention_print,
    .rows = attention_paged_rows,
    .n_rows = WR_ARRAY_LEN(attention_paged_rows),
    .make_case = attention_paged_case,
};
