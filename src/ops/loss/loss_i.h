/* The places of the arguments of this family's ops in wr_call.args: the same order as in their tables in loss.c. */
#ifndef WR_OPS_LOSS_I_H
#define WR_OPS_LOSS_I_H

enum { XENT_LOGITS, XENT_TARGETS, XENT_LOSS, XENT_LSE };
enum { XENT_BWD_DLOSS, XENT_BWD_LOGITS, XENT_BWD_TARGETS, XENT_BWD_LSE, XENT_BWD_DLOGITS };
enum { HEAD_X, HEAD_W, HEAD_TARGETS, HEAD_LOSS };
enum { HEAD_BWD_DLOSS, HEAD_BWD_X, HEAD_BWD_W, HEAD_BWD_TARGETS, HEAD_BWD_LOSS, HEAD_BWD_DX, HEAD_BWD_DW };

#endif
