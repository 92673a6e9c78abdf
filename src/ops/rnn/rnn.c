/* The recurrent layer: shape, gradient and cost rules, the builder, the test case. Equations: rnn.h. */
#include "ops/rnn/rnn.h"

#include "ops/cases.h"
#include "ops/rnn/rnn_i.h"
#include "ops/rule_i.h"

size_t rnn_bwd_ref_scratch(const wr_call *c, int n_threads);
const char *rnn_dev_refuses(const wr_call *c);
const char *rnn_bwd_dev_refuses(const wr_call *c);
size_t rnn_bwd_dev_scratch(const wr_call *c, int n_threads);

#define WR_ROWS_FILE "ops/rnn/rnn.def"
#include "ops/rows_i.h"

/* A state [B,H] that may be absent. */
static weir_status check_state(const char *name, const wr_vtype *t, int64_t B, int64_t H) {
  if (!t->rank) return WEIR_OK;
  WR_TRY(wr_rule_float(name, t));
  WR_TRY(wr_rule_rank(name, t, 2));
  WR_TRY(wr_rule_ext(name, t, 0, B, "the batch of x"));
  return wr_rule_ext(name, t, 1, H, "the hidden size");
}

static weir_status check_layer(const wr_vtype *x, const wr_vtype *w_ih, const wr_vtype *w_hh) {
  WR_TRY(wr_rule_float("x", x));
  WR_TRY(wr_rule_rank("x", x, 3));
  WR_TRY(wr_rule_float("w_ih", w_ih));
  WR_TRY(wr_rule_rank("w_ih", w_ih, 2));
  WR_TRY(wr_rule_float("w_hh", w_hh));
  WR_TRY(wr_rule_rank("w_hh", w_hh, 2));
  WR_TRY(wr_rule_ext("w_ih", w_ih, 1, x->ext[2], "the width of x"));
  WR_TRY(wr_rule_ext("w_ih", w_ih, 0, RNN_GATE_COUNT * w_hh->ext[1], "four times the hidden size"));
  return wr_rule_ext("w_hh", w_hh, 0, RNN_GATE_COUNT * w_hh->ext[1], "four times the hidden size");
}

static weir_status rnn_shape(const void *params, wr_vtype *t) {
  (void)params;
  const wr_vtype *x = &t[RNN_X];
  WR_TRY(check_layer(x, &t[RNN_W_IH], &t[RNN_W_HH]));
  const int64_t T = x->ext[0], B = x->ext[1], H = t[RNN_W_HH].ext[1];
  if (t[RNN_BIAS].rank) {
    WR_TRY(wr_rule_float("bias", &t[RNN_BIAS]));
    WR_TRY(wr_rule_rank("bias", &t[RNN_BIAS], 1));
    WR_TRY(wr_rule_ext("bias", &t[RNN_BIAS], 0, RNN_GATE_COUNT * H, "four times the hidden size"));
  }
  WR_TRY(check_state("h0", &t[RNN_H0], B, H));
  WR_TRY(check_state("c0", &t[RNN_C0], B, H));
  const int stat = wr_rule_stat_dtype(x);
  t[RNN_Y] = wr_rule_type(x->dtype, x->live, T, B, H, 0);
  t[RNN_HT] = t[RNN_CT] = wr_rule_type(stat, WR_LIVE_ALL, B, H, 0, 0);
  t[RNN_GATES] = wr_rule_type(stat, WR_LIVE_ALL, T, B, RNN_GATE_COUNT, H);
  t[RNN_CELLS] = wr_rule_type(stat, WR_LIVE_ALL, T, B, H, 0);
  return WEIR_OK;
}

static weir_status rnn_bwd_shape(const void *params, wr_vtype *t) {
  (void)params;
  const wr_vtype *x = &t[RNN_BWD_X], *y = &t[RNN_BWD_Y];
  WR_TRY(check_layer(x, &t[RNN_BWD_W_IH], &t[RNN_BWD_W_HH]));
  const int64_t B = x->ext[1], H = t[RNN_BWD_W_HH].ext[1];
  WR_TRY(wr_rule_float("y", y));
  if (t[RNN_BWD_DY].rank) WR_TRY(wr_rule_like("dy", &t[RNN_BWD_DY], "y", y));
  WR_TRY(check_state("dhT", &t[RNN_BWD_DHT], B, H));
  WR_TRY(check_state("dcT", &t[RNN_BWD_DCT], B, H));
  WR_TRY(wr_rule_rank("gates", &t[RNN_BWD_GATES], 4));
  WR_TRY(wr_rule_ext("gates", &t[RNN_BWD_GATES], 3, H, "the hidden size"));
  WR_TRY(wr_rule_rank("cells", &t[RNN_BWD_CELLS], 3));
  t[RNN_BWD_DX] = *x;
  t[RNN_BWD_DW_IH] = t[RNN_BWD_W_IH];
  t[RNN_BWD_DW_HH] = t[RNN_BWD_W_HH];
  const int stat = wr_rule_stat_dtype(x);
  t[RNN_BWD_DBIAS] = wr_rule_type(stat, WR_LIVE_ALL, RNN_GATE_COUNT * H, 0, 0, 0);
  t[RNN_BWD_DH0] = t[RNN_BWD_DC0] = wr_rule_type(stat, WR_LIVE_ALL, B, H, 0, 0);
  return WEIR_OK;
}

static weir_status rnn_grad(wr_grad *g, const wr_instr *i) {
  static const struct {
    int input, output;
  } gradients[] = {{RNN_X, RNN_BWD_DX},       {RNN_W_IH, RNN_BWD_DW_IH}, {RNN_W_HH, RNN_BWD_DW_HH},
                   {RNN_BIAS, RNN_BWD_DBIAS}, {RNN_H0, RNN_BWD_DH0},     {RNN_C0, RNN_BWD_DC0}};
  const int *a = i->args;
  int args[WR_MAX_ARGS] = {[RNN_BWD_DY] = wr_grad_of(g, a[RNN_Y]),
                           [RNN_BWD_DHT] = wr_grad_of(g, a[RNN_HT]),
                           [RNN_BWD_DCT] = wr_grad_of(g, a[RNN_CT]),
                           [RNN_BWD_X] = a[RNN_X],
                           [RNN_BWD_W_IH] = a[RNN_W_IH],
                           [RNN_BWD_W_HH] = a[RNN_W_HH],
                           [RNN_BWD_H0] = a[RNN_H0],
                           [RNN_BWD_C0] = a[RNN_C0],
                           [RNN_BWD_Y] = a[RNN_Y],
                           [RNN_BWD_GATES] = a[RNN_GATES],
                           [RNN_BWD_CELLS] = a[RNN_CELLS]};
  for (size_t k = 0; k < WR_ARRAY_LEN(gradients); k++)
    args[gradients[k].output] = wr_grad_wanted(g, a[gradients[k].input]) ? WR_NEW : WR_NONE;
  WR_TRY(wr_emit(wr_grad_program(g), &wr_op_rnn_bwd, NULL, args));
  for (size_t k = 0; k < WR_ARRAY_LEN(gradients); k++) wr_grad_add(g, a[gradients[k].input], args[gradients[k].output]);
  return WEIR_OK;
}

static void rnn_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_rnn, c, out);
  const double rows = (double)(c->args[RNN_X].ext[0] * c->args[RNN_X].ext[1]), H = (double)c->args[RNN_W_HH].ext[1];
  out->flop = rows * RNN_GATE_COUNT * H * 2 * ((double)c->args[RNN_X].ext[2] + H);
}

static void rnn_bwd_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_rnn_bwd, c, out);
  const double rows = (double)(c->args[RNN_BWD_X].ext[0] * c->args[RNN_BWD_X].ext[1]), H = (double)c->args[RNN_BWD_W_HH].ext[1];
  out->flop = rows * RNN_GATE_COUNT * H * 4 * ((double)c->args[RNN_BWD_X].ext[2] + H);
}

int wr_rnn(wr_program *p, int x, int w_ih, int w_hh, int bias, int h0, int c0, wr_rnn_last *last) {
  int args[WR_MAX_ARGS] = {x, w_ih, w_hh, bias, h0, c0, WR_NEW, WR_NEW, WR_NEW, WR_NEW, WR_NEW};
  if (wr_emit(p, &wr_op_rnn, NULL, args) != WEIR_OK) return WR_NONE;
  if (last) *last = (wr_rnn_last){args[RNN_HT], args[RNN_CT]};
  return args[RNN_Y];
}

/* t b d h [bias=1] [state=1: h0 and c0 are given] [dtype] */
static weir_status rnn_case(wr_case *c, wr_program *p) {
  const int64_t T = wr_case_int(c, "t", 3), B = wr_case_int(c, "b", 2), D = wr_case_int(c, "d", 4), H = wr_case_int(c, "h", 5);
  const int dtype = wr_case_dtype(c, "dtype", WR_F32), stat = wr_case_dtype(c, "state_dtype", WR_F32);
  const bool bias = wr_case_int(c, "bias", 1), state = wr_case_int(c, "state", 1);
  const wr_fill small = wr_fill_normal(0, 0.5), unit = wr_fill_normal(0, 1);
  int x = wr_case_input(c, p, WR_INPUT, "x", wr_rule_type(dtype, 0, T, B, D, 0), unit);
  int w_ih = wr_case_input(c, p, WR_PARAM, "w_ih", wr_rule_type(dtype, 0, 4 * H, D, 0, 0), small);
  int w_hh = wr_case_input(c, p, WR_PARAM, "w_hh", wr_rule_type(dtype, 0, 4 * H, H, 0, 0), small);
  int b = bias ? wr_case_input(c, p, WR_PARAM, "bias", wr_rule_type(stat, 0, 4 * H, 0, 0, 0), small) : WR_NONE;
  int h0 = state ? wr_case_input(c, p, WR_INPUT, "h0", wr_rule_type(stat, 0, B, H, 0, 0), small) : WR_NONE;
  int c0 = state ? wr_case_input(c, p, WR_INPUT, "c0", wr_rule_type(stat, 0, B, H, 0, 0), unit) : WR_NONE;
  wr_rnn(p, x, w_ih, w_hh, b, h0, c0, NULL);
  return WEIR_OK;
}

static weir_status rnn_bwd_case(wr_case *c, wr_program *p) {
  const int64_t T = wr_case_int(c, "t", 3), B = wr_case_int(c, "b", 2), D = wr_case_int(c, "d", 4), H = wr_case_int(c, "h", 5);
  const int dtype = wr_case_dtype(c, "dtype", WR_F32);
  const bool last = wr_case_int(c, "last", 1);
  const wr_fill small = wr_fill_normal(0, 0.5), unit = wr_fill_normal(0, 1), gate = wr_fill_uniform(0.1, 0.9);
  const wr_vtype state = wr_rule_type(dtype, 0, B, H, 0, 0), sequence = wr_rule_type(dtype, 0, T, B, H, 0);
  int args[WR_MAX_ARGS];
  for (int a = 0; a < WR_MAX_ARGS; a++) args[a] = WR_NEW;
  args[RNN_BWD_DY] = wr_case_input(c, p, WR_INPUT, "dy", sequence, unit);
  args[RNN_BWD_DHT] = last ? wr_case_input(c, p, WR_INPUT, "dhT", state, unit) : WR_NONE;
  args[RNN_BWD_DCT] = last ? wr_case_input(c, p, WR_INPUT, "dcT", state, unit) : WR_NONE;
  args[RNN_BWD_X] = wr_case_input(c, p, WR_INPUT, "x", wr_rule_type(dtype, 0, T, B, D, 0), unit);
  args[RNN_BWD_W_IH] = wr_case_input(c, p, WR_PARAM, "w_ih", wr_rule_type(dtype, 0, 4 * H, D, 0, 0), small);
  args[RNN_BWD_W_HH] = wr_case_input(c, p, WR_PARAM, "w_hh", wr_rule_type(dtype, 0, 4 * H, H, 0, 0), small);
  args[RNN_BWD_H0] = last ? wr_case_input(c, p, WR_INPUT, "h0", state, small) : WR_NONE;
  args[RNN_BWD_C0] = last ? wr_case_input(c, p, WR_INPUT, "c0", state, unit) : WR_NONE;
  args[RNN_BWD_Y] = wr_case_input(c, p, WR_INPUT, "y", sequence, small);
  args[RNN_BWD_GATES] = wr_case_input(c, p, WR_INPUT, "gates", wr_rule_type(dtype, 0, T, B, RNN_GATE_COUNT, H), gate);
  args[RNN_BWD_CELLS] = wr_case_input(c, p, WR_INPUT, "cells", sequence, unit);
  return wr_emit(p, &wr_op_rnn_bwd, NULL, args);
}

const wr_op wr_op_rnn = {
    .name = "rnn",
    .doc = "LSTM over a whole sequence",
    .args = {{"x", WR_IN, WR_ARG_FLOAT, 0},
             {"w_ih", WR_IN, 0, 0},
             {"w_hh", WR_IN, 0, 0},
             {"bias", WR_IN, WR_ARG_OPTIONAL, 0},
             {"h0", WR_IN, WR_ARG_OPTIONAL, 0},
             {"c0", WR_IN, WR_ARG_OPTIONAL, 0},
             {"y", WR_OUT, WR_ARG_FLOAT, 0},
             {"hT", WR_OUT, WR_ARG_OPTIONAL, 0},
             {"cT", WR_OUT, 0, 0},
             {"gates", WR_OUT, WR_ARG_OPTIONAL | WR_ARG_SAVED, 0},
             {"cells", WR_OUT, WR_ARG_OPTIONAL | WR_ARG_SAVED, 0}},
    .shape = rnn_shape,
    .grad = rnn_grad,
    .cost = rnn_cost,
    .rows = rnn_rows,
    .n_rows = WR_ARRAY_LEN(rnn_rows),
    .make_case = rnn_case,
};

const wr_op wr_op_rnn_bwd = {
    .name = "rnn_bwd",
    .doc = "gradients of rnn",
    .args = {{"dy", WR_IN, WR_ARG_OPTIONAL, 0},
             {"dhT", WR_IN, WR_ARG_OPTIONAL, 0},
             {"dcT", WR_IN, WR_ARG_OPTIONAL, 0},
             {"x", WR_IN, 0, 0},
             {"w_ih", WR_IN, 0, 0},
             {"w_hh", WR_IN, 0, 0},
             {"h0", WR_IN, WR_ARG_OPTIONAL, 0},
             {"c0", WR_IN, WR_ARG_OPTIONAL, 0},
             {"y", WR_IN, 0, 0},
             {"gates", WR_IN, 0, 0},
             {"cells", WR_IN, 0, 0},
             {"dx", WR_OUT, WR_ARG_OPTIONAL | WR_ARG_ACC, 0},
             {"dw_ih", WR_OUT, WR_ARG_OPTIONAL | WR_ARG_ACC, 0},
             {"dw_hh", WR_OUT, WR_ARG_OPTIONAL | WR_ARG_ACC, 0},
             {"dbias", WR_OUT, WR_ARG_OPTIONAL | WR_ARG_ACC, 0},
             {"dh0", WR_OUT, WR_ARG_OPTIONAL | WR_ARG_ACC, 0},
             {"dc0", WR_OUT, WR_ARG_OPTIONAL | WR_ARG_ACC, 0}},
    .shape = rnn_bwd_shape,
    .cost = rnn_bwd_cost,
    .rows = rnn_bwd_rows,
    .n_rows = WR_ARRAY_LEN(rnn_bwd_rows),
    .make_case = rnn_bwd_case,
};
