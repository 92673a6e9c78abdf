/* hf_steps.c: the steps of a tokenizer.json around its model: normalizer, pre_tokenizer, post_processor.
 *
 * Owns the table hf_pretok.def. Each step is spelled as a short text and the whole is looked up, so a step is known in exactly the
 * settings that the table has. Refuses by name what it does not know: a step that is passed over changes ids in silence.
 */
#include "text/hf_i.h"

static const wr_hf_row rows[] = {
#define X(model, name, normalizer, pre_tokenizer) {model, name, normalizer, pre_tokenizer},
#include "text/hf_pretok.def"
#undef X
};

const wr_hf_row *wr_hf_row_named(const char *model, const char *name) {
  for (size_t i = 0; i < WR_ARRAY_LEN(rows); i++)
    if (strcmp(rows[i].model, model) == 0 && strcmp(rows[i].name, name) == 0) return &rows[i];
  return NULL;
}

static weir_status unknown(const char *what, const char *type) {
  if (!type) return wr_fail(WEIR_EFORMAT, "%s has no type", what);
  return wr_fail(WEIR_EUNSUPPORTED, "%s '%s' is not supported", what, wr_escape(type, strlen(type)));
}

static bool flag(const json_t *step, const char *key, bool absent) {
  const json_t *v = json_object_get(step, key);
  return wr_hf_absent(v) ? absent : json_is_true(v);
}

/* A Split or Replace by one string or one regular expression. */
static const char *pattern(const json_t *step, const char *kind) { return wr_hf_text(json_object_get(step, "pattern"), kind); }

static weir_status spell_normalizer(const json_t *step, const char *type, wr_str *out) {
  const char *prepend = wr_hf_text(step, "prepend"), *content = wr_hf_text(step, "content"), *from = pattern(step, "String");
  if (strcmp(type, "NFC") == 0)
    wr_str_puts(out, "NFC()");
  else if (strcmp(type, "Prepend") == 0 && prepend)
    wr_str_printf(out, "Prepend(%s)", prepend);
  else if (strcmp(type, "Replace") == 0 && from && content)
    wr_str_printf(out, "Replace(%s%s)", from, content);
  else
    return unknown("normalizer", type);
  return WEIR_OK;
}

static weir_status spell_pre_tokenizer(const json_t *step, const char *type, wr_str *out) {
  const char *regex = pattern(step, "Regex"), *behavior = wr_hf_text(step, "behavior"), *mark = wr_hf_text(step, "replacement");
  const char *scheme = wr_hf_text(step, "prepend_scheme");
  if (strcmp(type, "ByteLevel") == 0)
    wr_str_printf(out, "ByteLevel(%s%s)", flag(step, "add_prefix_space", true) ? "add_prefix_space " : "",
                  flag(step, "use_regex", true) ? "regex" : "");
  else if (strcmp(type, "Split") == 0 && regex && behavior && strcmp(behavior, "Isolated") == 0 && !flag(step, "invert", false))
    wr_str_printf(out, "Split(%s)", regex);
  else if (strcmp(type, "Digits") == 0 && flag(step, "individual_digits", false))
    wr_str_puts(out, "Digits(individual)");
  else if (strcmp(type, "Metaspace") == 0 && mark && strcmp(mark, WR_SPACE_MARK) == 0)
    wr_str_printf(out, "Metaspace(%s%s)",
                  scheme                                 ? scheme
                  : flag(step, "add_prefix_space", true) ? "always"
                                                         : "never",
                  flag(step, "split", true) ? " split" : "");
  else
    return unknown("pre_tokenizer", type);
  return WEIR_OK;
}

typedef weir_status spell_fn(const json_t *step, const char *type, wr_str *out);

/* `step`, or the steps of a sequence, as one text. */
static weir_status spell(const char *what, const json_t *step, const char *list, spell_fn *one, wr_str *out) {
  const char *type = wr_hf_text(step, "type");
  if (wr_hf_absent(step)) return WEIR_OK;
  if (!type) return unknown(what, NULL);
  if (strcmp(type, "Sequence") != 0) {
    if (out->len) wr_str_puts(out, "; ");
    return one(step, type, out);
  }
  const json_t *steps = json_object_get(step, list);
  if (!json_is_array(steps)) return wr_fail(WEIR_EFORMAT, "%s: a sequence without %s", what, list);
  for (size_t i = 0; i < json_array_size(steps); i++) {
    const json_t *s = json_array_get(steps, i);
    const char *t = wr_hf_text(s, "type");
    if (!t || strcmp(t, "Sequence") == 0) return unknown(what, t);
    WR_TRY(spell(what, s, list, one, out));
  }
  return WEIR_OK;
}

static bool ignores_merges(const wr_hf_row *row) {
  const wr_pretok_row *pretok = wr_pretok_find((wr_gguf_text){row->name, strlen(row->name)});
  return pretok && pretok->ignore_merges;
}

static weir_status find_row(const wr_str *normalizer, const wr_str *pre_tokenizer, bool ignore_merges, const wr_hf_row **out) {
  if (normalizer->oom || pre_tokenizer->oom) return wr_fail_nomem(64, "a tokenizer");
  const char *n = normalizer->len ? normalizer->ptr : "", *p = pre_tokenizer->len ? pre_tokenizer->ptr : "";
  bool there = false;
  for (size_t i = 0; i < WR_ARRAY_LEN(rows); i++) {
    if (strcmp(rows[i].normalizer, n) != 0 || strcmp(rows[i].pre_tokenizer, p) != 0) continue;
    there = true;
    if (ignores_merges(&rows[i]) == ignore_merges) return *out = &rows[i], WEIR_OK;
  }
  if (there)
    return wr_fail(WEIR_EUNSUPPORTED, "ignore_merges %s is not supported with the pre_tokenizer %s",
                   ignore_merges ? "true" : "false", wr_escape(p, strlen(p)));
  return wr_fail(WEIR_EUNSUPPORTED, "the normalizer '%s' with the pre_tokenizer '%s' is none that weir knows",
                 wr_escape(n, normalizer->len), wr_escape(p, pre_tokenizer->len));
}

weir_status wr_hf_row_of(const json_t *normalizer, const json_t *pre_tokenizer, bool ignore_merges, const wr_hf_row **out) {
  wr_str n = {0}, p = {0};
  weir_status st = spell("normalizer", normalizer, "normalizers", spell_normalizer, &n);
  if (st == WEIR_OK) st = spell("pre_tokenizer", pre_tokenizer, "pretokenizers", spell_pre_tokenizer, &p);
  if (st == WEIR_OK) st = find_row(&n, &p, ignore_merges, out);
  wr_str_free(&n);
  wr_str_free(&p);
  return st;
}

/* ---------------------------------------------------------------------------------------------------------- post_processor */

/* The one id that a template's special token stands for. */
static weir_status template_id(const json_t *processor, const char *name, int64_t *id) {
  const json_t *ids = name ? json_object_get(json_object_get(json_object_get(processor, "special_tokens"), name), "ids") : NULL;
  if (json_array_size(ids) != 1 || !json_is_integer(json_array_get(ids, 0)))
    return wr_fail(WEIR_EUNSUPPORTED, "post_processor: the special token '%s' is not one id",
                   name ? wr_escape(name, strlen(name)) : "");
  *id = json_integer_value(json_array_get(ids, 0));
  return WEIR_OK;
}

static weir_status read_template(const json_t *processor, int64_t *before, int64_t *after) {
  const json_t *single = json_object_get(processor, "single");
  bool text = false;
  for (size_t i = 0; i < json_array_size(single); i++) {
    const json_t *piece = json_array_get(single, i), *token = json_object_get(piece, "SpecialToken");
    int64_t *at = text ? after : before;
    if (json_object_get(piece, "Sequence") && !text)
      text = true;
    else if (token && *at == WR_NO_TOKEN)
      WR_TRY(template_id(processor, wr_hf_text(token, "id"), at));
    else
      return wr_fail(WEIR_EUNSUPPORTED,
                     "post_processor: only one special token before the text and one after it are supported");
  }
  return text ? WEIR_OK : wr_fail(WEIR_EFORMAT, "post_processor: a template without the text");
}

weir_status wr_hf_template(const json_t *processor, int64_t *before, int64_t *after) {
  const char *type = wr_hf_text(processor, "type");
  if (wr_hf_absent(processor)) return WEIR_OK;
  if (!type) return unknown("post_processor", NULL);
  if (strcmp(type, "ByteLevel") == 0) return WEIR_OK; /* offsets only */
  if (strcmp(type, "TemplateProcessing") == 0) return read_template(processor, before, after);
  if (strcmp(type, "Sequence") != 0) return unknown("post_processor", type);
  const json_t *steps = json_object_get(processor, "processors");
  for (size_t i = 0; i < json_array_size(steps); i++) {
    const json_t *s = json_array_get(steps, i);
    const char *t = wr_hf_text(s, "type");
    if (!t || strcmp(t, "Sequence") == 0) return unknown("post_processor", t);
    WR_TRY(wr_hf_template(s, before, after));
  }
  return WEIR_OK;
}
