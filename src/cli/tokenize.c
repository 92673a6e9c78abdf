/* weir tokenize: text on standard input to ids, byte for byte, or ids to text. */
#include <stdlib.h>
#include <string.h>

#include "cli_i.h"

enum { MAX_TEXT_BYTES = 1 << 30 };

static unsigned text_flags(const wr_options *o) {
  return (o->parse_special ? WEIR_TEXT_PARSE_SPECIAL : 0u) | (o->no_special ? WEIR_TEXT_NO_BOS : 0u) |
         (o->show_special ? WEIR_TEXT_SHOW_SPECIAL : 0u) | (o->continues ? WEIR_TEXT_CONTINUES : 0u);
}

static weir_status to_ids(const wr_options *o, const weir_tokenizer *t, const char *text, size_t n) {
  weir_token *ids = NULL;
  size_t n_ids = 0;
  const weir_status s = weir_tokenizer_encode(t, text, n, text_flags(o), &ids, &n_ids);
  if (s != WEIR_OK) return s;
  if (o->json) {
    wr_json j;
    wr_json_begin(&j, stdout);
    wr_json_object(&j);
    wr_json_key(&j, "tokens");
    wr_json_array(&j);
    for (size_t i = 0; i < n_ids; i++) wr_json_int(&j, ids[i]);
    wr_json_end(&j);
    wr_json_end(&j);
    wr_json_done(&j);
  } else {
    for (size_t i = 0; i < n_ids; i++) printf("%s%d", i ? " " : "", ids[i]);
    printf("\n");
    fprintf(stderr, "%zu tokens of %zu bytes\n", n_ids, n);
  }
  weir_free(ids);
  return WEIR_OK;
}

static weir_status to_text(const wr_options *o, const weir_tokenizer *t, const weir_token *ids, size_t n) {
  char *text = NULL;
  size_t bytes = 0;
  const weir_status s = weir_tokenizer_decode(t, ids, n, text_flags(o), &text, &bytes);
  if (s != WEIR_OK) return s;
  if (o->json) {
    wr_json j;
    wr_json_begin(&j, stdout);
    wr_json_object(&j);
    wr_json_key(&j, "text");
    wr_json_bytes(&j, text, bytes);
    wr_json_end(&j);
    wr_json_done(&j);
  } else {
    fwrite(text, 1, bytes, stdout);
  }
  weir_free(text);
  return WEIR_OK;
}

int wr_cmd_tokenize(const wr_options *o) {
  weir_tokenizer *t = NULL;
  weir_status s = weir_tokenizer_open(o->args[0], &t);
  if (s != WEIR_OK) return wr_failed(o, s);
  size_t n = 0, n_ids = 0;
  weir_token *ids = NULL;
  char *text = wr_read_all(o, NULL, NULL, MAX_TEXT_BYTES, &n);
  int code = text ? 0 : 1;
  if (text && o->decode && !wr_parse_ids(o, text, n, &ids, &n_ids)) code = 2;
  if (!code) {
    s = o->decode ? to_text(o, t, ids, n_ids) : to_ids(o, t, text, n);
    code = s == WEIR_OK ? wr_done(o) : wr_failed(o, s);
  }
  free(ids);
  free(text);
  weir_tokenizer_close(t);
  return code;
}
