/* What the reference kernels share: they are written for reading, one element at a time, in double, for any float type. */
#ifndef WR_OPS_REF_I_H
#define WR_OPS_REF_I_H

#include <math.h>

#include "core/core.h"
#include "ops/elementwise/elementwise.h"

/* Write an output element, or add to it where the call says so. */
static inline void wr_ref_put(const wr_call *c, int arg, int64_t row, int64_t col, double value) {
  const wr_arg *a = &c->args[arg];
  if (!a->data) return;
  if (c->acc >> arg & 1) value += wr_get(a, row, col);
  wr_set(a, row, col, value);
}
/* Zero a packed output with its padding, before its elements are written. All threads call it. */
static inline void wr_ref_clear(const wr_call *c, int arg, const wr_worker *w) {
  const wr_arg *a = &c->args[arg];
  if (!a->data || a->layout == WR_PLAIN) return;
  if (!w->tid) memset(a->data, 0, wr_layout_bytes((wr_layout)a->layout, (wr_dtype)a->dtype, a->ext[0], wr_inner(a)));
  wr_barrier(w);
}

/* Activations and their slopes: see elementwise.h. */
static const double wr_ref_gelu_root = 0.79788456080286535588, wr_ref_gelu_cube = 0.044715; /* sqrt(2 / pi) */
static inline double wr_ref_gelu_tanh(double x) { return tanh(wr_ref_gelu_root * (x + wr_ref_gelu_cube * x * x * x)); }
static inline double wr_ref_act(wr_act act, double x) {
  return act == WR_SILU ? x / (1 + exp(-x)) : x / 2 * (1 + wr_ref_gelu_tanh(x));
}
static inline double wr_ref_act_slope(wr_act act, double x) {
  if (act == WR_SILU) {
    const double s = 1 / (1 + exp(-x));
    return s * (1 + x * (1 - s));
  }
  const double t = wr_ref_gelu_tanh(x);
  return (1 + t) / 2 + x / 2 * (1 - t * t) * wr_ref_gelu_root * (1 + 3 * wr_ref_gelu_cube * x * x);
}

static inline int64_t wr_ref_int(const wr_call *c, int arg, int64_t row) { return (int64_t)wr_get(&c->args[arg], row, 0); }

#endif
