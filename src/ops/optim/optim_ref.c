/* The definition of the optim family: see optim.h for the equations. */
#include <math.h>

#include "ops/optim/optim.h"
#include "ops/optim/optim_i.h"
#include "ops/ref_i.h"

WR_ROW_FN(adamw_ref);
WR_ROW_FN(sgd_ref);
WR_ROW_FN(sumsq_ref);

WR_ROW_FN(adamw_ref) {
  const wr_adamw_params *p = c->params;
  const wr_arg *param = &c->args[ADAMW_PARAM], *grad = &c->args[ADAMW_GRAD], *m = &c->args[ADAMW_M], *v = &c->args[ADAMW_V];
  const double lr = (double)c->regs->lr, step = (double)c->regs->step;
  const double scale = c->regs->grad_scale != 0 ? (double)c->regs->grad_scale : 1;
  const double correct1 = 1 - pow(p->beta1, step), correct2 = 1 - pow(p->beta2, step);
  const int64_t inner = wr_inner(param);
  int64_t begin, end;
  if (c->regs->found_inf) return;
  while (wr_take(w, 0, param->ext[0], 1, &begin, &end))
    for (int64_t r = begin; r < end; r++)
      for (int64_t i = 0; i < inner; i++) {
        const double g = wr_get(grad, r, i) * scale;
        const double m1 = p->beta1 * wr_get(m, r, i) + (1 - p->beta1) * g,
                     v1 = p->beta2 * wr_get(v, r, i) + (1 - p->beta2) * g * g;
        wr_set(m, r, i, m1);
        wr_set(v, r, i, v1);
        const double decayed = wr_get(param, r, i) * (1 - lr * p->weight_decay);
        wr_set(param, r, i, decayed - lr / correct1 * m1 / (sqrt(v1 / correct2) + p->eps));
      }
}

WR_ROW_FN(sgd_ref) {
  const wr_sgd_params *p = c->params;
  const wr_arg *param = &c->args[SGD_PARAM], *grad = &c->args[SGD_GRAD], *m = &c->args[SGD_M];
  const double scale = c->regs->grad_scale != 0 ? (double)c->regs->grad_scale : 1;
  int64_t begin, end;
  if (c->regs->found_inf) return;
  while (wr_take(w, 0, param->ext[0], 1, &begin, &end))
    for (int64_t r = begin; r < end; r++)
      for (int64_t i = 0; i < wr_inner(param); i++) {
        double g = wr_get(grad, r, i) * scale + p->weight_decay * wr_get(param, r, i);
        if (m->data) {
          const double m1 = p->momentum * wr_get(m, r, i) + g;
          wr_set(m, r, i, m1);
          g = p->nesterov ? g + p->momentum * m1 : m1;
        }
        wr_set(param, r, i, wr_get(param, r, i) - (double)c->regs->lr * g);
      }
}

WR_ROW_FN(sumsq_ref) {
  const wr_arg *x = &c->args[SUMSQ_X];
  double sum = 0;
  if (w->tid) return;
  for (int64_t r = 0; r < x->ext[0]; r++)
    for (int64_t i = 0; i < wr_inner(x); i++) sum += wr_get(x, r, i) * wr_get(x, r, i);
  wr_ref_put(c, SUMSQ_Y, 0, 0, sum);
}
