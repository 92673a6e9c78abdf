/* data: text to token shards, and shards to training samples that are views into mapped files.
 *
 * A *sample* is a window of up to context_tok + 1 consecutive tokens of one source: context_tok inputs, each with the token after it as
 * its target. Window i of a source begins at token i * context_tok, so each token is a target once an epoch; the last window is shorter.
 * Nothing is copied: a sample is a pointer into the map. The order of an epoch is a keyed permutation of (seed, epoch, position),
 * computed and never stored, so a position is one number, any position is reached in O(1), and `ranks` processes take the positions
 * rank, rank + ranks, … of the same order.
 */
#ifndef WR_DATA_H
#define WR_DATA_H

#include "base/base.h"
#include "format/format.h"
#include "text/text.h"

typedef struct wr_data wr_data;

typedef struct wr_data_source {
  const char *path; /* a folder of shards (made by wr_data_build), or text to be tokenised as it is read: a file, a folder, JSONL */
  double weight;    /* share of the samples; 0: by its number of tokens */
} wr_data_source;

typedef struct wr_data_options {
  const wr_data_source *sources;
  int n_sources;
  bool validation;         /* the validation split; in file order, once */
  int64_t context_tok;     /* T, at least 1 */
  uint64_t seed;
  int rank, ranks;         /* ranks 0: one process */
  int64_t prefetch;        /* samples whose pages are made resident ahead; 0: 64 */
  /* text that is tokenised as it is read */
  const wr_tokenizer *tokenizer;
  int workers;             /* 0: 1 */
  int64_t shuffle_window;  /* samples that are shuffled together; 0: 1024 */
} wr_data_options;

typedef struct wr_data_info {
  uint64_t tokens, docs, samples; /* of an epoch, all ranks; 0: not known yet (text that is tokenised as it is read) */
  uint64_t mapped_bytes;
  int64_t vocab;
  uint64_t tokenizer_hash;
} wr_data_info;

typedef struct wr_sample {
  const void *tokens;        /* [n_tok] ids, u16 or u32 as token_bytes says; valid until the next wr_data_next */
  int token_bytes;           /* 2 or 4 */
  int64_t n_tok;             /* 2 … context_tok + 1 */
  uint64_t id;               /* number of the window within its source */
  int source;
  uint64_t epoch;
  const uint64_t *doc_ends;  /* [n_docs] ends of the documents that the window touches, ascending, in tokens of the shard */
  int64_t n_docs;
  uint64_t first_tok;        /* where the window begins, in tokens of the shard */
} wr_sample;

weir_status wr_data_open(const wr_data_options *options, wr_data **out);
void wr_data_close(wr_data *d); /* NULL allowed */
void wr_data_get_info(const wr_data *d, wr_data_info *out);
/* The next n samples of this rank. Training data never ends (epoch after epoch); of validation data *n_out < n is the end. */
weir_status wr_data_next(wr_data *d, int64_t n, wr_sample *out, int64_t *n_out);
/* Where the data stands, after the samples that were taken: all of it, for checkpoints. Samples are counted over all ranks. */
typedef struct wr_data_position {
  uint64_t taken;      /* samples taken over all ranks since the beginning of the run */
  uint64_t byte, doc;  /* of text that is tokenised as it is read */
} wr_data_position;
void wr_data_tell(const wr_data *d, wr_data_position *out);
weir_status wr_data_seek(wr_data *d, const wr_data_position *position);

/* For each of the n_tok - 1 inputs of a sample: the index in the sample at which its document begins. out [n_tok - 1]. */
void wr_sample_doc_first(const wr_sample *s, int32_t *out);

#endif
