/* Fuzz target: the bytes are a checkpoint's manifest. One that is accepted holds names that stay in
 * their folder. */
#include <stdlib.h>
#include <unistd.h>

#include "format/checkpoint_i.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok) {
  if (!ok) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = wr_strndup((const char *)data, size);
  wr_manifest m;
  if (text && wr_manifest_parse(text, &m)) {
    require(m.step >= 0 && m.n_files >= 1 && m.n_files <= WR_MANIFEST_FILES);
    for (int i = 0; i < m.n_files; i++) require(wr_manifest_name_ok(m.files[i].name) && !strchr(m.files[i].name, '/'));
  }
  wr_free(text);
  return 0;
}
