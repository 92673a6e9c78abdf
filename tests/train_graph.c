/* train_graph: the training programs of both architectures against PyTorch (tests/golden/train.gguf, made by tools/oracle/train.py): loss,
 * every gradient of one step in plain and packed layout, accumulation, AdamW, Muon and SGD; what presets count; recomputation and dropout.
 *
 * A gradient passes with ‖Δ‖ <= 1e-4 ‖g‖ + 1e-6 ‖all g‖. The key biases of GPT-2 have none (softmax does not see them), so that AdamW
 * multiplies rounding there: they are left out of what is compared after its steps. */
#include <unistd.h>

#include "format/format.h"
#include "model/model.h"
#include "ops/ops.h"
#include "test.h"

enum { V = 37, D = 16, T = 12, B = 2, CONTEXT = 16, MAX_PARAMS = 64 };

static wr_device *device;
static wr_mem mem;
static wr_gguf *golden;

static bool open_all(void) {
  const wr_device_options options = {.threads = 2};
  device = NULL;
  golden = NULL;
  if (!CHECK_MSG(wr_device_find("cpu", NULL)->open(&options, &device) == WEIR_OK, "%s", weir_last_error())) return false;
  wr_mem_init(&mem, device, 0);
  return CHECK_MSG(wr_gguf_open("tests/golden/train.gguf", NULL, &golden) == WEIR_OK, "%s", weir_last_error());
}

static void close_all(void) {
  wr_gguf_close(golden);
  if (device) {
    CHECK_EQ_INT(wr_mem_used(&mem), 0);
    device->api->close(device);
  }
}

/* ------------------------------------------------------------------------------------------------------------------ a model */

typedef struct model {
  const char *name; /* in the golden file */
  wr_spec spec;
} model;

static const model models[] = {
    {"gpt2", {"gpt2", 2, D, 4, 4, 64, V, CONTEXT, true, 1e-5, 10000, 0}},
    {"gpt2_untied", {"gpt2", 2, D, 4, 4, 64, V, CONTEXT, false, 1e-5, 10000, 0}},
    {"llama_tied", {"llama", 2, D, 4, 2, 40, V, CONTEXT, true, 1e-5, 10000, 0}},
    {"llama", {"llama", 2, D, 4, 2, 40, V, CONTEXT, false, 1e-5, 10000, 0}},
};

static uint64_t splitmix64(uint64_t *state) {
  uint64_t z = *state += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

static wr_arg arg_of(wr_plan *plan, int value) {
  const wr_value *v = &plan->program->values[value];
  wr_arg a = {.data = wr_plan_host(plan, value),
              .stride_bytes = v->stride_bytes,
              .rank = v->t.rank,
              .dtype = v->t.dtype,
              .layout = v->t.layout};
  memcpy(a.ext, v->t.ext, sizeof a.ext);
  CHECK_MSG(a.data, "%s has no memory", v->name);
  return a;
}

/* The weights that tools/oracle/train.py begins with. */
static void fill_weights(wr_plan *plan, const wr_train_io *io) {
  static const double spread[] = {
      [WR_PARAM_MATRIX] = 0.7, [WR_PARAM_EMBEDDING] = 0.9, [WR_PARAM_NORM] = 0.3, [WR_PARAM_BIAS] = 0.3};
  uint64_t state = 0x5eed;
  for (int i = 0; i < io->n_params; i++) {
    const wr_param_kind kind = io->params[i].kind;
    const wr_arg a = arg_of(plan, io->params[i].value);
    for (int64_t r = 0; r < a.ext[0]; r++)
      for (int64_t k = 0; k < wr_inner(&a); k++) {
        const double u = (double)(splitmix64(&state) >> 40) / (1 << 24);
        wr_set(&a, r, k, (kind == WR_PARAM_NORM ? 1 : 0) + spread[kind] * (u - 0.5));
      }
  }
}

/* Sequences [b0, b0 + n) of the golden batch. Returns how many rows count. */
static int fill_batch(wr_plan *plan, const wr_train_io *io, int b0, int n) {
  static const char *const names[] = {"tokens", "targets", "pos", "first"};
  const int values[] = {io->tokens, io->targets, io->pos, io->first};
  int counted = 0;
  for (int k = 0; k < 4; k++) {
    const wr_gguf_tensor *t = wr_gguf_tensor_find(golden, names[k]);
    int32_t x[B * T];
    if (!CHECK(t && t->n_elems == B * T)) return 0;
    memcpy(x, t->data, sizeof x);
    CHECK(wr_plan_write(plan, values[k], 0, x + b0 * T, (size_t)(n * T) * sizeof *x) == WEIR_OK);
    for (int i = b0 * T; k == 1 && i < (b0 + n) * T; i++) counted += x[i] >= 0;
  }
  return counted;
}

static void set_scale(wr_plan *plan, const wr_train_io *io, float scale) {
  CHECK(wr_plan_write(plan, io->scale, 0, &scale, sizeof scale) == WEIR_OK);
}

static float loss_of(wr_plan *plan, const wr_train_io *io) {
  float loss = NAN;
  CHECK(wr_plan_read(plan, io->loss, 0, &loss, sizeof loss) == WEIR_OK);
  return loss;
}

static double note(const char *name, const char *what) {
  char key[64];
  double v = NAN;
  snprintf(key, sizeof key, "golden.%s.%s", name, what);
  CHECK_MSG(wr_gguf_get_float(golden, key, true, &v) == WEIR_OK, "%s", weir_last_error());
  return v;
}

static const wr_gguf_tensor *tensor(const char *name, const char *what, const char *param, size_t n) {
  char full[128];
  snprintf(full, sizeof full, "%s.%s%s", name, what, param);
  const wr_gguf_tensor *t = wr_gguf_tensor_find(golden, full);
  return CHECK_MSG(t && t->n_elems == n, "golden tensor %s is missing or has not %zu elements", full, n) ? t : NULL;
}

/* ‖got - want‖ <= relative ‖want‖ + absolute, leaving out elements [skip0, skip1). */
static void compare(wr_plan *plan, int value, const wr_gguf_tensor *t, const char *what, double relative, double absolute,
                    int64_t skip0, int64_t skip1) {
  const wr_arg a = arg_of(plan, value);
  double diff = 0, norm = 0;
  if (!t || !a.data) return;
  for (int64_t r = 0; r < a.ext[0]; r++)
    for (int64_t k = 0; k < wr_inner(&a); k++) {
      const int64_t at = r * wr_inner(&a) + k;
      float want;
      memcpy(&want, t->data + 4 * at, 4);
      if (at >= skip0 && at < skip1) continue;
      diff += pow(wr_get(&a, r, k) - (double)want, 2);
      norm += pow((double)want, 2);
    }
  CHECK_MSG(sqrt(diff) <= relative * sqrt(norm) + absolute, "%s: %.3g from what PyTorch has, whose norm is %.3g", what,
            sqrt(diff), sqrt(norm));
}

static void compare_gradients(wr_plan *plan, const model *m, const wr_train_io *io) {
  const wr_program *p = plan->program;
  const double all = note(m->name, "norm");
  for (int i = 0; i < io->n_params; i++) {
    const wr_value *v = &p->values[io->params[i].value];
    char what[128];
    const size_t n = (size_t)(v->t.ext[0] * v->t.ext[1]);
    snprintf(what, sizeof what, "gradient of %s's %s", m->name, v->name);
    if (!CHECK_MSG(v->grad >= 0, "%s is missing", what)) continue;
    compare(plan, v->grad, tensor(m->name, "grad.", v->name, n), what, 1e-4, 1e-6 * all, 0, 0);
  }
}

/* ----------------------------------------------------------------------------------------------------------------- one step */

static void one_step(const model *m, wr_layout layout, wr_remat remat) {
  const wr_train_shape shape = {.B = B, .T = T, .layout = layout, .remat = remat};
  const wr_plan_options options = {.poison = true};
  wr_program p;
  wr_plan plan;
  wr_train_io io;
  wr_program_init(&p);
  if (CHECK_MSG(wr_train_build(&p, &m->spec, &shape, &io) == WEIR_OK, "%s", weir_last_error()) &&
      CHECK_MSG(wr_plan_make(&p, &mem, &options, &plan) == WEIR_OK, "%s", weir_last_error())) {
    fill_weights(&plan, &io);
    fill_batch(&plan, &io, 0, B);
    set_scale(&plan, &io, 1);
    CHECK(wr_plan_run(&plan) == WEIR_OK);
    CHECK_NEAR(loss_of(&plan, &io), note(m->name, "loss"), 2e-6);
    compare_gradients(&plan, m, &io);
    wr_plan_free(&plan);
  }
  wr_program_free(&p);
}

static void gradients_equal_torch(void) {
  if (open_all())
    for (size_t i = 0; i < WR_ARRAY_LEN(models); i++)
      for (wr_layout layout = WR_PLAIN; layout <= WR_PACK16; layout++) one_step(&models[i], layout, WR_REMAT_NONE);
  close_all();
}

/* One sequence after the other, which count different numbers of rows, added up: the same gradients. */
static void accumulation_is_weighted_by_tokens(void) {
  const wr_train_shape shape = {.B = 1, .T = T, .layout = WR_PACK16, .accumulate = true};
  const bool ready = open_all();
  for (size_t i = 0; ready && i < WR_ARRAY_LEN(models); i++) {
    wr_program p;
    wr_plan plan;
    wr_train_io io;
    wr_program_init(&p);
    if (CHECK_MSG(wr_train_build(&p, &models[i].spec, &shape, &io) == WEIR_OK, "%s", weir_last_error()) &&
        CHECK_MSG(wr_plan_make(&p, &mem, NULL, &plan) == WEIR_OK, "%s", weir_last_error())) {
      double loss = 0;
      int counted[B], all = 0;
      fill_weights(&plan, &io);
      for (int b = 0; b < B; b++) all += counted[b] = fill_batch(&plan, &io, b, 1);
      CHECK(counted[0] != counted[1]);
      for (int b = 0; b < B; b++) {
        fill_batch(&plan, &io, b, 1);
        set_scale(&plan, &io, (float)counted[b] / (float)all);
        CHECK(wr_plan_run(&plan) == WEIR_OK);
        loss += (double)loss_of(&plan, &io) * counted[b] / all;
      }
      CHECK_NEAR(loss, note(models[i].name, "loss"), 2e-6);
      compare_gradients(&plan, &models[i], &io);
      wr_plan_free(&plan);
    }
    wr_program_free(&p);
  }
  close_all();
}

/* --------------------------------------------------------------------------------------------------------------- optimisers */

static int beside(wr_program *p, int param, const char *prefix) {
  char name[96];
  const wr_vtype t = *wr_type(p, param);
  snprintf(name, sizeof name, "%s%s", prefix, p->values[param].name);
  return wr_value_new(p, WR_STATE, name, &t);
}

static void emit_adamw(wr_program *p, const wr_train_param *q) {
  const bool decays = q->kind == WR_PARAM_MATRIX || q->kind == WR_PARAM_EMBEDDING;
  const int m = beside(p, q->value, "m."), v = beside(p, q->value, "v.");
  wr_adamw(p, q->value, p->values[q->value].grad, m, v, &(wr_adamw_params){0.9, 0.95, 1e-8, decays ? 0.1 : 0});
}

static void emit_muon(wr_program *p, const wr_train_param *q) {
  if (q->kind == WR_PARAM_MATRIX)
    wr_muon(p, q->value, p->values[q->value].grad, beside(p, q->value, "m."),
            &(wr_muon_params){.momentum = 0.95, .weight_decay = 0.1});
  else
    emit_adamw(p, q);
}

static void train(const model *m, const char *rule, void (*emit)(wr_program *, const wr_train_param *), int steps, float lr,
                  double relative) {
  const wr_train_shape shape = {.B = B, .T = T, .layout = WR_PACK16};
  const wr_gguf_tensor *losses = steps == 20 ? tensor(m->name, "losses", "", 20) : NULL;
  const bool adamw = emit == emit_adamw;
  wr_program p;
  wr_plan plan;
  wr_train_io io;
  wr_program_init(&p);
  if (!CHECK_MSG(wr_train_build(&p, &m->spec, &shape, &io) == WEIR_OK, "%s", weir_last_error())) return;
  for (int i = 0; i < io.n_params; i++) emit(&p, &io.params[i]);
  if (CHECK_MSG(wr_program_status(&p) == WEIR_OK, "%s", weir_last_error()) &&
      CHECK_MSG(wr_plan_make(&p, &mem, NULL, &plan) == WEIR_OK, "%s", weir_last_error())) {
    fill_weights(&plan, &io);
    fill_batch(&plan, &io, 0, B);
    set_scale(&plan, &io, 1);
    for (int step = 0; step < steps; step++) {
      plan.regs_host->step = step + 1;
      plan.regs_host->lr = lr;
      CHECK(wr_plan_run(&plan) == WEIR_OK);
      double want;
      if (!losses) continue;
      memcpy(&want, losses->data + 8 * step, 8);
      CHECK_NEAR(loss_of(&plan, &io), want, 2e-5 * want);
    }
    for (int i = 0; i < io.n_params; i++) {
      const wr_value *v = &p.values[io.params[i].value];
      const bool keys = adamw && strstr(v->name, "attn_qkv.bias");
      const size_t n = (size_t)(v->t.ext[0] * v->t.ext[1]);
      char what[160];
      snprintf(what, sizeof what, "%s after %s: %s", m->name, rule, v->name);
      compare(&plan, io.params[i].value, tensor(m->name, rule, v->name, n), what, relative, 0, keys ? D : 0, keys ? 2 * D : 0);
    }
    wr_plan_free(&plan);
  }
  wr_program_free(&p);
}

static void twenty_steps_of_adamw(void) {
  if (open_all()) {
    train(&models[0], "adamw.", emit_adamw, 20, 1e-2f, 1e-4);
    train(&models[3], "adamw.", emit_adamw, 20, 1e-2f, 1e-4);
  }
  close_all();
}

static void five_steps_of_muon(void) {
  if (open_all()) train(&models[3], "muon.", emit_muon, 5, 1e-2f, 1e-4);
  close_all();
}

/* A step as the trainer takes it: gradients, their norm from a program of its own, and an optimiser that is told the scale. */
static void five_steps_of_sgd_clipped(void) {
  const wr_train_shape shape = {.B = B, .T = T, .layout = WR_PACK16};
  const model *m = &models[3];
  wr_program p, q;
  wr_plan plan, rule;
  wr_train_io io;
  int squares[MAX_PARAMS];
  wr_program_init(&p);
  wr_program_init(&q);
  REQUIRE(open_all());
  REQUIRE(wr_train_build(&p, &m->spec, &shape, &io) == WEIR_OK);
  for (int i = 0; i < io.n_params; i++) {
    squares[i] = wr_sumsq(&p, p.values[io.params[i].value].grad);
    wr_mark_output(&p, squares[i]);
  }
  REQUIRE(wr_plan_make(&p, &mem, NULL, &plan) == WEIR_OK);
  for (int i = 0; i < io.n_params; i++) {
    const wr_value *v = &p.values[io.params[i].value], *g = &p.values[v->grad];
    const bool decays = io.params[i].kind == WR_PARAM_MATRIX || io.params[i].kind == WR_PARAM_EMBEDDING;
    const int param = wr_value_new(&q, WR_PARAM, v->name, &v->t), grad = wr_value_new(&q, WR_STATE, "grad", &v->t);
    wr_bind(&q, param, &plan.params, v->offset);
    wr_bind(&q, grad, &plan.places[0].arena, g->offset);
    wr_sgd(&q, param, grad, wr_value_new(&q, WR_STATE, "m", &v->t), &(wr_sgd_params){0.9, decays ? 0.01 : 0, false});
  }
  if (CHECK_MSG(wr_plan_make(&q, &mem, NULL, &rule) == WEIR_OK, "%s", weir_last_error())) {
    fill_weights(&plan, &io);
    fill_batch(&plan, &io, 0, B);
    set_scale(&plan, &io, 1);
    for (int step = 0; step < 5; step++) {
      double sum = 0;
      CHECK(wr_plan_run(&plan) == WEIR_OK);
      for (int i = 0; i < io.n_params; i++) sum += *(double *)wr_plan_host(&plan, squares[i]);
      if (!step) CHECK_NEAR(sqrt(sum), note(m->name, "norm"), 1e-5);
      rule.regs_host->lr = 0.1f;
      rule.regs_host->grad_scale = (float)fmin(1, 0.5 / (sqrt(sum) + 1e-6));
      CHECK(wr_plan_run(&rule) == WEIR_OK);
    }
    for (int i = 0; i < io.n_params; i++) {
      const wr_value *v = &p.values[io.params[i].value];
      compare(&plan, io.params[i].value, tensor(m->name, "sgd.", v->name, (size_t)(v->t.ext[0] * v->t.ext[1])), v->name, 1e-5,
              0, 0, 0);
    }
    wr_plan_free(&rule);
  }
  wr_plan_free(&plan);
  wr_program_free(&p);
  wr_program_free(&q);
  close_all();
}

/* ------------------------------------------------------------------------------------------------- recomputation and dropout */

enum { LARGE = 1 << 17 };

/* Loss and all gradients of a step with dropout, as bytes. Returns how many. */
static size_t step_bytes(const model *m, wr_remat remat, float *out) {
  const wr_train_shape shape = {.B = B, .T = T, .layout = WR_PACK16, .remat = remat};
  const wr_plan_options options = {.poison = true};
  wr_spec spec = m->spec;
  wr_program p;
  wr_plan plan;
  wr_train_io io;
  size_t n = 0;
  spec.dropout = 0.2;
  wr_program_init(&p);
  if (CHECK_MSG(wr_train_build(&p, &spec, &shape, &io) == WEIR_OK, "%s", weir_last_error()) &&
      CHECK_MSG(wr_plan_make(&p, &mem, &options, &plan) == WEIR_OK, "%s", weir_last_error())) {
    fill_weights(&plan, &io);
    fill_batch(&plan, &io, 0, B);
    set_scale(&plan, &io, 1);
    plan.regs_host->seed = 7;
    plan.regs_host->step = 3;
    CHECK(wr_plan_run(&plan) == WEIR_OK);
    out[n++] = loss_of(&plan, &io);
    for (int i = 0; i < io.n_params; i++) {
      const int grad = p.values[io.params[i].value].grad;
      const size_t bytes = wr_value_bytes(&p.values[grad]);
      if (!CHECK(n + bytes / sizeof *out <= LARGE) || !CHECK(wr_plan_read(&plan, grad, 0, out + n, bytes) == WEIR_OK)) break;
      n += bytes / sizeof *out;
    }
    wr_plan_free(&plan);
  }
  wr_program_free(&p);
  return n * sizeof *out;
}

static void recomputation_gives_the_same_bits(void) {
  float *kept = malloc(LARGE * sizeof *kept), *again = malloc(LARGE * sizeof *again);
  const bool ready = open_all() && kept && again;
  for (size_t i = 0; ready && i < WR_ARRAY_LEN(models); i++) {
    const size_t bytes = step_bytes(&models[i], WR_REMAT_NONE, kept);
    for (int remat = WR_REMAT_ATTENTION; remat <= WR_REMAT_BLOCK; remat++) {
      CHECK_EQ_INT(step_bytes(&models[i], (wr_remat)remat, again), bytes);
      CHECK_MSG(memcmp(kept, again, bytes) == 0, "%s: other bits with recomputation %d", models[i].name, remat);
    }
  }
  free(kept);
  free(again);
  close_all();
}

static void recomputation_refuses_what_is_no_part_of_the_forward_pass(void) {
  static const wr_segment bad[] = {{-1, 1}, {1, 0}, {0, 2}};
  for (size_t i = 0; i < WR_ARRAY_LEN(bad); i++) {
    wr_program p;
    wr_program_init(&p);
    const int x = wr_value_2d(&p, WR_INPUT, "x", WR_F32, 3, 8);
    wr_mark_output(&p, wr_gelu(&p, x));
    CHECK_EQ_INT(wr_pass_remat(&p, &bad[i], 1, 1), WEIR_EUSAGE);
    CHECK_HAS(weir_last_error(), "forward pass");
    wr_program_free(&p);
  }
}

/* GPT-2 124M, B=4 T=256, on the device that runs nothing. A block keeps only its input: about a twentieth of what it keeps otherwise. */
static void recomputation_takes_less_memory(void) {
  const char *archs[] = {"gpt2", "llama"};
  for (int a = 0; a < 2; a++) {
    size_t bytes[3] = {0};
    for (int remat = WR_REMAT_NONE; remat <= WR_REMAT_BLOCK; remat++) {
      const wr_train_shape shape = {.B = 4, .T = 256, .layout = WR_PACK16, .remat = (wr_remat)remat, .accumulate = true};
      wr_device *null = NULL;
      wr_mem none;
      wr_spec s;
      wr_program p;
      wr_plan plan;
      wr_train_io io;
      REQUIRE(wr_device_find("null", NULL)->open(&(wr_device_options){.threads = 2}, &null) == WEIR_OK);
      wr_mem_init(&none, null, 0);
      wr_program_init(&p);
      if (CHECK(wr_spec_preset(archs[a], "100m", 4096, 256, &s) == WEIR_OK) &&
          CHECK_MSG(wr_train_build(&p, &s, &shape, &io) == WEIR_OK, "%s", weir_last_error()) &&
          CHECK_MSG(wr_plan_make(&p, &none, NULL, &plan) == WEIR_OK, "%s", weir_last_error())) {
        bytes[remat] = plan.arena_bytes;
        wr_plan_free(&plan);
      }
      wr_program_free(&p);
      null->api->close(null);
    }
    CHECK_MSG((double)bytes[1] < 0.85 * (double)bytes[0] && (double)bytes[2] < 0.35 * (double)bytes[0],
              "%s: activations of %zu bytes, %zu with attentions and %zu with blocks recomputed", archs[a], bytes[0], bytes[1],
              bytes[2]);
  }
}

/* y = dropout(x) of ones and, with dy of ones, its gradient. */
static void run_dropout(const char *name, uint64_t seed, int64_t step, float *y, float *dx) {
  wr_program p;
  wr_plan plan;
  wr_program_init(&p);
  const int x = wr_value_2d(&p, WR_INPUT, "x", WR_F32, 8, LARGE / 8),
            dy = wr_value_2d(&p, WR_INPUT, "dy", WR_F32, 8, LARGE / 8);
  const int out = wr_dropout(&p, x, 0.1f, name);
  wr_mark_output(&p, out);
  wr_pass_grad(&p, &out, &dy, 1, &x, 1);
  if (CHECK_MSG(wr_plan_make(&p, &mem, NULL, &plan) == WEIR_OK, "%s", weir_last_error())) {
    float *ones[] = {wr_plan_host(&plan, x), wr_plan_host(&plan, dy)};
    for (int k = 0; k < 2; k++)
      for (int i = 0; i < LARGE; i++) ones[k][i] = 1;
    plan.regs_host->seed = seed;
    plan.regs_host->step = step;
    CHECK(wr_plan_run(&plan) == WEIR_OK);
    CHECK(wr_plan_read(&plan, out, 0, y, LARGE * sizeof *y) == WEIR_OK);
    CHECK(wr_plan_read(&plan, p.values[x].grad, 0, dx, LARGE * sizeof *dx) == WEIR_OK);
    wr_plan_free(&plan);
  }
  wr_program_free(&p);
}

static void dropout_keeps_its_rate_and_its_bits(void) {
  static const struct {
    const char *name;
    uint64_t seed;
    int64_t step;
  } others[] = {{"b", 5, 9}, {"a", 6, 9}, {"a", 5, 10}};
  float *y = malloc(LARGE * sizeof *y), *dx = malloc(LARGE * sizeof *dx), *other = malloc(LARGE * sizeof *other);
  if (open_all() && y && dx && other) {
    int dropped = 0;
    run_dropout("a", 5, 9, y, dx);
    CHECK_MSG(memcmp(y, dx, LARGE * sizeof *y) == 0, "the gradient drops other elements");
    for (int i = 0; i < LARGE; i++) {
      dropped += y[i] == 0;
      if (y[i] != 0) CHECK_NEAR(y[i], 1 / 0.9, 1e-6);
    }
    CHECK_NEAR((double)dropped / LARGE, 0.1, 5 * sqrt(0.09 / LARGE)); /* five standard deviations */
    for (size_t k = 0; k < WR_ARRAY_LEN(others); k++) {
      int both = 0;
      run_dropout(others[k].name, others[k].seed, others[k].step, other, dx);
      for (int i = 0; i < LARGE; i++) both += y[i] == 0 && other[i] == 0;
      CHECK_NEAR((double)both / LARGE, 0.01, 5 * sqrt(0.0099 / LARGE)); /* independent of the first */
    }
  }
  free(y);
  free(dx);
  free(other);
  close_all();
}

static void validation_has_no_dropout(void) {
  wr_spec s = models[0].spec;
  wr_program p;
  wr_train_io io;
  s.dropout = 0.5;
  wr_program_init(&p);
  if (CHECK(wr_train_build(&p, &s, &(wr_train_shape){.B = 1, .T = T, .forward_only = true}, &io) == WEIR_OK)) {
    for (int i = 0; i < p.n_instrs; i++) CHECK(p.instrs[i].op != &wr_op_dropout);
    CHECK_EQ_INT(io.first_backward, p.n_instrs);
  }
  wr_program_free(&p);
}

/* --------------------------------------------------------------------------------------------------------- models as files */

/* The spec of a file that somebody else made. */
static bool spec_of(const wr_gguf *g, wr_spec *out) {
  wr_hparams h;
  if (!CHECK_MSG(wr_hparams_read(g, &h) == WEIR_OK, "%s", weir_last_error())) return false;
  *out = (wr_spec){.layers = h.layers,
                   .width = h.width,
                   .heads = h.heads,
                   .kv_heads = h.kv_heads,
                   .ff = h.ff,
                   .vocab = h.vocab,
                   .context_tok = h.trained_tok,
                   .tied = !wr_gguf_tensor_find(g, "output.weight"),
                   .eps = h.eps,
                   .rope_base = h.rope_base};
  snprintf(out->arch, sizeof out->arch, "%s", h.arch->name);
  return true;
}

/* The loss of the forward pass with the file's weights on its golden tokens, of the rows whose logits it has from transformers; the target
 * of row r is some token, (7 r + 3) mod V. */
static void loss_of_file(const wr_gguf *g, const wr_spec *s, double want) {
  wr_gguf_array tokens, rows;
  wr_program p;
  wr_plan plan;
  wr_train_io io;
  REQUIRE(wr_gguf_get_array(g, "golden.tokens", true, WR_GGUF_VALUE_I32, &tokens) == WEIR_OK);
  REQUIRE(wr_gguf_get_array(g, "golden.rows", true, WR_GGUF_VALUE_I32, &rows) == WEIR_OK);
  const wr_train_shape shape = {.B = 1, .T = (int64_t)tokens.count, .layout = WR_PACK16, .forward_only = true};
  wr_program_init(&p);
  if (CHECK_MSG(wr_train_build(&p, s, &shape, &io) == WEIR_OK, "%s", weir_last_error()) &&
      CHECK_MSG(wr_plan_make(&p, &mem, NULL, &plan) == WEIR_OK, "%s", weir_last_error())) {
    int32_t *table[] = {wr_plan_host(&plan, io.tokens), wr_plan_host(&plan, io.targets), wr_plan_host(&plan, io.pos),
                        wr_plan_host(&plan, io.first)};
    for (uint64_t i = 0; i < tokens.count; i++) {
      table[0][i] = (int32_t)wr_gguf_array_int(&tokens, i);
      table[1][i] = -1;
      table[2][i] = (int32_t)i;
      table[3][i] = 0;
    }
    for (uint64_t i = 0; i < rows.count; i++) {
      const int64_t r = wr_gguf_array_int(&rows, i);
      table[1][r] = (int32_t)((7 * r + 3) % s->vocab);
    }
    CHECK_EQ_INT(io.n_params, wr_gguf_n_tensors(g));
    for (int i = 0; i < io.n_params; i++) {
      const wr_arg a = arg_of(&plan, io.params[i].value);
      const char *name = p.values[io.params[i].value].name;
      const wr_gguf_tensor *t = wr_gguf_tensor_find(g, name);
      if (!CHECK_MSG(t && t->n_elems == (uint64_t)(a.ext[0] * wr_inner(&a)), "%s is missing or of another size", name))
        continue;
      for (int64_t k = 0; k < (int64_t)t->n_elems; k++) {
        float x;
        memcpy(&x, t->data + 4 * k, 4);
        wr_set(&a, k / wr_inner(&a), k % wr_inner(&a), (double)x);
      }
    }
    CHECK(wr_plan_run(&plan) == WEIR_OK);
    CHECK_NEAR(loss_of(&plan, &io), want, 5e-6 * want);
    wr_plan_free(&plan);
  }
  wr_program_free(&p);
}

/* Models of transformers' GPT2LMHeadModel and LlamaForCausalLM, which the tests of inference read too: so training and inference mean the
 * same by a file. */
static void forward_pass_is_that_of_transformers(void) {
  static const char *const paths[] = {"tests/golden/tiny_gpt2.gguf", "tests/golden/tiny_llama.gguf"};
  const bool ready = open_all();
  for (int f = 0; ready && f < 2; f++) {
    wr_gguf *g = NULL;
    wr_gguf_array rows, logits;
    wr_spec s;
    double want = 0;
    REQUIRE(wr_gguf_open(paths[f], NULL, &g) == WEIR_OK);
    REQUIRE(wr_gguf_get_array(g, "golden.rows", true, WR_GGUF_VALUE_I32, &rows) == WEIR_OK);
    REQUIRE(wr_gguf_get_array(g, "golden.logits", true, WR_GGUF_VALUE_F32, &logits) == WEIR_OK);
    REQUIRE(spec_of(g, &s) && logits.count == rows.count * (uint64_t)s.vocab);
    for (uint64_t i = 0; i < rows.count; i++) {
      const uint64_t row = i * (uint64_t)s.vocab, target = (uint64_t)((7 * wr_gguf_array_int(&rows, i) + 3) % s.vocab);
      double sum = 0;
      for (uint64_t v = 0; v < (uint64_t)s.vocab; v++) sum += exp(wr_gguf_array_float(&logits, row + v));
      want += (log(sum) - wr_gguf_array_float(&logits, row + target)) / (double)rows.count;
    }
    loss_of_file(g, &s, want);
    wr_gguf_close(g);
  }
  close_all();
}

/* What wr_spec_put_meta writes is read back as the same hyper-parameters. */
static void metadata_says_what_the_spec_said(void) {
  for (size_t i = 0; i < WR_ARRAY_LEN(models); i++) {
    const wr_spec *s = &models[i].spec;
    char path[64];
    const uint64_t dim[] = {D, V};
    const float zeros[V * D] = {0};
    wr_gguf_writer *w = NULL;
    wr_gguf *g = NULL;
    wr_spec back;
    wr_hparams h;
    snprintf(path, sizeof path, "/tmp/weir-test-%d.gguf", (int)getpid());
    REQUIRE(wr_gguf_writer_open(path, 0, &w) == WEIR_OK);
    wr_spec_put_meta(s, "a model", w);
    const char *const names[] = {"token_embd.weight", s->tied ? "besides.weight" : "output.weight"};
    for (int k = 0; k < 2; k++) wr_gguf_put_tensor(w, names[k], WR_GGUF_F32, 2, dim);
    for (int k = 0; k < 2; k++) wr_gguf_write(w, zeros, sizeof zeros);
    CHECK_MSG(wr_gguf_writer_finish(w) == WEIR_OK, "%s", weir_last_error());
    wr_gguf_writer_close(w);
    if (CHECK_MSG(wr_gguf_open(path, NULL, &g) == WEIR_OK, "%s", weir_last_error()) && spec_of(g, &back) &&
        CHECK(wr_hparams_read(g, &h) == WEIR_OK)) {
      CHECK_STR(back.arch, s->arch);
      CHECK(back.layers == s->layers && back.width == s->width && back.heads == s->heads && back.kv_heads == s->kv_heads);
      CHECK(back.ff == s->ff && back.vocab == s->vocab && back.context_tok == s->context_tok && back.tied == s->tied);
      CHECK_NEAR(back.eps, s->eps, 1e-11);
      CHECK_NEAR(back.rope_base, s->rope_base, 0);
      CHECK_EQ_INT(h.key_width, s->width / s->heads);
    }
    wr_gguf_close(g);
    remove(path);
  }
}

/* -------------------------------------------------------------------------------------------------------------------- specs */

/* Published counts: GPT-2 small has 124,439,808 parameters, TinyLlama 1,100,048,384. */
static void presets_count_as_published(void) {
  wr_spec s;
  REQUIRE(wr_spec_preset("gpt2", "124m", 50257, 1024, &s) == WEIR_OK);
  CHECK_EQ_INT(wr_spec_parameters(&s), 124439808);
  REQUIRE(wr_spec_preset("llama", "1b", 32000, 2048, &s) == WEIR_OK);
  s.kv_heads = 4;
  CHECK_EQ_INT(wr_spec_parameters(&s), 1100048384);
  /* by the form of Kaplan et al. 2020 and others: 6 N and the scores */
  REQUIRE(wr_spec_preset("gpt2", "124m", 50257, 1024, &s) == WEIR_OK);
  const double n = 12 * 12.0 * 768 * 768 + 50257.0 * 768, scores = 12 * 768 * 1025.0;
  CHECK_NEAR(wr_spec_flop_tok(&s), 6 * (n + scores), 1);
}

static void every_size_is_near_its_name(void) {
  static const struct {
    const char *name;
    double millions;
  } sizes[] = {{"1m", 1}, {"3m", 3}, {"10m", 10}, {"30m", 30}, {"100m", 100}, {"300m", 300}, {"1b", 1000}};
  for (int a = 0; a < 2; a++)
    for (size_t i = 0; i < WR_ARRAY_LEN(sizes); i++) {
      wr_spec s;
      REQUIRE(wr_spec_preset(a ? "gpt2" : "llama", sizes[i].name, 256, 128, &s) == WEIR_OK);
      const double n = (double)wr_spec_parameters(&s) / 1e6 / sizes[i].millions;
      CHECK_MSG(n > 0.8 && n < 1.25, "%s %s has %.2f times the parameters of its name", s.arch, sizes[i].name, n);
    }
}

static void refuses_with_the_field_and_the_rule(void) {
  static const struct {
    wr_spec spec;
    const char *says;
  } bad[] = {
      {{"mamba", 2, D, 4, 4, 64, V, CONTEXT, true, 1e-5, 10000, 0}, "mamba"},
      {{"gpt2", 0, D, 4, 4, 64, V, CONTEXT, true, 1e-5, 10000, 0}, "layers is 0"},
      {{"gpt2", 2, D, 3, 3, 64, V, CONTEXT, true, 1e-5, 10000, 0}, "heads is 3, but it must divide width (16)"},
      {{"llama", 2, D, 4, 3, 64, V, CONTEXT, true, 1e-5, 10000, 0}, "kv_heads is 3"},
      {{"gpt2", 2, D, 4, 2, 64, V, CONTEXT, true, 1e-5, 10000, 0}, "kv_heads is 2, but gpt2"},
      {{"llama", 2, 12, 4, 4, 64, V, CONTEXT, true, 1e-5, 10000, 0}, "RoPE turns pairs"},
      {{"llama", 2, D, 4, 4, 64, V, CONTEXT, true, 0, 10000, 0}, "eps is 0"},
      {{"llama", 2, D, 4, 4, 64, V, CONTEXT, true, 1e-5, 10000, 1}, "dropout is 1"},
      {{"llama", 2, D, 4, 4, 64, INT64_MAX, CONTEXT, true, 1e-5, 10000, 0}, "vocab"},
  };
  wr_spec s;
  for (size_t i = 0; i < WR_ARRAY_LEN(bad); i++) {
    CHECK_EQ_INT(wr_spec_check(&bad[i].spec), WEIR_EUSAGE);
    CHECK_HAS(weir_last_error(), bad[i].says);
  }
  CHECK_EQ_INT(wr_spec_preset("llama", "2m", V, CONTEXT, &s), WEIR_EUSAGE);
  CHECK_HAS(weir_last_error(), "1m, 3m, 10m, 30m, 100m, 300m, 1b");
  wr_program p;
  wr_train_io io;
  wr_program_init(&p);
  CHECK_EQ_INT(wr_train_build(&p, &models[0].spec, &(wr_train_shape){.B = 1, .T = CONTEXT + 1}, &io), WEIR_EUSAGE);
  CHECK_HAS(weir_last_error(), "the context is 16");
  wr_program_free(&p);
}

TEST_MAIN("train_graph", TEST(gradients_equal_torch), TEST(accumulation_is_weighted_by_tokens), TEST(twenty_steps_of_adamw),
          TEST(five_steps_of_muon), TEST(five_steps_of_sgd_clipped), TEST(recomputation_gives_the_same_bits),
          TEST(recomputation_refuses_what_is_no_part_of_the_forward_pass), TEST(recomputation_takes_less_memory),
          TEST(dropout_keeps_its_rate_and_its_bits), TEST(validation_has_no_dropout),
          TEST(forward_pass_is_that_of_transformers), TEST(metadata_says_what_the_spec_said), TEST(presets_count_as_published),
          TEST(every_size_is_near_its_name), TEST(refuses_with_the_field_and_the_rule))
