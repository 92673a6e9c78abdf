/* The places of the arguments of this family's ops in wr_call.args: the same order as in their tables in rnn.c. */
#ifndef WR_OPS_RNN_I_H
#define WR_OPS_RNN_I_H

enum { RNN_X, RNN_W_IH, RNN_W_HH, RNN_BIAS, RNN_H0, RNN_C0, RNN_Y, RNN_HT, RNN_CT, RNN_GATES, RNN_CELLS };
enum {
  RNN_BWD_DY, RNN_BWD_DHT, RNN_BWD_DCT, RNN_BWD_X, RNN_BWD_W_IH, RNN_BWD_W_HH, RNN_BWD_H0, RNN_BWD_C0, RNN_BWD_Y, RNN_BWD_GATES,
  RNN_BWD_CELLS, RNN_BWD_DX, RNN_BWD_DW_IH, RNN_BWD_DW_HH, RNN_BWD_DBIAS, RNN_BWD_DH0, RNN_BWD_DC0
};
enum { RNN_I, RNN_F, RNN_G, RNN_O, RNN_GATE_COUNT };

#endif
