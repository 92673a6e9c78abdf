/* From names to indices: finds duplicates in one pass and answers look-ups, both in O(1) a name.
 *
 * Open addressing with linear probing; the capacity is a power of two, at least twice the number of names. The hash's seed is
 * random, because names come from files of unknown origin.
 */
#include "format/format_i.h"

static size_t probe(const wr_gguf_table *t, const void *items, wr_gguf_name_of *name_of, const char *name, size_t len) {
  size_t at = (size_t)wr_hash64(name, len, t->seed) & t->mask;
  for (; t->slot[at] != 0; at = (at + 1) & t->mask) {
    wr_gguf_text other = name_of(items, t->slot[at] - 1);
    if (other.len == len && memcmp(other.ptr, name, len) == 0) break;
  }
  return at;
}

weir_status wr_gguf_table_build(wr_gguf_table *t, const void *items, size_t n, wr_gguf_name_of *name_of, size_t *dup,
                                size_t *first) {
  size_t slots = 16;
  while (slots < 2 * n) slots *= 2;
  uint32_t *slot = wr_calloc(slots, sizeof *slot);
  if (!slot) return wr_fail_nomem(slots * sizeof *slot, "a table of names");
  *t = (wr_gguf_table){slot, slots - 1, wr_random_seed()};
  *dup = n;
  for (size_t i = 0; i < n; i++) {
    wr_gguf_text name = name_of(items, i);
    size_t at = probe(t, items, name_of, name.ptr, name.len);
    if (slot[at] != 0) {
      *dup = i;
      *first = slot[at] - 1;
      return WEIR_OK;
    }
    slot[at] = (uint32_t)(i + 1);
  }
  return WEIR_OK;
}

size_t wr_gguf_table_find(const wr_gguf_table *t, const void *items, wr_gguf_name_of *name_of, const char *name, size_t len) {
  if (!t->slot) return SIZE_MAX;
  uint32_t found = t->slot[probe(t, items, name_of, name, len)];
  return found ? found - 1 : SIZE_MAX;
}

void wr_gguf_table_free(wr_gguf_table *t) {
  wr_free(t->slot);
  *t = (wr_gguf_table){0};
}

wr_gguf_text wr_gguf_meta_name(const void *items, size_t i) { return ((const wr_gguf_meta *)items)[i].key; }

wr_gguf_text wr_gguf_tensor_name(const void *items, size_t i) {
  const char *name = ((const wr_gguf_tensor *)items)[i].name;
  return (wr_gguf_text){name, strlen(name)};
}

wr_gguf_text wr_gguf_text_name(const void *items, size_t i) { return ((const wr_gguf_text *)items)[i]; }
