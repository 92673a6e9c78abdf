/* Copies on other devices than the CPU: see copy.h. A group takes a piece of a row. */
#include "device/dialect.h"
#include "ops/types_dev.h"

enum { ITEMS = 64, PIECE = 256 };

DEV i64 piece_begin(void) { return (i64)group(1) * PIECE + item(); }
DEV i64 piece_end(i64 n) {
  const i64 end = ((i64)group(1) + 1) * PIECE;
  return end < n ? end : n;
}

/* x, y */
KERNEL(copy_any, ITEMS, 2) {
  const i64 r = group(0), end = piece_end(INNER(1));
  const i32 from = (i32)c->arg[0].dtype, to = (i32)c->arg[1].dtype;
  if (r >= LIVE(0)) return;
  for (i64 i = piece_begin(); i < end; i += ITEMS) {
    const f32 x = float_at(from, ROW(const u8, 0, r), i);
    float_put(to, ROW(u8, 1, r), i, ADDS(1) ? float_at(to, ROW(const u8, 1, r), i) + x : x);
  }
}

/* x, idx, y */
KERNEL(gather_any, ITEMS, 3) {
  const i64 r = group(0), end = piece_end(INNER(2));
  const i32 t = (i32)c->arg[0].dtype;
  if (r >= LIVE(2)) return;
  for (i64 i = piece_begin(); i < end; i += ITEMS) float_put(t, ROW(u8, 2, r), i, float_at(t, ROW(const u8, 0, *ROW(const i32, 1, r)), i));
}

/* x, y; n: floats from a column of x and of y to the next: 1, or of packed ones 16. Row r and its padding. */
KERNEL(relayout_f32, ITEMS, 2) {
  const i64 r = group(0), end = piece_end(INNER(0));
  GLOBAL const f32 *x = ARG(const f32, 0) + (c->n[0] == 1 ? r * STRIDE(0) / 4 : r / 16 * STRIDE(0) / 4 + r % 16);
  GLOBAL f32 *y = ARG(f32, 1) + (c->n[1] == 1 ? r * STRIDE(1) / 4 : r / 16 * STRIDE(1) / 4 + r % 16);
  for (i64 i = piece_begin(); i < end; i += ITEMS) y[i * c->n[1]] = r < EXT(0, 0) ? x[i * c->n[0]] : 0.0f;
}

#if WR_DEV_HOST
#include "ops/copy/copy.h"
#include "ops/copy/copy_i.h"

wr_launch_fn copy_any_dev, gather_any_dev, relayout_f32_dev;

static int64_t pieces(const wr_arg *a) { return (wr_inner(a) + PIECE - 1) / PIECE; }

void copy_any_dev(const wr_call *c, wr_launch *out) {
  wr_launch_add(out, &copy_any, c->args[COPY_X].ext[0], pieces(&c->args[COPY_X]), 1);
}

void gather_any_dev(const wr_call *c, wr_launch *out) {
  wr_launch_add(out, &gather_any, c->args[GATHER_Y].ext[0], pieces(&c->args[GATHER_Y]), 1);
}

void relayout_f32_dev(const wr_call *c, wr_launch *out) {
  const wr_arg *x = &c->args[RELAYOUT_X], *y = &c->args[RELAYOUT_Y];
  const int64_t side = y->layout == WR_PACK16 ? WR_PACK_ROWS : 1;
  out->n[0] = x->layout == WR_PACK16 ? WR_PACK_ROWS : 1;
  out->n[1] = side;
  wr_launch_add(out, &relayout_f32, (x->ext[0] + side - 1) / side * side, pieces(x), 1);
}
#endif
