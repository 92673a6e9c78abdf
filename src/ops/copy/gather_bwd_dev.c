/* The gradient of gather on other devices than the CPU: see copy.h, and ops/scatter_dev.h for the way. */
#include "device/dialect.h"
#include "ops/scatter_dev.h"

/* dy, idx, dx; n: D */
KERNEL(gather_bwd_clear_f32, SCATTER_ITEMS, 3) {
  if (group(0) < LIVE(2)) scatter_clear(MATRIX(2), c->n[0]);
}

KERNEL(gather_bwd_f32, SCATTER_ITEMS, 3) {
  SHARED i32 room[SCATTER_ITEMS];
  if (group(0) >= LIVE(0)) return;
  scatter_row(room, ARG(const u8, 0), STRIDE(0), ARG(const u8, 1), STRIDE(1), LIVE(0), MATRIX(2), LIVE(2), c->n[0]);
}

#if WR_DEV_HOST
#include "ops/copy/copy.h"
#include "ops/copy/copy_i.h"

wr_launch_fn gather_bwd_f32_dev;

void gather_bwd_f32_dev(const wr_call *c, wr_launch *out) {
  out->n[0] = wr_inner(&c->args[GATHER_BWD_DX]);
  if (!(c->acc >> GATHER_BWD_DX & 1)) wr_launch_add(out, &gather_bwd_clear_f32, c->args[GATHER_BWD_DX].ext[0], 1, 1);
  wr_launch_add(out, &gather_bwd_f32, c->args[GATHER_BWD_DY].ext[0], 1, 1);
}
#endif
