/* The places of the arguments of muon's ops in wr_call.args. */
#ifndef WR_OPS_MUON_I_H
#define WR_OPS_MUON_I_H

enum { MUON_M, MUON_GRAD, MUON_U };
enum { MUON_APPLY_PARAM, MUON_APPLY_U };
enum { WR_MUON_PIECE = 1024 }; /* elements whose squares are added in FP32 */

#endif
