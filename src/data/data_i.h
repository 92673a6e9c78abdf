/* data_i.h: what the files of data share: shards as they lie on disk, the order of an epoch, the loader and the ring. */
#ifndef WR_DATA_I_H
#define WR_DATA_I_H

#include "data/data.h"

/* ---- shard.c: one file
 *
 *   0                    header, WR_SHARD_HEADER_BYTES
 *   4096                 n_tokens ids of token_bytes each
 *   doc_ends_at          n_docs ends of documents, u64, in tokens from the beginning of the shard, ascending; at the next multiple of 8
 *
 * The last document ends with the shard: one that goes on in the next shard (`continues`) is closed here. Little-endian.
 * The checksum of the tokens is a chain over blocks, so that a writer needs no second pass: h(i) = XXH64(block i, seed h(i-1)). */
#define WR_SHARD_HEADER_BYTES 4096
#define WR_SHARD_BLOCK_BYTES ((size_t)1 << 20)
#define WR_SHARD_MAGIC "WEIRTOK\n"
#define WR_SHARD_VERSION 1

typedef struct wr_shard_header {
  char magic[8];
  uint32_t version, token_bytes;  /* 2 or 4 */
  uint64_t vocab, n_tokens, n_docs, doc_ends_at, file_bytes;
  uint64_t tokenizer_hash;
  uint64_t tokens_hash, docs_hash;
  uint64_t continues;             /* 1: the last document goes on in the next shard */
  uint64_t build;                 /* hash of the build's inputs and options: which build may go on after this shard */
  uint64_t next_block;            /* of the input: the first one that is not in this shard or one before it */
  uint64_t zero[(WR_SHARD_HEADER_BYTES - 14 * 8) / 8];
  uint64_t header_hash;           /* XXH64 of all before it */
} wr_shard_header;

typedef struct wr_shard {
  wr_map map;
  const wr_shard_header *head;
  const uint8_t *tokens;
  const uint64_t *doc_ends;
} wr_shard;

/* The header and every count against the file's size; what costs a pass over the file is wr_shard_check. */
weir_status wr_shard_open(const char *path, wr_shard *out);
weir_status wr_shard_parse(const uint8_t *bytes, size_t n, const char *path, wr_shard *out); /* over the caller's memory */
void wr_shard_close(wr_shard *s);
/* Checksums, ids, document ends. counts (may be NULL): [vocab], how often each id occurs is added. */
weir_status wr_shard_check(const wr_shard *s, const char *path, uint64_t *counts);
static inline uint32_t wr_shard_token(const wr_shard *s, uint64_t i) {
  return s->head->token_bytes == 2 ? ((const uint16_t *)(const void *)s->tokens)[i] : ((const uint32_t *)(const void *)s->tokens)[i];
}
/* The documents that touch tokens [from, to): the first of their ends, and how many. */
const uint64_t *wr_doc_ends_find(const uint64_t *ends, uint64_t n, uint64_t from, uint64_t to, int64_t *n_out);

int wr_token_width(uint64_t vocab); /* 2 up to 65536 ids, else 4 */

/* Writes PATH.tmp; finish completes and renames it. */
typedef struct wr_shard_writer wr_shard_writer;
weir_status wr_shard_writer_open(const char *path, uint64_t vocab, uint64_t tokenizer_hash, uint64_t build, wr_shard_writer **out);
weir_status wr_shard_writer_put(wr_shard_writer *w, const int32_t *ids, size_t n); /* EFORMAT: an id outside the vocabulary */
weir_status wr_shard_writer_end_doc(wr_shard_writer *w);
uint64_t wr_shard_writer_tokens(const wr_shard_writer *w);
weir_status wr_shard_writer_finish(wr_shard_writer *w, bool continues, uint64_t next_block); /* syncs, renames. Close follows */
void wr_shard_writer_close(wr_shard_writer *w); /* NULL allowed; without finish nothing remains */

/* ---- manifest.c */
typedef struct wr_manifest_shard { char file[32]; uint64_t tokens, docs, header_hash; } wr_manifest_shard;
typedef struct wr_manifest_split { wr_manifest_shard *shards; size_t n, cap; uint64_t tokens, docs; } wr_manifest_split;
enum { WR_SPLIT_TRAIN, WR_SPLIT_VAL, WR_SPLITS };
extern const char *const wr_split_names[WR_SPLITS];  /* "train", "val" */
typedef struct wr_shards_manifest {
  uint64_t vocab, tokenizer_hash, bytes, docs, records, bad, empty, build;
  uint32_t token_bytes;
  char tokenizer[64];
  double val_share;
  wr_manifest_split split[WR_SPLITS];
} wr_shards_manifest;
weir_status wr_shards_manifest_read(const char *folder, wr_shards_manifest *out);
weir_status wr_shards_manifest_parse(const char *text, size_t n, const char *path, wr_shards_manifest *out);
weir_status wr_shards_manifest_write(const char *folder, const wr_shards_manifest *m);
bool wr_shards_manifest_add(wr_manifest_split *s, const char *file, const wr_shard_header *h); /* false: no memory */
void wr_shards_manifest_free(wr_shards_manifest *m);
/* The i-th shard of a split, opened and held against the manifest. *path: the caller frees. */
weir_status wr_shards_manifest_open_shard(const char *folder, const wr_shards_manifest *m, int split, size_t i, wr_shard *out);
char *wr_path_join(const char *folder, const char *file); /* NULL: no memory */

/* ---- permute.c: a bijection of 0 … n-1 for each (key, tweak) */
uint64_t wr_permute(uint64_t n, uint64_t key, uint64_t tweak, uint64_t i);

/* ---- jsonl.c: one line. On success *text [*n] is in `line` or in *scratch (grown by wr_realloc); else a rule and a column from 1.
 * WR_RECORD_NOMEM: no memory. */
typedef enum wr_record { WR_RECORD_OK, WR_RECORD_BAD, WR_RECORD_NOMEM } wr_record;
wr_record wr_jsonl_field(const char *line, size_t len, const char *field, char **scratch, size_t *scratch_cap, const char **text,
                         size_t *n, size_t *column, const char **rule);

/* ---- stream.c: the bytes of one file, decompressed */
typedef struct wr_stream wr_stream;
weir_status wr_stream_open(const char *path, wr_stream **out); /* "-": standard input */
void wr_stream_close(wr_stream *s);
/* Up to n bytes; *got 0: the end. EFORMAT: compressed data that is damaged or cut short. */
weir_status wr_stream_read(wr_stream *s, char *to, size_t n, size_t *got);
uint64_t wr_stream_disk_bytes(const wr_stream *s);  /* read from the file so far */
bool wr_stream_compressed(const wr_stream *s);
weir_status wr_stream_skip(wr_stream *s, uint64_t n);

/* ---- cut.c: where text may be cut so that the ids of the parts are the ids of the whole */
typedef struct wr_cutter { bool blank, line; } wr_cutter; /* before a blank between letters; after a line's end before a letter */
wr_cutter wr_cutter_make(const wr_tokenizer *t);          /* NULL: both */
/* The last place in [from, n) at which to cut; 0: none. text[n] is not looked at. */
size_t wr_cut_last(const wr_cutter *c, const char *text, size_t from, size_t n);

/* ---- encode.c: a document or piece as shards hold it: BOS before where the vocabulary says so, EOS after where it has one */
typedef struct wr_framing { int32_t bos, eos; } wr_framing; /* WR_NO_TOKEN: none */
wr_framing wr_framing_of(const wr_tokenizer *t);
typedef struct wr_encoded {
  wr_ids ids;
  size_t *ends; /* of documents, in ids */
  size_t n_ends, cap_ends;
} wr_encoded; /* {0} at first */
weir_status wr_encode_piece(wr_encoder *e, const wr_framing *f, const wr_text_piece *p, wr_encoded *out); /* adds to out */
void wr_encoded_clear(wr_encoded *e); /* memory kept */
void wr_encoded_free(wr_encoded *e);

/* ---- loader.c, ring.c: a wr_data is one or the other */
typedef struct wr_data_ops {
  void (*close)(wr_data *d);
  void (*info)(const wr_data *d, wr_data_info *out);
  weir_status (*next)(wr_data *d, int64_t n, wr_sample *out, int64_t *n_out);
  void (*tell)(const wr_data *d, wr_data_position *out);
  weir_status (*seek)(wr_data *d, const wr_data_position *p);
} wr_data_ops;
struct wr_data { const wr_data_ops *ops; };
weir_status wr_shards_open(const wr_data_options *o, wr_data **out);
weir_status wr_ring_open(const wr_data_options *o, wr_data **out);

#endif
