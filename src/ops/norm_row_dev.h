/* norm_row_dev.h: ops/norm_row_i.h in kernels of the dialect: a row of RMSNorm by a group of 64 items, with the CPU's bits. */
#ifndef WR_OPS_NORM_ROW_DEV_H
#define WR_OPS_NORM_ROW_DEV_H

#include "device/dialect.h"

/* 1 / rms of a row, to all items; room[64]. Item t adds squares t, t + 64, ...; then quarters are added, then a tree. */
DEV f32 norm_rstd(GLOBAL const f32 *x, i64 D, f32 eps, LOCAL f32 *room) {
  const i32 t = item();
  f32 sum = 0;
  for (i64 d = t; d < D; d += 64) sum = f32_fma(x[d], x[d], sum);
  BARRIER();
  room[t] = sum;
  BARRIER();
  if (t < 16) room[t] = (room[t] + room[t + 16]) + (room[t + 32] + room[t + 48]);
  for (i32 step = 8; step > 0; step /= 2) {
    BARRIER();
    if (t < step) room[t] += room[t + step];
  }
  BARRIER();
  return 1.0f / f32_sqrt(room[0] / (f32)D + eps);
}

#endif
