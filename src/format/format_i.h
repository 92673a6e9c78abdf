/* format, inside: the open GGUF handle and the table of names. */
#ifndef WR_FORMAT_I_H
#define WR_FORMAT_I_H

#include "format/format.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "weir reads and writes little-endian files on little-endian machines only"
#endif

/* A path or key for a sentence (see wr_escape: at most four of them in one). */
static inline const char *wr_shown(const char *z) { return wr_escape(z, strlen(z)); }

#define WR_GGUF_HEADER_BYTES 24   /* magic, version, number of tensors, number of metadata entries */
#define WR_GGUF_MIN_META_BYTES 14 /* the least an entry can take: length, one byte of key, type, one byte of value */
#define WR_GGUF_MIN_INFO_BYTES 33 /* and a tensor: length, one byte of name, n_dims, one extent, type, offset */
#define WR_GGUF_ALIGNMENT 32      /* of a file without general.alignment */
#define WR_GGUF_MIN_ALIGNMENT 8   /* by the format's definition a multiple of 8 */
#define WR_GGUF_MAX_ALIGNMENT (1u << 20)

/* Open-addressing table from names to indices, at most half full. The hash is seeded per table, so that a crafted file
 * cannot make all of its names collide. Items begin with their name's view (wr_gguf_meta) or pointer (see name_of). */
typedef wr_gguf_text wr_gguf_name_of(const void *items, size_t i);
typedef struct wr_gguf_table {
  uint32_t *slot;                 /* index + 1; 0: free */
  size_t mask;
  uint64_t seed;
} wr_gguf_table;
/* Builds the table over items 0..n-1. *dup is the index of the first item whose name an earlier one (*first) has; n: none. */
weir_status wr_gguf_table_build(wr_gguf_table *t, const void *items, size_t n, wr_gguf_name_of *name_of, size_t *dup,
                                size_t *first);
/* SIZE_MAX: none */
size_t wr_gguf_table_find(const wr_gguf_table *t, const void *items, wr_gguf_name_of *name_of, const char *name, size_t len);
void wr_gguf_table_free(wr_gguf_table *t);
wr_gguf_name_of wr_gguf_meta_name, wr_gguf_tensor_name, wr_gguf_text_name;

typedef struct wr_gguf_metas {
  wr_gguf_meta *at;
  size_t n, cap;
  wr_gguf_table table;
} wr_gguf_metas;

typedef struct wr_gguf_file {
  char *path;
  wr_map map;
  bool borrowed;                  /* the bytes are the caller's: map is not to be closed */
  uint32_t version;
  uint64_t alignment;
  uint64_t header_bytes;
} wr_gguf_file;

struct wr_gguf {
  wr_gguf_file *part;
  size_t n_parts, cap_parts;
  wr_gguf_metas meta;             /* of part 0 */
  wr_gguf_tensor *tensor;
  size_t n_tensors, cap_tensors;
  wr_gguf_table tensor_table;
  wr_arena names;                 /* the tensors' names, each with a NUL */
};

/* Reads the header of g->part[p] (map and path are set): appends its tensors to g, its metadata to `meta` (empty before). */
weir_status wr_gguf_parse(wr_gguf *g, size_t p, wr_gguf_metas *meta);
void wr_gguf_metas_free(wr_gguf_metas *m);
const wr_gguf_meta *wr_gguf_metas_find(const wr_gguf_metas *m, const char *key);
/* wr_gguf_get_int over one part's entries; `path` is for the sentence. */
weir_status wr_gguf_metas_int(const wr_gguf_metas *m, const char *path, const char *key, bool required, int64_t min,
                              int64_t max, int64_t *out);
size_t wr_gguf_value_bytes(wr_gguf_value_type t); /* of one value; 0: it has a length, or there is no such type */
bool wr_gguf_is_unsigned(wr_gguf_value_type t);
bool wr_gguf_is_signed(wr_gguf_value_type t);

#endif
