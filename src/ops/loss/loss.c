/* Cross-entropy: shape, gradient and cost rules, the builder, the test case. Equations: loss.h. */
#include "ops/loss/loss.h"

#include "ops/cases.h"
#include "ops/loss/loss_i.h"
#include "ops/rule_i.h"

size_t xent_ref_scratch(const wr_call *c, int n_threads);

#define WR_ROWS_FILE "ops/loss/loss.def"
#include "ops/rows_i.h"

static weir_status check_prediction(const wr_vtype *logits, const wr_vtype *targets) {
  WR_TRY(wr_rule_float("logits", logits));
  WR_TRY(wr_rule_rank("logits", logits, 2));
  return wr_rule_table("targets", targets, logits->ext[0], "the rows of logits");
}

static weir_status xent_shape(const void *params, wr_vtype *t) {
  (void)params;
  const wr_vtype *logits = &t[XENT_LOGITS];
  WR_TRY(check_prediction(logits, &t[XENT_TARGETS]));
  const int stat = wr_rule_stat_dtype(logits);
  t[XENT_LOSS] = wr_rule_type(stat, WR_LIVE_ALL, 1, 0, 0, 0);
  t[XENT_LSE] = wr_rule_type(stat, logits->live, logits->ext[0], 0, 0, 0);
  return WEIR_OK;
}

static weir_status xent_bwd_shape(const void *params, wr_vtype *t) {
  (void)params;
  const wr_vtype *logits = &t[XENT_BWD_LOGITS];
  WR_TRY(check_prediction(logits, &t[XENT_BWD_TARGETS]));
  WR_TRY(wr_rule_float("dloss", &t[XENT_BWD_DLOSS]));
  WR_TRY(wr_rule_rank("dloss", &t[XENT_BWD_DLOSS], 1));
  WR_TRY(wr_rule_ext("dloss", &t[XENT_BWD_DLOSS], 0, 1, "one loss"));
  WR_TRY(wr_rule_float("lse", &t[XENT_BWD_LSE]));
  WR_TRY(wr_rule_ext("lse", &t[XENT_BWD_LSE], 0, logits->ext[0], "the rows of logits"));
  t[XENT_BWD_DLOGITS] = *logits;
  return WEIR_OK;
}

static weir_status xent_grad(wr_grad *g, const wr_instr *i) {
  const int logits = i->args[XENT_LOGITS], dloss = wr_grad_of(g, i->args[XENT_LOSS]);
  if (dloss < 0 || !wr_grad_wanted(g, logits)) return WEIR_OK;
  int args[WR_MAX_ARGS] = {dloss, logits, i->args[XENT_TARGETS], i->args[XENT_LSE], WR_NEW};
  WR_TRY(wr_emit(wr_grad_program(g), &wr_op_xent_bwd, NULL, args));
  wr_grad_add(g, logits, args[XENT_BWD_DLOGITS]);
  return WEIR_OK;
}

static void xent_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_xent, c, out);
  out->flop = 4 * wr_cost_elems(c, XENT_LOGITS);
}

static void xent_bwd_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_xent_bwd, c, out);
  out->flop = 4 * wr_cost_elems(c, XENT_BWD_LOGITS);
}

int wr_xent(wr_program *p, int logits, int targets) {
  int args[WR_MAX_ARGS] = {logits, targets, WR_NEW, WR_NEW};
  return wr_emit(p, &wr_op_xent, NULL, args) == WEIR_OK ? args[XENT_LOSS] : WR_NONE;
}

/* rows v [dtype]; targets from -1, so that some rows do not count */
static void case_prediction(wr_case *c, wr_program *p, int *logits, int *targets) {
  const int64_t R = wr_case_int(c, "rows", 3), V = wr_case_int(c, "v", 17);
  *logits = wr_case_input(c, p, WR_INPUT, "logits", wr_rule_type(wr_case_dtype(c, "dtype", WR_F32), WR_LIVE_ROWS, R, V, 0, 0),
                          wr_fill_normal(0, 3));
  *targets = wr_case_input(c, p, WR_INPUT, "targets", wr_rule_type(WR_I32, WR_LIVE_ROWS, R, 0, 0, 0), wr_fill_ints(-1, V - 1));
}

static weir_status xent_case(wr_case *c, wr_program *p) {
  int logits, targets;
  case_prediction(c, p, &logits, &targets);
  wr_xent(p, logits, targets);
  return WEIR_OK;
}

static weir_status xent_bwd_case(wr_case *c, wr_program *p) {
  int logits, targets;
  case_prediction(c, p, &logits, &targets);
  const wr_vtype *t = wr_type(p, logits);
  const int stat = wr_rule_stat_dtype(t);
  const wr_vtype rows = wr_rule_type(stat, WR_LIVE_ROWS, t->ext[0], 0, 0, 0);
  const int dloss = wr_case_input(c, p, WR_INPUT, "dloss", wr_rule_type(stat, 0, 1, 0, 0, 0), wr_fill_normal(1, 0.5));
  const int lse = wr_case_input(c, p, WR_INPUT, "lse", rows, wr_fill_normal(5, 0.5));
  int args[WR_MAX_ARGS] = {dloss, logits, targets, lse, WR_NEW};
  return wr_emit(p, &wr_op_xent_bwd, NULL, args);
}

const wr_op wr_op_xent = {
    .name = "xent",
    .doc = "mean cross-entropy of logits against token ids, in nats",
    .args = {{"logits", WR_IN, WR_ARG_FLOAT, 0},
             {"targets", WR_IN, 0, 0},
             {"loss", WR_OUT, 0, 0},
             {"lse", WR_OUT, WR_ARG_OPTIONAL | WR_ARG_SAVED, 0}},
    .shape = xent_shape,
    .grad = xent_grad,
    .cost = xent_cost,
    .rows = xent_rows,
    .n_rows = WR_ARRAY_LEN(xent_rows),
    .make_case = xent_case,
};

const wr_op wr_op_xent_bwd = {
    .name = "xent_bwd",
    .doc = "gradient of xent",
    .args = {{"dloss", WR_IN, 0, 0},
             {"logits", WR_IN, 0, 0},
             {"targets", WR_IN, 0, 0},
             {"lse", WR_IN, 0, 0},
             {"dlogits", WR_OUT, WR_ARG_FLOAT | WR_ARG_ACC, 0}},
    .shape = xent_bwd_shape,
    .cost = xent_bwd_cost,
    .rows = xent_bwd_rows,
    .n_rows = WR_ARRAY_LEN(xent_bwd_rows),
    .make_case = xent_bwd_case,
};
