/* The places of the arguments of this family's ops in wr_call.args: the same order as in their tables in norm.c. */
#ifndef WR_OPS_NORM_I_H
#define WR_OPS_NORM_I_H

enum { RMSNORM_X, RMSNORM_W, RMSNORM_Y, RMSNORM_RSTD };
enum { RMSNORM_BWD_DY, RMSNORM_BWD_X, RMSNORM_BWD_W, RMSNORM_BWD_RSTD, RMSNORM_BWD_DX, RMSNORM_BWD_DW };
enum { LAYERNORM_X, LAYERNORM_W, LAYERNORM_B, LAYERNORM_Y, LAYERNORM_STATS };
enum {
  LAYERNORM_BWD_DY, LAYERNORM_BWD_X, LAYERNORM_BWD_W, LAYERNORM_BWD_STATS,
  LAYERNORM_BWD_DX, LAYERNORM_BWD_DW, LAYERNORM_BWD_DB
};

/* layernorm_bwd sums dw and db within blocks of rows at absolute places, then over the blocks: of each block 2 D floats of scratch. */
enum { WR_LN_BLOCK = 32 };

#endif
