/* The places of the arguments of this family's ops in wr_call.args. */
#ifndef WR_OPS_ELEMENTWISE_I_H
#define WR_OPS_ELEMENTWISE_I_H

enum { ADD_A, ADD_B, ADD_Y };
enum { AXPBY_A, AXPBY_B, AXPBY_Y };
enum { SWIGLU_GATE, SWIGLU_UP, SWIGLU_Y };
enum { SWIGLU_BWD_DY, SWIGLU_BWD_GATE, SWIGLU_BWD_UP, SWIGLU_BWD_DGATE, SWIGLU_BWD_DUP };
enum { DROPOUT_X, DROPOUT_Y };
enum { GELU_X, GELU_Y };
enum { GELU_BWD_DY, GELU_BWD_X, GELU_BWD_DX };

#endif
