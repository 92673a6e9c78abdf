/* tokens MODEL.gguf [TEXT]: the ids of a text, each with the bytes that it stands for, and the text again from its ids. */
#include <stdio.h>
#include <string.h>

#include "weir/weir.h"

static int fail(weir_status status) {
  fprintf(stderr, "tokens: %s\n", weir_last_error());
  return weir_status_exit_code(status);
}

int main(int argc, char **argv) {
  if (argc != 2 && argc != 3) {
    fprintf(stderr, "usage: tokens MODEL.gguf [TEXT]\n");
    return 2;
  }
  const char *given = argc == 3 ? argv[2] : "Water flows over the weir.";
  weir_tokenizer *t;
  weir_token *ids;
  size_t n, bytes;
  char *text;
  weir_status s = weir_tokenizer_open(argv[1], &t);
  if (s) return fail(s);
  if ((s = weir_tokenizer_encode(t, given, strlen(given), 0, &ids, &n))) return fail(s);
  for (size_t i = 0; i < n; i++) {
    if ((s = weir_tokenizer_decode(t, &ids[i], 1, WEIR_TEXT_SHOW_SPECIAL, &text, &bytes))) return fail(s);
    printf("%6d  '%s'\n", ids[i], text); /* may be a part of a character */
    weir_free(text);
  }
  if ((s = weir_tokenizer_decode(t, ids, n, 0, &text, &bytes))) return fail(s);
  const int same = bytes == strlen(given) && memcmp(text, given, bytes) == 0;
  printf("%zu tokens for %zu bytes; decoded %s\n", n, strlen(given), same ? "to the same" : "to something else");
  weir_free(text);
  weir_free(ids);
  weir_tokenizer_close(t);
  return same ? 0 : 1;
}
