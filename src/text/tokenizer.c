/* tokenizer.c: builds a tokenizer from its arrays, and answers what a token is.
 *
 * Owns the tables that encoding looks things up in: spellings, pairs that merge, the trie of special tokens. Judges the
 * vocabulary: what is too long, contradicts itself or would make encoding guess is refused here, so that encode.c need not ask.
 *
 * Which tokens can text become? NORMAL, UNUSED and UNDEFINED ones. SentencePiece leaves control, unknown and byte pieces out of
 * its lookup as well, so that "</s>" in a page of HTML stays text. USER_DEFINED tokens are found in the text before it is split
 * and are not the result of merges. A merge that names a token of another type is passed over; one that names no token at all
 * makes the vocabulary malformed, as Hugging Face's tokenizers judge it too.
 *
 * Of tokens with one spelling the lowest id is used; of merges with one pair the first.
 *
 * Time to open: one pass over tokens and merges with a few lookups each. The result of a merge is first guessed to be the token
 * after the result of the merge before, because vocabularies are written in that order; a right guess saves a cache miss.
 *
 * References: llama.cpp's llama-vocab.cpp for the meaning of the keys; sentencepiece's model_interface.cc and bpe_model.cc.
 */
#include "text/text_i.h"

/* ------------------------------------------------------------------------------------------------------------- spellings */

static uint64_t load64(const char *p) {
  uint64_t v;
  memcpy(&v, p, 8);
  return v;
}

static uint64_t load32(const char *p) {
  uint32_t v;
  memcpy(&v, p, 4);
  return v;
}

/* Not cryptographic: a vocabulary made to collide is caught by WR_TEXT_MAX_PROBES. */
static uint64_t hash_name(const char *s, size_t n) {
  const uint64_t k = 0x9e3779b97f4a7c15u;
  uint64_t h = n * k, tail = 0;
  size_t i = 0;
  for (; i + 8 < n; i += 8) h = (h ^ load64(s + i)) * k, h ^= h >> 32;
  if (n >= 8)
    tail = load64(s + n - 8);
  else if (n >= 4)
    tail = load32(s) | load32(s + n - 4) << 32;
  else if (n)
    tail = (uint64_t)(uint8_t)s[0] | (uint64_t)(uint8_t)s[n / 2] << 8 | (uint64_t)(uint8_t)s[n - 1] << 16;
  h = (h ^ tail) * k;
  h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
  return h ^ h >> 32;
}

static int32_t find_hashed(const wr_tokenizer *t, const char *text, size_t n, uint64_t h) {
  for (uint32_t i = (uint32_t)h, probe = 0; probe <= WR_TEXT_MAX_PROBES; i++, probe++) {
    const wr_name_slot *s = &t->names[i & t->names_mask];
    if (s->id == WR_NO_TOKEN) return WR_NO_TOKEN;
    const wr_token *k = &t->tokens[s->id];
    if (s->tag == (uint32_t)(h >> 32) && k->len == n && memcmp(k->ptr, text, n) == 0) return s->id;
  }
  return WR_NO_TOKEN;
}

int32_t wr_name_find(const wr_tokenizer *t, const char *text, size_t n) {
  return n && n <= t->longest ? find_hashed(t, text, n, hash_name(text, n)) : WR_NO_TOKEN;
}

static weir_status table_full(const char *what) {
  return wr_fail(WEIR_EFORMAT, "the vocabulary's %s collide in a hash table more than %u times; it was made to do so", what,
                 WR_TEXT_MAX_PROBES);
}

/* Slots for `n` entries: a power of two, at most two thirds full. */
static uint32_t slots_for(size_t n) {
  uint32_t slots = 64;
  while (slots < n + n / 2) slots *= 2;
  return slots;
}

static bool is_text(const wr_token *k) { return k->len && !wr_token_is_special(k->type) && k->type != WR_TOKEN_BYTE; }

static weir_status put_name(wr_tokenizer *t, uint32_t id, uint64_t h) {
  const wr_token *k = &t->tokens[id];
  for (uint32_t i = (uint32_t)h, probe = 0; probe <= WR_TEXT_MAX_PROBES; i++, probe++) {
    wr_name_slot *s = &t->names[i & t->names_mask];
    if (s->id == WR_NO_TOKEN) return *s = (wr_name_slot){(uint32_t)(h >> 32), (int32_t)id}, WEIR_OK;
    const wr_token *o = &t->tokens[s->id];
    if (s->tag == (uint32_t)(h >> 32) && o->len == k->len && memcmp(o->ptr, k->ptr, k->len) == 0) return WEIR_OK;
  }
  return table_full("tokens");
}

/* Names and merges are read in a few steps, each for a whole batch, so that the cache misses of a step overlap: half the time to open. */
enum { BATCH = 32 };

static weir_status build_names(wr_tokenizer *t) {
  uint32_t slots = slots_for(t->n);
  t->names = wr_malloc(slots * sizeof *t->names);
  if (!t->names) return wr_fail_nomem(slots * sizeof *t->names, "the vocabulary's spellings");
  for (uint32_t i = 0; i < slots; i++) t->names[i].id = WR_NO_TOKEN;
  t->names_mask = slots - 1;
  for (uint32_t from = 0; from < t->n; from += BATCH) {
    uint64_t hash[BATCH];
    const uint32_t n = WR_MIN((uint32_t)BATCH, t->n - from);
    for (uint32_t i = 0; i < n; i++) {
      const wr_token *k = &t->tokens[from + i];
      hash[i] = is_text(k) ? hash_name(k->ptr, k->len) : 0;
      __builtin_prefetch(&t->names[(uint32_t)hash[i] & t->names_mask], 1);
    }
    for (uint32_t i = 0; i < n; i++)
      if (is_text(&t->tokens[from + i])) WR_TRY(put_name(t, from + i, hash[i]));
  }
  return WEIR_OK;
}

/* -------------------------------------------------------------------------------------------------------- special tokens */

static uint32_t edge_hash(uint32_t node, uint8_t byte) {
  uint64_t h = ((uint64_t)node << 8 | byte) * 0x9e3779b97f4a7c15u;
  return (uint32_t)(h >> 32) ^ (uint32_t)(h >> 45);
}

/* The slot of the edge, or the free one where it would be; NULL: neither within the limit. */
static wr_edge_slot *edge_at(const wr_tokenizer *t, uint32_t node, uint8_t byte) {
  for (uint32_t i = edge_hash(node, byte), probe = 0; probe <= WR_TEXT_MAX_PROBES; i++, probe++) {
    wr_edge_slot *s = &t->edges[i & t->edges_mask];
    if (!s->child || (s->node == node && s->byte == byte)) return s;
  }
  return NULL;
}

static uint32_t child_of(const wr_tokenizer *t, uint32_t node, uint8_t byte) { /* 0: none */
  const wr_edge_slot *s = edge_at(t, node, byte);
  return s ? s->child : 0;
}

static weir_status build_trie(wr_tokenizer *t) {
  size_t bytes = 0;
  for (uint32_t id = 0; id < t->n; id++)
    if (wr_token_is_special(t->tokens[id].type)) bytes += t->tokens[id].len;
  if (bytes > WR_TEXT_MAX_SPECIAL_BYTES)
    return wr_fail(WEIR_EUNSUPPORTED, "the vocabulary's special tokens are %zu bytes long together; at most %u are supported",
                   bytes, WR_TEXT_MAX_SPECIAL_BYTES);
  uint32_t slots = slots_for(bytes);
  t->edges = wr_calloc(slots, sizeof *t->edges);
  t->node_id = wr_malloc((bytes + 1) * sizeof *t->node_id);
  if (!t->edges || !t->node_id) return wr_fail_nomem(slots * sizeof *t->edges, "the special tokens");
  t->edges_mask = slots - 1;
  t->node_id[0] = WR_NO_TOKEN;
  t->n_nodes = 1;
  for (uint32_t id = 0; id < t->n; id++) {
    const wr_token *k = &t->tokens[id];
    if (!wr_token_is_special(k->type) || !k->len) continue;
    uint32_t node = 0;
    for (size_t i = 0; i < k->len; i++) {
      wr_edge_slot *e = edge_at(t, node, (uint8_t)k->ptr[i]);
      if (!e) return table_full("special tokens");
      if (!e->child) {
        *e = (wr_edge_slot){node, t->n_nodes, (uint8_t)k->ptr[i]};
        t->node_id[t->n_nodes++] = WR_NO_TOKEN;
      }
      node = e->child;
    }
    if (t->node_id[node] == WR_NO_TOKEN) t->node_id[node] = (int32_t)id;
    t->first_any[(uint8_t)k->ptr[0]] = true;
    if (k->type == WR_TOKEN_USER_DEFINED) t->first_user[(uint8_t)k->ptr[0]] = t->has_user = true;
  }
  return WEIR_OK;
}

int32_t wr_special_find(const wr_tokenizer *t, const char *text, size_t n, size_t at, bool parse, size_t *found) {
  const bool *first = parse ? t->first_any : t->first_user;
  *found = n;
  if (!parse && !t->has_user) return WR_NO_TOKEN;
  for (; at < n; at++) {
    if (!first[(uint8_t)text[at]]) continue;
    int32_t best = WR_NO_TOKEN;
    uint32_t node = 0;
    for (size_t i = at; i < n && (node = child_of(t, node, (uint8_t)text[i])) != 0; i++) {
      int32_t id = t->node_id[node];
      if (id != WR_NO_TOKEN && (parse || t->tokens[id].type == WR_TOKEN_USER_DEFINED)) best = id;
    }
    if (best != WR_NO_TOKEN) return *found = at, best;
  }
  return WR_NO_TOKEN;
}

static int32_t special_named(const wr_tokenizer *t, const char *text, size_t n) {
  uint32_t node = 0;
  for (size_t i = 0; i < n; i++)
    if ((node = child_of(t, node, (uint8_t)text[i])) == 0) return WR_NO_TOKEN;
  return t->node_id[node];
}

/* ----------------------------------------------------------------------------------------------------------------- merges */

static weir_status bad_merge(const wr_vocab_source *src, size_t i, const char *what) {
  return wr_fail(WEIR_EFORMAT, "merges: merge %zu, \"%s\", %s", i, wr_escape(src->merges[i].ptr, src->merges[i].len), what);
}

static weir_status put_pair(wr_tokenizer *t, wr_pair_slot pair) {
  for (uint32_t i = wr_pair_hash(pair.left, pair.right), probe = 0; probe <= WR_TEXT_MAX_PROBES; i++, probe++) {
    wr_pair_slot *s = &t->pairs[i & t->pairs_mask];
    if (s->left == pair.left && s->right == pair.right) return WEIR_OK;
    if (s->left == WR_NO_TOKEN) {
      pair.rank = t->n_pairs++; /* so that the ranks say nothing of merges that were passed over */
      return *s = pair, WEIR_OK;
    }
  }
  return table_full("merges");
}

typedef struct part {
  const char *ptr;
  size_t len;
  uint64_t hash;
} part;

static void fetch_slot(const wr_tokenizer *t, part *p) {
  p->hash = hash_name(p->ptr, p->len);
  __builtin_prefetch(&t->names[(uint32_t)p->hash & t->names_mask]);
}

static const wr_token *likely_token(const wr_tokenizer *t, const part *p) { /* probably found; to fetch it */
  int32_t id = t->names[(uint32_t)p->hash & t->names_mask].id;
  return &t->tokens[id == WR_NO_TOKEN ? 0 : id];
}

/* A part or result of a merge: a token that text can become, or WR_NO_TOKEN; *known is false if no token is spelled so. */
static int32_t merge_token(const wr_tokenizer *t, const char *text, size_t n, uint64_t hash, bool *known) {
  int32_t id = find_hashed(t, text, n, hash);
  if (id == WR_NO_TOKEN && special_named(t, text, n) == WR_NO_TOKEN) *known = false;
  return id;
}

/* One merge whose parts are fetched. *guess: the token that the next merge probably makes. */
static weir_status read_merge(const wr_tokenizer *t, const wr_vocab_source *src, size_t i, const part part_of[2],
                              int32_t *guess, wr_pair_slot *pair) {
  char both[2 * WR_TEXT_MAX_TOKEN_BYTES];
  size_t n_left = part_of[0].len, n = n_left + part_of[1].len;
  bool known = true;
  if (n > sizeof both) return bad_merge(src, i, "is longer than any two tokens");
  pair->left = merge_token(t, part_of[0].ptr, n_left, part_of[0].hash, &known);
  pair->right = merge_token(t, part_of[1].ptr, n - n_left, part_of[1].hash, &known);
  if (!known) return bad_merge(src, i, "names a token that is not in the vocabulary");
  memcpy(both, part_of[0].ptr, n_left);
  memcpy(both + n_left, part_of[1].ptr, n - n_left);
  const wr_token *k = &t->tokens[*guess];
  if (is_text(k) && k->len == n && memcmp(k->ptr, both, n) == 0)
    pair->merged = *guess;
  else
    pair->merged = merge_token(t, both, n, hash_name(both, n), &known);
  if (!known) return bad_merge(src, i, "makes a token that is not in the vocabulary");
  if (pair->merged != WR_NO_TOKEN) *guess = (uint32_t)pair->merged + 1 < t->n ? pair->merged + 1 : 0;
  return WEIR_OK;
}

static weir_status see_if_ranks_rise(wr_tokenizer *t) {
  uint32_t *made = wr_calloc(t->n, sizeof *made); /* of each token: the highest rank that makes it, plus 1 */
  if (!made) return wr_fail_nomem(t->n * sizeof *made, "the vocabulary's merges");
  for (uint32_t i = 0; i <= t->pairs_mask; i++) {
    const wr_pair_slot *p = &t->pairs[i];
    if (p->left != WR_NO_TOKEN) made[p->merged] = WR_MAX(made[p->merged], p->rank + 1);
  }
  t->ranks_rise = true;
  for (uint32_t i = 0; i <= t->pairs_mask && t->ranks_rise; i++) {
    const wr_pair_slot *p = &t->pairs[i];
    if (p->left != WR_NO_TOKEN) t->ranks_rise = made[p->left] <= p->rank && made[p->right] <= p->rank;
  }
  wr_free(made);
  return WEIR_OK;
}

static weir_status build_pairs(wr_tokenizer *t, const wr_vocab_source *src) {
  uint32_t slots = slots_for(src->n_merges);
  t->pairs = wr_malloc(slots * sizeof *t->pairs);
  if (!t->pairs) return wr_fail_nomem(slots * sizeof *t->pairs, "the vocabulary's merges");
  memset(t->pairs, 0xff, slots * sizeof *t->pairs);
  t->pairs_mask = slots - 1;
  part parts[BATCH][2];
  wr_pair_slot pairs[BATCH];
  int32_t guess = 0;
  for (size_t from = 0; from < src->n_merges; from += BATCH) {
    size_t n = WR_MIN((size_t)BATCH, src->n_merges - from);
    for (size_t i = 0; i < n; i++) {
      wr_gguf_text m = src->merges[from + i];
      const char *gap = m.len > 2 ? memchr(m.ptr + 1, ' ', m.len - 2) : NULL;
      if (!gap) return bad_merge(src, from + i, "is not two tokens with a space between them");
      size_t n_left = (size_t)(gap - m.ptr);
      parts[i][0] = (part){m.ptr, n_left, 0};
      parts[i][1] = (part){gap + 1, m.len - n_left - 1, 0};
      fetch_slot(t, &parts[i][0]);
      fetch_slot(t, &parts[i][1]);
    }
    for (size_t i = 0; i < 2 * n; i++) __builtin_prefetch(likely_token(t, &parts[i / 2][i % 2]));
    for (size_t i = 0; i < 2 * n; i++) __builtin_prefetch(likely_token(t, &parts[i / 2][i % 2])->ptr);
    for (size_t i = 0; i < n; i++) {
      WR_TRY(read_merge(t, src, from + i, parts[i], &guess, &pairs[i]));
      __builtin_prefetch(&t->pairs[wr_pair_hash(pairs[i].left, pairs[i].right) & t->pairs_mask], 1);
    }
    for (size_t i = 0; i < n; i++)
      if (pairs[i].left != WR_NO_TOKEN && pairs[i].right != WR_NO_TOKEN && pairs[i].merged != WR_NO_TOKEN)
        WR_TRY(put_pair(t, pairs[i]));
  }
  return see_if_ranks_rise(t);
}

/* Smaller is earlier, UINT32_MAX is for "does not merge". The bits of a float, flipped, sort like the float. */
static uint32_t score_key(float score) {
  uint32_t u;
  if (score != score) return UINT32_MAX - 1;
  if (score == 0) score = 0; /* -0.0 is 0.0 */
  memcpy(&u, &score, 4);
  u = ~(u & 0x80000000u ? ~u : u | 0x80000000u);
  return WR_MIN(u, UINT32_MAX - 1);
}

static bool blank_after_other(const char *s, size_t n) {
  for (size_t i = 1; i + 3 <= n; i++)
    if (memcmp(s + i, WR_SPACE_MARK, 3) == 0 && (i < 3 || memcmp(s + i - 3, WR_SPACE_MARK, 3) != 0)) return true;
  return false;
}

static void find_blanks(wr_tokenizer *t) {
  t->words_end_at_blanks = true;
  for (uint32_t i = 0; i < t->n; i++)
    if (is_text(&t->tokens[i]) && blank_after_other(t->tokens[i].ptr, t->tokens[i].len)) t->words_end_at_blanks = false;
}

static weir_status build_scores(wr_tokenizer *t, const wr_vocab_source *src) {
  t->score_key = wr_malloc(t->n * sizeof *t->score_key);
  if (!t->score_key) return wr_fail_nomem(t->n * sizeof *t->score_key, "token scores");
  for (uint32_t i = 0; i < t->n; i++) t->score_key[i] = score_key(src->scores[i]);
  return WEIR_OK;
}

/* ----------------------------------------------------------------------------------------------------------------- tokens */

static bool text_is(wr_gguf_text t, const char *z) { return t.len == strlen(z) && memcmp(t.ptr, z, t.len) == 0; }

static int hex_digit(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

int wr_token_byte(const wr_token *k) {
  if (k->len != 6 || memcmp(k->ptr, "<0x", 3) != 0 || k->ptr[5] != '>') return -1;
  int hi = hex_digit(k->ptr[3]), lo = hex_digit(k->ptr[4]);
  return hi < 0 || lo < 0 ? -1 : hi * 16 + lo;
}

static const struct {
  const char *text;
  bool ends;
  enum { SURE, USER, PAIR } control;
} known_special[] = {
#define X(text, ends, control) {text, ends, control},
#include "text/special.def"
#undef X
};

/* The type as encoding sees it. html: "<s>" and "</s>" are no more than that. */
static void judge_type(wr_token *k, bool html) {
  bool candidate = k->type == WR_TOKEN_CONTROL || k->type == WR_TOKEN_USER_DEFINED || k->type == WR_TOKEN_NORMAL;
  if (!candidate || !k->len || (k->ptr[0] != '<' && k->ptr[0] != '[')) return; /* as all spellings of the table begin */
  for (size_t i = 0; i < WR_ARRAY_LEN(known_special); i++) {
    if (strlen(known_special[i].text) != k->len || memcmp(known_special[i].text, k->ptr, k->len) != 0) continue;
    if (k->type == WR_TOKEN_NORMAL && known_special[i].control != SURE) return;
    if (k->type == WR_TOKEN_USER_DEFINED && known_special[i].control == PAIR && html) return;
    k->type = WR_TOKEN_CONTROL;
    k->ends = known_special[i].ends;
  }
}

static weir_status read_tokens(wr_tokenizer *t, const wr_vocab_source *src) {
  t->tokens = wr_malloc(src->n_tokens * sizeof *t->tokens);
  if (!t->tokens) return wr_fail_nomem(src->n_tokens * sizeof *t->tokens, "the vocabulary");
  t->n = (uint32_t)src->n_tokens;
  const bool other_bos = src->bos_id >= 0 && src->bos_id < t->n && !text_is(src->tokens[src->bos_id], "<s>");
  for (int b = 0; b < 256; b++) t->byte_id[b] = WR_NO_TOKEN;
  for (uint32_t i = 0; i < t->n; i++) {
    wr_gguf_text text = src->tokens[i];
    if (text.len > WR_TEXT_MAX_TOKEN_BYTES)
      return wr_fail(WEIR_EUNSUPPORTED, "tokenizer.ggml.tokens: token %u is %zu bytes long; at most %u are supported", i,
                     text.len, WR_TEXT_MAX_TOKEN_BYTES);
    wr_token *k = &t->tokens[i];
    *k = (wr_token){text.ptr, (uint16_t)text.len, WR_TOKEN_NORMAL, false};
    const bool own = i == src->bos_id || i == src->eos_id || i == src->eot_id || i == src->eom_id;
    int32_t type = src->types ? src->types[i] : WR_TOKEN_NORMAL;
    if (type < 0 || type > WR_TOKEN_BYTE) type = WR_TOKEN_UNDEFINED;
    if (!src->types) {
      if (t->kind == WR_TEXT_SPM && wr_token_byte(k) >= 0)
        type = WR_TOKEN_BYTE;
      else if (own)
        type = WR_TOKEN_CONTROL;
      else if (i == src->unk_id)
        type = WR_TOKEN_UNKNOWN;
    }
    k->type = (uint8_t)type;
    judge_type(k, other_bos && !own);
    if (k->type == WR_TOKEN_BYTE) {
      int b = wr_token_byte(k);
      if (b < 0)
        return wr_fail(WEIR_EFORMAT, "tokenizer.ggml.token_type: token %u, \"%s\", is not a byte like \"<0x0A>\"", i,
                       wr_escape(k->ptr, k->len));
      if (t->kind == WR_TEXT_SPM && t->byte_id[b] == WR_NO_TOKEN) t->byte_id[b] = (int32_t)i;
    }
    t->longest = WR_MAX(t->longest, k->len);
  }
  return WEIR_OK;
}

/* ------------------------------------------------------------------------------------------------------------ special ids */

/* Out of range: an id that is needed is refused; padding and unknown ids are often wrong in published files and are dropped. */
static weir_status take_id(const wr_tokenizer *t, const char *key, int64_t id, bool needed, int32_t *out) {
  *out = WR_NO_TOKEN;
  if (id == -1) return WEIR_OK;
  if (id >= 0 && id < t->n) return *out = (int32_t)id, WEIR_OK;
  if (needed)
    return wr_fail(WEIR_EFORMAT, "tokenizer.ggml.%s is %lld, but the vocabulary has %u tokens", key, (long long)id, t->n);
  wr_log(WEIR_LOG_WARN, "tokenizer.ggml.%s is %lld, but the vocabulary has %u tokens; it is ignored", key, (long long)id, t->n);
  return WEIR_OK;
}

/* SentencePiece's own numbering, for files that leave the key out. */
static void default_id(const wr_tokenizer *t, uint32_t id, wr_token_type type, int32_t *out) {
  if (*out == WR_NO_TOKEN && t->kind == WR_TEXT_SPM && id < t->n && t->tokens[id].type == type) *out = (int32_t)id;
}

static weir_status read_special(wr_tokenizer *t, const wr_vocab_source *src) {
  wr_special_ids *s = &t->special;
  WR_TRY(take_id(t, "bos_token_id", src->bos_id, true, &s->bos));
  WR_TRY(take_id(t, "eos_token_id", src->eos_id, true, &s->eos));
  WR_TRY(take_id(t, "eot_token_id", src->eot_id, true, &s->eot));
  WR_TRY(take_id(t, "eom_token_id", src->eom_id, true, &s->eom));
  WR_TRY(take_id(t, "unknown_token_id", src->unk_id, false, &s->unk));
  WR_TRY(take_id(t, "padding_token_id", src->pad_id, false, &s->pad));
  default_id(t, 0, WR_TOKEN_UNKNOWN, &s->unk);
  default_id(t, 1, WR_TOKEN_CONTROL, &s->bos);
  default_id(t, 2, WR_TOKEN_CONTROL, &s->eos);
  bool bos_by_default = (t->kind == WR_TEXT_SPM || t->pretok.row->add_bos) && s->bos != WR_NO_TOKEN;
  s->add_bos = src->add_bos < 0 ? bos_by_default : src->add_bos > 0;
  s->add_eos = src->add_eos > 0;
  if (s->add_bos && s->bos == WR_NO_TOKEN)
    return wr_fail(WEIR_EFORMAT, "tokenizer.ggml.add_bos_token is true, but tokenizer.ggml.bos_token_id is missing");
  if (s->add_eos && s->eos == WR_NO_TOKEN)
    return wr_fail(WEIR_EFORMAT, "tokenizer.ggml.add_eos_token is true, but tokenizer.ggml.eos_token_id is missing");

  const int32_t enders[] = {s->eos, s->eot, s->eom};
  for (size_t i = 0; i < WR_ARRAY_LEN(enders); i++)
    if (enders[i] != WR_NO_TOKEN) t->tokens[enders[i]].ends = true;
  for (uint32_t i = 0; i < t->n; i++) s->n_end += t->tokens[i].ends;
  t->end = wr_malloc(s->n_end * sizeof *t->end);
  if (!t->end) return wr_fail_nomem(s->n_end * sizeof *t->end, "the vocabulary");
  size_t at = 0;
  for (uint32_t i = 0; i < t->n; i++)
    if (t->tokens[i].ends) t->end[at++] = (int32_t)i;
  s->end = t->end;
  return WEIR_OK;
}

/* ------------------------------------------------------------------------------------------------------------------- open */

const char *const wr_prefix_name[WR_PREFIXES] = {"never", "legacy", "first", "always"};

static weir_status choose_prefix(wr_tokenizer *t, const wr_vocab_source *src) {
  if (text_is(src->model, "llama")) {
    snprintf(t->name, sizeof t->name, "llama");
    t->prefix = src->add_space_prefix == 0 ? WR_PREFIX_NEVER : WR_PREFIX_LEGACY; /* the default is to add it */
    return WEIR_OK;
  }
  for (int i = 0; i < WR_PREFIXES; i++) {
    if (!text_is(src->prefix, wr_prefix_name[i])) continue;
    snprintf(t->name, sizeof t->name, "metaspace/%s", wr_prefix_name[i]);
    t->prefix = (wr_prefix)i;
    return WEIR_OK;
  }
  return wr_fail(WEIR_EFORMAT, "tokenizer.metaspace.prefix is '%s'; it must be never, legacy, first or always",
                 wr_escape(src->prefix.ptr, src->prefix.len));
}

static weir_status choose_kind(wr_tokenizer *t, const wr_vocab_source *src) {
  if (text_is(src->model, "gpt2"))
    t->kind = WR_TEXT_BPE;
  else if (text_is(src->model, "llama") || text_is(src->model, "metaspace"))
    t->kind = WR_TEXT_SPM;
  else if (!src->model.len)
    return wr_fail(WEIR_EFORMAT, "tokenizer.ggml.model is missing");
  else
    return wr_fail(WEIR_EUNSUPPORTED, "tokenizer.ggml.model is '%s'; supported are gpt2, llama and metaspace",
                   wr_escape(src->model.ptr, src->model.len));
  if (t->kind == WR_TEXT_SPM) {
    WR_TRY(choose_prefix(t, src));
    if (!src->pre.len || text_is(src->pre, "default")) return WEIR_OK; /* this model has no pre-tokenizer */
    return wr_fail(WEIR_EUNSUPPORTED, "tokenizer.ggml.pre is '%s', which tokenizer.ggml.model '%s' cannot have",
                   wr_escape(src->pre.ptr, src->pre.len), wr_escape(src->model.ptr, src->model.len));
  }
  wr_str names = {0};
  wr_pretok_names(&names);
  weir_status st = WEIR_OK;
  const wr_pretok_row *row = wr_pretok_find(src->pre);
  if (!names.ptr || names.oom)
    st = wr_fail_nomem(64, "names");
  else if (!src->pre.len)
    st = wr_fail(WEIR_EUNSUPPORTED, "tokenizer.ggml.pre is missing, so the tokenizer is unknown; add it, one of %s", names.ptr);
  else if (!row)
    st = wr_fail(WEIR_EUNSUPPORTED, "tokenizer.ggml.pre is '%s'; supported are %s", wr_escape(src->pre.ptr, src->pre.len),
                 names.ptr);
  wr_str_free(&names);
  if (st != WEIR_OK) return st;
  snprintf(t->name, sizeof t->name, "gpt2/%s", row->name);
  return wr_pretok_open(row, &t->pretok);
}

static weir_status check_counts(const wr_tokenizer *t, const wr_vocab_source *src) {
  if (!src->n_tokens) return wr_fail(WEIR_EFORMAT, "tokenizer.ggml.tokens is empty or missing");
  if (src->n_tokens > WR_TEXT_MAX_TOKENS || src->n_merges > WR_TEXT_MAX_TOKENS)
    return wr_fail(WEIR_EUNSUPPORTED, "the vocabulary has %zu tokens and %zu merges; at most %u are supported", src->n_tokens,
                   src->n_merges, WR_TEXT_MAX_TOKENS);
  if (src->types && src->n_types != src->n_tokens)
    return wr_fail(WEIR_EFORMAT, "tokenizer.ggml.token_type has %zu entries for %zu tokens", src->n_types, src->n_tokens);
  if (src->scores && src->n_scores != src->n_tokens)
    return wr_fail(WEIR_EFORMAT, "tokenizer.ggml.scores has %zu entries for %zu tokens", src->n_scores, src->n_tokens);
  bool scored = text_is(src->model, "llama");
  if (scored && !src->scores) return wr_fail(WEIR_EFORMAT, "tokenizer.ggml.scores is missing");
  if (!scored && !src->merges) return wr_fail(WEIR_EFORMAT, "tokenizer.ggml.merges is missing");
  if (src->remove_extra_whitespaces > 0)
    return wr_fail(WEIR_EUNSUPPORTED, "tokenizer.ggml.remove_extra_whitespaces is true; altering text is not supported");
  if (t->kind == WR_TEXT_BPE && src->add_space_prefix > 0)
    return wr_fail(WEIR_EUNSUPPORTED, "tokenizer.ggml.add_space_prefix is true, which is not supported for the model 'gpt2'");
  return WEIR_OK;
}

static weir_status open_tokenizer(wr_tokenizer *t, const wr_vocab_source *src) {
  WR_TRY(choose_kind(t, src));
  WR_TRY(check_counts(t, src));
  WR_TRY(read_tokens(t, src));
  WR_TRY(read_special(t, src));
  WR_TRY(build_trie(t));
  WR_TRY(build_names(t));
  if (t->kind == WR_TEXT_SPM) {
    find_blanks(t);
    return text_is(src->model, "llama") ? build_scores(t, src) : build_pairs(t, src);
  }
  for (int b = 0; b < 256; b++) {
    char spelled[2];
    t->byte_id[b] = wr_name_find(t, spelled, wr_byte_spell((uint8_t)b, spelled));
  }
  return build_pairs(t, src);
}

weir_status wr_tokenizer_open(const wr_vocab_source *source, wr_tokenizer **out) {
  wr_tokenizer *t = wr_calloc(1, sizeof *t);
  if (!t) return wr_fail_nomem(sizeof *t, "a tokenizer");
  weir_status st = open_tokenizer(t, source);
  if (st != WEIR_OK) return wr_tokenizer_close(t), st;
  *out = t;
  return WEIR_OK;
}

weir_status wr_tokenizer_open_gguf(const wr_gguf *g, wr_tokenizer **out) {
  wr_vocab_source src;
  WR_TRY(wr_vocab_source_read(g, &src));
  weir_status st = wr_tokenizer_open(&src, out);
  wr_vocab_source_free(&src);
  return st == WEIR_OK ? st : wr_fail_prefix(st, "%s: ", wr_gguf_path(g));
}

void wr_tokenizer_close(wr_tokenizer *t) {
  if (!t) return;
  wr_pretok_close(&t->pretok);
  wr_free(t->tokens);
  wr_free(t->end);
  wr_free(t->names);
  wr_free(t->pairs);
  wr_free(t->score_key);
  wr_free(t->edges);
  wr_free(t->node_id);
  wr_gguf_close(t->gguf);
  wr_free(t->text);
  wr_free(t);
}

/* ------------------------------------------------------------------------------------------------------------- questions */

static bool in_range(const wr_tokenizer *t, int32_t id) { return id >= 0 && (uint32_t)id < t->n; }

size_t wr_tokenizer_size(const wr_tokenizer *t) { return t->n; }
const char *wr_tokenizer_name(const wr_tokenizer *t) { return t->name; }
bool wr_tokenizer_ends_words_at_blanks(const wr_tokenizer *t) { return t->words_end_at_blanks; }
const wr_special_ids *wr_tokenizer_special(const wr_tokenizer *t) { return &t->special; }
bool wr_token_is_end(const wr_tokenizer *t, int32_t id) { return in_range(t, id) && t->tokens[id].ends; }

wr_token_type wr_token_type_of(const wr_tokenizer *t, int32_t id) {
  return in_range(t, id) ? (wr_token_type)t->tokens[id].type : WR_TOKEN_UNDEFINED;
}

wr_gguf_text wr_token_text(const wr_tokenizer *t, int32_t id) {
  return in_range(t, id) ? (wr_gguf_text){t->tokens[id].ptr, t->tokens[id].len} : (wr_gguf_text){0};
}

int32_t wr_token_find(const wr_tokenizer *t, const char *text, size_t n) {
  int32_t id = n && n <= t->longest ? special_named(t, text, n) : WR_NO_TOKEN;
  return id != WR_NO_TOKEN ? id : wr_name_find(t, text, n);
}
