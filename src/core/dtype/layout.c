/* layout.c: where the elements of a matrix lie. Owns the forms `plain`, `pack16` and `keys32`.
 *
 * plain: rows one after another, each of whole blocks, as in a GGUF file.
 *
 * pack16, version 1: groups of sixteen rows, so that a vector lane is an output row and every load of weights is one aligned
 * 64-byte line. K is the row length in elements, r the row within the group (a lane). Little-endian. Rows that the matrix lacks in
 * its last group are zero; so is all padding: equal matrices have equal bytes.
 *
 *   F16, BF16   element (k, r) at 2 * (16k + r), K odd: one zero column more
 *   F32         element (k, r) at 4 * (16k + r)
 *
 *   quantised   group g begins at g * stride, stride a multiple of 64:    | F16 | words | quants |    each a multiple of 64 bytes
 *     F16       for each block of 32 or 256 elements, as the dtype has them:   d[r], then dmin[r] or the minimum's, if there is one
 *     words     blocks of 256 only: a line for each word,                      word i of row r at 4r
 *     quants    for each 32 elements a line for each bit of a quant,           byte i of word 4r: element i of four
 *
 * Quants are stored unsigned (core/quant.def) and cut into planes of 8, 4, 2 and 1 bits, low bits first, as their number of bits is
 * written in binary. In a plane w bits wide, which has w lines, elements 4e..4e+3 of the 32 are in line e mod w, in the w bits from
 * floor(e / w) * w of their bytes. So Q4_0 has four lines j of low nibbles 4j.. and high nibbles 16 + 4j..; Q5_0 a fifth line,
 * whose bit e holds the fifth bits.
 *
 * The integer scales of the parts of a block of 256, and after them the minima, are cut alike: in the w / 32 * (how many) words of a
 * plane, value v is in the w bits from v * w.
 *
 * A group has the bytes of its sixteen plain rows and less than 128 more; in IQ4_XS, whose six-bit scales take eight here, 1.5 %.
 * Four consecutive k in a 32-bit lane are what the byte products of x86 and ARM take; the scales of a group stand together, so that a
 * block costs no line of its own for them.
 *
 * keys32, version 1: a row is [heads, D, 32]: what 32 positions of a cache hold of each head, in Q8_0 or Q4_0, a block being 32 elements of D
 * of one position. Of each head the scales of its blocks, F16 d[D / 32][position]; then for each of D a line of the quants of 32 positions
 * side by side, coded as 32 quants of a plain block are (Q8_0: bytes; Q4_0: position i in the low nibble of byte i, 16 + i in the high
 * one). So a page has the bytes of its plain rows, a vector of scores loads what it needs at once, and a position is written alone.
 */
#include "core/dtype/block_i.h"

const char *wr_layout_name(wr_layout l) {
  static const char *const names[WR_LAYOUT_COUNT] = {"plain", "pack16", "keys32"};
  return names[l];
}

/* Bits of an element as pack16 stores it; 0: the dtype has no such form. */
static int pack_bits(wr_dtype t) {
  return wr_dtypes[t].kind == WR_QUANT                  ? wr_quant_of(t).bits
         : wr_dtypes[t].kind == WR_FLOAT && t != WR_F64 ? 8 * wr_dtypes[t].block_bytes
                                                        : 0;
}

/* F16 values of a block and row. */
static int n_halves(wr_dtype t) { return wr_dtypes[t].kind == WR_QUANT ? 1 + wr_quant_of(t).minimum : 0; }

bool wr_layout_ok(wr_layout l, wr_dtype t, int64_t cols) {
  if (cols < 1 || cols % wr_dtypes[t].block) return false;
  if (l == WR_KEYS32) return (t == WR_Q8_0 || t == WR_Q4_0) && cols % (32 * 32) == 0;
  return l == WR_PLAIN || pack_bits(t);
}

static bool round64(size_t n, size_t *out) {
  if (!wr_add_size(n, 63, &n)) return false;
  *out = n & ~(size_t)63;
  return true;
}

/* Bytes of the first two areas of a group; the columns fit, which row_bytes has checked. */
static size_t half_bytes(wr_dtype t, int64_t cols) {
  return ((size_t)(cols / wr_dtypes[t].block) * (size_t)n_halves(t) * 32 + 63) & ~(size_t)63;
}
static size_t word_bytes(wr_dtype t, int64_t cols) {
  return (size_t)(cols / 256) * (size_t)wr_quant_words(wr_quant_of(t)) * 64;
}

size_t wr_layout_row_bytes(wr_layout l, wr_dtype t, int64_t cols) {
  if (!wr_layout_ok(l, t, cols)) return 0;
  size_t n;
  if (l != WR_PACK16) return wr_mul_size((size_t)(cols / wr_dtypes[t].block), (size_t)wr_dtypes[t].block_bytes, &n) ? n : 0;
  /* bits * 2 bytes a column of quants and at most 4 of scales: none of the products below overflows when this one does not */
  if (!wr_mul_size((size_t)cols, 128, &n) || !round64((size_t)cols * (size_t)pack_bits(t) * 2, &n)) return 0;
  return n + half_bytes(t, cols) + word_bytes(t, cols);
}

size_t wr_layout_bytes(wr_layout l, wr_dtype t, int64_t rows, int64_t cols) {
  size_t n;
  if (rows < 0) return 0;
  int64_t units = l != WR_PACK16 ? rows : rows / WR_PACK_ROWS + (rows % WR_PACK_ROWS != 0);
  return wr_mul_size((size_t)units, wr_layout_row_bytes(l, t, cols), &n) ? n : 0;
}

typedef void unpack_fn(const uint8_t *p, wr_block *b);
typedef void values_fn(const wr_block *b, float *dst);
#define QUANT(name, ...) \
  static void unpack_##name(const uint8_t *p, wr_block *b) { wr_unpack_##name(p, b); } \
  static void values_##name(const wr_block *b, float *dst) { wr_block_values(WR_##name, b, dst); }
#include "core/quant.def"
#undef QUANT
static const struct {
  unpack_fn *unpack;
  values_fn *values;
} codecs[WR_DTYPE_COUNT] = {
#define QUANT(name, ...) [WR_##name] = {unpack_##name, values_##name},
#include "core/quant.def"
#undef QUANT
};

static uint32_t word_at(const uint8_t *lines, int i, int r) {
  uint32_t word;
  memcpy(&word, lines + 64 * i + 4 * r, 4);
  return word;
}
static void put_word(uint8_t *lines, int i, int r, uint32_t word) { memcpy(lines + 64 * i + 4 * r, &word, 4); }

/* Four bytes at a time. */
static void pack_quants(int bits, const uint8_t q[32], int r, uint8_t *lines) {
  uint32_t four[8];
  memcpy(four, q, sizeof four);
  for (int w = 8, low = 0; w; w /= 2) {
    if (!(bits & w)) continue;
    const uint32_t mask = ((1u << w) - 1) * 0x01010101u;
    uint32_t line[8] = {0};
    for (int e = 0; e < 8; e++) line[e % w] |= (four[e] >> low & mask) << e / w * w;
    for (int i = 0; i < w; i++) put_word(lines, i, r, line[i]);
    low += w, lines += 64 * w;
  }
}

static void read_quants(int bits, const uint8_t *lines, int r, uint8_t q[32]) {
  uint32_t four[8] = {0};
  for (int w = 8, low = 0; w; w /= 2) {
    if (!(bits & w)) continue;
    const uint32_t mask = ((1u << w) - 1) * 0x01010101u;
    for (int e = 0; e < 8; e++) four[e] |= (word_at(lines, e % w, r) >> e / w * w & mask) << low;
    low += w, lines += 64 * w;
  }
  memcpy(q, four, sizeof four);
}

/* The integer scales and minima of a block of 256 from and to lane r. */
static void pack_scales(wr_quant form, const uint8_t *scale, int r, uint8_t *lines) {
  const int n = 256 / form.part * (1 + form.minimum);
  for (int w = 8, low = 0; w; w /= 2) {
    if (!(form.scale_bits & w)) continue;
    uint32_t words[8] = {0};
    for (int v = 0; v < n; v++) words[v * w / 32] |= ((uint32_t)scale[v] >> low & ((1u << w) - 1)) << v * w % 32;
    for (int i = 0; i < n * w / 32; i++) put_word(lines, i, r, words[i]);
    low += w, lines += 64 * (n * w / 32);
  }
}

static void read_scales(wr_quant form, const uint8_t *lines, int r, uint8_t *scale) {
  const int n = 256 / form.part * (1 + form.minimum);
  memset(scale, 0, (size_t)n);
  for (int w = 8, low = 0; w; w /= 2) {
    if (!(form.scale_bits & w)) continue;
    for (int v = 0; v < n; v++) scale[v] |= (uint8_t)((word_at(lines, v * w / 32, r) >> v * w % 32 & ((1u << w) - 1)) << low);
    low += w, lines += 64 * (n * w / 32);
  }
}

static void pack_blocks(wr_dtype t, const uint8_t *src, int64_t n_rows, int64_t cols, uint8_t *group) {
  const wr_quant form = wr_quant_of(t);
  const int block = wr_dtypes[t].block, halves = n_halves(t), n_words = wr_quant_words(form);
  const size_t plain = wr_layout_row_bytes(WR_PLAIN, t, cols);
  uint8_t *words = group + half_bytes(t, cols), *lines = words + word_bytes(t, cols);
  for (int64_t i = 0; i < cols / block; i++, words += 64 * n_words, lines += 2 * form.bits * block)
    for (int r = 0; r < WR_PACK_ROWS; r++) {
      wr_block b = {0};
      if (r < n_rows)
        codecs[t].unpack(src + (size_t)r * plain + (size_t)(i * wr_dtypes[t].block_bytes), &b);
      else
        memset(b.q, form.table ? 0 : form.bias, sizeof b.q);
      for (int h = 0; h < halves; h++) memcpy(group + ((i * halves + h) * 16 + r) * 2, &b.f16[h], 2);
      if (form.scale_bits) pack_scales(form, b.scale, r, words);
      for (int k = 0; k < block; k += 32) pack_quants(form.bits, b.q + k, r, lines + 2 * form.bits * k);
    }
}

static void pack_floats(const uint8_t *src, int64_t n_rows, int64_t cols, int elem_bytes, uint8_t *group) {
  for (int64_t k = 0; k < cols; k++)
    for (int64_t r = 0; r < n_rows; r++) {
      if (elem_bytes == 2)
        memcpy(group + (16 * k + r) * 2, src + (r * cols + k) * 2, 2);
      else
        memcpy(group + (16 * k + r) * 4, src + (r * cols + k) * 4, 4);
    }
}

void wr_pack16(wr_dtype t, const void *src, int64_t rows, int64_t cols, void *dst, int64_t group0, int64_t group1) {
  size_t plain = wr_layout_row_bytes(WR_PLAIN, t, cols), stride = wr_layout_row_bytes(WR_PACK16, t, cols);
  for (int64_t g = group0; g < group1; g++) {
    const uint8_t *from = (const uint8_t *)src + (size_t)g * WR_PACK_ROWS * plain;
    uint8_t *to = (uint8_t *)dst + (size_t)g * stride;
    int64_t n = WR_MIN(rows - g * WR_PACK_ROWS, (int64_t)WR_PACK_ROWS);
    memset(to, 0, stride);
    if (wr_dtypes[t].kind == WR_QUANT)
      pack_blocks(t, from, n, cols, to);
    else
      pack_floats(from, n, cols, wr_dtypes[t].block_bytes, to);
  }
}

static void lane_to_float(const wr_arg *a, int64_t row, int64_t col, int64_t n, float *dst) {
  wr_dtype t = (wr_dtype)a->dtype;
  int64_t cols = wr_inner(a), r = row % WR_PACK_ROWS;
  const uint8_t *group = (const uint8_t *)a->data + (size_t)(row / WR_PACK_ROWS) * wr_layout_row_bytes(WR_PACK16, t, cols);
  if (t == WR_F32) { /* the embedding of a model in training */
    for (int64_t k = 0; k < n; k++) memcpy(dst + k, group + (16 * (col + k) + r) * 4, 4);
    return;
  }
  if (wr_dtypes[t].kind == WR_FLOAT) {
    int bytes = wr_dtypes[t].block_bytes;
    for (int64_t k = 0; k < n; k++) wr_dtypes[t].to_float(group + (16 * (col + k) + r) * bytes, dst + k, 1);
    return;
  }
  const wr_quant form = wr_quant_of(t);
  const int block = wr_dtypes[t].block, halves = n_halves(t), n_words = wr_quant_words(form);
  const uint8_t *words = group + half_bytes(t, cols), *lines = words + word_bytes(t, cols);
  for (int64_t k = 0; k < n; k += block) {
    const int64_t i = (col + k) / block;
    wr_block b = {0};
    for (int h = 0; h < halves; h++) memcpy(&b.f16[h], group + ((i * halves + h) * 16 + r) * 2, 2);
    if (form.scale_bits) read_scales(form, words + 64 * n_words * i, (int)r, b.scale);
    for (int e = 0; e < block; e += 32) read_quants(form.bits, lines + 2 * form.bits * (i * block + e), (int)r, b.q + e);
    codecs[t].values(&b, dst + k);
  }
}

/* Lines of keys32: each is a plain block but for its 32 scales. */
static void keys_to_float(const wr_arg *a, int64_t row, int64_t col, int64_t n, float *dst) {
  const wr_dtype_info *t = &wr_dtypes[a->dtype];
  const int64_t D = a->ext[2];
  for (int64_t at = col / 32; at < (col + n) / 32; at++, dst += 32) {
    const uint8_t *head = (const uint8_t *)a->data + row * a->stride_bytes + at / D * D * t->block_bytes;
    const uint8_t *scales = head + at % D / 32 * 64;
    uint8_t block[34] = {0x00, 0x3c}; /* 1 */
    memcpy(block + 2, head + 2 * D + at % D * (t->block_bytes - 2), (size_t)t->block_bytes - 2);
    t->to_float(block, dst, 32);
    for (int i = 0; i < 32; i++) {
      uint16_t scale;
      memcpy(&scale, scales + 2 * i, sizeof scale);
      dst[i] *= wr_f16_to_float(scale);
    }
  }
}

void wr_row_to_float(const wr_arg *a, int64_t row, int64_t col, int64_t n, float *dst) {
  if (a->layout == WR_PACK16 || a->layout == WR_KEYS32) {
    (a->layout == WR_PACK16 ? lane_to_float : keys_to_float)(a, row, col, n, dst);
    return;
  }
  const wr_dtype_info *t = &wr_dtypes[a->dtype];
  t->to_float((const uint8_t *)a->data + row * a->stride_bytes + col / t->block * t->block_bytes, dst, n);
}
