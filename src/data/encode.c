/* encode.c: owns what stands around a document in a shard: BOS before it where the vocabulary adds one, EOS after it where it has one;
 * exactly one of each, and only one where they are the same token. */
#include "data/data_i.h"

wr_framing wr_framing_of(const wr_tokenizer *t) {
  const wr_special_ids *ids = wr_tokenizer_special(t);
  const int32_t end = ids->eos != WR_NO_TOKEN ? ids->eos : ids->eot;
  const int32_t begin = ids->add_bos ? ids->bos : WR_NO_TOKEN;
  return (wr_framing){begin, begin != WR_NO_TOKEN && begin == end ? WR_NO_TOKEN : end};
}

weir_status wr_encode_piece(wr_encoder *e, const wr_framing *f, const wr_text_piece *p, wr_ids *out) {
  if (p->first && f->bos != WR_NO_TOKEN) WR_TRY(wr_ids_put(out, f->bos));
  WR_TRY(wr_encoder_put(e, p->text, p->n, p->first ? 0 : WR_TEXT_CONTINUES, out));
  return p->last && f->eos != WR_NO_TOKEN ? wr_ids_put(out, f->eos) : WEIR_OK;
}
