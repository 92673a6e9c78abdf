/* codecs: dtypes and layouts against outside witnesses (tests/golden/codecs.gguf: what the gguf package decodes), and against
 * each other. Covers every F16 pattern, all block types, packing with odd row counts, and the guard bytes around packed groups.
 * Quantising: against ggml's bytes where the type is a definition, against its error where it is a search (tests/golden/quantize.gguf). */
#include "core/core.h"
#include "format/format.h"
#include "ops/ops.h"
#include "test.h"

static wr_gguf *golden(void) {
  wr_gguf *g = NULL;
  weir_status s = wr_gguf_open("tests/golden/codecs.gguf", NULL, &g);
  CHECK_MSG(s == WEIR_OK, "tests/golden/codecs.gguf: %s", weir_last_error());
  return g;
}

/* The best level that may be used. */
static uint32_t isa_here(void) {
  uint32_t isa = 0;
  CHECK(wr_isa_detect(&isa) == WEIR_OK);
  return isa & WR_ISA_LEVEL_MASK;
}

static const char *const golden_types[] = {"f16",  "bf16", "q8_0", "q4_0", "q4_1", "q5_0",   "q5_1",
                                           "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs"};

static const wr_gguf_tensor *golden_tensor(const wr_gguf *g, const char *prefix, const char *type) {
  char name[64];
  snprintf(name, sizeof name, "%s.%s", prefix, type);
  return wr_gguf_tensor_find(g, name);
}

static wr_arg matrix(int dtype, wr_layout layout, void *data, int64_t rows, int64_t cols) {
  wr_arg a = {.data = data, .ext = {rows, cols, 1, 1}, .rank = 2, .dtype = (uint8_t)dtype, .layout = (uint8_t)layout};
  a.stride_bytes = (int64_t)wr_layout_row_bytes(layout, (wr_dtype)dtype, cols);
  return a;
}

/* Equal as bits; two NaNs are equal whatever they carry. */
static bool same(float a, float b) { return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b)); }

static void decodes_golden_blocks(void) {
  wr_gguf *g = golden();
  REQUIRE(g);
  for (size_t i = 0; i < WR_ARRAY_LEN(golden_types); i++) {
    const wr_gguf_tensor *raw = golden_tensor(g, "raw", golden_types[i]), *want = golden_tensor(g, "f32", golden_types[i]);
    int dtype = wr_dtype_find(golden_types[i]);
    REQUIRE(raw && want && dtype >= 0);
    REQUIRE(raw->n_elems == want->n_elems && raw->n_elems % (uint64_t)wr_dtypes[dtype].block == 0);
    CHECK_EQ_INT(raw->bytes, wr_layout_bytes(WR_PLAIN, (wr_dtype)dtype, (int64_t)raw->dim[1], (int64_t)raw->dim[0]));
    float *got = malloc(raw->n_elems * sizeof *got);
    REQUIRE(got);
    CHECK(wr_dtypes[dtype].to_float == wr_decoder((wr_dtype)dtype, WR_ISA_GENERIC));
    for (uint32_t level = 0; level <= isa_here(); level++) {
      memset(got, 0xff, raw->n_elems * sizeof *got);
      wr_decoder((wr_dtype)dtype, (int)level)(raw->data, got, (int64_t)raw->n_elems);
      for (uint64_t k = 0; k < raw->n_elems; k++) {
        float w;
        memcpy(&w, want->data + 4 * k, sizeof w);
        CHECK_MSG(same(got[k], w), "%s element %llu is %.9g on %s, not %.9g", golden_types[i], (unsigned long long)k,
                  (double)got[k], wr_isa_name(level), (double)w);
      }
    }
    free(got);
  }
  wr_gguf_close(g);
}

/* Against the compiler's own arithmetic: a half is sign * mantissa * 2^e. */
static void f16_every_pattern(void) {
  for (int h = 0; h < 0x10000; h++) {
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double want = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    if (exponent == 31) want = mantissa ? NAN : INFINITY;
    if (h & 0x8000) want = -want;
    float got = wr_f16_to_float((uint16_t)h);
    CHECK_MSG(same(got, (float)want), "f16 %04x is %g, not %g", (unsigned)h, (double)got, want);
    uint16_t back = wr_float_to_f16(got);
    if (isnan(want))
      CHECK_MSG((back & 0x7c00) == 0x7c00 && (back & 0x3ff), "NaN %04x came back as %04x", (unsigned)h, back);
    else
      CHECK_MSG(back == h, "f16 %04x came back as %04x", (unsigned)h, back);
  }
}

/* The result of rounding must be the nearest of the two neighbours, and the even one in a tie. */
static void f16_rounds_to_nearest_even(void) {
  for (uint16_t h = 0; h < 0x7bff; h++) {
    float low = wr_f16_to_float(h), high = wr_f16_to_float((uint16_t)(h + 1)), mid = (low + high) / 2; /* exact in F32 */
    CHECK_EQ_INT(wr_float_to_f16(mid), h & 1 ? h + 1 : h);
    CHECK_EQ_INT(wr_float_to_f16(nextafterf(mid, 0)), h);
    CHECK_EQ_INT(wr_float_to_f16(nextafterf(mid, INFINITY)), h + 1);
    CHECK_EQ_INT(wr_float_to_f16(-mid), (h & 1 ? h + 1 : h) | 0x8000);
  }
  CHECK_EQ_INT(wr_float_to_f16(65519.996f), 0x7bff);
  CHECK_EQ_INT(wr_float_to_f16(65520.0f), 0x7c00);
  CHECK_EQ_INT(wr_float_to_f16(3e38f), 0x7c00);
  CHECK_EQ_INT(wr_float_to_f16(1e-45f), 0);
}

/* Encoding then decoding stays within half a step of each block (the type's definition), and writes nothing past its end. */
static void encodes_within_half_a_step(void) {
  static const struct {
    const char *type;
    double steps;
  } rows[] = {{"q8_0", 127}, {"q4_0", 8}, {"q4_1", 7.5}, {"q5_0", 16}, {"q5_1", 15.5}};
  wr_rng rng;
  wr_rng_seed(&rng, 7);
  for (size_t i = 0; i < WR_ARRAY_LEN(rows); i++) {
    const wr_dtype_info *t = &wr_dtypes[wr_dtype_find(rows[i].type)];
    float x[1024], y[1024];
    uint8_t bytes[1024 / 32 * 34 + 8];
    for (int k = 0; k < 1024; k++) x[k] = k < 32 ? 0 : (float)wr_rng_normal(&rng) * (float)(k / 32);
    memset(bytes, 0xa5, sizeof bytes);
    t->from_float(x, bytes, 1024);
    CHECK_EQ_INT(bytes[1024 / 32 * t->block_bytes], 0xa5);
    t->to_float(bytes, y, 1024);
    for (int b = 0; b < 32; b++) {
      double amax = 0;
      for (int k = 32 * b; k < 32 * b + 32; k++) amax = fmax(amax, fabs((double)x[k]));
      /* half a step; Q4_0 and Q5_0 lack the top level (one step at the far end); F16 scales add 2^-11 of the value, twice for d
       * and m */
      double tolerance = amax / rows[i].steps * (strstr(rows[i].type, "_0") && rows[i].steps < 100 ? 1.01 : 0.51) + amax * 2e-3;
      for (int k = 32 * b; k < 32 * b + 32; k++)
        CHECK_MSG(fabs((double)(x[k] - y[k])) <= tolerance, "%s: %g became %g", rows[i].type, (double)x[k], (double)y[k]);
    }
    float bad[32];
    for (int k = 0; k < 32; k++) bad[k] = k % 3 ? NAN : INFINITY;
    t->from_float(bad, bytes, 32); /* nothing to promise but that it returns */
  }
}

/* pack16 holds the same values, element for element, as the rows it was made of; missing rows read as zero; groups packed one
 * at a time and all at once are the same bytes; nothing is written outside. */
static void packs_every_type(void) {
  static const char *const types[] = {"q8_0", "q4_0", "q4_1", "q5_0",   "q5_1", "iq4_nl", "q2_k", "q3_k",
                                      "q4_k", "q5_k", "q6_k", "iq4_xs", "f16",  "bf16",   "f32"};
  static const int shapes[][2] = {{16, 32}, {1, 32}, {17, 96}, {31, 64}, {48, 576}, {5, 160}};
  wr_rng rng;
  wr_rng_seed(&rng, 11);
  for (size_t i = 0; i < WR_ARRAY_LEN(types); i++) {
    for (size_t s = 0; s < WR_ARRAY_LEN(shapes); s++) {
      wr_dtype t = (wr_dtype)wr_dtype_find(types[i]);
      bool floats = wr_dtypes[t].kind == WR_FLOAT;
      int64_t n = shapes[s][0], cols = (shapes[s][1] + (floats ? (int64_t)s : 0)) * (wr_dtypes[t].block == 256 ? 8 : 1),
              groups = (n + 15) / 16;
      size_t plain = wr_layout_bytes(WR_PLAIN, t, n, cols), packed = wr_layout_bytes(WR_PACK16, t, n, cols);
      CHECK_EQ_INT(packed % 64, 0);
      CHECK_EQ_INT(packed, (size_t)groups * wr_layout_row_bytes(WR_PACK16, t, cols));
      const size_t bytes = wr_layout_bytes(WR_PLAIN, t, groups * 16, cols);
      CHECK(packed <
            (t == WR_IQ4_XS ? bytes + bytes * 2 / 136 : bytes) + (size_t)groups * 128); /* its scales take two bytes more */
      uint8_t *src = malloc(plain), *dst = malloc(packed + 128), *again = malloc(packed);
      float *want = malloc((size_t)cols * 4), *got = malloc((size_t)cols * 4);
      REQUIRE(src && dst && again && want && got);
      for (size_t k = 0; k < plain; k++) src[k] = (uint8_t)wr_rng_u64(&rng);
      memset(dst, 0x5a, packed + 128);
      wr_pack16(t, src, n, cols, dst + 64, 0, groups);
      for (int k = 0; k < 64; k++) CHECK(dst[k] == 0x5a && dst[64 + packed + (size_t)k] == 0x5a);
      memset(again, 0xff, packed);
      for (int64_t g = groups; g-- > 0;) wr_pack16(t, src, n, cols, again, g, g + 1);
      CHECK(memcmp(again, dst + 64, packed) == 0);
      wr_arg a = matrix((int)t, WR_PLAIN, src, n, cols), p = matrix((int)t, WR_PACK16, dst + 64, n, cols);
      for (int64_t r = 0; r < groups * 16; r++) {
        if (r < n)
          wr_row_to_float(&a, r, 0, cols, want);
        else
          memset(want, 0, (size_t)cols * 4);
        wr_row_to_float(&p, r, 0, cols, got);
        for (int64_t k = 0; k < cols; k++)
          CHECK_MSG(same(got[k], want[k]) || (got[k] == 0 && want[k] == 0), "%s row %lld col %lld: %g, not %g", types[i],
                    (long long)r, (long long)k, (double)got[k], (double)want[k]);
        if (r >= n) continue;
        int64_t part = cols / wr_dtypes[t].block / 2 * wr_dtypes[t].block; /* the second half alone, and one element */
        wr_row_to_float(&p, r, part, cols - part, got);
        CHECK(same(got[0], want[part]));
        CHECK(same((float)wr_get(&p, r, cols - 1), want[cols - 1]) && same((float)wr_get(&a, r, cols - 1), want[cols - 1]));
      }
      free(src), free(dst), free(again), free(want), free(got);
    }
  }
}

/* The picture at the head of layout.c, byte for byte at a few places, so that a changed layout needs a changed version. */
static void pack16_is_version_1(void) {
  CHECK_EQ_INT(WR_PACK16_VERSION, 1);
  CHECK_EQ_INT(wr_layout_row_bytes(WR_PACK16, WR_Q8_0, 576), 576 + 18 * 512);
  CHECK_EQ_INT(wr_layout_row_bytes(WR_PACK16, WR_Q4_0, 96), 128 + 3 * 256);
  CHECK_EQ_INT(wr_layout_row_bytes(WR_PACK16, WR_Q4_1, 96), 192 + 3 * 256);
  CHECK_EQ_INT(wr_layout_row_bytes(WR_PACK16, WR_F16, 3), 128);
  uint8_t src[16][34], dst[64 + 512];
  for (int r = 0; r < 16; r++)
    for (int i = 0; i < 34; i++) src[r][i] = (uint8_t)(i < 2 ? 100 * i + r : 16 * (i - 2) + r);
  wr_pack16(WR_Q8_0, src, 16, 32, dst, 0, 1);
  CHECK_EQ_INT(dst[2 * 5], 5);
  CHECK_EQ_INT(dst[2 * 5 + 1], 105);
  CHECK_EQ_INT(dst[32], 0);
  for (int k = 0; k < 32; k++) CHECK_EQ_INT(dst[64 + 64 * (k / 4) + 4 * 9 + k % 4], ((16 * k + 9) & 255) ^ 0x80);
  uint8_t q4[16][18] = {{0}}, d4[64 + 256];
  for (int i = 0; i < 16; i++) q4[3][2 + i] = (uint8_t)(i | (15 - i) << 4);
  wr_pack16(WR_Q4_0, q4, 16, 32, d4, 0, 1);
  for (int i = 0; i < 16; i++) CHECK_EQ_INT(d4[64 + 64 * (i / 4) + 4 * 3 + i % 4], i | (15 - i) << 4);
  /* six bits: four lines of nibbles, two of pairs; scales in four words a row, after F16 */
  CHECK_EQ_INT(wr_layout_row_bytes(WR_PACK16, WR_Q6_K, 512), 64 + 2 * 256 + 16 * 384);
  uint8_t q6[16][210] = {{0}}, d6[64 + 256 + 8 * 384];
  q6[5][32] = 0x90, q6[5][128] = 0x30; /* element 64: nibble 0, pair 3; element 96: nibble 9, pair 0 */
  q6[5][192 + 9] = 7, q6[5][208] = 0x21;
  wr_pack16(WR_Q6_K, q6, 16, 256, d6, 0, 1);
  CHECK_EQ_INT(d6[2 * 5], 0x21);
  CHECK_EQ_INT(d6[64 + 64 * 2 + 4 * 5 + 1], 7 ^ 0x80);
  CHECK_EQ_INT(d6[64 + 256 + 2 * 384 + 4 * 5], 0);
  CHECK_EQ_INT(d6[64 + 256 + 2 * 384 + 256 + 4 * 5], 3);
  CHECK_EQ_INT(d6[64 + 256 + 3 * 384 + 4 * 5], 9);
  CHECK_EQ_INT(wr_layout_row_bytes(WR_PACK16, WR_Q4_K, 256), 64 + 3 * 64 + 8 * 256);
  CHECK_EQ_INT(wr_layout_row_bytes(WR_PACK16, WR_Q2_K, 256), 64 + 4 * 64 + 8 * 128);
}

static void refuses_impossible_layouts(void) {
  CHECK(!wr_layout_ok(WR_PLAIN, WR_Q8_0, 33));
  CHECK(!wr_layout_ok(WR_PLAIN, WR_F32, 0));
  CHECK(!wr_layout_ok(WR_PACK16, WR_Q4_K, 128));
  CHECK(!wr_layout_ok(WR_PACK16, WR_F64, 16));
  CHECK(wr_layout_ok(WR_PACK16, WR_F16, 1));
  CHECK_EQ_INT(wr_layout_bytes(WR_PACK16, WR_Q6_K, 16, 255), 0);
  CHECK_EQ_INT(wr_layout_bytes(WR_PLAIN, WR_F32, INT64_MAX / 4, 16), 0);
  CHECK_EQ_INT(wr_layout_bytes(WR_PACK16, WR_F32, INT64_MAX, 16), 0);
  CHECK_EQ_INT(wr_layout_bytes(WR_PACK16, WR_F32, 16, INT64_MAX / 8), 0);
  CHECK_EQ_INT(wr_dtype_find("q9_9"), -1);
}

static void single_elements(void) {
  static const int types[] = {WR_F32, WR_F64, WR_F16, WR_BF16, WR_I32};
  for (size_t i = 0; i < WR_ARRAY_LEN(types); i++) {
    uint64_t room[32] = {0};
    wr_arg a = matrix(types[i], WR_PLAIN, room, 3, 5);
    wr_set(&a, 2, 4, -3);
    CHECK_NEAR(wr_get(&a, 2, 4), -3, 0);
    CHECK_NEAR(wr_get(&a, 2, 3), 0, 0);
  }
  double third = 1.0 / 3;
  wr_arg a = matrix(WR_F64, WR_PLAIN, &third, 1, 1);
  CHECK_NEAR(wr_get(&a, 0, 0), 1.0 / 3, 0); /* not through float */
}

/* ---- quantising: ops/quant */

static double square_error(const wr_dtype_info *t, const void *blocks, const float *x, int64_t n) {
  float *y = malloc((size_t)n * sizeof *y);
  double sum = 0;
  if (!y) return NAN;
  t->to_float(blocks, y, n);
  for (int64_t i = 0; i < n; i++) sum += pow((double)x[i] - (double)y[i], 2);
  free(y);
  return sum;
}

/* Defined types have ggml's bytes; what a search finds is not farther from a row's values than what ggml's finds, but for 2 % or a millionth
 * of the values themselves. Bytes past the end stay. */
static void quantizes_as_ggml(void) {
  static const char *const types[] = {"q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"};
  wr_gguf *g = NULL;
  REQUIRE(wr_gguf_open("tests/golden/quantize.gguf", NULL, &g) == WEIR_OK);
  const wr_gguf_tensor *x = wr_gguf_tensor_find(g, "x");
  REQUIRE(x);
  const float *values = (const float *)(const void *)x->data;
  const int64_t cols = (int64_t)x->dim[0];
  for (size_t i = 0; i < WR_ARRAY_LEN(types); i++) {
    const wr_gguf_tensor *want = golden_tensor(g, "raw", types[i]);
    const wr_dtype t = (wr_dtype)wr_dtype_find(types[i]);
    REQUIRE(want);
    uint8_t *got = malloc(want->bytes + 1);
    REQUIRE(got);
    for (uint32_t level = 0; level <= isa_here(); level++) {
      memset(got, 0xa5, want->bytes + 1);
      wr_quantizer(t, level)(values, got, (int64_t)x->n_elems);
      CHECK_EQ_INT(got[want->bytes], 0xa5);
      if (wr_dtypes[t].from_float) {
        CHECK_MSG(memcmp(got, want->data, want->bytes) == 0, "%s on %s: not ggml's bytes", types[i], wr_isa_name(level));
        memset(got, 0xa5, want->bytes + 1);
        wr_dtypes[t].from_float(values, got, (int64_t)x->n_elems);
        CHECK_MSG(memcmp(got, want->data, want->bytes) == 0, "%s by definition: not ggml's bytes", types[i]);
        continue;
      }
      const size_t row = wr_layout_row_bytes(WR_PLAIN, t, cols);
      for (size_t r = 0; r < x->dim[1]; r++) {
        const float *v = values + (int64_t)r * cols;
        const double ours = square_error(&wr_dtypes[t], got + r * row, v, cols),
                     ggml = square_error(&wr_dtypes[t], want->data + r * row, v, cols);
        double square = 0;
        for (int64_t k = 0; k < cols; k++) square += pow((double)v[k], 2);
        CHECK_MSG(ours <= 1.02 * ggml + 1e-6 * square, "%s row %zu: squared error %g, ggml's is %g", types[i], r, ours, ggml);
      }
    }
    free(got);
  }
  wr_gguf_close(g);
}

/* What a block may be: 0 noise, 1 zeros, 2 one element, 3 denormals, 4 equal, 5 huge, 6 below zero, 7 tiny beside large */
static void fill_block(int kind, float *x, int n, wr_rng *rng) {
  for (int i = 0; i < n; i++) {
    const float v = (float)wr_rng_normal(rng);
    const float of[] = {v, 0, i == 77 ? -3.0f : 0, v * 1e-41f, 0.3f, v * 1e37f, -fabsf(v), i % 50 ? v * 1e-6f : v};
    x[i] = of[kind % 8];
  }
}

/* The same bytes from every instruction set, from a block alone and in company; all values finite, and near unless they are out of reach. */
static void quantizes_alike_everywhere(void) {
  enum { N = 16 * 256 };
  static float x[N], y[N];
  static _Alignas(64) uint8_t all[3][N * 4 + 64], one[256 * 4];
  wr_rng rng;
  wr_rng_seed(&rng, 19);
  for (int b = 0; b < N / 256; b++) fill_block(b, x + 256 * b, 256, &rng);
  for (int t = 0; t < WR_DTYPE_COUNT; t++) {
    if (!wr_quantizer((wr_dtype)t, 0)) continue;
    const size_t block = wr_layout_row_bytes(WR_PLAIN, (wr_dtype)t, 256);
    for (uint32_t level = 0; level <= isa_here(); level++) {
      wr_quant_fn *quantize = wr_quantizer((wr_dtype)t, level);
      for (int n = 256; n <= N; n += n < 1024 ? 256 : N - n) { /* also an odd number of blocks of 256 */
        memset(all[level], 0xa5, sizeof all[level]);
        quantize(x, all[level], n);
        CHECK_EQ_INT(all[level][(size_t)n / 256 * block], 0xa5);
        CHECK_MSG(memcmp(all[level], all[0], (size_t)WR_MIN(n, 256) / 256 * block) == 0, "%s: %d elements", wr_dtypes[t].name,
                  n);
        if (n == N) break;
      }
      CHECK_MSG(memcmp(all[level], all[0], N / 256 * block) == 0, "%s: %s gives other bytes", wr_dtypes[t].name,
                wr_isa_name(level));
      for (size_t b = 0; b < N / 256; b++) {
        quantize(x + 256 * b, one, 256);
        CHECK_MSG(memcmp(one, all[level] + b * block, block) == 0, "%s: block %zu alone has other bytes", wr_dtypes[t].name, b);
      }
    }
    wr_dtypes[t].to_float(all[0], y, N);
    for (int i = 0; i < N; i++) {
      const bool huge = i / 256 % 8 == 5; /* F16 scales do not reach there */
      CHECK_MSG(huge || fabsf(x[i] - y[i]) <= 0.6f, "%s: %g became %g", wr_dtypes[t].name, (double)x[i], (double)y[i]);
      if (i / 256 % 8 == 1) CHECK_EQ_INT(y[i] == 0, 1);
    }
    for (uint32_t level = 0; level <= isa_here();
         level++) { /* not finite: nothing to promise but that it returns, in its block */
      float bad[256];
      for (int k = 0; k < 256; k++) bad[k] = k % 3 ? NAN : k % 2 ? INFINITY : -INFINITY;
      memset(all[0], 0xa5, sizeof all[0]);
      wr_quantizer((wr_dtype)t, level)(bad, all[0], 256);
      CHECK_EQ_INT(all[0][block], 0xa5);
    }
  }
}

static void measures_errors(void) {
  static float x[3000], y[3000];
  wr_rng rng;
  wr_rng_seed(&rng, 23);
  for (int i = 0; i < 3000; i++) x[i] = (float)wr_rng_normal(&rng), y[i] = x[i] + 0.01f * (float)wr_rng_normal(&rng);
  y[2999] = x[2999] + 0.5f;
  wr_quant_error first = {0};
  for (uint32_t level = 0; level <= isa_here(); level++) {
    wr_quant_error e = {0}, bad = {0};
    double square = 0, error = 0;
    for (int n = 0; n < 3000; n++) square += pow((double)x[n], 2), error += pow((double)x[n] - (double)y[n], 2);
    wr_quant_error_of(level)(x, y, 1000, &e);
    wr_quant_error_of(level)(x + 1000, y + 1000, 2000, &e);
    CHECK_NEAR(e.square, square, 1e-6 * square);
    CHECK_NEAR(e.error_square, error, 1e-5 * error);
    CHECK_NEAR((double)e.max_error, (double)(y[2999] - x[2999]), 0);
    if (!level) first = e;
    CHECK(memcmp(&first, &e, offsetof(wr_quant_error, max_error) + sizeof e.max_error) == 0);
    float odd[17] = {0};
    odd[16] = NAN;
    wr_quant_error_of(level)(odd, x, 17, &bad);
    CHECK(isnan(bad.square) && isnan(bad.error_square));
  }
}

TEST_MAIN("codecs", TEST(decodes_golden_blocks), TEST(f16_every_pattern), TEST(f16_rounds_to_nearest_even),
          TEST(encodes_within_half_a_step), TEST(quantizes_as_ggml), TEST(quantizes_alike_everywhere), TEST(measures_errors),
          TEST(packs_every_type), TEST(pack16_is_version_1), TEST(refuses_impossible_layouts), TEST(single_elements))
