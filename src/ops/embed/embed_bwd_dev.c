/* The gradient of embed on other devices than the CPU: see embed.h, and ops/scatter_dev.h for the way. */
#include "device/dialect.h"
#include "ops/scatter_dev.h"

/* tokens, dy, dtable; n: D */
KERNEL(embed_bwd_clear_f32, SCATTER_ITEMS, 3) { scatter_clear(MATRIX(2), c->n[0]); }

KERNEL(embed_bwd_f32, SCATTER_ITEMS, 3) {
  SHARED i32 room[SCATTER_ITEMS];
  if (group(0) >= LIVE(0)) return;
  scatter_row(room, ARG(const u8, 1), STRIDE(1), ARG(const u8, 0), STRIDE(0), LIVE(0), MATRIX(2), EXT(2, 0), c->n[0]);
}

#if WR_DEV_HOST
#include "ops/embed/embed_i.h"

wr_launch_fn embed_bwd_f32_dev;

void embed_bwd_f32_dev(const wr_call *c, wr_launch *out) {
  const wr_arg *dtable = &c->args[EMBED_BWD_DTABLE];
  const int64_t V = dtable->ext[0], in_group = dtable->layout == WR_PLAIN ? 1 : WR_PACK_ROWS;
  out->n[0] = wr_inner(dtable);
  if (!(c->acc >> EMBED_BWD_DTABLE & 1)) wr_launch_add(out, &embed_bwd_clear_f32, (V + in_group - 1) / in_group * in_group, 1, 1);
  wr_launch_add(out, &embed_bwd_f32, c->args[EMBED_BWD_TOKENS].ext[0], 1, 1);
}
#endif
