/* text_i.h: what the files of text share. See text.h for what a tokenizer promises. */
#ifndef WR_TEXT_I_H
#define WR_TEXT_I_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "text/text.h"

#define WR_TEXT_MAX_TOKENS (1u << 24)        /* tokens of a vocabulary, and merges */
#define WR_TEXT_MAX_TOKEN_BYTES 4096u        /* one token; bounds the work of a lookup */
#define WR_TEXT_MAX_SPECIAL_BYTES (1u << 20) /* all special tokens together; bounds the trie */
#define WR_TEXT_MAX_BYTES ((size_t)1 << 30)  /* of text in one call: positions and symbols are 32-bit */
#define WR_TEXT_MAX_PROBES 1024u             /* of a hash table */
#define WR_PRETOK_STAGES 4

/* ---- words.c. The length of the first word of p[0, n), n > 0, where p is where a word begins; 0: ASCII alone does not say. */
typedef size_t wr_word_rule(const uint8_t *p, size_t n);
wr_word_rule wr_word_gpt2, wr_word_smollm, wr_word_llama3, wr_word_qwen2;
size_t wr_word_break(const uint8_t *p, size_t n); /* where, after the first byte, a word surely begins; n: nowhere */

/* ---- pretok.c */
typedef struct wr_pretok_row {
  const char *name, *aliases;
  bool ignore_merges, add_bos;
  wr_word_rule *ascii;
  const char *stage[WR_PRETOK_STAGES];
} wr_pretok_row;

typedef struct wr_pretok {
  const wr_pretok_row *row;
  int n_stages;
  pcre2_general_context *memory;
  pcre2_code *code[WR_PRETOK_STAGES];
  atomic_bool no_memory; /* PCRE2 was refused some; it does not always say so */
} wr_pretok;

/* A thread's own part of the matching; from wr_splitter_open to wr_splitter_close. */
typedef struct wr_splitter {
  const wr_pretok *pretok;
  pcre2_match_data *match;
  pcre2_match_context *limits;
} wr_splitter;
typedef weir_status (*wr_word_fn)(void *user, const char *word, size_t n);

const wr_pretok_row *wr_pretok_find(wr_gguf_text name); /* NULL: no such row */
void wr_pretok_names(wr_str *out);                      /* "gpt-2, llama-bpe, …" */
/* `out` zeroed, and not moved while it is open; close it also after a failure. */
weir_status wr_pretok_open(const wr_pretok_row *row, wr_pretok *out);
void wr_pretok_close(wr_pretok *p);
weir_status wr_splitter_open(const wr_pretok *p, wr_splitter *out);
void wr_splitter_close(wr_splitter *s);
/* Calls fn for each word in order; together the words are the text. Stops at the first failure and returns it. */
weir_status wr_split(const wr_splitter *s, const char *text, size_t n, wr_word_fn fn, void *user);
weir_status wr_split_pcre(const wr_splitter *s, const char *text, size_t n, wr_word_fn fn, void *user); /* the same, by the patterns alone */

/* ---- tokenizer.c */
typedef enum wr_text_kind { WR_TEXT_BPE, WR_TEXT_SPM } wr_text_kind;

/* When text gets a space in front. The numbers are part of the hash. */
typedef enum wr_prefix {
  WR_PREFIX_NEVER,
  WR_PREFIX_LEGACY, /* at the beginning and after every special token: SentencePiece, Prepend */
  WR_PREFIX_FIRST,  /* at the beginning, unless the text has one there: Metaspace */
  WR_PREFIX_ALWAYS, /* at the beginning and after every special token, unless the text has one there: Metaspace */
  WR_PREFIXES
} wr_prefix;
extern const char *const wr_prefix_name[WR_PREFIXES];

typedef struct wr_token {
  const char *ptr;   /* a view into the source */
  uint16_t len;
  uint8_t type;      /* wr_token_type, after special.def */
  bool ends;         /* ends a generation */
} wr_token;

/* Hash tables: open addressing, linear probing, at most two thirds full; `mask` is the number of slots less one. An entry lies
 * at most WR_TEXT_MAX_PROBES slots from its home, and lookups stop there: a vocabulary made to collide costs no more. */
typedef struct wr_name_slot { uint32_t tag; int32_t id; } wr_name_slot; /* id WR_NO_TOKEN: free */
typedef struct wr_pair_slot { int32_t left, right; uint32_t rank; int32_t merged; } wr_pair_slot; /* left WR_NO_TOKEN: free */
typedef struct wr_edge_slot { uint32_t node, child, byte; } wr_edge_slot; /* child 0: free (0 is the root, nobody's child) */

struct wr_tokenizer {
  wr_text_kind kind;
  char name[64];
  wr_token *tokens;
  uint32_t n, longest;         /* longest: bytes of the longest spelling */
  wr_prefix prefix;            /* SPM */
  bool has_user;               /* some token is USER_DEFINED */
  wr_special_ids special;
  int32_t *end;
  int32_t byte_id[256];        /* the token of a lone byte, WR_NO_TOKEN where there is none */

  wr_name_slot *names;         /* spellings that text can become: see wr_token_is_text */
  uint32_t names_mask;
  wr_pair_slot *pairs;         /* which two tokens merge, how early, into what; NULL: by score */
  uint32_t pairs_mask, n_pairs; /* ranks are 0 … n_pairs-1 */
  bool ranks_rise;             /* what a merge makes takes part in merges of higher ranks only */
  uint32_t *score_key;         /* SPM: of each token, smaller is merged earlier; NULL: by pairs */
  bool words_end_at_blanks;    /* SPM: no spelling has U+2581 after anything but U+2581 */

  wr_edge_slot *edges;         /* trie of the spellings of CONTROL, UNKNOWN and USER_DEFINED tokens */
  uint32_t edges_mask, n_nodes;
  int32_t *node_id;            /* the token that ends at a node, or WR_NO_TOKEN */
  bool first_any[256], first_user[256]; /* a special token, or a USER_DEFINED one, begins with the byte */

  wr_pretok pretok;            /* BPE */

  wr_gguf *gguf;               /* what the spellings are views into, where the tokenizer owns it; NULL: somebody else's */
  char *text;                  /* likewise */
};

static inline bool wr_token_is_special(uint8_t type) { /* cut out of text before anything else; prefixed space begins anew */
  return type == WR_TOKEN_CONTROL || type == WR_TOKEN_UNKNOWN || type == WR_TOKEN_USER_DEFINED;
}

/* The byte that "<0x0A>" names; -1: the spelling is not of that form. */
int wr_token_byte(const wr_token *k);

/* By spelling, among the tokens that text can become. */
int32_t wr_name_find(const wr_tokenizer *t, const char *text, size_t n);

static inline uint32_t wr_pair_hash(int32_t left, int32_t right) {
  uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
  h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
  return (uint32_t)(h >> 32);
}

/* NULL: the two do not merge. */
static inline const wr_pair_slot *wr_pair_find(const wr_tokenizer *t, int32_t left, int32_t right) {
  for (uint32_t i = wr_pair_hash(left, right), probe = 0; probe <= WR_TEXT_MAX_PROBES; i++, probe++) {
    const wr_pair_slot *s = &t->pairs[i & t->pairs_mask];
    if (s->left == WR_NO_TOKEN) return NULL;
    if (s->left == left && s->right == right) return s;
  }
  return NULL;
}

/* The first special token at or after `at`, the longest of those that begin there; parse: control tokens too, not only
 * USER_DEFINED ones. Returns its id, or WR_NO_TOKEN; then *found is n. */
int32_t wr_special_find(const wr_tokenizer *t, const char *text, size_t n, size_t at, bool parse, size_t *found);

/* ---- store.c: the merges in their order, n_pairs of them; the caller frees the list (not the merges). */
weir_status wr_pairs_sorted(const wr_tokenizer *t, const wr_pair_slot ***out);

/* ---- word_count.c: how often each word occurs, for training. {0} is an empty table. */
typedef struct wr_counted_word {
  uint64_t hash, at; /* at: of its bytes, in wr_word_table.bytes */
  uint64_t count;
  uint32_t len;
} wr_counted_word;
typedef struct wr_word_table {
  wr_counted_word *words; /* [n] */
  size_t n, words_cap;
  uint32_t *slots; /* index of a word plus 1; 0: free */
  size_t mask;     /* number of slots less 1 */
  char *bytes;
  size_t n_bytes, bytes_cap;
  uint64_t total; /* of all counts */
} wr_word_table;
#define WR_COUNTED_MAX_BYTES 256u /* of a word; longer ones are counted in pieces that end where a character ends */
weir_status wr_word_table_add(wr_word_table *t, const char *word, size_t n, uint64_t count); /* n: 1 … WR_COUNTED_MAX_BYTES */
void wr_word_table_free(wr_word_table *t);
/* Adds the words of n texts, side by side in `text`: text i ends at ends[i]. The team shares the work. */
weir_status wr_count_words(const wr_pretok *p, wr_team *team, const char *text, const size_t *ends, size_t n, wr_word_table *out);

/* ---- the byte alphabet of byte-level BPE: each byte is one printable character of at most two bytes of UTF-8 */
static inline uint32_t wr_byte_char(uint8_t b) {
  if (b <= 32) return 256u + b;
  if (b >= 127 && b <= 160) return 289u + (b - 127u);
  if (b == 173) return 323u;
  return b;
}
static inline int wr_char_byte(uint32_t c) { /* -1: not of the alphabet */
  if (c >= 256) return c <= 288 ? (int)c - 256 : c <= 322 ? (int)c - 289 + 127 : c == 323 ? 173 : -1;
  return c <= 32 || (c >= 127 && c <= 160) || c == 173 ? -1 : (int)c;
}
/* Writes the character of a byte, returns its length. */
static inline size_t wr_byte_spell(uint8_t b, char out[2]) {
  uint32_t c = wr_byte_char(b);
  if (c < 128) return out[0] = (char)c, 1;
  out[0] = (char)(0xc0 | c >> 6), out[1] = (char)(0x80 | (c & 63));
  return 2;
}

#define WR_SPACE_MARK "\xe2\x96\x81" /* U+2581, a space in a SentencePiece vocabulary */

#endif
