/* Elementwise ops: shape, gradient and cost rules, builders, test cases. Equations: elementwise.h. */
#include "ops/elementwise/elementwise.h"

#include "ops/cases.h"
#include "ops/elementwise/elementwise_i.h"
#include "ops/rule_i.h"

#define WR_ROWS_FILE "ops/elementwise/elementwise.def"
#include "ops/rows_i.h"

static weir_status add_shape(const void *params, wr_vtype *t) {
  (void)params;
  WR_TRY(wr_rule_float("a", &t[ADD_A]));
  WR_TRY(wr_rule_float("b", &t[ADD_B]));
  WR_TRY(wr_rule_like("b", &t[ADD_B], "a", &t[ADD_A]));
  t[ADD_Y] = t[ADD_A];
  return WEIR_OK;
}

static weir_status add_grad(wr_grad *g, const wr_instr *i) {
  int dy = wr_grad_of(g, i->args[ADD_Y]);
  wr_grad_add(g, i->args[ADD_A], dy);
  wr_grad_add(g, i->args[ADD_B], dy);
  return WEIR_OK;
}

static void add_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_add, c, out);
  out->flop = wr_cost_elems(c, ADD_Y);
}

int wr_add(wr_program *p, int a, int b) {
  int args[WR_MAX_ARGS] = {a, b, WR_NEW};
  return wr_emit(p, &wr_op_add, NULL, args) == WEIR_OK ? args[ADD_Y] : WR_NONE;
}

static weir_status axpby_shape(const void *params, wr_vtype *t) {
  const wr_axpby_params *p = params;
  WR_TRY(wr_rule_float("a", &t[AXPBY_A]));
  if (p->gamma != 0) WR_TRY(wr_rule_rank("a", &t[AXPBY_A], 2));
  if (t[AXPBY_B].rank) {
    WR_TRY(wr_rule_float("b", &t[AXPBY_B]));
    WR_TRY(wr_rule_like("b", &t[AXPBY_B], "a", &t[AXPBY_A]));
  }
  t[AXPBY_Y] = t[AXPBY_A];
  return WEIR_OK;
}

static weir_status axpby_grad(wr_grad *g, const wr_instr *i) {
  const wr_axpby_params *p = i->params;
  const int dy = wr_grad_of(g, i->args[AXPBY_Y]), in[] = {i->args[AXPBY_A], i->args[AXPBY_B]};
  const float factor[] = {p->alpha, p->beta};
  for (int k = 0; k < 2; k++)
    if (in[k] >= 0 && wr_grad_wanted(g, in[k]))
      wr_grad_add(g, in[k], wr_axpby(wr_grad_program(g), factor[k], dy, 0, WR_NONE, 0));
  return wr_program_status(wr_grad_program(g));
}

static void axpby_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_axpby, c, out);
  out->flop = 3 * wr_cost_elems(c, AXPBY_Y);
}

static void axpby_print(const void *params, wr_str *s) {
  const wr_axpby_params *p = params;
  wr_str_printf(s, "alpha=%g beta=%g gamma=%g", (double)p->alpha, (double)p->beta, (double)p->gamma);
}

int wr_axpby(wr_program *p, float alpha, int a, float beta, int b, float gamma) {
  const wr_axpby_params params = {alpha, beta, gamma};
  int args[WR_MAX_ARGS] = {a, b, WR_NEW};
  return wr_emit(p, &wr_op_axpby, &params, args) == WEIR_OK ? args[AXPBY_Y] : WR_NONE;
}

static weir_status glu_shape(const void *params, wr_vtype *t) {
  (void)params;
  WR_TRY(wr_rule_float("gate", &t[GLU_GATE]));
  WR_TRY(wr_rule_float("up", &t[GLU_UP]));
  WR_TRY(wr_rule_like("up", &t[GLU_UP], "gate", &t[GLU_GATE]));
  t[GLU_Y] = t[GLU_GATE];
  return WEIR_OK;
}

static weir_status glu_bwd_shape(const void *params, wr_vtype *t) {
  (void)params;
  WR_TRY(wr_rule_float("gate", &t[GLU_BWD_GATE]));
  WR_TRY(wr_rule_float("up", &t[GLU_BWD_UP]));
  WR_TRY(wr_rule_float("dy", &t[GLU_BWD_DY]));
  WR_TRY(wr_rule_like("up", &t[GLU_BWD_UP], "gate", &t[GLU_BWD_GATE]));
  WR_TRY(wr_rule_like("dy", &t[GLU_BWD_DY], "gate", &t[GLU_BWD_GATE]));
  t[GLU_BWD_DGATE] = t[GLU_BWD_GATE];
  t[GLU_BWD_DUP] = t[GLU_BWD_UP];
  return WEIR_OK;
}

static weir_status glu_grad(wr_grad *g, const wr_instr *i) {
  int gate = i->args[GLU_GATE], up = i->args[GLU_UP];
  bool want_gate = wr_grad_wanted(g, gate), want_up = wr_grad_wanted(g, up);
  int args[WR_MAX_ARGS] = {wr_grad_of(g, i->args[GLU_Y]), gate, up, want_gate ? WR_NEW : WR_NONE,
                           want_up ? WR_NEW : WR_NONE};
  WR_TRY(wr_emit(wr_grad_program(g), &wr_op_glu_bwd, i->params, args));
  if (want_gate) wr_grad_add(g, gate, args[GLU_BWD_DGATE]);
  if (want_up) wr_grad_add(g, up, args[GLU_BWD_DUP]);
  return WEIR_OK;
}

/* An exponential counts as ten operations. */
static void glu_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_glu, c, out);
  out->flop = 14 * wr_cost_elems(c, GLU_Y);
}

static void glu_bwd_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_glu_bwd, c, out);
  out->flop = 20 * wr_cost_elems(c, GLU_BWD_DY);
}

static void glu_print(const void *params, wr_str *s) {
  wr_str_printf(s, "act=%s", ((const wr_glu_params *)params)->act == WR_GELU ? "gelu" : "silu");
}

int wr_glu(wr_program *p, wr_act act, int gate, int up) {
  const wr_glu_params params = {act};
  int args[WR_MAX_ARGS] = {gate, up, WR_NEW};
  return wr_emit(p, &wr_op_glu, &params, args) == WEIR_OK ? args[GLU_Y] : WR_NONE;
}

static weir_status gelu_shape(const void *params, wr_vtype *t) {
  (void)params;
  WR_TRY(wr_rule_float("x", &t[GELU_X]));
  t[GELU_Y] = t[GELU_X];
  return WEIR_OK;
}

static weir_status gelu_bwd_shape(const void *params, wr_vtype *t) {
  (void)params;
  WR_TRY(wr_rule_float("x", &t[GELU_BWD_X]));
  WR_TRY(wr_rule_float("dy", &t[GELU_BWD_DY]));
  WR_TRY(wr_rule_like("dy", &t[GELU_BWD_DY], "x", &t[GELU_BWD_X]));
  t[GELU_BWD_DX] = t[GELU_BWD_X];
  return WEIR_OK;
}

static weir_status gelu_grad(wr_grad *g, const wr_instr *i) {
  int args[WR_MAX_ARGS] = {wr_grad_of(g, i->args[GELU_Y]), i->args[GELU_X], WR_NEW};
  WR_TRY(wr_emit(wr_grad_program(g), &wr_op_gelu_bwd, NULL, args));
  wr_grad_add(g, i->args[GELU_X], args[GELU_BWD_DX]);
  return WEIR_OK;
}

static void gelu_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_gelu, c, out);
  out->flop = 17 * wr_cost_elems(c, GELU_Y);
}

static void gelu_bwd_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_gelu_bwd, c, out);
  out->flop = 25 * wr_cost_elems(c, GELU_BWD_DY);
}

int wr_gelu(wr_program *p, int x) {
  int args[WR_MAX_ARGS] = {x, WR_NEW};
  return wr_emit(p, &wr_op_gelu, NULL, args) == WEIR_OK ? args[GELU_Y] : WR_NONE;
}

static weir_status softcap_shape(const void *params, wr_vtype *t) {
  const wr_softcap_params *p = params;
  if (!(p->cap > 0)) return wr_fail(WEIR_EUSAGE, "cap is %g, but it must be above 0", (double)p->cap);
  WR_TRY(wr_rule_float("x", &t[SOFTCAP_X]));
  t[SOFTCAP_Y] = t[SOFTCAP_X];
  return WEIR_OK;
}

static void softcap_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_softcap, c, out);
  out->flop = 22 * wr_cost_elems(c, SOFTCAP_Y);
}

static void softcap_print(const void *params, wr_str *s) {
  wr_str_printf(s, "cap=%g", (double)((const wr_softcap_params *)params)->cap);
}

int wr_softcap(wr_program *p, int x, float cap) {
  const wr_softcap_params params = {cap};
  int args[WR_MAX_ARGS] = {x, WR_NEW};
  return wr_emit(p, &wr_op_softcap, &params, args) == WEIR_OK ? args[SOFTCAP_Y] : WR_NONE;
}

static weir_status dropout_shape(const void *params, wr_vtype *t) {
  const wr_dropout_params *p = params;
  if (!(p->rate >= 0 && p->rate < 1))
    return wr_fail(WEIR_EUSAGE, "rate is %g, but it must be at least 0 and below 1", (double)p->rate);
  WR_TRY(wr_rule_float("x", &t[DROPOUT_X]));
  t[DROPOUT_Y] = t[DROPOUT_X];
  return WEIR_OK;
}

static weir_status dropout_grad(wr_grad *g, const wr_instr *i) {
  int args[WR_MAX_ARGS] = {wr_grad_of(g, i->args[DROPOUT_Y]), WR_NEW};
  WR_TRY(wr_emit(wr_grad_program(g), &wr_op_dropout, i->params, args));
  wr_grad_add(g, i->args[DROPOUT_X], args[DROPOUT_Y]);
  return WEIR_OK;
}

/* Ten rounds of twelve operations give four elements. */
static void dropout_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_dropout, c, out);
  out->flop = 32 * wr_cost_elems(c, DROPOUT_Y);
}

static void dropout_print(const void *params, wr_str *s) {
  const wr_dropout_params *p = params;
  wr_str_printf(s, "rate=%g name=%08x", (double)p->rate, p->name);
}

int wr_dropout(wr_program *p, int x, float rate, const char *name) {
  const wr_dropout_params params = {rate, (uint32_t)wr_hash64(name, strlen(name), 0)};
  int args[WR_MAX_ARGS] = {x, WR_NEW};
  return wr_emit(p, &wr_op_dropout, &params, args) == WEIR_OK ? args[DROPOUT_Y] : WR_NONE;
}

/* rows d [dtype] [sd]: n inputs of one shape, then the op */
static weir_status same_shape_case(wr_case *c, wr_program *p, int n_in, int n_out, double sd, const void *params) {
  int64_t rows = wr_case_int(c, "rows", 3), d = wr_case_int(c, "d", 64);
  wr_vtype t = wr_rule_type(wr_case_dtype(c, "dtype", WR_F32), WR_LIVE_ROWS, rows, d, 0, 0);
  int args[WR_MAX_ARGS];
  for (int i = 0; i < n_in; i++) args[i] = wr_case_input(c, p, WR_INPUT, c->op->args[i].name, t, wr_fill_normal(0, sd));
  for (int i = n_in; i < n_in + n_out; i++) args[i] = WR_NEW;
  return wr_emit(p, c->op, params, args);
}
/* the same, [gelu=1]: that gate */
static weir_status gate_case(wr_case *c, wr_program *p, int n_in, int n_out) {
  const wr_glu_params params = {wr_case_int(c, "gelu", 0) ? WR_GELU : WR_SILU};
  return same_shape_case(c, p, n_in, n_out, wr_case_float(c, "sd", 2), &params);
}
/* rows d [dtype] [b=1] [gamma] */
static weir_status axpby_case(wr_case *c, wr_program *p) {
  const wr_vtype t =
      wr_rule_type(wr_case_dtype(c, "dtype", WR_F32), WR_LIVE_ROWS, wr_case_int(c, "rows", 3), wr_case_int(c, "d", 64), 0, 0);
  const int a = wr_case_input(c, p, WR_INPUT, "a", t, wr_fill_normal(0, 1));
  const int b = wr_case_int(c, "b", 1) ? wr_case_input(c, p, WR_INPUT, "b", t, wr_fill_normal(0, 1)) : WR_NONE;
  wr_axpby(p, -4.775f, a, 2.0315f, b, (float)wr_case_float(c, "gamma", 0));
  return WEIR_OK;
}
/* rows d [dtype] [rate] */
static weir_status dropout_case(wr_case *c, wr_program *p) {
  const wr_vtype t =
      wr_rule_type(wr_case_dtype(c, "dtype", WR_F32), WR_LIVE_ROWS, wr_case_int(c, "rows", 3), wr_case_int(c, "d", 64), 0, 0);
  c->regs.seed = 0x0123456789abcdefu;
  wr_dropout(p, wr_case_input(c, p, WR_INPUT, "x", t, wr_fill_normal(0, 1)), (float)wr_case_float(c, "rate", 0.3), "a name");
  return WEIR_OK;
}
static weir_status add_case(wr_case *c, wr_program *p) { return same_shape_case(c, p, 2, 1, 1, NULL); }
static weir_status glu_case(wr_case *c, wr_program *p) { return gate_case(c, p, 2, 1); }
static weir_status glu_bwd_case(wr_case *c, wr_program *p) { return gate_case(c, p, 3, 2); }
static weir_status gelu_case(wr_case *c, wr_program *p) { return same_shape_case(c, p, 1, 1, wr_case_float(c, "sd", 2), NULL); }
static weir_status gelu_bwd_case(wr_case *c, wr_program *p) { return same_shape_case(c, p, 2, 1, wr_case_float(c, "sd", 2), NULL); }
/* the same, [cap] */
static weir_status softcap_case(wr_case *c, wr_program *p) {
  const wr_softcap_params params = {(float)wr_case_float(c, "cap", 30)};
  return same_shape_case(c, p, 1, 1, wr_case_float(c, "sd", 20), &params);
}

const wr_op wr_op_add = {
    .name = "add",
    .doc = "y = a + b",
    .args = {{"a", WR_IN, WR_ARG_FLOAT, 0}, {"b", WR_IN, WR_ARG_FLOAT, 0}, {"y", WR_OUT, WR_ARG_FLOAT, 1 + ADD_A}},
    .shape = add_shape,
    .grad = add_grad,
    .cost = add_cost,
    .rows = add_rows,
    .n_rows = WR_ARRAY_LEN(add_rows),
    .make_case = add_case,
};

const wr_op wr_op_glu = {
    .name = "glu",
    .doc = "y = act(gate) * up",
    .args = {{"gate", WR_IN, WR_ARG_FLOAT, 0}, {"up", WR_IN, WR_ARG_FLOAT, 0}, {"y", WR_OUT, WR_ARG_FLOAT, 1 + GLU_GATE}},
    .params_bytes = sizeof(wr_glu_params),
    .shape = glu_shape,
    .grad = glu_grad,
    .cost = glu_cost,
    .print = glu_print,
    .rows = glu_rows,
    .n_rows = WR_ARRAY_LEN(glu_rows),
    .make_case = glu_case,
};

const wr_op wr_op_glu_bwd = {
    .name = "glu_bwd",
    .doc = "gradients of glu",
    .args = {{"dy", WR_IN, WR_ARG_FLOAT, 0},
             {"gate", WR_IN, WR_ARG_FLOAT, 0},
             {"up", WR_IN, WR_ARG_FLOAT, 0},
             {"dgate", WR_OUT, WR_ARG_FLOAT | WR_ARG_OPTIONAL | WR_ARG_ACC, 0},
             {"dup", WR_OUT, WR_ARG_FLOAT | WR_ARG_OPTIONAL | WR_ARG_ACC, 0}},
    .params_bytes = sizeof(wr_glu_params),
    .shape = glu_bwd_shape,
    .cost = glu_bwd_cost,
    .print = glu_print,
    .rows = glu_bwd_rows,
    .n_rows = WR_ARRAY_LEN(glu_bwd_rows),
    .make_case = glu_bwd_case,
};

const wr_op wr_op_gelu = {
    .name = "gelu",
    .doc = "y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))",
    .args = {{"x", WR_IN, WR_ARG_FLOAT, 0}, {"y", WR_OUT, WR_ARG_FLOAT, 1 + GELU_X}},
    .shape = gelu_shape,
    .grad = gelu_grad,
    .cost = gelu_cost,
    .rows = gelu_rows,
    .n_rows = WR_ARRAY_LEN(gelu_rows),
    .make_case = gelu_case,
};

const wr_op wr_op_gelu_bwd = {
    .name = "gelu_bwd",
    .doc = "gradient of gelu",
    .args = {{"dy", WR_IN, WR_ARG_FLOAT, 0},
             {"x", WR_IN, WR_ARG_FLOAT, 0},
             {"dx", WR_OUT, WR_ARG_FLOAT | WR_ARG_ACC, 1 + GELU_BWD_DY}},
    .shape = gelu_bwd_shape,
    .cost = gelu_bwd_cost,
    .rows = gelu_bwd_rows,
    .n_rows = WR_ARRAY_LEN(gelu_bwd_rows),
    .make_case = gelu_bwd_case,
};

const wr_op wr_op_softcap = {
    .name = "softcap",
    .doc = "y = cap tanh(x / cap)",
    .args = {{"x", WR_IN, WR_ARG_FLOAT, 0}, {"y", WR_OUT, WR_ARG_FLOAT, 1 + SOFTCAP_X}},
    .params_bytes = sizeof(wr_softcap_params),
    .shape = softcap_shape,
    .cost = softcap_cost,
    .print = softcap_print,
    .rows = softcap_rows,
    .n_rows = WR_ARRAY_LEN(softcap_rows),
    .make_case = softcap_case,
};

const wr_op wr_op_axpby = {
    .name = "axpby",
    .doc = "y = alpha a + beta b + gamma I",
    .args = {{"a", WR_IN, WR_ARG_FLOAT, 0},
             {"b", WR_IN, WR_ARG_FLOAT | WR_ARG_OPTIONAL, 0},
             {"y", WR_OUT, WR_ARG_FLOAT, 1 + AXPBY_A}},
    .params_bytes = sizeof(wr_axpby_params),
    .shape = axpby_shape,
    .grad = axpby_grad,
    .cost = axpby_cost,
    .print = axpby_print,
    .rows = axpby_rows,
    .n_rows = WR_ARRAY_LEN(axpby_rows),
    .make_case = axpby_case,
};

const wr_op wr_op_dropout = {
    .name = "dropout",
    .doc = "elements set to zero at a rate, the others scaled up",
    .args = {{"x", WR_IN, WR_ARG_FLOAT, 0}, {"y", WR_OUT, WR_ARG_FLOAT, 1 + DROPOUT_X}},
    .params_bytes = sizeof(wr_dropout_params),
    .shape = dropout_shape,
    .grad = dropout_grad,
    .cost = dropout_cost,
    .print = dropout_print,
    .rows = dropout_rows,
    .n_rows = WR_ARRAY_LEN(dropout_rows),
    .make_case = dropout_case,
};
