/* layout.c: where the elements of a matrix lie. Owns the forms `plain`, `pack16` and `keys32`.
 *
 * plain: rows one after another, each of whole blocks, as in a GGUF file.
 *
 * pack16, version 1: groups of sixteen rows, so that a vector lane is an output row and every load of weights is one aligned
 * 64-byte line. K is the row length in elements, b a block of 32, r the row within the group (a lane). Little-endian. Rows that
 * the matrix lacks in its last group are zero; so is all padding: equal matrices have equal bytes.
 *
 *   group g begins at g * stride, stride a multiple of 64:      | scale area | quant area |        each padded to 64 bytes
 *
 *   Q8_0   scales  F16 d[b][r]                      32 bytes a block
 *          quants  line (b, j), j 0..7:             byte 4r + i = q[k = 32b + 4j + i] ^ 0x80      (0..255: q + 128)
 *   Q4_0   scales  as Q8_0
 *          quants  line (b, j), j 0..3:             byte 4r + i: low nibble q[32b + 4j + i], high nibble q[32b + 16 + 4j + i]
 *   Q4_1   scales  F16 d[b][r], then F16 m[b][r]    64 bytes a block
 *          quants  as Q4_0
 *   Q5_0, Q5_1     scales as Q4_0, Q4_1
 *          quants  five lines a block: four as Q4_0 (the low four bits), then the fifth bits:
 *                  byte 4r + i: bit j = fifth bit of q[32b + 4j + i], bit 4 + j = that of q[32b + 16 + 4j + i], j 0..3
 *   F16, BF16      no scales; element (k, r) at 2 * (16k + r), K odd: one zero column more
 *   F32    no scales; element (k, r) at 4 * (16k + r)
 *
 * A group has the bytes of its sixteen plain rows and less than 128 more. Four consecutive k in a 32-bit lane are what the
 * byte products of x86 and ARM take; the scales of a group stand together, so that a block costs no line of its own for them.
 *
 * keys32, version 1: a row is [heads, D, 32]: what 32 positions of a cache hold of each head, in Q8_0 or Q4_0, a block being 32 elements of D
 * of one position. Of each head the scales of its blocks, F16 d[D / 32][position]; then for each of D a line of the quants of 32 positions
 * side by side, coded as 32 quants of a plain block are (Q8_0: bytes; Q4_0: position i in the low nibble of byte i, 16 + i in the high
 * one). So a page has the bytes of its plain rows, a vector of scores loads what it needs at once, and a position is written alone.
 */
#include "core/core.h"

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

/* F16 values for each block and row: the scale, and the minimum. */
static int n_scales(wr_dtype t) { return wr_dtypes[t].kind == WR_QUANT ? 1 + wr_quant_of(t).minimum : 0; }

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

/* Bytes of the scale area of a group; the columns fit, which row_bytes has checked. */
static size_t scale_bytes(wr_dtype t, int64_t cols) {
  return ((size_t)(cols / 32) * (size_t)n_scales(t) * 32 + 63) & ~(size_t)63;
}

size_t wr_layout_row_bytes(wr_layout l, wr_dtype t, int64_t cols) {
  if (!wr_layout_ok(l, t, cols)) return 0;
  size_t n;
  if (l != WR_PACK16) return wr_mul_size((size_t)(cols / wr_dtypes[t].block), (size_t)wr_dtypes[t].block_bytes, &n) ? n : 0;
  /* bits * 2 bytes a column of quants and at most 4 of scales: none of the products below overflows when this one does not */
  if (!wr_mul_size((size_t)cols, 128, &n) || !round64((size_t)cols * (size_t)pack_bits(t) * 2, &n)) return 0;
  return n + scale_bytes(t, cols);
}

size_t wr_layout_bytes(wr_layout l, wr_dtype t, int64_t rows, int64_t cols) {
  size_t n;
  if (rows < 0) return 0;
  int64_t units = l != WR_PACK16 ? rows : rows / WR_PACK_ROWS + (rows % WR_PACK_ROWS != 0);
  return wr_mul_size((size_t)units, wr_layout_row_bytes(l, t, cols), &n) ? n : 0;
}

/* The quants of a plain block into lane r of a packed one. Four consecutive bytes of quants stay together in both forms. */
static void pack_lane(int bits, const uint8_t *p, int r, uint8_t *lines) {
  uint32_t word;
  if (bits == 8) {
    for (int j = 0; j < 8; j++) {
      memcpy(&word, p + 4 * j, 4);
      word ^= 0x80808080;
      memcpy(lines + 64 * j + 4 * r, &word, 4);
    }
    return;
  }
  if (bits == 5) {
    uint32_t fifth, spread = 0; /* bit k of one: bit k / 4 of byte k % 4 of the other */
    memcpy(&fifth, p, 4);
    for (int k = 0; k < 32; k++) spread |= (fifth >> k & 1) << (8 * (k % 4) + k / 4);
    memcpy(lines + 64 * 4 + 4 * r, &spread, 4);
    p += 4;
  }
  for (int j = 0; j < 4; j++) memcpy(lines + 64 * j + 4 * r, p + 4 * j, 4);
}

/* A plain block of zeros. */
static void zero_block(wr_dtype t, uint8_t block[34]) {
  memset(block, 0, 34);
  if (t == WR_Q4_0) memset(block + 2, 0x88, 16);
  if (t == WR_Q5_0) memset(block + 2, 0xff, 4);
}

static void read_lane(int bits, const uint8_t *lines, int r, uint8_t q[32]) {
  for (int k = 0; k < 32; k++) {
    int i = k % 4, j = k / 4, byte = 4 * r + i;
    q[k] = bits == 8 ? lines[64 * j + byte] : (lines[64 * (j % 4) + byte] >> (j < 4 ? 0 : 4)) & 15;
    if (bits == 5) q[k] |= (uint8_t)((lines[64 * 4 + byte] >> j & 1) << 4);
  }
}

static void pack_blocks(wr_dtype t, const uint8_t *src, int64_t n_rows, int64_t cols, uint8_t *group) {
  const int bits = wr_quant_of(t).bits, scales = n_scales(t);
  const size_t plain = wr_layout_row_bytes(WR_PLAIN, t, cols);
  uint8_t *lines = group + scale_bytes(t, cols), zeros[34];
  zero_block(t, zeros);
  for (int64_t b = 0; b < cols / 32; b++, lines += bits * 64)
    for (int r = 0; r < WR_PACK_ROWS; r++) {
      const uint8_t *block = r < n_rows ? src + (size_t)r * plain + (size_t)(b * wr_dtypes[t].block_bytes) : zeros;
      for (int s = 0; s < scales; s++) memcpy(group + ((b * scales + s) * 16 + r) * 2, block + 2 * s, 2);
      pack_lane(bits, block + 2 * scales, r, lines);
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
  const int scales = 1 + form.minimum;
  const uint8_t *quants = group + scale_bytes(t, cols);
  for (int64_t k = 0; k < n; k += 32) {
    int64_t b = (col + k) / 32;
    uint8_t q[32];
    uint16_t scale[2] = {0, 0};
    for (int s = 0; s < scales; s++) memcpy(scale + s, group + ((b * scales + s) * 16 + r) * 2, 2);
    float d = wr_f16_to_float(scale[0]), m = wr_f16_to_float(scale[1]);
    read_lane(form.bits, quants + b * form.bits * 64, (int)r, q);
    if (form.minimum)
      for (int i = 0; i < 32; i++) dst[k + i] = d * (float)q[i] + m;
    else
      for (int i = 0; i < 32; i++) dst[k + i] = d * (float)(q[i] - form.bias);
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
