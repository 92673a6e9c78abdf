/* Packed files, for the public API. */
#include <errno.h>
#include <limits.h>
#include <unistd.h>

#include "infer/infer_i.h"

typedef struct listing {
  weir_cache *c;
  size_t cap;
} listing;

static weir_status add(void *user, const wr_pack_file *f) {
  listing *l = user;
  if (!wr_grow((void **)&l->c->entries, &l->cap, l->c->n_entries + 1, sizeof *l->c->entries))
    return wr_fail_nomem(sizeof *l->c->entries, "a list of packed files");
  weir_cache_entry e = {.path = wr_strdup(f->path), .source = wr_strdup(f->source), .bytes = f->bytes, .stale = f->stale};
  if (!e.path || !e.source) {
    wr_free(e.path);
    wr_free(e.source);
    return wr_fail_nomem(strlen(f->path), "a list of packed files");
  }
  l->c->entries[l->c->n_entries++] = e;
  l->c->bytes += e.bytes;
  return WEIR_OK;
}

weir_status weir_cache_list(weir_cache **out) {
  char folder[PATH_MAX];
  WR_TRY(wr_pack_folder(folder, sizeof folder));
  weir_cache *c = wr_calloc(1, sizeof *c);
  if (!c) return wr_fail_nomem(sizeof *c, "a list of packed files");
  listing l = {.c = c};
  c->folder = wr_strdup(folder);
  const weir_status s = c->folder ? wr_pack_list(add, &l) : wr_fail_nomem(strlen(folder), "a list of packed files");
  if (s != WEIR_OK) {
    weir_cache_free(c);
    return s;
  }
  *out = c;
  return WEIR_OK;
}

void weir_cache_free(weir_cache *c) {
  if (!c) return;
  for (size_t i = 0; i < c->n_entries; i++) {
    wr_free(c->entries[i].path);
    wr_free(c->entries[i].source);
  }
  wr_free(c->entries);
  wr_free(c->folder);
  wr_free(c);
}

weir_status weir_cache_clear(bool only_stale, size_t *n_files, uint64_t *bytes) {
  weir_cache *c;
  WR_TRY(weir_cache_list(&c));
  size_t n = 0;
  uint64_t sum = 0;
  weir_status s = WEIR_OK;
  for (size_t i = 0; i < c->n_entries && s == WEIR_OK; i++) {
    if (only_stale && !c->entries[i].stale) continue;
    if (unlink(c->entries[i].path) && errno != ENOENT)
      s = wr_fail_errno(WEIR_EIO, c->entries[i].path, "remove");
    else
      n++, sum += c->entries[i].bytes;
  }
  weir_cache_free(c);
  if (s == WEIR_OK && n_files) *n_files = n;
  if (s == WEIR_OK && bytes) *bytes = sum;
  return s;
}

weir_status weir_cache_verify(const char *path) { return wr_pack_verify(path); }
