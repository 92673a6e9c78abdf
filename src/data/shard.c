/* shard.c: owns the files of tokens: writing them, opening them, and reading them through.
 *
 * Opening looks at the header alone, and holds every count of it against the file's size, so it costs the same for any size and
 * whatever opens holds only ranges inside the file; wr_shard_check is the pass over the rest. A writer keeps one block in memory,
 * writes to PATH.tmp and renames at the end, so a file with the right name is whole.
 */
#include "data/data_i.h"

#include <errno.h>
#include <libgen.h>
#include <unistd.h>

_Static_assert(sizeof(wr_shard_header) == WR_SHARD_HEADER_BYTES, "the header is a page");

int wr_token_width(uint64_t vocab) { return vocab <= 65536 ? 2 : 4; }

/* ---------------------------------------------------------------------------------------------------------------- opening */

static uint64_t header_hash(const wr_shard_header *h) { return wr_hash64(h, offsetof(wr_shard_header, header_hash), 0); }

/* The counts of a header whose checksum is right may still be anybody's: every one is held against the size. */
static weir_status check_header(const wr_shard_header *h, uint64_t bytes, const char *name) {
  if (h->token_bytes != 2 && h->token_bytes != 4)
    return wr_fail(WEIR_EFORMAT, "%s: %u bytes a token; 2 or 4 are possible", name, h->token_bytes);
  if (h->vocab < 1 || h->vocab > INT32_MAX)
    return wr_fail(WEIR_EFORMAT, "%s: a vocabulary of %llu", name, (unsigned long long)h->vocab);
  if (h->token_bytes == 2 && h->vocab > 65536)
    return wr_fail(WEIR_EFORMAT, "%s: 2 bytes a token for a vocabulary of %llu", name, (unsigned long long)h->vocab);
  const uint64_t room = bytes - WR_SHARD_HEADER_BYTES;
  if (h->n_tokens > room / h->token_bytes)
    return wr_fail(WEIR_EFORMAT, "%s: is cut short: its header says %llu tokens, the file has room for %llu", name,
                   (unsigned long long)h->n_tokens, (unsigned long long)(room / h->token_bytes));
  const uint64_t tokens_end = WR_SHARD_HEADER_BYTES + h->n_tokens * h->token_bytes;
  if (h->doc_ends_at % 8 || h->doc_ends_at < tokens_end || h->doc_ends_at > bytes)
    return wr_fail(WEIR_EFORMAT, "%s: the document ends are said to be at byte %llu, not behind the tokens", name,
                   (unsigned long long)h->doc_ends_at);
  if (h->n_docs > (bytes - h->doc_ends_at) / 8)
    return wr_fail(WEIR_EFORMAT, "%s: is cut short: its header says %llu documents, the file has room for %llu", name,
                   (unsigned long long)h->n_docs, (unsigned long long)((bytes - h->doc_ends_at) / 8));
  if (h->n_tokens && !h->n_docs) return wr_fail(WEIR_EFORMAT, "%s: tokens but no document", name);
  return WEIR_OK;
}

weir_status wr_shard_parse(const uint8_t *bytes, size_t n, const char *path, wr_shard *out) {
  const char *name = wr_escape(path, strlen(path));
  const wr_shard_header *h = (const void *)bytes;
  if (n < WR_SHARD_HEADER_BYTES)
    return wr_fail(WEIR_EFORMAT, "%s: %zu bytes are no shard; 'weir data build' makes it again", name, n);
  if (memcmp(h->magic, WR_SHARD_MAGIC, sizeof h->magic) != 0)
    return wr_fail(WEIR_EFORMAT, "%s: is no shard: it does not begin with WEIRTOK", name);
  if (h->version != WR_SHARD_VERSION)
    return wr_fail(WEIR_EUNSUPPORTED, "%s: shards of version %u; this weir reads version %d", name, h->version,
                   WR_SHARD_VERSION);
  if (header_hash(h) != h->header_hash)
    return wr_fail(WEIR_EFORMAT, "%s: the header's checksum is wrong: the file was damaged; build it again", name);
  if (h->file_bytes != n)
    return wr_fail(WEIR_EFORMAT, "%s: is cut short or longer than it was: %zu bytes, its header says %llu", name, n,
                   (unsigned long long)h->file_bytes);
  WR_TRY(check_header(h, n, name));
  *out = (wr_shard){.head = h, .tokens = bytes + WR_SHARD_HEADER_BYTES, .doc_ends = (const void *)(bytes + h->doc_ends_at)};
  return WEIR_OK;
}

weir_status wr_shard_open(const char *path, wr_shard *out) {
  wr_map map;
  WR_TRY(wr_map_open(path, false, &map));
  weir_status s = map.ptr ? wr_shard_parse(map.ptr, map.bytes, path, out)
                          : wr_fail(WEIR_EFORMAT, "%s: is empty", wr_escape(path, strlen(path)));
  if (s != WEIR_OK)
    wr_map_close(&map);
  else
    out->map = map;
  return s;
}

void wr_shard_close(wr_shard *s) {
  wr_map_close(&s->map);
  *s = (wr_shard){0};
}

const uint64_t *wr_doc_ends_find(const uint64_t *ends, uint64_t n, uint64_t from, uint64_t to, int64_t *n_out) {
  uint64_t low = 0, high = n; /* the first end > from */
  while (low < high) {
    const uint64_t mid = low + (high - low) / 2;
    if (ends[mid] > from)
      high = mid;
    else
      low = mid + 1;
  }
  uint64_t count = 0;
  while (low + count < n && (count == 0 || ends[low + count - 1] < to)) count++;
  *n_out = (int64_t)count;
  return ends + low;
}

/* --------------------------------------------------------------------------------------------------------------- checking */

static uint64_t hash_blocks(const uint8_t *p, uint64_t n) {
  uint64_t hash = 0;
  for (uint64_t at = 0; at < n; at += WR_SHARD_BLOCK_BYTES)
    hash = wr_hash64(p + at, (size_t)WR_MIN(n - at, (uint64_t)WR_SHARD_BLOCK_BYTES), hash);
  return hash;
}

weir_status wr_shard_check(const wr_shard *s, const char *path, uint64_t *counts) {
  const wr_shard_header *h = s->head;
  const char *name = wr_escape(path, strlen(path));
  if (hash_blocks(s->tokens, h->n_tokens * h->token_bytes) != h->tokens_hash)
    return wr_fail(WEIR_EFORMAT, "%s: the tokens' checksum is wrong: the file was damaged; build it again", name);
  if (wr_hash64(s->doc_ends, (size_t)h->n_docs * 8, 0) != h->docs_hash)
    return wr_fail(WEIR_EFORMAT, "%s: the checksum of the document ends is wrong: the file was damaged; build it again", name);
  for (uint64_t i = 0, before = 0; i < h->n_docs; before = s->doc_ends[i++])
    if (s->doc_ends[i] <= before || s->doc_ends[i] > h->n_tokens)
      return wr_fail(WEIR_EFORMAT, "%s: document %llu ends at token %llu, the one before at %llu, the shard at %llu", name,
                     (unsigned long long)i, (unsigned long long)s->doc_ends[i], (unsigned long long)before,
                     (unsigned long long)h->n_tokens);
  if (h->n_docs && s->doc_ends[h->n_docs - 1] != h->n_tokens)
    return wr_fail(WEIR_EFORMAT, "%s: the last document ends at token %llu of %llu", name,
                   (unsigned long long)s->doc_ends[h->n_docs - 1], (unsigned long long)h->n_tokens);
  for (uint64_t i = 0; i < h->n_tokens; i++) {
    const uint32_t id = wr_shard_token(s, i);
    if (id >= h->vocab)
      return wr_fail(WEIR_EFORMAT, "%s: token %llu is id %u of a vocabulary of %llu", name, (unsigned long long)i, id,
                     (unsigned long long)h->vocab);
    if (counts) counts[id]++;
  }
  return WEIR_OK;
}

/* ---------------------------------------------------------------------------------------------------------------- writing */

struct wr_shard_writer {
  char *path, *tmp;
  int fd;
  wr_shard_header head;
  uint8_t *block; /* what is not written yet */
  size_t n_block;
  uint64_t at; /* where it goes */
  uint64_t *ends;
  size_t n_ends, cap_ends;
};

static weir_status disk_fail(const char *path, const char *did) { return wr_fail_errno(wr_write_status(errno), path, did); }

/* What comes next in the file. */
static weir_status write_next(wr_shard_writer *w, const void *bytes, size_t n) {
  if (wr_os_write(w->fd, w->tmp, bytes, n) != 0) return disk_fail(w->tmp, "write");
  w->at += n;
  return WEIR_OK;
}

static weir_status flush_block(wr_shard_writer *w) {
  if (!w->n_block) return WEIR_OK;
  w->head.tokens_hash = wr_hash64(w->block, w->n_block, w->head.tokens_hash);
  WR_TRY(write_next(w, w->block, w->n_block));
  w->n_block = 0;
  return WEIR_OK;
}

weir_status wr_shard_writer_open(const char *path, uint64_t vocab, uint64_t tokenizer_hash, uint64_t build,
                                 wr_shard_writer **out) {
  wr_shard_writer *w = wr_calloc(1, sizeof *w);
  if (!w) return wr_fail_nomem(sizeof *w, "a shard");
  const size_t len = strlen(path);
  w->fd = -1;
  w->path = wr_strdup(path);
  w->tmp = wr_malloc(len + 5);
  w->block = wr_malloc(WR_SHARD_BLOCK_BYTES);
  weir_status s = WEIR_OK;
  if (!w->path || !w->tmp || !w->block) {
    s = wr_fail_nomem(WR_SHARD_BLOCK_BYTES, "a shard");
  } else {
    memcpy(w->tmp, path, len);
    memcpy(w->tmp + len, ".tmp", 5);
    unlink(w->tmp); /* of a build that was killed */
    w->fd = wr_os_create(w->tmp);
    if (w->fd < 0)
      s = disk_fail(w->tmp, "create");
    else
      s = write_next(w, &w->head, sizeof w->head); /* a place for it; it is not known yet */
  }
  if (s != WEIR_OK) {
    wr_shard_writer_close(w);
    return s;
  }
  w->head = (wr_shard_header){.magic = WR_SHARD_MAGIC,
                              .version = WR_SHARD_VERSION,
                              .token_bytes = (uint32_t)wr_token_width(vocab),
                              .vocab = vocab,
                              .tokenizer_hash = tokenizer_hash,
                              .build = build};
  *out = w;
  return WEIR_OK;
}

static weir_status bad_id(const wr_shard_writer *w, int32_t id) {
  return wr_fail(WEIR_EFORMAT, "%s: id %d is outside the vocabulary of %llu", wr_escape(w->path, strlen(w->path)), id,
                 (unsigned long long)w->head.vocab);
}

weir_status wr_shard_writer_put(wr_shard_writer *w, const int32_t *ids, size_t n) {
  const size_t width = w->head.token_bytes;
  while (n) {
    const size_t step = WR_MIN(n, (WR_SHARD_BLOCK_BYTES - w->n_block) / width);
    uint8_t *to = w->block + w->n_block;
    for (size_t i = 0; i < step; i++) {
      if ((uint32_t)ids[i] >= w->head.vocab) return bad_id(w, ids[i]);
      if (width == 2) {
        const uint16_t id = (uint16_t)ids[i];
        memcpy(to + 2 * i, &id, 2);
      } else {
        memcpy(to + 4 * i, &ids[i], 4);
      }
    }
    w->n_block += step * width;
    w->head.n_tokens += step;
    ids += step;
    n -= step;
    if (w->n_block == WR_SHARD_BLOCK_BYTES) WR_TRY(flush_block(w));
  }
  return WEIR_OK;
}

weir_status wr_shard_writer_end_doc(wr_shard_writer *w) {
  if (w->head.n_tokens == (w->n_ends ? w->ends[w->n_ends - 1] : 0)) return WEIR_OK; /* a document of no tokens is none */
  if (!wr_grow((void **)&w->ends, &w->cap_ends, w->n_ends + 1, sizeof *w->ends))
    return wr_fail_nomem((w->n_ends + 1) * sizeof *w->ends, "the ends of documents");
  w->ends[w->n_ends++] = w->head.n_tokens;
  return WEIR_OK;
}

uint64_t wr_shard_writer_tokens(const wr_shard_writer *w) { return w->head.n_tokens; }

static weir_status sync_folder(const char *path) {
  char *copy = wr_strdup(path);
  if (!copy) return wr_fail_nomem(strlen(path), "a path");
  const int rc = wr_os_fsync_folder(dirname(copy));
  wr_free(copy);
  return rc == 0 ? WEIR_OK : disk_fail(path, "sync the folder of");
}

weir_status wr_shard_writer_finish(wr_shard_writer *w, bool continues, uint64_t next_block) {
  static const uint8_t zeros[8];
  WR_TRY(wr_shard_writer_end_doc(w));
  WR_TRY(flush_block(w));
  wr_shard_header *h = &w->head;
  h->continues = continues;
  h->next_block = next_block;
  h->n_docs = w->n_ends;
  h->doc_ends_at = (w->at + 7) / 8 * 8;
  h->file_bytes = h->doc_ends_at + h->n_docs * 8;
  h->docs_hash = wr_hash64(w->ends, w->n_ends * sizeof *w->ends, 0);
  h->header_hash = header_hash(h);
  WR_TRY(write_next(w, zeros, (size_t)(h->doc_ends_at - w->at)));
  WR_TRY(write_next(w, w->ends, w->n_ends * sizeof *w->ends));
  if (lseek(w->fd, 0, SEEK_SET) != 0) return disk_fail(w->tmp, "go to the beginning of");
  WR_TRY(write_next(w, h, sizeof *h));
  if (wr_os_fsync(w->fd, w->tmp) != 0) return disk_fail(w->tmp, "sync");
  if (wr_os_rename(w->tmp, w->path) != 0) return disk_fail(w->path, "put in place");
  close(w->fd);
  w->fd = -1;
  return sync_folder(w->path);
}

void wr_shard_writer_close(wr_shard_writer *w) {
  if (!w) return;
  if (w->fd >= 0) {
    close(w->fd);
    unlink(w->tmp);
  }
  wr_free(w->path);
  wr_free(w->tmp);
  wr_free(w->block);
  wr_free(w->ends);
  wr_free(w);
}
