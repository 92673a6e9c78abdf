/* What the shape and cost rules of all families share. A rule checks a call's argument types and leaves a sentence that names
 * the argument and both numbers; the builder puts the op's name before it. */
#ifndef WR_OPS_RULE_I_H
#define WR_OPS_RULE_I_H

#include "core/core.h"

/* A plain value of this dtype; live as given, extents outermost first, unused ones 0. */
wr_vtype wr_rule_type(int dtype, int live, int64_t e0, int64_t e1, int64_t e2, int64_t e3);
int64_t wr_rule_inner(const wr_vtype *t); /* elements of a row */
/* F64 for F64, F32 for any other float: the type of statistics (a norm's scale, a softmax's log-sum) of a value of this
 * dtype. */
int wr_rule_stat_dtype(const wr_vtype *t);

weir_status wr_rule_float(const char *arg, const wr_vtype *t); /* present, plain, F32 F64 F16 BF16 */
/* The same of a parameter and what belongs to it, in this layout. */
weir_status wr_rule_weights(const char *arg, const wr_vtype *t, wr_layout layout);
weir_status wr_rule_rank(const char *arg, const wr_vtype *t, int rank);
weir_status wr_rule_ext(const char *arg, const wr_vtype *t, int dim, int64_t want, const char *of);
/* Same rank, extents and live register. */
weir_status wr_rule_like(const char *arg, const wr_vtype *t, const char *other, const wr_vtype *want);
/* A table of I32, rank 1, `rows` long. */
weir_status wr_rule_table(const char *arg, const wr_vtype *t, int64_t rows, const char *of);
double wr_cost_bytes(const wr_call *c, int arg); /* of the live rows; 0 when absent */
double wr_cost_elems(const wr_call *c, int arg);
/* All inputs and updates read once, all outputs and updates written once. */
void wr_cost_stream(const wr_op *op, const wr_call *c, wr_cost *out);

#endif
