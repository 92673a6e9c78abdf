/* The places of the arguments of this family's ops in wr_call.args: the same order as in their tables in norm.c. */
#ifndef WR_OPS_NORM_I_H
#define WR_OPS_NORM_I_H

enum { RMSNORM_X, RMSNORM_W, RMSNORM_Y, RMSNORM_RSTD };
enum { RMSNORM_BWD_DY, RMSNORM_BWD_X, RMSNORM_BWD_W, RMSNORM_BWD_RSTD, RMSNORM_BWD_DX, RMSNORM_BWD_DW };

#endif
