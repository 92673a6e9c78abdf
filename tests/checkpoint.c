/* checkpoint.c: saving beside training, and finding the newest complete checkpoint. The witness of a save is a pattern that is a
 * function of step, tensor and element: whatever is read back must be the pattern of one step, and of the right one. */
#include "test.h"

#include "format/format.h"
#include "heap_i.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
enum { THREAD_SANITIZER = 1 };
#else
enum { THREAD_SANITIZER = 0 };
#endif

/* ---- folders */

static char root[64];
static const char *run_folder(const char *name) {
  static char path[128];
  if (!root[0]) {
    strcpy(root, "/tmp/weir-checkpoint-XXXXXX");
    if (!mkdtemp(root)) abort();
  }
  snprintf(path, sizeof path, "%s/%s", root, name);
  return path;
}

static int names_with(const char *folder, const char *part) {
  int n = 0;
  DIR *d = opendir(folder);
  for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.' && strstr(e->d_name, part) != NULL;
  if (d) closedir(d);
  return n;
}

static const char *in(const char *folder, const char *name) {
  static char path[4][512];
  static unsigned turn;
  char *out = path[turn++ % 4];
  snprintf(out, sizeof path[0], "%s/%s", folder, name);
  return out;
}

static bool exists(const char *path) { return access(path, F_OK) == 0; }

static char warning[1024]; /* the last one */
static void keep_log(void *user, weir_log_level level, const char *message) {
  (void)user, (void)level;
  snprintf(warning, sizeof warning, "%s", message);
}

/* ---- a small model: plain and interleaved tensors, of which one has a last group that is not full */

enum { N_TENSORS = 4 };
typedef struct model {
  wr_save_tensor t[N_TENSORS];
  size_t floats[N_TENSORS]; /* at data */
} model;

static void make_model(model *m, uint64_t scale) {
  *m = (model){.t = {{.name = "token_embd.weight", .n_dims = 2, .dim = {24, 37 * scale}, .lanes = 16},
                     {.name = "blk.0.ffn_up.weight", .n_dims = 2, .dim = {48, 64 * scale}, .lanes = 16},
                     {.name = "output_norm.weight", .n_dims = 1, .dim = {24}},
                     {.name = "output.weight", .n_dims = 2, .dim = {24, 37 * scale}}}};
  for (int i = 0; i < N_TENSORS; i++) {
    wr_save_tensor *t = &m->t[i];
    uint64_t rows = t->n_dims > 1 ? t->dim[1] : 1;
    if (t->lanes) rows = (rows + 15) / 16 * 16;
    m->floats[i] = (size_t)(rows * t->dim[0]);
    t->data = calloc(m->floats[i], sizeof(float));
  }
}

static void free_model(model *m) {
  for (int i = 0; i < N_TENSORS; i++) free(m->t[i].data);
}

static float pattern(int64_t step, int tensor, uint64_t element) {
  return (float)(step * 7 + tensor) + (float)(element % 100003) * 0.0009765625f;
}

/* Element (row, col) of a tensor, wherever its layout has it. */
static float *element(const wr_save_tensor *t, uint64_t row, uint64_t col) {
  float *data = t->data;
  if (!t->lanes) return &data[row * t->dim[0] + col];
  return &data[row / 16 * 16 * t->dim[0] + col * 16 + row % 16];
}

static void fill(model *m, int64_t step) {
  for (int i = 0; i < N_TENSORS; i++)
    for (uint64_t r = 0, n = 0; r < (m->t[i].n_dims > 1 ? m->t[i].dim[1] : 1); r++)
      for (uint64_t k = 0; k < m->t[i].dim[0]; k++, n++) *element(&m->t[i], r, k) = pattern(step, i, n);
}

static int wrong(const model *m, int64_t step) {
  int bad = 0;
  for (int i = 0; i < N_TENSORS; i++)
    for (uint64_t r = 0, n = 0; r < (m->t[i].n_dims > 1 ? m->t[i].dim[1] : 1); r++)
      for (uint64_t k = 0; k < m->t[i].dim[0]; k++, n++) bad += *element(&m->t[i], r, k) != pattern(step, i, n);
  return bad;
}

static weir_status put_meta(void *user, wr_gguf_writer *w) {
  WR_TRY(wr_gguf_put_text(w, "general.architecture", "llama", 5));
  return wr_gguf_put_u32(w, "test.number", *(uint32_t *)user);
}

static weir_status begin(wr_saver *s, const model *m, int64_t step, double val_loss) {
  static uint32_t number = 42;
  char state[64];
  snprintf(state, sizeof state, "{\"step\": %lld}", (long long)step);
  const wr_save_file files[2] = {{"model.gguf", put_meta, &number, m->t, N_TENSORS},
                                 {"optimizer.gguf", NULL, NULL, m->t, N_TENSORS}};
  return wr_saver_begin(
      s, &(wr_save){
             .step = step, .val_loss = val_loss, .files = files, .n_files = 2, .state = state, .state_bytes = strlen(state)});
}

static weir_status save(wr_saver *s, model *m, int64_t step, double val_loss) {
  fill(m, step);
  WR_TRY(begin(s, m, step, val_loss));
  return wr_saver_wait(s, NULL);
}

/* The newest one, and that both of its files hold the pattern of its step. -1: none; -2: wrong. */
static int64_t newest_step(const char *run) {
  wr_checkpoint *c = NULL;
  if (wr_checkpoint_newest(run, &c) != WEIR_OK) return -3;
  if (!c) return -1;
  model m;
  make_model(&m, 1);
  int64_t step = c->step;
  char state[64];
  snprintf(state, sizeof state, "{\"step\": %lld}", (long long)step);
  if (strcmp(c->state, state) != 0) step = -2;
  const char *const files[] = {"model.gguf", "optimizer.gguf"};
  for (int i = 0; i < 2; i++) {
    fill(&m, -1);
    if (wr_checkpoint_load(c, files[i], m.t, N_TENSORS) != WEIR_OK || wrong(&m, c->step)) step = -2;
  }
  free_model(&m);
  wr_checkpoint_close(c);
  return step;
}

/* ---- tests */

static void round_trip(void) {
  const char *run = run_folder("round");
  model m, back;
  make_model(&m, 1);
  wr_saver *s = NULL;
  REQUIRE(wr_saver_open(run, NULL, &s) == WEIR_OK);
  CHECK_EQ_INT(newest_step(run), -1);
  wr_save_result r = {0};
  CHECK(!wr_saver_poll(s, &r));
  fill(&m, 5);
  REQUIRE(begin(s, &m, 5, 2.5) == WEIR_OK);
  CHECK_EQ_INT(wr_saver_wait(s, &r), WEIR_OK);
  CHECK_EQ_INT(r.step, 5);
  CHECK(r.bytes > 2 * 37 * 24 * 4 && r.seconds > 0);
  CHECK_EQ_INT(newest_step(run), 5);
  CHECK(exists(in(run, "checkpoints/step-5/manifest.json")));
  CHECK_EQ_INT(names_with(in(run, "checkpoints"), ""), 1);

  /* what is in the file are plain rows, whatever the layout in memory */
  char *path = NULL;
  wr_gguf *g = NULL;
  REQUIRE(wr_model_path(run, &path) == WEIR_OK);
  CHECK(strstr(path, "checkpoints/step-5/model.gguf") != NULL);
  REQUIRE(wr_gguf_open(run, NULL, &g) == WEIR_OK);
  CHECK_STR(wr_gguf_path(g), path);
  int64_t number = 0;
  CHECK_EQ_INT(wr_gguf_get_int(g, "test.number", true, 0, 100, &number), WEIR_OK);
  CHECK_EQ_INT(number, 42);
  for (int i = 0; i < N_TENSORS; i++) {
    const wr_gguf_tensor *t = wr_gguf_tensor_find(g, m.t[i].name);
    REQUIRE(t && t->type->number == WR_GGUF_F32);
    int bad = 0;
    for (uint64_t n = 0; n < t->n_elems; n++) bad += ((const float *)(const void *)t->data)[n] != pattern(5, i, n);
    CHECK_EQ_INT(bad, 0);
  }
  wr_gguf_close(g);
  wr_free(path);

  /* read into memory of the other layout; wrong wishes are refused and nothing is read */
  make_model(&back, 1);
  back.t[0].lanes = 0;
  back.t[3].lanes = 16;
  free(back.t[3].data);
  back.t[3].data = calloc(48 * 24, sizeof(float));
  wr_checkpoint *c = NULL;
  REQUIRE(wr_checkpoint_open(in(run, "checkpoints/step-5"), &c) == WEIR_OK);
  CHECK_NEAR(c->val_loss, 2.5, 0);
  CHECK_EQ_INT(wr_checkpoint_load(c, "optimizer.gguf", back.t, N_TENSORS), WEIR_OK);
  CHECK_EQ_INT(wrong(&back, 5), 0);
  fill(&back, 1);
  back.t[3].name = "no.such";
  CHECK_EQ_INT(wr_checkpoint_load(c, "model.gguf", back.t, N_TENSORS), WEIR_EFORMAT);
  CHECK_HAS(weir_last_error(), "no.such");
  back.t[3].name = "output.weight";
  back.t[3].dim[1]--;
  CHECK_EQ_INT(wr_checkpoint_load(c, "model.gguf", back.t, N_TENSORS), WEIR_EFORMAT);
  back.t[3].dim[1]++;
  CHECK_EQ_INT(wrong(&back, 1), 0);
  wr_checkpoint_close(c);

  /* the same step again takes the old one's place */
  CHECK_EQ_INT(save(s, &m, 5, NAN), WEIR_OK);
  CHECK_EQ_INT(newest_step(run), 5);
  REQUIRE(wr_checkpoint_newest(run, &c) == WEIR_OK && c);
  CHECK(isnan(c->val_loss));
  wr_checkpoint_close(c);
  CHECK_EQ_INT(names_with(in(run, "checkpoints"), ""), 1);
  free_model(&m);
  free_model(&back);
  wr_saver_close(s);
}

/* The tensors are changed as soon as they may be; what is on disk is what they were at begin. */
static void never_torn(void) {
  const char *run = run_folder("torn");
  model m;
  make_model(&m, 400); /* about 6 MB a file */
  size_t all = 0;
  for (int i = 0; i < N_TENSORS; i++) all += m.floats[i] * sizeof(float) * 2 + 64 * 64;
  uint8_t *aside = malloc(all);
  wr_team *team = NULL;
  REQUIRE(wr_team_open(2, false, &team) == WEIR_OK);
  const size_t sizes[] = {0, all / 3, all};
  for (int i = 0; i < 3; i++) {
    wr_saver *s = NULL;
    REQUIRE(wr_saver_open(run, &(wr_saver_options){.aside = aside, .aside_bytes = sizes[i], .share = 0.05}, &s) == WEIR_OK);
    for (int64_t step = 1 + 10 * i; step < 4 + 10 * i; step++) {
      uint64_t copied = 0, again = 0;
      wr_save_result r;
      fill(&m, step);
      REQUIRE(begin(s, &m, step, NAN) == WEIR_OK);
      wr_saver_before_change(s, step % 2 ? team : NULL, &copied);
      memset(m.t[0].data, 0xff, m.floats[0] * sizeof(float));
      memset(m.t[3].data, 0xff, m.floats[3] * sizeof(float));
      wr_saver_before_change(s, team, &again);
      CHECK_EQ_INT(again, 0);
      CHECK(copied <= sizes[i]);
      CHECK_EQ_INT(wr_saver_wait(s, &r), WEIR_OK);
      CHECK_EQ_INT(r.aside_bytes, copied);
      if (sizes[i] == all) CHECK(copied > all / 2); /* at a twentieth of a core little was written before */
      wr_checkpoint *c = NULL;
      REQUIRE(wr_checkpoint_newest(run, &c) == WEIR_OK && c);
      CHECK_EQ_INT(c->step, step);
      CHECK_EQ_INT(wr_checkpoint_load(c, "optimizer.gguf", m.t, N_TENSORS), WEIR_OK);
      CHECK_EQ_INT(wrong(&m, step), 0);
      CHECK_EQ_INT(wr_checkpoint_load(c, "model.gguf", m.t, N_TENSORS), WEIR_OK);
      CHECK_EQ_INT(wrong(&m, step), 0);
      wr_checkpoint_close(c);
    }
    wr_saver_close(s);
  }
  wr_team_close(team);
  free(aside);
  free_model(&m);
}

static void put_byte(const char *path, size_t at, char byte) {
  const int fd = open(path, O_WRONLY);
  CHECK(fd >= 0 && pwrite(fd, &byte, 1, (off_t)at) == 1);
  close(fd);
}

/* Every byte of every file counts: flipped, cut off or gone, the checkpoint before it is taken and the file is named. */
static void falls_back(void) {
  const char *run = run_folder("fall");
  model m;
  make_model(&m, 1);
  wr_saver *s = NULL;
  REQUIRE(wr_saver_open(run, NULL, &s) == WEIR_OK);
  CHECK_EQ_INT(save(s, &m, 1, NAN), WEIR_OK);
  CHECK_EQ_INT(save(s, &m, 2, NAN), WEIR_OK);
  wr_saver_close(s);
  weir_set_hooks(&(weir_hooks){.log = keep_log});
  const char *const files[] = {"model.gguf", "optimizer.gguf", "state.json", "manifest.json"};
  for (int i = 0; i < 4; i++) {
    char path[256], away[260];
    snprintf(path, sizeof path, "%s/checkpoints/step-2/%s", run, files[i]);
    snprintf(away, sizeof away, "%s.was", path);
    char *bytes;
    size_t n;
    REQUIRE(wr_file_read(path, 1 << 24, &bytes, &n) == WEIR_OK);
    const size_t stride = n < 1000 ? 1 : n / 37;
    for (size_t at = 0; at < n; at += stride) {
      put_byte(path, at, (char)(bytes[at] ^ 1));
      warning[0] = 0;
      if (newest_step(run) != 1) CHECK_MSG(false, "%s with byte %zu flipped was taken", files[i], at);
      CHECK_HAS(warning, files[i]);
      put_byte(path, at, bytes[at]);
    }
    CHECK_EQ_INT(newest_step(run), 2);
    REQUIRE(wr_file_write_atomic(path, bytes, n / 2) == WEIR_OK);
    CHECK_EQ_INT(newest_step(run), 1);
    REQUIRE(wr_file_write_atomic(path, bytes, 0) == WEIR_OK);
    CHECK_EQ_INT(newest_step(run), 1);
    REQUIRE(wr_file_write_atomic(path, bytes, n) == WEIR_OK);
    CHECK_EQ_INT(newest_step(run), 2);
    CHECK_EQ_INT(rename(path, away), 0);
    warning[0] = 0;
    CHECK_EQ_INT(newest_step(run), 1);
    CHECK_HAS(warning, files[i]);
    CHECK_EQ_INT(rename(away, path), 0);
    wr_free(bytes);
  }
  /* a folder of another step under this name */
  CHECK_EQ_INT(rename(in(run, "checkpoints/step-2"), in(run, "checkpoints/step-3")), 0);
  CHECK_EQ_INT(newest_step(run), 1);
  weir_set_hooks(NULL);
  free_model(&m);
}

static void keeps_and_prunes(void) {
  const char *run = run_folder("keep");
  model m;
  make_model(&m, 1);
  wr_saver *s = NULL;
  REQUIRE(wr_saver_open(run, &(wr_saver_options){.keep = 3}, &s) == WEIR_OK);
  const double losses[] = {5, 4, 3, 3.5, NAN, 3.7, 3.8, 3.9};
  for (int i = 0; i < 8; i++) CHECK_EQ_INT(save(s, &m, i + 1, losses[i]), WEIR_OK);
  char folder[256];
  snprintf(folder, sizeof folder, "%s/checkpoints", run);
  CHECK_EQ_INT(names_with(folder, ""), 4); /* 3 has the lowest loss */
  CHECK(exists(in(folder, "step-3")) && exists(in(folder, "step-6")) && exists(in(folder, "step-8")));

  /* one that is not whole is none of the three */
  CHECK_EQ_INT(unlink(in(folder, "step-8/state.json")), 0);
  CHECK_EQ_INT(save(s, &m, 9, NAN), WEIR_OK);
  CHECK(exists(in(folder, "step-6")) && exists(in(folder, "step-7")) && exists(in(folder, "step-9")));

  /* back to 7: what is newer moves away, and a step may be saved again */
  CHECK_EQ_INT(wr_checkpoint_rollback(run, 7), WEIR_OK);
  CHECK_EQ_INT(newest_step(run), 7);
  CHECK(exists(in(folder, "abandoned-step-9")) && exists(in(folder, "abandoned-step-8")));
  CHECK_EQ_INT(save(s, &m, 8, NAN), WEIR_OK);
  CHECK_EQ_INT(save(s, &m, 9, NAN), WEIR_OK);
  CHECK_EQ_INT(wr_checkpoint_rollback(run, 8), WEIR_OK);
  CHECK(exists(in(folder, "abandoned-step-9-2")));
  wr_checkpoint *c = NULL;
  CHECK_EQ_INT(wr_checkpoint_before(run, 7, &c), WEIR_OK);
  CHECK(c && c->step == 7);
  wr_checkpoint_close(c);
  CHECK_EQ_INT(wr_checkpoint_rollback(run, 7), WEIR_OK);
  CHECK_EQ_INT(save(s, &m, 8, NAN), WEIR_OK);
  CHECK_EQ_INT(names_with(folder, "abandoned"), 3); /* the oldest of four went */
  wr_saver_close(s);
  free_model(&m);
}

static void one_trainer_and_leftovers(void) {
  const char *run = run_folder("left");
  wr_saver *s = NULL, *second = NULL;
  REQUIRE(wr_mkdir_p(in(run, "checkpoints/step-7.tmp")) == WEIR_OK);
  REQUIRE(wr_mkdir_p(in(run, "checkpoints/step-8.tmp")) == WEIR_OK);
  REQUIRE(wr_mkdir_p(in(run, "checkpoints/step-x.tmp")) == WEIR_OK);
  REQUIRE(wr_mkdir_p(in(run, "checkpoints/mine.tmp")) == WEIR_OK);
  CHECK_EQ_INT(wr_file_write_atomic(in(run, "checkpoints/step-7.tmp/model.gguf"), "GGUF", 4), WEIR_OK);
  CHECK_EQ_INT(wr_file_write_atomic(in(run, "checkpoints/step-8.tmp/notes.txt"), "keep", 4), WEIR_OK);
  CHECK_EQ_INT(wr_file_write_atomic(in(run, "checkpoints/step-9.tmp"), "a file", 6), WEIR_OK);
  REQUIRE(wr_saver_open(run, NULL, &s) == WEIR_OK);
  CHECK(!exists(in(run, "checkpoints/step-7.tmp")));
  CHECK(exists(in(run, "checkpoints/step-8.tmp/notes.txt"))); /* not ours */
  CHECK(exists(in(run, "checkpoints/step-x.tmp")) && exists(in(run, "checkpoints/mine.tmp")));
  CHECK(exists(in(run, "checkpoints/step-9.tmp")));
  CHECK_EQ_INT(wr_saver_open(run, NULL, &second), WEIR_EIO);
  CHECK_HAS(weir_last_error(), "another process");
  model m;
  make_model(&m, 1);
  CHECK_EQ_INT(save(s, &m, 8, NAN), WEIR_EIO); /* its temporary name is taken */
  CHECK(exists(in(run, "checkpoints/step-8.tmp/notes.txt")));
  CHECK_EQ_INT(save(s, &m, 10, NAN), WEIR_OK);
  wr_saver_close(s);
  CHECK_EQ_INT(wr_saver_open(run, NULL, &second), WEIR_OK);
  wr_saver_close(second);

  char *path;
  CHECK_EQ_INT(wr_model_path(root, &path), WEIR_EUNSUPPORTED);
  CHECK_EQ_INT(wr_saver_open("/proc/self", NULL, &s), WEIR_EIO);
  CHECK_EQ_INT(wr_file_write_atomic(in(root, "plain"), "x", 1), WEIR_OK);
  CHECK_EQ_INT(wr_saver_open(in(root, "plain"), NULL, &s), WEIR_EIO);
  free_model(&m);
}

typedef struct fault {
  atomic_int left; /* operations until one fails */
  int err;
  char op[16];
} fault;
static int fail_nth(void *user, const char *op, const char *path) {
  fault *f = user;
  (void)path;
  if (atomic_fetch_sub(&f->left, 1) != 1) return 0;
  snprintf(f->op, sizeof f->op, "%s", op);
  return f->err;
}

/* The n-th change of a file fails, for every n: the save says so, nothing of it remains, the one before is whole, the next works. */
static void every_operation_fails(void) {
  const char *run = run_folder("fault");
  model m;
  make_model(&m, 30);
  wr_saver *s = NULL;
  REQUIRE(wr_saver_open(run, NULL, &s) == WEIR_OK);
  CHECK_EQ_INT(save(s, &m, 1, NAN), WEIR_OK);
  bool seen[5] = {false};
  const char *const ops[] = {"create", "write", "fsync", "rename", "mkdir"};
  int n = 1;
  int64_t step = 2;
  for (;; n++) {
    const bool disk = n % 2 == 0;
    fault f = {.left = n, .err = disk ? ENOSPC : EIO};
    weir_set_hooks(&(weir_hooks){.file = fail_nth, .user = &f});
    const weir_status status = save(s, &m, step, NAN);
    weir_set_hooks(NULL);
    if (!f.op[0]) break; /* it takes fewer operations than that */
    for (int i = 0; i < 5; i++) seen[i] |= strcmp(f.op, ops[i]) == 0;
    if (strcmp(f.op, "unlink") != 0) CHECK_EQ_INT(names_with(in(run, "checkpoints"), ".tmp"), 0);
    wr_checkpoint *c = NULL;
    REQUIRE(wr_checkpoint_newest(run, &c) == WEIR_OK && c);
    if (status == WEIR_OK) { /* only clearing old ones away failed */
      CHECK(strcmp(f.op, "unlink") == 0 || strcmp(f.op, "rename") == 0);
      CHECK_EQ_INT(c->step, step);
      step++;
    } else {
      CHECK_EQ_INT(status, disk ? WEIR_ENOMEM : WEIR_EIO);
      CHECK_HAS(weir_last_error(), disk ? "No space left" : "Input/output error");
      CHECK_MSG(c->step == step - 1 || (c->step == step && strcmp(f.op, "fsync") == 0), "after %s failed: step %d", f.op,
                (int)c->step);
    }
    wr_checkpoint_close(c);
    CHECK_EQ_INT(save(s, &m, step, NAN), WEIR_OK);
    step++;
  }
  CHECK(n > 12 && n < 200);
  for (int i = 0; i < 5; i++) CHECK_MSG(seen[i], "no %s failed", ops[i]);
  wr_saver_close(s);
  free_model(&m);
}

/* The n-th allocation fails, for every n: opening, saving and finding say so or do without; what was on disk stays. */
static void every_allocation_fails(void) {
  const char *run = run_folder("oom");
  model m;
  make_model(&m, 1);
  int64_t step = 0, saved = 0;
  for (int n = 1;; n++) {
    wr_saver *s = NULL;
    heap_fail(n);
    weir_set_hooks(&(weir_hooks){HEAP_HOOKS});
    weir_status status = wr_saver_open(run, NULL, &s);
    if (status == WEIR_OK) status = save(s, &m, ++step, NAN);
    if (status == WEIR_OK) saved = step;
    wr_saver_close(s);
    wr_checkpoint *c = NULL;
    const weir_status found = wr_checkpoint_newest(run, &c);
    const bool spent = heap_failed();
    weir_set_hooks(NULL);
    CHECK_MSG(status == WEIR_OK || status == WEIR_ENOMEM, "allocation %d: %s", n, weir_last_error());
    CHECK(found == WEIR_OK || found == WEIR_ENOMEM);
    if (found == WEIR_OK) CHECK_EQ_INT(c ? c->step : 0, saved);
    wr_checkpoint_close(c);
    CHECK_EQ_INT(names_with(in(run, "checkpoints"), ".tmp"), 0);
    if (!spent) break;
    REQUIRE(n < 1000);
    if (wr_saver_open(run, NULL, &s) == WEIR_OK) { /* with memory again: clears away what could not be */
      CHECK_EQ_INT(save(s, &m, ++step, NAN), WEIR_OK);
      saved = step;
      wr_saver_close(s);
    }
    CHECK(names_with(in(run, "checkpoints"), "") == WR_MIN(saved, 2));
  }
  CHECK(step > 20 && saved == step);
  free_model(&m);
}

/* A child saves every step until it is killed. */
static void killed(void) {
  if (THREAD_SANITIZER) SKIP("a process that forks is not for the thread sanitizer");
  const char *run = run_folder("kill");
  const char *soak = getenv("WEIR_SOAK_KILLS");
  const int kills = soak ? atoi(soak) : 40;
  wr_rng rng;
  wr_rng_seed(&rng, 6);
  int64_t last = 1;
  int temps = 0;
  model first;
  wr_saver *s = NULL;
  make_model(&first, 1);
  REQUIRE(wr_saver_open(run, NULL, &s) == WEIR_OK);
  const uint64_t begin_ns = wr_now_ns();
  CHECK_EQ_INT(save(s, &first, 1, NAN), WEIR_OK);
  const uint64_t save_us = (wr_now_ns() - begin_ns) / 1000; /* a matter of the disk: a sync may take 20 us or 20 ms */
  wr_saver_close(s);
  free_model(&first);
  /* on a busy machine a child begins late: then there are more of them, and later kills */
  for (int i = 0; i < kills || (i < 10 * kills && (last <= 3 || !temps)); i++) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      model m;
      make_model(&m, 1);
      if (wr_saver_open(run, NULL, &s) != WEIR_OK) _exit(1);
      for (int64_t step = last + 1;; step++)
        if (save(s, &m, step, 1.0 / (double)(step % 5 + 1)) != WEIR_OK) _exit(2);
    }
    usleep((useconds_t)(wr_rng_u64(&rng) % ((3 + (uint64_t)i / 10) * save_us)));
    kill(child, SIGKILL);
    int how = 0;
    waitpid(child, &how, 0);
    CHECK_MSG(WIFSIGNALED(how), "the child ended by itself: %d", WEXITSTATUS(how));
    const int64_t step = newest_step(run);
    CHECK_MSG(step >= last, "kill %d: step %d after %d", i, (int)step, (int)last);
    temps += names_with(in(run, "checkpoints"), ".tmp") > 0;
    CHECK(names_with(in(run, "checkpoints"), ".tmp") <= 1);
    if (step > 0) last = step;
  }
  CHECK_MSG(last > 3 && temps > 0, "%d steps, %d temporary folders: nothing was interrupted", (int)last, temps);
  REQUIRE(wr_saver_open(run, NULL, &s) == WEIR_OK);
  CHECK_EQ_INT(names_with(in(run, "checkpoints"), ".tmp"), 0);
  make_model(&first, 1);
  CHECK_EQ_INT(save(s, &first, last + 1, NAN), WEIR_OK);
  CHECK(names_with(in(run, "checkpoints"), "") <= 3);
  free_model(&first);
  wr_saver_close(s);
}

static void clean_up(void) {
  char command[128];
  snprintf(command, sizeof command, "rm -rf '%s'", root);
  if (root[0]) CHECK_EQ_INT(system(command), 0);
}

TEST_MAIN("checkpoint", TEST(round_trip), TEST(never_torn), TEST(falls_back), TEST(keeps_and_prunes),
          TEST(one_trainer_and_leftovers), TEST(every_operation_fails), TEST(every_allocation_fails), TEST(killed),
          TEST(clean_up))
