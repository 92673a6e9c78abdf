/* hf_i.h: what the readers and the writer of tokenizer.json share. */
#ifndef WR_HF_I_H
#define WR_HF_I_H

#include <jansson.h>

#include "text/text_i.h"

/* ---- hf_steps.c */
typedef struct wr_hf_row {
  const char *model, *name, *normalizer, *pre_tokenizer;
} wr_hf_row;
/* The row of these two objects (NULL or a JSON null: absent). EUNSUPPORTED, by name, for what is in no row. */
weir_status wr_hf_row_of(const json_t *normalizer, const json_t *pre_tokenizer, bool ignore_merges, const wr_hf_row **out);
const wr_hf_row *wr_hf_row_named(const char *model, const char *name); /* NULL: none */

/* What a post_processor adds before and after a text. Ids, or WR_NO_TOKEN. */
weir_status wr_hf_template(const json_t *post_processor, int64_t *before, int64_t *after);

/* The member `key` if it is a string, else NULL. */
static inline const char *wr_hf_text(const json_t *object, const char *key) { return json_string_value(json_object_get(object, key)); }
static inline bool wr_hf_absent(const json_t *v) { return !v || json_is_null(v); }

#endif
