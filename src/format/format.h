/* format: model files as they lie on disk. Reads and writes GGUF, versions 2 and 3; knows bytes and names, not architectures.
 *
 * Reading maps the file and checks every length, count and offset before it is used; a handle that was opened holds only
 * ranges that lie inside the file. Nothing is copied but names: strings, arrays and tensors are views into the map, valid until
 * wr_gguf_close(). A file is little-endian, as are the machines that weir runs on.
 *
 * Errors: EIO the file cannot be opened; EFORMAT it is malformed, shorter than its header says, or a part is missing;
 * EUNSUPPORTED it is well-formed but of a kind that weir does not read (big-endian, other versions, nested arrays, removed
 * tensor types). The sentence begins with the path.
 *
 * Threads: an open handle is read-only and may be used by any number of threads.
 */
#ifndef WR_FORMAT_H
#define WR_FORMAT_H

#include "base/base.h"

#define WR_GGUF_MAX_DIMS 4
#define WR_GGUF_MAX_NAME 64    /* bytes of a tensor name, by the format's definition */
#define WR_GGUF_MAX_KEY 65535  /* bytes of a metadata key, likewise */

/* Tensor types by their number in the file: WR_GGUF_F32, WR_GGUF_Q4_0, … */
typedef enum wr_gguf_type {
#define X(name, number, block_elems, block_bytes, supported) WR_GGUF_##name = number,
#include "format/gguf_type.def"
#undef X
} wr_gguf_type;

typedef struct wr_gguf_type_info {
  const char *name;            /* "Q4_0" */
  uint32_t number;             /* wr_gguf_type */
  uint32_t block_elems, block_bytes;
  bool supported;              /* false: can be listed; loading a model that needs it is refused by name */
} wr_gguf_type_info;
const wr_gguf_type_info *wr_gguf_type_find(uint32_t number);            /* NULL: no such type, or a removed one */
const wr_gguf_type_info *wr_gguf_type_named(const char *name, size_t n); /* case-insensitive ("q4_k"); NULL: none */
/* Bytes of n_rows rows of row_elems elements. false: row_elems is not whole blocks, or the product does not fit. */
bool wr_gguf_type_bytes(const wr_gguf_type_info *t, uint64_t row_elems, uint64_t n_rows, uint64_t *bytes);

/* Types of metadata values: WR_GGUF_VALUE_U8, … */
typedef enum wr_gguf_value_type {
#define X(name, number, bytes, text) WR_GGUF_VALUE_##name = number,
#include "format/gguf_value.def"
#undef X
} wr_gguf_value_type;
const char *wr_gguf_value_name(wr_gguf_value_type t); /* "uint32" */

/* A view of bytes in the file: no NUL at the end, not proved to be UTF-8 (keys and tensor names are). */
typedef struct wr_gguf_text {
  const char *ptr;
  size_t len;
} wr_gguf_text;

/* A view of an array. The elements lie packed and unaligned in the file: read them with the functions below. */
typedef struct wr_gguf_array {
  wr_gguf_value_type type;     /* of the elements; never ARRAY */
  uint64_t count;
  const uint8_t *ptr;
  size_t bytes;
} wr_gguf_array;

typedef struct wr_gguf_meta {
  wr_gguf_text key;            /* UTF-8, 1..WR_GGUF_MAX_KEY bytes, no NUL */
  wr_gguf_value_type type;
  union {
    uint64_t u;                /* U8 U16 U32 U64 */
    int64_t i;                 /* I8 I16 I32 I64 */
    double f;                  /* F32 F64 */
    bool b;
    wr_gguf_text text;
    wr_gguf_array array;
  } v;
} wr_gguf_meta;

typedef struct wr_gguf_tensor {
  const char *name;            /* UTF-8, 1..WR_GGUF_MAX_NAME bytes, ends with NUL */
  const wr_gguf_type_info *type;
  int n_dims;                  /* 1..4, as in the file */
  uint64_t dim[WR_GGUF_MAX_DIMS]; /* the file's order: dim[0] is the contiguous one (a row); 1 beyond n_dims; each > 0 */
  uint64_t n_elems;            /* < 2^63 */
  uint64_t bytes;
  const uint8_t *data;         /* `bytes` bytes; aligned to 8 or more (the file's alignment; a page at most) */
  uint64_t offset;             /* of the data, from the beginning of its part */
  int part;
} wr_gguf_tensor;

typedef struct wr_gguf wr_gguf;

typedef struct wr_gguf_options {
  bool no_mmap;                /* read the file into memory instead of mapping it */
} wr_gguf_options;

/* Opens a file (a run folder or a checkpoint is its model, see wr_model_path), and with it all parts of a split model: NAME-00001-of-0000N.gguf, from the path of any part. Metadata is that
 * of the first part, tensors are those of all. */
weir_status wr_gguf_open(const char *path, const wr_gguf_options *options, wr_gguf **out);
/* Over bytes that the caller keeps until close (tests, fuzzing). `name` stands for the path in sentences; a part is refused. */
weir_status wr_gguf_open_memory(const void *bytes, size_t n, const char *name, wr_gguf **out);
void wr_gguf_close(wr_gguf *g); /* NULL allowed */

/* Is this the beginning of a GGUF file (of any version or byte order)? */
bool wr_gguf_magic(const void *bytes, size_t n);

const char *wr_gguf_path(const wr_gguf *g);     /* of the first part */
uint32_t wr_gguf_version(const wr_gguf *g);     /* of the first part */
uint64_t wr_gguf_alignment(const wr_gguf *g);   /* of the first part */
uint64_t wr_gguf_file_bytes(const wr_gguf *g);  /* of all parts together */

typedef struct wr_gguf_part {
  const char *path;
  const wr_map *map;           /* size, mtime and inode are there */
  uint64_t header_bytes;       /* everything before the tensor data: what identifies the file, with size and mtime */
} wr_gguf_part;
int wr_gguf_n_parts(const wr_gguf *g);
wr_gguf_part wr_gguf_part_at(const wr_gguf *g, int i);

/* ---- metadata */
size_t wr_gguf_n_meta(const wr_gguf *g);
const wr_gguf_meta *wr_gguf_meta_at(const wr_gguf *g, size_t i); /* in file order */
const wr_gguf_meta *wr_gguf_find(const wr_gguf *g, const char *key); /* NULL: absent. O(1) */

/* Typed lookup. An absent key: EFORMAT if `required`, else OK and *out untouched, so preset it with the default. A value of
 * another type or outside [min, max]: EFORMAT, naming file, key, what was found and what was wanted. */
/* any integer type */
weir_status wr_gguf_get_int(const wr_gguf *g, const char *key, bool required, int64_t min, int64_t max, int64_t *out);
/* float32 or float64; any value, NaN too */
weir_status wr_gguf_get_float(const wr_gguf *g, const char *key, bool required, double *out);
weir_status wr_gguf_get_bool(const wr_gguf *g, const char *key, bool required, bool *out);
weir_status wr_gguf_get_text(const wr_gguf *g, const char *key, bool required, wr_gguf_text *out);
/* type: what the elements must be. */
weir_status wr_gguf_get_array(const wr_gguf *g, const char *key, bool required, wr_gguf_value_type type, wr_gguf_array *out);

/* ---- arrays. Index i < count is the caller's duty. */
/* Walks strings in order, O(1) a step: for (at = NULL; wr_gguf_array_next(&a, &at, &text);) … Only for STRING arrays. */
bool wr_gguf_array_next(const wr_gguf_array *a, const uint8_t **at, wr_gguf_text *out);
/* An index of all strings of the array: `count` views; the caller frees it with wr_free(). ENOMEM only. */
weir_status wr_gguf_array_texts(const wr_gguf_array *a, wr_gguf_text **out);
int64_t wr_gguf_array_int(const wr_gguf_array *a, uint64_t i);  /* integer types and BOOL (U64 above 2^63 wraps) */
double wr_gguf_array_float(const wr_gguf_array *a, uint64_t i); /* any number type */

/* ---- tensors */
size_t wr_gguf_n_tensors(const wr_gguf *g);
const wr_gguf_tensor *wr_gguf_tensor_at(const wr_gguf *g, size_t i); /* part by part, in file order */
const wr_gguf_tensor *wr_gguf_tensor_find(const wr_gguf *g, const char *name); /* NULL: absent. O(1) */

/* ---- writing. Metadata first, then the tensors' declarations, then their data in the same order, then finish: until then
 * only a temporary file beside `path` exists, which close removes. Errors are sticky: after a failed call every later one
 * returns the same status, so a series may be checked once, at finish. Version 3, one file. */
typedef struct wr_gguf_writer wr_gguf_writer;
/* alignment 0: 32, the format's default; another one is written as general.alignment */
weir_status wr_gguf_writer_open(const char *path, uint32_t alignment, wr_gguf_writer **out);
/* Writes at `path` itself, which must not exist yet, and not under a temporary name: for files of a folder that is itself temporary. */
weir_status wr_gguf_writer_open_plain(const char *path, wr_gguf_writer **out);
weir_status wr_gguf_put_u32(wr_gguf_writer *w, const char *key, uint32_t v);
weir_status wr_gguf_put_u64(wr_gguf_writer *w, const char *key, uint64_t v);
weir_status wr_gguf_put_i32(wr_gguf_writer *w, const char *key, int32_t v);
weir_status wr_gguf_put_f32(wr_gguf_writer *w, const char *key, float v);
weir_status wr_gguf_put_bool(wr_gguf_writer *w, const char *key, bool v);
weir_status wr_gguf_put_text(wr_gguf_writer *w, const char *key, const char *text, size_t n);
/* an array of a type of fixed size, from a C array of that type */
weir_status wr_gguf_put_array(wr_gguf_writer *w, const char *key, wr_gguf_value_type type, const void *values, size_t count);
weir_status wr_gguf_put_texts(wr_gguf_writer *w, const char *key, const wr_gguf_text *texts, size_t count);
/* an entry of another file, as it is; general.alignment and split.* are passed over in silence, the writer decides those */
weir_status wr_gguf_put_meta(wr_gguf_writer *w, const wr_gguf_meta *m);
weir_status wr_gguf_put_tensor(wr_gguf_writer *w, const char *name, wr_gguf_type type, int n_dims, const uint64_t *dim);
/* the next n bytes of tensor data, in pieces of any size */
weir_status wr_gguf_write(wr_gguf_writer *w, const void *bytes, size_t n);
weir_status wr_gguf_writer_finish(wr_gguf_writer *w); /* EUSAGE unless all data came; syncs, renames. Close follows */
uint64_t wr_gguf_writer_bytes(const wr_gguf_writer *w); /* written so far */
uint64_t wr_gguf_writer_hash(const wr_gguf_writer *w);  /* and their XXH64 (seed 0); after finish that of the file */
void wr_gguf_writer_close(wr_gguf_writer *w); /* NULL allowed; without finish nothing remains */

#include "format/checkpoint.h" /* checkpoints of a run */

#endif
