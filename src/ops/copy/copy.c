/* Copies: shape, gradient and cost rules, builders, test cases. Definitions: copy.h. */
#include "ops/copy/copy.h"

#include "ops/cases.h"
#include "ops/copy/copy_i.h"
#include "ops/rule_i.h"

static const char *copy_any_refuses(const wr_call *c) { return c->acc ? "does not add to its output" : NULL; }

#define WR_ROWS_FILE "ops/copy/copy.def"
#include "ops/rows_i.h"

static weir_status copy_shape(const void *params, wr_vtype *t) {
  const wr_copy_params *p = params;
  WR_TRY(wr_rule_float("x", &t[COPY_X]));
  if (p->dtype < 0 || p->dtype >= WR_DTYPE_COUNT || wr_dtypes[p->dtype].kind != WR_FLOAT)
    return wr_fail(WEIR_EUSAGE, "dtype %d is not a float type", p->dtype);
  t[COPY_Y] = t[COPY_X];
  t[COPY_Y].dtype = (uint8_t)p->dtype;
  return WEIR_OK;
}

static weir_status copy_grad(wr_grad *g, const wr_instr *i) {
  wr_program *p = wr_grad_program(g);
  int x = i->args[COPY_X];
  wr_grad_add(g, x, wr_copy(p, wr_grad_of(g, i->args[COPY_Y]), (wr_dtype)wr_type(p, x)->dtype));
  return WEIR_OK;
}

static void copy_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_copy, c, out);
  out->copy_bytes = out->read_bytes + out->write_bytes;
}

static void copy_print(const void *params, wr_str *s) {
  wr_str_puts(s, wr_dtypes[((const wr_copy_params *)params)->dtype].name);
}

int wr_copy(wr_program *p, int x, wr_dtype dtype) {
  wr_copy_params params = {(int)dtype};
  int args[WR_MAX_ARGS] = {x, WR_NEW};
  return wr_emit(p, &wr_op_copy, &params, args) == WEIR_OK ? args[COPY_Y] : WR_NONE;
}

static weir_status gather_shape(const void *params, wr_vtype *t) {
  const wr_gather_params *p = params;
  const wr_vtype *x = &t[GATHER_X], *idx = &t[GATHER_IDX];
  WR_TRY(wr_rule_float("x", x));
  WR_TRY(wr_rule_table("idx", idx, idx->ext[0], "its own length"));
  WR_TRY(wr_rule_ext("x", x, 0, p->rows, "the rows in the parameters"));
  t[GATHER_Y] = *x;
  t[GATHER_Y].ext[0] = idx->ext[0];
  t[GATHER_Y].live = idx->live;
  return WEIR_OK;
}

static weir_status gather_bwd_shape(const void *params, wr_vtype *t) {
  const wr_gather_params *p = params;
  const wr_vtype *dy = &t[GATHER_BWD_DY], *idx = &t[GATHER_BWD_IDX];
  WR_TRY(wr_rule_float("dy", dy));
  WR_TRY(wr_rule_table("idx", idx, dy->ext[0], "the rows of dy"));
  t[GATHER_BWD_DX] = *dy;
  t[GATHER_BWD_DX].ext[0] = p->rows;
  t[GATHER_BWD_DX].live = (uint8_t)p->live;
  return WEIR_OK;
}

static weir_status gather_grad(wr_grad *g, const wr_instr *i) {
  int x = i->args[GATHER_X];
  int args[WR_MAX_ARGS] = {wr_grad_of(g, i->args[GATHER_Y]), i->args[GATHER_IDX], WR_NEW};
  WR_TRY(wr_emit(wr_grad_program(g), &wr_op_gather_bwd, i->params, args));
  wr_grad_add(g, x, args[GATHER_BWD_DX]);
  return WEIR_OK;
}

static void gather_cost(const wr_call *c, wr_cost *out) {
  double bytes = wr_cost_bytes(c, GATHER_Y);
  *out = (wr_cost){.read_bytes = bytes + wr_cost_bytes(c, GATHER_IDX), .write_bytes = bytes, .copy_bytes = 2 * bytes};
}

static void gather_bwd_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_gather_bwd, c, out);
  out->flop = wr_cost_elems(c, GATHER_BWD_DY);
}

int wr_gather(wr_program *p, int x, int idx) {
  wr_gather_params params = {wr_type(p, x)->ext[0], wr_type(p, x)->live};
  int args[WR_MAX_ARGS] = {x, idx, WR_NEW};
  return wr_emit(p, &wr_op_gather, &params, args) == WEIR_OK ? args[GATHER_Y] : WR_NONE;
}

/* rows d from to */
static weir_status copy_case(wr_case *c, wr_program *p) {
  int from = wr_case_dtype(c, "from", WR_F32), to = wr_case_dtype(c, "to", WR_F16);
  wr_vtype t = wr_rule_type(from, WR_LIVE_ROWS, wr_case_int(c, "rows", 3), wr_case_int(c, "d", 64), 0, 0);
  wr_copy(p, wr_case_input(c, p, WR_INPUT, "x", t, wr_fill_normal(0, wr_case_float(c, "sd", 1))), (wr_dtype)to);
  return WEIR_OK;
}

/* rows out d dtype */
static weir_status gather_case(wr_case *c, wr_program *p) {
  int64_t rows = wr_case_int(c, "rows", 5), out = wr_case_int(c, "out", 3);
  int dtype = wr_case_dtype(c, "dtype", WR_F32);
  wr_vtype t = wr_rule_type(dtype, WR_LIVE_ROWS, rows, wr_case_int(c, "d", 64), 0, 0),
           ti = wr_rule_type(WR_I32, WR_LIVE_OUT, out, 0, 0, 0);
  int x = wr_case_input(c, p, WR_INPUT, "x", t, wr_fill_normal(0, 1));
  int idx = wr_case_input(c, p, WR_INPUT, "idx", ti, wr_fill_ints(0, WR_MIN(rows, c->regs.live[WR_LIVE_ROWS]) - 1));
  wr_gather(p, x, idx);
  return WEIR_OK;
}

static weir_status gather_bwd_case(wr_case *c, wr_program *p) {
  wr_gather_params params = {wr_case_int(c, "rows", 5), WR_LIVE_ROWS};
  int64_t out = wr_case_int(c, "out", 3);
  wr_vtype t = wr_rule_type(wr_case_dtype(c, "dtype", WR_F32), WR_LIVE_OUT, out, wr_case_int(c, "d", 64), 0, 0);
  wr_vtype ti = wr_rule_type(WR_I32, WR_LIVE_OUT, out, 0, 0, 0);
  int dy = wr_case_input(c, p, WR_INPUT, "dy", t, wr_fill_normal(0, 1));
  int idx = wr_case_input(c, p, WR_INPUT, "idx", ti, wr_fill_ints(0, params.rows - 1));
  int args[WR_MAX_ARGS] = {dy, idx, WR_NEW};
  return wr_emit(p, &wr_op_gather_bwd, &params, args);
}

const wr_op wr_op_copy = {
    .name = "copy",
    .doc = "y = x in another float type",
    .args = {{"x", WR_IN, 0, 0}, {"y", WR_OUT, WR_ARG_ACC, 0}},
    .params_bytes = sizeof(wr_copy_params),
    .shape = copy_shape,
    .grad = copy_grad,
    .cost = copy_cost,
    .print = copy_print,
    .rows = copy_rows,
    .n_rows = WR_ARRAY_LEN(copy_rows),
    .make_case = copy_case,
};

const wr_op wr_op_gather = {
    .name = "gather",
    .doc = "y[o] = x[idx[o]]",
    .args = {{"x", WR_IN, WR_ARG_FLOAT, 0}, {"idx", WR_IN, 0, 0}, {"y", WR_OUT, WR_ARG_FLOAT, 0}},
    .params_bytes = sizeof(wr_gather_params),
    .shape = gather_shape,
    .grad = gather_grad,
    .cost = gather_cost,
    .rows = gather_rows,
    .n_rows = WR_ARRAY_LEN(gather_rows),
    .make_case = gather_case,
};

const wr_op wr_op_gather_bwd = {
    .name = "gather_bwd",
    .doc = "gradient of gather: rows are added up where they came from",
    .args = {{"dy", WR_IN, WR_ARG_FLOAT, 0}, {"idx", WR_IN, 0, 0}, {"dx", WR_OUT, WR_ARG_FLOAT | WR_ARG_ACC, 0}},
    .params_bytes = sizeof(wr_gather_params),
    .shape = gather_bwd_shape,
    .cost = gather_bwd_cost,
    .rows = gather_bwd_rows,
    .n_rows = WR_ARRAY_LEN(gather_bwd_rows),
    .make_case = gather_bwd_case,
};

/* ------------------------------------------------------------------------------------------------------------------ relayout */

static weir_status relayout_shape(const void *params, wr_vtype *t) {
  const wr_layout layout = ((const wr_relayout_params *)params)->layout;
  WR_TRY(wr_rule_weights("x", &t[RELAYOUT_X], (wr_layout)t[RELAYOUT_X].layout));
  WR_TRY(wr_rule_rank("x", &t[RELAYOUT_X], 2));
  if (!wr_layout_ok(layout, (wr_dtype)t[RELAYOUT_X].dtype, t[RELAYOUT_X].ext[1]))
    return wr_fail(WEIR_EUSAGE, "x is %s, which has no layout %s", wr_dtypes[t[RELAYOUT_X].dtype].name, wr_layout_name(layout));
  t[RELAYOUT_Y] = t[RELAYOUT_X];
  t[RELAYOUT_Y].layout = (uint8_t)layout;
  return WEIR_OK;
}

static void relayout_cost(const wr_call *c, wr_cost *out) {
  const double bytes = wr_cost_elems(c, RELAYOUT_X) * wr_dtypes[c->args[RELAYOUT_X].dtype].block_bytes;
  *out = (wr_cost){.read_bytes = bytes, .write_bytes = bytes, .copy_bytes = 2 * bytes};
}

static void relayout_print(const void *params, wr_str *s) {
  wr_str_puts(s, wr_layout_name(((const wr_relayout_params *)params)->layout));
}

int wr_relayout(wr_program *p, int x, wr_layout layout) {
  const wr_relayout_params params = {layout};
  int args[WR_MAX_ARGS] = {x, WR_NEW};
  if (wr_type(p, x)->layout == (int)layout) return x;
  return wr_emit(p, &wr_op_relayout, &params, args) == WEIR_OK ? args[RELAYOUT_Y] : WR_NONE;
}

/* rows d layout (of x) to (layout of y) */
static weir_status relayout_case(wr_case *c, wr_program *p) {
  const wr_layout from = (wr_layout)wr_case_layout(c, "layout", WR_PLAIN), to = (wr_layout)wr_case_layout(c, "to", WR_PLAIN);
  wr_vtype t = wr_rule_type(wr_case_dtype(c, "dtype", WR_F32), 0, wr_case_int(c, "rows", 3), wr_case_int(c, "d", 64), 0, 0);
  t.layout = (uint8_t)from;
  const wr_relayout_params params = {to};
  int args[WR_MAX_ARGS] = {wr_case_input(c, p, WR_INPUT, "x", t, wr_fill_normal(0, 1)), WR_NEW};
  return wr_emit(p, &wr_op_relayout, &params, args);
}

const wr_op wr_op_relayout = {
    .name = "relayout",
    .doc = "a matrix of F32 in another layout",
    .args = {{"x", WR_IN, 0, 0}, {"y", WR_OUT, 0, 0}},
    .params_bytes = sizeof(wr_relayout_params),
    .shape = relayout_shape,
    .cost = relayout_cost,
    .print = relayout_print,
    .rows = relayout_rows,
    .n_rows = WR_ARRAY_LEN(relayout_rows),
    .make_case = relayout_case,
};
