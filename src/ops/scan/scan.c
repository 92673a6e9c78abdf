/* First-order recurrences: shape, gradient and cost rules, the builder, the test case. Equations: scan.h. */
#include "ops/scan/scan.h"

#include "ops/cases.h"
#include "ops/rule_i.h"
#include "ops/scan/scan_i.h"

#define WR_ROWS_FILE "ops/scan/scan.def"
#include "ops/rows_i.h"

static weir_status check_sequences(const void *params, const wr_vtype *a, const wr_vtype *b) {
  const int form = ((const wr_scan_params *)params)->form;
  if (form < 0 || form >= WR_SCAN_FORM_COUNT)
    return wr_fail(WEIR_EUSAGE, "scan form %d is none of linear (0), mingru (1)", form);
  WR_TRY(wr_rule_float("a", a));
  WR_TRY(wr_rule_rank("a", a, 3));
  WR_TRY(wr_rule_float("b", b));
  return wr_rule_like("b", b, "a", a);
}

static weir_status check_state(const char *name, const wr_vtype *t, const wr_vtype *a) {
  if (!t->rank) return WEIR_OK;
  WR_TRY(wr_rule_float(name, t));
  WR_TRY(wr_rule_rank(name, t, 2));
  WR_TRY(wr_rule_ext(name, t, 0, a->ext[1], "the batch of a"));
  return wr_rule_ext(name, t, 1, a->ext[2], "the width of a");
}

static weir_status scan_shape(const void *params, wr_vtype *t) {
  WR_TRY(check_sequences(params, &t[SCAN_A], &t[SCAN_B]));
  WR_TRY(check_state("h0", &t[SCAN_H0], &t[SCAN_A]));
  t[SCAN_H] = t[SCAN_A];
  t[SCAN_HT] = wr_rule_type(wr_rule_stat_dtype(&t[SCAN_A]), WR_LIVE_ALL, t[SCAN_A].ext[1], t[SCAN_A].ext[2], 0, 0);
  return WEIR_OK;
}

static weir_status scan_bwd_shape(const void *params, wr_vtype *t) {
  const wr_vtype *a = &t[SCAN_BWD_A];
  WR_TRY(check_sequences(params, a, &t[SCAN_BWD_B]));
  WR_TRY(check_state("h0", &t[SCAN_BWD_H0], a));
  WR_TRY(check_state("dhT", &t[SCAN_BWD_DHT], a));
  WR_TRY(wr_rule_like("h", &t[SCAN_BWD_H], "a", a));
  if (t[SCAN_BWD_DH].rank) WR_TRY(wr_rule_like("dh", &t[SCAN_BWD_DH], "a", a));
  t[SCAN_BWD_DA] = t[SCAN_BWD_DB] = *a;
  t[SCAN_BWD_DH0] = wr_rule_type(wr_rule_stat_dtype(a), WR_LIVE_ALL, a->ext[1], a->ext[2], 0, 0);
  return WEIR_OK;
}

static weir_status scan_grad(wr_grad *g, const wr_instr *i) {
  static const struct {
    int input, output;
  } gradients[] = {{SCAN_A, SCAN_BWD_DA}, {SCAN_B, SCAN_BWD_DB}, {SCAN_H0, SCAN_BWD_DH0}};
  const int *a = i->args;
  int args[WR_MAX_ARGS] = {[SCAN_BWD_DH] = wr_grad_of(g, a[SCAN_H]),
                           [SCAN_BWD_DHT] = wr_grad_of(g, a[SCAN_HT]),
                           [SCAN_BWD_A] = a[SCAN_A],
                           [SCAN_BWD_B] = a[SCAN_B],
                           [SCAN_BWD_H0] = a[SCAN_H0],
                           [SCAN_BWD_H] = a[SCAN_H]};
  for (size_t k = 0; k < WR_ARRAY_LEN(gradients); k++)
    args[gradients[k].output] = wr_grad_wanted(g, a[gradients[k].input]) ? WR_NEW : WR_NONE;
  WR_TRY(wr_emit(wr_grad_program(g), &wr_op_scan_bwd, i->params, args));
  for (size_t k = 0; k < WR_ARRAY_LEN(gradients); k++) wr_grad_add(g, a[gradients[k].input], args[gradients[k].output]);
  return WEIR_OK;
}

static void scan_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_scan, c, out);
  out->flop = 4 * wr_cost_elems(c, SCAN_A);
}

static void scan_bwd_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_scan_bwd, c, out);
  out->flop = 8 * wr_cost_elems(c, SCAN_BWD_A);
}

static void scan_print(const void *params, wr_str *s) {
  wr_str_puts(s, ((const wr_scan_params *)params)->form == WR_SCAN_MINGRU ? "form=mingru" : "form=linear");
}

int wr_scan(wr_program *p, wr_scan_form form, int a, int b, int h0, int *last) {
  const wr_scan_params params = {(int32_t)form};
  int args[WR_MAX_ARGS] = {a, b, h0, WR_NEW, last ? WR_NEW : WR_NONE};
  if (wr_emit(p, &wr_op_scan, &params, args) != WEIR_OK) return WR_NONE;
  if (last) *last = args[SCAN_HT];
  return args[SCAN_H];
}

/* t b d [form=mingru|linear] [state=1] [dtype] */
static weir_status scan_case_sequences(wr_case *c, wr_program *p, wr_scan_params *params, wr_vtype *t, int *a, int *b,
                                       int *h0) {
  const char *form = wr_case_str(c, "form", "mingru");
  *params = (wr_scan_params){strcmp(form, "linear") == 0 ? WR_SCAN_LINEAR : WR_SCAN_MINGRU};
  *t = wr_rule_type(wr_case_dtype(c, "dtype", WR_F32), 0, wr_case_int(c, "t", 4), wr_case_int(c, "b", 2),
                    wr_case_int(c, "d", 5), 0);
  const wr_vtype state = wr_rule_type(wr_rule_stat_dtype(t), 0, t->ext[1], t->ext[2], 0, 0);
  *a = wr_case_input(c, p, WR_INPUT, "a", *t, wr_fill_normal(0, 0.8));
  *b = wr_case_input(c, p, WR_INPUT, "b", *t, wr_fill_normal(0, 1));
  *h0 = wr_case_int(c, "state", 1) ? wr_case_input(c, p, WR_INPUT, "h0", state, wr_fill_normal(0, 1)) : WR_NONE;
  return WEIR_OK;
}

static weir_status scan_case(wr_case *c, wr_program *p) {
  wr_scan_params params;
  wr_vtype t;
  int a, b, h0, last;
  WR_TRY(scan_case_sequences(c, p, &params, &t, &a, &b, &h0));
  wr_scan(p, (wr_scan_form)params.form, a, b, h0, &last);
  return WEIR_OK;
}

static weir_status scan_bwd_case(wr_case *c, wr_program *p) {
  wr_scan_params params;
  wr_vtype t;
  int a, b, h0;
  WR_TRY(scan_case_sequences(c, p, &params, &t, &a, &b, &h0));
  const wr_vtype state = wr_rule_type(wr_rule_stat_dtype(&t), 0, t.ext[1], t.ext[2], 0, 0);
  const int h = wr_case_input(c, p, WR_INPUT, "h", t, wr_fill_normal(0, 1));
  const int dh = wr_case_input(c, p, WR_INPUT, "dh", t, wr_fill_normal(0, 1));
  const int dh_last = h0 >= 0 ? wr_case_input(c, p, WR_INPUT, "dhT", state, wr_fill_normal(0, 1)) : WR_NONE;
  int args[WR_MAX_ARGS] = {dh, dh_last, a, b, h0, h, WR_NEW, WR_NEW, WR_NEW};
  return wr_emit(p, &wr_op_scan_bwd, &params, args);
}

const wr_op wr_op_scan = {
    .name = "scan",
    .doc = "first-order recurrence over a whole sequence: linear, or minGRU",
    .args = {{"a", WR_IN, WR_ARG_FLOAT, 0},
             {"b", WR_IN, WR_ARG_FLOAT, 0},
             {"h0", WR_IN, WR_ARG_OPTIONAL, 0},
             {"h", WR_OUT, WR_ARG_FLOAT, 0},
             {"hT", WR_OUT, WR_ARG_OPTIONAL, 0}},
    .params_bytes = sizeof(wr_scan_params),
    .shape = scan_shape,
    .grad = scan_grad,
    .cost = scan_cost,
    .print = scan_print,
    .rows = scan_rows,
    .n_rows = WR_ARRAY_LEN(scan_rows),
    .make_case = scan_case,
};

const wr_op wr_op_scan_bwd = {
    .name = "scan_bwd",
    .doc = "gradients of scan",
    .args = {{"dh", WR_IN, WR_ARG_OPTIONAL, 0},
             {"dhT", WR_IN, WR_ARG_OPTIONAL, 0},
             {"a", WR_IN, 0, 0},
             {"b", WR_IN, 0, 0},
             {"h0", WR_IN, WR_ARG_OPTIONAL, 0},
             {"h", WR_IN, 0, 0},
             {"da", WR_OUT, WR_ARG_OPTIONAL | WR_ARG_ACC, 0},
             {"db", WR_OUT, WR_ARG_OPTIONAL | WR_ARG_ACC, 0},
             {"dh0", WR_OUT, WR_ARG_OPTIONAL | WR_ARG_ACC, 0}},
    .params_bytes = sizeof(wr_scan_params),
    .shape = scan_bwd_shape,
    .cost = scan_bwd_cost,
    .print = scan_print,
    .rows = scan_bwd_rows,
    .n_rows = WR_ARRAY_LEN(scan_bwd_rows),
    .make_case = scan_bwd_case,
};
