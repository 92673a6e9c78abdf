/* data: text to token shards, and shards to training samples that are views into mapped files.
 *
 * A *sample* is a window of up to context_tok + 1 consecutive tokens of one shard: context_tok inputs, each with the token after it as
 * its target; where a document ends, that is the first token of the next one. Window i of a shard begins at token i * context_tok, so each token but a shard's first is a target once an epoch; the last
 * window is shorter. Nothing is copied: a sample is a pointer into the map. The order of an epoch is a keyed permutation of (seed,
 * epoch, position), computed and never stored, so a position is one number, any position is reached in O(1), and `ranks` processes
 * take the positions rank, rank + ranks, … of the same order.
 */
#ifndef WR_DATA_H
#define WR_DATA_H

#include "base/base.h"
#include "format/format.h"
#include "text/text.h"

/* ---- samples: loader.c (shards), ring.c (text that is tokenised as it is read) */
typedef struct wr_data wr_data;

typedef struct wr_data_source {
  const char *path;        /* a folder of shards (made by wr_data_build), or text: a file, a folder, JSONL, gzip or zstd of these */
  double weight;           /* share of the samples; 0 for all sources: by their number of tokens. Shards only */
} wr_data_source;

typedef struct wr_data_options {
  const wr_data_source *sources; /* all of them shards, or all of them text */
  int n_sources;
  bool validation;         /* the validation split; in file order, once */
  int64_t context_tok;     /* T, at least 1 */
  uint64_t seed;
  int rank, ranks;         /* ranks 0: one process */
  int64_t prefetch;        /* samples whose pages are made resident ahead; 0: 64 */
  /* text that is tokenised as it is read */
  const wr_tokenizer *tokenizer; /* must outlive it */
  const char *field;       /* of JSONL; NULL: "text" */
  double val_share;        /* 0: 0.01; below 0: none. The same for both splits */
  double max_bad;          /* share of bad records that is borne; 0: 0.01 */
  int workers;             /* 0: 1 */
  int64_t shuffle_window;  /* samples that are shuffled together; 0: 1024 */
} wr_data_options;

typedef struct wr_data_info {
  uint64_t tokens, docs, samples; /* of an epoch, all ranks; 0: not known (text that is tokenised as it is read) */
  uint64_t mapped_bytes;   /* of shards, or reserved for the ring */
  int64_t vocab;
  uint64_t tokenizer_hash;
  uint64_t id;             /* which data it is: of shards the checksums, in order; of text the files' paths, sizes and times */
  bool text;               /* tokenised as it is read */
} wr_data_info;

typedef struct wr_sample {
  const void *tokens;      /* [n_tok] ids, u16 or u32 as token_bytes says; valid until the next wr_data_next */
  int token_bytes;         /* 2 or 4 */
  int64_t n_tok;           /* 2 … context_tok + 1 */
  uint64_t id;             /* number of the window within its source (of text: within its epoch) */
  int source;
  uint64_t epoch;
  const uint64_t *doc_ends; /* [n_docs] ends of the documents that the window touches, ascending, counted as first_tok is */
  int64_t n_docs;
  uint64_t first_tok;      /* where the window begins, in tokens of the shard */
} wr_sample;

/* A folder of shards has tokenizer.gguf in it: wr_tokenizer_open_path(path) opens it. */
bool wr_data_is_shards(const char *path);
/* EUSAGE: fewer than context_tok + 1 tokens (validation: fewer than 2), saying how many there are; shards of different
 * tokenizers. EFORMAT: a shard that is torn or changed, by name. */
weir_status wr_data_open(const wr_data_options *options, wr_data **out);
void wr_data_close(wr_data *d); /* NULL allowed */
void wr_data_get_info(const wr_data *d, wr_data_info *out);
/* The next n samples of this rank. Training data never ends (epoch after epoch); of validation data *n_out < n is the end. */
weir_status wr_data_next(wr_data *d, int64_t n, wr_sample *out, int64_t *n_out);

/* Where the data stands, after the samples that were taken: all of it, for checkpoints. Store each field as an unsigned 64-bit number
 * under its name. {0} is the beginning. `taken` counts samples over all ranks; with another number of ranks seek to the same position. */
#define WR_DATA_POSITION_MAP(X) \
  X(taken) /* samples taken over all ranks since the beginning of the run */ \
  X(epoch) /* the rest: of text that is tokenised as it is read, where the present group of samples begins */ \
  X(group) /* samples of the run before the group */ \
  X(doc)   /* number of the first document of the group's first block */ \
  X(byte)  /* where that block begins in the inputs, decompressed and one after another */ \
  X(skip)  /* tokens of that block that belong to earlier groups */ \
  X(id)    /* samples of the epoch before the group */
typedef struct wr_data_position {
#define X(name) uint64_t name;
  WR_DATA_POSITION_MAP(X)
#undef X
} wr_data_position;
void wr_data_tell(const wr_data *d, wr_data_position *out);
weir_status wr_data_seek(wr_data *d, const wr_data_position *position);

/* ---- a batch, as the training program's inputs: batch.c. The only place that touches the tokens: ids are widened from the map
 * straight into the program's tables and checked against the vocabulary. */
typedef struct wr_batch {
  int32_t *tokens, *targets, *pos, *first; /* [B*T] each; the four inputs of wr_train_io */
  int64_t counted;         /* out: targets that count (>= 0) */
  uint64_t bytes;          /* out: bytes written, the copy class "widen" */
} wr_batch;
/* Row b is sample b; what a short sample (or b >= n_samples) leaves over is token 0 with target -1, outside every document.
 * documents: pos restarts and `first` masks at document boundaries; else pos = 0 … T-1 and first = 0. EFORMAT: an id that is not
 * below vocab. */
weir_status wr_batch_fill(const wr_sample *samples, int64_t n_samples, int64_t B, int64_t T, int64_t vocab, bool documents, wr_batch *out);

/* ---- text as it comes: input.c. Files, folders (all their files, in byte order of the paths, hidden and binary ones and folders of shards left out), JSONL by
 * name (.jsonl, .ndjson), gzip and zstd by content, "-" for standard input; one after another.
 *
 * Text comes in blocks: part of a plain document, or some lines of JSONL. Blocks are read one at a time, under the caller's lock if
 * there are several threads, and taken apart anywhere. The blocks of an input are the same whoever reads them. Text is bytes: invalid
 * UTF-8 and NUL pass, counted; in JSONL invalid UTF-8 is a bad record.
 *
 * A record of JSONL is bad when it is no JSON object, when the field is missing, not a string or there twice, when the string has a
 * lone surrogate, when it is not UTF-8. A blank line is nothing, a record or file with empty text is counted as empty and nothing else.
 */
typedef struct wr_text_input_options {
  const char *const *paths;
  int n_paths;
  const char *field;       /* of JSONL; NULL: "text" */
  bool jsonl;              /* standard input and files whose name does not say are JSONL */
  int64_t block_bytes;     /* about so many a block; 0: 256 KiB */
  const wr_tokenizer *tokenizer; /* long text is cut only where its ids stay the same; NULL: between words */
  double val_share;        /* at most 0: no validation split. See wr_text_piece */
  bool strict;             /* the first bad record is an error */
  double max_bad;          /* share of bad records that is borne, judged from 1,000 records on and at the end; 0: 0.01 */
} wr_text_input_options;

/* A document, or part of a long one. A document is validation by its number ((number + 1) * golden ratio, modulo 1, < val_share: that
 * share of any run of documents); when the input is plain files only, fewer than 2 / val_share of them, each file's last part is. */
typedef struct wr_text_piece {
  const char *text;        /* [n], valid during the call */
  size_t n;
  uint64_t doc;            /* number of the document: of the file or record, over all inputs */
  bool first, last;        /* it begins, it ends its document */
  bool validation;
} wr_text_piece;

typedef struct wr_text_bad { char where[200], rule[88]; } wr_text_bad; /* "file:line:column"; what is wrong */
enum { WR_TEXT_BAD_SHOWN = 16 };
typedef struct wr_text_counts {
  uint64_t bytes;          /* of text in documents */
  uint64_t docs, records, bad, empty; /* records: lines of JSONL that are not blank */
  uint64_t not_utf8, nul;  /* pieces of plain text with invalid UTF-8; NUL bytes */
  uint64_t binary_files;   /* of folders, left out */
} wr_text_counts;

typedef struct wr_text_block {
  uint64_t number;         /* 0, 1, … */
  uint64_t byte, doc;      /* where it begins: byte of all inputs, number of its first document or record */
  const char *path;
  bool jsonl, first, last, validation; /* of plain text, as in wr_text_piece */
  uint64_t line;           /* JSONL: of the first line */
  char *text;
  size_t n, cap;
  /* made by wr_text_block_each */
  wr_text_counts counts;
  wr_text_bad bad[WR_TEXT_BAD_SHOWN];
  char *scratch;
  size_t scratch_cap;
} wr_text_block;           /* {0} at first; its memory is reused */

typedef struct wr_text_input wr_text_input;
/* EIO a path does not exist; EUSAGE no file in a folder. */
weir_status wr_text_input_open(const wr_text_input_options *options, wr_text_input **out);
void wr_text_input_close(wr_text_input *in);              /* NULL allowed */
/* The next block; b->n == 0: the end. */
weir_status wr_text_input_read(wr_text_input *in, wr_text_block *b);
/* Go to the block that begins at `byte` and whose number and first document are these. Compressed input is read up to there. */
weir_status wr_text_input_seek(wr_text_input *in, uint64_t byte, uint64_t number, uint64_t doc);
/* fn for each document or piece of a block, in order; stops at the first failure. Any thread, each with a block of its own. */
typedef weir_status (*wr_text_fn)(void *user, const wr_text_piece *piece);
weir_status wr_text_block_each(const wr_text_input *in, wr_text_block *b, wr_text_fn fn, void *user);
/* Adds up what wr_text_block_each counted, block after block in order. EFORMAT: strict and a bad record, or too many of them. */
weir_status wr_text_input_settle(wr_text_input *in, const wr_text_block *b);
weir_status wr_text_input_end(const wr_text_input *in);   /* after the last block: EFORMAT: too many bad records, or no text at all */
void wr_text_block_free(wr_text_block *b);
void wr_text_input_counts(const wr_text_input *in, wr_text_counts *out);
size_t wr_text_input_bad(const wr_text_input *in, const wr_text_bad **out); /* the first ones, at most WR_TEXT_BAD_SHOWN */
double wr_text_input_done(const wr_text_input *in);       /* share of the input that was read, by bytes on disk; 0: unknown */
uint64_t wr_text_input_id(const wr_text_input *in);       /* hash of the files' paths, sizes and times */

/* ---- building, checking, describing shards: build.c, report.c. The structs are the public ones. */
weir_status wr_data_build(const wr_tokenizer *t, const char *const *inputs, size_t n_inputs, const char *folder,
                          const weir_data_build_options *options, weir_data_build_report *out);

/* ---- a vocabulary of text: vocabulary.c. Byte-level BPE over all documents of the inputs; those of the validation split
 * (val_share above 0) are left out. The structs are the public ones; out may be NULL. */
weir_status wr_data_train_tokenizer(const char *const *inputs, size_t n_inputs, const weir_tokenizer_train_options *options,
                                    weir_tokenizer_train_report *out, wr_tokenizer **tokenizer);

#endif
