/* model: from a file to a program. Architectures and hyper-parameters as tables, weights in the layout that they are computed
 * in, and the builder that writes a model's step down as a program.
 *
 * Owns: reading hyper-parameters (typed, ranged, held against each other and against the shapes of the tensors before use);
 * which layout each weight has; the packed file in the cache folder. Knows nothing of sessions, sampling or text.
 *
 *   hparams.c   the tables architectures.def and hparams.def, read        weights.c   tensors.def: found, checked, typed
 *   pack.c      the packed file: made, mapped, listed, cleared            model.c     opening; split.c: among several devices
 *   step.c      a step as a program; llama.c, gemma.c, gpt2.c: their layers
 *   spec.c      what is to be trained: presets.def, checks, costs         train.c     its program; train_llama.c, train_gpt2.c: layers
 *
 * A model is read-only once it is open: any number of threads may build programs from it.
 */
#ifndef WR_MODEL_H
#define WR_MODEL_H

#include "core/core.h"
#include "format/format.h"
#include "ops/attention/attention.h" /* WR_KV_PAGE: positions a page of the cache */

/* ---- hyper-parameters */
typedef enum wr_block {
  WR_BLOCK_LLAMA = 1,
  WR_BLOCK_GPT2 = 2,
  WR_BLOCK_GEMMA2 = 4,
  WR_BLOCK_GEMMA3 = 8,
  WR_BLOCK_GEMMA = WR_BLOCK_GEMMA2 | WR_BLOCK_GEMMA3,
  WR_BLOCK_GATED = WR_BLOCK_LLAMA | WR_BLOCK_GEMMA, /* q, k and v are three matrices, the feed-forward has a gate */
  WR_BLOCK_ALL = WR_BLOCK_GATED | WR_BLOCK_GPT2
} wr_block;
typedef enum wr_rope_order { WR_ROPE_NONE, WR_ROPE_PAIRS, WR_ROPE_HALVES } wr_rope_order;
struct wr_step_builder;
typedef struct wr_arch {
  const char *name;
  wr_block block;
  int (*step)(struct wr_step_builder *b, int embedded); /* appends the layers and the last norm: the value of the hidden rows */
  wr_rope_order rope;
  const char *eps_key;
  int64_t window_every; /* of so many layers the last has no window; 0: all have it. The file may say otherwise */
  const char *doc;
} wr_arch;

const wr_arch *wr_arch_find(const char *name, size_t n); /* n bytes. NULL: not in the table */

typedef enum wr_rope_scaling { WR_SCALING_NONE, WR_SCALING_LINEAR, WR_SCALING_YARN } wr_rope_scaling;

typedef struct wr_hparams {
  const wr_arch *arch;
#define INT(field, key, required, min, max, def) int64_t field;
#define FLOAT(field, key, required, min, max, def) double field;
#include "model/hparams.def"
#undef INT
#undef FLOAT
  wr_rope_scaling scaling;
  int64_t vocab; /* rows of the embedding; the tokenizer may have fewer tokens, then the last rows are padding */
} wr_hparams;
/* Reads and cross-checks everything that the header alone decides; vocab comes from the embedding's shape. */
weir_status wr_hparams_read(const wr_gguf *g, wr_hparams *out);
/* How many positions, its own included, a layer attends to; 0: all. */
int64_t wr_layer_window(const wr_hparams *h, int64_t layer);
/* EUSAGE: a context of so many tokens is longer than the model's table of positions. */
weir_status wr_context_check(const wr_hparams *h, int64_t context_tok);

/* Extents that tensors have. X(name, its value of wr_hparams *h, what it is made of) */
#define WR_DIM_MAP(X) \
  X(ONE, 1, "1") \
  X(VOCAB, h->vocab, "vocabulary") \
  X(WIDTH, h->width, "embedding_length") \
  X(FF, h->ff, "feed_forward_length") \
  X(QUERY, h->heads * h->key_width, "attention.head_count x head width") \
  X(KEY, h->kv_heads * h->key_width, "attention.head_count_kv x head width") \
  X(KEY_HEAD, h->key_width, "head width") \
  X(CONTEXT, h->trained_tok, "context_length") \
  X(QKV, h->heads * h->key_width + h->kv_heads * (h->key_width + h->value_width), "rows of q, k and v together") \
  X(VALUE, h->kv_heads * h->value_width, "attention.head_count_kv x head width") \
  X(MIXED, h->heads * h->value_width, "attention.head_count x head width") \
  X(ROPE_PAIRS, h->rope_dims / 2, "half of rope.dimension_count")
typedef enum wr_dim {
#define X(name, value, text) WR_DIM_##name,
  WR_DIM_MAP(X)
#undef X
} wr_dim;

/* ---- weights */
typedef enum wr_tensor_id {
#define TENSOR(id, blocks, name, scope, need, use, rows, cols) WR_T_##id,
#include "model/tensors.def"
#undef TENSOR
  WR_T_COUNT
} wr_tensor_id;

typedef struct wr_weight {
  char name[WR_GGUF_MAX_NAME + 1];
  wr_tensor_id id;
  int layer;                    /* -1: of the whole model */
  const wr_gguf_tensor *tensor; /* in the source file */
  wr_dtype dtype;
  wr_layout layout;
  int64_t rows, cols;
  size_t bytes;     /* in `layout` */
  const void *host; /* where it lies: source map, packed map, or the model's own small memory (VECTOR) */
  wr_buf buf;       /* the device's view of it */
} wr_weight;

typedef struct wr_model_options {
  bool no_mmap, no_pack, force_pack;
  bool plan_only; /* no memory is touched beyond the header: weights have sizes, but no address that may be followed */
  wr_mem *const *others; /* [n_others] further devices to share the layers with: split.c */
  int n_others;
} wr_model_options;

typedef struct wr_model {
  wr_mem *mem;                             /* = mems[0] */
  wr_mem *mems[WR_PLAN_DEVICES];           /* the devices that hold the weights */
  int n_mems, first_layer[WR_PLAN_DEVICES + 1]; /* device k has layers [first_layer[k], first_layer[k + 1]) */
  wr_buf head;                             /* the embedding as the last product reads it, where that is on another device */
  char *split;                             /* "cpu has layers 0..17, ..."; NULL: one device */
  wr_gguf *gguf;
  wr_hparams h;
  wr_weight *weights; /* [n_weights] in the order of use */
  int n_weights;
  int *index;    /* [(1 + layers) * WR_T_COUNT] into weights, -1: absent; row 0 is the model's own */
  wr_map packed; /* ptr NULL: nothing is packed */
  void *small;   /* VECTORs that had to be converted */
  char *types;   /* "q4_0, q8_0" */
  char *layout;  /* "packed: <path>", "plain: <why>" */
  uint64_t parameters, weight_bytes;
  uint64_t token_bytes; /* of the weights that one token's decode reads */
  double load_seconds, pack_seconds;
} wr_model;
weir_status wr_model_open(wr_mem *mem, const char *path, const wr_model_options *options, wr_model **out);
uint64_t wr_model_huge_bytes(const wr_model *m);                                   /* of the files with its weights, mapped in huge pages now */
void wr_model_close(wr_model *m);                                                /* NULL allowed */
int wr_model_place(const wr_model *m, int layer);                                /* which of mems has this layer */
const wr_weight *wr_model_weight(const wr_model *m, int layer, wr_tensor_id id); /* layer -1: the model's own. NULL: absent */
int wr_weight_dtype(const wr_gguf_type_info *t);                                 /* of weights of a file's type. -1: not computed with */
bool wr_weight_is_looked_up(const wr_model *m, const wr_weight *w);              /* a table of which a token takes one row */

/* ---- the packed file: pack.c */
typedef struct wr_pack_file {
  char *path, *source;
  uint64_t bytes;
  bool stale;
} wr_pack_file;
weir_status wr_pack_folder(char *out, size_t cap);
/* Calls fn for each packed file (and each temporary one that was left behind, as stale). No folder: no calls. */
weir_status wr_pack_list(weir_status (*fn)(void *user, const wr_pack_file *f), void *user);
weir_status wr_pack_verify(const char *path);

/* ---- the program */
typedef struct wr_step_shape {
  int rows;            /* bucket: token rows */
  int out;             /* bucket: rows that want logits */
  int seqs;            /* rows of the page table */
  int64_t pages;       /* pages of the pool */
  int64_t pages_a_seq; /* columns of the page table */
  wr_dtype kv;         /* F32, F16, BF16; Q8_0, Q4_0 where heads are whole blocks */
} wr_step_shape;

/* Ids of the values that a run reads and writes. */
typedef struct wr_step_io {
  int tokens, pos, slot, seq; /* INPUT [rows] i32 */
  int page_table;             /* INPUT [seqs, pages_a_seq] i32 */
  int out_rows;               /* INPUT [out] i32: which rows want logits */
  int logits;                 /* OUTPUT [out, vocab] f32 */
  int n_layers;
  int *k, *v; /* [n_layers] STATE of each layer, to be bound before planning; in the program's arena */
} wr_step_io;
/* Appends the step to an empty program and binds the weights. */
weir_status wr_step_build(wr_program *p, const wr_model *m, const wr_step_shape *shape, wr_step_io *out);
size_t wr_kv_page_bytes(const wr_hparams *h, wr_dtype kv, bool value); /* one page of one layer's keys, or values */

/* ---- models to be trained: spec.c, train.c
 * A spec is what a configuration file or a preset says. The training program of B sequences of T tokens is built from it; its weights
 * have GGUF's names, so a checkpoint is a GGUF file that inference opens. */
typedef struct wr_spec {
  char arch[16];            /* "llama", "gpt2" */
  int64_t layers, width, heads, kv_heads, ff, vocab, context_tok;
  bool tied;                /* the last product reads the embedding's table */
  double eps, rope_base;    /* rope_base: llama */
  double dropout;           /* 0: none */
} wr_spec;
/* size: "1m" … "1b", by parameters without the embedding of a given vocabulary. EUSAGE names the presets. */
weir_status wr_spec_preset(const char *arch, const char *size, int64_t vocab, int64_t context_tok, wr_spec *out);
weir_status wr_spec_check(const wr_spec *s);             /* EUSAGE: names field, value and rule */
uint64_t wr_spec_parameters(const wr_spec *s);           /* tied tables once */
double wr_spec_flop_tok(const wr_spec *s);               /* forward and backward, a token, with attention at T = context_tok */
weir_status wr_spec_put_meta(const wr_spec *s, const char *name, wr_gguf_writer *w); /* general.* and hyper-parameters */

typedef enum wr_param_kind { WR_PARAM_MATRIX, WR_PARAM_EMBEDDING, WR_PARAM_NORM, WR_PARAM_BIAS, WR_PARAM_KIND_COUNT } wr_param_kind;
typedef struct wr_train_param {
  int value;                /* PARAM of the program; its name is GGUF's */
  wr_param_kind kind;
  double init_mean, init_std; /* normal; std 0: constant */
} wr_train_param;

typedef enum wr_remat { WR_REMAT_NONE, WR_REMAT_ATTENTION, WR_REMAT_BLOCK } wr_remat;
typedef struct wr_train_shape {
  int64_t B, T;
  wr_layout layout;         /* of MATRIX and EMBEDDING parameters */
  wr_remat remat;
  bool accumulate;          /* gradients are STATE that every run adds to (the caller zeroes them) */
  bool forward_only;        /* validation: no gradients, no dropout */
} wr_train_shape;
typedef struct wr_train_io {
  int tokens, targets;      /* INPUT [B*T] i32; target -1: does not count */
  int pos;                  /* INPUT [B*T] i32: position within its document */
  int first;                /* INPUT [B*T] i32: first index of its sequence (0 … T-1) that a row may attend to */
  int scale;                /* INPUT [1] f32: rows that count in this run / rows that count in the step; gradients are of scale * loss */
  int loss;                 /* OUTPUT [1] f32: mean over the rows that count, in nats */
  wr_train_param *params;   /* [n_params] in the program's arena; gradients: program->values[params[i].value].grad */
  int n_params;
  int first_backward;       /* instructions before it are the forward pass; the head, whose loss and gradients are one, is not */
} wr_train_io;
weir_status wr_train_build(wr_program *p, const wr_spec *s, const wr_train_shape *shape, wr_train_io *out);

#endif
