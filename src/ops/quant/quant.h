/* quant: floats to the types that weights are stored in. Not an op of programs: what `weir quantize` and `weir convert` write with.
 *
 * What the bytes of a type mean is core/dtype/decode_cpu.c; this is the way back, which for most types is a definition (the bytes that
 * ggml's reference writes, too) and for the K types a search. Every ISA gives the same bytes, and a block's bytes depend on nothing but
 * its own elements (of the K types: 256 of them).
 *
 * The K types, elements x, weights w >= 0 (large elements count more; quant_cpu.c says how much):
 *   Q4_K, Q5_K  x = (d s) q - dmin m, s and m six bits for each 32 elements, q of 4 or 5 bits
 *   Q6_K        x = (d s) q, s eight bits for each 16 elements, q of -32..31
 */
#ifndef WR_QUANT_H
#define WR_QUANT_H

#include "core/core.h"

/* n finite elements, whole blocks; src and dst need no alignment beyond that of their C type. */
typedef void wr_quant_fn(const float *src, void *dst, int64_t n);
wr_quant_fn *wr_quantizer(wr_dtype t, uint32_t isa); /* NULL: weir does not write this type */

/* How far y is from x; {0} to begin, sums go on over calls. Sums are NaN or infinite once an element was. */
typedef struct wr_quant_error {
  double square, error_square; /* sums of x^2 and (x - y)^2 */
  float max_error;             /* of |x - y| */
} wr_quant_error;
typedef void wr_quant_error_fn(const float *x, const float *y, int64_t n, wr_quant_error *e);
wr_quant_error_fn *wr_quant_error_of(uint32_t isa);

#endif
