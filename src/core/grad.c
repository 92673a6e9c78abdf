/* The gradient pass: reverse-mode differentiation over the list.
 *
 * Each op has one hand-derived rule; the chain is here. The original instructions are walked backwards, and each rule appends its instructions
 * after them, so list order stays execution order. A value that is read twice receives two gradients: the second becomes ACCUMULATE on
 * the instruction that made it where its op allows, otherwise an `add`.
 *
 * A gradient may be shared: the rule of `add` hands the same value to both inputs. One that another value still needs is not added to: a
 * value needs its gradient until the rule of the instruction that made it is done, or for ever if the caller asked for it. So the gradient
 * of a sum goes on as that of its summands, and what else flows into these is added in place. */
#include "core/core.h"
#include "core/core_i.h"

struct wr_grad {
  wr_program *p;
  int n;        /* values of the forward program; later ones are gradients and have none themselves */
  bool *wanted; /* [n] depends on something whose gradient is asked for */
  bool *asked;  /* [n] in wrt: its gradient is read afterwards */
  int *grad;    /* [n] value id, -1 */
  int at;       /* the instruction whose rule is at work */
};

wr_program *wr_grad_program(wr_grad *g) { return g->p; }
int wr_grad_of(wr_grad *g, int value) { return value >= 0 && value < g->n ? g->grad[value] : WR_NONE; }
bool wr_grad_wanted(const wr_grad *g, int value) { return value >= 0 && value < g->n && g->wanted[value]; }

/* The argument by which the instruction that made `value` may add to another one instead, or -1. */
static int accumulating_arg(const wr_program *p, int value) {
  const int def = p->values[value].def;
  if (def < 0) return -1;
  const wr_instr *in = &p->instrs[def];
  for (int a = 0; in->op->args[a].role != WR_ARG_END; a++)
    if (in->op->args[a].role == WR_OUT && in->args[a] == value) return in->op->args[a].flags & WR_ARG_ACC ? a : -1;
  return -1;
}

/* Does another value than `but` still need `grad` as it is? */
static bool needed(const wr_grad *g, int grad, int but) {
  for (int v = 0; v < g->n; v++)
    if (v != but && g->grad[v] == grad && (g->asked[v] || g->p->values[v].def <= g->at)) return true;
  return false;
}

void wr_grad_add(wr_grad *g, int value, int grad) {
  wr_program *p = g->p;
  if (p->status != WEIR_OK || grad < 0 || !wr_grad_wanted(g, value)) return;
  const int sum = g->grad[value];
  if (sum < 0) {
    g->grad[value] = grad;
    return;
  }
  const bool accumulator = p->values[sum].kind == WR_STATE, made_here = sum >= g->n || accumulator;
  const bool fresh = grad >= g->n && !needed(g, grad, -1);
  const int arg = fresh && made_here && !needed(g, sum, value) ? accumulating_arg(p, grad) : -1;
  if (arg >= 0) {
    wr_instr *in = &p->instrs[p->values[grad].def];
    in->args[arg] = sum;
    in->acc |= 1u << arg;
    p->values[grad].def = -1;
    return;
  }
  if (accumulator) {
    wr_program_fail(p, WEIR_EUNSUPPORTED,
                    "the gradient of '%s' cannot be added to its accumulator: the op that makes it cannot add",
                    p->values[value].name);
    return;
  }
  int args[WR_MAX_ARGS] = {sum, grad, WR_NEW};
  if (wr_emit(p, &wr_op_add, NULL, args) == WEIR_OK) g->grad[value] = args[2];
}

bool wr_grad_take_over(wr_grad *g, const wr_instr *i) {
  wr_program *p = g->p;
  for (int a = 0; i->op->args[a].role != WR_ARG_END; a++)
    if (i->op->args[a].role == WR_UPDATE ||
        (i->op->args[a].role == WR_OUT && i->args[a] >= 0 && wr_value_readers(p, i->args[a])))
      return false;
  for (int a = 0; i->op->args[a].role != WR_ARG_END; a++)
    if (i->op->args[a].role == WR_OUT && i->args[a] >= 0) p->values[i->args[a]].def = -1;
  p->instrs[g->at].op = NULL;
  return true;
}

void wr_grad_into(wr_program *p, int param, int accumulator) {
  if (p->status != WEIR_OK || param < 0 || accumulator < 0) return;
  if (p->values[accumulator].kind != WR_STATE)
    wr_program_fail(p, WEIR_EUSAGE, "the gradient of '%s' can only be added to a STATE", p->values[param].name);
  p->values[param].grad = accumulator;
}

/* A value is wanted when it is asked for, or is computed from a wanted one. */
static void find_wanted(wr_grad *g, const int *wrt, int n_wrt) {
  const wr_program *p = g->p;
  for (int v = 0; v < g->n; v++)
    g->wanted[v] = p->values[v].kind == WR_PARAM && wr_dtypes[p->values[v].t.dtype].kind == WR_FLOAT;
  for (int i = 0; i < n_wrt; i++) g->wanted[wrt[i]] = true;
  for (int i = 0; i < p->n_instrs; i++) {
    const wr_instr *in = &p->instrs[i];
    bool any = false;
    for (int a = 0; in->op->args[a].role != WR_ARG_END; a++)
      any |= in->op->args[a].role == WR_IN && in->args[a] >= 0 && g->wanted[in->args[a]];
    for (int a = 0; any && in->op->args[a].role != WR_ARG_END; a++)
      if (in->op->args[a].role == WR_OUT && in->args[a] >= 0 && wr_dtypes[p->values[in->args[a]].t.dtype].kind == WR_FLOAT)
        g->wanted[in->args[a]] = true;
  }
}

static bool gradient_flows(const wr_grad *g, const wr_instr *in) {
  bool from = false, to = false;
  for (int a = 0; in->op->args[a].role != WR_ARG_END; a++) {
    const int v = in->args[a];
    if (v < 0 || v >= g->n) continue;
    if (in->op->args[a].role == WR_OUT) from |= g->grad[v] >= 0;
    if (in->op->args[a].role == WR_IN) to |= g->wanted[v];
  }
  return from && to;
}

/* What the caller sees: a named OUTPUT, unless an accumulator takes it. */
static void publish(wr_grad *g, int value) {
  wr_program *p = g->p;
  const int grad = g->grad[value];
  p->values[value].grad = grad;
  if (grad < 0 || p->values[grad].kind != WR_TEMP) return;
  p->values[grad].kind = WR_OUTPUT;
  if (!p->values[grad].name[0] && p->values[value].name[0]) {
    const char *name = wr_arena_printf(&p->arena, "grad.%s", p->values[value].name);
    if (!name)
      wr_program_fail(p, WEIR_ENOMEM, "no memory for the name of a gradient");
    else
      p->values[grad].name = name;
  }
}

weir_status wr_pass_grad(wr_program *p, const int *y, const int *dy, int n, const int *wrt, int n_wrt) {
  WR_TRY(wr_program_status(p));
  const size_t n_values = (size_t)WR_MAX(p->n_values, 1);
  wr_grad g = {.p = p, .n = p->n_values};
  g.wanted = wr_calloc(n_values, sizeof *g.wanted);
  g.asked = wr_calloc(n_values, sizeof *g.asked);
  g.grad = wr_calloc(n_values, sizeof *g.grad);
  if (!g.wanted || !g.asked || !g.grad)
    wr_program_fail(p, WEIR_ENOMEM, "no memory for the gradient pass over %d values", p->n_values);
  else {
    for (int v = 0; v < g.n; v++) g.grad[v] = p->values[v].grad; /* an accumulator, from wr_grad_into */
    for (int i = 0; i < n_wrt; i++) g.asked[wrt[i]] = true;
    find_wanted(&g, wrt, n_wrt);
    for (int i = 0; i < n; i++) {
      if (y[i] < 0 || dy[i] < 0 || !wr_vtype_equal(wr_type(p, y[i]), wr_type(p, dy[i])))
        wr_program_fail(p, WEIR_EUSAGE, "gradient pass: output %d and the gradient given for it differ in type", i);
      else
        g.grad[y[i]] = dy[i];
    }
  }
  const int n_forward = p->n_instrs;
  for (int i = n_forward - 1; i >= 0 && p->status == WEIR_OK; i--) {
    g.at = i;
    const wr_instr in = p->instrs[i]; /* a copy: rules append, and the array may move */
    if (!in.op || !gradient_flows(&g, &in)) continue;
    if (!in.op->grad)
      wr_program_fail(p, WEIR_EUNSUPPORTED, "op '%s' has no gradient rule: it cannot be trained through", in.op->name);
    else if (in.op->grad(&g, &in) != WEIR_OK)
      wr_program_fail(p, WEIR_EFAIL, "gradient of %s: %s", in.op->name, weir_last_error());
  }
  for (int v = 0; v < g.n && p->status == WEIR_OK; v++)
    if (p->values[v].kind == WR_PARAM && g.wanted[v]) publish(&g, v);
  for (int i = 0; i < n_wrt && p->status == WEIR_OK; i++) publish(&g, wrt[i]);
  wr_program_compact(p);
  wr_free(g.wanted);
  wr_free(g.asked);
  wr_free(g.grad);
  return wr_program_status(p);
}
