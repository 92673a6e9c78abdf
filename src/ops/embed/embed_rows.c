/* Embedding for the CPU: bound by memory that is read once, so that one form for all instruction sets will do. */
#include "core/core.h"
#include "ops/arg_i.h"
#include "ops/embed/embed_i.h"

WR_ROW_FN(embed_cpu);
WR_ROW_FN(embed_bwd_f32_cpu);

WR_ROW_FN(embed_cpu) {
  const wr_arg *table = &c->args[EMBED_TABLE], *tokens = &c->args[EMBED_TOKENS], *y = &c->args[EMBED_Y];
  const int64_t D = wr_inner(y);
  int64_t begin, end;
  while (wr_take(w, 0, wr_live_rows(c, EMBED_TOKENS), wr_rows_grain(D), &begin, &end))
    for (int64_t r = begin; r < end; r++) {
      const int64_t token = wr_arg_i32(tokens, r);
      if (token >= 0 && token < table->ext[0])
        wr_row_to_float(table, token, 0, D, wr_arg_f32(y, r));
      else
        memset(wr_arg_row(y, r), 0, (size_t)D * sizeof(float));
    }
}

/* Shared out by columns: a thread adds all rows of dy within its columns, so that equal tokens never meet from two threads and
 * the order of the sum is that of the rows. */
WR_ROW_FN(embed_bwd_f32_cpu) {
  const wr_arg *tokens = &c->args[EMBED_BWD_TOKENS], *dy = &c->args[EMBED_BWD_DY], *dtable = &c->args[EMBED_BWD_DTABLE];
  const int64_t D = wr_inner(dy), rows = wr_live_rows(c, EMBED_BWD_TOKENS), V = dtable->ext[0];
  const bool add = c->acc >> EMBED_BWD_DTABLE & 1;
  int64_t begin, end;
  /* between columns; rows that lie together */
  const int64_t step = dtable->layout == WR_PLAIN ? 1 : WR_PACK_ROWS, groups = (V + step - 1) / step;
  while (wr_take(w, 0, D, 64, &begin, &end)) {
    for (int64_t g = 0; !add && g < groups; g++)
      memset(wr_arg_f32(dtable, g) + begin * step, 0, (size_t)((end - begin) * step) * sizeof(float));
    for (int64_t r = 0; r < rows; r++) {
      const int64_t token = wr_arg_i32(tokens, r);
      if (token < 0 || token >= V) continue;
      float *to = wr_arg_f32(dtable, token / step) + token % step;
      const float *from = wr_arg_f32(dy, r);
      for (int64_t k = begin; k < end; k++) to[k * step] += from[k];
    }
  }
}
