/* Muon: shape and cost rules, the program of one step, test cases. Equations: muon.h. */
#include "ops/optim/muon.h"

#include <math.h>

#include "ops/cases.h"
#include "ops/copy/copy.h"
#include "ops/elementwise/elementwise.h"
#include "ops/flat_i.h"
#include "ops/matmul/matmul.h"
#include "ops/optim/muon_i.h"
#include "ops/optim/optim_i.h"
#include "ops/rule_i.h"

/* A sum for each piece. */
static size_t muon_scratch(const wr_call *c, int n_threads) {
  (void)n_threads;
  return (size_t)wr_flat_pieces(&c->args[MUON_M], WR_MUON_PIECE) * sizeof(double);
}

#define WR_ROWS_FILE "ops/optim/muon.def"
#include "ops/rows_i.h"

static weir_status same(const char *arg, const wr_vtype *t, const char *other, const wr_vtype *want) {
  WR_TRY(wr_rule_weights(other, want, (wr_layout)want->layout));
  WR_TRY(wr_rule_weights(arg, t, (wr_layout)want->layout));
  return wr_rule_like(arg, t, other, want);
}

static weir_status muon_direction_shape(const void *params, wr_vtype *t) {
  const wr_muon_params *p = params;
  if (!(p->momentum >= 0 && p->momentum < 1) || !(p->eps > 0))
    return wr_fail(WEIR_EUSAGE, "momentum is %g, but it must be in [0, 1), and eps %g must be above 0", p->momentum, p->eps);
  WR_TRY(same("grad", &t[MUON_GRAD], "m", &t[MUON_M]));
  t[MUON_U] = t[MUON_M];
  return WEIR_OK;
}

static weir_status muon_apply_shape(const void *params, wr_vtype *t) {
  const wr_muon_apply_params *p = params;
  if (!(p->weight_decay >= 0)) return wr_fail(WEIR_EUSAGE, "weight_decay is %g, but it must not be negative", p->weight_decay);
  return same("u", &t[MUON_APPLY_U], "param", &t[MUON_APPLY_PARAM]);
}

static void muon_direction_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_muon_direction, c, out);
  out->flop = 8 * wr_cost_elems(c, MUON_M);
}

static void muon_apply_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_muon_apply, c, out);
  out->flop = 3 * wr_cost_elems(c, MUON_APPLY_PARAM);
}

static void muon_direction_print(const void *params, wr_str *s) {
  const wr_muon_params *p = params;
  wr_str_printf(s, "momentum=%g eps=%g", p->momentum, p->eps);
}

static void muon_apply_print(const void *params, wr_str *s) {
  const wr_muon_apply_params *p = params;
  wr_str_printf(s, "scale=%g weight_decay=%g", p->scale, p->weight_decay);
}

/* One step of Newton-Schulz on x [R, C], plain. The products read their second factor packed: that is the layout that they are fast from. A,
 * its square and so the polynomial are symmetric, which is why no matrix is ever turned. */
static int iterate(wr_program *p, int x) {
  const float a = 3.4445f, b = -4.7750f, c = 2.0315f;
  const bool wide = wr_type(p, x)->ext[0] <= wr_type(p, x)->ext[1];
  int gram, packed;
  if (wide) {
    packed = wr_relayout(p, x, WR_PACK16);
    gram = wr_matmul(p, x, packed, WR_NONE, WR_NONE);
    const int square = wr_matmul(p, gram, wr_relayout(p, gram, WR_PACK16), WR_NONE, WR_NONE);
    return wr_matmul_dx(p, wr_axpby(p, b, gram, c, square, a), packed, 0);
  }
  packed = wr_matmul_dw(p, x, x, WR_PACK16);
  gram = wr_relayout(p, packed, WR_PLAIN);
  const int square = wr_matmul(p, gram, packed, WR_NONE, WR_NONE);
  const int polynomial = wr_axpby(p, b, gram, c, square, a);
  return wr_matmul(p, x, wr_relayout(p, polynomial, WR_PACK16), WR_NONE, WR_NONE);
}

void wr_muon(wr_program *p, int param, int grad, int momentum, const wr_muon_params *params) {
  wr_muon_params full = *params;
  if (full.eps == 0) full.eps = 1e-7;
  if (!full.steps) full.steps = 5;
  int args[WR_MAX_ARGS] = {momentum, grad, WR_NEW};
  const wr_vtype t = *wr_type(p, param);
  if (wr_emit(p, &wr_op_muon_direction, &full, args) != WEIR_OK) return; /* a failure is kept in the program */
  int x = wr_relayout(p, args[MUON_U], WR_PLAIN);
  for (int i = 0; i < full.steps; i++) x = iterate(p, x);
  const wr_muon_apply_params apply = {0.2 * sqrt((double)WR_MAX(t.ext[0], t.ext[1])), full.weight_decay};
  int last[WR_MAX_ARGS] = {param, wr_relayout(p, x, (wr_layout)t.layout)};
  (void)wr_emit(p, &wr_op_muon_apply, &apply, last);
}

static weir_status muon_direction_case(wr_case *c, wr_program *p) {
  const wr_vtype t = wr_optim_case_weights(c);
  const wr_muon_params params = {.momentum = 0.95, .eps = 1e-7};
  int args[WR_MAX_ARGS] = {wr_case_input(c, p, WR_STATE, "m", t, wr_fill_normal(0, 0.1)), 0, WR_NEW};
  args[MUON_GRAD] = wr_case_input(c, p, WR_INPUT, "grad", t, wr_fill_normal(0, 1));
  return wr_emit(p, &wr_op_muon_direction, &params, args);
}

static weir_status muon_apply_case(wr_case *c, wr_program *p) {
  const wr_vtype t = wr_optim_case_weights(c);
  const wr_muon_apply_params params = {5, 0.1};
  int args[WR_MAX_ARGS] = {wr_case_input(c, p, WR_PARAM, "param", t, wr_fill_normal(0, 1)), 0};
  args[MUON_APPLY_U] = wr_case_input(c, p, WR_INPUT, "u", t, wr_fill_normal(0, 0.1));
  return wr_emit(p, &wr_op_muon_apply, &params, args);
}

const wr_op wr_op_muon_direction = {
    .name = "muon_direction",
    .doc = "momentum with Nesterov's look ahead, divided by its norm",
    .args = {{"m", WR_UPDATE, 0, 0}, {"grad", WR_IN, 0, 0}, {"u", WR_OUT, 0, 0}},
    .params_bytes = sizeof(wr_muon_params),
    .shape = muon_direction_shape,
    .cost = muon_direction_cost,
    .print = muon_direction_print,
    .rows = muon_direction_rows,
    .n_rows = WR_ARRAY_LEN(muon_direction_rows),
    .make_case = muon_direction_case,
};

const wr_op wr_op_muon_apply = {
    .name = "muon_apply",
    .doc = "a parameter decays and goes along u",
    .args = {{"param", WR_UPDATE, 0, 0}, {"u", WR_IN, 0, 0}},
    .params_bytes = sizeof(wr_muon_apply_params),
    .shape = muon_apply_shape,
    .cost = muon_apply_cost,
    .print = muon_apply_print,
    .rows = muon_apply_rows,
    .n_rows = WR_ARRAY_LEN(muon_apply_rows),
    .make_case = muon_apply_case,
};
