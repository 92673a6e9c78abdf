/* step_i.h: what the builders of a step share: weights as values, and attention over the paged cache.
 *
 * An architecture's builder makes hidden rows from embedded ones; tables, embedding and the product with the vocabulary are the same for
 * all (step.c). */
#ifndef WR_MODEL_STEP_I_H
#define WR_MODEL_STEP_I_H

#include "model/model.h"

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
/* Stores k and v, attends, projects and adds to x. In the last layer only rows that want logits go on: nobody reads the others, whose
 * keys and values are stored by then. */
int wr_step_attention(wr_step_builder *b, int x, int q, int k, int v);

/* Embedded rows to rows after the last norm. */
int wr_step_llama(wr_step_builder *b, int x);
int wr_step_gpt2(wr_step_builder *b, int x);

#endif
