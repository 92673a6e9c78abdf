/* What the files of this folder share: the functions that quant_cpu.c defines, once for each instruction set. */
#ifndef WR_QUANT_I_H
#define WR_QUANT_I_H

#include "ops/quant/quant.h"

/* The types that weir writes. */
#define WR_QUANT_TYPES(X) X(F32) X(F16) X(BF16) X(Q8_0) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q4_K) X(Q5_K) X(Q6_K)

#define WR_QUANT_DECLARE_ISA(LEVEL, isa, name) wr_quant_fn wr_quant_##name##_##isa;
#define WR_QUANT_DECLARE(name) WR_EACH_ISA(WR_QUANT_DECLARE_ISA, name)
WR_QUANT_TYPES(WR_QUANT_DECLARE)
#define WR_QUANT_DECLARE_ERROR(LEVEL, isa, name) wr_quant_error_fn wr_quant_##name##_##isa;
WR_EACH_ISA(WR_QUANT_DECLARE_ERROR, error)

#endif
