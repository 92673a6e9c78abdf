/* What the files of this family share. */
#ifndef WR_OPS_OPTIM_I_H
#define WR_OPS_OPTIM_I_H

#include "ops/cases.h"

/* The places of the arguments of its ops in wr_call.args: the same order as in their tables in optim.c. */
enum { ADAMW_PARAM, ADAMW_GRAD, ADAMW_M, ADAMW_V };
enum { SGD_PARAM, SGD_GRAD, SGD_M };
enum { SUMSQ_X, SUMSQ_Y };
enum { WR_SUMSQ_PIECE = 1024 };

size_t optim_dev_scratch(const wr_call *c, int n_threads); /* of sums over pieces: optim_dev.c */
wr_vtype wr_optim_case_weights(wr_case *c); /* of the keys rows, d, [dtype], [layout] */

#endif
