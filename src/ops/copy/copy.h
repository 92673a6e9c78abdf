/* copy: moving rows, with a change of float type.
 *
 * copy        x of any shape -> y = x in the dtype asked for, rounded to nearest even; may be added to
 * gather      x[R, D..], idx[O] -> y[O, D..], y_o = x_{idx_o}. 0 <= idx < R
 * gather_bwd  dy[O, D..], idx[O] -> dx[R, D..], dx_r = sum of dy_o over idx_o = r, o ascending; may be added to
 */
#ifndef WR_OPS_COPY_H
#define WR_OPS_COPY_H

#include "core/core.h"

typedef struct wr_copy_params {
  int dtype;
} wr_copy_params;
typedef struct wr_gather_params {
  int64_t rows;
  int live;
} wr_gather_params; /* of x: what gather_bwd makes */

int wr_copy(wr_program *p, int x, wr_dtype dtype);
int wr_gather(wr_program *p, int x, int idx);

#endif
