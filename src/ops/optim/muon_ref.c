/* The definition of muon's ops: see muon.h for the equations. */
#include <math.h>

#include "ops/optim/muon.h"
#include "ops/optim/muon_i.h"
#include "ops/ref_i.h"

WR_ROW_FN(muon_direction_ref);
WR_ROW_FN(muon_apply_ref);

WR_ROW_FN(muon_direction_ref) {
  const wr_muon_params *p = c->params;
  const wr_arg *m = &c->args[MUON_M], *grad = &c->args[MUON_GRAD], *u = &c->args[MUON_U];
  const double scale = c->regs->grad_scale != 0 ? (double)c->regs->grad_scale : 1, keep = p->momentum;
  double sum = 0;
  wr_ref_clear(c, MUON_U, w);
  if (w->tid) return;
  for (int64_t r = 0; r < m->ext[0]; r++)
    for (int64_t i = 0; i < wr_inner(m); i++) {
      const double g = wr_get(grad, r, i) * scale, m1 = keep * wr_get(m, r, i) + (1 - keep) * g,
                   look = (1 - keep) * g + keep * m1;
      if (!c->regs->found_inf) wr_set(m, r, i, m1);
      wr_set(u, r, i, look);
      sum += look * look;
    }
  for (int64_t r = 0; r < m->ext[0]; r++)
    for (int64_t i = 0; i < wr_inner(m); i++) wr_set(u, r, i, wr_get(u, r, i) / fmax(sqrt(sum), p->eps));
}

WR_ROW_FN(muon_apply_ref) {
  const wr_muon_apply_params *p = c->params;
  const wr_arg *param = &c->args[MUON_APPLY_PARAM], *u = &c->args[MUON_APPLY_U];
  const double lr = (double)c->regs->lr;
  if (c->regs->found_inf || w->tid) return;
  for (int64_t r = 0; r < param->ext[0]; r++)
    for (int64_t i = 0; i < wr_inner(param); i++)
      wr_set(param, r, i, wr_get(param, r, i) * (1 - lr * p->weight_decay) - lr * p->scale * wr_get(u, r, i));
}
