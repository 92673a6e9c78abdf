/* encode.c: text to ids.
 *
 * What an encoder remembers: the ids of words of up to 23 bytes that became at most nine tokens, in a table of fixed size where a new
 * word takes the place of an older one. Text repeats its words, so most of it is a look-up. Only ids that do not depend on the
 * flags are remembered, and between special tokens a word's ids depend on nothing else.
 *
 * Owns the order of things: special tokens are cut out first (leftmost, then longest); what lies between is split into words
 * (BPE) or has its blanks marked (SPM); within a word neighbours are merged, best pair first, leftmost among equals. SPM knows
 * no words, but where no token continues over the beginning of a blank, cutting there changes nothing and saves time.
 *
 * Merging: symbols in a doubly linked list over an array; each keeps the key of the pair that it begins (a merge's rank, or a
 * score turned round), UINT32_MAX when that pair does not merge. Short words look for the smallest key by walking the list;
 * longer ones keep a heap of (key, position), very long ones mostly a list of places for each rank. An entry of the heap is stale when its symbol's key has changed since, and then
 * it is thrown away; if the key is the same, so is what has to be done. Hence n log n time, and memory in proportion.
 *
 * Invariants: the ids of a word's symbols, spelled out, are always the word; a symbol without an id is one byte (BPE) or one
 * character (SPM) that no token spells, and ends as byte tokens.
 */
#include "text/text_i.h"

#define END UINT32_MAX          /* of the list; and the key of a pair that does not merge */
#define WORTH_KNOWING (1 << 15) /* bytes of one text from which on remembering its words pays */
#define LONG_WORD 4096          /* symbols; above that, a list for each rank of the vocabulary costs less than a heap */
#define SHORT_WORD 24           /* symbols; walking beats the heap below that, and most words have three to eight */

typedef struct symbol {
  uint32_t prev, next;
  uint32_t key;   /* of the pair (this, next) */
  int32_t merged; /* and what it becomes */
  int32_t id;     /* WR_NO_TOKEN: no token is spelled like this */
  uint32_t at;    /* SPM: first byte in the marked text */
} symbol;

/* A word of 1 to 23 bytes and its ids: one cache line. Free: all zero, which is no word's key because the last byte is the length. */
typedef struct known_word {
  uint64_t key[3];
  int32_t n_ids, ids[9];
} known_word;
enum { KNOWN_WORDS = 1 << 15, KNOWN_BYTES = 23 };

struct wr_encoder {
  const wr_tokenizer *t;
  known_word *known; /* [KNOWN_WORDS], at a cache line's beginning; NULL: nothing is remembered */
  void *known_memory;
  unsigned flags;
  wr_ids *out;
  wr_splitter splitter;
  const char *text; /* all of it, for offsets in sentences */
  const char *text_end;
  const char *fragment; /* SPM: the part of it that `marked` was made from */
  symbol *sym;
  size_t sym_cap;
  uint64_t *heap;
  size_t heap_cap;
  char *marked; /* SPM: the fragment with its blanks marked */
  size_t n_marked, marked_cap;
  size_t end;    /* SPM: of the segment that is being merged */
  bool prefixed; /* SPM: `marked` begins with a blank that the text does not have */
  bool by_bytes; /* what is being encoded has bytes without a token of their own, so its ids depend on the flags */
};

/* -------------------------------------------------------------------------------------------------------------------- ids */

weir_status wr_ids_put(wr_ids *ids, int32_t id) {
  if (ids->len == ids->cap && !wr_grow((void **)&ids->ptr, &ids->cap, ids->len + 1, sizeof *ids->ptr))
    return wr_fail_nomem((ids->len + 1) * sizeof *ids->ptr, "token ids");
  ids->ptr[ids->len++] = id;
  return WEIR_OK;
}

void wr_ids_free(wr_ids *ids) {
  wr_free(ids->ptr);
  *ids = (wr_ids){0};
}

static weir_status no_token(wr_encoder *e, uint8_t byte, size_t offset) {
  int32_t unk = e->t->special.unk;
  e->by_bytes = true;
  if (!(e->flags & WR_TEXT_LOSSY))
    return wr_fail(WEIR_EUNSUPPORTED, "text: byte %zu is 0x%02X, for which this vocabulary has no token", offset, byte);
  return e->t->kind == WR_TEXT_SPM && unk != WR_NO_TOKEN ? wr_ids_put(e->out, unk) : WEIR_OK;
}

/* ---------------------------------------------------------------------------------------------------------------- merging */

static void look_at_pair(const wr_encoder *e, uint32_t i) {
  const wr_tokenizer *t = e->t;
  symbol *s = &e->sym[i];
  s->key = END;
  if (s->next == END) return;
  const symbol *right = &e->sym[s->next];
  if (t->pairs) {
    const wr_pair_slot *p = s->id == WR_NO_TOKEN || right->id == WR_NO_TOKEN ? NULL : wr_pair_find(t, s->id, right->id);
    if (p) s->key = p->rank, s->merged = p->merged;
    return;
  }
  size_t end = right->next == END ? e->end : e->sym[right->next].at;
  int32_t id = wr_name_find(t, e->marked + s->at, end - s->at);
  if (id != WR_NO_TOKEN) s->key = t->score_key[id], s->merged = id;
}

/* Symbol i swallows the next one. */
static void merge_at(const wr_encoder *e, uint32_t i) {
  symbol *s = &e->sym[i], *right = &e->sym[s->next];
  s->id = s->merged;
  s->next = right->next;
  right->key = END;
  if (s->next != END) e->sym[s->next].prev = i;
  look_at_pair(e, i);
  if (s->prev != END) look_at_pair(e, s->prev);
}

static void merge_walking(const wr_encoder *e) {
  for (;;) {
    uint32_t best = END, at = END;
    for (uint32_t i = 0; i != END; i = e->sym[i].next)
      if (e->sym[i].key < best) best = e->sym[i].key, at = i;
    if (at == END) return;
    merge_at(e, at);
  }
}

static void sift_down(uint64_t *heap, size_t n, size_t i) {
  uint64_t v = heap[i];
  for (size_t child; (child = 2 * i + 1) < n; i = child) {
    if (child + 1 < n && heap[child + 1] < heap[child]) child++;
    if (v <= heap[child]) break;
    heap[i] = heap[child];
  }
  heap[i] = v;
}

static void push(const wr_encoder *e, size_t *n, uint32_t i) {
  if (e->sym[i].key == END) return;
  uint64_t v = (uint64_t)e->sym[i].key << 32 | i;
  size_t at = (*n)++;
  for (; at && v < e->heap[(at - 1) / 2]; at = (at - 1) / 2) e->heap[at] = e->heap[(at - 1) / 2];
  e->heap[at] = v;
}

/* Room: n - 1 entries at first; each of at most n - 1 merges takes one out and puts at most two in. */
static weir_status merge_by_heap(wr_encoder *e, size_t n_sym) {
  if (!wr_grow((void **)&e->heap, &e->heap_cap, 2 * n_sym, sizeof *e->heap))
    return wr_fail_nomem(2 * n_sym * sizeof *e->heap, "encoding a long word");
  size_t n = 0;
  for (uint32_t i = 0; i < n_sym; i++)
    if (e->sym[i].key != END) e->heap[n++] = (uint64_t)e->sym[i].key << 32 | i;
  for (size_t i = n / 2; i-- > 0;) sift_down(e->heap, n, i);
  while (n) {
    uint32_t key = (uint32_t)(e->heap[0] >> 32), i = (uint32_t)e->heap[0];
    e->heap[0] = e->heap[--n];
    if (n) sift_down(e->heap, n, 0);
    if (e->sym[i].key != key) continue;
    merge_at(e, i);
    push(e, &n, i);
    if (e->sym[i].prev != END) push(e, &n, e->sym[i].prev);
  }
  return WEIR_OK;
}

/* ---- very long words. Where the result of a merge takes part in later merges only (t->ranks_rise), ranks can be done one after
 * another, each from the left, and a list of places for each rank stands for the heap. The lists are in order by themselves: within its
 * bounds a token always comes about by the same merges, so a pair of tokens comes up in one pass, that of the later of the two, and
 * a pass goes from left to right. */
typedef struct place {
  uint32_t at, next;
} place;

typedef struct rank_lists {
  uint32_t *first, *last; /* [n_pairs] of each rank's list, in `places`; first is END where there is none */
  uint64_t *used;         /* [n_pairs / 64 + 1] bits: ranks with a list */
  place *places;          /* [3 * n_sym]: each symbol at first, and two for each merge */
  uint32_t n;
} rank_lists;

static void put_place(const wr_encoder *e, rank_lists *l, uint32_t i) {
  uint32_t rank = e->sym[i].key;
  if (rank == END) return;
  l->places[l->n] = (place){i, END};
  if (l->first[rank] == END)
    l->first[rank] = l->n;
  else
    l->places[l->last[rank]].next = l->n;
  l->last[rank] = l->n++;
  l->used[rank / 64] |= (uint64_t)1 << rank % 64;
}

static void merge_rank(const wr_encoder *e, rank_lists *l, uint32_t rank) {
  for (uint32_t p = l->first[rank]; p != END; p = l->places[p].next) {
    uint32_t i = l->places[p].at;
    if (e->sym[i].key != rank) continue; /* stale */
    merge_at(e, i);
    put_place(e, l, i);
    if (e->sym[i].prev != END) put_place(e, l, e->sym[i].prev);
  }
}

static weir_status merge_by_rank(const wr_encoder *e, size_t n_sym) {
  size_t ranks = e->t->n_pairs, words = ranks / 64 + 1;
  rank_lists l = {.first = wr_malloc(ranks * sizeof *l.first),
                  .last = wr_malloc(ranks * sizeof *l.last),
                  .used = wr_calloc(words, sizeof *l.used),
                  .places = wr_malloc(3 * n_sym * sizeof *l.places)};
  bool room = l.first && l.last && l.used && l.places;
  if (room) {
    memset(l.first, 0xff, ranks * sizeof *l.first);
    for (size_t i = 0; i < n_sym; i++) put_place(e, &l, (uint32_t)i);
    for (size_t w = 0; w < words; w++)
      while (l.used[w]) { /* what a rank adds is of later ranks */
        uint32_t rank = (uint32_t)(w * 64 + (size_t)__builtin_ctzll(l.used[w]));
        l.used[w] &= l.used[w] - 1;
        merge_rank(e, &l, rank);
      }
  }
  wr_free(l.first);
  wr_free(l.last);
  wr_free(l.used);
  wr_free(l.places);
  return room ? WEIR_OK : wr_fail_nomem(3 * n_sym * sizeof *l.places, "encoding a long word");
}

static weir_status need_symbols(wr_encoder *e, size_t n) {
  if (wr_grow((void **)&e->sym, &e->sym_cap, n, sizeof *e->sym)) return WEIR_OK;
  return wr_fail_nomem(n * sizeof *e->sym, "encoding a long word");
}

/* Links the first n symbols, whose ids (and places) are set, and merges them. */
static weir_status merge(wr_encoder *e, size_t n) {
  for (uint32_t i = 0; i < n; i++) {
    e->sym[i].prev = i ? i - 1 : END;
    e->sym[i].next = i + 1 < n ? i + 1 : END;
  }
  for (uint32_t i = 0; i < n; i++) look_at_pair(e, i);
  if (n <= SHORT_WORD) return merge_walking(e), WEIR_OK;
  return e->t->ranks_rise && n > LONG_WORD ? merge_by_rank(e, n) : merge_by_heap(e, n);
}

/* -------------------------------------------------------------------------------------------------------------------- BPE */

/* The token that is spelled like the whole word. */
static int32_t whole_word(const wr_tokenizer *t, const char *word, size_t n) {
  char spelled[WR_TEXT_MAX_TOKEN_BYTES + 2];
  size_t len = 0;
  if (n > t->longest) return WR_NO_TOKEN;
  for (size_t i = 0; i < n && len <= t->longest; i++) len += wr_byte_spell((uint8_t)word[i], spelled + len);
  return wr_name_find(t, spelled, len);
}

static weir_status encode_new_word(wr_encoder *e, const char *word, size_t n) {
  const wr_tokenizer *t = e->t;
  if (t->pretok.row->ignore_merges) {
    int32_t id = whole_word(t, word, n);
    if (id != WR_NO_TOKEN) return wr_ids_put(e->out, id);
  }
  WR_TRY(need_symbols(e, n));
  for (size_t i = 0; i < n; i++) e->sym[i].id = t->byte_id[(uint8_t)word[i]];
  WR_TRY(merge(e, n));
  for (uint32_t i = 0; i != END; i = e->sym[i].next) {
    /* a symbol's number is the offset of its first byte */
    if (e->sym[i].id != WR_NO_TOKEN)
      WR_TRY(wr_ids_put(e->out, e->sym[i].id));
    else
      WR_TRY(no_token(e, (uint8_t)word[i], (size_t)(word - e->text) + i));
  }
  return WEIR_OK;
}

/* first_bytes[n]: a mask of the first n of 24 bytes. */
#define ALL(n) ((n) >= 8 ? ~(uint64_t)0 : ~(~(uint64_t)0 << 8 * ((n)&7)))
#define ROW(n) \
  { ALL(n), (n) > 8 ? ALL((n)-8) : 0, (n) > 16 ? ALL((n)-16) : 0 }
#define ROWS8(n) ROW(n), ROW((n) + 1), ROW((n) + 2), ROW((n) + 3), ROW((n) + 4), ROW((n) + 5), ROW((n) + 6), ROW((n) + 7)
static const uint64_t first_bytes[KNOWN_BYTES + 1][3] = {ROWS8(0), ROWS8(8), ROWS8(16)};

/* The key of a word, and where it is remembered: in one of two slots, the newer word first. */
static inline known_word *find_known(const wr_encoder *e, const char *word, size_t n, const char *text_end, uint64_t key[3]) {
  if (text_end - word >= 24) {
    memcpy(key, word, 24);
    for (size_t i = 0; i < 3; i++) key[i] &= first_bytes[n][i];
  } else {
    key[0] = key[1] = key[2] = 0;
    memcpy(key, word, n);
  }
  key[2] |= (uint64_t)n << 56;
  uint64_t h = (key[0] ^ key[1] * 0x9e3779b97f4a7c15u ^ (key[2] << 32 | key[2] >> 32)) * 0xd6e8feb86659fd93u;
  return &e->known[(h ^ h >> 32) & (KNOWN_WORDS - 2)];
}

static inline bool is_known(const known_word *k, const uint64_t key[3]) {
  return k->key[0] == key[0] && k->key[1] == key[1] && k->key[2] == key[2];
}

/* Puts the ids of a word, remembered or found by `encode_new`. */
typedef weir_status encode_new_fn(wr_encoder *e, const char *word, size_t n);
static inline weir_status encode_known(wr_encoder *e, const char *word, size_t n, const char *text_end,
                                       encode_new_fn *encode_new) {
  if (n > KNOWN_BYTES || !e->known) return encode_new(e, word, n);
  uint64_t key[3];
  known_word *slot = find_known(e, word, n, text_end, key);
  const known_word *hit = is_known(slot, key) ? slot : is_known(slot + 1, key) ? slot + 1 : NULL;
  wr_ids *out = e->out;
  if (hit) {
    size_t room = WR_ARRAY_LEN(hit->ids);
    if (out->len + room > out->cap && !wr_grow((void **)&out->ptr, &out->cap, out->len + room, sizeof *out->ptr))
      return wr_fail_nomem((out->len + room) * sizeof *out->ptr, "token ids");
    memcpy(out->ptr + out->len, hit->ids, sizeof hit->ids);
    out->len += (size_t)hit->n_ids;
    return WEIR_OK;
  }
  size_t before = out->len;
  e->by_bytes = false;
  WR_TRY(encode_new(e, word, n));
  size_t count = out->len - before;
  if (e->by_bytes || count > WR_ARRAY_LEN(slot->ids)) return WEIR_OK;
  slot[1] = slot[0];
  *slot = (known_word){.key = {key[0], key[1], key[2]}, .n_ids = (int32_t)count};
  memcpy(slot->ids, out->ptr + before, count * sizeof *slot->ids);
  return WEIR_OK;
}

static weir_status encode_word(void *user, const char *word, size_t n) {
  wr_encoder *e = user;
  return encode_known(e, word, n, e->text_end, encode_new_word);
}

/* -------------------------------------------------------------------------------------------------------------------- SPM */

static bool is_mark(const char *p) { return memcmp(p, WR_SPACE_MARK, 3) == 0; }

/* Where byte `at` of the marked text was in the text; only for sentences. */
static size_t unmarked_offset(const wr_encoder *e, size_t at) {
  size_t i = 0, m = e->prefixed ? 3 : 0;
  for (; m < at; i++) m += e->fragment[i] == ' ' ? 3 : 1;
  return (size_t)(e->fragment - e->text) + i;
}

static weir_status put_bytes(wr_encoder *e, size_t from, size_t to) {
  if (to - from == 3 && is_mark(e->marked + from) && e->t->byte_id[' '] != WR_NO_TOKEN)
    return wr_ids_put(e->out, e->t->byte_id[' ']);
  for (size_t i = from; i < to; i++) {
    uint8_t b = (uint8_t)e->marked[i];
    if (e->t->byte_id[b] != WR_NO_TOKEN)
      WR_TRY(wr_ids_put(e->out, e->t->byte_id[b]));
    else
      WR_TRY(no_token(e, b, unmarked_offset(e, i)));
  }
  return WEIR_OK;
}

static size_t char_length(const char *p, size_t n) { /* of the valid UTF-8 character at p, or 1 */
  if ((uint8_t)*p < 0xc2) return 1;
  size_t len = (uint8_t)*p < 0xe0 ? 2 : (uint8_t)*p < 0xf0 ? 3 : 4;
  return len <= n && wr_utf8_valid(p, len) == len ? len : 1;
}

/* A blank becomes U+2581, as the vocabulary spells it. */
static weir_status mark_blanks(wr_encoder *e, const char *text, size_t n, bool prefix) {
  size_t blanks = prefix, at = 0;
  for (size_t i = 0; i < n; i++) blanks += text[i] == ' ';
  size_t need = n + 2 * blanks + prefix;
  if (!wr_grow((void **)&e->marked, &e->marked_cap, need, 1)) return wr_fail_nomem(need, "encoding");
  if (prefix) memcpy(e->marked, WR_SPACE_MARK, 3), at = 3;
  for (size_t i = 0; i < n; i++) {
    if (text[i] != ' ')
      e->marked[at++] = text[i];
    else
      memcpy(e->marked + at, WR_SPACE_MARK, 3), at += 3;
  }
  e->n_marked = at, e->fragment = text, e->prefixed = prefix;
  return WEIR_OK;
}

/* A segment of the marked text, which no token can join to what lies before or after. */
static weir_status encode_new_segment(wr_encoder *e, const char *segment, size_t length) {
  size_t n = 0, from = (size_t)(segment - e->marked), to = from + length;
  for (size_t at = from, len; at < to; at += len, n++) {
    len = char_length(e->marked + at, to - at);
    WR_TRY(need_symbols(e, n + 1));
    e->sym[n].at = (uint32_t)at;
    e->sym[n].id = wr_name_find(e->t, e->marked + at, len);
  }
  e->end = to;
  WR_TRY(merge(e, n));
  for (uint32_t i = 0; i != END; i = e->sym[i].next) {
    const symbol *s = &e->sym[i];
    if (s->id != WR_NO_TOKEN)
      WR_TRY(wr_ids_put(e->out, s->id));
    else
      WR_TRY(put_bytes(e, s->at, s->next == END ? to : e->sym[s->next].at));
  }
  return WEIR_OK;
}

static weir_status encode_segment(wr_encoder *e, size_t from, size_t to) {
  return encode_known(e, e->marked + from, to - from, e->marked + e->n_marked, encode_new_segment);
}

static weir_status encode_spm(wr_encoder *e, const char *text, size_t n, bool prefix) {
  WR_TRY(mark_blanks(e, text, n, prefix));
  size_t from = 0, end = e->n_marked;
  if (e->t->words_end_at_blanks)
    for (size_t at = 3; at + 3 <= end; at++) {
      if (!is_mark(e->marked + at) || is_mark(e->marked + at - 3)) continue;
      WR_TRY(encode_segment(e, from, at));
      from = at;
    }
  return from < end ? encode_segment(e, from, end) : WEIR_OK;
}

/* -------------------------------------------------------------------------------------------------------------------- all */

/* Of a piece of text between special tokens. */
static bool gets_prefix(const wr_tokenizer *t, const char *text, size_t n, bool at_start) {
  if (t->prefix == WR_PREFIX_NEVER || t->prefix == WR_PREFIX_LEGACY) return t->prefix == WR_PREFIX_LEGACY;
  return (at_start || t->prefix == WR_PREFIX_ALWAYS) && text[0] != ' ' && !(n >= 3 && is_mark(text));
}

static weir_status encode_all(wr_encoder *e, size_t n) {
  const wr_tokenizer *t = e->t;
  const wr_special_ids *s = &t->special;
  bool fresh = !(e->flags & WR_TEXT_CONTINUES); /* text that comes now gets the space prefix */
  if ((e->flags & WR_TEXT_ADD_SPECIAL) && s->add_bos) {
    WR_TRY(wr_ids_put(e->out, s->bos));
    fresh = true;
  }
  for (size_t at = 0; at < n;) {
    size_t found;
    int32_t id = wr_special_find(t, e->text, n, at, e->flags & WR_TEXT_PARSE_SPECIAL, &found);
    if (found > at) {
      if (t->kind == WR_TEXT_BPE)
        WR_TRY(wr_split(&e->splitter, e->text + at, found - at, encode_word, e));
      else
        WR_TRY(encode_spm(e, e->text + at, found - at, fresh && gets_prefix(t, e->text + at, found - at, at == 0)));
      fresh = false;
    }
    at = found;
    if (id == WR_NO_TOKEN) break;
    WR_TRY(wr_ids_put(e->out, id));
    at += t->tokens[id].len;
    fresh = true;
  }
  return (e->flags & WR_TEXT_ADD_SPECIAL) && s->add_eos ? wr_ids_put(e->out, s->eos) : WEIR_OK;
}

static bool remember(wr_encoder *e) {
  e->known_memory = wr_calloc(KNOWN_WORDS + 1, sizeof *e->known);
  uintptr_t line = ((uintptr_t)e->known_memory + WR_CACHE_LINE - 1) & ~(uintptr_t)(WR_CACHE_LINE - 1);
  e->known = e->known_memory ? (known_word *)line : NULL;
  return e->known;
}

static void release(wr_encoder *e) {
  wr_splitter_close(&e->splitter);
  wr_free(e->known_memory);
  wr_free(e->sym);
  wr_free(e->heap);
  wr_free(e->marked);
}

weir_status wr_encoder_put(wr_encoder *e, const char *text, size_t n, unsigned flags, wr_ids *out) {
  if (n > WR_TEXT_MAX_BYTES)
    return wr_fail(WEIR_EUSAGE, "text of %zu bytes; at most %zu are encoded at once", n, WR_TEXT_MAX_BYTES);
  size_t before = out->len;
  e->flags = flags, e->out = out, e->text = text, e->text_end = n ? text + n : text;
  weir_status st = encode_all(e, n);
  if (st != WEIR_OK) out->len = before;
  return st;
}

weir_status wr_encode(const wr_tokenizer *t, const char *text, size_t n, unsigned flags, wr_ids *out) {
  wr_encoder e = {.t = t};
  weir_status st = t->kind == WR_TEXT_BPE ? wr_splitter_open(&t->pretok, &e.splitter) : WEIR_OK;
  if (n >= WORTH_KNOWING) remember(&e); /* or not: slower, no more */
  if (st == WEIR_OK) st = wr_encoder_put(&e, text, n, flags, out);
  release(&e);
  return st;
}

weir_status wr_encoder_open(const wr_tokenizer *t, wr_encoder **out) {
  wr_encoder *e = wr_calloc(1, sizeof *e);
  if (!e) return wr_fail_nomem(sizeof *e, "an encoder");
  e->t = t;
  weir_status st = remember(e) ? WEIR_OK : wr_fail_nomem(KNOWN_WORDS * sizeof *e->known, "an encoder");
  if (st == WEIR_OK && t->kind == WR_TEXT_BPE) st = wr_splitter_open(&t->pretok, &e->splitter);
  if (st != WEIR_OK) return wr_encoder_close(e), st;
  *out = e;
  return WEIR_OK;
}

void wr_encoder_close(wr_encoder *e) {
  if (!e) return;
  release(e);
  wr_free(e);
}
