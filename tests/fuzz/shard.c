/* Fuzz target: the first byte says what the rest is: a shard, a manifest, a line of JSONL. Shards get the header checksum that belongs to
 * them, so that the counts behind it are reached; whatever opens is read in full, so that a range outside the bytes is seen. A line of JSONL
 * must be good exactly when jansson takes it and the field is a string. */
#include <jansson.h>
#include <stdlib.h>

#include "data/data_i.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink;

static void require(bool ok) {
  if (!ok) abort();
}

static void try_shard(const uint8_t *data, size_t size) {
  uint8_t *bytes = malloc(size + 1); /* aligned, and of its own */
  if (!bytes) return;
  memcpy(bytes, data, size);
  if (size >= WR_SHARD_HEADER_BYTES) {
    const uint64_t hash = wr_hash64(bytes, WR_SHARD_HEADER_BYTES - 8, 0), n = size;
    memcpy(bytes + offsetof(wr_shard_header, file_bytes), &n, 8);
    memcpy(bytes + WR_SHARD_HEADER_BYTES - 8, &hash, 8);
    const uint64_t again = wr_hash64(bytes, WR_SHARD_HEADER_BYTES - 8, 0);
    memcpy(bytes + WR_SHARD_HEADER_BYTES - 8, &again, 8);
  }
  wr_shard s;
  if (wr_shard_parse(bytes, size, "fuzz", &s) == WEIR_OK) {
    const wr_shard_header *h = s.head;
    for (uint64_t i = 0; i < h->n_tokens; i++) sink += wr_shard_token(&s, i);
    for (uint64_t i = 0; i < h->n_docs; i++) sink += s.doc_ends[i];
    int64_t n_docs;
    for (uint64_t from = 0; from < h->n_tokens; from += 1 + h->n_tokens / 7) {
      const uint64_t *ends = wr_doc_ends_find(s.doc_ends, h->n_docs, from, from + 9, &n_docs);
      require(n_docs >= 0 && (uint64_t)n_docs <= h->n_docs);
      for (int64_t i = 0; i < n_docs; i++) sink += ends[i];
      enum { T = 9 };
      int32_t *tables = malloc(4 * T * sizeof *tables);
      const int64_t n_tok = (int64_t)WR_MIN(h->n_tokens - from, (uint64_t)T + 1);
      const wr_sample sample = {.tokens = s.tokens + from * h->token_bytes,
                                .token_bytes = (int)h->token_bytes,
                                .n_tok = n_tok,
                                .doc_ends = ends,
                                .n_docs = n_docs,
                                .first_tok = from};
      if (tables && n_tok > 1) {
        wr_batch batch = {tables, tables + T, tables + 2 * T, tables + 3 * T, 0, 0};
        if (wr_batch_fill(&sample, 1, 1, T, (int64_t)h->vocab, true, &batch) == WEIR_OK)
          for (int i = 0; i < T; i++)
            require(batch.tokens[i] < (int64_t)h->vocab && batch.first[i] >= 0 && batch.first[i] <= i && batch.pos[i] >= 0 &&
                    batch.pos[i] <= i);
      }
      free(tables);
    }
    wr_shard_check(&s, "fuzz", NULL);
  }
  free(bytes);
}

static void try_manifest(const uint8_t *data, size_t size) {
  wr_shards_manifest m;
  if (wr_shards_manifest_parse((const char *)data, size, "fuzz", &m) != WEIR_OK) {
    require(weir_last_error()[0]);
    return;
  }
  for (int k = 0; k < WR_SPLITS; k++)
    for (size_t i = 0; i < m.split[k].n; i++) require(!strchr(m.split[k].shards[i].file, '/'));
  wr_shards_manifest_free(&m);
}

/* Where the two differ by intent: jansson refuses NUL in keys and numbers out of range, and takes surrogates in no string at all. */
static bool comparable(const char *line, size_t n) {
  for (size_t i = 0; i + 1 < n; i++)
    if (line[i] == '\\' && line[i + 1] == 'u') return false;
  for (size_t i = 0; i < n; i++)
    if ((line[i] >= '0' && line[i] <= '9') || !line[i]) return false;
  return true;
}

static void try_line(const uint8_t *data, size_t size) {
  char *scratch = NULL, *line = malloc(size + 1);
  size_t cap = 0, n = 0, column = 0;
  const char *text = NULL, *rule = NULL;
  if (!line) return;
  memcpy(line, data, size);
  const wr_record r = wr_jsonl_field(line, size, "text", &scratch, &cap, &text, &n, &column, &rule);
  if (r == WR_RECORD_OK) {
    for (size_t i = 0; i < n; i++) sink += (uint8_t)text[i];
    require(wr_utf8_valid(text, n) == n);
  }
  if (r == WR_RECORD_BAD) require(rule && column >= 1 && column <= size + 1);
  if (r != WR_RECORD_NOMEM && comparable(line, size)) {
    json_error_t e;
    json_t *o = json_loadb(line, size, JSON_ALLOW_NUL | JSON_DECODE_ANY, &e);
    const json_t *v = json_object_get(o, "text");
    if (r == WR_RECORD_OK) {
      require(json_is_string(v) && json_string_length(v) == n && memcmp(json_string_value(v), text, n) == 0);
    } else if (json_is_string(v)) {
      require(strstr(rule, "twice") || strstr(rule, "levels"));
    }
    json_decref(o);
  }
  wr_free(scratch);
  free(line);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (!size) return 0;
  void (*const tries[])(const uint8_t *, size_t) = {try_shard, try_manifest, try_line};
  tries[data[0] % 3](data + 1, size - 1);
  return 0;
}
