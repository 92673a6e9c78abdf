/* RMSNorm and LayerNorm: shape, gradient and cost rules, the builder, the test case. Equations: norm.h. */
#include "ops/norm/norm.h"

#include "ops/cases.h"
#include "ops/norm/norm_i.h"
#include "ops/rule_i.h"

/* Sums of dw and db of each block of rows. */
static size_t layernorm_bwd_scratch(const wr_call *c, int n_threads) {
  (void)n_threads;
  const wr_arg *x = &c->args[LAYERNORM_BWD_X];
  if (!c->args[LAYERNORM_BWD_DW].rank && !c->args[LAYERNORM_BWD_DB].rank) return 0;
  return (size_t)((x->ext[0] + WR_LN_BLOCK - 1) / WR_LN_BLOCK * 2 * x->ext[1]) * sizeof(float);
}

#define WR_ROWS_FILE "ops/norm/norm.def"
#include "ops/rows_i.h"

/* Checks x, w and rstd; gives rstd's type. Shared by both directions. */
static weir_status check_xw(const wr_vtype *x, const wr_vtype *w, wr_vtype *rstd) {
  WR_TRY(wr_rule_float("x", x));
  if (x->rank < 2) return wr_fail(WEIR_EUSAGE, "x has %d dimensions; it needs at least rows and a width", x->rank);
  int64_t D = x->ext[x->rank - 1];
  if (w->rank) {
    WR_TRY(wr_rule_float("w", w));
    WR_TRY(wr_rule_rank("w", w, 1));
    WR_TRY(wr_rule_ext("w", w, 0, D, "the width of x"));
  }
  *rstd = wr_rule_type(wr_rule_stat_dtype(x), x->live, x->ext[0], wr_rule_inner(x) / D, 0, 0);
  return WEIR_OK;
}

static weir_status rmsnorm_shape(const void *params, wr_vtype *t) {
  wr_vtype rstd;
  const wr_rmsnorm_params *p = params;
  if (!(p->eps >= 0)) return wr_fail(WEIR_EUSAGE, "eps is %g, but it must not be negative", (double)p->eps);
  WR_TRY(check_xw(&t[RMSNORM_X], &t[RMSNORM_W], &rstd));
  t[RMSNORM_Y] = t[RMSNORM_X];
  t[RMSNORM_RSTD] = rstd;
  return WEIR_OK;
}

static weir_status rmsnorm_bwd_shape(const void *params, wr_vtype *t) {
  (void)params;
  wr_vtype rstd;
  const wr_vtype *x = &t[RMSNORM_BWD_X], *w = &t[RMSNORM_BWD_W];
  WR_TRY(check_xw(x, w, &rstd));
  WR_TRY(wr_rule_float("dy", &t[RMSNORM_BWD_DY]));
  WR_TRY(wr_rule_like("dy", &t[RMSNORM_BWD_DY], "x", x));
  WR_TRY(wr_rule_like("rstd", &t[RMSNORM_BWD_RSTD], "the groups of x", &rstd));
  t[RMSNORM_BWD_DX] = *x;
  t[RMSNORM_BWD_DW] = *w; /* without w there is no dw */
  return WEIR_OK;
}

static weir_status rmsnorm_grad(wr_grad *g, const wr_instr *i) {
  int x = i->args[RMSNORM_X], w = i->args[RMSNORM_W], rstd = i->args[RMSNORM_RSTD], dy = wr_grad_of(g, i->args[RMSNORM_Y]);
  bool want_x = wr_grad_wanted(g, x), want_w = w >= 0 && wr_grad_wanted(g, w);
  if (dy < 0 || (!want_x && !want_w)) return WEIR_OK;
  int args[WR_MAX_ARGS] = {dy, x, w, rstd, want_x ? WR_NEW : WR_NONE, want_w ? WR_NEW : WR_NONE};
  WR_TRY(wr_emit(wr_grad_program(g), &wr_op_rmsnorm_bwd, i->params, args));
  if (want_x) wr_grad_add(g, x, args[RMSNORM_BWD_DX]);
  if (want_w) wr_grad_add(g, w, args[RMSNORM_BWD_DW]);
  return WEIR_OK;
}

static void rmsnorm_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_rmsnorm, c, out);
  out->flop = 4 * wr_cost_elems(c, RMSNORM_X);
}

static void rmsnorm_bwd_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_rmsnorm_bwd, c, out);
  out->flop = 10 * wr_cost_elems(c, RMSNORM_BWD_X);
}

static void rmsnorm_print(const void *params, wr_str *s) {
  wr_str_printf(s, "eps=%g", (double)((const wr_rmsnorm_params *)params)->eps);
}

int wr_rmsnorm(wr_program *p, int x, int w, float eps) {
  wr_rmsnorm_params params = {eps};
  int args[WR_MAX_ARGS] = {x, w, WR_NEW, WR_NEW};
  return wr_emit(p, &wr_op_rmsnorm, &params, args) == WEIR_OK ? args[RMSNORM_Y] : WR_NONE;
}

/* rows d [heads=0: rank 2] [dtype] [weight=1] [eps] */
static wr_vtype case_x(wr_case *c) {
  int64_t rows = wr_case_int(c, "rows", 3), d = wr_case_int(c, "d", 64), heads = wr_case_int(c, "heads", 0);
  int dtype = wr_case_dtype(c, "dtype", WR_F32);
  return heads ? wr_rule_type(dtype, WR_LIVE_ROWS, rows, heads, d, 0) : wr_rule_type(dtype, WR_LIVE_ROWS, rows, d, 0, 0);
}

static weir_status rmsnorm_case(wr_case *c, wr_program *p) {
  wr_vtype tx = case_x(c), tw = wr_rule_type(tx.dtype, WR_LIVE_ALL, tx.ext[tx.rank - 1], 0, 0, 0);
  float eps = (float)wr_case_float(c, "eps", 1e-5);
  int x = wr_case_input(c, p, WR_INPUT, "x", tx, wr_fill_normal(0, 1));
  int w = wr_case_int(c, "weight", 1) ? wr_case_input(c, p, WR_PARAM, "w", tw, wr_fill_normal(1, 0.3)) : WR_NONE;
  wr_rmsnorm(p, x, w, eps);
  return WEIR_OK;
}

static weir_status rmsnorm_bwd_case(wr_case *c, wr_program *p) {
  wr_vtype tx = case_x(c), tw = wr_rule_type(tx.dtype, WR_LIVE_ALL, tx.ext[tx.rank - 1], 0, 0, 0);
  wr_vtype ts = wr_rule_type(wr_rule_stat_dtype(&tx), WR_LIVE_ROWS, tx.ext[0], wr_rule_inner(&tx) / tw.ext[0], 0, 0);
  bool weight = wr_case_int(c, "weight", 1);
  wr_rmsnorm_params params = {1e-5f};
  int dy = wr_case_input(c, p, WR_INPUT, "dy", tx, wr_fill_normal(0, 1));
  int x = wr_case_input(c, p, WR_INPUT, "x", tx, wr_fill_normal(0, 1));
  int w = weight ? wr_case_input(c, p, WR_PARAM, "w", tw, wr_fill_normal(1, 0.3)) : WR_NONE;
  int rstd = wr_case_input(c, p, WR_INPUT, "rstd", ts, wr_fill_uniform(0.5, 2));
  int args[WR_MAX_ARGS] = {dy, x, w, rstd, WR_NEW, weight ? WR_NEW : WR_NONE};
  return wr_emit(p, &wr_op_rmsnorm_bwd, &params, args);
}

const wr_op wr_op_rmsnorm = {
    .name = "rmsnorm",
    .doc = "y = x / rms(x) * w over the last dimension",
    .args = {{"x", WR_IN, WR_ARG_FLOAT, 0},
             {"w", WR_IN, WR_ARG_OPTIONAL, 0},
             {"y", WR_OUT, WR_ARG_FLOAT, 1 + RMSNORM_X},
             {"rstd", WR_OUT, WR_ARG_OPTIONAL | WR_ARG_SAVED, 0}},
    .params_bytes = sizeof(wr_rmsnorm_params),
    .shape = rmsnorm_shape,
    .grad = rmsnorm_grad,
    .cost = rmsnorm_cost,
    .print = rmsnorm_print,
    .rows = rmsnorm_rows,
    .n_rows = WR_ARRAY_LEN(rmsnorm_rows),
    .make_case = rmsnorm_case,
};

const wr_op wr_op_rmsnorm_bwd = {
    .name = "rmsnorm_bwd",
    .doc = "gradients of rmsnorm",
    .args = {{"dy", WR_IN, WR_ARG_FLOAT, 0},
             {"x", WR_IN, WR_ARG_FLOAT, 0},
             {"w", WR_IN, WR_ARG_OPTIONAL, 0},
             {"rstd", WR_IN, 0, 0},
             {"dx", WR_OUT, WR_ARG_FLOAT | WR_ARG_OPTIONAL | WR_ARG_ACC, 0},
             {"dw", WR_OUT, WR_ARG_OPTIONAL | WR_ARG_ACC, 0}},
    .params_bytes = sizeof(wr_rmsnorm_params),
    .shape = rmsnorm_bwd_shape,
    .cost = rmsnorm_bwd_cost,
    .print = rmsnorm_print,
    .rows = rmsnorm_bwd_rows,
    .n_rows = WR_ARRAY_LEN(rmsnorm_bwd_rows),
    .make_case = rmsnorm_bwd_case,
};

/* --------------------------------------------------------------------------------------------------------------- layernorm */

/* Checks x and the vectors beside it; gives the type of stats. */
static weir_status check_layernorm(const wr_vtype *x, const wr_vtype *w, const wr_vtype *b, wr_vtype *stats) {
  const struct {
    const char *name;
    const wr_vtype *t;
  } vectors[] = {{"w", w}, {"b", b}};
  WR_TRY(wr_rule_float("x", x));
  WR_TRY(wr_rule_rank("x", x, 2));
  for (int i = 0; i < 2; i++) {
    if (!vectors[i].t->rank) continue;
    WR_TRY(wr_rule_float(vectors[i].name, vectors[i].t));
    WR_TRY(wr_rule_rank(vectors[i].name, vectors[i].t, 1));
    WR_TRY(wr_rule_ext(vectors[i].name, vectors[i].t, 0, x->ext[1], "the width of x"));
  }
  *stats = wr_rule_type(wr_rule_stat_dtype(x), x->live, x->ext[0], 2, 0, 0);
  return WEIR_OK;
}

static weir_status layernorm_shape(const void *params, wr_vtype *t) {
  const wr_layernorm_params *p = params;
  if (!(p->eps >= 0)) return wr_fail(WEIR_EUSAGE, "eps is %g, but it must not be negative", (double)p->eps);
  WR_TRY(check_layernorm(&t[LAYERNORM_X], &t[LAYERNORM_W], &t[LAYERNORM_B], &t[LAYERNORM_STATS]));
  t[LAYERNORM_Y] = t[LAYERNORM_X];
  return WEIR_OK;
}

static weir_status layernorm_bwd_shape(const void *params, wr_vtype *t) {
  (void)params;
  const wr_vtype none = {0}, *x = &t[LAYERNORM_BWD_X];
  wr_vtype stats;
  WR_TRY(check_layernorm(x, &t[LAYERNORM_BWD_W], &none, &stats));
  WR_TRY(wr_rule_float("dy", &t[LAYERNORM_BWD_DY]));
  WR_TRY(wr_rule_like("dy", &t[LAYERNORM_BWD_DY], "x", x));
  WR_TRY(wr_rule_like("stats", &t[LAYERNORM_BWD_STATS], "the rows of x", &stats));
  t[LAYERNORM_BWD_DX] = *x;
  t[LAYERNORM_BWD_DW] = t[LAYERNORM_BWD_DB] = wr_rule_type(x->dtype, WR_LIVE_ALL, x->ext[1], 0, 0, 0);
  return WEIR_OK;
}

static weir_status layernorm_grad(wr_grad *g, const wr_instr *i) {
  static const int in[] = {LAYERNORM_X, LAYERNORM_W, LAYERNORM_B};
  int args[WR_MAX_ARGS] = {wr_grad_of(g, i->args[LAYERNORM_Y]), i->args[LAYERNORM_X], i->args[LAYERNORM_W],
                           i->args[LAYERNORM_STATS]};
  bool any = false;
  for (int k = 0; k < 3; k++) {
    const bool want = i->args[in[k]] >= 0 && wr_grad_wanted(g, i->args[in[k]]);
    args[LAYERNORM_BWD_DX + k] = want ? WR_NEW : WR_NONE;
    any |= want;
  }
  if (args[LAYERNORM_BWD_DY] < 0 || !any) return WEIR_OK;
  WR_TRY(wr_emit(wr_grad_program(g), &wr_op_layernorm_bwd, i->params, args));
  for (int k = 0; k < 3; k++)
    if (args[LAYERNORM_BWD_DX + k] >= 0) wr_grad_add(g, i->args[in[k]], args[LAYERNORM_BWD_DX + k]);
  return WEIR_OK;
}

static void layernorm_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_layernorm, c, out);
  out->flop = 7 * wr_cost_elems(c, LAYERNORM_X);
}

static void layernorm_bwd_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_layernorm_bwd, c, out);
  out->flop = 15 * wr_cost_elems(c, LAYERNORM_BWD_X);
}

static void layernorm_print(const void *params, wr_str *s) {
  wr_str_printf(s, "eps=%g", (double)((const wr_layernorm_params *)params)->eps);
}

int wr_layernorm(wr_program *p, int x, int w, int b, float eps) {
  const wr_layernorm_params params = {eps};
  int args[WR_MAX_ARGS] = {x, w, b, WR_NEW, WR_NEW};
  return wr_emit(p, &wr_op_layernorm, &params, args) == WEIR_OK ? args[LAYERNORM_Y] : WR_NONE;
}

/* rows d [dtype] [weight=1] [bias=1] [eps] */
static weir_status layernorm_case(wr_case *c, wr_program *p) {
  const wr_vtype tx = case_x(c), tw = wr_rule_type(tx.dtype, WR_LIVE_ALL, tx.ext[1], 0, 0, 0);
  const int x = wr_case_input(c, p, WR_INPUT, "x", tx, wr_fill_normal(1, 2));
  const int w = wr_case_int(c, "weight", 1) ? wr_case_input(c, p, WR_PARAM, "w", tw, wr_fill_normal(1, 0.3)) : WR_NONE;
  const int b = wr_case_int(c, "bias", 1) ? wr_case_input(c, p, WR_PARAM, "b", tw, wr_fill_normal(0, 0.3)) : WR_NONE;
  wr_layernorm(p, x, w, b, (float)wr_case_float(c, "eps", 1e-5));
  return WEIR_OK;
}

static weir_status layernorm_bwd_case(wr_case *c, wr_program *p) {
  const wr_vtype tx = case_x(c), tw = wr_rule_type(tx.dtype, WR_LIVE_ALL, tx.ext[1], 0, 0, 0);
  const wr_vtype ts = wr_rule_type(wr_rule_stat_dtype(&tx), WR_LIVE_ROWS, tx.ext[0], 2, 0, 0);
  const bool weight = wr_case_int(c, "weight", 1), bias = wr_case_int(c, "bias", 1);
  const wr_layernorm_params params = {1e-5f};
  const int dy = wr_case_input(c, p, WR_INPUT, "dy", tx, wr_fill_normal(0, 1));
  const int x = wr_case_input(c, p, WR_INPUT, "x", tx, wr_fill_normal(1, 1));
  const int w = weight ? wr_case_input(c, p, WR_PARAM, "w", tw, wr_fill_normal(1, 0.3)) : WR_NONE;
  const int stats = wr_case_input(c, p, WR_INPUT, "stats", ts, wr_fill_uniform(0.5, 2));
  int args[WR_MAX_ARGS] = {dy, x, w, stats, WR_NEW, weight ? WR_NEW : WR_NONE, bias ? WR_NEW : WR_NONE};
  return wr_emit(p, &wr_op_layernorm_bwd, &params, args);
}

const wr_op wr_op_layernorm = {
    .name = "layernorm",
    .doc = "y = (x - mean(x)) / sd(x) * w + b over the last dimension",
    .args = {{"x", WR_IN, WR_ARG_FLOAT, 0},
             {"w", WR_IN, WR_ARG_OPTIONAL, 0},
             {"b", WR_IN, WR_ARG_OPTIONAL, 0},
             {"y", WR_OUT, WR_ARG_FLOAT, 1 + LAYERNORM_X},
             {"stats", WR_OUT, WR_ARG_OPTIONAL | WR_ARG_SAVED, 0}},
    .params_bytes = sizeof(wr_layernorm_params),
    .shape = layernorm_shape,
    .grad = layernorm_grad,
    .cost = layernorm_cost,
    .print = layernorm_print,
    .rows = layernorm_rows,
    .n_rows = WR_ARRAY_LEN(layernorm_rows),
    .make_case = layernorm_case,
};

const wr_op wr_op_layernorm_bwd = {
    .name = "layernorm_bwd",
    .doc = "gradients of layernorm",
    .args = {{"dy", WR_IN, WR_ARG_FLOAT, 0},
             {"x", WR_IN, WR_ARG_FLOAT, 0},
             {"w", WR_IN, WR_ARG_OPTIONAL, 0},
             {"stats", WR_IN, 0, 0},
             {"dx", WR_OUT, WR_ARG_FLOAT | WR_ARG_OPTIONAL | WR_ARG_ACC, 0},
             {"dw", WR_OUT, WR_ARG_OPTIONAL | WR_ARG_ACC, 0},
             {"db", WR_OUT, WR_ARG_OPTIONAL | WR_ARG_ACC, 0}},
    .params_bytes = sizeof(wr_layernorm_params),
    .shape = layernorm_bwd_shape,
    .cost = layernorm_bwd_cost,
    .print = layernorm_print,
    .rows = layernorm_bwd_rows,
    .n_rows = WR_ARRAY_LEN(layernorm_bwd_rows),
    .make_case = layernorm_bwd_case,
};
