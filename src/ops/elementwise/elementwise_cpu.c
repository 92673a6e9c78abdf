/* Elementwise ops on the CPU, FP32, compiled once for each instruction set; the same bits from each.
 *
 * The unit of work is a piece of a row, so that a single long row is shared out too. Where an element costs an exponential
 * the pieces are small enough for one token of a small model to be shared out; a sum of two rows that short is done sooner
 * than another thread wakes. */
#include "ops/act_i.h"
#include "ops/arg_i.h"
#include "ops/elementwise/elementwise.h"
#include "ops/elementwise/elementwise_i.h"
#include "ops/simd_i.h"

WR_ROW_FN(WR_KERNEL(add_f32_cpu));
WR_ROW_FN(WR_KERNEL(axpby_f32_cpu));
WR_ROW_FN(WR_KERNEL(glu_f32_cpu));
WR_ROW_FN(WR_KERNEL(glu_bwd_f32_cpu));
WR_ROW_FN(WR_KERNEL(gelu_f32_cpu));
WR_ROW_FN(WR_KERNEL(gelu_bwd_f32_cpu));
WR_ROW_FN(WR_KERNEL(softcap_f32_cpu));

enum { SUM_PIECE = 2048, EXP_PIECE = 256 };

/* The next piece of this thread: row and columns. `state` holds what was taken. */
typedef struct pieces {
  int64_t piece, per_row, n, grain, inner, at, end;
} pieces;

static pieces pieces_of(const wr_call *c, int arg, int64_t piece) {
  int64_t inner = wr_inner(&c->args[arg]), per_row = (inner + piece - 1) / piece;
  return (pieces){.piece = piece,
                  .per_row = per_row,
                  .n = per_row * wr_live_rows(c, arg),
                  .grain = wr_rows_grain(WR_MIN(inner, piece)),
                  .inner = inner};
}

static bool next_piece(pieces *s, const wr_worker *w, int64_t *row, int64_t *from, int64_t *to) {
  if (s->at >= s->end && !wr_take(w, 0, s->n, s->grain, &s->at, &s->end)) return false;
  *row = s->at / s->per_row;
  *from = s->at % s->per_row * s->piece;
  *to = WR_MIN(*from + s->piece, s->inner);
  s->at++;
  return true;
}

WR_ROW_FN(WR_KERNEL(add_f32_cpu)) {
  int64_t r, from, to;
  for (pieces s = pieces_of(c, ADD_A, SUM_PIECE); next_piece(&s, w, &r, &from, &to);) {
    const float *a = wr_arg_f32(&c->args[ADD_A], r), *b = wr_arg_f32(&c->args[ADD_B], r);
    float *y = wr_arg_f32(&c->args[ADD_Y], r);
    for (int64_t i = from; i < to; i += WR_LANES) {
      int n = wr_lanes(to - i);
      v16_store_n(y + i, v16_add(v16_load_n(a + i, n), v16_load_n(b + i, n)), n);
    }
  }
}

WR_ROW_FN(WR_KERNEL(axpby_f32_cpu)) {
  const wr_axpby_params *p = c->params;
  const v16 alpha = v16_set1(p->alpha), beta = v16_set1(p->beta);
  int64_t r, from, to;
  for (pieces s = pieces_of(c, AXPBY_A, SUM_PIECE); next_piece(&s, w, &r, &from, &to);) {
    const float *a = wr_arg_f32(&c->args[AXPBY_A], r), *b = c->args[AXPBY_B].data ? wr_arg_f32(&c->args[AXPBY_B], r) : NULL;
    float *y = wr_arg_f32(&c->args[AXPBY_Y], r);
    for (int64_t i = from; i < to; i += WR_LANES) {
      int n = wr_lanes(to - i);
      v16 v = v16_mul(alpha, v16_load_n(a + i, n));
      v16_store_n(y + i, b ? v16_fma(beta, v16_load_n(b + i, n), v) : v, n);
    }
    if (p->gamma != 0 && r >= from && r < to) y[r] += p->gamma;
  }
}

WR_ROW_FN(WR_KERNEL(glu_f32_cpu)) {
  const wr_act act = ((const wr_glu_params *)c->params)->act;
  int64_t r, from, to;
  for (pieces s = pieces_of(c, GLU_GATE, EXP_PIECE); next_piece(&s, w, &r, &from, &to);) {
    const float *gate = wr_arg_f32(&c->args[GLU_GATE], r), *up = wr_arg_f32(&c->args[GLU_UP], r);
    float *y = wr_arg_f32(&c->args[GLU_Y], r);
    for (int64_t i = from; i < to; i += WR_LANES) {
      int n = wr_lanes(to - i);
      v16_store_n(y + i, v16_mul(wr_act_v16(act, v16_load_n(gate + i, n)), v16_load_n(up + i, n)), n);
    }
  }
}

WR_INLINE void put(const wr_call *c, int arg, int64_t r, int64_t i, int n, v16 v) {
  if (!c->args[arg].data) return;
  float *y = wr_arg_f32(&c->args[arg], r) + i;
  v16_store_n(y, c->acc >> arg & 1 ? v16_add(v16_load_n(y, n), v) : v, n);
}

WR_ROW_FN(WR_KERNEL(glu_bwd_f32_cpu)) {
  const wr_act act = ((const wr_glu_params *)c->params)->act;
  int64_t r, from, to;
  for (pieces s = pieces_of(c, GLU_BWD_GATE, EXP_PIECE); next_piece(&s, w, &r, &from, &to);) {
    const float *gate = wr_arg_f32(&c->args[GLU_BWD_GATE], r), *up = wr_arg_f32(&c->args[GLU_BWD_UP], r);
    const float *dy = wr_arg_f32(&c->args[GLU_BWD_DY], r);
    for (int64_t i = from; i < to; i += WR_LANES) {
      int n = wr_lanes(to - i);
      v16 g = v16_load_n(gate + i, n), u = v16_load_n(up + i, n), d = v16_load_n(dy + i, n), slope;
      v16 y = wr_act_slope_v16(act, g, &slope);
      put(c, GLU_BWD_DGATE, r, i, n, v16_mul(v16_mul(d, u), slope));
      put(c, GLU_BWD_DUP, r, i, n, v16_mul(d, y));
    }
  }
}

WR_ROW_FN(WR_KERNEL(gelu_f32_cpu)) {
  int64_t r, from, to;
  for (pieces s = pieces_of(c, GELU_X, EXP_PIECE); next_piece(&s, w, &r, &from, &to);) {
    const float *x = wr_arg_f32(&c->args[GELU_X], r);
    float *y = wr_arg_f32(&c->args[GELU_Y], r);
    for (int64_t i = from; i < to; i += WR_LANES) {
      int n = wr_lanes(to - i);
      v16_store_n(y + i, wr_act_v16(WR_GELU, v16_load_n(x + i, n)), n);
    }
  }
}

WR_ROW_FN(WR_KERNEL(gelu_bwd_f32_cpu)) {
  int64_t r, from, to;
  for (pieces s = pieces_of(c, GELU_BWD_X, EXP_PIECE); next_piece(&s, w, &r, &from, &to);) {
    const float *x = wr_arg_f32(&c->args[GELU_BWD_X], r), *dy = wr_arg_f32(&c->args[GELU_BWD_DY], r);
    for (int64_t i = from; i < to; i += WR_LANES) {
      int n = wr_lanes(to - i);
      v16 slope;
      (void)wr_act_slope_v16(WR_GELU, v16_load_n(x + i, n), &slope);
      put(c, GELU_BWD_DX, r, i, n, v16_mul(v16_load_n(dy + i, n), slope));
    }
  }
}

WR_ROW_FN(WR_KERNEL(softcap_f32_cpu)) {
  const v16 cap = v16_set1(((const wr_softcap_params *)c->params)->cap);
  int64_t r, from, to;
  for (pieces s = pieces_of(c, SOFTCAP_X, EXP_PIECE); next_piece(&s, w, &r, &from, &to);) {
    const float *x = wr_arg_f32(&c->args[SOFTCAP_X], r);
    float *y = wr_arg_f32(&c->args[SOFTCAP_Y], r);
    for (int64_t i = from; i < to; i += WR_LANES) {
      int n = wr_lanes(to - i);
      v16_store_n(y + i, v16_mul(cap, v16_tanh(v16_div(v16_load_n(x + i, n), cap))), n);
    }
  }
}
