/* What the files of this folder share. */
#ifndef WR_MODEL_I_H
#define WR_MODEL_I_H

#include "model/model.h"

typedef enum wr_use { WR_USE_MATRIX, WR_USE_TABLE, WR_USE_VECTOR } wr_use;

/* Fills weights and index from tensors.def, all in the file's own layout. */
weir_status wr_weights_find(wr_model *m);
/* Converts vectors that are not FP32. */
weir_status wr_weights_small(wr_model *m);
bool wr_weight_is_matrix(const wr_model *m, const wr_weight *w);
bool wr_weight_packs(const wr_model *m, const wr_weight *w); /* is it one that the packed file takes? */

/* Chooses the layout of each matrix and points `host` into the packed file, which is made if need be. What keeps it from being
 * used is written to *why (static text or a thread's error sentence) and is no failure; the weights are then as they were. */
weir_status wr_pack_open(wr_model *m, const wr_model_options *options, wr_str *why);

/* Which device has which layers, by how fast each multiplies by this model's weights and what fits: fills first_layer and split. */
weir_status wr_model_split(wr_model *m);

#endif
