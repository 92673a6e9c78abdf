/* infer: running a model. Sessions, samplers, generation, reports; what weir.h says under context, tokenizer, model, session,
 * sampling, generate, cache and plan.
 *
 *   context.c    devices and teams; weir_free        tokenizer.c  text to ids, for the public API
 *   model.c      weir_model: weights and tokenizer   engine.c     plans by bucket, the pool of KV pages, one replay
 *   session.c    one sequence: sync, eval, score     sampler.c    logits to a token
 *   answer.c     tokens to text, stop texts          reply.c      what begins and ends an answer
 *   generate.c   the loop for one, and what it measured
 *   batch.c      requests that run together; schedule.c: who runs when; prefix.c: what their prompts share
 *   limit.c      the limit of a run, the op table    plan.c       will it fit; hardware.c, the table of devices
 *   cache.c      packed files, for the public API    eval.c       perplexity
 *   convert.c    a model file in other types; recipe.c: which tensor gets which
 *   tune.c       the tune file of a context          bench.c, data.c: for the public API
 *
 * This header is for those who run many sequences at once (serve) and for tests; others use weir.h.
 */
#ifndef WR_INFER_H
#define WR_INFER_H

#include <pthread.h>

#include "model/model.h"
#include "text/text.h"

struct weir_context {
  wr_device *device;    /* the first */
  wr_mem mem;           /* its */
  wr_mem more[WR_PLAN_DEVICES - 1], *others[WR_PLAN_DEVICES - 1]; /* further devices, and pointers to each */
  int n_others;
  pthread_mutex_t lock; /* of mem, and of whatever else models and sessions of two threads share */
  wr_tune tune;         /* the choices of this machine's tune file: for every plan */
  char tune_text[256];  /* weir_context_tune */
  struct {
    bool looked_up;
    double int8_op_s, fp32_op_s; /* by its threads; 0: not kept */
  } peaks;                       /* of the machine's kept figures: limit.c's, once it needs them */
};

struct weir_model {
  weir_context *ctx;
  wr_model *m;
  weir_tokenizer *tokenizer;
  char *name; /* general.name, escaped */
  char *use;  /* forced kernel rows, or NULL */
};

/* ---- engine: a model, a pool of KV pages, and plans by bucket. All sequences of an engine share pages by reference count. Its
 * functions lock. */
typedef struct wr_engine wr_engine;

/* Part of the pool that one sequence holds. {0} is empty. Positions 0 … length-1 are in the cache. */
typedef struct wr_seq {
  int32_t *pages;
  size_t n_pages, cap_pages;
  int64_t length;
} wr_seq;

typedef enum wr_want { WR_WANT_NONE, WR_WANT_LAST, WR_WANT_ALL } wr_want;

/* A piece of one sequence in a replay. */
typedef struct wr_work {
  wr_seq *seq;
  const int32_t *tokens;
  int n; /* >= 1 */
  wr_want want;
  float *logits; /* out: [1 or n, vocab]; NULL allowed with NONE */
} wr_work;

enum { WR_ENGINE_ROWS = 256, WR_ENGINE_OUT = 64, WR_ENGINE_SEQS = 64 }; /* at most, in one replay */

/* context_tok: longest sequence; pool_tok: positions of the pool, at least context_tok. Takes a reference for the caller. */
weir_status wr_engine_open(weir_model *m, int64_t context_tok, int64_t pool_tok, wr_dtype kv, wr_engine **out);
void wr_engine_ref(wr_engine *e);
void wr_engine_unref(wr_engine *e); /* NULL allowed; the last one frees it */
int64_t wr_engine_context(const wr_engine *e);
/* One replay: n pieces of n different sequences, together at most WR_ENGINE_ROWS rows of which WR_ENGINE_OUT give logits. On
 * failure no length has changed. `profiled`: with times of each step, see wr_engine_plan. */
weir_status wr_engine_run(wr_engine *e, wr_work *work, int n, bool profiled);
int wr_engine_bucket(int rows, int out); /* equal ones: the same plan serves them */
/* Makes the plan that such a replay will use, so that its time is not the replay's. */
weir_status wr_engine_prepare(wr_engine *e, int rows, int out, bool profiled);
weir_status wr_engine_truncate(wr_engine *e, wr_seq *seq, int64_t length); /* gives pages back */
weir_status wr_engine_fork(wr_engine *e, const wr_seq *seq, int64_t length, wr_seq *out); /* shares the pages of [0, length) */
void wr_engine_drop(wr_engine *e, wr_seq *seq);
int64_t wr_engine_pages(const wr_engine *e); /* of WR_KV_PAGE positions, in the pool */
int64_t wr_engine_pages_free(wr_engine *e);

double wr_engine_moved(wr_engine *e); /* bytes between devices, and between the host and devices that are not the CPU, by all replays */
/* Cost of one replay of one row at a position, by the cost rules: weights, KV and all. */
wr_cost wr_engine_cost(wr_engine *e, int64_t position);
/* The plan that serves so many rows and rows of logits, made if need be: for wr_plan_why, wr_print and profiles. Valid as long as the
 * engine. */
weir_status wr_engine_plan(wr_engine *e, int rows, int out, bool profiled, const wr_plan **plan);

int64_t wr_context_default(const weir_model *m, wr_dtype kv); /* tokens */
uint64_t wr_kv_token_bytes(const wr_hparams *h, wr_dtype kv);
uint64_t wr_context_left(weir_context *ctx); /* bytes that could still be taken */

/* ---- sampler: logits to a token */
typedef struct wr_candidate {
  float logit;
  int32_t id;
} wr_candidate;
typedef struct wr_sampler {
  weir_sampling s; /* every field as it counts */
  wr_rng rng;
  double *share;      /* [vocab], once a draw has needed it; the block of memory that the others lie in */
  double *sums;       /* [blocks] */
  wr_candidate *work; /* [vocab] */
  float *logits;      /* [vocab] with penalties */
  float *maxima;      /* [blocks] */
  size_t cap;
} wr_sampler;
weir_status wr_sampler_init(wr_sampler *z, const weir_sampling *s, uint64_t *seed); /* keeps work */
void wr_sampler_free(wr_sampler *z);
/* recent: the last tokens of the sequence, all of them; the sampler looks at as many as it wants. vocab: ids that may be
 * drawn. */
weir_status wr_sampler_draw(wr_sampler *z, const float *logits, int vocab, const int32_t *tokens, size_t n_tokens,
                            int32_t *out);

/* ---- answer: tokens to text that is valid UTF-8, up to a stop text */
typedef struct wr_answer {
  wr_text_stream stream;
  const weir_text *stop;
  size_t n_stop;
  wr_str raw;  /* bytes that came since the last look */
  wr_str text; /* what belongs to the answer; the first `given` bytes were handed out */
  size_t given;
  bool stopped;
} wr_answer;
void wr_answer_init(wr_answer *a, const wr_tokenizer *t, unsigned flags, const weir_text *stop, size_t n_stop);
void wr_answer_free(wr_answer *a);
weir_status wr_answer_put(wr_answer *a, int32_t token); /* sets stopped when a stop text is complete */
weir_status wr_answer_end(wr_answer *a);                /* nothing more comes */
/* What may be handed out now: sets *piece (valid until the next call) and returns its bytes. */
size_t wr_answer_take(wr_answer *a, const char **piece);

/* ---- reply: one answer while it grows */
typedef struct wr_reply {
  const weir_model *model;
  const weir_generate_options *o; /* lives as long */
  weir_piece_fn piece;            /* may be NULL */
  void *user;
  weir_result *r;
  wr_answer answer;
  size_t cap_tokens;
  size_t max_tok; /* that the answer may have */
} wr_reply;
/* Checks the options, makes ids of the prompt. EUSAGE: an option is out of range, or the prompt leaves no room in the context. To be freed
 * also when it failed. q's options are not looked at. */
weir_status wr_reply_begin(wr_reply *p, const weir_model *m, const weir_request *q, const weir_generate_options *o,
                           int64_t context_tok);
weir_status wr_reply_put(wr_reply *p, int32_t token);       /* takes a drawn token; sets r->finish when it ends the answer */
weir_status wr_reply_end(wr_reply *p, weir_result **out);   /* hands out what was held back; the result is the caller's */
void wr_reply_free(wr_reply *p);

#endif
