/* encode.c: owns what stands around a document in a shard: BOS before it where the vocabulary adds one, EOS after it where it has one;
 * exactly one of each, and only one where they are the same token; and where documents end among the ids. */
#include "data/data_i.h"

wr_framing wr_framing_of(const wr_tokenizer *t) {
  const wr_special_ids *ids = wr_tokenizer_special(t);
  const int32_t end = ids->eos != WR_NO_TOKEN ? ids->eos : ids->eot;
  const int32_t begin = ids->add_bos ? ids->bos : WR_NO_TOKEN;
  return (wr_framing){begin, begin != WR_NO_TOKEN && begin == end ? WR_NO_TOKEN : end};
}

weir_status wr_encode_piece(wr_encoder *e, const wr_framing *f, const wr_text_piece *p, wr_encoded *out) {
  if (p->first && f->bos != WR_NO_TOKEN) WR_TRY(wr_ids_put(&out->ids, f->bos));
  WR_TRY(wr_encoder_put(e, p->text, p->n, p->first ? 0 : WR_TEXT_CONTINUES, &out->ids));
  if (!p->last) return WEIR_OK;
  if (f->eos != WR_NO_TOKEN) WR_TRY(wr_ids_put(&out->ids, f->eos));
  if (!wr_grow((void **)&out->ends, &out->cap_ends, out->n_ends + 1, sizeof *out->ends))
    return wr_fail_nomem((out->n_ends + 1) * sizeof *out->ends, "the ends of documents");
  out->ends[out->n_ends++] = out->ids.len;
  return WEIR_OK;
}

void wr_encoded_clear(wr_encoded *e) { e->ids.len = e->n_ends = 0; }

void wr_encoded_free(wr_encoded *e) {
  wr_ids_free(&e->ids);
  wr_free(e->ends);
  *e = (wr_encoded){0};
}
