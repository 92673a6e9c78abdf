/* quant.c: which function writes which type on which instruction set. */
#include "ops/quant/quant_i.h"

#define ENTRY(LEVEL, isa, name) [WR_ISA_##LEVEL] = wr_quant_##name##_##isa,
#define ONE(...) +1
enum { ISAS = 0 WR_EACH_ISA(ONE, ) };

wr_quant_fn *wr_quantizer(wr_dtype t, uint32_t isa) {
#define ROW(name) [WR_##name] = {WR_EACH_ISA(ENTRY, name)},
  static wr_quant_fn *const rows[WR_DTYPE_COUNT][ISAS] = {WR_QUANT_TYPES(ROW)};
#undef ROW
  return rows[t][isa & WR_ISA_LEVEL_MASK];
}

wr_quant_error_fn *wr_quant_error_of(uint32_t isa) {
  static wr_quant_error_fn *const of[ISAS] = {WR_EACH_ISA(ENTRY, error)};
  return of[isa & WR_ISA_LEVEL_MASK];
}
