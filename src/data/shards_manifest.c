/* shards_manifest.c: owns manifest.json of a folder of shards: which files belong to it, in which order, and what they were made from.
 *
 * The manifest is written last, atomically, so a folder that has one is whole. Each shard is named with the checksum of its header, so
 * one that was put in another's place is noticed. Counts of a manifest are only believed where the shards say the same. */
#include "data/data_i.h"

#include <jansson.h>
#include <unistd.h>

#define MAX_MANIFEST_BYTES ((size_t)64 << 20)

const char *const wr_split_names[WR_SPLITS] = {"train", "val"};

char *wr_path_join(const char *folder, const char *file) {
  const size_t a = strlen(folder), b = strlen(file);
  char *path = wr_malloc(a + b + 2);
  if (!path) return NULL;
  memcpy(path, folder, a);
  path[a] = '/';
  memcpy(path + a + 1, file, b + 1);
  return path;
}

/* Does the file begin with these bytes, perhaps after others of its first 256? */
static bool file_says(const char *folder, const char *file, const char *what) {
  char *path = wr_path_join(folder, file), head[256];
  FILE *f = path ? fopen(path, "rb") : NULL;
  const size_t n = f ? fread(head, 1, sizeof head, f) : 0;
  if (f) fclose(f);
  wr_free(path);
  return memmem(head, n, what, strlen(what)) != NULL;
}

/* Other programs write files called manifest.json too. A folder whose manifest is damaged still has its shards. */
bool wr_data_is_shards(const char *path) {
  return file_says(path, "manifest.json", "\"weir-shards\"") || file_says(path, "build.json", "{\"build\": \"") ||
         file_says(path, "train-00000.bin", WR_SHARD_MAGIC);
}

bool wr_shards_manifest_add(wr_manifest_split *s, const char *file, const wr_shard_header *h) {
  if (!wr_grow((void **)&s->shards, &s->cap, s->n + 1, sizeof *s->shards)) return false;
  wr_manifest_shard *m = &s->shards[s->n++];
  *m = (wr_manifest_shard){.tokens = h->n_tokens, .docs = h->n_docs - h->continues, .header_hash = h->header_hash};
  snprintf(m->file, sizeof m->file, "%s", file);
  s->tokens += m->tokens;
  s->docs += m->docs;
  return true;
}

void wr_shards_manifest_free(wr_shards_manifest *m) {
  for (int i = 0; i < WR_SPLITS; i++) wr_free(m->split[i].shards);
  *m = (wr_shards_manifest){0};
}

/* ---------------------------------------------------------------------------------------------------------------- reading */

typedef struct reader {
  const char *path;
  weir_status status;
} reader;

static void bad(reader *r, const char *key, const char *want) {
  if (r->status == WEIR_OK)
    r->status = wr_fail(WEIR_EFORMAT, "%s: \"%s\" is missing or is not %s", wr_escape(r->path, strlen(r->path)), key, want);
}

static uint64_t get_count(reader *r, const json_t *o, const char *key, uint64_t most) {
  const json_t *v = json_object_get(o, key);
  const json_int_t n = json_is_integer(v) ? json_integer_value(v) : -1;
  if (n < 0 || (uint64_t)n > most) bad(r, key, "a whole number in range");
  return n < 0 ? 0 : (uint64_t)n;
}

static uint64_t get_hash(reader *r, const json_t *o, const char *key) {
  const char *text = json_string_value(json_object_get(o, key));
  char *end = NULL;
  const uint64_t h = text && strlen(text) == 16 ? strtoull(text, &end, 16) : 0;
  if (!end || *end) bad(r, key, "16 hexadecimal digits");
  return h;
}

static void get_text(reader *r, const json_t *o, const char *key, char *out, size_t cap) {
  const char *text = json_string_value(json_object_get(o, key));
  if (!text || strlen(text) >= cap)
    bad(r, key, "a short text");
  else
    memcpy(out, text, strlen(text) + 1);
}

static void get_shards(reader *r, const json_t *list, const char *name, wr_manifest_split *out) {
  size_t i;
  json_t *o;
  if (!json_is_array(list)) bad(r, name, "a list");
  json_array_foreach(list, i, o) {
    wr_shard_header h = {.n_tokens = get_count(r, o, "tokens", INT64_MAX / 4),
                         .n_docs = get_count(r, o, "docs", INT64_MAX / 8),
                         .header_hash = get_hash(r, o, "header_hash")};
    char file[sizeof((wr_manifest_shard *)0)->file] = "";
    get_text(r, o, "file", file, sizeof file);
    if (strchr(file, '/') || file[0] == '.') bad(r, "file", "the name of a file in this folder");
    if (r->status == WEIR_OK && !wr_shards_manifest_add(out, file, &h))
      r->status = wr_fail_nomem(json_array_size(list) * 64, "a manifest");
    if (r->status != WEIR_OK) return;
  }
}

weir_status wr_shards_manifest_parse(const char *text, size_t n, const char *path, wr_shards_manifest *out) {
  json_error_t e;
  json_t *o = json_loadb(text, n, JSON_REJECT_DUPLICATES, &e);
  if (!o)
    return wr_fail(WEIR_EFORMAT, "%s:%d:%d: %s", wr_escape(path, strlen(path)), e.line, e.column,
                   wr_escape(e.text, strlen(e.text)));
  reader r = {.path = path};
  wr_shards_manifest m = {0};
  char format[32] = "";
  get_text(&r, o, "format", format, sizeof format);
  if (r.status == WEIR_OK && strcmp(format, "weir-shards") != 0) bad(&r, "format", "\"weir-shards\"");
  if (r.status == WEIR_OK && get_count(&r, o, "version", UINT32_MAX) != WR_SHARD_VERSION && r.status == WEIR_OK)
    r.status = wr_fail(WEIR_EUNSUPPORTED, "%s: shards of another version; this weir reads version %d",
                       wr_escape(path, strlen(path)), WR_SHARD_VERSION);
  m.vocab = get_count(&r, o, "vocab", INT32_MAX);
  m.token_bytes = (uint32_t)get_count(&r, o, "token_bytes", 4);
  get_text(&r, o, "tokenizer", m.tokenizer, sizeof m.tokenizer);
  m.tokenizer_hash = get_hash(&r, o, "tokenizer_hash");
  m.build = get_hash(&r, o, "build");
  m.val_share = json_number_value(json_object_get(o, "val_share"));
  m.bytes = get_count(&r, o, "bytes", INT64_MAX);
  m.docs = get_count(&r, o, "docs", INT64_MAX);
  m.records = get_count(&r, o, "records", INT64_MAX);
  m.bad = get_count(&r, o, "bad", INT64_MAX);
  m.empty = get_count(&r, o, "empty", INT64_MAX);
  const json_t *shards = json_object_get(o, "shards");
  for (int i = 0; i < WR_SPLITS && r.status == WEIR_OK; i++)
    get_shards(&r, json_object_get(shards, wr_split_names[i]), wr_split_names[i], &m.split[i]);
  json_decref(o);
  if (r.status == WEIR_OK)
    *out = m;
  else
    wr_shards_manifest_free(&m);
  return r.status;
}

weir_status wr_shards_manifest_read(const char *folder, wr_shards_manifest *out) {
  char *path = wr_path_join(folder, "manifest.json"), *text = NULL, *unfinished = wr_path_join(folder, "build.json");
  size_t n = 0;
  weir_status s = WEIR_OK;
  if (!path || !unfinished)
    s = wr_fail_nomem(strlen(folder), "a path");
  else if (access(path, F_OK) != 0 && access(unfinished, F_OK) == 0)
    s = wr_fail(WEIR_EFORMAT, "%s: a build that was not finished; start the same 'weir data build' again and it goes on",
                wr_escape(folder, strlen(folder)));
  else
    s = wr_file_read(path, MAX_MANIFEST_BYTES, &text, &n);
  if (s == WEIR_OK) s = wr_shards_manifest_parse(text, n, path, out);
  wr_free(text);
  wr_free(path);
  wr_free(unfinished);
  return s;
}

weir_status wr_shards_manifest_open_shard(const char *folder, const wr_shards_manifest *m, int split, size_t i, wr_shard *out) {
  const wr_manifest_shard *want = &m->split[split].shards[i];
  char *path = wr_path_join(folder, want->file);
  if (!path) return wr_fail_nomem(strlen(folder), "a path");
  wr_shard shard;
  weir_status s = wr_shard_open(path, &shard);
  if (s == WEIR_OK) {
    const wr_shard_header *h = shard.head;
    if (h->header_hash != want->header_hash || h->n_tokens != want->tokens || h->n_docs - h->continues != want->docs ||
        h->vocab != m->vocab || h->tokenizer_hash != m->tokenizer_hash)
      s = wr_fail(WEIR_EFORMAT, "%s: is not the shard that manifest.json names; build the folder again",
                  wr_escape(path, strlen(path)));
    if (s == WEIR_OK)
      *out = shard;
    else
      wr_shard_close(&shard);
  }
  wr_free(path);
  return s;
}

/* ---------------------------------------------------------------------------------------------------------------- writing */

weir_status wr_shards_manifest_write(const char *folder, const wr_shards_manifest *m) {
  wr_str out = {0};
  wr_str_printf(
      &out,
      "{\n \"format\": \"weir-shards\",\n \"version\": %d,\n \"tokenizer\": \"%s\",\n \"tokenizer_hash\": \"%016llx\",\n"
      " \"vocab\": %llu,\n \"token_bytes\": %u,\n \"val_share\": %.17g,\n \"bytes\": %llu,\n \"docs\": %llu,\n"
      " \"records\": %llu,\n \"bad\": %llu,\n \"empty\": %llu,\n \"build\": \"%016llx\",\n \"shards\": {",
      WR_SHARD_VERSION, m->tokenizer, (unsigned long long)m->tokenizer_hash, (unsigned long long)m->vocab, m->token_bytes,
      m->val_share, (unsigned long long)m->bytes, (unsigned long long)m->docs, (unsigned long long)m->records,
      (unsigned long long)m->bad, (unsigned long long)m->empty, (unsigned long long)m->build);
  for (int k = 0; k < WR_SPLITS; k++) {
    wr_str_printf(&out, "%s\n  \"%s\": [", k ? "," : "", wr_split_names[k]);
    for (size_t i = 0; i < m->split[k].n; i++) {
      const wr_manifest_shard *s = &m->split[k].shards[i];
      wr_str_printf(&out, "%s\n   {\"file\": \"%s\", \"tokens\": %llu, \"docs\": %llu, \"header_hash\": \"%016llx\"}",
                    i ? "," : "", s->file, (unsigned long long)s->tokens, (unsigned long long)s->docs,
                    (unsigned long long)s->header_hash);
    }
    wr_str_puts(&out, "]");
  }
  wr_str_puts(&out, "\n }\n}\n");
  char *path = wr_path_join(folder, "manifest.json");
  weir_status s = out.oom || !path ? wr_fail_nomem(out.len, "a manifest") : wr_file_write_atomic(path, out.ptr, out.len);
  wr_free(path);
  wr_str_free(&out);
  return s;
}
