/* The cast pass: a dtype policy for activations. Every input that its op marks WR_ARG_FLOAT and that is not of the compute dtype is cast by a
 * `copy` in front of the instruction, once for each value; outputs follow by the shape rules. Runs before the gradient pass, so that
 * the casts have gradients like any other instruction.
 *
 * The program is rebuilt instruction by instruction, since the types of later values depend on the earlier casts. */
#include "core/core.h"
#include "core/core_i.h"

typedef struct casting {
  wr_program *p;   /* being written */
  int *now;        /* [old values] id that stands for it in the new program */
  int *as_compute; /* [old values] its cast, -1 */
  wr_dtype compute;
} casting;

static int cast_value(casting *c, int old) {
  if (c->as_compute[old] >= 0) return c->as_compute[old];
  const int v = c->now[old];
  const wr_vtype *t = wr_type(c->p, v);
  if (t->dtype == c->compute || t->layout != WR_PLAIN || wr_dtypes[t->dtype].kind != WR_FLOAT) return v;
  int args[WR_MAX_ARGS] = {v, WR_NEW};
  const int32_t dtype = (int32_t)c->compute; /* the whole parameter struct of `copy`, which core does not include */
  if (wr_emit(c->p, &wr_op_copy, &dtype, args) != WEIR_OK) return -1;
  return c->as_compute[old] = args[1];
}

static void recast_instr(casting *c, const wr_program *old, const wr_instr *in) {
  int args[WR_MAX_ARGS];
  const int n = wr_op_n_args(in->op);
  for (int a = 0; a < n; a++) {
    const wr_op_arg *arg = &in->op->args[a];
    const int v = in->args[a];
    if (arg->role == WR_OUT)
      args[a] = v < 0 ? WR_NONE : old->values[v].kind == WR_STATE || old->values[v].kind == WR_PARAM ? c->now[v] : WR_NEW;
    else
      args[a] = v < 0 ? WR_NONE : arg->flags & WR_ARG_FLOAT ? cast_value(c, v) : c->now[v];
  }
  if (wr_emit(c->p, in->op, in->params, args) != WEIR_OK) return;
  for (int a = 0; a < n; a++) {
    if (in->op->args[a].role != WR_OUT || in->args[a] < 0) continue;
    c->now[in->args[a]] = args[a];
    c->p->values[args[a]].kind = old->values[in->args[a]].kind;
    c->p->values[args[a]].name = old->values[in->args[a]].name;
  }
}

weir_status wr_pass_cast(wr_program *p, const wr_policy *policy) {
  WR_TRY(wr_program_status(p));
  if (policy->compute == WR_F32) return WEIR_OK;
  if (wr_dtypes[policy->compute].kind != WR_FLOAT)
    return wr_fail(WEIR_EUSAGE, "'%s' is not a type that activations can have", wr_dtypes[policy->compute].name);
  wr_program old = *p;
  const size_t n = (size_t)WR_MAX(old.n_values, 1);
  *p = (wr_program){.arena = old.arena}; /* names and parameters of the old program stay where they are */
  casting c = {.p = p, .compute = policy->compute};
  c.now = wr_calloc(n, sizeof *c.now);
  c.as_compute = wr_calloc(n, sizeof *c.as_compute);
  if (!c.now || !c.as_compute) wr_program_fail(p, WEIR_ENOMEM, "no memory for the cast pass over %d values", old.n_values);
  for (int v = 0; v < old.n_values && p->status == WEIR_OK; v++) {
    const wr_value *was = &old.values[v];
    const bool given = was->kind == WR_INPUT || was->kind == WR_PARAM || was->kind == WR_STATE;
    c.as_compute[v] = -1;
    c.now[v] = given ? wr_value_new(p, was->kind, was->name, &was->t) : -1;
    if (given && was->bound) wr_bind_rows(p, c.now[v], &was->buf, was->offset, (size_t)was->stride_bytes);
  }
  for (int i = 0; i < old.n_instrs && p->status == WEIR_OK; i++)
    if (old.instrs[i].op) recast_instr(&c, &old, &old.instrs[i]);
  wr_free(c.now);
  wr_free(c.as_compute);
  wr_free(old.values);
  wr_free(old.instrs);
  return wr_program_status(p);
}
