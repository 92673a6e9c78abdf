/* Rotary position embedding: shape, gradient and cost rules, the builder, test cases. Equations: rope.h. */
#include "ops/rope/rope.h"

#include "ops/cases.h"
#include "ops/rope/rope_i.h"
#include "ops/rule_i.h"

/* What its integers hold. */
static const char *table_dev_refuses(const wr_call *c) {
  const wr_rope_params *p = &((const wr_rope_table_params *)c->params)->rope;
  if (p->n_dims > 512) return "turns up to 512 dimensions";
  if (!(p->freq_scale <= 16) || !(p->ext_factor >= 0 && p->ext_factor <= 1)) return "takes freq_scale up to 16 and ext_factor from 0 to 1";
  return wr_rope_magnitude(p) < 8 ? NULL : "takes magnitudes below 8";
}

#define WR_ROWS_FILE "ops/rope/rope.def"
#include "ops/rows_i.h"

static weir_status rope_table_shape(const void *params, wr_vtype *t) {
  const wr_rope_table_params *p = params;
  const wr_rope_params *r = &p->rope;
  const wr_vtype *pos = &t[ROPE_TABLE_POS], *factors = &t[ROPE_TABLE_FACTORS];
  WR_TRY(wr_rule_table("pos", pos, pos->ext[0], "its own length"));
  if (r->n_dims < 2 || r->n_dims % 2) return wr_fail(WEIR_EUSAGE, "n_dims is %d, but it must be even and positive", r->n_dims);
  if (!(r->theta > 1) || !(r->freq_scale > 0) || !(r->attn_factor > 0))
    return wr_fail(WEIR_EUSAGE, "theta %g must be above 1, freq_scale %g and attn_factor %g above 0", (double)r->theta,
                   (double)r->freq_scale, (double)r->attn_factor);
  if (r->ext_factor != 0 && (r->orig_ctx < 1 || !(r->beta_fast > 0) || !(r->beta_slow > 0)))
    return wr_fail(WEIR_EUSAGE, "YaRN needs the original context (%d) and its betas (%g, %g) above 0", r->orig_ctx,
                   (double)r->beta_fast, (double)r->beta_slow);
  if (factors->rank) {
    WR_TRY(wr_rule_float("freq_factors", factors));
    WR_TRY(wr_rule_rank("freq_factors", factors, 1));
    WR_TRY(wr_rule_ext("freq_factors", factors, 0, r->n_dims / 2, "half of n_dims"));
  }
  if (p->dtype != WR_F32 && p->dtype != WR_F64)
    return wr_fail(WEIR_EUSAGE, "the table's dtype %d is neither f32 nor f64", p->dtype);
  t[ROPE_TABLE_TABLE] = wr_rule_type(p->dtype, pos->live, pos->ext[0], r->n_dims, 0, 0);
  return WEIR_OK;
}

static void rope_table_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_rope_table, c, out);
  out->flop = 20 * wr_cost_elems(c, ROPE_TABLE_TABLE);
}

static void rope_table_print(const void *params, wr_str *s) {
  const wr_rope_params *r = &((const wr_rope_table_params *)params)->rope;
  wr_str_printf(s, "n=%d theta=%g", r->n_dims, (double)r->theta);
  if (r->freq_scale < 1 || r->freq_scale > 1) wr_str_printf(s, " freq_scale=%g", (double)r->freq_scale);
  if (r->ext_factor != 0)
    wr_str_printf(s, " yarn=%g/%g/%g/%d", (double)r->ext_factor, (double)r->beta_fast, (double)r->beta_slow, r->orig_ctx);
}

static weir_status rope_shape(const void *params, wr_vtype *t) {
  (void)params;
  const wr_vtype *x = &t[ROPE_X], *table = &t[ROPE_TABLE];
  WR_TRY(wr_rule_float("x", x));
  WR_TRY(wr_rule_rank("x", x, 3));
  WR_TRY(wr_rule_float("table", table));
  WR_TRY(wr_rule_rank("table", table, 2));
  WR_TRY(wr_rule_ext("table", table, 0, x->ext[0], "the rows of x"));
  if (table->live != x->live) return wr_fail(WEIR_EUSAGE, "x and table count their live rows by different registers");
  if (table->ext[1] > x->ext[2])
    return wr_fail(WEIR_EUSAGE, "%lld dimensions are to turn, but a head has %lld", (long long)table->ext[1],
                   (long long)x->ext[2]);
  t[ROPE_Y] = *x;
  return WEIR_OK;
}

static weir_status rope_grad(wr_grad *g, const wr_instr *i) {
  wr_rope_turn_params params = *(const wr_rope_turn_params *)i->params;
  params.inverse = !params.inverse;
  int args[WR_MAX_ARGS] = {wr_grad_of(g, i->args[ROPE_Y]), i->args[ROPE_TABLE], WR_NEW};
  WR_TRY(wr_emit(wr_grad_program(g), &wr_op_rope, &params, args));
  wr_grad_add(g, i->args[ROPE_X], args[ROPE_Y]);
  return WEIR_OK;
}

static void rope_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_rope, c, out);
  out->flop = 3 * wr_cost_elems(c, ROPE_X);
}

static void rope_print(const void *params, wr_str *s) {
  const wr_rope_turn_params *p = params;
  wr_str_printf(s, "%s%s", p->neox ? "neox" : "pairs", p->inverse ? " inverse" : "");
}

static bool same_rope(const wr_rope_params *a, const wr_rope_params *b) {
  return a->n_dims == b->n_dims && !memcmp(&a->theta, &b->theta, sizeof a->theta) &&
         !memcmp(&a->freq_scale, &b->freq_scale, sizeof a->theta) && !memcmp(&a->ext_factor, &b->ext_factor, sizeof a->theta) &&
         !memcmp(&a->attn_factor, &b->attn_factor, sizeof a->theta) && !memcmp(&a->beta_fast, &b->beta_fast, sizeof a->theta) &&
         !memcmp(&a->beta_slow, &b->beta_slow, sizeof a->theta) && a->orig_ctx == b->orig_ctx;
}

static int find_table(const wr_program *p, int pos, int factors, const wr_rope_table_params *want) {
  for (int i = 0; i < p->n_instrs; i++) {
    const wr_instr *in = &p->instrs[i];
    if (in->op != &wr_op_rope_table || in->args[ROPE_TABLE_POS] != pos || in->args[ROPE_TABLE_FACTORS] != factors) continue;
    const wr_rope_table_params *have = in->params;
    if (have->dtype == want->dtype && same_rope(&have->rope, &want->rope)) return in->args[ROPE_TABLE_TABLE];
  }
  return WR_NONE;
}

int wr_rope(wr_program *p, int x, int pos, int freq_factors, const wr_rope_params *params) {
  wr_rope_table_params table = {.rope = *params, .dtype = wr_rule_stat_dtype(wr_type(p, x))};
  wr_rope_params *r = &table.rope;
  if (!r->n_dims) r->n_dims = (int)wr_type(p, x)->ext[2];
  if (r->theta == 0) r->theta = 10000;
  if (r->freq_scale == 0) r->freq_scale = 1;
  if (r->attn_factor == 0) r->attn_factor = 1;
  if (r->beta_fast == 0) r->beta_fast = 32;
  if (r->beta_slow == 0) r->beta_slow = 1;
  int t = find_table(p, pos, freq_factors, &table);
  if (t < 0) {
    int args[WR_MAX_ARGS] = {pos, freq_factors, WR_NEW};
    if (wr_emit(p, &wr_op_rope_table, &table, args) != WEIR_OK) return WR_NONE;
    t = args[ROPE_TABLE_TABLE];
  }
  wr_rope_turn_params turn = {.neox = params->neox, .inverse = params->inverse};
  int args[WR_MAX_ARGS] = {x, t, WR_NEW};
  return wr_emit(p, &wr_op_rope, &turn, args) == WEIR_OK ? args[ROPE_Y] : WR_NONE;
}

/* rows n [theta freq_scale ext attn beta_fast beta_slow ctx] [factors=1] max: largest position */
static weir_status rope_table_case(wr_case *c, wr_program *p) {
  wr_rope_table_params params = {.rope = {.n_dims = (int)wr_case_int(c, "n", 64),
                                          .theta = (float)wr_case_float(c, "theta", 10000),
                                          .freq_scale = (float)wr_case_float(c, "freq_scale", 1),
                                          .ext_factor = (float)wr_case_float(c, "ext", 0),
                                          .attn_factor = (float)wr_case_float(c, "attn", 1),
                                          .beta_fast = (float)wr_case_float(c, "beta_fast", 32),
                                          .beta_slow = (float)wr_case_float(c, "beta_slow", 1),
                                          .orig_ctx = (int)wr_case_int(c, "ctx", 0)},
                                 .dtype = wr_case_dtype(c, "dtype", WR_F32)};
  wr_vtype pos = wr_rule_type(WR_I32, WR_LIVE_ROWS, wr_case_int(c, "rows", 3), 0, 0, 0);
  wr_vtype factors = wr_rule_type(WR_F32, WR_LIVE_ALL, params.rope.n_dims / 2, 0, 0, 0);
  int args[WR_MAX_ARGS] = {wr_case_input(c, p, WR_INPUT, "pos", pos, wr_fill_ints(0, wr_case_int(c, "max", 100000))), WR_NONE,
                           WR_NEW};
  if (wr_case_int(c, "factors", 0))
    args[ROPE_TABLE_FACTORS] = wr_case_input(c, p, WR_PARAM, "freq_factors", factors, wr_fill_uniform(1, 8));
  return wr_emit(p, &wr_op_rope_table, &params, args);
}

/* rows heads d [n=d] [neox] [inverse] [dtype] */
static weir_status rope_case(wr_case *c, wr_program *p) {
  int64_t rows = wr_case_int(c, "rows", 3), d = wr_case_int(c, "d", 64);
  wr_rope_turn_params params = {.neox = wr_case_int(c, "neox", 0), .inverse = wr_case_int(c, "inverse", 0)};
  wr_vtype tx = wr_rule_type(wr_case_dtype(c, "dtype", WR_F32), WR_LIVE_ROWS, rows, wr_case_int(c, "heads", 3), d, 0);
  wr_vtype tt = wr_rule_type(wr_rule_stat_dtype(&tx), WR_LIVE_ROWS, rows, wr_case_int(c, "n", d), 0, 0);
  int args[WR_MAX_ARGS] = {wr_case_input(c, p, WR_INPUT, "x", tx, wr_fill_normal(0, 1)),
                           wr_case_input(c, p, WR_STATE, "table", tt, wr_fill_uniform(-1, 1)), WR_NEW};
  return wr_emit(p, &wr_op_rope, &params, args);
}

const wr_op wr_op_rope_table = {
    .name = "rope_table",
    .doc = "cosines and sines of the positions",
    .args = {{"pos", WR_IN, 0, 0}, {"freq_factors", WR_IN, WR_ARG_OPTIONAL, 0}, {"table", WR_OUT, 0, 0}},
    .params_bytes = sizeof(wr_rope_table_params),
    .shape = rope_table_shape,
    .cost = rope_table_cost,
    .print = rope_table_print,
    .rows = rope_table_rows,
    .n_rows = WR_ARRAY_LEN(rope_table_rows),
    .make_case = rope_table_case,
};

const wr_op wr_op_rope = {
    .name = "rope",
    .doc = "pairs of each head turned by the angles of a table",
    .args = {{"x", WR_IN, WR_ARG_FLOAT, 0}, {"table", WR_IN, 0, 0}, {"y", WR_OUT, WR_ARG_FLOAT, 1 + ROPE_X}},
    .params_bytes = sizeof(wr_rope_turn_params),
    .shape = rope_shape,
    .grad = rope_grad,
    .cost = rope_cost,
    .print = rope_print,
    .rows = rope_rows,
    .n_rows = WR_ARRAY_LEN(rope_rows),
    .make_case = rope_case,
};
