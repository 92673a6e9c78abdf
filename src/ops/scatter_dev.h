/* scatter_dev.h: rows added to those that a table of numbers names, in kernels of the dialect: the gradient of a gather.
 *
 * First what is added to becomes 0, unless it is added to anyway. Then a group of items for each source row: the first row with its number
 * gathers all that have it, rows ascending; the others find that they are not the first, and rest. So a number's sum is made by one group
 * in one order. */
#ifndef WR_OPS_SCATTER_DEV_H
#define WR_OPS_SCATTER_DEV_H

#include "ops/tile_dev.h"

enum { SCATTER_ITEMS = 128 };

/* Element item() of row group(0), which may be padding. */
DEV void scatter_clear(matrix to, i64 D) {
  EACH(d, D, SCATTER_ITEMS) *matrix_at(to, group(0), d) = 0.0f;
}

/* Source row group(0) < rows, of D floats; target rows are those below to_rows. room[SCATTER_ITEMS]; barriers inside. */
DEV void scatter_row(LOCAL i32 *room, GLOBAL const u8 *from, i64 from_stride, GLOBAL const u8 *numbers, i64 number_stride, i64 rows,
                     matrix to, i64 to_rows, i64 D) {
  const i64 first = group(0);
  const i32 t = item(), number = *(GLOBAL const i32 *)(numbers + first * number_stride);
  i32 seen = 0;
  for (i64 r = t; r < first; r += SCATTER_ITEMS) seen |= *(GLOBAL const i32 *)(numbers + r * number_stride) == number;
  room[t] = seen;
  BARRIER();
  for (i32 i = 0; i < SCATTER_ITEMS; i++) seen |= room[i];
  if (seen || number < 0 || number >= to_rows) return;
  for (i64 r0 = first; r0 < rows; r0 += SCATTER_ITEMS) {
    BARRIER();
    room[t] = r0 + t < rows && *(GLOBAL const i32 *)(numbers + (r0 + t) * number_stride) == number;
    BARRIER();
    for (i32 i = 0; i < SCATTER_ITEMS; i++)
      for (i64 d = t; room[i] && d < D; d += SCATTER_ITEMS)
        *matrix_at(to, number, d) += ((GLOBAL const f32 *)(from + (r0 + i) * from_stride))[d];
  }
}

#endif
