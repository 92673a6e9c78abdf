/* The rows of matmul for many rows of x and quantised weights, by the products of bytes that every instruction set has in one form or
 * another. The frame: matmul_unpack_i.h. Against matmul_cpu.c, which unpacks weights in registers for each tile, this one has
 * nothing but products in its inner loop; it pays from some two tiles on. */
#include "ops/matmul/matmul_unpack_i.h"

/* Rows of x in a tile, and the step of the heights that are computed at the end of x. */
#if WR_ISA_LEVEL >= 2
enum { ROWS = 12, UNIT = 4 };
#elif WR_ISA_LEVEL == 1
enum { ROWS = 4, UNIT = 2 };
#else
enum { ROWS = 2, UNIT = 2 };
#endif
enum { AHEAD_BLOCKS = 2 }; /* x comes from the second-level cache, where no more than its own lines are fetched unasked */

/* R rows of a tile. wide: bytes of weights may be above 127. */
WR_INLINE void tile(int parts, bool minimum, bool wide, int R, const uint8_t *x, const unpacked *w, int64_t blocks, v16 *acc) {
  enum { BLOCK = ROWS * XQ_BLOCK };
  const int lines = 8 / parts;
  v16 sums[ROWS];
#pragma GCC unroll 12
  for (int r = 0; r < R; r++) sums[r] = v16_zero();
  for (int64_t b = 0; b < blocks; b++, x += BLOCK) {
    const uint8_t *const scales = x + 32 * ROWS;
#pragma GCC unroll 16
    for (int at = 0; at < BLOCK; at += 64) wr_prefetch(x + AHEAD_BLOCKS * BLOCK + at);
#pragma GCC unroll 2
    for (int part = 0; part < parts; part++) {
      v16i i[ROWS];
#pragma GCC unroll 12
      for (int r = 0; r < R; r++) i[r] = minimum ? v16i_zero() : v16i_set1(read_i32(scales + XQ_SCALES * r + 4 + 4 * part));
#pragma GCC unroll 8
      for (int n = 0; n < lines; n++) {
        const int e = part * lines + n;
        const v16i line = v16i_load(w->bytes + b * 512 + 64 * e);
#pragma GCC unroll 12
        for (int r = 0; r < R; r++) {
          const v16i four = v16i_set1(read_i32(x + 32 * r + 4 * e));
          i[r] = wide ? v16i_dot4(i[r], line, four) : v16i_dot4_u7(i[r], line, four);
        }
      }
      const v16 dw = v16_load(w->scales + 16 * (b * parts + part));
      const v16 mw = minimum ? v16_load(w->minima + 16 * (b * parts + part)) : dw;
#pragma GCC unroll 12
      for (int r = 0; r < R; r++) {
        const uint8_t *of_row = scales + XQ_SCALES * r;
        sums[r] = v16_fma(v16_mul(dw, v16_set1(read_f32(of_row))), v16_from_i32(i[r]), sums[r]);
        if (minimum) sums[r] = v16_fma(mw, v16_set1(read_f32(of_row + 4 + 4 * part)), sums[r]);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; r++) acc[r] = sums[r];
}

#define TILE(name, parts, minimum, wide, R) \
  static void name##_##R(const uint8_t *x, const unpacked *w, int64_t blocks, v16 *acc) { \
    tile(parts, minimum, wide, R, x, w, blocks, acc); \
  }
#if WR_ISA_LEVEL >= 2
  #define TILES(name, parts, minimum, wide) \
    TILE(name, parts, minimum, wide, 4) \
    TILE(name, parts, minimum, wide, 8) \
        TILE(name, parts, minimum, wide, 12) static unpacked_tile_fn *const name[] = {name##_4, name##_8, name##_12};
#elif WR_ISA_LEVEL == 1
  #define TILES(name, parts, minimum, wide) \
    TILE(name, parts, minimum, wide, 2) \
    TILE(name, parts, minimum, wide, 4) static unpacked_tile_fn *const name[] = {name##_2, name##_4};
#else
  #define TILES(name, parts, minimum, wide) \
    TILE(name, parts, minimum, wide, 2) \
    static unpacked_tile_fn *const name[] = {name##_2};
#endif
TILES(one_wide, 1, false, true)
TILES(one, 1, false, false)
TILES(one_minimum, 1, true, false)
TILES(two, 2, false, false)
TILES(two_minimum, 2, true, false)

/* The tiles of a form of block. */
#define WIDE(bits, table) ((bits) == 8 || (table))
#define TILES_OF(parts, minimum, wide) \
  ((parts) == 1 ? (minimum) ? one_minimum : (wide) ? one_wide : one : (minimum) ? two_minimum : two)

#define QUANT(name, bits, bias, part, minimum, scale_bits, scale_bias, table) \
  static void unpack_##name(const weights *w, const uint8_t *group, const unpacked *to) { \
    unpack_group(WR_##name, w, group, to); \
  }
#include "core/quant.def"
#undef QUANT

#define QUANT(name, bits, bias, part, minimum, scale_bits, scale_bias, table) \
  [WR_##name] = {unpack_##name, TILES_OF(32 / part, minimum, WIDE(bits, table))},
static const unpacked_form forms[WR_DTYPE_COUNT] = {
#include "core/quant.def"
};
#undef QUANT

WR_ROW_FN(WR_KERNEL(matmul_quant_unpack_cpu));
WR_ROW_FN(WR_KERNEL(matmul_quant_unpack_cpu)) { unpacked_rows(forms, ROWS, UNIT, c, w); }
