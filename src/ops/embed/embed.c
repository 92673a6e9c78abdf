/* Embedding and its gradient: shape, gradient and cost rules, builders, test cases. Equations: embed.h. */
#include "ops/embed/embed.h"

#include "ops/cases.h"
#include "ops/embed/embed_i.h"
#include "ops/rule_i.h"

#define WR_ROWS_FILE "ops/embed/embed.def"
#include "ops/rows_i.h"

static weir_status embed_shape(const void *params, wr_vtype *t) {
  (void)params;
  const wr_vtype *table = &t[EMBED_TABLE], *tokens = &t[EMBED_TOKENS];
  WR_TRY(wr_rule_rank("table", table, 2));
  if (wr_dtypes[table->dtype].kind == WR_INT)
    return wr_fail(WEIR_EUSAGE, "table is %s, but it must hold numbers", wr_dtypes[table->dtype].name);
  WR_TRY(wr_rule_table("tokens", tokens, tokens->ext[0], "itself"));
  t[EMBED_Y] = wr_rule_type(wr_rule_stat_dtype(table), tokens->live, tokens->ext[0], table->ext[1], 0, 0);
  return WEIR_OK;
}

static weir_status embed_bwd_shape(const void *params, wr_vtype *t) {
  const wr_embed_bwd_params *p = params;
  const wr_vtype *dy = &t[EMBED_BWD_DY];
  WR_TRY(wr_rule_float("dy", dy));
  WR_TRY(wr_rule_table("tokens", &t[EMBED_BWD_TOKENS], dy->ext[0], "the number of rows of dy"));
  t[EMBED_BWD_DTABLE] = wr_rule_type(wr_rule_stat_dtype(dy), WR_LIVE_ALL, p->rows, wr_rule_inner(dy), 0, 0);
  t[EMBED_BWD_DTABLE].layout = (uint8_t)p->layout;
  return WEIR_OK;
}

static weir_status embed_grad(wr_grad *g, const wr_instr *i) {
  const int table = i->args[EMBED_TABLE];
  if (!wr_grad_wanted(g, table)) return WEIR_OK;
  wr_program *p = wr_grad_program(g);
  wr_grad_add(g, table,
              wr_embed_bwd(p, i->args[EMBED_TOKENS], wr_grad_of(g, i->args[EMBED_Y]), wr_type(p, table)->ext[0],
                           (wr_layout)wr_type(p, table)->layout));
  return wr_program_status(p);
}

/* Of the table only the rows of live tokens are read. */
static void embed_cost(const wr_call *c, wr_cost *out) {
  const wr_arg *table = &c->args[EMBED_TABLE];
  const size_t unit_bytes = wr_layout_row_bytes((wr_layout)table->layout, (wr_dtype)table->dtype, wr_inner(table));
  const double rows = (double)wr_live_rows(c, EMBED_TOKENS), in_unit = table->layout == WR_PLAIN ? 1 : WR_PACK_ROWS;
  out->weight_bytes = rows * (double)unit_bytes / in_unit;
  out->read_bytes = out->weight_bytes + wr_cost_bytes(c, EMBED_TOKENS);
  out->write_bytes = wr_cost_bytes(c, EMBED_Y);
  out->copy_bytes = out->write_bytes;
}

static void embed_bwd_cost(const wr_call *c, wr_cost *out) {
  wr_cost_stream(&wr_op_embed_bwd, c, out);
  out->flop = wr_cost_elems(c, EMBED_BWD_DY);
}

int wr_embed(wr_program *p, int table, int tokens) {
  int args[WR_MAX_ARGS] = {table, tokens, WR_NEW};
  return wr_emit(p, &wr_op_embed, NULL, args) == WEIR_OK ? args[EMBED_Y] : WR_NONE;
}

int wr_embed_bwd(wr_program *p, int tokens, int dy, int64_t rows_of_table, wr_layout layout) {
  int args[WR_MAX_ARGS] = {tokens, dy, WR_NEW};
  const wr_embed_bwd_params params = {rows_of_table, layout};
  return wr_emit(p, &wr_op_embed_bwd, &params, args) == WEIR_OK ? args[EMBED_BWD_DTABLE] : WR_NONE;
}

/* rows v d table=dtype layout */
static weir_status embed_case(wr_case *c, wr_program *p) {
  const int64_t rows = wr_case_int(c, "rows", 3), v = wr_case_int(c, "v", 7), d = wr_case_int(c, "d", 64);
  wr_vtype table = wr_rule_type(wr_case_dtype(c, "table", WR_F32), WR_LIVE_ALL, v, d, 0, 0);
  table.layout = (uint8_t)wr_case_layout(c, "layout", WR_PLAIN);
  int args[WR_MAX_ARGS] = {0, 0, WR_NEW};
  const wr_vtype tokens = wr_rule_type(WR_I32, WR_LIVE_ROWS, rows, 0, 0, 0);
  args[EMBED_TABLE] = wr_case_input(c, p, WR_PARAM, "table", table, wr_fill_normal(0, 1));
  args[EMBED_TOKENS] = wr_case_input(c, p, WR_INPUT, "tokens", tokens, wr_fill_ints(-1, v));
  return wr_emit(p, c->op, NULL, args);
}

static weir_status embed_bwd_case(wr_case *c, wr_program *p) {
  const int64_t rows = wr_case_int(c, "rows", 3), v = wr_case_int(c, "v", 7), d = wr_case_int(c, "d", 64);
  int args[WR_MAX_ARGS] = {0, 0, WR_NEW};
  const wr_vtype tokens = wr_rule_type(WR_I32, WR_LIVE_ROWS, rows, 0, 0, 0);
  const wr_vtype dy = wr_rule_type(wr_case_dtype(c, "dtype", WR_F32), WR_LIVE_ROWS, rows, d, 0, 0);
  args[EMBED_BWD_TOKENS] = wr_case_input(c, p, WR_INPUT, "tokens", tokens, wr_fill_ints(-1, v));
  args[EMBED_BWD_DY] = wr_case_input(c, p, WR_INPUT, "dy", dy, wr_fill_normal(0, 1));
  const wr_embed_bwd_params params = {v, (wr_layout)wr_case_layout(c, "layout", WR_PLAIN)};
  return wr_emit(p, c->op, &params, args);
}

const wr_op wr_op_embed = {
    .name = "embed",
    .doc = "rows of a table by token",
    .args = {{"table", WR_IN, 0, 0}, {"tokens", WR_IN, 0, 0}, {"y", WR_OUT, 0, 0}},
    .shape = embed_shape,
    .grad = embed_grad,
    .cost = embed_cost,
    .rows = embed_rows,
    .n_rows = WR_ARRAY_LEN(embed_rows),
    .make_case = embed_case,
};

const wr_op wr_op_embed_bwd = {
    .name = "embed_bwd",
    .doc = "gradient of embed: rows of dy added up by token",
    .args = {{"tokens", WR_IN, 0, 0}, {"dy", WR_IN, WR_ARG_FLOAT, 0}, {"dtable", WR_OUT, WR_ARG_ACC, 0}},
    .params_bytes = sizeof(wr_embed_bwd_params),
    .shape = embed_bwd_shape,
    .cost = embed_bwd_cost,
    .rows = embed_bwd_rows,
    .n_rows = WR_ARRAY_LEN(embed_bwd_rows),
    .make_case = embed_bwd_case,
};
