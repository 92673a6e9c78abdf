/* The sampler: logits to a token.
 *
 * Order: repetition penalty, temperature, top-k, top-p, min-p, draw. Every filter keeps at least the likeliest candidate, so
 * there is always something to draw. Candidates are ordered by logit, equal ones by the lower id, which makes every result a
 * function of logits, tokens and seed. The vocabulary is never sorted as a whole: top-k selects (quickselect) before it sorts
 * k; top-p and min-p take from a heap, from the top, until they have enough.
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
  wr_free(z->work);
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

/* The largest first, in lanes that do not wait for each other; then the first place where it stands. NaN is never larger. */
static weir_status greedy(const float *logits, int vocab, int32_t *out) {
  enum { LANES = 16 };
  float lane[LANES], max = -INFINITY;
  for (int j = 0; j < LANES; j++) lane[j] = -INFINITY;
  int i = 0;
  for (; i + LANES <= vocab; i += LANES)
    for (int j = 0; j < LANES; j++) lane[j] = logits[i + j] > lane[j] ? logits[i + j] : lane[j];
  for (; i < vocab; i++) lane[0] = logits[i] > lane[0] ? logits[i] : lane[0];
  for (int j = 0; j < LANES; j++) max = lane[j] > max ? lane[j] : max;
  if (!usable(max)) return nothing();
  int32_t at = 0;
  while (!(logits[at] >= max)) at++; /* it is there; "not at least" skips NaN */
  *out = at;
  return WEIR_OK;
}

static weir_status reserve(wr_sampler *z, int vocab) {
  const size_t n = (size_t)vocab;
  if (z->cap >= n) return WEIR_OK;
  wr_candidate *work = wr_malloc(n * sizeof *work);
  double *share = wr_malloc(n * sizeof *share);
  if (!work || !share) {
    wr_free(work);
    wr_free(share);
    return wr_fail_nomem(n * (sizeof *work + sizeof *share), "the sampler");
  }
  wr_free(z->work);
  wr_free(z->share);
  z->work = work;
  z->share = share;
  z->cap = n;
  return WEIR_OK;
}

/* Candidates with their penalties, those that cannot be drawn left out. */
static size_t collect(wr_sampler *z, const float *logits, int vocab, const int32_t *tokens, size_t n_tokens) {
  wr_candidate *c = z->work;
  const float penalty = z->s.repeat_penalty;
  for (int i = 0; i < vocab; i++) c[i] = (wr_candidate){logits[i], i};
  const size_t recent = penalty == 1 ? 0 : WR_MIN(n_tokens, (size_t)z->s.repeat_last_n);
  for (size_t i = n_tokens - recent; i < n_tokens; i++) {
    const int32_t id = tokens[i];
    if (id >= 0 && id < vocab) c[id].logit = penalised(logits[id], penalty); /* from logits: once, however often */
  }
  size_t n = 0;
  for (int i = 0; i < vocab; i++)
    if (usable(c[i].logit)) c[n++] = c[i];
  return n;
}

/* Puts the candidates that survive in front, fills share[] with their weights, returns how many, and their sum. */
static size_t filter(wr_sampler *z, size_t n, double *sum) {
  wr_candidate *c = z->work;
  const double temperature = z->s.temperature, top_p = z->s.top_p, min_p = z->s.min_p;
  if (z->s.top_k > 0 && (size_t)z->s.top_k < n) {
    select_first(c, n, (size_t)z->s.top_k);
    n = (size_t)z->s.top_k;
  }
  float max = c[0].logit;
  for (size_t i = 1; i < n; i++) max = WR_MAX(max, c[i].logit);
  /* An infinite logit leaves only its equals. */
  double total = 0;
  for (size_t i = 0; i < n; i++) {
    const double d = c[i].logit == max ? 0 : ((double)c[i].logit - (double)max) / temperature;
    z->share[i] = exp(d);
    total += z->share[i];
  }
  *sum = total;
  if (top_p >= 1 && min_p <= 0) return n;
  /* From the likeliest on. Weights are computed anew as they are taken, since the heap moves candidates. */
  for (size_t i = n / 2; i-- > 0;) sift_down(c, n, i);
  const double need = top_p * total;
  double have = 0;
  size_t kept = 0, heap = n;
  while (heap > 0) {
    const wr_candidate best = c[0];
    const double w = best.logit == max ? 1 : exp(((double)best.logit - (double)max) / temperature);
    if (kept > 0 && (have >= need || w < min_p)) break;
    c[0] = c[--heap];
    sift_down(c, heap, 0);
    c[heap] = best; /* behind the heap, so taken ones lie at the end, last taken first */
    have += w;
    kept++;
  }
  for (size_t i = 0; i < kept; i++) {
    const wr_candidate t = c[n - 1 - i];
    if (i < n - 1 - i) c[n - 1 - i] = c[i], c[i] = t;
  }
  for (size_t i = 0; i < kept; i++) z->share[i] = c[i].logit == max ? 1 : exp(((double)c[i].logit - (double)max) / temperature);
  *sum = have;
  return kept;
}

weir_status wr_sampler_draw(wr_sampler *z, const float *logits, int vocab, const int32_t *tokens, size_t n_tokens,
                            int32_t *out) {
  if (z->s.temperature == 0 && z->s.repeat_penalty == 1) return greedy(logits, vocab, out);
  WR_TRY(reserve(z, vocab));
  size_t n = collect(z, logits, vocab, tokens, n_tokens);
  if (!n) return nothing();
  const wr_candidate *c = z->work;
  if (z->s.temperature == 0) {
    wr_candidate best = c[0];
    for (size_t i = 1; i < n; i++)
      if (before(c[i], best)) best = c[i];
    *out = best.id;
    return WEIR_OK;
  }
  double sum;
  n = filter(z, n, &sum);
  double left = wr_rng_uniform(&z->rng) * sum;
  size_t pick = n;
  for (size_t i = 0; i < n; i++) {
    if (z->share[i] <= 0) continue;
    pick = i; /* the last possible one, if rounding leaves something over */
    if (left < z->share[i]) break;
    left -= z->share[i];
  }
  *out = c[pick].id;
  return WEIR_OK;
}
