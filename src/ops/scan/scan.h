/* scan: a first-order recurrence over a whole sequence, element by element.
 *
 * scan      a[T,B,D], b[T,B,D], h0[B,D] or absent (zero) -> h[T,B,D], hT[B,D]
 *   linear  h_t = a_t h_{t-1} + b_t
 *   mingru  h_t = (1 - z_t) h_{t-1} + z_t b_t, z_t = sigmoid(a_t): a holds the gate's logits, b the candidates
 * scan_bwd  from dh, dhT (each may be absent) -> da, db, dh0, each only if wanted. With g_t = dh_t + (what h_{t+1} hands back), t descending:
 *   linear  da_t = g_t h_{t-1};  db_t = g_t;  handed back: g_t a_t
 *   mingru  da_t = g_t (b_t - h_{t-1}) z_t (1 - z_t);  db_t = g_t z_t;  handed back: g_t (1 - z_t)
 *
 * Reference: Feng et al. 2024, Were RNNs All We Needed?, the plain form of minGRU (candidates as they are, no log-space). */
#ifndef WR_OPS_SCAN_H
#define WR_OPS_SCAN_H

#include "core/core.h"

typedef enum wr_scan_form { WR_SCAN_LINEAR, WR_SCAN_MINGRU, WR_SCAN_FORM_COUNT } wr_scan_form;
typedef struct wr_scan_params { int32_t form; } wr_scan_params;

int wr_scan(wr_program *p, wr_scan_form form, int a, int b, int h0, int *last); /* last: NULL, or gets the id of hT. -> h */

#endif
