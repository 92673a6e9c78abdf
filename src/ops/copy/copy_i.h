/* The places of the arguments of this family's ops in wr_call.args. */
#ifndef WR_OPS_COPY_I_H
#define WR_OPS_COPY_I_H

enum { COPY_X, COPY_Y };
enum { RELAYOUT_X, RELAYOUT_Y };
enum { GATHER_X, GATHER_IDX, GATHER_Y };
enum { GATHER_BWD_DY, GATHER_BWD_IDX, GATHER_BWD_DX };

#endif
