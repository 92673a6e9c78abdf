/* The places of the arguments of this family's ops in wr_call.args. */
#ifndef WR_OPS_ELEMENTWISE_I_H
#define WR_OPS_ELEMENTWISE_I_H

enum { ADD_A, ADD_B, ADD_Y };
enum { AXPBY_A, AXPBY_B, AXPBY_Y };
enum { GLU_GATE, GLU_UP, GLU_Y };
enum { GLU_BWD_DY, GLU_BWD_GATE, GLU_BWD_UP, GLU_BWD_DGATE, GLU_BWD_DUP };
enum { SOFTCAP_X, SOFTCAP_Y };
enum { DROPOUT_X, DROPOUT_Y };
enum { GELU_X, GELU_Y };
enum { GELU_BWD_DY, GELU_BWD_X, GELU_BWD_DX };

#endif
