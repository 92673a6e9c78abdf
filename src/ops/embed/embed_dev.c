/* Rows of a table by token on other devices than the CPU: see embed.h. The table's own values, as the CPU decodes them: products and sums
 * rounded each.
 *
 * One group a row. An item takes elements of float tables, 32 at a time of packed quantised ones, whole blocks of plain quantised ones. */
#include "device/dialect.h"
#include "ops/quant_dev.h"
#include "ops/types_dev.h"

enum { ITEMS = 64 };

/* table, tokens, y; n: elements from one column to the next; of plain quantised tables the bytes of a block */
KERNEL(embed_float, ITEMS, 3) {
  const i64 r = group(0), D = EXT(2, 1), step = c->n[0];
  if (r >= LIVE(1)) return;
  const i32 token = *ROW(const i32, 1, r), t = (i32)c->arg[0].dtype;
  const i64 in = token >= 0 && token < EXT(0, 0) ? token : -1;
  GLOBAL const u8 *from = ROW(const u8, 0, in < 0 ? 0 : step == 1 ? in : in / 16) + (step == 1 || in < 0 ? 0 : in % 16 * float_bytes(t));
  GLOBAL f32 *y = ROW(f32, 2, r);
  EACH(d, D, ITEMS) y[d] = in < 0 ? 0.0f : float_at(t, from, d * step);
}

#define QUANT(name, bits, bias, part, minimum, scale_bits, scale_bias, table) \
  KERNEL(embed_##name, ITEMS, 3) { \
    const quant_form f = {bits, bias, part, minimum, scale_bits, scale_bias, table}; \
    const i64 r = group(0), D = EXT(2, 1); \
    if (r >= LIVE(1)) return; \
    const i32 token = *ROW(const i32, 1, r), in = token >= 0 && token < EXT(0, 0); \
    GLOBAL f32 *y = ROW(f32, 2, r); \
    for (i64 b = item(); b < D / 32; b += ITEMS) { \
      quant_block block; \
      if (in) quant_load(f, ROW(const u8, 0, token / 16), D, b, token % 16, &block); \
      for (i32 i = 0; i < 32; i++) y[32 * b + i] = in ? quant_value(f, &block, i) : 0.0f; \
    } \
  } \
  KERNEL(embed_plain_##name, ITEMS, 3) { \
    const quant_form f = {bits, bias, part, minimum, scale_bits, scale_bias, table}; \
    const i64 r = group(0), size = scale_bits ? 256 : 32; \
    if (r >= LIVE(1)) return; \
    const i32 token = *ROW(const i32, 1, r), in = token >= 0 && token < EXT(0, 0); \
    for (i64 b = item(); b < EXT(2, 1) / size; b += ITEMS) { \
      GLOBAL f32 *y = ROW(f32, 2, r) + b * size; \
      wr_block whole; \
      quant_block block; \
      if (in) wr_unpack_##name(ROW(const u8, 0, token) + b * c->n[0], &whole); \
      for (i32 i = 0; i < size; i++) { \
        if (in && i % 32 == 0) quant_take(f, &whole, i / 32, &block); \
        y[i] = in ? quant_value(f, &block, i % 32) : 0.0f; \
      } \
    } \
  }
#include "core/quant.def"
#undef QUANT

#if WR_DEV_HOST
#include "ops/embed/embed.h"
#include "ops/embed/embed_i.h"

wr_launch_fn embed_float_dev, embed_quant_dev;

void embed_float_dev(const wr_call *c, wr_launch *out) {
  out->n[0] = c->args[EMBED_TABLE].layout == WR_PACK16 ? WR_PACK_ROWS : 1;
  wr_launch_add(out, &embed_float, c->args[EMBED_TOKENS].ext[0], 1, 1);
}

void embed_quant_dev(const wr_call *c, wr_launch *out) {
  static const struct {
    const wr_dev_kernel *packed, *plain;
  } kernels[WR_DTYPE_COUNT] = {
#define QUANT(name, ...) [WR_##name] = {&embed_##name, &embed_plain_##name},
#include "core/quant.def"
#undef QUANT
  };
  const wr_arg *table = &c->args[EMBED_TABLE];
  const bool packed = table->layout == WR_PACK16;
  out->n[0] = wr_dtypes[table->dtype].block_bytes;
  wr_launch_add(out, packed ? kernels[table->dtype].packed : kernels[table->dtype].plain, c->args[EMBED_TOKENS].ext[0], 1, 1);
}
#endif
