/* The helpers of rule_i.h. */
#include "ops/rule_i.h"

wr_vtype wr_rule_type(int dtype, int live, int64_t e0, int64_t e1, int64_t e2, int64_t e3) {
  wr_vtype t = {.dtype = (uint8_t)dtype, .layout = WR_PLAIN, .live = (uint8_t)live, .ext = {e0, e1, e2, e3}};
  while (t.rank < WR_MAX_DIMS && t.ext[t.rank]) t.rank++;
  for (int i = t.rank; i < WR_MAX_DIMS; i++) t.ext[i] = 1;
  return t;
}

int64_t wr_rule_inner(const wr_vtype *t) { return t->ext[1] * t->ext[2] * t->ext[3]; }

int wr_rule_stat_dtype(const wr_vtype *t) { return t->dtype == WR_F64 ? WR_F64 : WR_F32; }

static weir_status present(const char *arg, const wr_vtype *t) {
  if (t->rank) return WEIR_OK;
  return wr_fail(WEIR_EUSAGE, "argument %s is missing", arg);
}

weir_status wr_rule_weights(const char *arg, const wr_vtype *t, wr_layout layout) {
  WR_TRY(present(arg, t));
  if (t->layout != layout || t->dtype >= WR_DTYPE_COUNT || wr_dtypes[t->dtype].kind != WR_FLOAT)
    return wr_fail(WEIR_EUSAGE, "%s is %s in layout %s, but it must be a float in layout %s", arg,
                   t->dtype < WR_DTYPE_COUNT ? wr_dtypes[t->dtype].name : "of an unknown type",
                   wr_layout_name((wr_layout)t->layout), wr_layout_name(layout));
  return WEIR_OK;
}

weir_status wr_rule_float(const char *arg, const wr_vtype *t) { return wr_rule_weights(arg, t, WR_PLAIN); }

weir_status wr_rule_rank(const char *arg, const wr_vtype *t, int rank) {
  WR_TRY(present(arg, t));
  if (t->rank == rank) return WEIR_OK;
  return wr_fail(WEIR_EUSAGE, "%s has %d dimensions, not %d", arg, t->rank, rank);
}

weir_status wr_rule_ext(const char *arg, const wr_vtype *t, int dim, int64_t want, const char *of) {
  if (t->ext[dim] == want) return WEIR_OK;
  return wr_fail(WEIR_EUSAGE, "dimension %d of %s is %lld, but %s is %lld", dim, arg, (long long)t->ext[dim], of,
                 (long long)want);
}

weir_status wr_rule_like(const char *arg, const wr_vtype *t, const char *other, const wr_vtype *want) {
  WR_TRY(wr_rule_rank(arg, t, want->rank));
  for (int i = 0; i < want->rank; i++) WR_TRY(wr_rule_ext(arg, t, i, want->ext[i], other));
  if (t->live != want->live)
    return wr_fail(WEIR_EUSAGE, "%s counts its live rows by register %d, but %s by register %d", arg, t->live, other,
                   want->live);
  return WEIR_OK;
}

weir_status wr_rule_table(const char *arg, const wr_vtype *t, int64_t rows, const char *of) {
  WR_TRY(wr_rule_rank(arg, t, 1));
  if (t->dtype != WR_I32) return wr_fail(WEIR_EUSAGE, "%s is %s, not i32", arg, wr_dtypes[t->dtype].name);
  return wr_rule_ext(arg, t, 0, rows, of);
}

double wr_cost_elems(const wr_call *c, int arg) {
  const wr_arg *a = &c->args[arg];
  return a->rank ? (double)wr_live_rows(c, arg) * (double)wr_inner(a) : 0;
}

double wr_cost_bytes(const wr_call *c, int arg) {
  const wr_arg *a = &c->args[arg];
  const wr_dtype_info *d = &wr_dtypes[a->dtype];
  return wr_cost_elems(c, arg) / d->block * d->block_bytes;
}

void wr_cost_stream(const wr_op *op, const wr_call *c, wr_cost *out) {
  for (int i = 0; i < WR_MAX_ARGS && op->args[i].role != WR_ARG_END; i++) {
    double bytes = wr_cost_bytes(c, i);
    if (op->args[i].role != WR_OUT || (c->acc >> i & 1)) out->read_bytes += bytes;
    if (op->args[i].role != WR_IN) out->write_bytes += bytes;
  }
}
