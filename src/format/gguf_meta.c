/* Metadata of an open GGUF file: typed look-up, and arrays.
 *
 * Owns: the sentences about missing, mistyped and out-of-range values. Refuses: silent conversion; an integer key may have any
 * integer type, a float key either float type, and nothing else.
 */
#include "format/format_i.h"

#include <inttypes.h>

void wr_gguf_metas_free(wr_gguf_metas *m) {
  wr_gguf_table_free(&m->table);
  wr_free(m->at);
  *m = (wr_gguf_metas){0};
}

const wr_gguf_meta *wr_gguf_metas_find(const wr_gguf_metas *m, const char *key) {
  size_t i = wr_gguf_table_find(&m->table, m->at, wr_gguf_meta_name, key, strlen(key));
  return i == SIZE_MAX ? NULL : &m->at[i];
}

size_t wr_gguf_n_meta(const wr_gguf *g) { return g->meta.n; }
const wr_gguf_meta *wr_gguf_meta_at(const wr_gguf *g, size_t i) { return &g->meta.at[i]; }
const wr_gguf_meta *wr_gguf_find(const wr_gguf *g, const char *key) { return wr_gguf_metas_find(&g->meta, key); }

/* What stands there, for a sentence: "the uint32 7", "the string 'x'", "an array of 3 float32" */
static const char *found_text(char out[192], const wr_gguf_meta *m) {
  const char *type = wr_gguf_value_name(m->type);
  if (wr_gguf_is_unsigned(m->type))
    snprintf(out, 192, "the %s %" PRIu64, type, m->v.u);
  else if (wr_gguf_is_signed(m->type))
    snprintf(out, 192, "the %s %" PRId64, type, m->v.i);
  else if (m->type == WR_GGUF_VALUE_BOOL)
    snprintf(out, 192, "the bool %s", m->v.b ? "true" : "false");
  else if (m->type == WR_GGUF_VALUE_STRING)
    snprintf(out, 192, "the string '%s'", wr_escape(m->v.text.ptr, m->v.text.len));
  else if (m->type == WR_GGUF_VALUE_ARRAY)
    snprintf(out, 192, "an array of %" PRIu64 " %s", m->v.array.count, wr_gguf_value_name(m->v.array.type));
  else
    snprintf(out, 192, "the %s %g", type, m->v.f);
  return out;
}

static weir_status missing(const char *path, const char *key, const char *wanted) {
  return wr_fail(WEIR_EFORMAT, "%s: metadata key '%s' is missing (wanted %s)", wr_shown(path), wr_shown(key), wanted);
}

static weir_status mismatch(const char *path, const char *key, const wr_gguf_meta *m, const char *wanted) {
  char found[192];
  return wr_fail(WEIR_EFORMAT, "%s: metadata key '%s' is %s, wanted %s", wr_shown(path), wr_shown(key), found_text(found, m),
                 wanted);
}

weir_status wr_gguf_metas_int(const wr_gguf_metas *metas, const char *path, const char *key, bool required, int64_t min,
                              int64_t max, int64_t *out) {
  const wr_gguf_meta *m = wr_gguf_metas_find(metas, key);
  if (!m) return required ? missing(path, key, "an integer") : WEIR_OK;
  bool positive = wr_gguf_is_unsigned(m->type);
  if (!positive && !wr_gguf_is_signed(m->type)) return mismatch(path, key, m, "an integer");
  if ((positive && m->v.u > INT64_MAX) || m->v.i < min || m->v.i > max) {
    char wanted[64];
    if (max == INT64_MAX)
      snprintf(wanted, sizeof wanted, "%" PRId64 " or more", min);
    else
      snprintf(wanted, sizeof wanted, "%" PRId64 " to %" PRId64, min, max);
    return mismatch(path, key, m, wanted);
  }
  *out = m->v.i;
  return WEIR_OK;
}

weir_status wr_gguf_get_int(const wr_gguf *g, const char *key, bool required, int64_t min, int64_t max, int64_t *out) {
  return wr_gguf_metas_int(&g->meta, wr_gguf_path(g), key, required, min, max, out);
}

/* *m is NULL when the key is absent and need not be there. */
static weir_status find(const wr_gguf *g, const char *key, bool required, const char *wanted, const wr_gguf_meta **m) {
  *m = wr_gguf_find(g, key);
  return *m || !required ? WEIR_OK : missing(wr_gguf_path(g), key, wanted);
}

weir_status wr_gguf_get_float(const wr_gguf *g, const char *key, bool required, double *out) {
  const wr_gguf_meta *m;
  WR_TRY(find(g, key, required, "a float", &m));
  if (!m) return WEIR_OK;
  if (m->type != WR_GGUF_VALUE_F32 && m->type != WR_GGUF_VALUE_F64) return mismatch(wr_gguf_path(g), key, m, "a float");
  *out = m->v.f;
  return WEIR_OK;
}

weir_status wr_gguf_get_bool(const wr_gguf *g, const char *key, bool required, bool *out) {
  const wr_gguf_meta *m;
  WR_TRY(find(g, key, required, "a bool", &m));
  if (!m) return WEIR_OK;
  if (m->type != WR_GGUF_VALUE_BOOL) return mismatch(wr_gguf_path(g), key, m, "a bool");
  *out = m->v.b;
  return WEIR_OK;
}

weir_status wr_gguf_get_text(const wr_gguf *g, const char *key, bool required, wr_gguf_text *out) {
  const wr_gguf_meta *m;
  WR_TRY(find(g, key, required, "a string", &m));
  if (!m) return WEIR_OK;
  if (m->type != WR_GGUF_VALUE_STRING) return mismatch(wr_gguf_path(g), key, m, "a string");
  *out = m->v.text;
  return WEIR_OK;
}

weir_status wr_gguf_get_array(const wr_gguf *g, const char *key, bool required, wr_gguf_value_type type, wr_gguf_array *out) {
  const wr_gguf_meta *m;
  char wanted[64];
  snprintf(wanted, sizeof wanted, "an array of %s", wr_gguf_value_name(type));
  WR_TRY(find(g, key, required, wanted, &m));
  if (!m) return WEIR_OK;
  if (m->type != WR_GGUF_VALUE_ARRAY || m->v.array.type != type) return mismatch(wr_gguf_path(g), key, m, wanted);
  *out = m->v.array;
  return WEIR_OK;
}

/* ---- arrays. Their ranges were checked when the file was opened, so reading needs no checks. */

bool wr_gguf_array_next(const wr_gguf_array *a, const uint8_t **at, wr_gguf_text *out) {
  const uint8_t *p = *at ? *at : a->ptr;
  uint64_t n;
  if (a->type != WR_GGUF_VALUE_STRING || p == a->ptr + a->bytes) return false;
  memcpy(&n, p, sizeof n);
  *out = (wr_gguf_text){(const char *)p + sizeof n, (size_t)n};
  *at = p + sizeof n + n;
  return true;
}

weir_status wr_gguf_array_texts(const wr_gguf_array *a, wr_gguf_text **out) {
  size_t i = 0, count = a->type == WR_GGUF_VALUE_STRING ? (size_t)a->count : 0;
  wr_gguf_text *texts = wr_calloc(WR_MAX(count, (size_t)1), sizeof *texts);
  if (!texts) return wr_fail_nomem(count * sizeof *texts, "an index of strings");
  for (const uint8_t *at = NULL; i < count; i++) wr_gguf_array_next(a, &at, &texts[i]);
  *out = texts;
  return WEIR_OK;
}

int64_t wr_gguf_array_int(const wr_gguf_array *a, uint64_t i) {
  size_t bytes = wr_gguf_value_bytes(a->type);
  uint64_t u = 0;
  if (bytes == 0) return 0;
  memcpy(&u, a->ptr + i * bytes, bytes);
  /* Little-endian, so the low bytes are filled; a signed type gets its sign by shifting it up and down again. */
  unsigned up = 64 - 8 * (unsigned)bytes;
  return wr_gguf_is_signed(a->type) ? (int64_t)(u << up) >> up : (int64_t)u;
}

double wr_gguf_array_float(const wr_gguf_array *a, uint64_t i) {
  float f;
  double d;
  switch (a->type) {
  case WR_GGUF_VALUE_F32: memcpy(&f, a->ptr + i * sizeof f, sizeof f); return (double)f;
  case WR_GGUF_VALUE_F64: memcpy(&d, a->ptr + i * sizeof d, sizeof d); return d;
  case WR_GGUF_VALUE_U64: return (double)(uint64_t)wr_gguf_array_int(a, i);
  default: return (double)wr_gguf_array_int(a, i);
  }
}
