/* bench.c: owns the measuring of the data path: what a consumer that adds up every token receives a second, and what was copied for it.
 *
 * Three rows over the same samples in the same order. "views" takes samples as the loader gives them. "widened" is what the trainer does:
 * ids into four tables of the program. "naive" is the usual pipeline, each step of it as simple loops: the window's bytes are read into a
 * buffer, decoded into 64-bit numbers, collated into a batch of inputs and targets, copied to staging memory, copied to the device's.
 */
#include "data/data_i.h"

/* Vectors of 16 bytes, as in batch.c; sums of ids (below 2^31) in 32 bits, for at most TURN of them a lane, then in 64. */
typedef uint16_t u16x8 __attribute__((vector_size(16), aligned(2), may_alias));
typedef uint32_t u32x4 __attribute__((vector_size(16), aligned(4), may_alias));
enum { TURN = 4096 };

static uint64_t sum16(const uint16_t *p, int64_t n) {
  const u16x8 zero = {0};
  uint64_t sum = 0;
  int64_t i = 0;
  while (i + 8 <= n) {
    u32x4 lanes = {0};
    for (int k = 0; k < TURN && i + 8 <= n; k++, i += 8) {
      const u16x8 v = *(const u16x8 *)(const void *)(p + i);
      lanes += (u32x4)__builtin_shufflevector(v, zero, 0, 8, 1, 9, 2, 10, 3, 11);
      lanes += (u32x4)__builtin_shufflevector(v, zero, 4, 12, 5, 13, 6, 14, 7, 15);
    }
    for (int k = 0; k < 4; k++) sum += lanes[k];
  }
  for (; i < n; i++) sum += p[i];
  return sum;
}

/* Low and high halves apart, so that no lane overflows. */
static uint64_t sum32(const uint32_t *p, int64_t n) {
  uint64_t sum = 0;
  int64_t i = 0;
  while (i + 4 <= n) {
    u32x4 low = {0}, high = {0};
    for (int k = 0; k < TURN && i + 4 <= n; k++, i += 4) {
      const u32x4 v = *(const u32x4 *)(const void *)(p + i);
      low += v & 0xffff;
      high += v >> 16;
    }
    for (int k = 0; k < 4; k++) sum += low[k] + ((uint64_t)high[k] << 16);
  }
  for (; i < n; i++) sum += p[i];
  return sum;
}

static uint64_t sum64(const int64_t *p, int64_t n) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; i++) sum += (uint64_t)p[i];
  return sum;
}

/* Inputs and targets of a sample: all tokens twice, but the first and the last. */
static uint64_t sum_view(const wr_sample *s) {
  const int64_t last = s->n_tok - 1;
  if (s->token_bytes == 2) {
    const uint16_t *p = s->tokens;
    return 2 * sum16(p, s->n_tok) - p[0] - p[last];
  }
  const uint32_t *p = s->tokens;
  return 2 * sum32(p, s->n_tok) - p[0] - p[last];
}

typedef struct bench {
  int64_t B, T, vocab;
  wr_sample *samples;                   /* [B] */
  int32_t *tables;                      /* [4 * B * T] */
  uint8_t *read;                        /* [4 * (T + 1)] */
  int64_t *decoded;                     /* [T + 1] */
  int64_t *batch, *staging, *on_device; /* [2 * B * T]: inputs, then targets */
} bench;

/* Takes a batch; adds to the sum, returns bytes copied. */
typedef weir_status (*take_fn)(bench *b, int64_t n, uint64_t *sum, uint64_t *copied);

static weir_status take_views(bench *b, int64_t n, uint64_t *sum, uint64_t *copied) {
  (void)copied;
  for (int64_t i = 0; i < n; i++) *sum += sum_view(&b->samples[i]);
  return WEIR_OK;
}

static weir_status take_widened(bench *b, int64_t n, uint64_t *sum, uint64_t *copied) {
  const int64_t all = b->B * b->T;
  wr_batch batch = {b->tables, b->tables + all, b->tables + 2 * all, b->tables + 3 * all, 0, 0};
  WR_TRY(wr_batch_fill(b->samples, n, b->B, b->T, b->vocab, true, &batch));
  *copied += batch.bytes;
  *sum += sum32((const uint32_t *)batch.tokens, all) + sum32((const uint32_t *)batch.targets, all);
  *sum += (uint64_t)(all - batch.counted); /* -1 of each that does not count, modulo 2^32 */
  *sum -= (uint64_t)(all - batch.counted) << 32;
  return WEIR_OK;
}

static weir_status take_naive(bench *b, int64_t n, uint64_t *sum, uint64_t *copied) {
  int64_t *inputs = b->batch, *targets = b->batch + b->B * b->T, at = 0;
  for (int64_t i = 0; i < n; i++) {
    const wr_sample *s = &b->samples[i];
    memcpy(b->read, s->tokens, (size_t)s->n_tok * (size_t)s->token_bytes);
    for (int64_t k = 0; k < s->n_tok; k++)
      b->decoded[k] = s->token_bytes == 2 ? ((uint16_t *)(void *)b->read)[k] : ((uint32_t *)(void *)b->read)[k];
    memcpy(inputs + at, b->decoded, (size_t)(s->n_tok - 1) * sizeof *inputs);
    memcpy(targets + at, b->decoded + 1, (size_t)(s->n_tok - 1) * sizeof *targets);
    at += s->n_tok - 1;
    *copied += (uint64_t)s->n_tok * (uint64_t)(s->token_bytes + 8) + (uint64_t)(s->n_tok - 1) * 16;
  }
  const size_t bytes = (size_t)(2 * b->B * b->T) * sizeof *b->batch;
  memcpy(b->staging, b->batch, bytes);
  memcpy(b->on_device, b->staging, bytes);
  *copied += 2 * bytes;
  *sum += sum64(b->on_device, at) + sum64(b->on_device + b->B * b->T, at);
  return WEIR_OK;
}

static const struct {
  const char *name;
  take_fn take;
} kinds[WEIR_DATA_BENCH_ROWS] = {{"weir: views", take_views}, {"weir: widened", take_widened}, {"naive", take_naive}};

/* One epoch from its beginning. */
static weir_status run_epoch(bench *b, wr_data *d, uint64_t samples, take_fn take, weir_data_bench_row *row, double *seconds) {
  WR_TRY(wr_data_seek(d, &(wr_data_position){0}));
  uint64_t copied = 0;
  row->tokens = row->sum = 0;
  const uint64_t begin = wr_now_ns();
  for (uint64_t done = 0; done < samples;) {
    int64_t n;
    WR_TRY(wr_data_next(d, (int64_t)WR_MIN((uint64_t)b->B, samples - done), b->samples, &n));
    for (int64_t i = 0; i < n; i++) row->tokens += (uint64_t)b->samples[i].n_tok - 1;
    WR_TRY(take(b, n, &row->sum, &copied));
    done += (uint64_t)n;
  }
  *seconds = (double)(wr_now_ns() - begin) * 1e-9;
  row->copied_per_tok = (double)copied / (double)row->tokens;
  return WEIR_OK;
}

static weir_status run_rows(bench *b, wr_data *d, int reps, weir_data_bench_row *rows) {
  wr_data_info info;
  wr_data_get_info(d, &info);
  b->vocab = info.vocab;
  for (int rep = 0; rep < reps; rep++) { /* the rows take turns, so that a disturbance meets all */
    for (int k = 0; k < WEIR_DATA_BENCH_ROWS; k++) {
      double seconds;
      rows[k].name = kinds[k].name;
      WR_TRY(run_epoch(b, d, info.samples, kinds[k].take, &rows[k], &seconds));
      if (seconds > 0) rows[k].tok_s = WR_MAX(rows[k].tok_s, (double)rows[k].tokens / seconds);
    }
  }
  return WEIR_OK;
}

weir_status weir_data_bench(const char *folder, int64_t batch, int64_t context_tok, int reps, weir_data_bench_row *rows) {
  if (!folder || batch < 1 || batch > 1 << 20 || context_tok < 1 || context_tok > 1 << 24 || reps < 0)
    return wr_fail(WEIR_EUSAGE, "a batch of %lld samples of %lld tokens", (long long)batch, (long long)context_tok);
  const wr_data_source source = {folder, 0};
  const size_t all = (size_t)batch * (size_t)context_tok;
  bench b = {.B = batch, .T = context_tok};
  b.samples = wr_calloc((size_t)batch, sizeof *b.samples);
  b.tables = wr_calloc(4 * all, sizeof *b.tables);
  b.read = wr_calloc((size_t)context_tok + 1, 4);
  b.decoded = wr_calloc((size_t)context_tok + 1, sizeof *b.decoded);
  b.batch = wr_calloc(2 * all, sizeof *b.batch);
  b.staging = wr_calloc(2 * all, sizeof *b.staging);
  b.on_device = wr_calloc(2 * all, sizeof *b.on_device);
  const bool have = b.samples && b.tables && b.read && b.decoded && b.batch && b.staging && b.on_device;
  weir_status s = have ? WEIR_OK : wr_fail_nomem(all * 64, "a batch");
  wr_data *d = NULL;
  weir_data_bench_row out[WEIR_DATA_BENCH_ROWS] = {{0}};
  if (s == WEIR_OK)
    s = wr_data_open(&(wr_data_options){.sources = &source, .n_sources = 1, .context_tok = context_tok, .seed = 1}, &d);
  if (s == WEIR_OK) s = run_rows(&b, d, reps ? reps : 5, out);
  wr_data_close(d);
  wr_free(b.samples);
  wr_free(b.tables);
  wr_free(b.read);
  wr_free(b.decoded);
  wr_free(b.batch);
  wr_free(b.staging);
  wr_free(b.on_device);
  if (s == WEIR_OK) memcpy(rows, out, sizeof out);
  return s;
}
