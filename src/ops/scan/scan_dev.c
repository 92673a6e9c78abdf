/* scan on other devices than the CPU, in a plain form: see scan.h for the equations. An item has one element of [B,D] and walks all steps. */
#include "device/dialect.h"

enum { ITEMS = 64, N_INNER = 0, N_D, N_MINGRU };

DEV f32 sigmoid(f32 x) { return 1.0f / (1.0f + f32_exp(-x)); }

/* a, b, h0, h, hT */
KERNEL(scan_f32, ITEMS, 5) {
  const i64 i = (i64)group(0) * ITEMS + item(), T = EXT(0, 0), row = i / c->n[N_D], column = i % c->n[N_D];
  if (i >= c->n[N_INNER]) return;
  f32 h = HAS(2) ? ROW(const f32, 2, row)[column] : 0.0f;
  for (i64 t = 0; t < T; t++) {
    const f32 a = ROW(const f32, 0, t)[i], b = ROW(const f32, 1, t)[i], z = sigmoid(a);
    h = c->n[N_MINGRU] ? f32_fma(z, b - h, h) : f32_fma(a, h, b);
    if (HAS(3)) ROW(f32, 3, t)[i] = h;
  }
  if (HAS(4)) ROW(f32, 4, row)[column] = h;
}

/* dh, dhT, a, b, h0, h, da, db, dh0 */
KERNEL(scan_bwd_f32, ITEMS, 9) {
  const i64 i = (i64)group(0) * ITEMS + item(), T = EXT(2, 0), row = i / c->n[N_D], column = i % c->n[N_D];
  if (i >= c->n[N_INNER]) return;
  f32 back = HAS(1) ? ROW(const f32, 1, row)[column] : 0.0f;
  for (i64 t = T - 1; t >= 0; t--) {
    f32 before = 0.0f;
    if (t > 0)
      before = ROW(const f32, 5, t - 1)[i];
    else if (HAS(4))
      before = ROW(const f32, 4, row)[column];
    const f32 a = ROW(const f32, 2, t)[i], b = ROW(const f32, 3, t)[i], z = sigmoid(a);
    const f32 g = back + (HAS(0) ? ROW(const f32, 0, t)[i] : 0.0f);
    if (HAS(6)) put(&ROW(f32, 6, t)[i], c->n[N_MINGRU] ? g * (b - before) * z * (1.0f - z) : g * before, ADDS(6));
    if (HAS(7)) put(&ROW(f32, 7, t)[i], c->n[N_MINGRU] ? g * z : g, ADDS(7));
    back = g * (c->n[N_MINGRU] ? 1.0f - z : a);
  }
  if (HAS(8)) put(&ROW(f32, 8, row)[column], back, ADDS(8));
}

#if WR_DEV_HOST
#include "ops/scan/scan.h"
#include "ops/scan/scan_i.h"

wr_launch_fn scan_f32_dev, scan_bwd_f32_dev;

static void by_element(const wr_call *c, wr_launch *out, const wr_dev_kernel *k, int arg) {
  out->n[N_INNER] = wr_inner(&c->args[arg]);
  out->n[N_D] = c->args[arg].ext[2];
  out->n[N_MINGRU] = ((const wr_scan_params *)c->params)->form == WR_SCAN_MINGRU;
  wr_launch_add(out, k, (out->n[N_INNER] + ITEMS - 1) / ITEMS, 1, 1);
}

void scan_f32_dev(const wr_call *c, wr_launch *out) { by_element(c, out, &scan_f32, SCAN_A); }
void scan_bwd_f32_dev(const wr_call *c, wr_launch *out) { by_element(c, out, &scan_bwd_f32, SCAN_BWD_A); }
#endif
