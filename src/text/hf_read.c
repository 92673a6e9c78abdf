/* hf_read.c: a tokenizer out of a tokenizer.json, the file of Hugging Face's tokenizers.
 *
 * Owns the judgement of the file: model BPE, byte-level or with Metaspace and byte fallback. Every id is checked before it sizes or
 * indexes anything; at most HOLES ids may be missing, and become tokens that nothing makes. Refused, by name: what would change ids
 * if it were passed over (hf_steps.c; dropout, affixes of subwords, added tokens that take blanks along), two tokens with one id, one
 * token with two. Text is bytes here and is never normalised, so a normalizer such as NFC is refused too. Truncation and padding are the
 * caller's business and are ignored.
 *
 * The file does not name the tokens that begin and end a text: they are those of its template, or what tokenizer_config.json
 * beside it says, or else the spellings of the table below.
 *
 * JSON is jansson's. Its object keys cannot hold a NUL, which a vocabulary may: such an escape is read as the noncharacter
 * U+FDD0 and turned back.
 *
 * Reference: the tokenizers library, tokenizers/src/models/bpe and tokenizers/src/tokenizer/added_vocabulary.rs.
 */
#include "text/hf_i.h"

#define MAX_FILE_BYTES ((size_t)256 << 20)
#define HOLES 1024u
#define HOLE_BYTES 16u              /* "[PAD16777215]" */
#define NUL_STAND_IN "\xef\xb7\x90" /* U+FDD0 */

typedef struct reader {
  json_t *root, *config;
  const json_t *model, *vocab, *added;
  bool nul;   /* NUL_STAND_IN stands for NUL */
  char *text; /* all spellings, then all merges */
  size_t used, text_bytes;
  wr_gguf_text *tokens, *merges;
  int32_t *types;
  size_t cap; /* ids are below */
  wr_vocab_source src;
} reader;

/* -------------------------------------------------------------------------------------------------------------------- JSON */

/* Is there an escape like \u0000? Every one becomes \ufdd0. */
static weir_status hide_nul(char *json, size_t n, bool *found) {
  bool stand_in = memmem(json, n, NUL_STAND_IN, 3) != NULL;
  for (size_t i = 0; i + 1 < n; i++) {
    if (json[i] != '\\') continue;
    if (json[i + 1] == 'u' && n - i >= 6) {
      if (strncasecmp(json + i + 2, "fdd0", 4) == 0) stand_in = true;
      if (memcmp(json + i + 2, "0000", 4) == 0) memcpy(json + i + 2, "fdd0", 4), *found = true;
    }
    i++;
  }
  return *found && stand_in ? wr_fail(WEIR_EUNSUPPORTED, "both NUL and U+FDD0 are in it, which cannot be told apart") : WEIR_OK;
}

static weir_status parse(const char *name, const char *bytes, size_t n, bool *nul, json_t **out) {
  json_error_t e;
  char *json = wr_strndup(bytes, n);
  if (!json) return wr_fail_nomem(n, name);
  weir_status st = hide_nul(json, n, nul);
  json_t *root = st == WEIR_OK ? json_loadb(json, n, JSON_REJECT_DUPLICATES, &e) : NULL;
  wr_free(json);
  if (st == WEIR_OK && !root)
    st = wr_fail(WEIR_EFORMAT, "line %d, column %d: %s", e.line, e.column, wr_escape(e.text, strlen(e.text)));
  if (root && !json_is_object(root)) {
    json_decref(root);
    st = wr_fail(WEIR_EFORMAT, "it is not a JSON object");
  }
  if (st == WEIR_OK) *out = root;
  return st;
}

/* Text of the file, kept in r->text, where there is room for all of it. */
static wr_gguf_text keep(reader *r, const char *s, size_t n) {
  char *to = r->text + r->used;
  size_t len = 0;
  while (n) {
    const char *at = r->nul ? memmem(s, n, NUL_STAND_IN, 3) : NULL;
    size_t part = at ? (size_t)(at - s) : n;
    memcpy(to + len, s, part);
    len += part, s += part, n -= part;
    if (at) to[len++] = 0, s += 3, n -= 3;
  }
  r->used += len;
  return (wr_gguf_text){to, len};
}

/* ------------------------------------------------------------------------------------------------------------------ tokens */

static const char *shown(const char *key) { return wr_escape(key, strlen(key)); }

static weir_status check_id(const reader *r, const char *token, const json_t *id) {
  if (!json_is_integer(id)) return wr_fail(WEIR_EFORMAT, "the id of token \"%s\" is not a whole number", shown(token));
  if (json_integer_value(id) >= 0 && (size_t)json_integer_value(id) < r->cap) return WEIR_OK;
  return wr_fail(WEIR_EFORMAT, "token \"%s\" has the id %lld, but there are %zu tokens", shown(token),
                 (long long)json_integer_value(id), json_object_size(r->vocab) + json_array_size(r->added));
}

static weir_status put_token(reader *r, size_t id, const char *token, size_t n, int32_t type) {
  if (r->tokens[id].ptr)
    return wr_fail(WEIR_EFORMAT, "token \"%s\" has the id %zu, which is that of \"%s\"", wr_escape(token, n), id,
                   wr_escape(r->tokens[id].ptr, r->tokens[id].len));
  r->tokens[id] = keep(r, token, n);
  r->types[id] = type;
  r->src.n_tokens = WR_MAX(r->src.n_tokens, id + 1);
  return WEIR_OK;
}

static weir_status read_vocab(reader *r, bool byte_fallback) {
  const char *key;
  size_t n;
  json_t *id;
  json_object_keylen_foreach((json_t *)r->vocab, key, n, id) {
    WR_TRY(check_id(r, key, id));
    WR_TRY(put_token(r, (size_t)json_integer_value(id), key, n, WR_TOKEN_NORMAL));
    size_t i = (size_t)json_integer_value(id);
    wr_token k = {.ptr = r->tokens[i].ptr, .len = (uint16_t)WR_MIN(r->tokens[i].len, 7u)};
    if (byte_fallback && wr_token_byte(&k) >= 0) r->types[i] = WR_TOKEN_BYTE;
  }
  return WEIR_OK;
}

static weir_status read_added(reader *r) {
  for (size_t i = 0; i < json_array_size(r->added); i++) {
    static const char *const taking[] = {"lstrip", "rstrip", "single_word"};
    const json_t *a = json_array_get(r->added, i), *id = json_object_get(a, "id"), *text = json_object_get(a, "content");
    const char *token = json_string_value(text);
    if (!token) return wr_fail(WEIR_EFORMAT, "added_tokens: entry %zu has no content", i);
    if (!*token) continue; /* nothing can be found of it */
    for (size_t k = 0; k < WR_ARRAY_LEN(taking); k++)
      if (json_is_true(json_object_get(a, taking[k])))
        return wr_fail(WEIR_EUNSUPPORTED, "added token \"%s\": %s is not supported", shown(token), taking[k]);
    WR_TRY(check_id(r, token, id));
    size_t at = (size_t)json_integer_value(id), n = json_string_length(text);
    int32_t type = json_is_true(json_object_get(a, "special")) ? WR_TOKEN_CONTROL : WR_TOKEN_USER_DEFINED;
    const json_t *known = json_object_getn(r->vocab, token, n);
    if (!known) {
      WR_TRY(put_token(r, at, token, n, type));
    } else if (json_integer_value(known) == json_integer_value(id)) {
      r->types[at] = type;
    } else {
      return wr_fail(WEIR_EFORMAT, "added token \"%s\" has the id %zu, but %lld in the vocabulary", shown(token), at,
                     (long long)json_integer_value(known));
    }
  }
  return WEIR_OK;
}

/* Ids that no token has get one that nothing makes. */
static weir_status fill_holes(reader *r) {
  size_t holes = 0;
  for (size_t i = 0; i < r->src.n_tokens; i++) {
    if (r->tokens[i].ptr) continue;
    if (++holes > HOLES) return wr_fail(WEIR_EFORMAT, "more than %u ids below %zu have no token", HOLES, r->src.n_tokens);
    char name[HOLE_BYTES];
    r->tokens[i] = keep(r, name, (size_t)snprintf(name, sizeof name, "[PAD%zu]", i));
    r->types[i] = WR_TOKEN_UNUSED;
  }
  return WEIR_OK;
}

static int64_t id_of(const reader *r, const char *token) {
  const json_t *id = token ? json_object_get(r->vocab, token) : NULL;
  for (size_t i = 0; token && !id && i < json_array_size(r->added); i++) {
    const char *content = wr_hf_text(json_array_get(r->added, i), "content");
    if (content && strcmp(content, token) == 0) id = json_object_get(json_array_get(r->added, i), "id");
  }
  return json_is_integer(id) ? json_integer_value(id) : WR_NO_TOKEN;
}

/* ------------------------------------------------------------------------------------------------------------------ merges */

static weir_status bad_merge(size_t i, const char *l, size_t n_left, const char *r, size_t n_right, const char *what) {
  return wr_fail(WEIR_EFORMAT, "merges: merge %zu, \"%s\" and \"%s\", %s", i, wr_escape(l, n_left), wr_escape(r, n_right),
                 what);
}

/* A merge with a space in a part happens to no text, in which spaces are spelled otherwise; it must be right all the same. */
static weir_status check_merge_of_spaces(const reader *r, size_t i, const char *l, size_t n_left, const char *s,
                                         size_t n_right) {
  wr_str both = {0};
  wr_str_put(&both, l, n_left);
  wr_str_put(&both, s, n_right);
  weir_status st = both.oom ? wr_fail_nomem(both.len, "merges") : WEIR_OK;
  if (st == WEIR_OK && (!json_object_getn(r->vocab, l, n_left) || !json_object_getn(r->vocab, s, n_right)))
    st = bad_merge(i, l, n_left, s, n_right, "names a token that is not in the vocabulary");
  else if (st == WEIR_OK && !json_object_getn(r->vocab, both.ptr, both.len))
    st = bad_merge(i, l, n_left, s, n_right, "makes a token that is not in the vocabulary");
  wr_str_free(&both);
  return st;
}

static weir_status read_merge(reader *r, size_t i, const json_t *m, bool split) {
  const char *l = json_string_value(m), *s;
  size_t n_left, n_right;
  if (l) {
    const char *gap = memchr(l, ' ', json_string_length(m));
    n_left = gap ? (size_t)(gap - l) : 0, n_right = gap ? json_string_length(m) - n_left - 1 : 0, s = gap ? gap + 1 : l;
    if (!n_left || !n_right || memchr(s, ' ', n_right))
      return wr_fail(WEIR_EFORMAT, "merges: merge %zu, \"%s\", is not two tokens with a space between them", i,
                     wr_escape(l, json_string_length(m)));
  } else {
    const json_t *a = json_array_get(m, 0), *b = json_array_get(m, 1);
    if (json_array_size(m) != 2 || !json_is_string(a) || !json_is_string(b) || !json_string_length(a) || !json_string_length(b))
      return wr_fail(WEIR_EFORMAT, "merges: merge %zu is not two tokens", i);
    l = json_string_value(a), n_left = json_string_length(a), s = json_string_value(b), n_right = json_string_length(b);
    if (memchr(l, ' ', n_left) || memchr(s, ' ', n_right)) return check_merge_of_spaces(r, i, l, n_left, s, n_right);
  }
  if (split && (memmem(s, n_right, WR_SPACE_MARK, 3) || memmem(l + 1, n_left - 1, WR_SPACE_MARK, 3)))
    return wr_fail(WEIR_EUNSUPPORTED, "merges: merge %zu, \"%s\" and \"%s\", joins words that the pre_tokenizer splits", i,
                   wr_escape(l, n_left), wr_escape(s, n_right));
  wr_gguf_text left = keep(r, l, n_left);
  r->text[r->used++] = ' ';
  wr_gguf_text right = keep(r, s, n_right);
  r->merges[r->src.n_merges++] = (wr_gguf_text){left.ptr, left.len + 1 + right.len};
  return WEIR_OK;
}

/* --------------------------------------------------------------------------------------------------------------- the file */

static const char *token_in_config(const reader *r, const char *key) { /* "…" or {"content": "…"} */
  const json_t *v = json_object_get(r->config, key);
  return json_is_object(v) ? wr_hf_text(v, "content") : json_string_value(v);
}

static int64_t first_of(const reader *r, const char *const *names, size_t n) {
  int64_t id = WR_NO_TOKEN;
  for (size_t i = 0; id == WR_NO_TOKEN && i < n; i++) id = id_of(r, names[i]);
  return id;
}

static weir_status read_special(reader *r) {
  static const char *const begins[] = {"<|begin_of_text|>", "<s>", "<bos>", "<|endoftext|>"};
  static const char *const ends[] = {"<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "<|im_end|>"};
  wr_vocab_source *s = &r->src;
  int64_t before = WR_NO_TOKEN, after = WR_NO_TOKEN;
  WR_TRY(wr_hf_template(json_object_get(r->root, "post_processor"), &before, &after));
  s->add_bos = before != WR_NO_TOKEN, s->add_eos = after != WR_NO_TOKEN;
  s->bos_id = s->add_bos ? before : id_of(r, token_in_config(r, "bos_token"));
  s->eos_id = s->add_eos ? after : id_of(r, token_in_config(r, "eos_token"));
  if (s->bos_id == WR_NO_TOKEN && !r->config) s->bos_id = first_of(r, begins, WR_ARRAY_LEN(begins));
  if (s->eos_id == WR_NO_TOKEN && !r->config) s->eos_id = first_of(r, ends, WR_ARRAY_LEN(ends));
  s->pad_id = id_of(r, token_in_config(r, "pad_token"));
  s->unk_id = id_of(r, wr_hf_text(r->model, "unk_token"));
  if (s->unk_id >= 0 && (size_t)s->unk_id < s->n_tokens && r->types[s->unk_id] != WR_TOKEN_CONTROL)
    r->types[s->unk_id] = WR_TOKEN_UNKNOWN;
  return WEIR_OK;
}

static weir_status check_model(const reader *r) {
  static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
  const char *type = wr_hf_text(r->model, "type");
  if (!json_is_object(r->model)) return wr_fail(WEIR_EFORMAT, "it has no model");
  if (type && strcmp(type, "BPE") != 0) return wr_fail(WEIR_EUNSUPPORTED, "the model is '%s'; BPE is supported", shown(type));
  if (!json_is_object(r->vocab)) return wr_fail(WEIR_EFORMAT, "model.vocab is not an object of tokens and ids");
  if (!json_is_array(json_object_get(r->model, "merges"))) return wr_fail(WEIR_EFORMAT, "model.merges is not a list");
  if (json_number_value(json_object_get(r->model, "dropout")) != 0)
    return wr_fail(WEIR_EUNSUPPORTED, "model.dropout is not 0, so the ids would be random");
  for (size_t i = 0; i < WR_ARRAY_LEN(affixes); i++) {
    const char *affix = wr_hf_text(r->model, affixes[i]);
    if (affix && *affix)
      return wr_fail(WEIR_EUNSUPPORTED, "model.%s is '%s', which is not supported", affixes[i], shown(affix));
  }
  if (!wr_hf_absent(r->added) && !json_is_array(r->added)) return wr_fail(WEIR_EFORMAT, "added_tokens is not a list");
  return WEIR_OK;
}

/* Bytes of all spellings and merges, so that r->text never moves. */
static size_t bytes_of(const reader *r) {
  size_t bytes = HOLE_BYTES * HOLES;
  const char *key;
  size_t n, i;
  json_t *v;
  json_object_keylen_foreach((json_t *)r->vocab, key, n, v) bytes += n;
  json_array_foreach(r->added, i, v) bytes += json_string_length(json_object_get(v, "content"));
  json_array_foreach(json_object_get(r->model, "merges"), i, v) bytes +=
      1 + json_string_length(v) + json_string_length(json_array_get(v, 0)) + json_string_length(json_array_get(v, 1));
  return bytes;
}

static weir_status read_all(reader *r) {
  r->model = json_object_get(r->root, "model");
  r->vocab = json_object_get(r->model, "vocab");
  r->added = json_object_get(r->root, "added_tokens");
  WR_TRY(check_model(r));
  const wr_hf_row *row;
  bool ignore_merges = json_is_true(json_object_get(r->model, "ignore_merges"));
  WR_TRY(wr_hf_row_of(json_object_get(r->root, "normalizer"), json_object_get(r->root, "pre_tokenizer"), ignore_merges, &row));
  bool metaspace = strcmp(row->model, "metaspace") == 0, split = strstr(row->pre_tokenizer, " split") != NULL;

  const json_t *merges = json_object_get(r->model, "merges");
  size_t count = json_object_size(r->vocab) + json_array_size(r->added), n_merges = json_array_size(merges);
  if (count > WR_TEXT_MAX_TOKENS)
    return wr_fail(WEIR_EUNSUPPORTED, "the vocabulary has %zu tokens; at most %u are supported", count, WR_TEXT_MAX_TOKENS);
  r->cap = count + HOLES;
  r->text_bytes = bytes_of(r);
  r->text = wr_malloc(r->text_bytes);
  r->tokens = wr_calloc(r->cap, sizeof *r->tokens);
  r->types = wr_calloc(r->cap, sizeof *r->types);
  r->merges = wr_calloc(n_merges + 1, sizeof *r->merges);
  if (!r->text || !r->tokens || !r->types || !r->merges) return wr_fail_nomem(r->text_bytes, "a vocabulary");

  WR_TRY(read_vocab(r, metaspace && json_is_true(json_object_get(r->model, "byte_fallback"))));
  WR_TRY(read_added(r));
  for (size_t i = 0; i < n_merges; i++) WR_TRY(read_merge(r, i, json_array_get(merges, i), split));
  WR_TRY(read_special(r));
  WR_TRY(fill_holes(r));
  wr_vocab_source *s = &r->src;
  s->model = (wr_gguf_text){row->model, strlen(row->model)};
  if (metaspace)
    s->prefix = (wr_gguf_text){row->name, strlen(row->name)};
  else
    s->pre = (wr_gguf_text){row->name, strlen(row->name)};
  s->tokens = r->tokens, s->types = r->types, s->n_types = s->n_tokens, s->merges = r->merges;
  return WEIR_OK;
}

static weir_status open_json(const char *name, const char *json, size_t n, const char *config, size_t n_config,
                             wr_tokenizer **out) {
  reader r = {0};
  bool ignored = false;
  wr_vocab_source_init(&r.src);
  weir_status st = parse(name, json, n, &r.nul, &r.root);
  if (st == WEIR_OK && config) {
    st = parse("tokenizer_config.json", config, n_config, &ignored, &r.config);
    if (st != WEIR_OK) wr_fail_prefix(st, "tokenizer_config.json beside it: ");
  }
  if (st == WEIR_OK) st = read_all(&r);
  if (st == WEIR_OK) st = wr_tokenizer_open(&r.src, out);
  if (st == WEIR_OK) (*out)->text = r.text, r.text = NULL;
  json_decref(r.root);
  json_decref(r.config);
  wr_free(r.text);
  wr_free(r.tokens);
  wr_free(r.types);
  wr_free(r.merges);
  return st == WEIR_OK ? st : wr_fail_prefix(st, "%s: ", name);
}

weir_status wr_tokenizer_open_json_memory(const void *json, size_t n, const char *name, wr_tokenizer **out) {
  return open_json(name, json, n, NULL, 0, out);
}

weir_status wr_tokenizer_open_json(const char *path, wr_tokenizer **out) {
  static const char beside[] = "tokenizer_config.json";
  char *json = NULL, *config = NULL;
  size_t n = 0, n_config = 0;
  WR_TRY(wr_file_read(path, MAX_FILE_BYTES, &json, &n));
  const char *slash = strrchr(path, '/');
  wr_str config_path = {0};
  wr_str_put(&config_path, path, slash ? (size_t)(slash + 1 - path) : 0);
  wr_str_puts(&config_path, beside);
  weir_status st = config_path.oom ? wr_fail_nomem(config_path.len, "a path") : WEIR_OK;
  FILE *there = st == WEIR_OK ? fopen(config_path.ptr, "r") : NULL;
  if (there) {
    fclose(there);
    st = wr_file_read(config_path.ptr, MAX_FILE_BYTES, &config, &n_config);
  }
  if (st == WEIR_OK) st = open_json(path, json, n, config, n_config, out);
  wr_str_free(&config_path);
  wr_free(json);
  wr_free(config);
  return st;
}
