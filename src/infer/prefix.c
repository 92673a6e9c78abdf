/* Prefixes: pages of sequences that ended, kept as long as nobody needs them.
 *
 * A prompt that begins as one of them shares its whole pages by reference count. What is given back first is the end of the sequence that
 * was not used for longest: beginnings are what prompts share. A list, searched from end to end: it is as long as there are slots, and the
 * comparison stops at the first difference.
 *
 * Invariant: no sequence in the list begins with all of another one. */
#include "infer/batch_i.h"

void wr_prefixes_free(wr_prefixes *p) {
  for (size_t i = 0; i < p->n; i++) {
    wr_engine_drop(p->engine, &p->list[i].seq);
    wr_free(p->list[i].tokens);
  }
  p->n = 0;
}

int64_t wr_prefix_common(const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b) {
  const int64_t n = WR_MIN(n_a, n_b);
  int64_t k = 0;
  while (k < n && a[k] == b[k]) k++;
  return k / WR_KV_PAGE * WR_KV_PAGE;
}

static void drop(wr_prefixes *p, size_t i) {
  wr_engine_drop(p->engine, &p->list[i].seq);
  wr_free(p->list[i].tokens);
  p->list[i] = p->list[--p->n];
}

static size_t oldest(const wr_prefixes *p) {
  size_t at = 0;
  for (size_t i = 1; i < p->n; i++)
    if (p->list[i].used < p->list[at].used) at = i;
  return at;
}

void wr_prefix_keep(wr_prefixes *p, const int32_t *tokens, wr_seq *seq) {
  const int64_t n = seq->length / WR_KV_PAGE * WR_KV_PAGE;
  bool there = n == 0;
  for (size_t i = p->n; i-- > 0 && !there;) {
    wr_prefix *old = &p->list[i];
    const int64_t common = wr_prefix_common(tokens, n, old->tokens, old->seq.length);
    there = common == n;
    if (there)
      old->used = ++p->clock;
    else if (common == old->seq.length)
      drop(p, i);
  }
  int32_t *copy = there ? NULL : wr_malloc((size_t)n * sizeof *copy);
  if (!copy || wr_engine_truncate(p->engine, seq, n) != WEIR_OK) {
    wr_free(copy);
    wr_engine_drop(p->engine, seq);
    return;
  }
  if (p->n == p->most) drop(p, oldest(p));
  memcpy(copy, tokens, (size_t)n * sizeof *copy);
  p->list[p->n++] = (wr_prefix){.tokens = copy, .seq = *seq, .used = ++p->clock};
  *seq = (wr_seq){0};
}

const wr_seq *wr_prefix_find(wr_prefixes *p, const int32_t *tokens, int64_t n, int64_t *common) {
  wr_prefix *best = NULL;
  *common = 0;
  for (size_t i = 0; i < p->n; i++) {
    const int64_t k = wr_prefix_common(tokens, n, p->list[i].tokens, p->list[i].seq.length);
    if (k <= *common) continue;
    best = &p->list[i];
    *common = k;
  }
  if (!best) return NULL;
  best->used = ++p->clock;
  return &best->seq;
}

bool wr_prefix_give(wr_prefixes *p) {
  if (!p->n) return false;
  const size_t i = oldest(p);
  wr_seq *seq = &p->list[i].seq;
  if (seq->length <= WR_KV_PAGE || wr_engine_truncate(p->engine, seq, seq->length - WR_KV_PAGE) != WEIR_OK) drop(p, i);
  return true;
}
