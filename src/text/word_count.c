/* word_count.c: how often each word occurs in a text, counted by several threads.
 *
 * Owns tables of words: a word's bytes lie one after another in one block, entries in one array, and an open-addressed table of
 * indices finds them. Each thread counts into a table of its own; at the end all are added to the caller's. Sums do not depend
 * on who counted what, so only the order of a table's words differs from run to run.
 *
 * Work is cut at the ends of texts and, within a long one, where a word surely begins (wr_word_break), so that the words are
 * those of the whole text. Pre-tokenizers without such a place get whole texts.
 */
#include "text/text_i.h"

#define SPAN_BYTES (64u << 10) /* a piece of work: short enough to share well, long enough to hide its beginning */

static uint64_t hash_word(const char *word, size_t n) {
  const uint64_t k = 0x9e3779b97f4a7c15u;
  uint64_t h = n * k, v = 0;
  for (; n > 8; word += 8, n -= 8) {
    memcpy(&v, word, 8);
    h = (h ^ v) * k, h ^= h >> 32;
  }
  v = 0;
  memcpy(&v, word, n);
  h = (h ^ v) * k;
  h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
  return h ^ h >> 32;
}

static bool more_slots(wr_word_table *t) {
  size_t slots = t->slots ? 2 * (t->mask + 1) : 4096;
  uint32_t *grown = wr_calloc(slots, sizeof *grown);
  if (!grown) return false;
  for (size_t i = 0; i < t->n; i++) {
    size_t at = t->words[i].hash & (slots - 1);
    while (grown[at]) at = (at + 1) & (slots - 1);
    grown[at] = (uint32_t)i + 1;
  }
  wr_free(t->slots);
  t->slots = grown, t->mask = slots - 1;
  return true;
}

static weir_status add_hashed(wr_word_table *t, const char *word, size_t n, uint64_t hash, uint64_t count) {
  if (t->n + t->n / 2 >= t->mask && !more_slots(t)) return wr_fail_nomem(2 * t->mask * sizeof *t->slots, "counting words");
  size_t at = hash & t->mask;
  for (; t->slots[at]; at = (at + 1) & t->mask) {
    wr_counted_word *w = &t->words[t->slots[at] - 1];
    if (w->hash != hash || w->len != n || memcmp(t->bytes + w->at, word, n) != 0) continue;
    w->count += count, t->total += count;
    return WEIR_OK;
  }
  if (t->n >= UINT32_MAX - 1) return wr_fail(WEIR_EUNSUPPORTED, "the text has more than %u different words", UINT32_MAX - 1);
  if (!wr_grow((void **)&t->words, &t->words_cap, t->n + 1, sizeof *t->words) ||
      !wr_grow((void **)&t->bytes, &t->bytes_cap, t->n_bytes + n, 1))
    return wr_fail_nomem(t->n * sizeof *t->words + t->n_bytes, "counting words");
  t->words[t->n] = (wr_counted_word){hash, t->n_bytes, count, (uint32_t)n};
  memcpy(t->bytes + t->n_bytes, word, n);
  t->n_bytes += n, t->total += count;
  t->slots[at] = (uint32_t)++t->n;
  return WEIR_OK;
}

weir_status wr_word_table_add(wr_word_table *t, const char *word, size_t n, uint64_t count) {
  return add_hashed(t, word, n, hash_word(word, n), count);
}

void wr_word_table_free(wr_word_table *t) {
  wr_free(t->words);
  wr_free(t->slots);
  wr_free(t->bytes);
  *t = (wr_word_table){0};
}

/* ----------------------------------------------------------------------------------------------------------------- threads */

typedef struct span {
  const char *ptr;
  size_t len;
} span;

typedef struct counter {
  wr_word_table table;
  weir_status status;
  char sentence[256]; /* of status: a thread's last error is its own */
} counter;

typedef struct job {
  const wr_pretok *pretok;
  span *spans;
  size_t n_spans, cap;
  atomic_size_t next;
  counter *of_thread;
} job;

static weir_status count_word(void *user, const char *word, size_t n) {
  while (n > WR_COUNTED_MAX_BYTES) {
    size_t piece = WR_COUNTED_MAX_BYTES - wr_utf8_partial(word, WR_COUNTED_MAX_BYTES);
    WR_TRY(wr_word_table_add(user, word, piece, 1));
    word += piece, n -= piece;
  }
  return n ? wr_word_table_add(user, word, n, 1) : WEIR_OK;
}

static void count_spans(void *arg, int tid, int n_threads) {
  (void)n_threads;
  job *j = arg;
  counter *c = &j->of_thread[tid];
  wr_splitter splitter;
  c->status = wr_splitter_open(j->pretok, &splitter);
  if (c->status == WEIR_OK) {
    for (size_t i; c->status == WEIR_OK && (i = atomic_fetch_add(&j->next, 1)) < j->n_spans;)
      c->status = wr_split(&splitter, j->spans[i].ptr, j->spans[i].len, count_word, &c->table);
    wr_splitter_close(&splitter);
  }
  if (c->status != WEIR_OK) snprintf(c->sentence, sizeof c->sentence, "%s", weir_last_error());
}

static weir_status add_spans(job *j, const char *text, size_t n) {
  bool whole = !j->pretok->row->ascii;
  while (n) {
    size_t len = n;
    if (!whole && n > 2 * SPAN_BYTES) len = SPAN_BYTES + wr_word_break((const uint8_t *)text + SPAN_BYTES, n - SPAN_BYTES);
    if (!wr_grow((void **)&j->spans, &j->cap, j->n_spans + 1, sizeof *j->spans))
      return wr_fail_nomem(j->n_spans * sizeof *j->spans, "counting words");
    j->spans[j->n_spans++] = (span){text, len};
    text += len, n -= len;
  }
  return WEIR_OK;
}

static weir_status gather(wr_word_table *out, const wr_word_table *from) {
  for (size_t i = 0; i < from->n; i++) {
    const wr_counted_word *w = &from->words[i];
    WR_TRY(add_hashed(out, from->bytes + w->at, w->len, w->hash, w->count));
  }
  return WEIR_OK;
}

weir_status wr_count_words(const wr_pretok *p, wr_team *team, const char *text, const size_t *ends, size_t n,
                           wr_word_table *out) {
  int threads = wr_team_size(team);
  job j = {.pretok = p, .of_thread = wr_calloc((size_t)threads, sizeof *j.of_thread)};
  weir_status st = j.of_thread ? WEIR_OK : wr_fail_nomem((size_t)threads * sizeof *j.of_thread, "counting words");
  for (size_t i = 0, from = 0; st == WEIR_OK && i < n; from = ends[i++]) st = add_spans(&j, text + from, ends[i] - from);
  if (st == WEIR_OK) {
    /* the caller's table goes on growing in place; thread 0 needs no other */
    j.of_thread[0].table = *out;
    wr_team_run(team, count_spans, &j);
    *out = j.of_thread[0].table;
  }
  for (int i = 0; j.of_thread && i < threads; i++) {
    counter *c = &j.of_thread[i];
    if (st == WEIR_OK && c->status != WEIR_OK) st = wr_fail(c->status, "%s", c->sentence);
    if (st == WEIR_OK && i) st = gather(out, &c->table);
    if (i) wr_word_table_free(&c->table);
  }
  wr_free(j.spans);
  wr_free(j.of_thread);
  return st;
}
