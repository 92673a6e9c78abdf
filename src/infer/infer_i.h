/* What the files of this folder share and nobody else needs. */
#ifndef WR_INFER_I_H
#define WR_INFER_I_H

#include "infer/infer.h"

struct weir_tokenizer {
  wr_tokenizer *t;
};
weir_status wr_tokenizer_wrap(const wr_gguf *g, weir_tokenizer **out); /* of a model's file, which outlives it */

struct weir_session {
  weir_model *model;
  wr_engine *engine;
  wr_seq seq;
  int32_t *tokens; /* [seq.length]: what the cache holds */
  size_t cap_tokens;
  float *logits; /* [vocab] of the last position */
  bool has_logits;
  int piece;
  atomic_int stop;
  wr_sampler sampler;
  double open_seconds;
};

/* weir_session_eval for one token with the plan that measures each step. */
weir_status wr_session_step(weir_session *s, int32_t token, bool profiled);
/* Makes the plans that a sync to these tokens will use. */
weir_status wr_session_prepare(weir_session *s, const int32_t *tokens, size_t n);
wr_dtype wr_kv_dtype(weir_kv_type t);
weir_status wr_kv_check(const wr_hparams *h, weir_kv_type t); /* EUSAGE: no type, or none for heads of this width */
weir_status wr_session_check(const weir_model *m, const weir_session_options *o);
bool wr_session_stopped(weir_session *s); /* was weir_stop called? Then it is forgotten */
weir_status wr_token_check(const weir_model *m, const int32_t *tokens, size_t n);

/* As snprintf does: at most cap bytes with the NUL; returns the length of the whole text. Frees it. */
size_t wr_give_text(wr_str *s, char *out, size_t cap);

weir_status wr_context_tune_open(weir_context *ctx); /* tune.c: reads the tune file, if there is one that can be used. ENOMEM */

/* ---- recipe.c: what `weir quantize` calls a type: a type for each kind of tensor */
typedef struct wr_recipe {
  const char *name;   /* "q4_k_m" */
  uint32_t file_type; /* llama.cpp's number, general.file_type */
  wr_gguf_type matrix, output, qkv, more;
} wr_recipe;
weir_status wr_recipe_find(const char *name, const wr_recipe **out);
int wr_recipe_layers(const wr_gguf *g);
/* pure: all matrices in the recipe's `matrix`. *instead_of: the type that the rows are not whole blocks of; else NULL. */
const wr_gguf_type_info *wr_recipe_type(const wr_recipe *r, bool pure, const wr_gguf *g, const wr_gguf_tensor *t, int n_layers,
                                        const wr_gguf_type_info **instead_of);

/* ---- limit.c */
typedef struct wr_limit {
  const weir_model *m;
  struct wr_range *ranges;
  size_t n_ranges;
  double bytes, best, worst; /* of a read; bytes a second */
  int runs;
  double seconds;
} wr_limit;
weir_status wr_limit_init(wr_limit *l, const weir_model *m);
void wr_limit_free(wr_limit *l);
void wr_limit_run(wr_limit *l);
const char *wr_limit_mode(const wr_limit *l);
/* weir_result.prefill_share of n tokens from position `first`, replayed `piece` at a time, in so many seconds. */
double wr_prompt_share(wr_engine *e, const weir_model *m, int64_t first, int64_t n, int piece, double seconds);

/* "blk.3.ffn_up.weight" -> "ffn_up": of the first weight that the instruction reads; "": it reads none. */
void wr_weight_kind(const wr_program *p, const wr_instr *in, char *out, size_t cap);

/* Sums of a profile while it runs. */
typedef struct wr_profile_sums {
  const wr_plan *plan;
  double *ns;          /* [plan->list.n] */
  wr_regs first, last; /* of the replays that were added */
  double sample_ns, text_ns;
  size_t tokens;
} wr_profile_sums;
weir_status wr_profile_init(wr_profile_sums *p, const wr_plan *plan);
void wr_profile_free(wr_profile_sums *p);
void wr_profile_add(wr_profile_sums *p); /* after a replay of the plan */
weir_status wr_profile_make(const wr_profile_sums *p, double wall_ns, double limit_gb_s, weir_profile **out);
void wr_profile_drop(weir_profile *p);

#endif
