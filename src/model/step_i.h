/* step_i.h: what the builders of a step share: weights as values, and attention over the paged cache.
 *
 * An architecture's builder makes hidden rows from embedded ones; tables, embedding and the product with the vocabulary are the same for
 * all (step.c). */
#ifndef WR_MODEL_STEP_I_H
#define WR_MODEL_STEP_I_H

#include "model/model.h"
#include "ops/elementwise/elementwise.h" /* wr_act */
#include "ops/rope/rope.h"

typedef struct wr_step_builder {
  wr_program *p;
  const wr_model *m;
  const wr_step_shape *shape;
  wr_step_io *io;
  int layer;
} wr_step_builder;

int wr_step_weight(wr_step_builder *b, int layer, wr_tensor_id id); /* WR_NONE: the model has none */
/* Rows [first, first + rows) of a layer's matrix, or elements of its vector; `suffix` tells their name from the others'. */
int wr_step_rows(wr_step_builder *b, wr_tensor_id id, int64_t first, int64_t rows, const char *suffix);
/* x w^T + bias (+ residual), of the layer. */
int wr_step_linear(wr_step_builder *b, int x, wr_tensor_id w, wr_tensor_id bias, int residual);
/* x w^T + bias, of the layer, split into heads: [rows, heads, width]. */
int wr_step_heads(wr_step_builder *b, int x, wr_tensor_id w, wr_tensor_id bias, int64_t heads);
int wr_step_norm(wr_step_builder *b, int x, int layer, wr_tensor_id id); /* RMSNorm, over the last dimension */
/* The gated feed-forward: (act(x Wgate) * (x Wup)) Wdown (+ residual). */
int wr_step_gated(wr_step_builder *b, int x, wr_act act, int residual);
wr_rope_params wr_step_rope(const wr_hparams *h); /* as the file has it, of layers without another base */
/* Stores k and v, and attends through the layer's window. In the last layer only rows that want logits go on, also of *x: nobody reads the
 * others, whose keys and values are stored by then. */
int wr_step_mix(wr_step_builder *b, int *x, int q, int k, int v, double scale);
/* The same, projected and added to x. */
int wr_step_attention(wr_step_builder *b, int x, int q, int k, int v);

/* Embedded rows to rows after the last norm. */
int wr_step_llama(wr_step_builder *b, int x);
int wr_step_gemma(wr_step_builder *b, int x);
int wr_step_gpt2(wr_step_builder *b, int x);

#endif
