/* Reads the header of one GGUF file (version 2 or 3) out of its bytes.
 *
 * Owns: the grammar of the header and every check that makes its ranges safe to use.
 * Refuses: another magic, version or byte order; counts, lengths and offsets that the file's bytes cannot hold; names that
 *   are empty, too long, not UTF-8 or hold a NUL; two keys of one name; an alignment that is not a uint32 power of two of sane
 *   size; 0 or more than 4 extents, an extent of 0, products that do not fit; rows that are not whole blocks; unknown types.
 * Algorithm: one cursor walks the header once. A length n is compared with what is left, never added to a position first.
 *   Counts are compared with what the remaining bytes could hold before anything is allocated, and the arrays then grow with
 *   the entries really read, so memory is proportional to the file. Tensor data is not touched.
 * Invariant: pos <= size.
 * Reference: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
 *
 *   "GGUF" | u32 version | u64 n_tensors | u64 n_meta | n_meta × entry | n_tensors × info | padding to alignment | data
 *   entry: string key | u32 type | value          string: u64 length | bytes         array: u32 type | u64 count | values
 *   info:  string name | u32 n_dims | n_dims × u64 | u32 type | u64 offset from the beginning of the data
 */
#include "format/format_i.h"

typedef unsigned long long ull; /* for %llu */

typedef struct cursor {
  const char *path;
  const uint8_t *base;
  size_t size, pos;
  /* Where we are, for sentences: "metadata entry 3 of 23 ('general.name')". list: NULL in the fixed part of the header. */
  const char *list;
  size_t index, count;
  wr_gguf_text name;
} cursor;

/* "path: metadata entry 3 of 23 ('general.name'): …" */
static weir_status refuse(const cursor *c, weir_status status, const char *fmt, ...) WR_PRINTF(3, 4);
static weir_status refuse(const cursor *c, weir_status status, const char *fmt, ...) {
  char what[768];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(what, sizeof what, fmt, ap);
  va_end(ap);
  if (!c->list) return wr_fail(status, "%s: %s", wr_shown(c->path), what);
  if (c->name.len == 0)
    return wr_fail(status, "%s: %s %zu of %zu: %s", wr_shown(c->path), c->list, c->index + 1, c->count, what);
  return wr_fail(status, "%s: %s %zu of %zu ('%s'): %s", wr_shown(c->path), c->list, c->index + 1, c->count,
                 wr_escape(c->name.ptr, c->name.len), what);
}

static size_t left(const cursor *c) { return c->size - c->pos; }

/* Are n more bytes there? `what` needs them. */
static weir_status need(const cursor *c, uint64_t n, const char *what) {
  uint64_t end;
  if (n <= left(c)) return WEIR_OK;
  if (__builtin_add_overflow((uint64_t)c->pos, n, &end) || end > INT64_MAX)
    return refuse(c, WEIR_EFORMAT, "%s at byte %zu claims %llu bytes, %zu are left", what, c->pos, (ull)n, left(c));
  return refuse(c, WEIR_EFORMAT, "the file is shorter than its header says (need %llu bytes, have %zu): %s ends beyond it",
                (ull)end, c->size, what);
}

static weir_status take(cursor *c, void *dst, size_t n, const char *what) {
  WR_TRY(need(c, n, what));
  memcpy(dst, c->base + c->pos, n);
  c->pos += n;
  return WEIR_OK;
}

static weir_status take_u32(cursor *c, uint32_t *v, const char *what) { return take(c, v, sizeof *v, what); }
static weir_status take_u64(cursor *c, uint64_t *v, const char *what) { return take(c, v, sizeof *v, what); }

static weir_status take_text(cursor *c, wr_gguf_text *out, const char *what) {
  uint64_t n;
  WR_TRY(take_u64(c, &n, what));
  WR_TRY(need(c, n, what));
  *out = (wr_gguf_text){(const char *)c->base + c->pos, (size_t)n};
  c->pos += (size_t)n;
  return WEIR_OK;
}

/* A key or a tensor name: `what` is how it is called, its length is checked against the format's limit. */
static weir_status take_name(cursor *c, wr_gguf_text *out, size_t max, const char *what) {
  wr_gguf_text t;
  WR_TRY(take_text(c, &t, what));
  if (t.len == 0) return refuse(c, WEIR_EFORMAT, "%s is empty", what);
  if (t.len > max) return refuse(c, WEIR_EFORMAT, "%s is %zu bytes long, the format allows %zu", what, t.len, max);
  c->name = t;
  if (memchr(t.ptr, 0, t.len)) return refuse(c, WEIR_EFORMAT, "%s holds a NUL byte", what);
  if (wr_utf8_valid(t.ptr, t.len) != t.len) return refuse(c, WEIR_EFORMAT, "%s is not valid UTF-8", what);
  *out = t;
  return WEIR_OK;
}

static weir_status take_bool(const cursor *c, const uint8_t *at, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (at[i] > 1) return refuse(c, WEIR_EFORMAT, "a bool is %u, it must be 0 or 1", at[i]);
  return WEIR_OK;
}

static weir_status take_array(cursor *c, wr_gguf_array *out) {
  uint32_t type;
  uint64_t count;
  WR_TRY(take_u32(c, &type, "an array's type"));
  WR_TRY(take_u64(c, &count, "an array's length"));
  size_t elem_bytes = wr_gguf_value_bytes(type);
  if (type == WR_GGUF_VALUE_ARRAY) return refuse(c, WEIR_EUNSUPPORTED, "an array of arrays, which weir does not read");
  if (elem_bytes == 0 && type != WR_GGUF_VALUE_STRING)
    return refuse(c, WEIR_EFORMAT, "an array of value type %u, which does not exist", type);
  /* A string takes 8 bytes at least, its length. */
  size_t least = elem_bytes ? elem_bytes : sizeof(uint64_t);
  if (count > left(c) / least) {
    uint64_t bytes = count > UINT64_MAX / least ? UINT64_MAX : count * least;
    return need(c, bytes, "an array");
  }
  *out = (wr_gguf_array){type, count, c->base + c->pos, 0};
  if (elem_bytes) {
    out->bytes = (size_t)count * elem_bytes;
    if (type == WR_GGUF_VALUE_BOOL) WR_TRY(take_bool(c, out->ptr, out->bytes));
    c->pos += out->bytes;
    return WEIR_OK;
  }
  wr_gguf_text text;
  for (uint64_t i = 0; i < count; i++) WR_TRY(take_text(c, &text, "a string of an array"));
  out->bytes = (size_t)(c->base + c->pos - out->ptr);
  return WEIR_OK;
}

/* One value: integers widen to 64 bits, floats to double. */
static weir_status take_value(cursor *c, wr_gguf_meta *m) {
  union {
    uint8_t u8;
    int8_t i8;
    uint16_t u16;
    int16_t i16;
    uint32_t u32;
    int32_t i32;
    uint64_t u64;
    int64_t i64;
    float f32;
    double f64;
  } x;
  size_t bytes = wr_gguf_value_bytes(m->type);
  if (bytes) WR_TRY(take(c, &x, bytes, "a value"));
  switch (m->type) {
  case WR_GGUF_VALUE_U8: m->v.u = x.u8; return WEIR_OK;
  case WR_GGUF_VALUE_I8: m->v.i = x.i8; return WEIR_OK;
  case WR_GGUF_VALUE_U16: m->v.u = x.u16; return WEIR_OK;
  case WR_GGUF_VALUE_I16: m->v.i = x.i16; return WEIR_OK;
  case WR_GGUF_VALUE_U32: m->v.u = x.u32; return WEIR_OK;
  case WR_GGUF_VALUE_I32: m->v.i = x.i32; return WEIR_OK;
  case WR_GGUF_VALUE_U64: m->v.u = x.u64; return WEIR_OK;
  case WR_GGUF_VALUE_I64: m->v.i = x.i64; return WEIR_OK;
  case WR_GGUF_VALUE_F32: m->v.f = (double)x.f32; return WEIR_OK;
  case WR_GGUF_VALUE_F64: m->v.f = x.f64; return WEIR_OK;
  case WR_GGUF_VALUE_BOOL: m->v.b = x.u8 != 0; return take_bool(c, &x.u8, 1);
  case WR_GGUF_VALUE_STRING: return take_text(c, &m->v.text, "a string");
  case WR_GGUF_VALUE_ARRAY: return take_array(c, &m->v.array);
  }
  return refuse(c, WEIR_EFORMAT, "value type %u does not exist", (unsigned)m->type);
}

static weir_status take_metas(cursor *c, wr_gguf_metas *metas, size_t n) {
  c->list = "metadata entry";
  c->count = n;
  for (size_t i = 0; i < n; i++) {
    wr_gguf_meta m = {0};
    uint32_t type;
    c->index = i;
    c->name = (wr_gguf_text){0};
    WR_TRY(take_name(c, &m.key, WR_GGUF_MAX_KEY, "the key"));
    WR_TRY(take_u32(c, &type, "a value's type"));
    m.type = (wr_gguf_value_type)type;
    WR_TRY(take_value(c, &m));
    if (!wr_grow((void **)&metas->at, &metas->cap, i + 1, sizeof *metas->at))
      return wr_fail_nomem((i + 1) * sizeof *metas->at, "metadata");
    metas->at[metas->n++] = m;
  }
  c->list = NULL;
  size_t dup, first;
  WR_TRY(wr_gguf_table_build(&metas->table, metas->at, n, wr_gguf_meta_name, &dup, &first));
  if (dup < n)
    return refuse(c, WEIR_EFORMAT, "metadata key '%s' stands there twice (entries %zu and %zu)",
                  wr_escape(metas->at[dup].key.ptr, metas->at[dup].key.len), first + 1, dup + 1);
  return WEIR_OK;
}

static weir_status take_alignment(const cursor *c, const wr_gguf_metas *metas, uint64_t *out) {
  const wr_gguf_meta *m = wr_gguf_metas_find(metas, "general.alignment");
  *out = WR_GGUF_ALIGNMENT;
  if (!m) return WEIR_OK;
  if (m->type != WR_GGUF_VALUE_U32)
    return refuse(c, WEIR_EFORMAT, "general.alignment is of type %s, it must be uint32", wr_gguf_value_name(m->type));
  if (m->v.u < WR_GGUF_MIN_ALIGNMENT || m->v.u > WR_GGUF_MAX_ALIGNMENT || (m->v.u & (m->v.u - 1)) != 0)
    return refuse(c, WEIR_EFORMAT, "general.alignment is %llu, it must be a power of two from %u to %u", (ull)m->v.u,
                  WR_GGUF_MIN_ALIGNMENT, WR_GGUF_MAX_ALIGNMENT);
  *out = m->v.u;
  return WEIR_OK;
}

/* "16 x 4294967296" */
static const char *shape_text(char out[96], const wr_gguf_tensor *t) {
  int n = 0;
  for (int d = 0; d < t->n_dims; d++) n += snprintf(out + n, (size_t)(96 - n), d ? " x %llu" : "%llu", (ull)t->dim[d]);
  return out;
}

/* One tensor's description, without the place of its data: t->offset is still counted from the beginning of the data. */
static weir_status take_info(cursor *c, wr_gguf *g, uint64_t alignment, wr_gguf_tensor *t) {
  wr_gguf_text name;
  uint32_t n_dims, type;
  char shape[96];
  WR_TRY(take_name(c, &name, WR_GGUF_MAX_NAME, "the tensor's name"));
  WR_TRY(take_u32(c, &n_dims, "the number of dimensions"));
  if (n_dims < 1 || n_dims > WR_GGUF_MAX_DIMS)
    return refuse(c, WEIR_EFORMAT, "%u dimensions, it must be 1 to %d", n_dims, WR_GGUF_MAX_DIMS);
  *t = (wr_gguf_tensor){.n_dims = (int)n_dims, .dim = {1, 1, 1, 1}, .n_elems = 1};
  for (uint32_t d = 0; d < n_dims; d++) WR_TRY(take_u64(c, &t->dim[d], "the dimensions"));
  WR_TRY(take_u32(c, &type, "the tensor's type"));
  WR_TRY(take_u64(c, &t->offset, "the tensor's offset"));
  for (uint32_t d = 0; d < n_dims; d++)
    if (t->dim[d] == 0) return refuse(c, WEIR_EFORMAT, "dimension %u of %s is 0", d + 1, shape_text(shape, t));
  for (uint32_t d = 0; d < n_dims; d++)
    if (__builtin_mul_overflow(t->n_elems, t->dim[d], &t->n_elems) || t->n_elems > INT64_MAX)
      return refuse(c, WEIR_EFORMAT, "the shape %s has more elements than 2^63", shape_text(shape, t));
  t->type = wr_gguf_type_find(type);
  if (!t->type)
    return refuse(c, WEIR_EUNSUPPORTED,
                  "tensor type %u does not exist, or was removed from the format: convert the model "
                  "again",
                  type);
  if (t->dim[0] % t->type->block_elems != 0)
    return refuse(c, WEIR_EFORMAT, "a row of %llu elements is not whole blocks of %u, as %s needs", (ull)t->dim[0],
                  t->type->block_elems, t->type->name);
  if (!wr_gguf_type_bytes(t->type, t->dim[0], t->n_elems / t->dim[0], &t->bytes) || t->bytes > INT64_MAX)
    return refuse(c, WEIR_EFORMAT, "the shape %s in %s takes more than 2^63 bytes", shape_text(shape, t), t->type->name);
  if (t->offset % alignment != 0)
    return refuse(c, WEIR_EFORMAT, "its data begins at %llu, which is no multiple of the alignment %llu", (ull)t->offset,
                  (ull)alignment);
  t->name = wr_arena_strndup(&g->names, name.ptr, name.len);
  return t->name ? WEIR_OK : wr_fail_nomem(name.len + 1, "a tensor's name");
}

static weir_status take_infos(cursor *c, wr_gguf *g, size_t p, size_t n) {
  uint64_t alignment = g->part[p].alignment;
  size_t first = g->n_tensors;
  c->list = "tensor";
  c->count = n;
  for (size_t i = 0; i < n; i++) {
    wr_gguf_tensor t;
    c->index = i;
    c->name = (wr_gguf_text){0};
    WR_TRY(take_info(c, g, alignment, &t));
    t.part = (int)p;
    if (!wr_grow((void **)&g->tensor, &g->cap_tensors, g->n_tensors + 1, sizeof *g->tensor))
      return wr_fail_nomem((g->n_tensors + 1) * sizeof *g->tensor, "the list of tensors");
    g->tensor[g->n_tensors++] = t;
  }
  c->list = NULL;
  g->part[p].header_bytes = c->pos;

  /* Where the data begins is known only now. The file must hold the end of the last tensor; which one is last is not given. */
  uint64_t begin = (c->pos + alignment - 1) / alignment * alignment, last = 0;
  const char *last_name = NULL;
  for (size_t i = first; i < g->n_tensors; i++) {
    wr_gguf_tensor *t = &g->tensor[i];
    uint64_t end;
    if (__builtin_add_overflow(begin, t->offset, &t->offset) || __builtin_add_overflow(t->offset, t->bytes, &end) ||
        end > INT64_MAX)
      return refuse(c, WEIR_EFORMAT, "the data of tensor '%s' lies beyond 2^63 bytes", wr_shown(t->name));
    if (end > last) last = end, last_name = t->name;
  }
  if (last > c->size)
    return refuse(c, WEIR_EFORMAT,
                  "the file is shorter than its header says (need %llu bytes, have %zu): tensor '%s' ends "
                  "beyond it",
                  (ull)last, c->size, wr_shown(last_name));
  for (size_t i = first; i < g->n_tensors; i++) g->tensor[i].data = c->base + g->tensor[i].offset;
  return WEIR_OK;
}

bool wr_gguf_magic(const void *bytes, size_t n) { return n >= 4 && memcmp(bytes, "GGUF", 4) == 0; }

static weir_status take_version(cursor *c, uint32_t *version) {
  /* The formats before GGUF wrote their magic as a number, hence backwards. */
  static const char *const old[] = {"lmgg", "fmgg", "tjgg", "algg"};
  char magic[4];
  WR_TRY(need(c, c->size < 4 ? WR_GGUF_HEADER_BYTES : 4, "the header"));
  WR_TRY(take(c, magic, 4, "the header"));
  for (size_t i = 0; i < WR_ARRAY_LEN(old); i++)
    if (memcmp(magic, old[i], 4) == 0)
      return refuse(c, WEIR_EUNSUPPORTED, "a model in a format older than GGUF (magic '%.4s'): convert it to GGUF", magic);
  if (!wr_gguf_magic(magic, 4)) return refuse(c, WEIR_EFORMAT, "not a GGUF file: it begins with '%s'", wr_escape(magic, 4));
  WR_TRY(need(c, WR_GGUF_HEADER_BYTES - 4, "the header"));
  WR_TRY(take_u32(c, version, "the version"));
  if (*version != 0 && (*version & 0xffff) == 0)
    return refuse(c, WEIR_EUNSUPPORTED, "a big-endian GGUF file (version %u): weir reads little-endian files only",
                  __builtin_bswap32(*version));
  if (*version != 2 && *version != 3)
    return refuse(c, WEIR_EUNSUPPORTED, "GGUF version %u: weir reads versions 2 and 3", *version);
  return WEIR_OK;
}

weir_status wr_gguf_parse(wr_gguf *g, size_t p, wr_gguf_metas *meta) {
  wr_gguf_file *file = &g->part[p];
  cursor c = {.path = file->path, .base = file->map.ptr, .size = file->map.bytes};
  uint64_t n_tensors, n_meta, info_bytes, meta_bytes, least;
  WR_TRY(take_version(&c, &file->version));
  WR_TRY(take_u64(&c, &n_tensors, "the number of tensors"));
  WR_TRY(take_u64(&c, &n_meta, "the number of metadata entries"));
  if (__builtin_mul_overflow(n_tensors, WR_GGUF_MIN_INFO_BYTES, &info_bytes) ||
      __builtin_mul_overflow(n_meta, WR_GGUF_MIN_META_BYTES, &meta_bytes) || info_bytes > INT64_MAX / 2 ||
      meta_bytes > INT64_MAX / 2)
    return refuse(&c, WEIR_EFORMAT, "the header claims %llu tensors and %llu metadata entries, %zu bytes cannot hold them",
                  (ull)n_tensors, (ull)n_meta, c.size);
  least = WR_GGUF_HEADER_BYTES + info_bytes + meta_bytes;
  if (least > c.size)
    return refuse(&c, WEIR_EFORMAT,
                  "the file is shorter than its header says (need %llu bytes, have %zu): it claims %llu "
                  "tensors and %llu metadata entries",
                  (ull)least, c.size, (ull)n_tensors, (ull)n_meta);
  if (n_tensors > UINT32_MAX / 4 || n_meta > UINT32_MAX / 4 || g->n_tensors > UINT32_MAX / 4)
    return refuse(&c, WEIR_EUNSUPPORTED, "%llu tensors and %llu metadata entries are more than weir's tables hold",
                  (ull)n_tensors, (ull)n_meta);
  WR_TRY(take_metas(&c, meta, (size_t)n_meta));
  WR_TRY(take_alignment(&c, meta, &file->alignment));
  return take_infos(&c, g, p, (size_t)n_tensors);
}
