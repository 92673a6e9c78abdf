/* types_dev.h: the dtypes of arguments in kernels of the dialect, and elements of the float types. t: better constant after inlining. */
#ifndef WR_OPS_TYPES_DEV_H
#define WR_OPS_TYPES_DEV_H

#include "device/dialect.h"

/* wr_dtype, as wr_dev_arg.dtype has it: DT_F32, ... */
#define DTYPE(name, text, block, bytes, kind, tol) DT_##name,
enum {
#include "core/dtype.def"
  DT_COUNT
};
#undef DTYPE

DEV i32 float_bytes(i32 t) { return t == DT_F32 ? 4 : 2; }
DEV f32 float_at(i32 t, GLOBAL const u8 *p, i64 i) {
  if (t == DT_F32) return ((GLOBAL const f32 *)p)[i];
  const u16 h = ((GLOBAL const u16 *)p)[i];
  return t == DT_F16 ? f16_f32(h) : bf16_f32(h);
}
DEV void float_put(i32 t, GLOBAL u8 *p, i64 i, f32 x) {
  if (t == DT_F32)
    ((GLOBAL f32 *)p)[i] = x;
  else
    ((GLOBAL u16 *)p)[i] = t == DT_F16 ? f32_f16(x) : f32_bf16(x);
}

#endif
