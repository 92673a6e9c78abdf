/* ring.c: text that is tokenised as it is read. */
#include "data/data_i.h"

weir_status wr_ring_open(const wr_data_options *o, wr_data **out) {
  (void)out;
  return wr_fail(WEIR_EUNSUPPORTED, "%s: is no folder of shards; 'weir data build' makes one of text", o->sources[0].path);
}
