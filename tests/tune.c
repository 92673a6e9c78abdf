/* tune.c: the tune file. What it says is taken or refused whole, changes only which row of a class runs, and no bit of a result. */
#include "session_i.h"

#include "core/core_i.h"
#include "device/cpu/cpu.h"
#include "infer/infer.h"
#include "ops/ops.h"

/* ---- the text */

/* The head and these lines. */
static weir_status parse(const char *lines, wr_tune *t) {
  wr_str text = {0};
  wr_tune_head(&text);
  wr_str_puts(&text, lines);
  const weir_status s = wr_tune_parse(text.ptr, t);
  wr_str_free(&text);
  return s;
}

static void text_there_and_back(void) {
  const wr_op *op = &wr_op_add;
  const wr_row *rows[] = {&op->rows[op->n_rows - 1], &op->rows[0]};
  wr_str text = {0};
  wr_tune t;
  wr_tune_head(&text);
  REQUIRE(wr_tune_parse(text.ptr, &t) == WEIR_OK);
  CHECK(t.n == 0 && !wr_tune_find(&t, "add f32/plain rows<=1 weights=0"));
  wr_tune_free(&t);
  wr_tune_add(&text, "add f32/plain rows<=1 weights=0", rows, 2);
  wr_tune_add(&text, "add f32/plain rows>32 weights=0", rows + 1, 1);
  REQUIRE(wr_tune_parse(text.ptr, &t) == WEIR_OK);
  const wr_tune_entry *one = wr_tune_find(&t, "add f32/plain rows<=1 weights=0"), *many = wr_tune_find(&t, "add f32/plain rows>32 weights=0");
  CHECK(t.n == 2 && one && one->n_rows == 2 && one->rows[0] == rows[0] && one->rows[1] == rows[1]);
  CHECK(many && many->n_rows == 1 && many->rows[0] == rows[1]);
  CHECK(!wr_tune_find(&t, "add f32/plain rows<=2 weights=0"));
  wr_tune_free(&t);
  wr_str_free(&text);
}

static void hostile_text(void) {
  static const struct {
    const char *lines, *why;
  } bad[] = {
      {"add f32/plain", "middle of a line"},
      {"add f32/plain: add_ref", "middle of a line"},
      {"\n", "names no op"},
      {":\n", "names no op"},
      {": add_ref\n", "names no op"},
      {"add\n", "names no op"},
      {"no_such_op f32/plain: add_ref\n", "names no op"},
      {"a_name_that_is_longer_than_any_op_could_be_called_by_anyone x: add_ref\n", "names no op"},
      {"add x:\n", "names no row"},
      {"add x: \n", "no list of up to 4 rows of add"},
      {"add x:add_ref\n", "no list of up to 4 rows of add"},
      {"add x: add_ref \n", "no list of up to 4 rows of add"},
      {"add x: add_ref  add_ref\n", "no list of up to 4 rows of add"},
      {"add x: matmul_ref\n", "no list of up to 4 rows of add"},
      {"add x: add_re\n", "no list of up to 4 rows of add"},
      {"add x: add_ref add_ref add_ref add_ref add_ref\n", "no list of up to 4 rows of add"},
      {"add x: add_ref\nadd x: add_ref\n", "stands twice"},
      {"add \x1b[2J\xff\n", "\\x1B[2J\\xFF"},
  };
  for (size_t i = 0; i < WR_ARRAY_LEN(bad); i++) {
    wr_tune t = {.n = 77};
    CHECK_EQ_INT(parse(bad[i].lines, &t), WEIR_EFORMAT);
    CHECK_HAS(weir_last_error(), bad[i].why);
    CHECK_EQ_INT(t.n, 77);
  }
  wr_tune t = {.n = 77};
  CHECK(wr_tune_parse("", &t) == WEIR_EFORMAT && wr_tune_parse("rows 0\n", &t) == WEIR_EFORMAT && t.n == 77);
  CHECK_HAS(weir_last_error(), "made with other kernels");
}

/* ---- choosing */

/* The row that wr_select gives to a case under these lines. */
static const wr_row *chosen(const char *line, const char *lines, const char *use, char *kind, wr_str *why) {
  wr_case c;
  wr_trial t;
  wr_tune tune = {0};
  wr_device *d;
  const wr_row *row = NULL;
  if (!CHECK(wr_device_cpu.open(&(wr_device_options){.threads = 1}, &d) == WEIR_OK)) return NULL;
  if (CHECK(wr_case_parse("here", line, &c) == WEIR_OK) && CHECK(wr_trial_open(&c, &t) == WEIR_OK) && CHECK(parse(lines, &tune) == WEIR_OK)) {
    const wr_plan_options o = {.tune = &tune, .use = use};
    wr_str_clear(why);
    row = wr_select(c.op, &t.call, d, &o, why);
    wr_tune_kind(c.op, &t.call, kind, 160);
    wr_trial_close(&t);
  }
  wr_tune_free(&tune);
  wr_case_free(&c);
  d->api->close(d);
  return row;
}

static void chooses_within_a_class(void) {
  static const char line[] = "matmul m=3 n=64 k=64 w=q4_0 layout=pack16";
  char kind[160], lines[640];
  wr_str why = {0};
  const wr_row *first = chosen(line, "", NULL, kind, &why), *got;
  REQUIRE(first);
  CHECK_STR(kind, "matmul q4_0/pack16 rows<=4 weights<=256K");
  CHECK(!strstr(why.ptr, "tune file"));
  /* another of the class, named after one that does not take the type and one of another class */
  snprintf(lines, sizeof lines, "%s: matmul_q8_0_many_cpu_generic matmul_ref matmul_q4_0_many_cpu_generic\n", kind);
  got = chosen(line, lines, NULL, kind, &why);
  CHECK_STR(got->name, "matmul_q4_0_many_cpu_generic");
  CHECK_STR(got->klass, first->klass);
  CHECK_HAS(why.ptr, "matmul_q4_0_many_cpu_generic: chosen, class q8k32, from the tune file");
  CHECK_HAS(why.ptr, "slower here by the tune file");
  /* another kind of call, and a row that is forced */
  got = chosen("matmul m=5 n=64 k=64 w=q4_0 layout=pack16", lines, NULL, kind, &why);
  CHECK(got && strcmp(got->name, "matmul_q4_0_many_cpu_generic") != 0);
  CHECK_STR(kind, "matmul q4_0/pack16 rows<=8 weights<=256K");
  got = chosen(line, lines, "matmul:ref", kind, &why);
  CHECK_STR(got->name, "matmul_ref");
  /* the table's first named first: nothing changes, and nothing is said of the file */
  snprintf(lines, sizeof lines, "matmul q4_0/pack16 rows<=4 weights<=256K: %s matmul_q4_0_many_cpu_generic\n", first->name);
  got = chosen(line, lines, NULL, kind, &why);
  CHECK(got == first && !strstr(why.ptr, "tune file"));
  wr_str_free(&why);
}

static void kinds(void) {
  static const struct {
    const char *line, *kind;
  } cases[] = {
      {"matmul m=1 n=1024 k=1024 w=f32 layout=pack16", "matmul f32/pack16 rows<=1 weights>2M"},
      {"matmul m=32 n=512 k=1024 w=f16 layout=pack16", "matmul f16/pack16 rows<=32 weights<=2M"},
      {"matmul m=33 n=16 k=64 w=q8_0", "matmul q8_0/plain rows>32 weights<=256K"},
      {"add rows=2 d=64", "add f32/plain rows<=2 weights=0"},
  };
  char kind[160];
  wr_str why = {0};
  for (size_t i = 0; i < WR_ARRAY_LEN(cases); i++) {
    chosen(cases[i].line, "", NULL, kind, &why);
    CHECK_STR(kind, cases[i].kind);
  }
  wr_str_free(&why);
}

/* ---- the file */

static void write_file(weir_context *ctx, const wr_str *body, char *path, size_t cap) {
  static weir_machine id;
  wr_machine_identify(&id);
  wr_machine_set_isa(&id, ctx->device->isa);
  id.threads = ctx->device->n_threads;
  REQUIRE(wr_kept_path("tune", &id, path, cap) == WEIR_OK && wr_kept_save(path, "tune", &id, body) == WEIR_OK);
}

static weir_context *open_context(int threads) {
  weir_context *ctx = NULL;
  CHECK(weir_context_open(&(weir_context_options){.threads = threads}, &ctx) == WEIR_OK);
  return ctx;
}

static void file_of_a_context(void) {
  char path[640];
  const wr_row *row = &wr_op_add.rows[wr_op_add.n_rows - 1];
  wr_str body = {0};
  make_scratch();
  unsetenv("WEIR_TUNE");
  weir_context *ctx = open_context(1);
  REQUIRE(ctx);
  CHECK_HAS(weir_context_tune(ctx), "none for 1 thread (");
  wr_tune_head(&body);
  wr_tune_add(&body, "add f32/plain rows<=1 weights=0", &row, 1);
  write_file(ctx, &body, path, sizeof path);
  weir_context_close(ctx);

  ctx = open_context(1);
  CHECK(ctx->tune.n == 1);
  CHECK_HAS(weir_context_tune(ctx), path);
  CHECK_HAS(weir_context_tune(ctx), ": 1 choices");
  weir_context_close(ctx);
  /* as many threads as it was made for, and no word against it */
  ctx = open_context(2);
  CHECK(ctx->tune.n == 0);
  CHECK_HAS(weir_context_tune(ctx), "none for 2 threads");
  weir_context_close(ctx);
  setenv("WEIR_TUNE", "off", 1);
  ctx = open_context(1);
  CHECK(ctx->tune.n == 0);
  CHECK_HAS(weir_context_tune(ctx), "WEIR_TUNE is off");
  unsetenv("WEIR_TUNE");

  /* of other kernels, of nonsense, of another machine, damaged at every byte, cut at every length */
  static const char *const bodies[] = {"rows 0123456789abcdef\n", "", "\xff\xfe:::\n"};
  for (size_t i = 0; i < WR_ARRAY_LEN(bodies); i++) {
    wr_str_clear(&body);
    wr_str_puts(&body, bodies[i]);
    write_file(ctx, &body, path, sizeof path);
    weir_context *again = open_context(1);
    CHECK(again->tune.n == 0);
    CHECK_HAS(weir_context_tune(again), "not used: it was made with other kernels");
    weir_context_close(again);
  }
  wr_str_clear(&body);
  wr_tune_head(&body);
  wr_tune_add(&body, "add f32/plain rows<=1 weights=0", &row, 1);
  write_file(ctx, &body, path, sizeof path);
  char *whole;
  size_t n;
  REQUIRE(wr_file_read(path, 1 << 20, &whole, &n) == WEIR_OK);
  for (size_t i = 0; i < n; i++) {
    char *copy = malloc(n);
    REQUIRE(copy);
    memcpy(copy, whole, n);
    copy[i] ^= 0x20;
    const size_t keep = i % 2 ? n : i; /* changed there, or cut there */
    weir_context *again = NULL;
    if (CHECK(wr_file_write_atomic(path, copy, keep) == WEIR_OK)) again = open_context(1);
    CHECK_MSG(again && again->tune.n == 0 && strstr(weir_context_tune(again), "not used: "), "byte %zu", i);
    weir_context_close(again);
    free(copy);
  }
  wr_free(whole);
  wr_str_free(&body);
  weir_context_close(ctx);
  CHECK_EQ_INT(unlink(path), 0);
}

/* ---- measuring */

static int told;
static int stop_at_second(void *user, const weir_tune_row *r) {
  CHECK(user == &told && r->kind[0] && r->first_us > 0 && r->best_us > 0 && r->done >= 0 && r->done < 1);
  return ++told == 2;
}

static void stopped_writes_nothing(void) {
  make_scratch();
  unsetenv("WEIR_TUNE");
  weir_context *ctx = open_context(1);
  REQUIRE(ctx);
  told = 0;
  CHECK_EQ_INT(weir_tune(ctx, stop_at_second, &told), WEIR_ESTOPPED);
  CHECK_EQ_INT(told, 2);
  weir_context *again = open_context(1);
  CHECK_HAS(weir_context_tune(again), "none for 1 thread");
  weir_context_close(again);
  weir_context_close(ctx);
  REQUIRE(weir_context_open(&(weir_context_options){.device = "null"}, &ctx) == WEIR_OK);
  CHECK_EQ_INT(weir_tune(ctx, stop_at_second, &told), WEIR_EUNSUPPORTED);
  CHECK_HAS(weir_context_tune(ctx), "runs no kernels");
  weir_context_close(ctx);
}

/* A line a kind that is there, and only rows of the table's class. */
static bool keep_some(void *user, const wr_tuned *r) {
  CHECK_STR(r->first->klass, r->best->klass);
  return ++*(int *)user < 4;
}

static void measured_lines_parse(void) {
  wr_device *d;
  wr_str text = {0};
  wr_tune t;
  int n = 0;
  REQUIRE(wr_device_cpu.open(&(wr_device_options){.threads = 1}, &d) == WEIR_OK);
  wr_tune_head(&text);
  CHECK_EQ_INT(wr_tune_ops(d, keep_some, &n, &text), WEIR_ESTOPPED);
  if (CHECK_MSG(wr_tune_parse(text.ptr, &t) == WEIR_OK, "%s", weir_last_error())) wr_tune_free(&t);
  wr_str_free(&text);
  d->api->close(d);
}

TEST_MAIN("tune", TEST(text_there_and_back), TEST(hostile_text), TEST(chooses_within_a_class), TEST(kinds), TEST(file_of_a_context),
          TEST(stopped_writes_nothing), TEST(measured_lines_parse))
