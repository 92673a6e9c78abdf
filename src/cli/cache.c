/* weir cache: the packed weights that weir keeps, listed, cleared or read through. */
#include <string.h>

#include "cli_i.h"

static int list(const wr_options *o, const weir_cache *c) {
  char size[16];
  if (o->json) {
    wr_json j;
    wr_json_begin(&j, stdout);
    wr_json_object(&j);
    wr_json_string(&j, "folder", c->folder);
    wr_json_count(&j, "bytes", c->bytes);
    wr_json_key(&j, "entries");
    wr_json_array(&j);
    for (size_t i = 0; i < c->n_entries; i++) {
      wr_json_object(&j);
      wr_json_string(&j, "path", c->entries[i].path);
      wr_json_string(&j, "source", c->entries[i].source);
      wr_json_count(&j, "bytes", c->entries[i].bytes);
      wr_json_flag(&j, "stale", c->entries[i].stale);
      wr_json_end(&j);
    }
    wr_json_end(&j);
    wr_json_end(&j);
    wr_json_done(&j);
    return 0;
  }
  wr_size(size, (double)c->bytes);
  char shown[512];
  weir_escape(c->folder, strlen(c->folder), shown, sizeof shown);
  printf("%s: %zu packed model%s, %s\n", shown, c->n_entries, c->n_entries == 1 ? "" : "s", size);
  for (size_t i = 0; i < c->n_entries; i++) {
    const weir_cache_entry *e = &c->entries[i];
    const char *source =
        e->source && e->source[0] ? e->source : e->path; /* one that is being made, or was left behind, names no model yet */
    wr_size(size, (double)e->bytes);
    weir_escape(source, strlen(source), shown, sizeof shown);
    printf("%10s  %s  %s\n", size, e->stale ? "stale" : "     ", shown);
  }
  return 0;
}

static int verify(const wr_options *o, const weir_cache *c) {
  int bad = 0;
  for (size_t i = 0; i < c->n_entries; i++) {
    const weir_status s = weir_cache_verify(c->entries[i].path);
    if (s != WEIR_OK)
      bad = wr_failed(o, s);
    else if (!o->json)
      printf("good  %s\n", c->entries[i].path);
    wr_progress(o, "verifying", (double)(i + 1) / (double)c->n_entries);
  }
  return bad;
}

static int clear(const wr_options *o) {
  size_t n = 0;
  uint64_t bytes = 0;
  char size[16];
  const weir_status s = weir_cache_clear(o->stale, &n, &bytes);
  if (s != WEIR_OK) return wr_failed(o, s);
  wr_size(size, (double)bytes);
  if (o->json) {
    wr_json j;
    wr_json_begin(&j, stdout);
    wr_json_object(&j);
    wr_json_count(&j, "removed", n);
    wr_json_count(&j, "bytes", bytes);
    wr_json_end(&j);
    wr_json_done(&j);
  } else {
    printf("%zu file%s removed, %s\n", n, n == 1 ? "" : "s", size);
  }
  return wr_done(o);
}

int wr_cmd_cache(const wr_options *o) {
  const char *what = o->n_args ? o->args[0] : "list";
  if (strcmp(what, "clear") == 0) return clear(o);
  const bool verifies = strcmp(what, "verify") == 0;
  if (!verifies && strcmp(what, "list") != 0) return wr_usage(o, "'%s' is none of list, clear, verify", what);
  weir_cache *c;
  const weir_status s = weir_cache_list(&c);
  if (s != WEIR_OK) return wr_failed(o, s);
  const int code = verifies ? verify(o, c) : list(o, c);
  weir_cache_free(c);
  return code ? code : wr_done(o);
}
