/* store.c: a tokenizer as it lies on disk: found by path, written as the tokenizer.ggml.* keys of a GGUF file, and its hash.
 *
 * Owns the canonical form, which says what gives the same ids and nothing else: spellings, types as special.def corrects them,
 * merges in order without those that never happen, scores, special ids, flags. Whatever held a tokenizer, its canonical form is
 * the same, and so is the hash; written and opened again it changes no more.
 */
#include "text/text_i.h"

#include <stdlib.h>
#include <strings.h>
#include <sys/stat.h>

/* ------------------------------------------------------------------------------------------------------------------- hash */

static uint64_t mix(uint64_t h, uint64_t v) { return wr_hash64(&v, sizeof v, h); }

/* Each merge is hashed with its rank and the sum does not depend on the order of the table, so nothing needs sorting. */
static uint64_t sum_of_pairs(const wr_tokenizer *t) {
  uint64_t sum = 0;
  for (uint32_t i = 0; t->pairs && i <= t->pairs_mask; i++) {
    const wr_pair_slot *p = &t->pairs[i];
    if (p->left != WR_NO_TOKEN) sum += wr_hash64(p, sizeof *p, 0);
  }
  return sum;
}

uint64_t wr_tokenizer_hash(const wr_tokenizer *t) {
  const wr_special_ids *s = &t->special;
  const int32_t ids[] = {s->bos, s->eos, s->eot, s->eom, s->unk, s->pad, s->add_bos, s->add_eos, (int32_t)t->prefix};
  uint64_t h = wr_hash64(t->name, strlen(t->name), 0);
  h = wr_hash64(ids, sizeof ids, h);
  h = mix(h, t->n);
  for (uint32_t i = 0; i < t->n; i++) {
    const wr_token *k = &t->tokens[i];
    h = wr_hash64(k->ptr, k->len, mix(h, (uint64_t)k->len << 8 | k->type));
  }
  if (t->score_key) h = wr_hash64(t->score_key, t->n * sizeof *t->score_key, h);
  return mix(mix(h, t->n_pairs), sum_of_pairs(t));
}

/* ------------------------------------------------------------------------------------------------------------------ write */

static int by_rank(const void *a, const void *b) {
  uint32_t x = (*(const wr_pair_slot *const *)a)->rank, y = (*(const wr_pair_slot *const *)b)->rank;
  return (x > y) - (x < y);
}

weir_status wr_pairs_sorted(const wr_tokenizer *t, const wr_pair_slot ***out) {
  const wr_pair_slot **list = wr_malloc(t->n_pairs * sizeof *list);
  if (!list) return wr_fail_nomem(t->n_pairs * sizeof *list, "the vocabulary's merges");
  size_t n = 0;
  for (uint32_t i = 0; t->pairs && i <= t->pairs_mask; i++)
    if (t->pairs[i].left != WR_NO_TOKEN) list[n++] = &t->pairs[i];
  qsort(list, n, sizeof *list, by_rank);
  *out = list;
  return WEIR_OK;
}

static weir_status put_tokens(const wr_tokenizer *t, wr_gguf_writer *w) {
  wr_gguf_text *texts = wr_malloc(t->n * sizeof *texts);
  int32_t *types = wr_malloc(t->n * sizeof *types);
  weir_status st = texts && types ? WEIR_OK : wr_fail_nomem(t->n * sizeof *texts, "the vocabulary");
  for (uint32_t i = 0; st == WEIR_OK && i < t->n; i++) {
    texts[i] = (wr_gguf_text){t->tokens[i].ptr, t->tokens[i].len};
    types[i] = t->tokens[i].type;
  }
  if (st == WEIR_OK) st = wr_gguf_put_texts(w, "tokenizer.ggml.tokens", texts, t->n);
  if (st == WEIR_OK) st = wr_gguf_put_array(w, "tokenizer.ggml.token_type", WR_GGUF_VALUE_I32, types, t->n);
  wr_free(texts);
  wr_free(types);
  return st;
}

static float score_of_key(uint32_t key) { /* tokenizer.c's score_key, back */
  uint32_t u = ~key;
  float score;
  u = u & 0x80000000u ? u & 0x7fffffffu : ~u;
  memcpy(&score, &u, 4);
  return score;
}

static weir_status put_scores(const wr_tokenizer *t, wr_gguf_writer *w) {
  float *scores = wr_malloc(t->n * sizeof *scores);
  if (!scores) return wr_fail_nomem(t->n * sizeof *scores, "token scores");
  for (uint32_t i = 0; i < t->n; i++) scores[i] = score_of_key(t->score_key[i]);
  weir_status st = wr_gguf_put_array(w, "tokenizer.ggml.scores", WR_GGUF_VALUE_F32, scores, t->n);
  wr_free(scores);
  return st;
}

static weir_status put_merges(const wr_tokenizer *t, wr_gguf_writer *w) {
  const wr_pair_slot **pairs;
  WR_TRY(wr_pairs_sorted(t, &pairs));
  size_t bytes = 0, at = 0;
  for (uint32_t i = 0; i < t->n_pairs; i++) bytes += t->tokens[pairs[i]->left].len + t->tokens[pairs[i]->right].len + 1u;
  char *pool = wr_malloc(bytes);
  wr_gguf_text *texts = wr_malloc(t->n_pairs * sizeof *texts);
  weir_status st = pool && texts ? WEIR_OK : wr_fail_nomem(bytes + t->n_pairs * sizeof *texts, "the vocabulary's merges");
  for (uint32_t i = 0; st == WEIR_OK && i < t->n_pairs; i++) {
    const wr_token *left = &t->tokens[pairs[i]->left], *right = &t->tokens[pairs[i]->right];
    texts[i] = (wr_gguf_text){pool + at, left->len + right->len + 1u};
    memcpy(pool + at, left->ptr, left->len);
    pool[at + left->len] = ' ';
    memcpy(pool + at + left->len + 1, right->ptr, right->len);
    at += texts[i].len;
  }
  if (st == WEIR_OK) st = wr_gguf_put_texts(w, "tokenizer.ggml.merges", texts, t->n_pairs);
  wr_free(texts);
  wr_free(pool);
  wr_free(pairs);
  return st;
}

weir_status wr_vocab_put_gguf(const wr_tokenizer *t, wr_gguf_writer *w) {
  const wr_special_ids *s = &t->special;
  const char *model = t->kind == WR_TEXT_BPE ? "gpt2" : t->score_key ? "llama" : "metaspace";
  const char *pre = t->kind == WR_TEXT_BPE ? t->pretok.row->name : "default", *prefix = wr_prefix_name[t->prefix];
  WR_TRY(wr_gguf_put_text(w, "tokenizer.ggml.model", model, strlen(model)));
  WR_TRY(wr_gguf_put_text(w, "tokenizer.ggml.pre", pre, strlen(pre)));
  WR_TRY(put_tokens(t, w));
  WR_TRY(t->score_key ? put_scores(t, w) : put_merges(t, w));
  if (t->kind == WR_TEXT_SPM && !t->score_key)
    WR_TRY(wr_gguf_put_text(w, "tokenizer.metaspace.prefix", prefix, strlen(prefix)));
  const struct {
    const char *key;
    int32_t id;
  } ids[] = {
      {"tokenizer.ggml.bos_token_id", s->bos},     {"tokenizer.ggml.eos_token_id", s->eos},
      {"tokenizer.ggml.eot_token_id", s->eot},     {"tokenizer.ggml.eom_token_id", s->eom},
      {"tokenizer.ggml.unknown_token_id", s->unk}, {"tokenizer.ggml.padding_token_id", s->pad},
  };
  for (size_t i = 0; i < WR_ARRAY_LEN(ids); i++)
    if (ids[i].id != WR_NO_TOKEN) WR_TRY(wr_gguf_put_u32(w, ids[i].key, (uint32_t)ids[i].id));
  WR_TRY(wr_gguf_put_bool(w, "tokenizer.ggml.add_bos_token", s->add_bos));
  WR_TRY(wr_gguf_put_bool(w, "tokenizer.ggml.add_eos_token", s->add_eos));
  return wr_gguf_put_bool(w, "tokenizer.ggml.add_space_prefix", t->prefix == WR_PREFIX_LEGACY);
}

/* ------------------------------------------------------------------------------------------------------------------- find */

static weir_status open_bytes(wr_tokenizer **out) {
  static const char end[] = "<|endoftext|>";
  wr_gguf_text tokens[257];
  int32_t types[257];
  char *pool = wr_malloc(2 * 256 + sizeof end), *p = pool;
  if (!pool) return wr_fail_nomem(1024, "a tokenizer");
  for (int b = 0; b < 256; b++) {
    tokens[b] = (wr_gguf_text){p, wr_byte_spell((uint8_t)b, p)};
    types[b] = WR_TOKEN_NORMAL;
    p += tokens[b].len;
  }
  memcpy(p, end, sizeof end);
  tokens[256] = (wr_gguf_text){p, sizeof end - 1};
  types[256] = WR_TOKEN_CONTROL;
  wr_vocab_source src;
  wr_vocab_source_init(&src);
  src.model = (wr_gguf_text){"gpt2", 4};
  src.pre = (wr_gguf_text){"gpt-2", 5};
  src.tokens = src.merges = tokens; /* no merges: n_merges is 0 */
  src.types = types;
  src.n_tokens = src.n_types = 257;
  src.bos_id = src.eos_id = 256;
  weir_status st = wr_tokenizer_open(&src, out);
  if (st != WEIR_OK) return wr_free(pool), st;
  (*out)->text = pool;
  return WEIR_OK;
}

static weir_status open_gguf(const char *path, wr_tokenizer **out) {
  wr_gguf *g;
  WR_TRY(wr_gguf_open(path, NULL, &g));
  weir_status st = wr_tokenizer_open_gguf(g, out);
  if (st != WEIR_OK) return wr_gguf_close(g), st;
  (*out)->gguf = g;
  return WEIR_OK;
}

/* By its name, or because it begins as an object does. */
static bool looks_like_json(const char *path) {
  size_t n = strlen(path);
  if (n >= 5 && strcasecmp(path + n - 5, ".json") == 0) return true;
  FILE *f = fopen(path, "rb");
  int c = ' ';
  while (f && (c == ' ' || c == '\n' || c == '\r' || c == '\t')) c = getc(f);
  if (f) fclose(f);
  return c == '{';
}

static bool is_file(const char *path) {
  struct stat st;
  return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* The shards of a data set or a Hugging Face model have a file for it; a run or a checkpoint has it in its model. */
static weir_status open_folder(const char *path, wr_tokenizer **out) {
  static const char *const names[] = {"tokenizer.gguf", "tokenizer.json"};
  for (size_t i = 0; i < WR_ARRAY_LEN(names); i++) {
    wr_str file = {0};
    wr_str_printf(&file, "%s/%s", path, names[i]);
    weir_status st = file.oom ? wr_fail_nomem(file.len, "a path") : WEIR_OK;
    const bool found = !file.oom && is_file(file.ptr);
    if (found) st = wr_tokenizer_open_path(file.ptr, out);
    wr_str_free(&file);
    if (found || st != WEIR_OK) return st;
  }
  return open_gguf(path, out);
}

weir_status wr_tokenizer_open_path(const char *path, wr_tokenizer **out) {
  struct stat info;
  if (strcmp(path, "bytes") == 0) return open_bytes(out);
  if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) return open_folder(path, out);
  return looks_like_json(path) ? wr_tokenizer_open_json(path, out) : open_gguf(path, out);
}
