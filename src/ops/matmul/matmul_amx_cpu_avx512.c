/* The row of matmul for many rows of x and quantised weights on a matrix unit (AMX, int8). The frame: matmul_unpack_i.h.
 *
 * A block of 32 elements is one product of tiles: 16 rows of x, 32 bytes each, times the eight lines of an unpacked group, which are what
 * the unit wants of its second operand: byte 4r + i of line e is element 4e + i of column r. Its 256 exact sums go through memory into
 * vectors, a lane an output, where they are scaled as everywhere in class q8k32. Weights are signed here, so sums need no correction.
 *
 * What bounds it (Sapphire Rapids, doc/notes/0006-prompts.md): a product takes 16 cycles however few bytes a row has, storing its sums 16, and
 * while tiles are worked on the second multiplier of vectors stands still. So blocks with two scales, which need two products, are refused.
 *
 * The instructions are written as asm: the compilers' own macros do not say which memory they touch, and gcc 12 then drops stores to it.
 */
#include "ops/matmul/matmul_unpack_i.h"

enum { ROWS = 16, UNIT = 4, BLOCK = ROWS * XQ_BLOCK };

/* Registers: sums 0 and 1; x 2 and 4, weights 3 and 5. */
static const struct tile_config {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} config __attribute__((aligned(64))) = {.palette = 1, .row_bytes = {64, 64, 32, 64, 32, 64}, .rows = {16, 16, 16, 8, 16, 8}};

typedef struct tile_sums {
  int32_t row[ROWS][16];
} tile_sums;

/* n columns of the product of a block: registers sum, x, weights. */
#define BLOCK_PRODUCT(sum, a, b, x, lines) \
  __asm__ volatile("tilezero %%tmm" #sum "\n\t" \
                   "tileloadd (%0,%2,1), %%tmm" #a "\n\t" \
                   "tileloadd (%1,%3,1), %%tmm" #b "\n\t" \
                   "tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #sum \
                   : \
                   : "r"(x), "r"(lines), "r"((int64_t)32), "r"((int64_t)64), "m"(*(const uint8_t(*)[32 * ROWS])(x)), \
                     "m"(*(const uint8_t(*)[512])(lines)))
#define STORE_SUMS(sum, to) \
  __asm__ volatile("tilestored %%tmm" #sum ", (%1,%2,1)" : "=m"(*(to)) : "r"((to)->row), "r"((int64_t)64))

/* The first R rows of a block's sums, scaled, onto acc. */
WR_INLINE void scale_sums(bool minimum, int R, const tile_sums *sums, const uint8_t *x, const unpacked *w, int64_t b,
                          v16 *acc) {
  const uint8_t *const scales = x + 32 * ROWS;
  const v16 dw = v16_load(w->scales + 16 * b), mw = minimum ? v16_load(w->minima + 16 * b) : dw;
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
    const v16i i = v16i_load(sums->row[r]);
    acc[r] = v16_fma(v16_mul(dw, v16_set1(read_f32(scales + XQ_SCALES * r))), v16_from_i32(i), acc[r]);
    if (minimum) acc[r] = v16_fma(mw, v16_set1(read_f32(scales + XQ_SCALES * r + 4)), acc[r]);
  }
}

/* Two blocks at a time, so that the unit works on one while the other is scaled. */
WR_INLINE void tile(bool minimum, int R, const uint8_t *x, const unpacked *w, int64_t blocks, v16 *acc) {
  tile_sums even __attribute__((aligned(64))), odd __attribute__((aligned(64)));
  v16 sums[ROWS];
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) sums[r] = v16_zero();
  int64_t b = 0;
  for (; b + 2 <= blocks; b += 2, x += 2 * BLOCK) {
    BLOCK_PRODUCT(0, 2, 3, x, w->bytes + 512 * b);
    BLOCK_PRODUCT(1, 4, 5, x + BLOCK, w->bytes + 512 * b + 512);
    STORE_SUMS(0, &even);
    STORE_SUMS(1, &odd);
#pragma GCC unroll 32
    for (int at = 0; at < 2 * BLOCK; at += 64) wr_prefetch(x + 2 * BLOCK + at);
    scale_sums(minimum, R, &even, x, w, b, sums);
    scale_sums(minimum, R, &odd, x + BLOCK, w, b + 1, sums);
  }
  if (b < blocks) {
    BLOCK_PRODUCT(0, 2, 3, x, w->bytes + 512 * b);
    STORE_SUMS(0, &even);
    scale_sums(minimum, R, &even, x, w, b, sums);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) acc[r] = sums[r];
}

#define TILE(name, minimum, R) \
  static void name##_##R(const uint8_t *x, const unpacked *w, int64_t blocks, v16 *acc) { tile(minimum, R, x, w, blocks, acc); }
#define TILES(name, minimum) \
  TILE(name, minimum, 4) \
  TILE(name, minimum, 8) TILE(name, minimum, 12) \
      TILE(name, minimum, 16) static unpacked_tile_fn *const name[] = {name##_4, name##_8, name##_12, name##_16};
TILES(plain, false)
TILES(with_minimum, true)

/* Bytes of weights as signed ones. */
WR_INLINE void unpack_signed(wr_dtype t, const weights *w, const uint8_t *group, const unpacked *to) {
  unpack_group(t, w, group, to);
  const int bias = wr_quant_of(t).bias;
  if (!bias) return;
  for (int64_t at = 0; at < w->K * 16; at += 64)
    v16i_store(to->bytes + at, _mm512_sub_epi8(v16i_load(to->bytes + at), _mm512_set1_epi8((char)bias)));
}

#define QUANT(name, bits, bias, part, minimum, scale_bits, scale_bias, table) \
  static void unpack_##name(const weights *w, const uint8_t *group, const unpacked *to) { \
    unpack_signed(WR_##name, w, group, to); \
  }
#include "core/quant.def"
#undef QUANT

#define QUANT(name, bits, bias, part, minimum, scale_bits, scale_bias, table) \
  [WR_##name] = {unpack_##name, (minimum) ? with_minimum : plain},
static const unpacked_form forms[WR_DTYPE_COUNT] = {
#include "core/quant.def"
};
#undef QUANT

WR_ROW_FN(matmul_quant_amx_cpu_avx512);
WR_ROW_FN(matmul_quant_amx_cpu_avx512) {
  __asm__ volatile("ldtilecfg %0" : : "m"(config));
  unpacked_rows(forms, ROWS, UNIT, c, w);
  __asm__ volatile("tilerelease"); /* else every switch of threads saves eight kilobytes */
}
