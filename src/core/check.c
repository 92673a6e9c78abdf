/* The checker: proves the invariants that core.h states, for any program, whoever built or rewrote it. */
#include "core/core.h"
#include "core/core_i.h"

static weir_status broken(int at, const wr_instr *in, int arg, const char *rule) {
  return wr_fail(WEIR_EFAIL, "instruction %d (%s), argument '%s': %s", at, in->op->name, in->op->args[arg].name, rule);
}

weir_status wr_check(const wr_program *p) {
  if (p->status != WEIR_OK) return wr_fail(p->status, "%s", p->error ? p->error : "no memory for a program");
  const size_t n_values = (size_t)p->n_values;
  bool *defined = wr_calloc(WR_MAX(n_values, (size_t)1), sizeof *defined);
  if (!defined) return wr_fail_nomem(n_values, "checking a program");
  for (int v = 0; v < p->n_values; v++) {
    const wr_kind k = p->values[v].kind;
    defined[v] = k == WR_INPUT || k == WR_PARAM || k == WR_STATE;
  }
  weir_status s = WEIR_OK;
  for (int i = 0; i < p->n_instrs && s == WEIR_OK; i++) {
    const wr_instr *in = &p->instrs[i];
    if (!in->op) continue;
    const int n = wr_op_n_args(in->op);
    wr_vtype t[WR_MAX_ARGS];
    for (int a = 0; a < n && s == WEIR_OK; a++) {
      const wr_op_arg *arg = &in->op->args[a];
      const int v = in->args[a];
      const bool adds = in->acc >> a & 1;
      if (v >= p->n_values)
        s = broken(i, in, a, "no such value");
      else if (v < 0 && !(arg->flags & WR_ARG_OPTIONAL))
        s = broken(i, in, a, "is required and absent");
      else if (v < 0)
        continue;
      else if (arg->role == WR_IN && !defined[v])
        s = broken(i, in, a, "is used before it is defined");
      else if (arg->role == WR_UPDATE && !defined[v])
        s = broken(i, in, a, "is updated before it is defined");
      else if (arg->role == WR_UPDATE && p->values[v].kind == WR_INPUT)
        s = broken(i, in, a, "an INPUT cannot be updated");
      else if (adds && !(arg->flags & WR_ARG_ACC))
        s = broken(i, in, a, "cannot be added to");
      else if (arg->role == WR_OUT && adds && !defined[v])
        s = broken(i, in, a, "is added to before it is defined");
      else if (arg->role == WR_OUT && !adds && defined[v])
        s = broken(i, in, a, "is assigned twice");
    }
    if (s == WEIR_OK && wr_instr_shape(p, in->op, in->params, in->args, false, t) != WEIR_OK)
      s = wr_fail_prefix(WEIR_EFAIL, "instruction %d (%s): ", i, in->op->name);
    for (int a = 0; a < n && s == WEIR_OK; a++) {
      if (in->op->args[a].role != WR_OUT || in->args[a] < 0) continue;
      if (!wr_vtype_equal(&t[a], &p->values[in->args[a]].t))
        s = broken(i, in, a, "the shape rule and the table of values disagree");
      defined[in->args[a]] = true;
    }
  }
  wr_free(defined);
  return s;
}
