/* What batch.c, schedule.c and prefix.c share: requests, those that run, and what is kept of those that ended. */
#ifndef WR_INFER_BATCH_I_H
#define WR_INFER_BATCH_I_H

#include <semaphore.h>

#include "infer/infer_i.h"

/* ---- prefix.c: pages of sequences that ended, for prompts that begin as they did. Whole pages only, so that nobody writes into one. */
typedef struct wr_prefix {
  int32_t *tokens; /* [seq.length] */
  wr_seq seq;
  uint64_t used; /* when, by the clock */
} wr_prefix;
typedef struct wr_prefixes {
  wr_engine *engine;
  wr_prefix list[WR_ENGINE_SEQS];
  size_t n, most;
  uint64_t clock;
} wr_prefixes;
void wr_prefixes_free(wr_prefixes *p);
/* Tokens of the whole pages that two sequences begin with. */
int64_t wr_prefix_common(const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b);
/* Takes the sequence, whose tokens these are. Without memory for it, its pages are free. */
void wr_prefix_keep(wr_prefixes *p, const int32_t *tokens, wr_seq *seq);
/* The sequence that has most of these tokens, and how many; NULL, 0: none. */
const wr_seq *wr_prefix_find(wr_prefixes *p, const int32_t *tokens, int64_t n, int64_t *common);
/* Lets go of the last page of the one that was not used for longest. false: there is none. */
bool wr_prefix_give(wr_prefixes *p);

/* ---- batch.c */
typedef struct wr_request {
  struct wr_request *next; /* in the queue */
  uint64_t id;
  weir_generate_options o; /* its arrays lie in `copies` */
  wr_arena copies;
  wr_reply reply;
  weir_done_fn done;
  wr_sampler sampler;
  bool cancelled; /* under the batch's lock */
  wr_seq seq;
  int32_t *tokens; /* prompt and answer, of which the first seq.length are in the cache */
  size_t n_tokens, cap_tokens;
  int64_t was_fed;                        /* how far it was when it had to wait again */
  uint64_t added_ns, begun_ns, answer_ns; /* the last two: 0 before */
} wr_request;

struct weir_batch {
  weir_model *model;
  wr_engine *engine;
  int slots, piece;
  bool profiled;
  pthread_mutex_t lock; /* of the queue, running[] and the sums */
  sem_t wake;
  atomic_bool stop;
  wr_request *first, *last; /* the queue */
  size_t waiting;
  bool cancelling; /* some may be cancelled; the lock's, as is each one's own mark */
  wr_request *running[WR_ENGINE_SEQS]; /* by id */
  int n_running;
  uint64_t last_id;
  wr_prefixes ended;
  float *logits; /* [slots, vocab] */
  /* the present step */
  wr_work work[WR_ENGINE_SEQS];
  wr_request *turn[WR_ENGINE_SEQS]; /* whose work it is */
  int n_work, rows;
  bool next_only; /* every row is a sequence's next token */
  /* sums */
  weir_batch_report sums;
  int64_t decode_kv_tok; /* positions read by all decode steps */
  uint64_t next_limit;   /* decode steps at which the limit is read again */
  double profile_ns;
  wr_limit limit;
  wr_profile_sums profile;
  weir_profile *shown;
};

/* ---- schedule.c: fills work[] and turn[] with what the next step takes. Nothing has ended since. */
weir_status wr_batch_schedule(weir_batch *b);

#endif
