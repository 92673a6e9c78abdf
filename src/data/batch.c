/* batch.c: owns the one place where training touches tokens: from the map, widened, into the program's tables.
 *
 * One pass over a sample writes inputs and targets (the same ids, one apart), and finds the largest id, which is held against the
 * vocabulary once a sample: a shard that was changed after it was built cannot make a kernel read outside its table. */
#include "data/data_i.h"

/* 16 ids at a time; at -O2 the compilers do not make these loops into vectors by themselves. */
typedef uint16_t u16v __attribute__((vector_size(32), aligned(2), may_alias));
typedef uint32_t u32v __attribute__((vector_size(64), aligned(4), may_alias));
enum { LANES = 16 };

#define WIDEN(name, type, vector) \
  static uint32_t name(const type *src, int64_t n, int32_t *dst) { \
    u32v most = {0}; \
    uint32_t top = 0; \
    int64_t i = 0; \
    for (; i + LANES <= n; i += LANES) { \
      const u32v id = __builtin_convertvector(*(const vector *)(const void *)(src + i), u32v); \
      const u32v more = (u32v)(id > most); \
      most = (id & more) | (most & ~more); \
      *(u32v *)(void *)(dst + i) = id; \
    } \
    for (int k = 0; k < LANES; k++) top = WR_MAX(top, most[k]); \
    for (; i < n; i++) { \
      top = WR_MAX(top, (uint32_t)src[i]); \
      dst[i] = (int32_t)src[i]; \
    } \
    return top; \
  }
WIDEN(widen16, uint16_t, u16v)
WIDEN(widen32, uint32_t, u32v)

void wr_sample_doc_first(const wr_sample *s, int32_t *out) {
  int64_t at = 0;
  for (int64_t d = 0, begin = 0; at < s->n_tok - 1; d++) {
    const int64_t end = d < s->n_docs ? WR_MIN((int64_t)(s->doc_ends[d] - s->first_tok), s->n_tok - 1) : s->n_tok - 1;
    for (; at < end; at++) out[at] = (int32_t)begin;
    begin = end;
  }
}

static weir_status bad_id(const wr_sample *s, uint32_t id, int64_t vocab) {
  return wr_fail(WEIR_EFORMAT,
                 "data: window %llu of source %d holds id %u, but the vocabulary has %lld tokens; 'weir data check' tells "
                 "which file was damaged",
                 (unsigned long long)s->id, s->source, id, (long long)vocab);
}

/* One row of T: returns the largest id. */
static uint32_t fill_row(const wr_sample *s, int32_t *tokens, int32_t *targets) {
  const int64_t n = s->n_tok - 1;
  if (s->token_bytes == 2) {
    const uint16_t *src = s->tokens;
    const uint32_t a = widen16(src, n, tokens), b = widen16(src + 1, n, targets);
    return WR_MAX(a, b);
  }
  const uint32_t *src = s->tokens;
  const uint32_t a = widen32(src, n, tokens), b = widen32(src + 1, n, targets);
  return WR_MAX(a, b);
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
      const uint32_t most = fill_row(&cut, tokens, targets);
      if (most >= vocab) return bad_id(s, most, vocab);
      if (documents) {
        wr_sample_doc_first(&cut, first);
        for (int64_t i = 0; i < n; i++) pos[i] = (int32_t)i - first[i];
      } else {
        for (int64_t i = 0; i < n; i++) {
          pos[i] = (int32_t)i;
          first[i] = 0;
        }
      }
      counted += n;
    }
    fill_rest(n, T, documents, tokens, targets, pos, first);
  }
  out->counted = counted;
  out->bytes = (uint64_t)(B * T) * 4 * sizeof(int32_t);
  return WEIR_OK;
}
