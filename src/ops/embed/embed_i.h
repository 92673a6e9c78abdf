/* embed_i.h: what the files of this folder share. */
#ifndef WR_OPS_EMBED_I_H
#define WR_OPS_EMBED_I_H

#include "core/core.h"

enum { EMBED_TABLE, EMBED_TOKENS, EMBED_Y };
enum { EMBED_BWD_TOKENS, EMBED_BWD_DY, EMBED_BWD_DTABLE };

typedef struct wr_embed_bwd_params { int64_t rows; wr_layout layout; } wr_embed_bwd_params; /* of the table */

#endif
