/* Optimisers: shape and cost rules, the builder, the test case. Equations: optim.h. */
#include "ops/optim/optim.h"

#include "ops/cases.h"
#include "ops/optim/optim_i.h"
#include "ops/rule_i.h"

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

/* rows d [dtype] [layout] [decay]; v is never negative */
static weir_status adamw_case(wr_case *c, wr_program *p) {
  wr_vtype t = wr_rule_type(wr_case_dtype(c, "dtype", WR_F32), 0, wr_case_int(c, "rows", 3), wr_case_int(c, "d", 5), 0, 0);
  t.layout = (uint8_t)wr_case_layout(c, "layout", WR_PLAIN);
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
