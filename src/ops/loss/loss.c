/* Cross-entropy, alone and with the product before it: shape, gradient and cost rules, the builder, the test case. Equations: loss.h. */
#include "ops/loss/loss.h"

#include <math.h>

#include "ops/cases.h"
#include "ops/loss/loss_i.h"
#include "ops/rule_i.h"

size_t xent_ref_scratch(const wr_call *c, int n_threads);
size_t head_xent_ref_scratch(const wr_call *c, int n_threads);
size_t head_xent_bwd_ref_scratch(const wr_call *c, int n_threads);

static size_t head_scratch(const wr_call *c, int n_threads) {
  return wr_head_scratch_bytes(c->args[HEAD_X].ext[0], c->args[HEAD_W].ext[0], n_threads);
}

static size_t head_bwd_scratch(const wr_call *c, int n_threads) {
  return wr_head_scratch_bytes(c->args[HEAD_BWD_X].ext[0], c->args[HEAD_BWD_W].ext[0], n_threads);
}

static size_t xent_dev_scratch(const wr_call *c, int n_threads) {
  (void)n_threads;
  return (size_t)c->args[XENT_LOGITS].ext[0] * sizeof(float);
}

static size_t head_dev_scratch(const wr_call *c, int n_threads) {
  (void)n_threads;
  return wr_head_whole_bytes(c->args[HEAD_X].ext[0], c->args[HEAD_W].ext[0]);
}

static size_t head_bwd_dev_scratch(const wr_call *c, int n_threads) {
  (void)n_threads;
  return wr_head_whole_bytes(c->args[HEAD_BWD_X].ext[0], c->args[HEAD_BWD_W].ext[0]);
}

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

/* --------------------------------------------------------------------------------------------------- with the product before */

static weir_status check_head(const wr_vtype *x, const wr_vtype *w, const wr_vtype *targets) {
  WR_TRY(wr_rule_float("x", x));
  WR_TRY(wr_rule_rank("x", x, 2));
  WR_TRY(wr_rule_weights("w", w, (wr_layout)w->layout));
  WR_TRY(wr_rule_rank("w", w, 2));
  WR_TRY(wr_rule_ext("w", w, 1, x->ext[1], "the width of x"));
  return wr_rule_table("targets", targets, x->ext[0], "the rows of x");
}

static weir_status head_xent_shape(const void *params, wr_vtype *t) {
  (void)params;
  WR_TRY(check_head(&t[HEAD_X], &t[HEAD_W], &t[HEAD_TARGETS]));
  t[HEAD_LOSS] = wr_rule_type(wr_rule_stat_dtype(&t[HEAD_X]), WR_LIVE_ALL, 1, 0, 0, 0);
  return WEIR_OK;
}

static weir_status head_xent_bwd_shape(const void *params, wr_vtype *t) {
  (void)params;
  const wr_vtype *dloss = &t[HEAD_BWD_DLOSS];
  WR_TRY(check_head(&t[HEAD_BWD_X], &t[HEAD_BWD_W], &t[HEAD_BWD_TARGETS]));
  WR_TRY(wr_rule_float("dloss", dloss));
  WR_TRY(wr_rule_rank("dloss", dloss, 1));
  WR_TRY(wr_rule_ext("dloss", dloss, 0, 1, "one loss"));
  t[HEAD_BWD_LOSS] = wr_rule_type(wr_rule_stat_dtype(&t[HEAD_BWD_X]), WR_LIVE_ALL, 1, 0, 0, 0);
  t[HEAD_BWD_DX] = t[HEAD_BWD_X];
  t[HEAD_BWD_DW] = t[HEAD_BWD_W];
  return WEIR_OK;
}

static weir_status head_xent_grad(wr_grad *g, const wr_instr *i) {
  const int x = i->args[HEAD_X], w = i->args[HEAD_W], dloss = wr_grad_of(g, i->args[HEAD_LOSS]);
  const bool want_x = wr_grad_wanted(g, x), want_w = wr_grad_wanted(g, w);
  int args[WR_MAX_ARGS] = {dloss, x, w, i->args[HEAD_TARGETS], WR_NONE, want_x ? WR_NEW : WR_NONE, want_w ? WR_NEW : WR_NONE};
  if (wr_grad_take_over(g, i)) args[HEAD_BWD_LOSS] = i->args[HEAD_LOSS];
  WR_TRY(wr_emit(wr_grad_program(g), &wr_op_head_xent_bwd, NULL, args));
  if (want_x) wr_grad_add(g, x, args[HEAD_BWD_DX]);
  if (want_w) wr_grad_add(g, w, args[HEAD_BWD_DW]);
  return WEIR_OK;
}

/* An exponential counts as ten operations. The matrix has any layout, so its bytes are asked of that. */
static void head_cost(const wr_call *c, int x_arg, int w_arg, double products, wr_cost *out) {
  const wr_arg *x = &c->args[x_arg], *w = &c->args[w_arg];
  const double rows = (double)wr_live_rows(c, x_arg), V = (double)w->ext[0], D = (double)x->ext[1];
  out->weight_bytes = (double)wr_layout_bytes((wr_layout)w->layout, (wr_dtype)w->dtype, w->ext[0], w->ext[1]);
  out->read_bytes += out->weight_bytes + wr_cost_bytes(c, x_arg);
  out->flop = rows * V * (2 * D * products + 12);
}

static void head_xent_cost(const wr_call *c, wr_cost *out) { head_cost(c, HEAD_X, HEAD_W, 1, out); }

static void head_xent_bwd_cost(const wr_call *c, wr_cost *out) {
  const wr_arg *dx = &c->args[HEAD_BWD_DX], *dw = &c->args[HEAD_BWD_DW];
  head_cost(c, HEAD_BWD_X, HEAD_BWD_W, 1 + (dx->rank ? 1 : 0) + (dw->rank ? 1 : 0), out);
  if (dx->rank) out->write_bytes += wr_cost_bytes(c, HEAD_BWD_DX);
  if (dw->rank) out->write_bytes += out->weight_bytes;
  if (c->acc) out->read_bytes += out->write_bytes;
  /* packed weights are turned once a piece of rows */
  const wr_arg *x = &c->args[HEAD_BWD_X], *w = &c->args[HEAD_BWD_W];
  const double rows = (double)wr_live_rows(c, HEAD_BWD_X), piece = (double)wr_head_piece(x->ext[0], w->ext[0]);
  if (w->layout == WR_PACK16 && dx->rank) out->copy_bytes += ceil(rows / piece) * out->weight_bytes;
}

int wr_head_xent(wr_program *p, int x, int w, int targets) {
  int args[WR_MAX_ARGS] = {x, w, targets, WR_NEW};
  return wr_emit(p, &wr_op_head_xent, NULL, args) == WEIR_OK ? args[HEAD_LOSS] : WR_NONE;
}

/* rows d v [dtype] [layout]; targets from -1 to v: some rows do not count. Logits have a standard deviation of about 2. */
static void case_head(wr_case *c, wr_program *p, int *x, int *w, int *targets) {
  const int64_t R = wr_case_int(c, "rows", 3), D = wr_case_int(c, "d", 16), V = wr_case_int(c, "v", 17);
  const int dtype = wr_case_dtype(c, "dtype", WR_F32);
  wr_vtype tw = wr_rule_type(dtype, WR_LIVE_ALL, V, D, 0, 0);
  tw.layout = (uint8_t)wr_case_layout(c, "layout", WR_PLAIN);
  *x = wr_case_input(c, p, WR_INPUT, "x", wr_rule_type(dtype, WR_LIVE_ROWS, R, D, 0, 0), wr_fill_normal(0, 1));
  *w = wr_case_input(c, p, WR_PARAM, "w", tw, wr_fill_normal(0, 2 / sqrt((double)D)));
  *targets = wr_case_input(c, p, WR_INPUT, "targets", wr_rule_type(WR_I32, WR_LIVE_ROWS, R, 0, 0, 0), wr_fill_ints(-1, V));
}

static weir_status head_xent_case(wr_case *c, wr_program *p) {
  int x, w, targets;
  case_head(c, p, &x, &w, &targets);
  wr_head_xent(p, x, w, targets);
  return WEIR_OK;
}

static weir_status head_xent_bwd_case(wr_case *c, wr_program *p) {
  int args[WR_MAX_ARGS] = {0, 0, 0, 0, WR_NEW, WR_NEW, WR_NEW};
  case_head(c, p, &args[HEAD_BWD_X], &args[HEAD_BWD_W], &args[HEAD_BWD_TARGETS]);
  const wr_vtype one = wr_rule_type(wr_rule_stat_dtype(wr_type(p, args[HEAD_BWD_X])), 0, 1, 0, 0, 0);
  args[HEAD_BWD_DLOSS] = wr_case_input(c, p, WR_INPUT, "dloss", one, wr_fill_normal(1, 0.5));
  return wr_emit(p, &wr_op_head_xent_bwd, NULL, args);
}

const wr_op wr_op_head_xent = {
    .name = "head_xent",
    .doc = "mean cross-entropy of x w^T against token ids, in nats; logits in pieces",
    .args = {{"x", WR_IN, WR_ARG_FLOAT, 0}, {"w", WR_IN, 0, 0}, {"targets", WR_IN, 0, 0}, {"loss", WR_OUT, 0, 0}},
    .shape = head_xent_shape,
    .grad = head_xent_grad,
    .cost = head_xent_cost,
    .rows = head_xent_rows,
    .n_rows = WR_ARRAY_LEN(head_xent_rows),
    .make_case = head_xent_case,
};

const wr_op wr_op_head_xent_bwd = {
    .name = "head_xent_bwd",
    .doc = "loss and gradients of head_xent in one pass",
    .args = {{"dloss", WR_IN, 0, 0},
             {"x", WR_IN, WR_ARG_FLOAT, 0},
             {"w", WR_IN, 0, 0},
             {"targets", WR_IN, 0, 0},
             {"loss", WR_OUT, WR_ARG_OPTIONAL, 0},
             {"dx", WR_OUT, WR_ARG_FLOAT | WR_ARG_OPTIONAL | WR_ARG_ACC, 0},
             {"dw", WR_OUT, WR_ARG_OPTIONAL | WR_ARG_ACC, 0}},
    .shape = head_xent_bwd_shape,
    .cost = head_xent_bwd_cost,
    .rows = head_xent_bwd_rows,
    .n_rows = WR_ARRAY_LEN(head_xent_bwd_rows),
    .make_case = head_xent_bwd_case,
};
