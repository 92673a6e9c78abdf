/* copy: moving rows, with a change of float type.
 *
 * copy        x of any shape -> y = x in the dtype asked for, rounded to nearest even; may be added to
 * relayout    x[R, D] of F32 in any layout -> y, the same matrix in the layout asked for; its padding is zero
 * gather      x[R, D..], idx[O] -> y[O, D..], y_o = x_{idx_o}. 0 <= idx < R
 * gather_bwd  dy[O, D..], idx[O] -> dx[R, D..], dx_r = sum of dy_o over idx_o = r, o ascending; may be added to
 */
#ifndef WR_OPS_COPY_H
#define WR_OPS_COPY_H

#include "core/core.h"

typedef struct wr_copy_params {
  int dtype;
} wr_copy_params;
typedef struct wr_relayout_params {
  wr_layout layout;
} wr_relayout_params;
typedef struct wr_gather_params {
  int64_t rows;
  int live;
} wr_gather_params; /* of x: what gather_bwd makes */

int wr_copy(wr_program *p, int x, wr_dtype dtype);
int wr_relayout(wr_program *p, int x, wr_layout layout); /* x itself where it has that layout */
int wr_gather(wr_program *p, int x, int idx);

#endif
