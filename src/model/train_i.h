/* train_i.h: what the builders of training programs share: parameters with their kind and first values, in the order of use.
 *
 * A builder makes hidden rows from token rows; embedding of tokens, head, loss and gradients are the same for all (train.c). */
#ifndef WR_MODEL_TRAIN_I_H
#define WR_MODEL_TRAIN_I_H

#include "model/model.h"

typedef struct wr_train_builder {
  wr_program *p;
  const wr_spec *spec;
  const wr_train_shape *shape;
  wr_train_io io;  /* params has room for cap_params */
  int cap_params;
  int layer;       /* of which blk.N.* are made */
  wr_segment *segments; /* [layers], of which n_segments are to be recomputed */
  int n_segments;
} wr_train_builder;

typedef struct wr_train_arch {
  const char *name;
  weir_status (*check)(const wr_spec *s);                        /* what only this architecture asks for */
  int (*hidden)(wr_train_builder *b, int embedded);              /* [B*T, width] after the last norm */
  int params_a_layer, params_besides;                            /* at most, for the table of parameters */
  weir_status (*put_meta)(const wr_spec *s, wr_gguf_writer *w);  /* keys besides the common ones; NULL: none */
} wr_train_arch;
extern const wr_train_arch wr_train_llama, wr_train_gpt2;
const wr_train_arch *wr_train_arch_find(const char *name); /* NULL: not one that can be trained */

/* A parameter named "blk.<layer>.<what>", or `what` itself when it begins with '/'. */
int wr_train_matrix(wr_train_builder *b, const char *what, int64_t rows, int64_t cols);  /* normal, small for the width */
int wr_train_back(wr_train_builder *b, const char *what, int64_t rows, int64_t cols);    /* the same, into the residual: smaller by depth */
int wr_train_table(wr_train_builder *b, const char *what, int64_t rows, int64_t cols);   /* of the vocabulary or of positions */
int wr_train_norm(wr_train_builder *b, const char *what);                                /* [width] of ones */
int wr_train_bias(wr_train_builder *b, const char *what, int64_t n);                     /* zeros */

/* x + what a product into the residual makes of y, with dropout on the latter where the spec has it. bias: WR_NONE for none. */
int wr_train_residual(wr_train_builder *b, int x, int y, int matrix, int bias, const char *name);
/* Dropout where the spec has it; `name` as of parameters. */
int wr_train_dropout(wr_train_builder *b, int x, const char *name);

/* All layers, each x = feed_forward(attention(x)); recomputed where the shape asks for that. */
typedef int wr_train_part(wr_train_builder *b, int x);
int wr_train_layers(wr_train_builder *b, int x, wr_train_part *attention, wr_train_part *feed_forward);

#endif
