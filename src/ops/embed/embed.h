/* embed: rows of a table by token.
 *
 *   embed      y[r, :] = table[token[r], :]            (zero where token[r] is no row of the table)
 *   embed_bwd  dtable[v, :] = sum of dy[r, :] over live r with token[r] = v
 *
 * table is [V, D] of any dtype and layout, so that tied embeddings are read straight from quantised rows; y is F32 (F64 for an
 * F64 table). Tokens are I32, one for each row of y.
 */
#ifndef WR_OPS_EMBED_H
#define WR_OPS_EMBED_H

#include "core/core.h"

int wr_embed(wr_program *p, int table, int tokens); /* [R, D] */
int wr_embed_bwd(wr_program *p, int tokens, int dy, int64_t rows_of_table, wr_layout layout); /* [V, D], laid out like the table */

#endif
