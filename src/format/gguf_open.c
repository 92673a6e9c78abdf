/* Opens a GGUF model: one file, or all parts of a split one; owns the handle.
 *
 * A split model is a series of GGUF files NAME-00001-of-0000N.gguf. Each says in its metadata which part it is (split.no, from
 * 0), of how many (split.count), and how many tensors all have together (split.tensors.count). Any part may be named; the
 * others are found by name beside it.
 * Refuses: a part that is missing, or whose numbers or architecture say that it belongs to another series; a total other than
 *   split.tensors.count; two tensors of one name, in one part or in two.
 */
#include "format/format_i.h"

#include <stdlib.h>

/* The length of "-00001-of-00003.gguf" */
#define SUFFIX_LEN 20

static void part_drop(wr_gguf_file *f) {
  if (!f->borrowed) wr_map_close(&f->map);
  wr_free(f->path);
  *f = (wr_gguf_file){0};
}

void wr_gguf_close(wr_gguf *g) {
  if (!g) return;
  for (size_t i = 0; i < g->n_parts; i++) part_drop(&g->part[i]);
  wr_free(g->part);
  wr_gguf_metas_free(&g->meta);
  wr_gguf_table_free(&g->tensor_table);
  wr_free(g->tensor);
  wr_arena_free(&g->names);
  wr_free(g);
}

/* A new last part: its path; the map is left to the caller. */
static weir_status part_add(wr_gguf *g, const char *path) {
  if (!wr_grow((void **)&g->part, &g->cap_parts, g->n_parts + 1, sizeof *g->part))
    return wr_fail_nomem(sizeof *g->part, "the list of parts");
  wr_gguf_file *f = &g->part[g->n_parts];
  *f = (wr_gguf_file){.path = wr_strdup(path), .borrowed = true};
  if (!f->path) return wr_fail_nomem(strlen(path) + 1, "a path");
  g->n_parts++;
  return WEIR_OK;
}

static weir_status part_open(wr_gguf *g, const char *path, bool no_mmap, wr_gguf_metas *meta) {
  WR_TRY(part_add(g, path));
  wr_gguf_file *f = &g->part[g->n_parts - 1];
  WR_TRY(wr_map_open(path, no_mmap, &f->map));
  f->borrowed = false;
  return wr_gguf_parse(g, g->n_parts - 1, meta);
}

typedef struct split {
  int64_t no, count, n_tensors; /* n_tensors -1: not said */
} split;

static weir_status split_read(const wr_gguf_metas *m, const char *path, split *s) {
  *s = (split){0, 1, -1};
  WR_TRY(wr_gguf_metas_int(m, path, "split.count", false, 0, 65535, &s->count));
  WR_TRY(wr_gguf_metas_int(m, path, "split.no", false, 0, 65535, &s->no));
  WR_TRY(wr_gguf_metas_int(m, path, "split.tensors.count", false, 0, INT64_MAX, &s->n_tensors));
  s->count = WR_MAX(s->count, 1); /* 0 is written for 'not split' */
  if (s->no >= s->count)
    return wr_fail(WEIR_EFORMAT, "%s: split.no is %d, but split.count is %d", wr_shown(path), (int)s->no, (int)s->count);
  return WEIR_OK;
}

static void suffix_text(char out[64], int no, int count) { snprintf(out, 64, "-%05d-of-%05d.gguf", no + 1, count); }

/* The path of part `no` of the series that `path` belongs to. */
static weir_status split_path(const char *path, const split *s, int no, char **out) {
  char suffix[64];
  size_t n = strlen(path);
  suffix_text(suffix, (int)s->no, (int)s->count);
  if (n < SUFFIX_LEN || strcmp(path + n - SUFFIX_LEN, suffix) != 0)
    return wr_fail(WEIR_EFORMAT, "%s: part %d of %d of a split model; to find the other parts its name must end in '%s'",
                   wr_shown(path), (int)s->no + 1, (int)s->count, suffix);
  char *p = wr_strdup(path);
  if (!p) return wr_fail_nomem(n + 1, "a path");
  suffix_text(suffix, no, (int)s->count);
  memcpy(p + n - SUFFIX_LEN, suffix, SUFFIX_LEN);
  *out = p;
  return WEIR_OK;
}

/* Opens part `no` beside `path`; its own numbers must say that it is that part of the same series. */
static weir_status split_open(wr_gguf *g, const char *path, const split *series, int no, bool no_mmap, wr_gguf_metas *meta) {
  char *sibling = NULL;
  split s;
  WR_TRY(split_path(path, series, no, &sibling));
  weir_status status = part_open(g, sibling, no_mmap, meta);
  if (status == WEIR_EIO) {
    wr_fail_prefix(WEIR_EFORMAT, "part %d of %d of %s is missing: ", no + 1, (int)series->count, wr_shown(path));
    status = WEIR_EFORMAT;
  }
  if (status == WEIR_OK) status = split_read(meta, sibling, &s);
  if (status == WEIR_OK && (s.no != no || s.count != series->count || s.n_tensors != series->n_tensors))
    status = wr_fail(WEIR_EFORMAT,
                     "%s: does not belong to the split model of %s: it says part %d of %d with %lld tensors "
                     "in all, wanted part %d of %d with %lld",
                     wr_shown(sibling), wr_shown(path), (int)s.no + 1, (int)s.count, (long long)s.n_tensors, no + 1,
                     (int)series->count, (long long)series->n_tensors);
  wr_free(sibling);
  return status;
}

/* Two parts that both name an architecture must name the same. */
static weir_status same_arch(const wr_gguf_metas *a, const wr_gguf_metas *b, const char *path) {
  const wr_gguf_meta *x = wr_gguf_metas_find(a, "general.architecture"), *y = wr_gguf_metas_find(b, "general.architecture");
  if (!x || !y || x->type != WR_GGUF_VALUE_STRING || y->type != WR_GGUF_VALUE_STRING) return WEIR_OK;
  if (x->v.text.len == y->v.text.len && memcmp(x->v.text.ptr, y->v.text.ptr, x->v.text.len) == 0) return WEIR_OK;
  return wr_fail(WEIR_EFORMAT, "%s: its architecture is '%s', that of the first part '%s'", wr_shown(path),
                 wr_escape(y->v.text.ptr, y->v.text.len), wr_escape(x->v.text.ptr, x->v.text.len));
}

/* Part 0 is open and is part 0 of s: open the others. */
static weir_status split_rest(wr_gguf *g, const split *s, bool no_mmap) {
  for (int no = 1; no < s->count; no++) {
    wr_gguf_metas meta = {0};
    weir_status status = split_open(g, g->part[0].path, s, no, no_mmap, &meta);
    if (status == WEIR_OK) status = same_arch(&g->meta, &meta, g->part[no].path);
    wr_gguf_metas_free(&meta);
    WR_TRY(status);
  }
  return WEIR_OK;
}

static weir_status finish(wr_gguf *g, const split *s) {
  size_t dup, first;
  if (s->n_tensors >= 0 && (uint64_t)s->n_tensors != g->n_tensors)
    return wr_fail(WEIR_EFORMAT, "%s: split.tensors.count is %lld, but the %d parts hold %zu tensors",
                   wr_shown(g->part[0].path), (long long)s->n_tensors, (int)s->count, g->n_tensors);
  WR_TRY(wr_gguf_table_build(&g->tensor_table, g->tensor, g->n_tensors, wr_gguf_tensor_name, &dup, &first));
  if (dup == g->n_tensors) return WEIR_OK;
  const wr_gguf_tensor *t = &g->tensor[dup], *u = &g->tensor[first];
  const char *path = wr_shown(g->part[t->part].path), *name = wr_shown(t->name);
  if (t->part == u->part) return wr_fail(WEIR_EFORMAT, "%s: two tensors have the name '%s'", path, name);
  return wr_fail(WEIR_EFORMAT, "%s: tensor '%s' is in part %d as well", path, name, u->part + 1);
}

static weir_status open_all(wr_gguf *g, const char *path, bool no_mmap) {
  split s;
  WR_TRY(part_open(g, path, no_mmap, &g->meta));
  WR_TRY(split_read(&g->meta, path, &s));
  if (s.no != 0) {
    /* Begin again at the first part. */
    split named = s;
    wr_gguf_metas_free(&g->meta);
    part_drop(&g->part[0]);
    g->n_parts = 0;
    g->n_tensors = 0;
    wr_arena_free(&g->names);
    WR_TRY(split_open(g, path, &named, 0, no_mmap, &g->meta));
    WR_TRY(split_read(&g->meta, g->part[0].path, &s));
  }
  WR_TRY(split_rest(g, &s, no_mmap));
  return finish(g, &s);
}

weir_status wr_gguf_open(const char *path, const wr_gguf_options *options, wr_gguf **out) {
  char *file;
  WR_TRY(wr_model_path(path, &file));
  wr_gguf *g = wr_calloc(1, sizeof *g);
  weir_status status = g ? open_all(g, file, options && options->no_mmap) : wr_fail_nomem(sizeof *g, "a file handle");
  wr_free(file);
  if (status != WEIR_OK) {
    wr_gguf_close(g);
    return status;
  }
  *out = g;
  return WEIR_OK;
}

static weir_status open_bytes(wr_gguf *g, const void *bytes, size_t n, const char *name) {
  split s;
  WR_TRY(part_add(g, name));
  g->part[0].map = (wr_map){.ptr = bytes, .bytes = n, .heap = true};
  WR_TRY(wr_gguf_parse(g, 0, &g->meta));
  WR_TRY(split_read(&g->meta, name, &s));
  if (s.count > 1)
    return wr_fail(WEIR_EUNSUPPORTED, "%s: part %d of %d of a split model, whose other parts are files", wr_shown(name),
                   (int)s.no + 1, (int)s.count);
  return finish(g, &s);
}

weir_status wr_gguf_open_memory(const void *bytes, size_t n, const char *name, wr_gguf **out) {
  wr_gguf *g = wr_calloc(1, sizeof *g);
  if (!g) return wr_fail_nomem(sizeof *g, "a file handle");
  weir_status status = open_bytes(g, bytes, n, name);
  if (status != WEIR_OK) {
    wr_gguf_close(g);
    return status;
  }
  *out = g;
  return WEIR_OK;
}

const char *wr_gguf_path(const wr_gguf *g) { return g->part[0].path; }
uint32_t wr_gguf_version(const wr_gguf *g) { return g->part[0].version; }
uint64_t wr_gguf_alignment(const wr_gguf *g) { return g->part[0].alignment; }
int wr_gguf_n_parts(const wr_gguf *g) { return (int)g->n_parts; }

uint64_t wr_gguf_file_bytes(const wr_gguf *g) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < g->n_parts; i++) bytes += g->part[i].map.bytes;
  return bytes;
}

wr_gguf_part wr_gguf_part_at(const wr_gguf *g, int i) {
  return (wr_gguf_part){g->part[i].path, &g->part[i].map, g->part[i].header_bytes};
}

size_t wr_gguf_n_tensors(const wr_gguf *g) { return g->n_tensors; }
const wr_gguf_tensor *wr_gguf_tensor_at(const wr_gguf *g, size_t i) { return &g->tensor[i]; }

const wr_gguf_tensor *wr_gguf_tensor_find(const wr_gguf *g, const char *name) {
  size_t i = wr_gguf_table_find(&g->tensor_table, g->tensor, wr_gguf_tensor_name, name, strlen(name));
  return i == SIZE_MAX ? NULL : &g->tensor[i];
}
