/* The places of the arguments of this family's ops in wr_call.args: the same order as in their tables in optim.c. */
#ifndef WR_OPS_OPTIM_I_H
#define WR_OPS_OPTIM_I_H

enum { ADAMW_PARAM, ADAMW_GRAD, ADAMW_M, ADAMW_V };
enum { SGD_PARAM, SGD_GRAD, SGD_M };
enum { SUMSQ_X, SUMSQ_Y };
enum { WR_SUMSQ_PIECE = 1024 };

#endif
