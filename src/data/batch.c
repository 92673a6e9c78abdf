/* batch.c: owns the one place where training touches tokens: from the map, widened, into the program's tables.
 *
 * One pass over a sample writes inputs and targets (the same ids, one apart), and finds the largest id, which is held against the
 * vocabulary once a sample: a shard that was changed after it was built cannot make a kernel read outside its table. */
#include "data/data_i.h"

/* Vectors of 16 bytes, which every machine has: at -O2 the compilers make none of these loops by themselves, and wider ones they keep in
 * memory. */
typedef uint16_t u16x8 __attribute__((vector_size(16), aligned(2), may_alias));
typedef int32_t i32x4 __attribute__((vector_size(16), aligned(4), may_alias));
enum { LANES = 4 };

/* What was seen of ids: comparisons are signed (SSE2 has no others), so an id above INT32_MAX is known by its sign. */
typedef struct seen {
  i32x4 most, bits;
} seen;

static inline void look(seen *s, i32x4 id) {
  const i32x4 more = id > s->most;
  s->most = (id & more) | (s->most & ~more);
  s->bits |= id;
}

static inline bool all_below(const seen *s, const int32_t *rest, int64_t n, int64_t vocab) {
  bool ok = true;
  for (int k = 0; k < LANES; k++) ok &= s->bits[k] >= 0 && s->most[k] < vocab;
  for (int64_t i = 0; i < n; i++) ok &= rest[i] >= 0 && rest[i] < vocab;
  return ok;
}

/* false: an id is not below vocab. */
static bool widen16(const uint16_t *src, int64_t n, int64_t vocab, int32_t *dst) {
  const u16x8 zero = {0};
  seen s = {{0}, {0}};
  int64_t i = 0;
  for (; i + 2 * LANES <= n; i += 2 * LANES) {
    const u16x8 v = *(const u16x8 *)(const void *)(src + i);
    const i32x4 low = (i32x4)__builtin_shufflevector(v, zero, 0, 8, 1, 9, 2, 10, 3, 11);
    const i32x4 high = (i32x4)__builtin_shufflevector(v, zero, 4, 12, 5, 13, 6, 14, 7, 15);
    look(&s, low);
    look(&s, high);
    *(i32x4 *)(void *)(dst + i) = low;
    *(i32x4 *)(void *)(dst + i + LANES) = high;
  }
  const int64_t done = i;
  for (; i < n; i++) dst[i] = src[i];
  return all_below(&s, dst + done, n - done, vocab);
}

static bool widen32(const int32_t *src, int64_t n, int64_t vocab, int32_t *dst) {
  seen s = {{0}, {0}};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    const i32x4 id = *(const i32x4 *)(const void *)(src + i);
    look(&s, id);
    *(i32x4 *)(void *)(dst + i) = id;
  }
  const int64_t done = i;
  for (; i < n; i++) dst[i] = src[i];
  return all_below(&s, dst + done, n - done, vocab);
}

static void fill_same(int32_t *p, int64_t n, int32_t value) {
  const i32x4 all = {value, value, value, value};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) *(i32x4 *)(void *)(p + i) = all;
  for (; i < n; i++) p[i] = value;
}

static void fill_counting(int32_t *p, int64_t n) { /* 0, 1, … */
  i32x4 next = {0, 1, 2, 3};
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES, next += LANES) *(i32x4 *)(void *)(p + i) = next;
  for (; i < n; i++) p[i] = (int32_t)i;
}

/* Inputs [0, n_tok - 1) by documents: document *d begins at `from`; returns where it ends, and goes on to the next. Ends were not
 * checked when the shard was opened, so whatever they are, the parts are in order and inside. */
static int64_t doc_end(const wr_sample *s, int64_t *d, int64_t from) {
  const int64_t n = s->n_tok - 1, i = (*d)++;
  if (i >= s->n_docs) return n;
  const uint64_t end = s->doc_ends[i] > s->first_tok ? s->doc_ends[i] - s->first_tok : 0;
  return WR_MAX(from, (int64_t)WR_MIN(end, (uint64_t)n));
}

static weir_status bad_id(const wr_sample *s, int64_t vocab) {
  return wr_fail(
      WEIR_EFORMAT,
      "data: window %llu of source %d holds an id that is not below %lld, the size of the vocabulary; 'weir data check' "
      "tells which file was damaged",
      (unsigned long long)s->id, s->source, (long long)vocab);
}

/* One row. */
static bool fill_row(const wr_sample *s, int64_t vocab, int32_t *tokens, int32_t *targets) {
  const int64_t n = s->n_tok - 1;
  if (s->token_bytes == 2) {
    const uint16_t *src = s->tokens;
    return widen16(src, n, vocab, tokens) && widen16(src + 1, n, vocab, targets);
  }
  const int32_t *src = s->tokens;
  return widen32(src, n, vocab, tokens) && widen32(src + 1, n, vocab, targets);
}

/* What no sample fills: a row that attends to itself and counts for nothing. */
static void fill_rest(int64_t from, int64_t T, bool documents, int32_t *tokens, int32_t *targets, int32_t *pos,
                      int32_t *first) {
  for (int64_t i = from; i < T; i++) {
    tokens[i] = 0;
    targets[i] = -1;
    pos[i] = documents ? 0 : (int32_t)i;
    first[i] = documents ? (int32_t)i : 0;
  }
}

weir_status wr_batch_fill(const wr_sample *samples, int64_t n_samples, int64_t B, int64_t T, int64_t vocab, bool documents,
                          wr_batch *out) {
  int64_t counted = 0;
  for (int64_t b = 0; b < B; b++) {
    int32_t *tokens = out->tokens + b * T, *targets = out->targets + b * T, *pos = out->pos + b * T,
            *first = out->first + b * T;
    int64_t n = 0;
    if (b < n_samples) {
      const wr_sample *s = &samples[b];
      n = WR_MIN(s->n_tok - 1, T);
      const wr_sample cut = {.tokens = s->tokens,
                             .token_bytes = s->token_bytes,
                             .n_tok = n + 1,
                             .doc_ends = s->doc_ends,
                             .n_docs = s->n_docs,
                             .first_tok = s->first_tok};
      if (!fill_row(&cut, vocab, tokens, targets)) return bad_id(s, vocab);
      if (documents) {
        for (int64_t d = 0, from = 0, end; from < n; from = end) {
          end = doc_end(&cut, &d, from);
          fill_same(first + from, end - from, (int32_t)from);
          fill_counting(pos + from, end - from);
        }
      } else {
        fill_counting(pos, n);
        fill_same(first, n, 0);
      }
      counted += n;
    }
    fill_rest(n, T, documents, tokens, targets, pos, first);
  }
  out->counted = counted;
  out->bytes = (uint64_t)(B * T) * 4 * sizeof(int32_t);
  return WEIR_OK;
}
