/* The definition of the scan family: see scan.h for the equations. Every element of [B,D] is a recurrence of its own. */
#include <math.h>

#include "ops/ref_i.h"
#include "ops/scan/scan.h"
#include "ops/scan/scan_i.h"

WR_ROW_FN(scan_ref);
WR_ROW_FN(scan_bwd_ref);

static double sigmoid(double v) { return 1 / (1 + exp(-v)); }

WR_ROW_FN(scan_ref) {
  const wr_arg *a = &c->args[SCAN_A], *b = &c->args[SCAN_B], *h0 = &c->args[SCAN_H0];
  const bool mingru = ((const wr_scan_params *)c->params)->form == WR_SCAN_MINGRU;
  const int64_t T = a->ext[0], D = a->ext[2];
  int64_t begin, end;
  while (wr_take(w, 0, wr_inner(a), 1, &begin, &end))
    for (int64_t i = begin; i < end; i++) {
      double h = h0->data ? wr_get(h0, i / D, i % D) : 0;
      for (int64_t t = 0; t < T; t++) {
        const double at = wr_get(a, t, i), z = sigmoid(at);
        h = mingru ? (1 - z) * h + z * wr_get(b, t, i) : at * h + wr_get(b, t, i);
        wr_ref_put(c, SCAN_H, t, i, h);
      }
      wr_ref_put(c, SCAN_HT, i / D, i % D, h);
    }
}

WR_ROW_FN(scan_bwd_ref) {
  const wr_arg *a = &c->args[SCAN_BWD_A], *b = &c->args[SCAN_BWD_B], *h0 = &c->args[SCAN_BWD_H0], *h = &c->args[SCAN_BWD_H];
  const wr_arg *dh = &c->args[SCAN_BWD_DH], *dhT = &c->args[SCAN_BWD_DHT];
  const bool mingru = ((const wr_scan_params *)c->params)->form == WR_SCAN_MINGRU;
  const int64_t T = a->ext[0], D = a->ext[2];
  int64_t begin, end;
  while (wr_take(w, 0, wr_inner(a), 1, &begin, &end))
    for (int64_t i = begin; i < end; i++) {
      double back = dhT->data ? wr_get(dhT, i / D, i % D) : 0;
      for (int64_t t = T - 1; t >= 0; t--) {
        const double before = t ? wr_get(h, t - 1, i) : h0->data ? wr_get(h0, i / D, i % D) : 0;
        const double g = back + (dh->data ? wr_get(dh, t, i) : 0), at = wr_get(a, t, i), z = sigmoid(at);
        wr_ref_put(c, SCAN_BWD_DA, t, i, mingru ? g * (wr_get(b, t, i) - before) * z * (1 - z) : g * before);
        wr_ref_put(c, SCAN_BWD_DB, t, i, mingru ? g * z : g);
        back = g * (mingru ? 1 - z : at);
      }
      wr_ref_put(c, SCAN_BWD_DH0, i / D, i % D, back);
    }
}
