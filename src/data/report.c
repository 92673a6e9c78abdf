/* report.c: owns reading a folder of shards through: that it is what it says (check), and what is in it (stats). */
#include "data/data_i.h"

typedef struct pass {
  const char *folder;
  wr_shards_manifest m;
  int (*progress)(void *user, const weir_data_progress *p);
  void *user;
  uint64_t begin_ns, bytes, all_bytes; /* of the shards */
  uint64_t *counts;                    /* [vocab]; NULL: check only */
  uint64_t open_doc;                   /* tokens of a document that went on from the shard before */
  weir_data_info info;
} pass;

static void add_length(weir_data_info *d, uint64_t n) {
  d->lengths[WR_MIN(63 - __builtin_clzll(n), WEIR_DATA_LENGTHS - 1)]++;
  d->least_tok = d->least_tok ? WR_MIN(d->least_tok, n) : n;
  d->most_tok = WR_MAX(d->most_tok, n);
}

static void add_lengths(pass *p, const wr_shard *s) {
  const wr_shard_header *h = s->head;
  for (uint64_t i = 0, from = 0; i < h->n_docs; from = s->doc_ends[i++]) {
    const uint64_t n = s->doc_ends[i] - from + p->open_doc;
    p->open_doc = 0;
    if (i + 1 == h->n_docs && h->continues)
      p->open_doc = n;
    else
      add_length(&p->info, n);
  }
}

static weir_status read_shard(pass *p, int split, size_t i) {
  wr_shard s;
  WR_TRY(wr_shards_manifest_open_shard(p->folder, &p->m, split, i, &s));
  char *path = wr_path_join(p->folder, p->m.split[split].shards[i].file);
  weir_status status = path ? wr_shard_check(&s, path, p->counts) : wr_fail_nomem(64, "a path");
  wr_free(path);
  if (status == WEIR_OK) {
    add_lengths(p, &s);
    p->bytes += s.map.bytes;
  }
  wr_shard_close(&s);
  WR_TRY(status);
  const weir_data_progress now = {.done = (double)p->bytes / (double)p->all_bytes,
                                  .seconds = (double)(wr_now_ns() - p->begin_ns) * 1e-9,
                                  .bytes = p->bytes};
  if (p->progress && p->progress(p->user, &now) != 0) return wr_fail(WEIR_ESTOPPED, "reading %s was stopped", p->folder);
  return WEIR_OK;
}

static void fill_info(pass *p) {
  const wr_shards_manifest *m = &p->m;
  weir_data_info *d = &p->info;
  const wr_manifest_split *train = &m->split[WR_SPLIT_TRAIN], *val = &m->split[WR_SPLIT_VAL];
  snprintf(d->tokenizer, sizeof d->tokenizer, "%s", m->tokenizer);
  d->tokenizer_hash = m->tokenizer_hash;
  d->vocab = (int)m->vocab;
  d->token_bytes = (int)m->token_bytes;
  d->shards = (int)(train->n + val->n);
  d->docs = train->docs;
  d->val_docs = val->docs;
  d->tokens = train->tokens;
  d->val_tokens = val->tokens;
  d->bytes = m->bytes;
  const uint64_t tokens = d->tokens + d->val_tokens, docs = d->docs + d->val_docs;
  d->bytes_per_token = tokens ? (double)m->bytes / (double)tokens : 0;
  d->mean_tok = docs ? (double)tokens / (double)docs : 0;
}

/* The tokenizer beside the shards is the one that made them. */
static weir_status check_tokenizer(const pass *p, wr_tokenizer **out) {
  char *path = wr_path_join(p->folder, "tokenizer.gguf");
  if (!path) return wr_fail_nomem(64, "a path");
  wr_tokenizer *t = NULL;
  weir_status s = wr_tokenizer_open_path(path, &t);
  if (s == WEIR_OK && wr_tokenizer_hash(t) != p->m.tokenizer_hash)
    s = wr_fail(WEIR_EFORMAT, "%s: is not the tokenizer that the shards were made with", wr_escape(path, strlen(path)));
  wr_free(path);
  if (s == WEIR_OK)
    *out = t;
  else
    wr_tokenizer_close(t);
  return s;
}

/* The n most frequent, by selection: n is small. */
static weir_status find_frequent(pass *p, const wr_tokenizer *t) {
  weir_data_info *d = &p->info;
  for (uint64_t id = 0; id < p->m.vocab; id++) {
    const uint64_t count = p->counts[id];
    d->unused += !count;
    size_t at = d->n_frequent;
    while (at && d->frequent[at - 1].count < count) at--;
    if (!count || at == WEIR_DATA_FREQUENT) continue;
    if (d->n_frequent < WEIR_DATA_FREQUENT) d->n_frequent++;
    memmove(d->frequent + at + 1, d->frequent + at, (d->n_frequent - at - 1) * sizeof *d->frequent);
    d->frequent[at] = (weir_data_count){.id = (weir_token)id, .count = count};
  }
  for (size_t i = 0; i < d->n_frequent; i++) {
    wr_str text = {0}, shown = {0};
    const weir_status s = wr_decode(t, &d->frequent[i].id, 1, WR_TEXT_KEEP_SPECIAL | WR_TEXT_CONTINUES, &text);
    if (s == WEIR_OK) wr_str_escape(&shown, text.ptr, text.len);
    snprintf(d->frequent[i].text, sizeof d->frequent[i].text, "%s", shown.ptr ? shown.ptr : "");
    wr_str_free(&text);
    wr_str_free(&shown);
    WR_TRY(s);
  }
  return WEIR_OK;
}

static weir_status read_all(pass *p, bool stats) {
  wr_tokenizer *t = NULL;
  for (int k = 0; k < WR_SPLITS; k++)
    for (size_t i = 0; i < p->m.split[k].n; i++) {
      const wr_manifest_shard *s = &p->m.split[k].shards[i];
      p->all_bytes += s->tokens * p->m.token_bytes + s->docs * 8 + WR_SHARD_HEADER_BYTES;
    }
  if (stats) {
    p->counts = wr_calloc((size_t)p->m.vocab, sizeof *p->counts);
    if (!p->counts) return wr_fail_nomem((size_t)p->m.vocab * sizeof *p->counts, "counts of tokens");
  }
  WR_TRY(check_tokenizer(p, &t));
  weir_status s = WEIR_OK;
  for (int k = 0; k < WR_SPLITS; k++) {
    p->open_doc = 0;
    for (size_t i = 0; s == WEIR_OK && i < p->m.split[k].n; i++) s = read_shard(p, k, i);
  }
  fill_info(p);
  if (s == WEIR_OK && stats) s = find_frequent(p, t);
  wr_tokenizer_close(t);
  return s;
}

static weir_status run_pass(const char *folder, bool stats, int (*progress)(void *user, const weir_data_progress *p),
                            void *user, weir_data_info *out) {
  if (!folder) return wr_fail(WEIR_EUSAGE, "no folder was named");
  pass p = {.folder = folder, .progress = progress, .user = user, .begin_ns = wr_now_ns()};
  WR_TRY(wr_shards_manifest_read(folder, &p.m));
  const weir_status s = read_all(&p, stats);
  wr_free(p.counts);
  wr_shards_manifest_free(&p.m);
  if (s == WEIR_OK && out) *out = p.info;
  return s;
}

weir_status weir_data_check(const char *folder, int (*progress)(void *user, const weir_data_progress *p), void *user,
                            weir_data_info *out) {
  return run_pass(folder, false, progress, user, out);
}

weir_status weir_data_stats(const char *folder, int (*progress)(void *user, const weir_data_progress *p), void *user,
                            weir_data_info *out) {
  return run_pass(folder, true, progress, user, out);
}
