/* Fuzz target: the bytes are the choices of a tune file, behind the head that it must have (without it, all is refused). What is taken can be
 * looked up, and holds rows of ops. */
#include <stdlib.h>

#include "core/core.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  wr_str text = {0};
  wr_tune t;
  wr_tune_head(&text);
  wr_str_put(&text, data, size);
  if (text.oom) abort();
  if (wr_tune_parse(text.ptr, &t) == WEIR_OK) {
    for (size_t i = 0; i < t.n; i++) {
      if (t.entries[i].n_rows < 1 || t.entries[i].n_rows > WR_TUNE_ROWS) abort();
      for (int r = 0; r < t.entries[i].n_rows; r++)
        if (!t.entries[i].rows[r]->run) abort();
    }
    wr_tune_free(&t);
  }
  wr_str_free(&text);
  return 0;
}
