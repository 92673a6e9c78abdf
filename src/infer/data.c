/* Shards for the public API: a thin coat over data/. */
#include "infer/infer_i.h"

#include "data/data.h"

weir_status weir_data_build(const weir_tokenizer *t, const char *const *inputs, size_t n_inputs, const char *folder,
                            const weir_data_build_options *options, weir_data_build_report *out) {
  if (!t || !folder || !n_inputs) return wr_fail(WEIR_EUSAGE, "a tokenizer, inputs and a folder are needed");
  return wr_data_build(t->t, inputs, n_inputs, folder, options, out);
}
