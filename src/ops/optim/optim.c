/* Optimisers: shape and cost rules, the builder, the test case. Equations: optim.h. */
#include "ops/optim/optim.h"

#include "ops/cases.h"
#include "ops/flat_i.h"
#include "ops/optim/optim_i.h"
#include "ops/rule_i.h"

/* A sum for each piece. */
static size_t sumsq_scratch(const wr_call *c, int n_threads) {
  (void)n_threads;
  return (size_t)wr_flat_pieces(&c->args[SUMSQ_X], WR_SUMSQ_PIECE) * sizeof(double);
}

#define WR_ROWS_FILE "ops/optim/optim.def"
#include "ops/rows_i.h"

static weir_status adamw_shape(const void *params, wr_vtype *t) {
  const wr_adamw_params *p = params;
  if (!(p->beta1 >= 0 && p->beta1 < 1 && p->beta2 >= 0 && p->beta2 < 1))
    return wr_fail(WEIR_EUSAGE, "betas are %g and %g, but each must be in [0, 1)", p->beta1, p->beta2);
  if (!(p->eps >= 0) || !(p->weight_decay >= 0))
    return wr_fail(WEIR_EUSAGE, "eps is %g and weight_decay %g, but neither may be negative", p->eps, p->weight_decay);
  static const struct {
    int arg;
    const char *name;
  } others[] = {{ADAMW_GRAD, "grad"}, {ADAMW_M, "m"}, {ADAMW_V, "v"}};
  const wr_layout layout = (wr_layout)t[ADAMW_PARAM].layout;
  WR_TRY(wr_rule_weights("param", &t[ADAMW_PARAM], layout));
  for (size_t i = 0; i < WR_ARRAY_LEN(others); i++) {
    WR_TRY(wr_rule_weights(others[i].name, &t[others[i].arg], layout));
    WR_TRY(wr_rule_like(others[i].name, &t[others[i].arg], "param", &t[ADAMW_PARAM]));
  }
  return WEIR_OK;
}

static void adamw_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_adamw, c, out);
  out->flop = 12 * wr_cost_elems(c, ADAMW_PARAM);
}

static void adamw_print(const void *params, wr_str *s) {
  const wr_adamw_params *p = params;
  wr_str_printf(s, "beta1=%g beta2=%g eps=%g weight_decay=%g", p->beta1, p->beta2, p->eps, p->weight_decay);
}

void wr_adamw(wr_program *p, int param, int grad, int m, int v, const wr_adamw_params *params) {
  int args[WR_MAX_ARGS] = {param, grad, m, v};
  (void)wr_emit(p, &wr_op_adamw, params, args); /* a failure is kept in the program */
}

wr_vtype wr_optim_case_weights(wr_case *c) {
  wr_vtype t = wr_rule_type(wr_case_dtype(c, "dtype", WR_F32), 0, wr_case_int(c, "rows", 3), wr_case_int(c, "d", 5), 0, 0);
  t.layout = (uint8_t)wr_case_layout(c, "layout", WR_PLAIN);
  return t;
}

/* [decay]; v is never negative */
static weir_status adamw_case(wr_case *c, wr_program *p) {
  const wr_vtype t = wr_optim_case_weights(c);
  const wr_adamw_params params = {0.9, 0.95, 1e-8, wr_case_float(c, "decay", 0.1)};
  const int param = wr_case_input(c, p, WR_PARAM, "param", t, wr_fill_normal(0, 1));
  const int grad = wr_case_input(c, p, WR_INPUT, "grad", t, wr_fill_normal(0, 1));
  const int m = wr_case_input(c, p, WR_STATE, "m", t, wr_fill_normal(0, 0.3));
  const int v = wr_case_input(c, p, WR_STATE, "v", t, wr_fill_uniform(0.01, 1));
  wr_adamw(p, param, grad, m, v, &params);
  return WEIR_OK;
}

const wr_op wr_op_adamw = {
    .name = "adamw",
    .doc = "one AdamW step of one parameter",
    .args = {{"param", WR_UPDATE, 0, 0}, {"grad", WR_IN, 0, 0}, {"m", WR_UPDATE, 0, 0}, {"v", WR_UPDATE, 0, 0}},
    .params_bytes = sizeof(wr_adamw_params),
    .shape = adamw_shape,
    .cost = adamw_cost,
    .print = adamw_print,
    .rows = adamw_rows,
    .n_rows = WR_ARRAY_LEN(adamw_rows),
    .make_case = adamw_case,
};

/* ---------------------------------------------------------------------------------------------------------- sgd and sumsq */

static weir_status sgd_shape(const void *params, wr_vtype *t) {
  const wr_sgd_params *p = params;
  const wr_layout layout = (wr_layout)t[SGD_PARAM].layout;
  if (!(p->momentum >= 0 && p->momentum < 1) || !(p->weight_decay >= 0))
    return wr_fail(WEIR_EUSAGE, "momentum is %g, but it must be in [0, 1), and weight_decay %g must not be negative",
                   p->momentum, p->weight_decay);
  if (p->momentum > 0 && !t[SGD_M].rank) return wr_fail(WEIR_EUSAGE, "momentum is %g, but m is missing", p->momentum);
  WR_TRY(wr_rule_weights("param", &t[SGD_PARAM], layout));
  WR_TRY(wr_rule_weights("grad", &t[SGD_GRAD], layout));
  WR_TRY(wr_rule_like("grad", &t[SGD_GRAD], "param", &t[SGD_PARAM]));
  if (!t[SGD_M].rank) return WEIR_OK;
  WR_TRY(wr_rule_weights("m", &t[SGD_M], layout));
  return wr_rule_like("m", &t[SGD_M], "param", &t[SGD_PARAM]);
}

static void sgd_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_sgd, c, out);
  out->flop = 6 * wr_cost_elems(c, SGD_PARAM);
}

static void sgd_print(const void *params, wr_str *s) {
  const wr_sgd_params *p = params;
  wr_str_printf(s, "momentum=%g weight_decay=%g%s", p->momentum, p->weight_decay, p->nesterov ? " nesterov" : "");
}

void wr_sgd(wr_program *p, int param, int grad, int m, const wr_sgd_params *params) {
  int args[WR_MAX_ARGS] = {param, grad, m};
  (void)wr_emit(p, &wr_op_sgd, params, args); /* a failure is kept in the program */
}

static weir_status sumsq_shape(const void *params, wr_vtype *t) {
  (void)params;
  WR_TRY(wr_rule_weights("x", &t[SUMSQ_X], (wr_layout)t[SUMSQ_X].layout));
  t[SUMSQ_Y] = wr_rule_type(WR_F64, WR_LIVE_ALL, 1, 0, 0, 0);
  return WEIR_OK;
}

static void sumsq_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_sumsq, c, out);
  out->flop = 2 * wr_cost_elems(c, SUMSQ_X);
}

int wr_sumsq(wr_program *p, int x) {
  int args[WR_MAX_ARGS] = {x, WR_NEW};
  return wr_emit(p, &wr_op_sumsq, NULL, args) == WEIR_OK ? args[SUMSQ_Y] : WR_NONE;
}

/* momentum [decay] [nesterov] */
static weir_status sgd_case(wr_case *c, wr_program *p) {
  const wr_vtype t = wr_optim_case_weights(c);
  const wr_sgd_params params = {wr_case_float(c, "momentum", 0.9), wr_case_float(c, "decay", 0.1),
                                wr_case_int(c, "nesterov", 0)};
  const int param = wr_case_input(c, p, WR_PARAM, "param", t, wr_fill_normal(0, 1));
  const int grad = wr_case_input(c, p, WR_INPUT, "grad", t, wr_fill_normal(0, 1));
  const int m = params.momentum > 0 ? wr_case_input(c, p, WR_STATE, "m", t, wr_fill_normal(0, 0.3)) : WR_NONE;
  wr_sgd(p, param, grad, m, &params);
  return WEIR_OK;
}

static weir_status sumsq_case(wr_case *c, wr_program *p) {
  wr_sumsq(p, wr_case_input(c, p, WR_INPUT, "x", wr_optim_case_weights(c), wr_fill_normal(0, 2)));
  return WEIR_OK;
}

const wr_op wr_op_sgd = {
    .name = "sgd",
    .doc = "one step of stochastic gradient descent of one parameter, with momentum",
    .args = {{"param", WR_UPDATE, 0, 0}, {"grad", WR_IN, 0, 0}, {"m", WR_UPDATE, WR_ARG_OPTIONAL, 0}},
    .params_bytes = sizeof(wr_sgd_params),
    .shape = sgd_shape,
    .cost = sgd_cost,
    .print = sgd_print,
    .rows = sgd_rows,
    .n_rows = WR_ARRAY_LEN(sgd_rows),
    .make_case = sgd_case,
};

const wr_op wr_op_sumsq = {
    .name = "sumsq",
    .doc = "sum of squares, for norms of gradients",
    .args = {{"x", WR_IN, 0, 0}, {"y", WR_OUT, 0, 0}},
    .shape = sumsq_shape,
    .cost = sumsq_cost,
    .rows = sumsq_rows,
    .n_rows = WR_ARRAY_LEN(sumsq_rows),
    .make_case = sumsq_case,
};
