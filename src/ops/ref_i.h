/* What the reference kernels share: they are written for reading, one element at a time, in double, for any float type. */
#ifndef WR_OPS_REF_I_H
#define WR_OPS_REF_I_H

#include "core/core.h"

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
static inline int64_t wr_ref_int(const wr_call *c, int arg, int64_t row) { return (int64_t)wr_get(&c->args[arg], row, 0); }

#endif
