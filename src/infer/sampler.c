/* The sampler: logits to a token.
 *
 * Order: repetition penalty, temperature, top-k, top-p, min-p, draw. Every filter keeps at least the likeliest candidate, so
 * there is always something to draw. Candidates are ordered by logit, equal ones by the lower id, which makes every result a
 * function of logits, tokens and seed.
 *
 * A vocabulary is large and few of its tokens matter, so it is read four at a time and never sorted. A first pass notes the largest logit of
 * each block. Without filters a second one adds up the weights of each block; the draw falls into a block, and there on a token. Filters look
 * only at logits above a floor that is low enough: for top-k the k-th largest of the blocks' largest, for min-p where its weight is, for top-p a
 * floor that sinks until what is above it has the probability. Of these top-k selects (quickselect), top-p and min-p take from a heap.
 *
 * Weights are single precision, by the same operations on every machine: within 3e-6 of e^x for x above -30, 0 below -86.
 *
 * NaN counts as minus infinity. All of them NaN or minus infinity: an error. */
#include <math.h>
#include <stdlib.h>

#include "infer/infer_i.h"

typedef struct field {
  const char *name;
  double def, min, max;
  bool integer;
} field;

static const field fields[] = {
#define X(name, type, def, min, max, text) \
  {#name, def, (double)(type)(min), (double)(type)(max), _Generic((type)0, float : false, default : true)},
    WEIR_SAMPLING_MAP(X)
#undef X
};

/* A range as people write it. */
static weir_status out_of_range(const field *f, double value) {
  if (f->min > 0 && f->min <= 1e-6)
    return wr_fail(WEIR_EUSAGE, "%s is %g, but it must be above 0 and at most %.10g", f->name, value, f->max);
  return wr_fail(WEIR_EUSAGE, "%s is %g, but it must be from %g to %.10g", f->name, value, f->min, f->max);
}

weir_status weir_sampling_set(weir_sampling *s, const char *name, double value) {
  for (int i = 0; i < WEIR_SAMPLING_COUNT; i++) {
    const field *f = &fields[i];
    if (strcmp(f->name, name) != 0) continue;
    if (!(value >= f->min && value <= f->max)) return out_of_range(f, value); /* NaN fails as well */
    if (f->integer && value != floor(value))
      return wr_fail(WEIR_EUSAGE, "%s is %g, but it must be a whole number", name, value);
    switch (i) {
#define X(field, type, def, min, max, text) \
  case WEIR_SAMPLING_AT_##field: s->field = (type)value; break;
      WEIR_SAMPLING_MAP(X)
#undef X
    }
    s->given |= 1u << i;
    return WEIR_OK;
  }
  wr_str known = {0};
  for (int i = 0; i < WEIR_SAMPLING_COUNT; i++) wr_str_printf(&known, "%s%s", i ? ", " : "", fields[i].name);
  const weir_status status = wr_fail(WEIR_EUSAGE, "there is no sampling field '%s' (there are: %s)",
                                     wr_escape(name, strlen(name)), known.ptr ? known.ptr : "");
  wr_str_free(&known);
  return status;
}

static bool is_given(const weir_sampling *s, int at, double value) { return value != 0 || (s->given >> at & 1); }

static weir_status check_field(const weir_sampling *s, int at, double value) {
  const field *f = &fields[at];
  if (at == WEIR_SAMPLING_AT_seed || !is_given(s, at, value)) return WEIR_OK; /* every seed is one */
  return value >= f->min && value <= f->max ? WEIR_OK : out_of_range(f, value);
}

weir_status weir_sampling_check(const weir_sampling *s) {
  if (!s) return WEIR_OK;
#define X(field, type, def, min, max, text) WR_TRY(check_field(s, WEIR_SAMPLING_AT_##field, (double)s->field));
  WEIR_SAMPLING_MAP(X)
#undef X
  return WEIR_OK;
}

weir_status wr_sampler_init(wr_sampler *z, const weir_sampling *s, uint64_t *seed) {
  const weir_sampling zero = {0};
  if (!s) s = &zero;
  WR_TRY(weir_sampling_check(s));
  z->s = *s;
#define X(field, type, def, min, max, text) \
  if (!is_given(s, WEIR_SAMPLING_AT_##field, (double)s->field)) z->s.field = (type)(def);
  WEIR_SAMPLING_MAP(X)
#undef X
  if (z->s.temperature > 0) {
    while (!z->s.seed) z->s.seed = wr_random_seed();
    wr_rng_seed(&z->rng, z->s.seed);
  } else {
    z->s.seed = 0;
  }
  if (seed) *seed = z->s.seed;
  return WEIR_OK;
}

void wr_sampler_free(wr_sampler *z) {
  wr_free(z->share);
  *z = (wr_sampler){0};
}

/* Is a before b? */
static inline bool before(wr_candidate a, wr_candidate b) { return a.logit > b.logit || (a.logit == b.logit && a.id < b.id); }

static inline void swap(wr_candidate *c, size_t i, size_t j) {
  const wr_candidate t = c[i];
  c[i] = c[j];
  c[j] = t;
}

static int compare(const void *a, const void *b) {
  const wr_candidate *x = a, *y = b;
  return before(*x, *y) ? -1 : before(*y, *x) ? 1 : 0;
}

static void sift_down(wr_candidate *c, size_t n, size_t i) {
  for (;;) {
    size_t best = i;
    for (size_t child = 2 * i + 1; child <= 2 * i + 2 && child < n; child++)
      if (before(c[child], c[best])) best = child;
    if (best == i) return;
    swap(c, i, best);
    i = best;
  }
}

/* The k first of n to the front, in no order. Falls back to sorting where the pivots are bad, so hostile logits cost n log
 * n. */
static void select_first(wr_candidate *c, size_t n, size_t k) {
  size_t lo = 0, hi = n;
  for (int rounds = 0; hi - lo > 1; rounds++) {
    if (rounds > 64) {
      qsort(c + lo, hi - lo, sizeof *c, compare);
      return;
    }
    const size_t mid = lo + (hi - lo) / 2;
    if (before(c[mid], c[lo])) swap(c, mid, lo);
    if (before(c[hi - 1], c[lo])) swap(c, hi - 1, lo);
    if (before(c[hi - 1], c[mid])) swap(c, hi - 1, mid);
    const wr_candidate pivot = c[mid];
    size_t i = lo, j = hi - 1;
    for (;;) {
      while (before(c[i], pivot)) i++;
      while (before(pivot, c[j])) j--;
      if (i >= j) break;
      swap(c, i++, j--);
    }
    if (k <= i)
      hi = i == lo ? lo + 1 : i;
    else
      lo = i;
    if (lo >= k) return;
  }
}

static bool usable(float logit) { return logit > -INFINITY; /* false for NaN too */ }

/* The logit of an id that may have occurred among the last tokens: the penalty counts once, however often it occurred. */
static float penalised(float logit, float penalty) { return logit > 0 ? logit / penalty : logit * penalty; }

static weir_status nothing(void) {
  return wr_fail(WEIR_EFAIL, "the model gave no usable logits: every one is NaN or minus infinity");
}

/* ------------------------------------------------------------------------------------------------------ four at a time */

enum { LANES = 4, BLOCK = 64 };
typedef float v4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));
typedef uint32_t u4 __attribute__((vector_size(16)));

static inline v4 load(const float *x) {
  v4 v;
  memcpy(&v, x, sizeof v);
  return v;
}
static inline v4 all(float x) { return (v4){x, x, x, x}; }
static inline v4 choose(i4 yes, v4 a, v4 b) { return (v4)((yes & (i4)a) | (~yes & (i4)b)); }

/* e^((x - max) / temperature): 2^n times a polynomial of what is left, |f| <= 1/2. The largest logit weighs 1, also an infinite one. */
static inline v4 weights(v4 x, float max, float temperature) {
  const float LEAST = -86, MAGIC = 12582912; /* 1.5 * 2^23: adding it rounds to a whole number, in the low bits */
  const v4 d = (x - all(max)) / all(temperature);
  const i4 counts = d > all(LEAST);
  const v4 t = choose(counts, d, all(0)) * all(1.44269504f), n = t + all(MAGIC), f = t - (n - all(MAGIC));
  v4 p = all(1.5403530e-4f);
  p = p * f + all(1.3333558e-3f);
  p = p * f + all(9.6181291e-3f);
  p = p * f + all(5.5504109e-2f);
  p = p * f + all(2.4022651e-1f);
  p = p * f + all(6.9314718e-1f);
  p = p * f + all(1);
  const u4 scaled = (u4)p + (((u4)n - (u4)all(MAGIC)) << 23);
  return choose(x == all(max), all(1), choose(counts, (v4)scaled, all(0)));
}

static float weight(const wr_sampler *z, float logit, float max) { return weights(all(logit), max, z->s.temperature)[0]; }

static int block_end(int begin, int vocab) { return WR_MIN(begin + BLOCK, vocab); }

/* Each block's largest logit; returns the largest of all, -infinity where none is usable. */
static float block_maxima(const float *x, int vocab, float *out) {
  float all_max = -INFINITY;
  for (int at = 0; at < vocab; at += BLOCK) {
    const int end = block_end(at, vocab);
    v4 m = all(-INFINITY);
    int i = at;
    for (; i + LANES <= end; i += LANES) m = choose(load(x + i) > m, load(x + i), m);
    float max = -INFINITY;
    for (int k = 0; k < LANES; k++) max = m[k] > max ? m[k] : max;
    for (; i < end; i++) max = x[i] > max ? x[i] : max;
    out[at / BLOCK] = max;
    all_max = max > all_max ? max : all_max;
  }
  return all_max;
}

/* Each block's weights, added up; returns the sum of all. */
static double block_sums(const wr_sampler *z, const float *x, int vocab, float max, double *out) {
  double total = 0;
  for (int at = 0; at < vocab; at += BLOCK) {
    const int end = block_end(at, vocab);
    v4 s = all(0);
    int i = at;
    for (; i + LANES <= end; i += LANES) s += weights(load(x + i), max, z->s.temperature);
    double sum = 0;
    for (int k = 0; k < LANES; k++) sum += (double)s[k];
    for (; i < end; i++) sum += (double)weight(z, x[i], max);
    out[at / BLOCK] = sum;
    total += sum;
  }
  return total;
}

/* The largest, of equal ones the first; NaN is never larger. */
static weir_status greedy(const float *x, int vocab, int32_t *out) {
  v4 m = all(-INFINITY);
  float max = -INFINITY;
  int i = 0;
  for (; i + LANES <= vocab; i += LANES) m = choose(load(x + i) > m, load(x + i), m);
  for (int k = 0; k < LANES; k++) max = m[k] > max ? m[k] : max;
  for (; i < vocab; i++) max = x[i] > max ? x[i] : max;
  if (!usable(max)) return nothing();
  int32_t at = 0;
  while (!(x[at] >= max)) at++; /* it is there; "not at least" skips NaN */
  *out = at;
  return WEIR_OK;
}

/* ------------------------------------------------------------------------------------------------------------- filters */

static weir_status reserve(wr_sampler *z, int vocab) {
  const size_t n = (size_t)vocab, blocks = (n + BLOCK - 1) / BLOCK;
  const size_t bytes =
      n * (sizeof *z->work + sizeof *z->share + sizeof *z->logits) + blocks * (sizeof *z->sums + sizeof *z->maxima);
  if (z->cap >= n) return WEIR_OK;
  char *at = wr_malloc(bytes);
  if (!at) return wr_fail_nomem(bytes, "the sampler");
  wr_free(z->share);
  z->share = (double *)(void *)at;
  z->sums = z->share + n;
  z->work = (wr_candidate *)(void *)(z->sums + blocks);
  z->logits = (float *)(void *)(z->work + n);
  z->maxima = z->logits + n;
  z->cap = n;
  return WEIR_OK;
}

/* A copy of the logits in which recent tokens are less likely. */
static const float *penalise(wr_sampler *z, const float *logits, int vocab, const int32_t *tokens, size_t n_tokens) {
  const size_t recent = WR_MIN(n_tokens, (size_t)z->s.repeat_last_n);
  memcpy(z->logits, logits, (size_t)vocab * sizeof *logits);
  for (size_t i = n_tokens - recent; i < n_tokens; i++) {
    const int32_t id = tokens[i];
    if (id >= 0 && id < vocab)
      z->logits[id] = penalised(logits[id], z->s.repeat_penalty); /* from logits: once, however often */
  }
  return z->logits;
}

/* Candidates whose logit is at least `floor`, and the sum of their weights. */
static size_t above(wr_sampler *z, const float *x, int vocab, float floor, float max, double *sum) {
  size_t n = 0;
  *sum = 0;
  for (int at = 0; at < vocab; at += BLOCK) {
    if (!(z->maxima[at / BLOCK] >= floor)) continue;
    for (int i = at, end = block_end(at, vocab); i < end; i++) {
      if (!(x[i] >= floor && usable(x[i]))) continue;
      z->work[n++] = (wr_candidate){x[i], i};
      *sum += (double)weight(z, x[i], max);
    }
  }
  return n;
}

/* The k-th largest of the blocks' largest: so many logits at least are not below it. */
static float top_k_floor(wr_sampler *z, int vocab, size_t k) {
  const size_t blocks = ((size_t)vocab + BLOCK - 1) / BLOCK;
  if (k > blocks) return -INFINITY;
  for (size_t i = 0; i < blocks; i++) z->work[i] = (wr_candidate){z->maxima[i], (int32_t)i};
  select_first(z->work, blocks, k);
  float floor = z->work[0].logit;
  for (size_t i = 1; i < k; i++) floor = WR_MIN(floor, z->work[i].logit);
  return floor;
}

/* Candidates that top-p and min-p can be told from, and the sum of all weights. */
static size_t candidates(wr_sampler *z, const float *x, int vocab, float max, double *total) {
  const size_t k = (size_t)z->s.top_k;
  if (k > 0 && k < (size_t)vocab) {
    size_t n = above(z, x, vocab, top_k_floor(z, vocab, k), max, total);
    if (n <= k) return n;
    select_first(z->work, n, k);
    *total = 0;
    for (size_t i = 0; i < k; i++) *total += (double)weight(z, z->work[i].logit, max);
    return k;
  }
  *total = z->s.top_p < 1 ? block_sums(z, x, vocab, max, z->sums) : 0;
  const double need = (double)z->s.top_p * *total;
  /* a weight's error is far below the thousandth that the floor of min-p is too low by */
  const double least = z->s.min_p > 0 ? log((double)z->s.min_p) - 1e-3 : -INFINITY;
  for (double depth = z->s.top_p < 1 ? -8 : least;; depth *= 2) {
    double sum;
    const bool last = depth <= least || depth < -100; /* beyond that nothing has a weight */
    const double floor = (double)max + (double)z->s.temperature * WR_MAX(depth, least);
    const size_t n = above(z, x, vocab, last && !(least > -INFINITY) ? -INFINITY : (float)floor, max, &sum);
    if (last || sum >= need) return n;
  }
}

/* Puts the candidates that survive in front, fills share[] with their weights, returns how many, and their sum. */
static size_t filter(wr_sampler *z, size_t n, float max, double total, double *sum) {
  wr_candidate *c = z->work;
  const double need = (double)z->s.top_p * total;
  size_t kept = 0, heap = n;
  *sum = 0;
  if (z->s.top_p >= 1 && z->s.min_p <= 0) { /* top-k alone, in whatever order it left */
    for (; kept < n; kept++) *sum += z->share[kept] = (double)weight(z, c[kept].logit, max);
    return n;
  }
  for (size_t i = n / 2; i-- > 0;) sift_down(c, n, i);
  while (heap > 0) {
    const wr_candidate best = c[0];
    const double w = (double)weight(z, best.logit, max);
    if (kept > 0 && ((z->s.top_p < 1 && *sum >= need) || w < (double)z->s.min_p)) break;
    c[0] = c[--heap];
    sift_down(c, heap, 0);
    c[heap] = best; /* behind the heap, so taken ones lie at the end, last taken first */
    z->share[kept++] = w;
    *sum += w;
  }
  for (size_t i = 0; i < kept && i < n - 1 - i; i++) swap(c, i, n - 1 - i);
  return kept;
}

/* ---------------------------------------------------------------------------------------------------------------- draw */

/* The place where a point in [0, sum of shares) falls; the last possible one, if rounding leaves something over. */
static size_t place(const double *share, size_t n, double *point) {
  size_t pick = 0;
  for (size_t i = 0; i < n; i++) {
    if (share[i] <= 0) continue;
    pick = i;
    if (*point < share[i]) break;
    *point -= share[i];
  }
  return pick;
}

static int32_t draw_from_all(wr_sampler *z, const float *x, int vocab, float max) {
  double point = wr_rng_uniform(&z->rng) * block_sums(z, x, vocab, max, z->sums);
  const int begin = (int)place(z->sums, ((size_t)vocab + BLOCK - 1) / BLOCK, &point) * BLOCK;
  const int n = block_end(begin, vocab) - begin;
  for (int i = 0; i < n; i++) z->share[i] = (double)weight(z, x[begin + i], max);
  return begin + (int32_t)place(z->share, (size_t)n, &point);
}

weir_status wr_sampler_draw(wr_sampler *z, const float *logits, int vocab, const int32_t *tokens, size_t n_tokens,
                            int32_t *out) {
  if (z->s.temperature == 0 && z->s.repeat_penalty == 1) return greedy(logits, vocab, out);
  WR_TRY(reserve(z, vocab));
  const float *x = z->s.repeat_penalty == 1 ? logits : penalise(z, logits, vocab, tokens, n_tokens);
  if (z->s.temperature == 0) return greedy(x, vocab, out);
  const float max = block_maxima(x, vocab, z->maxima);
  if (!usable(max)) return nothing();
  if ((z->s.top_k == 0 || z->s.top_k >= vocab) && z->s.top_p >= 1 && z->s.min_p <= 0) {
    *out = draw_from_all(z, x, vocab, max);
    return WEIR_OK;
  }
  double total, sum;
  size_t n = candidates(z, x, vocab, max, &total);
  n = filter(z, n, max, total, &sum);
  double point = wr_rng_uniform(&z->rng) * sum;
  *out = z->work[place(z->share, n, &point)].id;
  return WEIR_OK;
}
