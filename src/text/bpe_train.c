/* bpe_train.c: trains byte-level BPE: from texts to a vocabulary and its merges.
 *
 * Owns the algorithm and the numbering of the tokens (see text.h). Texts are cut into words by the pre-tokenizer and only the
 * words and their counts are kept (word_count.c), so what follows costs time by the number of different words.
 *
 * Merging. Each word is a row of token ids. For every pair of neighbours a record holds how often it occurs now and a list of the
 * words that had it once. A heap gives the most frequent pair, the lowest ids first among equals; an entry whose count has changed
 * since is put back with the present one, so counts that fall cost nothing until they matter. A merge visits the words of its
 * pair, rewrites them, and corrects the records of the neighbours. When another pair has made a token of that spelling before,
 * the merge is kept and the token is that one, so merges can be more than new tokens.
 *
 * That is Hugging Face's trainer, which breaks ties in the same way (tokenizers, models/bpe/trainer.rs), with one difference: there a
 * pair that was merged keeps its old count, here the count of a pair is the number of its places, always. It matters only when a
 * pair comes up again because its part was made in a second way.
 *
 * Invariant: a record's count is the sum, over all words, of the places of its pair times the word's count.
 *
 * References: Gage 1994; Sennrich, Haddow and Birch 2016 (arXiv:1508.07909); Radford et al. 2019 for bytes.
 */
#include "text/text_i.h"

#define PENDING_BYTES ((size_t)4 << 20) /* texts are gathered until there are so many bytes, then counted by all threads */
#define FIRST_BYTE 1                    /* id of the first byte; 0 is the special token */
#define END_OF_TEXT "<|endoftext|>"
#define NOWHERE UINT32_MAX
#define PROGRESS_STEP 64 /* merges */

typedef struct pair_record {
  uint32_t left, right;
  uint32_t words; /* the list of words that had the pair: nodes; NOWHERE at its end */
  uint64_t count;
} pair_record;

typedef struct node {
  uint32_t word, next;
} node;

typedef struct heap_entry {
  uint64_t count;
  uint32_t left, right, pair;
} heap_entry;

typedef struct row_of_ids {
  uint64_t count;
  size_t at; /* in `syms` */
  uint32_t len;
} row_of_ids; /* a word */

typedef struct merge_made {
  uint32_t left, right;
} merge_made;

typedef struct spelling {
  size_t at;
  uint32_t len;
  uint32_t hash_next; /* the next token of its bucket, NOWHERE at the end */
} spelling;

struct wr_bpe_trainer {
  wr_bpe_options o;
  wr_pretok pretok;
  wr_team *team;
  wr_bpe_report report;
  bool finished;
  /* texts that wait to be counted */
  char *pending;
  size_t n_pending, pending_cap;
  size_t *ends;
  size_t n_ends, ends_cap;
  wr_word_table counts;
  /* merging */
  row_of_ids *words;
  size_t n_words;
  uint32_t *syms;
  pair_record *pairs;
  size_t n_pairs, pairs_cap;
  uint32_t *slots; /* index of a record plus 1; 0: free */
  size_t slots_mask;
  node *nodes;
  size_t n_nodes, nodes_cap;
  heap_entry *heap;
  size_t n_heap, heap_cap;
  uint32_t *touched; /* pairs that the present merge made more frequent */
  size_t n_touched, touched_cap;
  merge_made *merges;
  size_t n_merges, merges_cap;
  /* the vocabulary */
  char *text;
  size_t n_text, text_cap;
  spelling *tokens;
  size_t n_tokens, tokens_cap;
  uint32_t *buckets;
  size_t buckets_mask;
};

static weir_status no_memory(void) { return wr_fail_nomem(0, "training a tokenizer"); }

/* -------------------------------------------------------------------------------------------------------------- vocabulary */

/* The id of the token spelled text[at, at + len), a new one if there is none; the bytes are at the end of b->text and are
 * given back if they are not needed. */
static weir_status take_token(wr_bpe_trainer *b, size_t at, size_t len, uint32_t *id) {
  size_t bucket = wr_hash64(b->text + at, len, 0) & b->buckets_mask;
  for (uint32_t i = b->buckets[bucket]; i != NOWHERE; i = b->tokens[i].hash_next)
    if (b->tokens[i].len == len && memcmp(b->text + b->tokens[i].at, b->text + at, len) == 0) {
      b->n_text = at;
      return *id = i, WEIR_OK;
    }
  if (!wr_grow((void **)&b->tokens, &b->tokens_cap, b->n_tokens + 1, sizeof *b->tokens)) return no_memory();
  *id = (uint32_t)b->n_tokens;
  b->tokens[b->n_tokens++] = (spelling){at, (uint32_t)len, b->buckets[bucket]};
  b->buckets[bucket] = *id;
  return WEIR_OK;
}

static weir_status add_text(wr_bpe_trainer *b, const char *text, size_t n) {
  if (!wr_grow((void **)&b->text, &b->text_cap, b->n_text + n, 1)) return no_memory();
  memcpy(b->text + b->n_text, text, n);
  b->n_text += n;
  return WEIR_OK;
}

/* The special token and the bytes, by the order of their characters. byte_id [256]. */
static weir_status first_tokens(wr_bpe_trainer *b, uint32_t byte_id[256]) {
  size_t slots = 1024;
  uint32_t id;
  while (slots < (size_t)b->o.vocab) slots *= 2;
  b->buckets = wr_malloc(slots * sizeof *b->buckets);
  if (!b->buckets) return no_memory();
  memset(b->buckets, 0xff, slots * sizeof *b->buckets);
  b->buckets_mask = slots - 1;
  WR_TRY(add_text(b, END_OF_TEXT, strlen(END_OF_TEXT)));
  WR_TRY(take_token(b, 0, b->n_text, &id));
  for (uint32_t c = 0; c < 324; c++) {
    int byte = wr_char_byte(c);
    if (byte < 0) continue;
    char spelled[2];
    size_t at = b->n_text, n = wr_byte_spell((uint8_t)byte, spelled);
    WR_TRY(add_text(b, spelled, n));
    WR_TRY(take_token(b, at, n, &byte_id[byte]));
  }
  return WEIR_OK;
}

/* -------------------------------------------------------------------------------------------------------------------- heap */

static bool before(const heap_entry *x, const heap_entry *y) {
  if (x->count != y->count) return x->count > y->count;
  return x->left != y->left ? x->left < y->left : x->right < y->right;
}

static void sift_down(wr_bpe_trainer *b, size_t i) {
  heap_entry v = b->heap[i];
  for (size_t child; (child = 2 * i + 1) < b->n_heap; i = child) {
    if (child + 1 < b->n_heap && before(&b->heap[child + 1], &b->heap[child])) child++;
    if (!before(&b->heap[child], &v)) break;
    b->heap[i] = b->heap[child];
  }
  b->heap[i] = v;
}

static heap_entry entry_of(const wr_bpe_trainer *b, uint32_t pair) {
  const pair_record *p = &b->pairs[pair];
  return (heap_entry){p->count, p->left, p->right, pair};
}

static weir_status push(wr_bpe_trainer *b, uint32_t pair) {
  if (b->pairs[pair].count < b->o.min_count) return WEIR_OK; /* it is pushed again should it become more */
  if (!wr_grow((void **)&b->heap, &b->heap_cap, b->n_heap + 1, sizeof *b->heap)) return no_memory();
  heap_entry v = entry_of(b, pair);
  size_t i = b->n_heap++;
  for (; i && before(&v, &b->heap[(i - 1) / 2]); i = (i - 1) / 2) b->heap[i] = b->heap[(i - 1) / 2];
  b->heap[i] = v;
  return WEIR_OK;
}

/* The most frequent pair; false: none is frequent enough. */
static bool pop(wr_bpe_trainer *b, uint32_t *pair) {
  while (b->n_heap) {
    heap_entry top = b->heap[0];
    uint64_t count = b->pairs[top.pair].count;
    bool sure = count == top.count, gone = count < b->o.min_count;
    if (!sure && !gone) {
      b->heap[0].count = count; /* it has fallen, or stands further up in a second entry: nothing is lost by moving it */
    } else {
      b->heap[0] = b->heap[--b->n_heap];
    }
    if (b->n_heap) sift_down(b, 0);
    if (sure && !gone) return *pair = top.pair, true;
  }
  return false;
}

/* ------------------------------------------------------------------------------------------------------------------- pairs */

static bool more_slots(wr_bpe_trainer *b) {
  size_t slots = b->slots ? 2 * (b->slots_mask + 1) : 1 << 14;
  uint32_t *grown = wr_calloc(slots, sizeof *grown);
  if (!grown) return false;
  for (size_t i = 0; i < b->n_pairs; i++) {
    size_t at = wr_pair_hash((int32_t)b->pairs[i].left, (int32_t)b->pairs[i].right) & (slots - 1);
    while (grown[at]) at = (at + 1) & (slots - 1);
    grown[at] = (uint32_t)i + 1;
  }
  wr_free(b->slots);
  b->slots = grown, b->slots_mask = slots - 1;
  return true;
}

static weir_status pair_of(wr_bpe_trainer *b, uint32_t left, uint32_t right, uint32_t *out) {
  if (b->n_pairs + b->n_pairs / 2 >= b->slots_mask && !more_slots(b)) return no_memory();
  size_t at = wr_pair_hash((int32_t)left, (int32_t)right) & b->slots_mask;
  for (; b->slots[at]; at = (at + 1) & b->slots_mask) {
    const pair_record *p = &b->pairs[b->slots[at] - 1];
    if (p->left == left && p->right == right) return *out = b->slots[at] - 1, WEIR_OK;
  }
  if (!wr_grow((void **)&b->pairs, &b->pairs_cap, b->n_pairs + 1, sizeof *b->pairs)) return no_memory();
  b->pairs[b->n_pairs] = (pair_record){left, right, NOWHERE, 0};
  *out = (uint32_t)b->n_pairs++;
  b->slots[at] = *out + 1;
  return WEIR_OK;
}

/* A place more, in this word. */
static weir_status add_place(wr_bpe_trainer *b, uint32_t left, uint32_t right, uint32_t in_word, uint32_t *pair) {
  WR_TRY(pair_of(b, left, right, pair));
  pair_record *p = &b->pairs[*pair];
  p->count += b->words[in_word].count;
  if (p->words != NOWHERE && b->nodes[p->words].word == in_word) return WEIR_OK;
  if (b->n_nodes >= NOWHERE) return wr_fail(WEIR_EUNSUPPORTED, "the text has too many different words to train a tokenizer on");
  if (!wr_grow((void **)&b->nodes, &b->nodes_cap, b->n_nodes + 1, sizeof *b->nodes)) return no_memory();
  b->nodes[b->n_nodes] = (node){in_word, p->words};
  p->words = (uint32_t)b->n_nodes++;
  return WEIR_OK;
}

static weir_status made_place(wr_bpe_trainer *b, uint32_t left, uint32_t right, uint32_t in_word) {
  uint32_t pair;
  WR_TRY(add_place(b, left, right, in_word, &pair));
  if (!wr_grow((void **)&b->touched, &b->touched_cap, b->n_touched + 1, sizeof *b->touched)) return no_memory();
  b->touched[b->n_touched++] = pair;
  return WEIR_OK;
}

static weir_status lost_place(wr_bpe_trainer *b, uint32_t left, uint32_t right, uint32_t in_word) {
  uint32_t pair;
  WR_TRY(pair_of(b, left, right, &pair));
  b->pairs[pair].count -= b->words[in_word].count;
  return WEIR_OK;
}

/* Every place of the pair in one word becomes `made`, from the left. */
static weir_status merge_in_word(wr_bpe_trainer *b, uint32_t w, uint32_t left, uint32_t right, uint32_t made) {
  row_of_ids *word = &b->words[w];
  uint32_t *s = b->syms + word->at, n = 0;
  for (uint32_t i = 0; i < word->len;) {
    if (s[i] != left || i + 1 >= word->len || s[i + 1] != right) {
      s[n++] = s[i++];
      continue;
    }
    WR_TRY(lost_place(b, left, right, w));
    if (n) {
      WR_TRY(lost_place(b, s[n - 1], left, w));
      WR_TRY(made_place(b, s[n - 1], made, w));
    }
    if (i + 2 < word->len) {
      WR_TRY(lost_place(b, right, s[i + 2], w));
      WR_TRY(made_place(b, made, s[i + 2], w));
    }
    s[n++] = made;
    i += 2;
  }
  word->len = n;
  return WEIR_OK;
}

static weir_status merge_pair(wr_bpe_trainer *b, uint32_t pair) {
  uint32_t left = b->pairs[pair].left, right = b->pairs[pair].right, made;
  spelling l = b->tokens[left], r = b->tokens[right];
  size_t at = b->n_text;
  if (!wr_grow((void **)&b->text, &b->text_cap, at + l.len + r.len, 1)) return no_memory();
  memcpy(b->text + at, b->text + l.at, l.len);
  memcpy(b->text + at + l.len, b->text + r.at, r.len);
  b->n_text += l.len + r.len;
  WR_TRY(take_token(b, at, l.len + r.len, &made));
  if (!wr_grow((void **)&b->merges, &b->merges_cap, b->n_merges + 1, sizeof *b->merges)) return no_memory();
  b->merges[b->n_merges++] = (merge_made){left, right};
  b->n_touched = 0;
  uint32_t list = b->pairs[pair].words;
  b->pairs[pair].words = NOWHERE; /* the places that may come later get a list of their own */
  for (uint32_t i = list; i != NOWHERE; i = b->nodes[i].next) WR_TRY(merge_in_word(b, b->nodes[i].word, left, right, made));
  for (size_t i = 0; i < b->n_touched; i++) {
    uint32_t p = b->touched[i];
    if (i && p == b->touched[i - 1]) continue;
    WR_TRY(push(b, p));
  }
  return WEIR_OK;
}

static weir_status first_pairs(wr_bpe_trainer *b, const uint32_t byte_id[256]) {
  const wr_word_table *c = &b->counts;
  b->words = wr_malloc(c->n * sizeof *b->words);
  b->syms = wr_malloc(c->n_bytes * sizeof *b->syms);
  if (!b->words || !b->syms) return no_memory();
  b->n_words = c->n;
  for (size_t i = 0; i < c->n; i++) {
    const wr_counted_word *w = &c->words[i];
    b->words[i] = (row_of_ids){w->count, (size_t)w->at, w->len};
    for (uint32_t k = 0; k < w->len; k++) b->syms[w->at + k] = byte_id[(uint8_t)c->bytes[w->at + k]];
  }
  for (size_t i = 0; i < c->n; i++) {
    const uint32_t *s = b->syms + b->words[i].at;
    uint32_t pair;
    for (uint32_t k = 0; k + 1 < b->words[i].len; k++) WR_TRY(add_place(b, s[k], s[k + 1], (uint32_t)i, &pair));
  }
  for (size_t i = 0; i < b->n_pairs; i++) WR_TRY(push(b, (uint32_t)i));
  return WEIR_OK;
}

/* ------------------------------------------------------------------------------------------------------------------ result */

static weir_status make_tokenizer(wr_bpe_trainer *b, wr_tokenizer **out) {
  wr_gguf_text *tokens = wr_malloc(b->n_tokens * sizeof *tokens), *merges = wr_malloc(b->n_merges * sizeof *merges);
  int32_t *types = wr_malloc(b->n_tokens * sizeof *types);
  size_t bytes = 0, at = 0;
  for (size_t i = 0; i < b->n_merges; i++) bytes += b->tokens[b->merges[i].left].len + b->tokens[b->merges[i].right].len + 1u;
  char *pool = wr_malloc(bytes);
  weir_status st = tokens && merges && types && pool ? WEIR_OK : no_memory();
  for (size_t i = 0; st == WEIR_OK && i < b->n_tokens; i++) {
    tokens[i] = (wr_gguf_text){b->text + b->tokens[i].at, b->tokens[i].len};
    types[i] = i < FIRST_BYTE ? WR_TOKEN_CONTROL : WR_TOKEN_NORMAL;
  }
  for (size_t i = 0; st == WEIR_OK && i < b->n_merges; i++) {
    wr_gguf_text l = tokens[b->merges[i].left], r = tokens[b->merges[i].right];
    merges[i] = (wr_gguf_text){pool + at, l.len + r.len + 1};
    memcpy(pool + at, l.ptr, l.len);
    pool[at + l.len] = ' ';
    memcpy(pool + at + l.len + 1, r.ptr, r.len);
    at += merges[i].len;
  }
  wr_vocab_source src;
  wr_vocab_source_init(&src);
  const char *pre = b->pretok.row->name;
  src.model = (wr_gguf_text){"gpt2", 4}, src.pre = (wr_gguf_text){pre, strlen(pre)};
  src.tokens = tokens, src.n_tokens = b->n_tokens, src.types = types, src.n_types = b->n_tokens;
  src.merges = merges, src.n_merges = b->n_merges;
  src.bos_id = src.eos_id = 0, src.add_bos = src.add_eos = 0;
  if (st == WEIR_OK) st = wr_tokenizer_open(&src, out);
  if (st == WEIR_OK) (*out)->text = b->text, b->text = NULL;
  wr_free(tokens);
  wr_free(merges);
  wr_free(types);
  wr_free(pool);
  return st;
}

static weir_status merge_all(wr_bpe_trainer *b, wr_bpe_progress *progress, void *user) {
  uint32_t byte_id[256], pair;
  WR_TRY(first_tokens(b, byte_id));
  WR_TRY(first_pairs(b, byte_id));
  wr_word_table_free(&b->counts);
  while (b->n_tokens < (size_t)b->o.vocab && pop(b, &pair)) {
    WR_TRY(merge_pair(b, pair));
    if (progress && b->n_merges % PROGRESS_STEP == 0 && progress(user, (int64_t)b->n_tokens, b->o.vocab))
      return wr_fail(WEIR_ESTOPPED, "training the tokenizer was stopped");
  }
  b->report.vocab = (int64_t)b->n_tokens;
  for (size_t i = 0; i < b->n_words; i++) b->report.tokens += b->words[i].count * b->words[i].len;
  if (progress && progress(user, b->report.vocab, b->o.vocab))
    return wr_fail(WEIR_ESTOPPED, "training the tokenizer was stopped");
  return WEIR_OK;
}

/* ------------------------------------------------------------------------------------------------------------------ public */

weir_status wr_bpe_trainer_open(const wr_bpe_options *options, wr_bpe_trainer **out) {
  const char *pre = options->pre ? options->pre : "gpt-2";
  const wr_pretok_row *row = wr_pretok_find((wr_gguf_text){pre, strlen(pre)});
  if (options->vocab < WR_BPE_MIN_VOCAB || options->vocab > WR_TEXT_MAX_TOKENS)
    return wr_fail(WEIR_EUSAGE, "a vocabulary of %lld tokens; it must have from %d (the bytes and %s) to %u",
                   (long long)options->vocab, WR_BPE_MIN_VOCAB, END_OF_TEXT, WR_TEXT_MAX_TOKENS);
  if (!row) {
    wr_str names = {0};
    wr_pretok_names(&names);
    weir_status st = wr_fail(WEIR_EUSAGE, "there is no pre-tokenizer '%s'; there are %s", wr_escape(pre, strlen(pre)),
                             names.ptr ? names.ptr : "others");
    wr_str_free(&names);
    return st;
  }
  wr_bpe_trainer *b = wr_calloc(1, sizeof *b);
  if (!b) return no_memory();
  b->o = *options;
  b->o.pre = row->name;
  if (!b->o.min_count) b->o.min_count = 2;
  weir_status st = wr_pretok_open(row, &b->pretok);
  if (st == WEIR_OK) st = wr_team_open(options->threads, false, &b->team);
  if (st != WEIR_OK) return wr_bpe_trainer_close(b), st;
  *out = b;
  return WEIR_OK;
}

static weir_status count_pending(wr_bpe_trainer *b) {
  WR_TRY(wr_count_words(&b->pretok, b->team, b->pending, b->ends, b->n_ends, &b->counts));
  b->report.bytes += b->n_pending;
  b->report.words = b->counts.total, b->report.distinct = b->counts.n;
  b->n_pending = b->n_ends = 0;
  return WEIR_OK;
}

weir_status wr_bpe_trainer_add(wr_bpe_trainer *b, const char *text, size_t n) {
  while (n) {
    /* PCRE2 and the words that it gives take up to 1 GiB at once; a longer text goes on as another */
    size_t part = WR_MIN(n, WR_TEXT_MAX_BYTES);
    if (!wr_grow((void **)&b->pending, &b->pending_cap, b->n_pending + part, 1) ||
        !wr_grow((void **)&b->ends, &b->ends_cap, b->n_ends + 1, sizeof *b->ends))
      return no_memory();
    memcpy(b->pending + b->n_pending, text, part);
    b->n_pending += part;
    b->ends[b->n_ends++] = b->n_pending;
    if (b->n_pending >= PENDING_BYTES) WR_TRY(count_pending(b));
    text += part, n -= part;
  }
  return WEIR_OK;
}

weir_status wr_bpe_trainer_finish(wr_bpe_trainer *b, wr_bpe_progress *progress, void *user, wr_tokenizer **out) {
  if (b->finished) return wr_fail(WEIR_EUSAGE, "this tokenizer was trained already");
  WR_TRY(count_pending(b));
  b->finished = true;
  WR_TRY(merge_all(b, progress, user));
  return make_tokenizer(b, out);
}

void wr_bpe_trainer_get_report(const wr_bpe_trainer *b, wr_bpe_report *out) { *out = b->report; }

void wr_bpe_trainer_close(wr_bpe_trainer *b) {
  if (!b) return;
  wr_team_close(b->team);
  wr_pretok_close(&b->pretok);
  wr_word_table_free(&b->counts);
  wr_free(b->pending);
  wr_free(b->ends);
  wr_free(b->words);
  wr_free(b->syms);
  wr_free(b->pairs);
  wr_free(b->slots);
  wr_free(b->nodes);
  wr_free(b->heap);
  wr_free(b->touched);
  wr_free(b->merges);
  wr_free(b->text);
  wr_free(b->tokens);
  wr_free(b->buckets);
  wr_free(b);
}
