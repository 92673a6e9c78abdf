/* block_i.h: the values of quantised blocks, on the host; what their bytes mean: block_dev.h. */
#ifndef WR_CORE_DTYPE_BLOCK_I_H
#define WR_CORE_DTYPE_BLOCK_I_H

#include "core/dtype/block_dev.h"
#include "core/dtype/dtype_i.h"

/* The values of a block in F32, each product and each sum rounded (no fused product), so that decoding agrees bit for bit with other
 * readers. t: constant. */
WR_BLOCK_FN void wr_block_values(wr_dtype t, const wr_block *b, float *dst) {
  const wr_quant form = wr_quant_of(t);
  const float d = wr_half(b->f16[0]), dmin = form.minimum ? wr_half(b->f16[1]) : 0;
  const int n = form.scale_bits ? 256 / form.part : 1;
  for (int i = 0; i < n; i++, dst += form.part) {
    const uint8_t *q = b->q + i * form.part;
    const float scale = form.scale_bits ? d * (float)(b->scale[i] - form.scale_bias) : d;
    const float minimum = form.scale_bits ? -(dmin * (float)b->scale[n + i]) : dmin;
    for (int j = 0; j < form.part; j++)
      if (form.minimum)
        dst[j] = scale * (float)q[j] + minimum;
      else
        dst[j] = scale * (float)((form.table ? wr_iq4[q[j]] : q[j]) - form.bias);
  }
}

#endif
