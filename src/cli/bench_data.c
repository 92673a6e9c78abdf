/* weir bench data [SHARDS]: the loader beside the pipeline that most programs have, and beside PyTorch's DataLoader where there is one.
 * Without a folder, shards are made of 16 MB of made-up text, and removed afterwards. */
#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli_i.h"

extern char **environ;

enum { BATCH = 16, CONTEXT = 256, TEXT_BYTES = 16 << 20, MAX_ROWS = 16 };

typedef struct row {
  char name[48];
  double tok_s, copied_per_tok;
  unsigned long long tokens, sum;
} row;

/* ---- shards of one's own */

static bool write_text(const char *path) {
  static const char *const words[] = {"river", "weir",  "stone", "the", "of",   "and",
                                      "water", "falls", "over",  "a",   "slow", "bright"};
  FILE *f = fopen(path, "wb");
  if (!f) return false;
  uint64_t x = 1;
  for (long n = 0; n < TEXT_BYTES && !ferror(f);) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    n += fprintf(f, "%s%c", words[(x >> 33) % (sizeof words / sizeof words[0])], (x >> 50) % 12 ? ' ' : '\n');
  }
  return fclose(f) == 0;
}

static weir_status make_shards(const wr_options *o, const char *text, const char *folder) {
  weir_tokenizer *t;
  weir_status s = weir_tokenizer_open("bytes", &t);
  if (s != WEIR_OK) return s;
  const weir_data_build_options options = {.val_share = -1, .threads = (int)o->threads};
  s = weir_data_build(t, &text, 1, folder, &options, NULL);
  weir_tokenizer_close(t);
  return s;
}

static void remove_shards(const char *root) {
  static const char *const files[] = {"shards/manifest.json", "shards/tokenizer.gguf", "shards/train-00000.bin", "text.txt"};
  char path[4200];
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
    snprintf(path, sizeof path, "%s/%s", root, files[i]);
    unlink(path);
  }
  snprintf(path, sizeof path, "%s/shards", root);
  rmdir(path);
  rmdir(root);
}

/* ---- PyTorch */

/* bench/data_torch.py of the source tree that this program was built in: beside it, or above. */
static bool find_script(char out[4200]) {
  char exe[4096];
  const ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
  if (n <= 0) return false;
  exe[n] = 0;
  for (int up = 0; up < 5; up++) {
    char *slash = strrchr(exe, '/');
    if (!slash) return false;
    *slash = 0;
    snprintf(out, 4200, "%s/bench/data_torch.py", exe);
    if (access(out, R_OK) == 0) return true;
  }
  return false;
}

static bool get_number(const char *line, const char *key, double *out) {
  char quoted[40];
  snprintf(quoted, sizeof quoted, "\"%s\": ", key);
  const char *at = strstr(line, quoted);
  if (!at) return false;
  *out = strtod(at + strlen(quoted), NULL);
  return true;
}

/* A line of data_torch.py, which writes plain names and numbers. */
static bool read_row(const char *line, row *out) {
  double tokens, sum;
  const char *name = strstr(line, "\"name\": \""), *end = name ? strchr(name + 9, '"') : NULL;
  if (!end || end - name - 9 >= (ptrdiff_t)sizeof out->name || !get_number(line, "tok_s", &out->tok_s) ||
      !get_number(line, "tokens", &tokens) || !get_number(line, "sum", &sum) ||
      !get_number(line, "copied_per_tok", &out->copied_per_tok))
    return false;
  snprintf(out->name, sizeof out->name, "%.*s", (int)(end - name - 9), name + 9);
  out->tokens = (unsigned long long)tokens;
  out->sum = (unsigned long long)sum; /* below 2^53 for any corpus that is measured in minutes */
  return true;
}

/* Appends PyTorch's rows. What keeps it from that is said, and is no failure. */
static size_t run_torch(const wr_options *o, const char *folder, row *rows, size_t n, size_t most) {
  const char *python = o->python ? o->python : getenv("WEIR_TORCH");
  char script[4200], batch[16], context[16], reps[16];
  if (!python || !*python) {
    fprintf(stderr, "weir bench: no PyTorch beside: --python or $WEIR_TORCH names a Python that has it\n");
    return n;
  }
  if (!find_script(script)) {
    fprintf(stderr, "weir bench: no PyTorch beside: bench/data_torch.py is not where this program was built\n");
    return n;
  }
  snprintf(batch, sizeof batch, "%lld", (long long)o->batch);
  snprintf(context, sizeof context, "%lld", (long long)o->ctx);
  snprintf(reps, sizeof reps, "%lld", (long long)o->reps);
  const char *argv[] = {python, script, folder, batch, context, reps, NULL};
  int ends[2];
  if (pipe(ends) != 0) return n;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addclose(&actions, ends[0]);
  pid_t child;
  const int err = posix_spawnp(&child, python, &actions, NULL, (char *const *)(uintptr_t)argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  FILE *f = err ? NULL : fdopen(ends[0], "r");
  if (!f) {
    fprintf(stderr, "weir bench: %s: %s\n", python, strerror(err ? err : errno));
    close(ends[0]);
    return n;
  }
  char line[512];
  while (n < most && fgets(line, sizeof line, f)) n += read_row(line, &rows[n]);
  fclose(f);
  int status = 0;
  waitpid(child, &status, 0);
  if (status) fprintf(stderr, "weir bench: %s %s failed\n", python, script);
  return n;
}

/* ---- results */

static void print_rows(const wr_options *o, const char *folder, const row *rows, size_t n) {
  double peer = 0;
  for (size_t i = 0; i < n; i++)
    if (strncmp(rows[i].name, "DataLoader", 10) == 0 && rows[i].tok_s > peer) peer = rows[i].tok_s;
  printf("%s, %lld samples of %lld tokens a batch; every token is added up\n", folder, (long long)o->batch, (long long)o->ctx);
  for (size_t i = 0; i < n; i++) {
    printf("  %-26s %9.1f M tok/s  %5.1f bytes copied a token", rows[i].name, rows[i].tok_s * 1e-6, rows[i].copied_per_tok);
    if (peer > 0) printf("  %6.1f x", rows[i].tok_s / peer);
    printf("%s\n",
           rows[i].sum == rows[0].sum && rows[i].tokens == rows[0].tokens ? "" : "  (another sum: not the same tokens)");
  }
}

static void json_rows(const wr_options *o, const row *rows, size_t n) {
  char shape[64];
  wr_json j;
  wr_json_begin(&j, stdout);
  wr_json_array(&j);
  snprintf(shape, sizeof shape, "B=%lld T=%lld", (long long)o->batch, (long long)o->ctx);
  for (size_t i = 0; i < n; i++) {
    const double batch_tok = (double)(o->batch * o->ctx), us = batch_tok / rows[i].tok_s * 1e6;
    const double bytes = batch_tok * rows[i].copied_per_tok;
    const weir_bench_row of_batch = {.name = rows[i].name, .shape = shape, .us = us, .bytes = bytes, .gb_s = bytes / us * 1e-3};
    wr_json_bench(&j, &of_batch);
    wr_json_number(&j, "tok_s", rows[i].tok_s);
    wr_json_number(&j, "copied_per_tok", rows[i].copied_per_tok);
    wr_json_count(&j, "tokens", rows[i].tokens);
    wr_json_count(&j, "sum", rows[i].sum);
    wr_json_end(&j);
  }
  wr_json_end(&j);
  wr_json_done(&j);
}

static int measure(const wr_options *o, const char *folder) {
  weir_data_bench_row got[WEIR_DATA_BENCH_ROWS];
  row rows[MAX_ROWS];
  const weir_status s = weir_data_bench(folder, o->batch, o->ctx, (int)o->reps, got);
  if (s != WEIR_OK) return wr_failed(o, s);
  size_t n = 0;
  for (; n < WEIR_DATA_BENCH_ROWS; n++) {
    rows[n] = (row){.tok_s = got[n].tok_s, .copied_per_tok = got[n].copied_per_tok, .tokens = got[n].tokens, .sum = got[n].sum};
    snprintf(rows[n].name, sizeof rows[n].name, "%s", got[n].name);
  }
  n = run_torch(o, folder, rows, n, MAX_ROWS);
  if (o->json)
    json_rows(o, rows, n);
  else
    print_rows(o, folder, rows, n);
  return wr_done(o);
}

int wr_bench_data(const wr_options *given) {
  wr_options o = *given;
  if (!o.ctx) o.ctx = CONTEXT;
  if (o.batch < 2) o.batch = BATCH;
  if (o.n_args > 1) return measure(&o, o.args[1]);
  const char *tmp = getenv("TMPDIR");
  char root[4096], text[4200], folder[4200];
  snprintf(root, sizeof root, "%s/weir-bench-XXXXXX", tmp && *tmp ? tmp : "/tmp");
  if (!mkdtemp(root)) { return wr_failed_file(&o, root, errno); }
  snprintf(text, sizeof text, "%s/text.txt", root);
  snprintf(folder, sizeof folder, "%s/shards", root);
  int code;
  if (!write_text(text)) {
    code = wr_failed_file(&o, text, errno);
  } else {
    const weir_status s = make_shards(&o, text, folder);
    code = s == WEIR_OK ? measure(&o, folder) : wr_failed(&o, s);
  }
  remove_shards(root);
  return code;
}
