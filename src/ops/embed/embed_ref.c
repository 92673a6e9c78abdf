/* The definition of the embed family: see embed.h for the equations. */
#include "ops/embed/embed.h"
#include "ops/embed/embed_i.h"
#include "ops/ref_i.h"

WR_ROW_FN(embed_ref);
WR_ROW_FN(embed_bwd_ref);

WR_ROW_FN(embed_ref) {
  const wr_arg *table = &c->args[EMBED_TABLE];
  int64_t begin, end;
  while (wr_take(w, 0, wr_live_rows(c, EMBED_TOKENS), 1, &begin, &end))
    for (int64_t r = begin; r < end; r++) {
      const int64_t token = wr_ref_int(c, EMBED_TOKENS, r);
      for (int64_t k = 0; k < wr_inner(table); k++)
        wr_ref_put(c, EMBED_Y, r, k, token >= 0 && token < table->ext[0] ? wr_get(table, token, k) : 0);
    }
}

WR_ROW_FN(embed_bwd_ref) {
  const wr_arg *dtable = &c->args[EMBED_BWD_DTABLE], *dy = &c->args[EMBED_BWD_DY];
  int64_t begin, end;
  while (wr_take(w, 0, dtable->ext[0], 1, &begin, &end))
    for (int64_t v = begin; v < end; v++)
      for (int64_t k = 0; k < wr_inner(dtable); k++) {
        double sum = 0;
        for (int64_t r = 0; r < wr_live_rows(c, EMBED_BWD_TOKENS); r++)
          if (wr_ref_int(c, EMBED_BWD_TOKENS, r) == v) sum += wr_get(dy, r, k);
        wr_ref_put(c, EMBED_BWD_DTABLE, v, k, sum);
      }
}
