/* pretok.c: cuts text into the words that byte-level BPE merges within.
 *
 * Owns the table of pre-tokenizers (pretok.def) and their compiled patterns. Refuses nothing of text: invalid UTF-8, which
 * PCRE2 must not see, is cut out first, each stretch of it a word of its own.
 *
 * ASCII text is cut by words.c; PCRE2 gets what is left, from a word's beginning to a place where a word surely begins.
 *
 * Time: the patterns of the table advance with every match and backtrack at most over the blanks that the next match consumes,
 * so a text takes linear time; PCRE2's match limit, set to a multiple of the text, would turn a row that breaks this into an
 * error and not into a hang. PCRE2's memory comes from wr_malloc. Where the system refuses executable memory, its interpreter
 * is used.
 */
#include "text/text_i.h"

static const wr_pretok_row rows[] = {
#define X(name, aliases, ignore_merges, add_bos, ascii, s0, s1, s2, s3) \
  {name, aliases, ignore_merges, add_bos, ascii, {s0, s1, s2, s3}},
#include "text/pretok.def"
#undef X
};

static bool is_word_of(const char *words, wr_gguf_text name) { /* name is one of the words */
  while (*words) {
    size_t n = strcspn(words, " ");
    if (n == name.len && memcmp(words, name.ptr, n) == 0) return true;
    words += n + (words[n] == ' ');
  }
  return false;
}

const wr_pretok_row *wr_pretok_find(wr_gguf_text name) {
  for (size_t i = 0; name.len && i < WR_ARRAY_LEN(rows); i++) {
    if (strlen(rows[i].name) == name.len && memcmp(rows[i].name, name.ptr, name.len) == 0) return &rows[i];
    if (is_word_of(rows[i].aliases, name)) return &rows[i];
  }
  return NULL;
}

void wr_pretok_names(wr_str *out) {
  for (size_t i = 0; i < WR_ARRAY_LEN(rows); i++) wr_str_printf(out, "%s%s", i ? ", " : "", rows[i].name);
}

static void *pcre2_alloc(size_t n, void *user) {
  wr_pretok *p = user;
  void *ptr = wr_malloc(n);
  if (!ptr) atomic_store(&p->no_memory, true);
  return ptr;
}

static void pcre2_release(void *ptr, void *user) {
  (void)user;
  wr_free(ptr);
}

weir_status wr_pretok_open(const wr_pretok_row *row, wr_pretok *out) {
  out->row = row;
  out->memory = pcre2_general_context_create(pcre2_alloc, pcre2_release, out);
  pcre2_compile_context *cc = out->memory ? pcre2_compile_context_create(out->memory) : NULL;
  if (!cc) return wr_fail_nomem(1024, "the pre-tokenizer");
  weir_status st = WEIR_OK;
  atomic_store(&out->no_memory, false);
  for (int i = 0; i < WR_PRETOK_STAGES && row->stage[i] && st == WEIR_OK; i++) {
    int code;
    PCRE2_SIZE at;
    out->code[i] = pcre2_compile((PCRE2_SPTR)row->stage[i], PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &at, cc);
    if (out->code[i]) pcre2_jit_compile(out->code[i], PCRE2_JIT_COMPLETE); /* a refusal leaves the interpreter */
    if (atomic_load(&out->no_memory))
      st = wr_fail_nomem(4096, "a pre-tokenizer's pattern");
    else if (!out->code[i])
      st = wr_fail(WEIR_EFAIL, "pre-tokenizer '%s': PCRE2 refuses pattern %d at %zu (%d)", row->name, i, (size_t)at, code);
    out->n_stages = i + 1;
  }
  pcre2_compile_context_free(cc);
  return st;
}

void wr_pretok_close(wr_pretok *p) {
  for (int i = 0; i < p->n_stages; i++) pcre2_code_free(p->code[i]);
  pcre2_general_context_free(p->memory);
  *p = (wr_pretok){0};
}

weir_status wr_splitter_open(const wr_pretok *p, wr_splitter *out) {
  *out = (wr_splitter){p, pcre2_match_data_create(1, p->memory), pcre2_match_context_create(p->memory)};
  if (out->match && out->limits) {
    pcre2_set_heap_limit(out->limits, 16 * 1024); /* KiB; the rows need a few frames */
    return WEIR_OK;
  }
  wr_splitter_close(out);
  return wr_fail_nomem(1024, "matching");
}

void wr_splitter_close(wr_splitter *s) {
  pcre2_match_data_free(s->match);
  pcre2_match_context_free(s->limits);
  *s = (wr_splitter){0};
}

/* Valid UTF-8 only. */
static weir_status split_stage(const wr_splitter *s, int stage, const char *text, size_t n, wr_word_fn fn, void *user) {
  if (!n) return WEIR_OK;
  if (stage == s->pretok->n_stages) return fn(user, text, n);
  const PCRE2_SIZE *span = pcre2_get_ovector_pointer(s->match);
  for (size_t at = 0; at < n;) {
    int rc = pcre2_match(s->pretok->code[stage], (PCRE2_SPTR)text, n, at, PCRE2_NO_UTF_CHECK, s->match, s->limits);
    size_t from = span[0], to = span[1];
    if (rc == PCRE2_ERROR_NOMATCH)
      from = to = n;
    else if (rc == PCRE2_ERROR_NOMEMORY)
      return wr_fail_nomem(16 << 20, "matching");
    else if (rc < 0 || to <= from || from < at || to > n)
      return wr_fail(WEIR_EFAIL, "pre-tokenizer '%s': pattern %d fails at byte %zu of %zu (PCRE2 %d)", s->pretok->row->name,
                     stage, at, n, rc);
    /* the next stage overwrites the match, so both ends were copied */
    WR_TRY(split_stage(s, stage + 1, text + at, from - at, fn, user));
    WR_TRY(split_stage(s, stage + 1, text + from, to - from, fn, user));
    at = to;
  }
  return WEIR_OK;
}

weir_status wr_split_pcre(const wr_splitter *s, const char *text, size_t n, wr_word_fn fn, void *user) {
  pcre2_set_match_limit(s->limits, (uint32_t)WR_MIN(n * 4 + 1000, UINT32_MAX));
  while (n) {
    size_t valid = wr_utf8_valid(text, n), bad = valid;
    WR_TRY(split_stage(s, 0, text, valid, fn, user));
    while (bad < n && wr_utf8_valid(text + bad, WR_MIN(n - bad, 4)) == 0) bad++;
    if (bad > valid) WR_TRY(fn(user, text + valid, bad - valid));
    text += bad, n -= bad;
  }
  return WEIR_OK;
}

weir_status wr_split(const wr_splitter *s, const char *text, size_t n, wr_word_fn fn, void *user) {
  wr_word_rule *ascii = s->pretok->row->ascii;
  if (!ascii) return wr_split_pcre(s, text, n, fn, user);
  while (n) {
    size_t len = ascii((const uint8_t *)text, n);
    if (len) {
      WR_TRY(fn(user, text, len));
    } else {
      len = wr_word_break((const uint8_t *)text, n);
      WR_TRY(wr_split_pcre(s, text, len, fn, user));
    }
    text += len, n -= len;
  }
  return WEIR_OK;
}
