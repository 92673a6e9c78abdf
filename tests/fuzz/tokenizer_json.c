/* fuzz target: the input is a tokenizer.json. It is refused with a sentence that begins with its name, or opened; then texts are
 * encoded and decoded, ids are in range, and byte-level text comes back.
 */
#include <stdlib.h>

#include "text/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok) {
  if (!ok) abort();
}

static void try_text(const wr_tokenizer *t, const char *text, size_t n, unsigned flags) {
  wr_ids ids = {0};
  wr_str back = {0};
  weir_status st = wr_encode(t, text, n, flags, &ids);
  must(st == WEIR_OK || (st == WEIR_EUNSUPPORTED && !(flags & WR_TEXT_LOSSY) && !ids.len));
  for (size_t i = 0; i < ids.len; i++) must(ids.ptr[i] >= 0 && (size_t)ids.ptr[i] < wr_tokenizer_size(t));
  must(wr_decode(t, ids.ptr, ids.len, WR_TEXT_KEEP_SPECIAL, &back) == WEIR_OK);
  bool bytes = strncmp(wr_tokenizer_name(t), "gpt2/", 5) == 0;
  if (bytes && st == WEIR_OK && !(flags & (WR_TEXT_LOSSY | WR_TEXT_ADD_SPECIAL)))
    must(back.len == n && (!n || memcmp(back.ptr, text, n) == 0));
  wr_ids_free(&ids);
  wr_str_free(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char text[] = "aab abba aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!  1234\n\n<s>\xe2\x96\x81 caf\xc3\xa9 \xff\x00 'll";
  wr_tokenizer *t = NULL;
  weir_status st = wr_tokenizer_open_json_memory(data, size, "x.json", &t);
  must((st == WEIR_OK) == (t != NULL));
  must(t || (strncmp(weir_last_error(), "x.json: ", 8) == 0 && weir_last_error()[8]));
  if (t) {
    must(wr_tokenizer_size(t) > 0);
    (void)wr_tokenizer_hash(t);
    for (unsigned flags = 0; flags < 8; flags++) try_text(t, text, sizeof text - 1, flags);
    for (int32_t id = 0; id < 8; id++) {
      wr_gguf_text k = wr_token_text(t, id);
      if (k.ptr) try_text(t, k.ptr, k.len, WR_TEXT_PARSE_SPECIAL | WR_TEXT_LOSSY);
    }
  }
  wr_tokenizer_close(t);
  return 0;
}
