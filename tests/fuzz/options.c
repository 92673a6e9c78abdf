/* Fuzz target: the bytes are a command line. The first one chooses the command, the rest are its words, each ended by a newline. Whatever is accepted
 * must hold what the library would accept too. */
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "../../src/cli/common.c"
#include "../../src/cli/json.c"
#include "../../src/cli/options.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_WORDS = 40 };

static void require(bool ok) {
  if (!ok) abort();
}

static void check_accepted(const wr_options *o, enum wr_command id) {
  require(weir_sampling_check(&o->sampling) == WEIR_OK);
  require(o->n_args >= commands[id].least && o->n_args <= commands[id].most);
  require(o->stop.n <= WR_LIST_MAX);
  for (int i = 0; i < N_ROWS; i++) {
    int64_t v;
    if (rows[i].kind != COUNT) continue;
    memcpy(&v, (const char *)o + rows[i].at, sizeof v);
    require((v >= rows[i].least && v <= rows[i].most) || v == rows[i].otherwise);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = malloc(size + 1), *words[MAX_WORDS + 1] = {(char *)(uintptr_t) "weir"};
  int n = 1;
  if (!text || !size) {
    free(text);
    return 0;
  }
  /* The parser explains itself on both streams: not while fuzzing. */
  FILE *out = stdout, *err = stderr, *quiet = fopen("/dev/null", "w");
  if (quiet) stdout = stderr = quiet;
  memcpy(text, data + 1, size - 1);
  text[size - 1] = 0;
  for (char *at = text; n < MAX_WORDS && at && *at;) {
    words[n++] = at;
    at = strchr(at, '\n');
    if (at) *at++ = 0;
  }
  const enum wr_command id = (enum wr_command)(data[0] % WR_CMD_COUNT);
  wr_options o;
  if (wr_options_parse(id, n, words, &o) == 0) {
    weir_token *ids = NULL;
    size_t n_ids = 0;
    check_accepted(&o, id);
    if (o.tokens && wr_parse_ids(&o, o.tokens, strlen(o.tokens), &ids, &n_ids)) free(ids);
  }
  stdout = out;
  stderr = err;
  if (quiet) fclose(quiet);
  free(text);
  return 0;
}
