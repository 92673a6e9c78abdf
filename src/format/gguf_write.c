/* Writes GGUF files, version 3, little-endian, one file.
 *
 * Metadata and the tensors' descriptions are collected in memory; the tensors' data streams to disk. The header is written when
 * the first data comes (or at finish), so nothing can be declared after that. Everything goes to a temporary file beside the
 * target, which finish syncs and renames: the target is either what it was or complete. (open_plain leaves that to its caller.)
 * Refuses (EUSAGE): what the reader would refuse: names empty, too long, not UTF-8, twice there; impossible shapes; data that
 *   is more or less than was declared.
 * Invariant: `status` is the first failure; from then on every call returns it and its sentence, and nothing is written.
 */
#include "format/format_i.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define BUFFER_BYTES (256 * 1024)
#define WRITEBACK_BYTES (8u << 20)

typedef unsigned long long ull; /* for %llu */

/* A name's place in the text that is being collected, which moves as it grows. */
typedef struct name_at {
  size_t at, len;
} name_at;

typedef struct names {
  name_at *at;
  size_t n, cap;
} names;

struct wr_gguf_writer {
  char *path,
      *temp; /* temp: the file that close removes; NULL: none. The path itself, copied, where there is no temporary name */
  int fd;    /* -1: closed */
  weir_status status;
  char sentence[512]; /* of status */
  wr_str metas, infos;
  names keys, tensors;
  uint64_t *size; /* bytes of each tensor */
  size_t cap_size;
  uint64_t alignment, data_end; /* data_end: of the tensors declared so far, padded */
  bool header_written;
  size_t current;        /* the tensor whose data comes next */
  uint64_t current_done; /* bytes of it that came */
  uint8_t *buffer;
  size_t buffered;
  wr_hash hash;  /* of what was written */
  uint64_t sent; /* of it, what the disk was told to take */
};

/* The sentence was left by the caller. */
static weir_status stick(wr_gguf_writer *w, weir_status status) {
  w->status = status;
  snprintf(w->sentence, sizeof w->sentence, "%s", weir_last_error());
  return status;
}

/* "path: …": the caller asked for what cannot be written. */
static weir_status misuse(wr_gguf_writer *w, const char *fmt, ...) WR_PRINTF(2, 3);
static weir_status misuse(wr_gguf_writer *w, const char *fmt, ...) {
  char what[512];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(what, sizeof what, fmt, ap);
  va_end(ap);
  return stick(w, wr_fail(WEIR_EUSAGE, "%s: %s", wr_shown(w->path), what));
}

static weir_status again(const wr_gguf_writer *w) { return wr_fail(w->status, "%s", w->sentence); }

static weir_status fail_disk(wr_gguf_writer *w, const char *did) {
  return stick(w, wr_fail_errno(wr_write_status(errno), w->temp, did));
}

static weir_status open_writer(const char *path, const char *suffix, uint32_t alignment, wr_gguf_writer **out) {
  wr_gguf_writer *w = wr_calloc(1, sizeof *w);
  if (!w) return wr_fail_nomem(sizeof *w, "a writer");
  const size_t cap = strlen(path) + strlen(suffix) + 1;
  w->fd = -1;
  w->alignment = alignment;
  w->path = wr_strdup(path);
  w->buffer = wr_malloc(BUFFER_BYTES);
  wr_hash_begin(&w->hash, 0);
  char *temp = wr_malloc(cap);
  if (!w->path || !w->buffer || !temp) {
    wr_free(temp);
    wr_gguf_writer_close(w);
    return wr_fail_nomem(BUFFER_BYTES, "a writer");
  }
  snprintf(temp, cap, "%s%s", path, suffix);
  w->fd = wr_os_create(temp);
  if (w->fd < 0) {
    weir_status status = wr_fail_errno(wr_write_status(errno), temp, "create");
    wr_free(temp);
    wr_gguf_writer_close(w);
    return status;
  }
  w->temp = temp;
  *out = w;
  return WEIR_OK;
}

weir_status wr_gguf_writer_open(const char *path, uint32_t alignment, wr_gguf_writer **out) {
  uint32_t align = alignment ? alignment : WR_GGUF_ALIGNMENT;
  if (align < WR_GGUF_MIN_ALIGNMENT || align > WR_GGUF_MAX_ALIGNMENT || (align & (align - 1)) != 0)
    return wr_fail(WEIR_EUSAGE, "%s: alignment %u, it must be a power of two from %u to %u", wr_shown(path), align,
                   WR_GGUF_MIN_ALIGNMENT, WR_GGUF_MAX_ALIGNMENT);
  char suffix[16];
  snprintf(suffix, sizeof suffix, ".%08x.tmp", (unsigned)wr_random_seed());
  wr_gguf_writer *w;
  WR_TRY(open_writer(path, suffix, align, &w));
  weir_status status = alignment ? wr_gguf_put_u32(w, "general.alignment", alignment) : WEIR_OK;
  if (status != WEIR_OK) {
    wr_gguf_writer_close(w);
    return status;
  }
  *out = w;
  return WEIR_OK;
}

weir_status wr_gguf_writer_open_plain(const char *path, wr_gguf_writer **out) {
  return open_writer(path, "", WR_GGUF_ALIGNMENT, out);
}

void wr_gguf_writer_close(wr_gguf_writer *w) {
  if (!w) return;
  if (w->fd >= 0) close(w->fd);
  if (w->temp) unlink(w->temp);
  wr_free(w->temp);
  wr_free(w->path);
  wr_free(w->buffer);
  wr_free(w->size);
  wr_free(w->keys.at);
  wr_free(w->tensors.at);
  wr_str_free(&w->metas);
  wr_str_free(&w->infos);
  wr_free(w);
}

/* ---- metadata and descriptions */

static void put_bytes(wr_str *s, const void *v, size_t n) { wr_str_put(s, v, n); }
static void put_u32(wr_str *s, uint32_t v) { wr_str_put(s, &v, sizeof v); }
static void put_u64(wr_str *s, uint64_t v) { wr_str_put(s, &v, sizeof v); }

/* Appends a name to s and to the list that is checked for duplicates before the header is written. */
static weir_status put_name(wr_gguf_writer *w, wr_str *s, names *list, const char *name, size_t n, size_t max) {
  if (w->status != WEIR_OK) return again(w);
  if (w->header_written) return misuse(w, "'%s' comes after tensor data was written", wr_escape(name, n));
  if (n == 0 || n > max || memchr(name, 0, n) || wr_utf8_valid(name, n) != n)
    return misuse(w, "the name '%s' is empty, longer than %zu bytes, or not UTF-8", wr_escape(name, n), max);
  if (!wr_grow((void **)&list->at, &list->cap, list->n + 1, sizeof *list->at))
    return stick(w, wr_fail_nomem((list->n + 1) * sizeof *list->at, "names"));
  put_u64(s, n);
  list->at[list->n++] = (name_at){s->len, n};
  put_bytes(s, name, n);
  return WEIR_OK;
}

static weir_status put_key(wr_gguf_writer *w, const char *key, size_t n, wr_gguf_value_type type) {
  WR_TRY(put_name(w, &w->metas, &w->keys, key, n, WR_GGUF_MAX_KEY));
  put_u32(&w->metas, (uint32_t)type);
  return WEIR_OK;
}

/* After the last append of an entry. */
static weir_status put_done(wr_gguf_writer *w) {
  if (!w->metas.oom && !w->infos.oom) return WEIR_OK;
  return stick(w, wr_fail_nomem(w->metas.len + w->infos.len, "a file's header"));
}

static weir_status put_scalar(wr_gguf_writer *w, const char *key, wr_gguf_value_type type, const void *v) {
  WR_TRY(put_key(w, key, strlen(key), type));
  put_bytes(&w->metas, v, wr_gguf_value_bytes(type));
  return put_done(w);
}

weir_status wr_gguf_put_u32(wr_gguf_writer *w, const char *key, uint32_t v) {
  return put_scalar(w, key, WR_GGUF_VALUE_U32, &v);
}

weir_status wr_gguf_put_u64(wr_gguf_writer *w, const char *key, uint64_t v) {
  return put_scalar(w, key, WR_GGUF_VALUE_U64, &v);
}

weir_status wr_gguf_put_i32(wr_gguf_writer *w, const char *key, int32_t v) { return put_scalar(w, key, WR_GGUF_VALUE_I32, &v); }

weir_status wr_gguf_put_f32(wr_gguf_writer *w, const char *key, float v) { return put_scalar(w, key, WR_GGUF_VALUE_F32, &v); }

weir_status wr_gguf_put_bool(wr_gguf_writer *w, const char *key, bool v) {
  uint8_t byte = v;
  return put_scalar(w, key, WR_GGUF_VALUE_BOOL, &byte);
}

weir_status wr_gguf_put_text(wr_gguf_writer *w, const char *key, const char *text, size_t n) {
  WR_TRY(put_key(w, key, strlen(key), WR_GGUF_VALUE_STRING));
  put_u64(&w->metas, n);
  put_bytes(&w->metas, text, n);
  return put_done(w);
}

static weir_status put_array_head(wr_gguf_writer *w, const char *key, size_t n, wr_gguf_value_type type, size_t count) {
  WR_TRY(put_key(w, key, n, WR_GGUF_VALUE_ARRAY));
  put_u32(&w->metas, (uint32_t)type);
  put_u64(&w->metas, count);
  return WEIR_OK;
}

weir_status wr_gguf_put_array(wr_gguf_writer *w, const char *key, wr_gguf_value_type type, const void *values, size_t count) {
  size_t bytes;
  if (w->status != WEIR_OK) return again(w);
  if (wr_gguf_value_bytes(type) == 0 || !wr_mul_size(count, wr_gguf_value_bytes(type), &bytes))
    return misuse(w, "'%s': not an array of a type of fixed size", wr_shown(key));
  WR_TRY(put_array_head(w, key, strlen(key), type, count));
  put_bytes(&w->metas, values, bytes);
  return put_done(w);
}

weir_status wr_gguf_put_texts(wr_gguf_writer *w, const char *key, const wr_gguf_text *texts, size_t count) {
  WR_TRY(put_array_head(w, key, strlen(key), WR_GGUF_VALUE_STRING, count));
  for (size_t i = 0; i < count; i++) {
    put_u64(&w->metas, texts[i].len);
    put_bytes(&w->metas, texts[i].ptr, texts[i].len);
  }
  return put_done(w);
}

static bool key_is(const wr_gguf_meta *m, const char *key) {
  return m->key.len == strlen(key) && memcmp(m->key.ptr, key, m->key.len) == 0;
}

weir_status wr_gguf_put_meta(wr_gguf_writer *w, const wr_gguf_meta *m) {
  if (key_is(m, "general.alignment") || key_is(m, "split.no") || key_is(m, "split.count") || key_is(m, "split.tensors.count"))
    return w->status == WEIR_OK ? WEIR_OK : again(w);
  if (m->type == WR_GGUF_VALUE_ARRAY) {
    WR_TRY(put_array_head(w, m->key.ptr, m->key.len, m->v.array.type, (size_t)m->v.array.count));
    put_bytes(&w->metas, m->v.array.ptr, m->v.array.bytes);
    return put_done(w);
  }
  WR_TRY(put_key(w, m->key.ptr, m->key.len, m->type));
  if (m->type == WR_GGUF_VALUE_STRING) {
    put_u64(&w->metas, m->v.text.len);
    put_bytes(&w->metas, m->v.text.ptr, m->v.text.len);
  } else if (m->type == WR_GGUF_VALUE_F32) {
    float f = (float)m->v.f;
    put_bytes(&w->metas, &f, sizeof f);
  } else {
    /* Little-endian: the low bytes of the 64-bit value are the value in its own width. */
    put_bytes(&w->metas, &m->v, wr_gguf_value_bytes(m->type));
  }
  return put_done(w);
}

weir_status wr_gguf_put_tensor(wr_gguf_writer *w, const char *name, wr_gguf_type type, int n_dims, const uint64_t *dim) {
  const wr_gguf_type_info *t = wr_gguf_type_find((uint32_t)type);
  uint64_t rows = 1, bytes = 0;
  bool ok = t && n_dims >= 1 && n_dims <= WR_GGUF_MAX_DIMS;
  for (int d = 0; ok && d < n_dims; d++) ok = dim[d] > 0 && (d == 0 || !__builtin_mul_overflow(rows, dim[d], &rows));
  ok = ok && wr_gguf_type_bytes(t, dim[0], rows, &bytes) && bytes < INT64_MAX - w->data_end - w->alignment;
  WR_TRY(put_name(w, &w->infos, &w->tensors, name, strlen(name), WR_GGUF_MAX_NAME));
  if (!ok) return misuse(w, "tensor '%s': no such type, or a shape that is impossible for it", wr_shown(name));
  if (!wr_grow((void **)&w->size, &w->cap_size, w->tensors.n, sizeof *w->size))
    return stick(w, wr_fail_nomem(w->tensors.n * sizeof *w->size, "the list of tensors"));
  w->size[w->tensors.n - 1] = bytes;
  put_u32(&w->infos, (uint32_t)n_dims);
  for (int d = 0; d < n_dims; d++) put_u64(&w->infos, dim[d]);
  put_u32(&w->infos, (uint32_t)type);
  put_u64(&w->infos, w->data_end);
  w->data_end = (w->data_end + bytes + w->alignment - 1) / w->alignment * w->alignment;
  return put_done(w);
}

/* ---- to disk */

static weir_status write_all(wr_gguf_writer *w, const uint8_t *p, size_t n) {
  if (n == 0) return WEIR_OK;
  wr_hash_add(&w->hash, p, n); /* what was just read is in the cache for the write */
  if (wr_os_write(w->fd, w->temp, p, n) != 0) return fail_disk(w, "write");
  /* The disk begins now, so that the sync at the end finds little to do. What fails here fails there too. */
  const uint64_t end = w->hash.total_bytes;
  if (end - w->sent >= WRITEBACK_BYTES) {
    (void)sync_file_range(w->fd, (off_t)w->sent, (off_t)(end - w->sent), SYNC_FILE_RANGE_WRITE);
    w->sent = end;
  }
  return WEIR_OK;
}

static weir_status flush(wr_gguf_writer *w) {
  size_t n = w->buffered;
  w->buffered = 0;
  return write_all(w, w->buffer, n);
}

static weir_status emit(wr_gguf_writer *w, const void *bytes, size_t n) {
  if (n > BUFFER_BYTES - w->buffered) WR_TRY(flush(w));
  if (n >= BUFFER_BYTES) return write_all(w, bytes, n);
  if (n > 0) memcpy(w->buffer + w->buffered, bytes, n);
  w->buffered += n;
  return WEIR_OK;
}

/* Zeros after `bytes` bytes, up to the next multiple of the alignment. */
static weir_status pad(wr_gguf_writer *w, uint64_t bytes) {
  static const uint8_t zeros[4096];
  uint64_t n = (w->alignment - bytes % w->alignment) % w->alignment;
  for (; n > sizeof zeros; n -= sizeof zeros) WR_TRY(emit(w, zeros, sizeof zeros));
  return emit(w, zeros, (size_t)n);
}

static weir_status no_duplicates(wr_gguf_writer *w, const wr_str *s, const names *list) {
  wr_gguf_table table = {0};
  size_t dup = list->n, first;
  wr_gguf_text *texts = wr_calloc(WR_MAX(list->n, (size_t)1), sizeof *texts);
  if (!texts) return stick(w, wr_fail_nomem(list->n * sizeof *texts, "names"));
  for (size_t i = 0; i < list->n; i++) texts[i] = (wr_gguf_text){s->ptr + list->at[i].at, list->at[i].len};
  weir_status status = wr_gguf_table_build(&table, texts, list->n, wr_gguf_text_name, &dup, &first);
  if (status != WEIR_OK)
    stick(w, status);
  else if (dup < list->n)
    status = misuse(w, "the name '%s' was put twice", wr_escape(texts[dup].ptr, texts[dup].len));
  wr_gguf_table_free(&table);
  wr_free(texts);
  return status;
}

static weir_status write_header(wr_gguf_writer *w) {
  uint32_t version = 3;
  uint64_t counts[2] = {w->tensors.n, w->keys.n};
  w->header_written = true;
  WR_TRY(no_duplicates(w, &w->metas, &w->keys));
  WR_TRY(no_duplicates(w, &w->infos, &w->tensors));
  WR_TRY(emit(w, "GGUF", 4));
  WR_TRY(emit(w, &version, sizeof version));
  WR_TRY(emit(w, counts, sizeof counts));
  WR_TRY(emit(w, w->metas.ptr, w->metas.len));
  WR_TRY(emit(w, w->infos.ptr, w->infos.len));
  return pad(w, WR_GGUF_HEADER_BYTES + w->metas.len + w->infos.len);
}

weir_status wr_gguf_write(wr_gguf_writer *w, const void *bytes, size_t n) {
  const uint8_t *p = bytes;
  if (w->status != WEIR_OK) return again(w);
  if (!w->header_written) WR_TRY(write_header(w));
  while (n > 0) {
    if (w->current == w->tensors.n) return misuse(w, "%zu bytes of data more than the tensors take", n);
    size_t part = (size_t)WR_MIN((uint64_t)n, w->size[w->current] - w->current_done);
    WR_TRY(emit(w, p, part));
    p += part;
    n -= part;
    w->current_done += part;
    if (w->current_done < w->size[w->current]) break;
    WR_TRY(pad(w, w->size[w->current]));
    w->current++;
    w->current_done = 0;
  }
  return WEIR_OK;
}

/* After the rename: the folder's entry must be on the disk too. */
static weir_status sync_folder(wr_gguf_writer *w) {
  const char *slash = strrchr(w->path, '/');
  char *folder = slash ? wr_strndup(w->path, slash == w->path ? 1 : (size_t)(slash - w->path)) : wr_strdup(".");
  if (!folder) return stick(w, wr_fail_nomem(1, "a path"));
  weir_status status = WEIR_OK;
  if (wr_os_fsync_folder(folder) != 0) status = stick(w, wr_fail_errno(wr_write_status(errno), folder, "sync"));
  wr_free(folder);
  return status;
}

uint64_t wr_gguf_writer_bytes(const wr_gguf_writer *w) { return w->hash.total_bytes; }
uint64_t wr_gguf_writer_hash(const wr_gguf_writer *w) { return wr_hash_end(&w->hash); }

weir_status wr_gguf_writer_finish(wr_gguf_writer *w) {
  if (w->status != WEIR_OK) return again(w);
  if (w->fd < 0) return wr_fail(WEIR_EUSAGE, "%s: finished twice", wr_shown(w->path));
  if (!w->header_written) WR_TRY(write_header(w));
  if (w->current < w->tensors.n)
    return misuse(w, "data came for %zu of %zu tensors, and %llu bytes of the next", w->current, w->tensors.n,
                  (ull)w->current_done);
  WR_TRY(flush(w));
  if (wr_os_fsync(w->fd, w->temp) != 0) return fail_disk(w, "sync");
  int closed = close(w->fd);
  w->fd = -1;
  if (closed != 0) return fail_disk(w, "close");
  const bool renames = strcmp(w->temp, w->path) != 0;
  if (renames && wr_os_rename(w->temp, w->path) != 0)
    return stick(w, wr_fail_errno(wr_write_status(errno), w->path, "rename the finished file to this name"));
  wr_free(w->temp);
  w->temp = NULL;
  return renames ? sync_folder(w) : WEIR_OK; /* whoever made the folder syncs it */
}
