/* hf_write.c: a byte-level BPE tokenizer as a tokenizer.json that Hugging Face's tokenizers load, with the same ids.
 *
 * Owns the form of the file. All tokens stand in model.vocab, special ones in added_tokens as well, which is how the library itself
 * writes what it trained: it then takes the ids from the vocabulary. Merges are strings, which every version reads.
 * Refuses what the form cannot say: SentencePiece's scores, a pre-tokenizer of llama.cpp's own, two tokens of one spelling, spellings
 * that are not UTF-8. What begins and ends a text is not in the form; special tokens that are added to every text are.
 */
#include "text/hf_i.h"

#include <strings.h>

static void put_token(wr_str *o, const wr_tokenizer *t, int32_t id) { wr_str_json(o, t->tokens[id].ptr, t->tokens[id].len); }

static const char *yes(bool b) { return b ? "true" : "false"; }

static void put_byte_level(wr_str *o, bool prefix, bool regex) {
  wr_str_printf(o, "{\"type\":\"ByteLevel\",\"add_prefix_space\":%s,\"trim_offsets\":true,\"use_regex\":%s}", yes(prefix),
                yes(regex));
}

/* From the row's own spelling: "Split(REGEX); ByteLevel()", "Digits(individual); ByteLevel(regex)", "ByteLevel(regex)". */
static void put_pre_tokenizer(wr_str *o, const char *steps) {
  const char *last = strstr(steps, "ByteLevel("), *split = "Split(";
  bool regex = strcmp(last, "ByteLevel(regex)") == 0;
  if (last == steps) return put_byte_level(o, false, regex);
  wr_str_puts(o, "{\"type\":\"Sequence\",\"pretokenizers\":[");
  if (strncmp(steps, split, strlen(split)) == 0) {
    wr_str_puts(o, "{\"type\":\"Split\",\"pattern\":{\"Regex\":");
    wr_str_json(o, steps + strlen(split), (size_t)(last - steps) - strlen(split) - strlen("); "));
    wr_str_puts(o, "},\"behavior\":\"Isolated\",\"invert\":false},");
  } else {
    wr_str_puts(o, "{\"type\":\"Digits\",\"individual_digits\":true},");
  }
  put_byte_level(o, false, regex);
  wr_str_puts(o, "]}");
}

static void put_added(wr_str *o, const wr_tokenizer *t) {
  bool first = true;
  for (uint32_t i = 0; i < t->n; i++) {
    const wr_token *k = &t->tokens[i];
    if (!wr_token_is_special(k->type) || !k->len) continue;
    wr_str_printf(o, "%s\n    {\"id\":%u,\"content\":", first ? "" : ",", i);
    put_token(o, t, (int32_t)i);
    wr_str_printf(o, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":%s}",
                  yes(k->type != WR_TOKEN_USER_DEFINED));
    first = false;
  }
}

static void put_template(wr_str *o, const wr_tokenizer *t) {
  const wr_special_ids *s = &t->special;
  const int32_t before = s->add_bos ? s->bos : WR_NO_TOKEN, after = s->add_eos ? s->eos : WR_NO_TOKEN;
  const int32_t ids[] = {before, after};
  if (before == WR_NO_TOKEN && after == WR_NO_TOKEN) {
    wr_str_puts(o, "null");
    return;
  }
  wr_str_puts(o, "{\"type\":\"TemplateProcessing\"");
  for (int pair = 0; pair < 2; pair++) {
    const char *gap = "";
    wr_str_printf(o, ",\"%s\":[", pair ? "pair" : "single");
    for (int part = 0; part <= pair; part++) {
      for (int at = 0; at < 3; at++) {
        if (at == 1) {
          wr_str_printf(o, "%s{\"Sequence\":{\"id\":\"%s\",\"type_id\":%d}}", gap, part ? "B" : "A", part);
        } else if (ids[at / 2] != WR_NO_TOKEN) {
          wr_str_printf(o, "%s{\"SpecialToken\":{\"id\":", gap);
          put_token(o, t, ids[at / 2]);
          wr_str_printf(o, ",\"type_id\":%d}}", part);
        } else {
          continue;
        }
        gap = ",";
      }
    }
    wr_str_puts(o, "]");
  }
  wr_str_puts(o, ",\"special_tokens\":{");
  for (int i = 0; i < 2; i++) {
    if (ids[i] == WR_NO_TOKEN || (i && ids[1] == ids[0])) continue;
    if (i && ids[0] != WR_NO_TOKEN) wr_str_puts(o, ",");
    put_token(o, t, ids[i]);
    wr_str_puts(o, ":{\"id\":");
    put_token(o, t, ids[i]);
    wr_str_printf(o, ",\"ids\":[%d],\"tokens\":[", ids[i]);
    put_token(o, t, ids[i]);
    wr_str_puts(o, "]}");
  }
  wr_str_puts(o, "}}");
}

static weir_status put_model(wr_str *o, const wr_tokenizer *t) {
  const wr_pair_slot **pairs;
  wr_str both = {0};
  WR_TRY(wr_pairs_sorted(t, &pairs));
  wr_str_printf(o,
                "{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"
                "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":%s,\n    \"vocab\":{",
                yes(t->pretok.row->ignore_merges));
  for (uint32_t i = 0; i < t->n; i++) {
    wr_str_puts(o, i ? ",\n      " : "\n      ");
    put_token(o, t, (int32_t)i);
    wr_str_printf(o, ":%u", i);
  }
  wr_str_puts(o, "\n    },\n    \"merges\":[");
  for (uint32_t i = 0; i < t->n_pairs; i++) {
    const wr_token *l = &t->tokens[pairs[i]->left], *r = &t->tokens[pairs[i]->right];
    wr_str_clear(&both);
    wr_str_put(&both, l->ptr, l->len);
    wr_str_puts(&both, " ");
    wr_str_put(&both, r->ptr, r->len);
    wr_str_puts(o, i ? ",\n      " : "\n      ");
    wr_str_json(o, both.ptr, both.len);
  }
  wr_str_puts(o, "\n    ]}");
  o->oom |= both.oom;
  wr_str_free(&both);
  wr_free(pairs);
  return WEIR_OK;
}

static weir_status check(const wr_tokenizer *t, const wr_hf_row *row) {
  if (t->kind != WR_TEXT_BPE)
    return wr_fail(WEIR_EUNSUPPORTED, "a tokenizer '%s' cannot be written as tokenizer.json; name a file that ends in .gguf",
                   t->name);
  if (!row)
    return wr_fail(WEIR_EUNSUPPORTED, "tokenizer.json has no form for the pre-tokenizer '%s'; name a file that ends in .gguf",
                   t->pretok.row->name);
  for (uint32_t i = 0; i < t->n; i++) {
    const wr_token *k = &t->tokens[i];
    int32_t first = wr_token_find(t, k->ptr, k->len);
    if (wr_utf8_valid(k->ptr, k->len) != k->len)
      return wr_fail(WEIR_EUNSUPPORTED, "token %u, \"%s\", is not UTF-8, as tokenizer.json must be", i,
                     wr_escape(k->ptr, k->len));
    if (!k->len || (first != WR_NO_TOKEN && (uint32_t)first != i))
      return wr_fail(WEIR_EUNSUPPORTED, "token %u, \"%s\", %s, which tokenizer.json cannot say", i, wr_escape(k->ptr, k->len),
                     k->len ? "is spelled like another" : "is empty");
  }
  return WEIR_OK;
}

static weir_status write_json(const wr_tokenizer *t, wr_str *o) {
  const wr_hf_row *row = t->kind == WR_TEXT_BPE ? wr_hf_row_named("gpt2", t->pretok.row->name) : NULL;
  WR_TRY(check(t, row));
  wr_str_puts(o, "{\n  \"version\":\"1.0\",\n  \"truncation\":null,\n  \"padding\":null,\n  \"added_tokens\":[");
  put_added(o, t);
  wr_str_puts(o, "\n  ],\n  \"normalizer\":null,\n  \"pre_tokenizer\":");
  put_pre_tokenizer(o, row->pre_tokenizer);
  wr_str_puts(o, ",\n  \"post_processor\":");
  put_template(o, t);
  wr_str_puts(o, ",\n  \"decoder\":");
  put_byte_level(o, true, true);
  wr_str_puts(o, ",\n  \"model\":");
  WR_TRY(put_model(o, t));
  wr_str_puts(o, "\n}\n");
  return o->oom ? wr_fail_nomem(o->len, "tokenizer.json") : WEIR_OK;
}

static weir_status save_json(const wr_tokenizer *t, const char *path) {
  wr_str o = {0};
  weir_status st = write_json(t, &o);
  if (st == WEIR_OK)
    st = wr_file_write_atomic(path, o.ptr, o.len);
  else
    wr_fail_prefix(st, "%s: ", path);
  wr_str_free(&o);
  return st;
}

static weir_status save_gguf(const wr_tokenizer *t, const char *path) {
  const char *arch = t->kind == WR_TEXT_BPE ? "gpt2" : "llama"; /* llama.cpp reads no vocabulary without one */
  wr_gguf_writer *w;
  WR_TRY(wr_gguf_writer_open(path, 0, &w));
  weir_status st = wr_gguf_put_text(w, "general.architecture", arch, strlen(arch));
  if (st == WEIR_OK) st = wr_vocab_put_gguf(t, w);
  if (st == WEIR_OK) st = wr_gguf_writer_finish(w);
  wr_gguf_writer_close(w);
  return st;
}

weir_status wr_tokenizer_save(const wr_tokenizer *t, const char *path) {
  size_t n = strlen(path);
  if (n > 5 && strcasecmp(path + n - 5, ".json") == 0) return save_json(t, path);
  if (n > 5 && strcasecmp(path + n - 5, ".gguf") == 0) return save_gguf(t, path);
  return wr_fail(WEIR_EUSAGE, "%s: a tokenizer is saved as .gguf or .json; end the name so", path);
}
