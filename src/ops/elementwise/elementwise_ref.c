/* The definition of the elementwise family: see elementwise.h for the equations. */
#include <math.h>

#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/elementwise_i.h"
#include "ops/ref_i.h"

WR_ROW_FN(add_ref);
WR_ROW_FN(axpby_ref);
WR_ROW_FN(glu_ref);
WR_ROW_FN(glu_bwd_ref);
WR_ROW_FN(gelu_ref);
WR_ROW_FN(softcap_ref);
WR_ROW_FN(dropout_ref);
WR_ROW_FN(gelu_bwd_ref);

WR_ROW_FN(add_ref) {
  const wr_arg *a = &c->args[ADD_A], *b = &c->args[ADD_B];
  int64_t inner = wr_inner(a), begin, end;
  while (wr_take(w, 0, wr_live_rows(c, ADD_A), 1, &begin, &end))
    for (int64_t r = begin; r < end; r++)
      for (int64_t i = 0; i < inner; i++) wr_ref_put(c, ADD_Y, r, i, wr_get(a, r, i) + wr_get(b, r, i));
}

WR_ROW_FN(axpby_ref) {
  const wr_arg *a = &c->args[AXPBY_A], *b = &c->args[AXPBY_B];
  const wr_axpby_params *p = c->params;
  int64_t inner = wr_inner(a), begin, end;
  while (wr_take(w, 0, wr_live_rows(c, AXPBY_A), 1, &begin, &end))
    for (int64_t r = begin; r < end; r++)
      for (int64_t i = 0; i < inner; i++) {
        double y = (double)p->alpha * wr_get(a, r, i) + (r == i ? (double)p->gamma : 0);
        if (b->data) y += (double)p->beta * wr_get(b, r, i);
        wr_ref_put(c, AXPBY_Y, r, i, y);
      }
}

WR_ROW_FN(glu_ref) {
  const wr_arg *gate = &c->args[GLU_GATE], *up = &c->args[GLU_UP];
  const wr_act act = ((const wr_glu_params *)c->params)->act;
  int64_t inner = wr_inner(gate), begin, end;
  while (wr_take(w, 0, wr_live_rows(c, GLU_GATE), 1, &begin, &end))
    for (int64_t r = begin; r < end; r++)
      for (int64_t i = 0; i < inner; i++) wr_ref_put(c, GLU_Y, r, i, wr_ref_act(act, wr_get(gate, r, i)) * wr_get(up, r, i));
}

WR_ROW_FN(glu_bwd_ref) {
  const wr_arg *gate = &c->args[GLU_BWD_GATE], *up = &c->args[GLU_BWD_UP], *dy = &c->args[GLU_BWD_DY];
  const wr_act act = ((const wr_glu_params *)c->params)->act;
  int64_t inner = wr_inner(gate), begin, end;
  while (wr_take(w, 0, wr_live_rows(c, GLU_BWD_GATE), 1, &begin, &end))
    for (int64_t r = begin; r < end; r++)
      for (int64_t i = 0; i < inner; i++) {
        double g = wr_get(gate, r, i), u = wr_get(up, r, i), d = wr_get(dy, r, i);
        wr_ref_put(c, GLU_BWD_DGATE, r, i, d * u * wr_ref_act_slope(act, g));
        wr_ref_put(c, GLU_BWD_DUP, r, i, d * wr_ref_act(act, g));
      }
}

WR_ROW_FN(gelu_ref) {
  const wr_arg *x = &c->args[GELU_X];
  int64_t inner = wr_inner(x), begin, end;
  while (wr_take(w, 0, wr_live_rows(c, GELU_X), 1, &begin, &end))
    for (int64_t r = begin; r < end; r++)
      for (int64_t i = 0; i < inner; i++) wr_ref_put(c, GELU_Y, r, i, wr_ref_act(WR_GELU, wr_get(x, r, i)));
}

WR_ROW_FN(gelu_bwd_ref) {
  const wr_arg *x = &c->args[GELU_BWD_X], *dy = &c->args[GELU_BWD_DY];
  int64_t inner = wr_inner(x), begin, end;
  while (wr_take(w, 0, wr_live_rows(c, GELU_BWD_X), 1, &begin, &end))
    for (int64_t r = begin; r < end; r++)
      for (int64_t i = 0; i < inner; i++)
        wr_ref_put(c, GELU_BWD_DX, r, i, wr_get(dy, r, i) * wr_ref_act_slope(WR_GELU, wr_get(x, r, i)));
}

WR_ROW_FN(softcap_ref) {
  const wr_arg *x = &c->args[SOFTCAP_X];
  const double cap = (double)((const wr_softcap_params *)c->params)->cap;
  int64_t inner = wr_inner(x), begin, end;
  while (wr_take(w, 0, wr_live_rows(c, SOFTCAP_X), 1, &begin, &end))
    for (int64_t r = begin; r < end; r++)
      for (int64_t i = 0; i < inner; i++) wr_ref_put(c, SOFTCAP_Y, r, i, cap * tanh(wr_get(x, r, i) / cap));
}

WR_ROW_FN(dropout_ref) {
  const wr_arg *x = &c->args[DROPOUT_X];
  const wr_dropout_params *p = c->params;
  int64_t inner = wr_inner(x), begin, end;
  while (wr_take(w, 0, wr_live_rows(c, DROPOUT_X), 1, &begin, &end))
    for (int64_t r = begin; r < end; r++)
      for (int64_t i = 0; i < inner; i++) {
        uint32_t bits[4];
        wr_philox(c->regs->seed, (uint64_t)p->name << 32 | (uint32_t)c->regs->step,
                  (uint64_t)r << 32 | (uint32_t)(i / 64 * 16 + i % 16), bits);
        const bool keep = (double)(bits[i / 16 % 4] >> 8) >= (double)p->rate * 0x1p24;
        wr_ref_put(c, DROPOUT_Y, r, i, keep ? wr_get(x, r, i) / (1 - (double)p->rate) : 0);
      }
}
