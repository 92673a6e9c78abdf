/* The tables of GGUF's tensor types and value types, and sizes by them.
 *
 * Owns: gguf_type.def and gguf_value.def. Refuses nothing itself: callers turn NULL and false into sentences.
 */
#include "format/format_i.h"

#include <strings.h>

static const wr_gguf_type_info types[] = {
#define X(name, number, block_elems, block_bytes, supported) {#name, number, block_elems, block_bytes, supported},
#include "format/gguf_type.def"
#undef X
};

const wr_gguf_type_info *wr_gguf_type_find(uint32_t number) {
  for (size_t i = 0; i < WR_ARRAY_LEN(types); i++)
    if (types[i].number == number) return &types[i];
  return NULL;
}

const wr_gguf_type_info *wr_gguf_type_named(const char *name, size_t n) {
  for (size_t i = 0; i < WR_ARRAY_LEN(types); i++)
    if (strlen(types[i].name) == n && strncasecmp(types[i].name, name, n) == 0) return &types[i];
  return NULL;
}

bool wr_gguf_type_bytes(const wr_gguf_type_info *t, uint64_t row_elems, uint64_t n_rows, uint64_t *bytes) {
  uint64_t row_bytes, all;
  if (row_elems % t->block_elems != 0) return false;
  if (__builtin_mul_overflow(row_elems / t->block_elems, (uint64_t)t->block_bytes, &row_bytes)) return false;
  if (__builtin_mul_overflow(row_bytes, n_rows, &all)) return false;
  *bytes = all;
  return true;
}

static const struct {
  const char *name;
  size_t bytes;
} values[] = {
#define X(name, number, bytes, text) [number] = {text, bytes},
#include "format/gguf_value.def"
#undef X
};

const char *wr_gguf_value_name(wr_gguf_value_type t) {
  return (size_t)t < WR_ARRAY_LEN(values) ? values[t].name : "unknown type";
}

size_t wr_gguf_value_bytes(wr_gguf_value_type t) { return (size_t)t < WR_ARRAY_LEN(values) ? values[t].bytes : 0; }

bool wr_gguf_is_unsigned(wr_gguf_value_type t) {
  return t == WR_GGUF_VALUE_U8 || t == WR_GGUF_VALUE_U16 || t == WR_GGUF_VALUE_U32 || t == WR_GGUF_VALUE_U64;
}

bool wr_gguf_is_signed(wr_gguf_value_type t) {
  return t == WR_GGUF_VALUE_I8 || t == WR_GGUF_VALUE_I16 || t == WR_GGUF_VALUE_I32 || t == WR_GGUF_VALUE_I64;
}
