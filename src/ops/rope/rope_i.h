/* The places of the arguments of this family's ops in wr_call.args. */
#ifndef WR_OPS_ROPE_I_H
#define WR_OPS_ROPE_I_H

enum { ROPE_TABLE_POS, ROPE_TABLE_FACTORS, ROPE_TABLE_TABLE };
enum { ROPE_X, ROPE_TABLE, ROPE_Y };

#endif
