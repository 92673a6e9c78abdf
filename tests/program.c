/* program: the program representation against the loads it has to carry, in reference rows, with outside witnesses.
 *
 * (a) training a two-layer Llama, (b) an LSTM, (d) a minGRU: forward, every gradient, and for (a) 20 steps of AdamW, equal to PyTorch (golden files
 *     made by tools/oracle/llama_train.py, rnn.py, scan.py); (c) a mixed batch over a paged KV cache equal to each sequence alone, bit for bit;
 * (e) plans of large shapes on the null device; and the passes: what they print, refuse and compute.
 */
#include "format/format.h"
#include "ops/ops.h"
#include "test.h"

#define WR_REF_ROWS \
  "matmul:ref,matmul_dx:ref,matmul_dw:ref,rmsnorm:ref,rmsnorm_bwd:ref,rope:ref,attention:ref,attention_bwd:ref,glu:ref," \
  "glu_bwd:ref," \
  "add:ref,embed:ref,embed_bwd:ref"

static wr_device *device;
static wr_mem mem;

static bool open_device(const char *name) {
  const wr_device_options options = {.threads = 2};
  device = NULL;
  weir_status s = wr_device_find(name, NULL)->open(&options, &device);
  CHECK_MSG(s == WEIR_OK, "%s", weir_last_error());
  if (s == WEIR_OK) wr_mem_init(&mem, device, 0);
  return s == WEIR_OK;
}

static void close_device(void) {
  CHECK_EQ_INT(wr_mem_used(&mem), 0);
  device->api->close(device);
}

static wr_gguf *golden(const char *path) {
  wr_gguf *g = NULL;
  CHECK_MSG(wr_gguf_open(path, NULL, &g) == WEIR_OK, "%s: %s", path, weir_last_error());
  return g;
}

/* A golden tensor as float, [n]. NULL: missing or of another size (a failed check says which). */
static float *tensor(const wr_gguf *g, const char *prefix, const char *name, size_t n) {
  char full[128];
  snprintf(full, sizeof full, "%s%s", prefix, name);
  const wr_gguf_tensor *t = wr_gguf_tensor_find(g, full);
  if (!CHECK_MSG(t && t->n_elems == n, "golden tensor %s is missing or has not %zu elements", full, n)) return NULL;
  float *out = malloc(n * sizeof *out);
  if (out && t->type->number == WR_GGUF_F32) memcpy(out, t->data, n * sizeof *out);
  for (size_t i = 0; out && i < n && t->type->number == WR_GGUF_I32; i++) {
    int32_t v;
    memcpy(&v, t->data + 4 * i, 4);
    out[i] = (float)v;
  }
  return out;
}

static size_t elements(const wr_program *p, int v) {
  return (size_t)(p->values[v].t.ext[0] * p->values[v].t.ext[1] * p->values[v].t.ext[2] * p->values[v].t.ext[3]);
}

/* Golden numbers into a value. */
static void load(wr_plan *plan, int v, const wr_gguf *g, const char *prefix, const char *name) {
  const size_t n = elements(plan->program, v);
  float *x = tensor(g, prefix, name, n);
  if (x) CHECK_MSG(wr_plan_write(plan, v, 0, x, n * sizeof *x) == WEIR_OK, "%s: %s", name, weir_last_error());
  free(x);
}

/* ‖got - want‖ <= tolerance ‖want‖. */
static void compare(wr_plan *plan, int v, const wr_gguf *g, const char *prefix, const char *name, double tolerance) {
  if (!CHECK_MSG(v >= 0, "%s%s: no such value", prefix, name)) return;
  const size_t n = elements(plan->program, v);
  float *want = tensor(g, prefix, name, n), *got = malloc(n * sizeof *got);
  if (want && got && CHECK_MSG(wr_plan_read(plan, v, 0, got, n * sizeof *got) == WEIR_OK, "%s: %s", name, weir_last_error())) {
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
      diff += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
      norm += (double)want[i] * (double)want[i];
    }
    CHECK_MSG(sqrt(diff) <= tolerance * sqrt(norm), "%s%s: relative error %.3g, allowed %.3g", prefix, name, sqrt(diff / norm),
              tolerance);
  }
  free(want);
  free(got);
}

/* ---------------------------------------------------------------------------------------------------------------- a Llama to train */

typedef struct llama_shape {
  int64_t layers, V, D, Nq, Nkv, Dh, F, B, T;
} llama_shape;
enum { MAX_PARAMS = 1024 };
typedef struct llama {
  int tokens, positions, targets, logits, loss, dloss;
  int params[MAX_PARAMS], n_params;
} llama;

static int weight(wr_program *p, llama *m, int64_t rows, int64_t cols, const char *fmt, int64_t layer) {
  char name[64];
  snprintf(name, sizeof name, fmt, (long long)layer);
  const int v = cols ? wr_value_2d(p, WR_PARAM, name, WR_F32, rows, cols) : wr_value_1d(p, WR_PARAM, name, WR_F32, rows);
  if (m->n_params < MAX_PARAMS) m->params[m->n_params++] = v;
  return v;
}

static void build_llama(wr_program *p, const llama_shape *s, llama *m) {
  const int64_t R = s->B * s->T;
  const wr_rope_params rope = {.theta = 10000};
  const wr_attention_params attention = {.B = s->B, .T = s->T};
  *m = (llama){0};
  m->tokens = wr_value_1d(p, WR_INPUT, "tokens", WR_I32, R);
  m->positions = wr_value_1d(p, WR_INPUT, "positions", WR_I32, R);
  m->targets = wr_value_1d(p, WR_INPUT, "targets", WR_I32, R);
  m->dloss = wr_value_1d(p, WR_INPUT, "dloss", WR_F32, 1);
  const int table = weight(p, m, s->V, s->D, "token_embd.weight", 0);
  int x = wr_embed(p, table, m->tokens);
  for (int64_t l = 0; l < s->layers; l++) {
    const int norm_w = weight(p, m, s->D, 0, "blk.%lld.attn_norm.weight", l);
    const int n = wr_rmsnorm(p, x, norm_w, 1e-5f);
    const int wq = weight(p, m, s->Nq * s->Dh, s->D, "blk.%lld.attn_q.weight", l);
    const int wk = weight(p, m, s->Nkv * s->Dh, s->D, "blk.%lld.attn_k.weight", l);
    const int wv = weight(p, m, s->Nkv * s->Dh, s->D, "blk.%lld.attn_v.weight", l);
    const int wo = weight(p, m, s->D, s->Nq * s->Dh, "blk.%lld.attn_output.weight", l);
    int q = wr_matmul_heads(p, n, wq, WR_NONE, WR_NONE, s->Nq);
    int k = wr_matmul_heads(p, n, wk, WR_NONE, WR_NONE, s->Nkv);
    const int v = wr_matmul_heads(p, n, wv, WR_NONE, WR_NONE, s->Nkv);
    q = wr_rope(p, q, m->positions, WR_NONE, &rope);
    k = wr_rope(p, k, m->positions, WR_NONE, &rope);
    int o = wr_attention(p, q, k, v, WR_NONE, &attention);
    o = wr_matmul(p, o, wo, WR_NONE, WR_NONE);
    x = wr_add(p, x, o);
    const int ffn_w = weight(p, m, s->D, 0, "blk.%lld.ffn_norm.weight", l);
    const int f = wr_rmsnorm(p, x, ffn_w, 1e-5f);
    const int wg = weight(p, m, s->F, s->D, "blk.%lld.ffn_gate.weight", l);
    const int wu = weight(p, m, s->F, s->D, "blk.%lld.ffn_up.weight", l);
    const int wd = weight(p, m, s->D, s->F, "blk.%lld.ffn_down.weight", l);
    const int gate = wr_matmul(p, f, wg, WR_NONE, WR_NONE);
    const int up = wr_matmul(p, f, wu, WR_NONE, WR_NONE);
    const int act = wr_glu(p, WR_SILU, gate, up);
    const int down = wr_matmul(p, act, wd, WR_NONE, WR_NONE);
    x = wr_add(p, x, down);
  }
  const int out_norm = weight(p, m, s->D, 0, "output_norm.weight", 0);
  x = wr_rmsnorm(p, x, out_norm, 1e-5f);
  const int out = weight(p, m, s->V, s->D, "output.weight", 0);
  m->logits = wr_matmul(p, x, out, WR_NONE, WR_NONE);
  wr_mark_output(p, m->logits);
  m->loss = wr_xent(p, m->logits, m->targets);
  wr_mark_output(p, m->loss);
}

/* ------------------------------------------------------------------------------------------------------------- (a) training a Llama */

static const llama_shape golden_shape = {.layers = 2, .V = 97, .D = 32, .Nq = 4, .Nkv = 2, .Dh = 8, .F = 48, .B = 2, .T = 12};

/* The forward and backward program, and one with an optimiser step behind it. */
static void build_training(wr_program *p, const llama_shape *s, llama *m, bool optimiser) {
  wr_program_init(p);
  build_llama(p, s, m);
  wr_pass_grad(p, &m->loss, &m->dloss, 1, NULL, 0);
  for (int i = 0; optimiser && i < m->n_params && p->status == WEIR_OK; i++) {
    const wr_vtype t = *wr_type(p, m->params[i]);
    const wr_adamw_params adamw = {0.9, 0.95, 1e-8, t.rank == 2 ? 0.1 : 0};
    char name[80];
    snprintf(name, sizeof name, "m.%s", p->values[m->params[i]].name);
    const int moment = wr_value_new(p, WR_STATE, name, &t);
    name[0] = 'v';
    const int second = wr_value_new(p, WR_STATE, name, &t);
    const int grad = p->status == WEIR_OK ? p->values[m->params[i]].grad : -1;
    wr_adamw(p, m->params[i], grad, moment, second, &adamw);
  }
  CHECK_MSG(wr_program_status(p) == WEIR_OK && wr_check(p) == WEIR_OK, "%s", weir_last_error());
}

static void load_llama(wr_plan *plan, const llama_shape *s, const llama *m, const wr_gguf *g) {
  const size_t R = (size_t)(s->B * s->T);
  const float one = 1;
  int32_t ids[64];
  static const char *const tables[] = {"tokens", "targets"};
  const int values[] = {m->tokens, m->targets};
  for (int k = 0; k < 2; k++) {
    float *x = tensor(g, "", tables[k], R);
    for (size_t i = 0; x && i < R; i++) ids[i] = (int32_t)x[i];
    CHECK(wr_plan_write(plan, values[k], 0, ids, R * sizeof *ids) == WEIR_OK);
    free(x);
  }
  for (size_t i = 0; i < R; i++) ids[i] = (int32_t)(i % (size_t)s->T);
  CHECK(wr_plan_write(plan, m->positions, 0, ids, R * sizeof *ids) == WEIR_OK);
  CHECK(wr_plan_write(plan, m->dloss, 0, &one, sizeof one) == WEIR_OK);
  for (int i = 0; i < m->n_params; i++) load(plan, m->params[i], g, "", plan->program->values[m->params[i]].name);
}

static void train_llama_with(const char *rows, double tolerance) {
  wr_gguf *g = golden("tests/golden/llama_train.gguf");
  if (!g || !open_device("cpu")) return;
  const wr_plan_options options = {.use = rows, .poison = true};
  wr_program p;
  wr_plan plan;
  llama m;
  build_training(&p, &golden_shape, &m, false);
  if (CHECK_MSG(wr_plan_make(&p, &mem, &options, &plan) == WEIR_OK, "%s", weir_last_error())) {
    load_llama(&plan, &golden_shape, &m, g);
    CHECK(wr_plan_run(&plan) == WEIR_OK);
    compare(&plan, m.logits, g, "", "logits", tolerance);
    for (int i = 0; i < m.n_params; i++)
      compare(&plan, p.values[m.params[i]].grad, g, "grad.", p.values[m.params[i]].name, tolerance);
    wr_plan_free(&plan);
  }
  wr_program_free(&p);
  close_device();
  wr_gguf_close(g);
}

static void llama_gradients(void) { train_llama_with(WR_REF_ROWS, 2e-6); }
static void llama_gradients_fast_rows(void) { train_llama_with("", 2e-5); }

static void llama_twenty_steps(void) {
  wr_gguf *g = golden("tests/golden/llama_train.gguf");
  if (!g || !open_device("cpu")) return;
  const wr_gguf_tensor *losses = wr_gguf_tensor_find(g, "losses");
  const wr_plan_options options = {.use = WR_REF_ROWS};
  wr_program p;
  wr_plan plan;
  llama m;
  build_training(&p, &golden_shape, &m, true);
  if (CHECK(losses && losses->n_elems == 20) &&
      CHECK_MSG(wr_plan_make(&p, &mem, &options, &plan) == WEIR_OK, "%s", weir_last_error())) {
    load_llama(&plan, &golden_shape, &m, g);
    for (int step = 0; step < 20; step++) {
      float loss = 0;
      double want;
      memcpy(&want, losses->data + 8 * step, 8);
      plan.regs_host->step = step + 1;
      plan.regs_host->lr = 1e-3f;
      CHECK(wr_plan_run(&plan) == WEIR_OK);
      CHECK(wr_plan_read(&plan, m.loss, 0, &loss, sizeof loss) == WEIR_OK);
      CHECK_NEAR(loss, want, 1e-5 * want);
    }
    for (int i = 0; i < m.n_params; i++) compare(&plan, m.params[i], g, "final.", p.values[m.params[i]].name, 1e-5);
    wr_plan_free(&plan);
  }
  wr_program_free(&p);
  close_device();
  wr_gguf_close(g);
}

/* -------------------------------------------------------------------------------------------------------- (b) LSTM and (d) minGRU */

static int input(wr_program *p, wr_kind kind, const char *name, int64_t e0, int64_t e1, int64_t e2) {
  const wr_vtype t = {.dtype = WR_F32, .rank = (uint8_t)(e2 ? 3 : e1 ? 2 : 1), .ext = {e0, e1, e2}};
  return wr_value_new(p, kind, name, &t);
}

/* Runs forward and backward from golden inputs; every value named in `given` is loaded, in `results` compared. */
static void run_golden(wr_program *p, const wr_gguf *g, const char *prefix, const int *given, int n_given, const int *results,
                       const char *const *names, int n_results) {
  wr_plan plan;
  const wr_plan_options options = {.poison = true};
  if (!CHECK_MSG(wr_check(p) == WEIR_OK, "%s", weir_last_error()) || !open_device("cpu")) return;
  if (CHECK_MSG(wr_plan_make(p, &mem, &options, &plan) == WEIR_OK, "%s", weir_last_error())) {
    for (int i = 0; i < n_given; i++) load(&plan, given[i], g, prefix, p->values[given[i]].name);
    CHECK(wr_plan_run(&plan) == WEIR_OK);
    for (int i = 0; i < n_results; i++) compare(&plan, results[i], g, prefix, names[i], 2e-6);
    wr_plan_free(&plan);
  }
  close_device();
}

static void lstm_case(const wr_gguf *g, const char *prefix, int64_t T) {
  enum { B = 3, D = 5, H = 6 };
  wr_program p;
  wr_program_init(&p);
  /* PyTorch has two biases; the op has their sum, and the gradient of each is the gradient of the sum. */
  const int x = input(&p, WR_INPUT, "x", T, B, D), w_ih = input(&p, WR_PARAM, "w_ih", 4 * H, D, 0),
            w_hh = input(&p, WR_PARAM, "w_hh", 4 * H, H, 0);
  const int b_ih = input(&p, WR_PARAM, "b_ih", 4 * H, 0, 0), b_hh = input(&p, WR_PARAM, "b_hh", 4 * H, 0, 0);
  const int h0 = input(&p, WR_INPUT, "h0", B, H, 0), c0 = input(&p, WR_INPUT, "c0", B, H, 0);
  const int dy = input(&p, WR_INPUT, "dy", T, B, H), dh_last = input(&p, WR_INPUT, "dhT", B, H, 0),
            dc_last = input(&p, WR_INPUT, "dcT", B, H, 0);
  const int bias = wr_add(&p, b_ih, b_hh);
  wr_rnn_last last;
  const int y = wr_rnn(&p, x, w_ih, w_hh, bias, h0, c0, &last);
  const int out[] = {y, last.h, last.c}, seeds[] = {dy, dh_last, dc_last}, wrt[] = {x, h0, c0};
  for (int i = 0; i < 3; i++) wr_mark_output(&p, out[i]);
  wr_pass_grad(&p, out, seeds, 3, wrt, 3);
  if (CHECK_MSG(wr_program_status(&p) == WEIR_OK, "%s", weir_last_error())) {
    const int given[] = {x, w_ih, w_hh, b_ih, b_hh, h0, c0, dy, dh_last, dc_last};
    const int results[] = {y,
                           last.h,
                           last.c,
                           p.values[x].grad,
                           p.values[h0].grad,
                           p.values[c0].grad,
                           p.values[w_ih].grad,
                           p.values[w_hh].grad,
                           p.values[b_ih].grad,
                           p.values[b_hh].grad};
    static const char *const names[] = {"y", "hT", "cT", "dx", "dh0", "dc0", "dw_ih", "dw_hh", "db_ih", "db_hh"};
    run_golden(&p, g, prefix, given, (int)WR_ARRAY_LEN(given), results, names, (int)WR_ARRAY_LEN(results));
  }
  wr_program_free(&p);
}

static void lstm_equals_torch(void) {
  wr_gguf *g = golden("tests/golden/lstm.gguf");
  REQUIRE(g);
  lstm_case(g, "", 7);
  lstm_case(g, "t1.", 1);
  wr_gguf_close(g);
}

static void scan_case(const wr_gguf *g, const char *prefix, int64_t T, wr_scan_form form) {
  enum { B = 2, D = 6 };
  const bool mingru = form == WR_SCAN_MINGRU;
  wr_program p;
  wr_program_init(&p);
  const int a = input(&p, WR_INPUT, mingru ? "k" : "a", T, B, D), b = input(&p, WR_INPUT, mingru ? "c" : "b", T, B, D),
            h0 = input(&p, WR_INPUT, "h0", B, D, 0);
  const int dh = input(&p, WR_INPUT, "dh", T, B, D), dh_last = input(&p, WR_INPUT, "dhT", B, D, 0);
  int last;
  const int h = wr_scan(&p, form, a, b, h0, &last);
  const int out[] = {h, last}, seeds[] = {dh, dh_last}, wrt[] = {a, b, h0};
  wr_mark_output(&p, h);
  wr_mark_output(&p, last);
  wr_pass_grad(&p, out, seeds, 2, wrt, 3);
  if (CHECK_MSG(wr_program_status(&p) == WEIR_OK, "%s", weir_last_error())) {
    const int given[] = {a, b, h0, dh, dh_last}, results[] = {h, last, p.values[a].grad, p.values[b].grad, p.values[h0].grad};
    const char *const names[] = {"h", "hT", mingru ? "dk" : "da", mingru ? "dc" : "db", "dh0"};
    run_golden(&p, g, prefix, given, (int)WR_ARRAY_LEN(given), results, names, (int)WR_ARRAY_LEN(results));
  }
  wr_program_free(&p);
}

static void scan_equals_torch(void) {
  wr_gguf *g = golden("tests/golden/mingru.gguf");
  REQUIRE(g);
  scan_case(g, "", 9, WR_SCAN_MINGRU);
  scan_case(g, "t1.", 1, WR_SCAN_MINGRU);
  scan_case(g, "lin.", 9, WR_SCAN_LINEAR);
  wr_gguf_close(g);
}

/* --------------------------------------------------------------------------------------------------- (c) a mixed batch, one replay */

enum { POOL_PAGES = 16, PAGE = 32, MAX_PAGES = 4, MIX_ROWS = 8, MIX_SEQS = 4 };
typedef struct decoder {
  wr_program program;
  wr_plan plan;
  int tokens, seq, pos, slot, table, out;
} decoder;

/* One layer of a decoder over a paged cache, weights and cache shared by the plans of both buckets. */
static bool open_decoder(decoder *d, int64_t rows, const wr_buf *weights, const wr_buf *cache, wr_class_ledger *classes) {
  enum { V = 61, D = 32, NQ = 4, NKV = 2, DH = 8 };
  wr_program *p = &d->program;
  size_t at = 0;
  wr_program_init(p);
  const wr_vtype table_type = {.dtype = WR_I32, .rank = 1, .live = WR_LIVE_ROWS, .ext = {rows}};
  d->tokens = wr_value_new(p, WR_INPUT, "tokens", &table_type);
  d->seq = wr_value_new(p, WR_INPUT, "seq", &table_type);
  d->pos = wr_value_new(p, WR_INPUT, "pos", &table_type);
  d->slot = wr_value_new(p, WR_INPUT, "slot", &table_type);
  d->table = wr_value_2d(p, WR_INPUT, "pages", WR_I32, MIX_SEQS, MAX_PAGES);
  static const struct {
    const char *name;
    int64_t rows, cols;
  } shapes[] = {{"embd", V, D}, {"q", NQ * DH, D}, {"k", NKV * DH, D}, {"v", NKV * DH, D}, {"o", D, NQ * DH}, {"out", V, D}};
  int w[WR_ARRAY_LEN(shapes)];
  for (size_t i = 0; i < WR_ARRAY_LEN(shapes); i++) {
    w[i] = wr_value_2d(p, WR_PARAM, shapes[i].name, WR_F32, shapes[i].rows, shapes[i].cols);
    wr_bind(p, w[i], weights, at);
    at += (size_t)(shapes[i].rows * shapes[i].cols) * sizeof(float);
  }
  const wr_vtype k_type = {.dtype = WR_F16, .rank = 4, .ext = {POOL_PAGES, NKV, DH, PAGE}},
                 v_type = {.dtype = WR_F16, .rank = 4, .ext = {POOL_PAGES, NKV, PAGE, DH}};
  const int kcache = wr_value_new(p, WR_STATE, "kcache", &k_type), vcache = wr_value_new(p, WR_STATE, "vcache", &v_type);
  wr_bind(p, kcache, cache, 0);
  wr_bind(p, vcache, cache, (size_t)POOL_PAGES * NKV * DH * PAGE * 2);
  const wr_rope_params rope = {.theta = 10000};
  const wr_attention_params attention = {0};
  const int x = wr_embed(p, w[0], d->tokens);
  const int n = wr_rmsnorm(p, x, WR_NONE, 1e-5f);
  int q = wr_matmul_heads(p, n, w[1], WR_NONE, WR_NONE, NQ), k = wr_matmul_heads(p, n, w[2], WR_NONE, WR_NONE, NKV);
  const int v = wr_matmul_heads(p, n, w[3], WR_NONE, WR_NONE, NKV);
  q = wr_rope(p, q, d->pos, WR_NONE, &rope);
  k = wr_rope(p, k, d->pos, WR_NONE, &rope);
  wr_kv_store(p, k, v, kcache, vcache, d->slot);
  const int o = wr_attention_paged(p, q, kcache, vcache, d->seq, d->pos, d->table, &attention);
  const int y = wr_matmul(p, o, w[4], WR_NONE, x);
  d->out = wr_matmul(p, y, w[5], WR_NONE, WR_NONE);
  wr_mark_output(p, d->out);
  const wr_plan_options options = {.classes = classes, .poison = true};
  return CHECK_MSG(wr_program_status(p) == WEIR_OK && wr_plan_make(p, &mem, &options, &d->plan) == WEIR_OK, "%s",
                   weir_last_error());
}

/* One replay: row i is token[i] of sequence seq[i] at position pos[i]; sequence s has pages first_page[s], first_page[s]+1, … */
static void replay(decoder *d, int rows, const int32_t *token, const int32_t *seq, const int32_t *pos,
                   const int32_t *first_page, float *logits) {
  int32_t slot[MIX_ROWS], pages[MIX_SEQS * MAX_PAGES];
  for (int i = 0; i < MIX_SEQS * MAX_PAGES; i++) pages[i] = first_page[i / MAX_PAGES] + i % MAX_PAGES;
  for (int i = 0; i < rows; i++) slot[i] = pages[seq[i] * MAX_PAGES + pos[i] / PAGE] * PAGE + pos[i] % PAGE;
  const size_t bytes = (size_t)rows * sizeof *token;
  d->plan.regs_host->live[WR_LIVE_ROWS] = rows;
  CHECK(wr_plan_write(&d->plan, d->tokens, 0, token, bytes) == WEIR_OK &&
        wr_plan_write(&d->plan, d->seq, 0, seq, bytes) == WEIR_OK);
  CHECK(wr_plan_write(&d->plan, d->pos, 0, pos, bytes) == WEIR_OK &&
        wr_plan_write(&d->plan, d->slot, 0, slot, bytes) == WEIR_OK);
  CHECK(wr_plan_write(&d->plan, d->table, 0, pages, sizeof pages) == WEIR_OK);
  CHECK(wr_plan_run(&d->plan) == WEIR_OK);
  CHECK(wr_plan_read(&d->plan, d->out, 0, logits, (size_t)rows * 61 * sizeof *logits) == WEIR_OK);
}

static void mixed_batch_same_bits(void) {
  wr_buf weights, cache;
  wr_class_ledger classes = {0};
  decoder one, many;
  const size_t n_weights = 2 * 61 * 32 + 2 * 32 * 32 + 2 * 16 * 32, cache_bytes = (size_t)POOL_PAGES * 2 * 8 * PAGE * 2 * 2;
  if (!open_device("cpu")) return;
  REQUIRE(wr_mem_alloc(&mem, WR_MEM_WEIGHTS, n_weights * sizeof(float), false, "weights", &weights) == WEIR_OK);
  REQUIRE(wr_mem_alloc(&mem, WR_MEM_STATE, cache_bytes, false, "cache", &cache) == WEIR_OK);
  wr_rng rng;
  wr_rng_seed(&rng, 7);
  for (size_t i = 0; i < n_weights; i++) ((float *)weights.addr)[i] = (float)wr_rng_normal(&rng) * 0.3f;
  REQUIRE(open_decoder(&one, 1, &weights, &cache, &classes) && open_decoder(&many, MIX_ROWS, &weights, &cache, &classes));
  /* Three sequences have histories of 40, 3 and 33 tokens; the fourth is a prompt of 5. Alone: row by row. Pages in the order 0.. */
  static const int32_t length[MIX_SEQS] = {40, 3, 33, 5};
  static const int32_t alone_pages[MIX_SEQS] = {0, 4, 8, 12}, mixed_pages[MIX_SEQS] = {9, 13, 1, 5};
  static float alone[MIX_SEQS][40][61], mixed[MIX_ROWS][61];
  int32_t token[MIX_SEQS][40];
  for (int s = 0; s < MIX_SEQS; s++)
    for (int32_t t = 0; t < length[s]; t++) {
      token[s][t] = (int32_t)(wr_rng_u64(&rng) % 61);
      replay(&one, 1, &token[s][t], &(int32_t){s}, &t, alone_pages, alone[s][t]);
    }
  /* Again in other pages: the histories up to the last token in pieces of up to eight rows, then the last tokens of all together with the whole
   * prompt in one replay. */
  memset(cache.addr, 0xff, cache_bytes); /* NaN: nobody may read what was not stored */
  for (int32_t s = 0; s < 3; s++)
    for (int32_t t = 0; t < length[s] - 1; t += MIX_ROWS) {
      int32_t seq[MIX_ROWS], pos[MIX_ROWS];
      const int rows = WR_MIN(MIX_ROWS, length[s] - 1 - t);
      for (int i = 0; i < rows; i++) {
        seq[i] = s;
        pos[i] = t + i;
      }
      replay(&many, rows, &token[s][t], seq, pos, mixed_pages, mixed[0]);
      CHECK_MSG(memcmp(mixed[0], alone[s][t], (size_t)rows * sizeof mixed[0]) == 0,
                "sequence %d, position %d: a piece of %d rows differs from rows alone", s, t, rows);
    }
  int32_t seq[MIX_ROWS] = {3, 0, 3, 3, 1, 3, 2, 3}, pos[MIX_ROWS] = {0, 39, 1, 2, 2, 3, 32, 4}, ids[MIX_ROWS];
  for (int i = 0; i < MIX_ROWS; i++) ids[i] = token[seq[i]][pos[i]];
  replay(&many, MIX_ROWS, ids, seq, pos, mixed_pages, mixed[0]);
  for (int i = 0; i < MIX_ROWS; i++)
    CHECK_MSG(memcmp(mixed[i], alone[seq[i]][pos[i]], sizeof mixed[i]) == 0,
              "row %d (sequence %d, position %d) differs from the sequence alone", i, seq[i], pos[i]);
  CHECK(mixed[0][0] == mixed[0][0]);
  wr_plan_free(&one.plan);
  wr_plan_free(&many.plan);
  wr_program_free(&one.program);
  wr_program_free(&many.program);
  wr_class_ledger_free(&classes);
  wr_mem_free(&mem, WR_MEM_WEIGHTS, &weights);
  wr_mem_free(&mem, WR_MEM_STATE, &cache);
  close_device();
}

/* ------------------------------------------------------------------------------------------------------ (e) plans that do not fit here */

static void plan_on_null(const llama_shape *s, bool train) {
  wr_program p;
  wr_plan plan;
  llama m;
  if (!open_device("null")) return;
  const uint64_t start = wr_now_ns();
  if (train) {
    build_training(&p, s, &m, true);
  } else {
    wr_program_init(&p);
    build_llama(&p, s, &m);
  }
  if (CHECK_MSG(wr_plan_make(&p, &mem, NULL, &plan) == WEIR_OK, "%s", weir_last_error())) {
    char arena[16], weights[16];
    const double plan_ms = (double)(wr_now_ns() - start) / 1e6;
    CHECK_MSG(plan_ms < 1000, "planning took %.0f ms", plan_ms); /* 10 where nothing else runs */
    wr_size_text(arena, plan.arena_bytes);
    wr_size_text(weights, mem.used_bytes[WR_MEM_WEIGHTS]);
    printf("  %lld layers, width %lld%s: %d instructions, %d barriers, arena %s, weights %s, planned in %.0f ms\n",
           (long long)s->layers, (long long)s->D, train ? ", training" : "", plan.list.n, plan.n_barriers, arena, weights,
           plan_ms);
    /* The parameters of the shape, and for training two moments each. */
    const double params =
        (double)(2 * s->V * s->D) + (double)s->D +
        (double)s->layers * (double)(2 * s->D + 2 * s->D * s->Nq * s->Dh + 2 * s->D * s->Nkv * s->Dh + 3 * s->D * s->F);
    CHECK_NEAR((double)mem.used_bytes[WR_MEM_WEIGHTS], 4 * params, 64 * 12 * (double)s->layers + 64);
    CHECK_NEAR((double)mem.used_bytes[WR_MEM_STATE], train ? 8 * params : 0, 128 * 12 * (double)s->layers + 128);
    /* The arena holds what must live together and little more: logits and their gradient, or saved activations. */
    const double R = (double)(s->B * s->T), saved = train ? R * (double)s->layers * (double)(6 * s->D + 3 * s->F) * 4 : 0;
    CHECK_MSG((double)plan.arena_bytes >= R * (double)s->V * 4, "an arena of %zu bytes cannot hold the logits",
              plan.arena_bytes);
    CHECK_MSG((double)plan.arena_bytes <=
                  1.5 * (saved + (train ? 4 * params : 0) + R * 4 * (double)(3 * s->V + 12 * s->D + 4 * s->F)) + 1e6,
              "an arena of %s is too large", arena);
    CHECK(wr_plan_run(&plan) == WEIR_OK);
    const wr_null_counts counts = wr_null_device_counts(device);
    CHECK_EQ_INT(counts.calls, plan.list.n);
    CHECK_MSG(counts.flop >= (train ? 6 : 2) * R * (params - (double)(s->V * s->D)),
              "%.3g FLOPs are fewer than the products alone", counts.flop);
    CHECK(counts.bytes >= 4 * (params - (double)(s->V * s->D)));
    wr_plan_free(&plan);
  }
  wr_program_free(&p);
  close_device();
}

static void plans_7b_training(void) {
  plan_on_null(
      &(llama_shape){.layers = 32, .V = 32000, .D = 4096, .Nq = 32, .Nkv = 32, .Dh = 128, .F = 11008, .B = 1, .T = 512}, true);
}
static void plans_70b(void) {
  plan_on_null(&(llama_shape){.layers = 80, .V = 32000, .D = 8192, .Nq = 64, .Nkv = 8, .Dh = 128, .F = 28672, .B = 1, .T = 512},
               false);
}

/* --------------------------------------------------------------------------------------------------------------------- the passes */

/* Text, with the value ids that depend on the builder's details left in: a change in what passes do shows here. */
static void check_text(const wr_program *p, const char *want) {
  wr_str s = {0};
  wr_print(p, &s);
  CHECK_STR(s.ptr, want);
  wr_str_free(&s);
}

static void prints_and_fuses(void) {
  wr_program p;
  wr_program_init(&p);
  const int x = wr_value_2d(&p, WR_INPUT, "x", WR_F32, 3, 8), w = wr_value_2d(&p, WR_PARAM, "w", WR_F32, 5, 8),
            r = wr_value_2d(&p, WR_INPUT, "r", WR_F32, 3, 5);
  const int y = wr_matmul(&p, x, w, WR_NONE, WR_NONE);
  const int z = wr_add(&p, y, r);
  wr_mark_output(&p, z);
  CHECK(wr_check(&p) == WEIR_OK);
  check_text(&p, "%3: f32[3,5] = matmul(x=x: f32[3,8], w=w: f32[5,8])\n"
                 "%4: f32[3,5] = add(a=%3, b=r: f32[3,5])\n"
                 "input x: f32[3,8]\nparam w: f32[5,8]\ninput r: f32[3,5]\noutput %4: f32[3,5]\n");
  CHECK(wr_pass_fuse(&p) == WEIR_OK);
  check_text(&p, "%4: f32[3,5] = matmul(x=x: f32[3,8], w=w: f32[5,8], res=r: f32[3,5])\n"
                 "input x: f32[3,8]\nparam w: f32[5,8]\ninput r: f32[3,5]\noutput %4: f32[3,5]\n");
  wr_program_free(&p);
}

static void does_not_fuse_what_is_read_twice(void) {
  wr_program p;
  wr_program_init(&p);
  const int x = wr_value_2d(&p, WR_INPUT, "x", WR_F32, 3, 8), w = wr_value_2d(&p, WR_PARAM, "w", WR_F32, 5, 8);
  const int y = wr_matmul(&p, x, w, WR_NONE, WR_NONE);
  const int z = wr_add(&p, y, y);
  wr_mark_output(&p, z);
  CHECK(wr_pass_fuse(&p) == WEIR_OK);
  CHECK_EQ_INT(p.n_instrs, 2);
  wr_program_free(&p);
}

static void gradient_accumulates_into_state(void) {
  wr_program p;
  wr_program_init(&p);
  const int x = wr_value_2d(&p, WR_INPUT, "x", WR_F32, 3, 8), w = wr_value_2d(&p, WR_PARAM, "w", WR_F32, 8, 8),
            dy = wr_value_2d(&p, WR_INPUT, "dy", WR_F32, 3, 8);
  const int sum = wr_value_2d(&p, WR_STATE, "sum", WR_F32, 8, 8);
  int y = wr_matmul(&p, x, w, WR_NONE, WR_NONE);
  y = wr_matmul(&p, y, w, WR_NONE, WR_NONE); /* the weight is used twice */
  wr_mark_output(&p, y);
  wr_grad_into(&p, w, sum);
  CHECK(wr_pass_grad(&p, &y, &dy, 1, NULL, 0) == WEIR_OK);
  CHECK_MSG(wr_check(&p) == WEIR_OK, "%s", weir_last_error());
  CHECK_EQ_INT(p.values[w].grad, sum);
  int added = 0;
  for (int i = 0; i < p.n_instrs; i++) added += p.instrs[i].acc != 0;
  CHECK_EQ_INT(added, 2);
  wr_program_free(&p);
}

static void casts_once(void) {
  wr_program p;
  wr_program_init(&p);
  const int x = wr_value_2d(&p, WR_INPUT, "x", WR_F32, 3, 8);
  const int a = wr_add(&p, x, x);
  const int b = wr_add(&p, a, x);
  wr_mark_output(&p, b);
  CHECK(wr_pass_cast(&p, &(wr_policy){WR_BF16}) == WEIR_OK);
  CHECK_MSG(wr_check(&p) == WEIR_OK, "%s", weir_last_error());
  CHECK_EQ_INT(p.n_instrs, 3);
  CHECK_STR(p.instrs[0].op->name, "copy");
  CHECK_EQ_INT(wr_type(&p, p.instrs[2].args[2])->dtype, WR_BF16);
  wr_program_free(&p);
}

static void checker_finds_broken_programs(void) {
  wr_program p;
  wr_program_init(&p);
  const int x = wr_value_2d(&p, WR_INPUT, "x", WR_F32, 3, 8), t = wr_value_2d(&p, WR_TEMP, "t", WR_F32, 3, 8);
  const int y = wr_add(&p, x, x);
  const int z = wr_add(&p, y, x);
  CHECK(wr_check(&p) == WEIR_OK);
  p.instrs[1].args[0] = t;
  CHECK(wr_check(&p) == WEIR_EFAIL);
  CHECK_HAS(weir_last_error(), "used before it is defined");
  p.instrs[1].args[0] = y;
  p.instrs[1].args[2] = y;
  CHECK(wr_check(&p) == WEIR_EFAIL);
  CHECK_HAS(weir_last_error(), "assigned twice");
  p.instrs[1].args[2] = z;
  p.values[z].t.ext[0] = 4;
  CHECK(wr_check(&p) == WEIR_EFAIL);
  CHECK_HAS(weir_last_error(), "disagree");
  wr_program_free(&p);
}

static void builder_failures_are_sticky_sentences(void) {
  wr_program p;
  wr_program_init(&p);
  const int x = wr_value_2d(&p, WR_INPUT, "x", WR_F32, 3, 8), w = wr_value_2d(&p, WR_PARAM, "w", WR_F32, 5, 7);
  const int y = wr_matmul(&p, x, w, WR_NONE, WR_NONE);
  CHECK_EQ_INT(y, -1);
  const int z = wr_add(&p, y, x);
  CHECK_EQ_INT(z, -1);
  CHECK(wr_program_status(&p) == WEIR_EUSAGE);
  CHECK_HAS(weir_last_error(), "matmul");
  CHECK_HAS(weir_last_error(), "7");
  CHECK_HAS(weir_last_error(), "8");
  wr_program_free(&p);
  wr_program_init(&p);
  CHECK_EQ_INT(wr_value_2d(&p, WR_INPUT, "huge", WR_F32, INT64_MAX / 2, 1 << 20), -1);
  CHECK(wr_program_status(&p) != WEIR_OK);
  wr_program_free(&p);
  wr_program_init(&p);
  CHECK_EQ_INT(wr_value_2d(&p, WR_PARAM, "odd", WR_Q4_0, 4, 33), -1);
  CHECK_HAS(weir_last_error(), "q4_0");
  wr_program_free(&p);
}

static void rows_are_forced_and_explained(void) {
  wr_program p;
  wr_plan plan;
  if (!open_device("cpu")) return;
  wr_program_init(&p);
  const int x = wr_value_2d(&p, WR_INPUT, "x", WR_F32, 3, 8), y = wr_add(&p, x, x);
  wr_mark_output(&p, y);
  wr_plan_options options = {.use = "add:ref"};
  if (CHECK(wr_plan_make(&p, &mem, &options, &plan) == WEIR_OK)) {
    wr_str why = {0};
    CHECK_STR(p.instrs[0].row->name, "add_ref");
    wr_plan_why(&plan, &why);
    CHECK_HAS(why.ptr, "add_ref: chosen");
    CHECK_HAS(why.ptr, "another row is forced");
    wr_str_free(&why);
    wr_plan_free(&plan);
  }
  options.use = "add:no_such_row";
  CHECK(wr_plan_make(&p, &mem, &options, &plan) != WEIR_OK);
  CHECK_HAS(weir_last_error(), "no_such_row");
  wr_program_free(&p);
  close_device();
}

/* ---- several devices in one plan */

enum { SPLIT_ROWS = 5, SPLIT_LIVE = 3, SPLIT_D = 40, SPLIT_BYTES = SPLIT_D * 4 };

/* y = n3(n2(n1(x))) + n1(x), n RMSNorm with weights of the CPU, of the other device and of the CPU; the sum has none. */
static int build_split(wr_program *p, const wr_buf *w, int *x) {
  int n[3];
  const wr_vtype t = {.dtype = WR_F32, .rank = 2, .live = WR_LIVE_ROWS, .ext = {SPLIT_ROWS, SPLIT_D, 1, 1}};
  *x = wr_value_new(p, WR_INPUT, "x", &t);
  for (int i = 0; i < 3; i++) {
    const int weight = wr_value_1d(p, WR_PARAM, "w", WR_F32, SPLIT_D);
    wr_bind(p, weight, &w[i], 0);
    n[i] = wr_rmsnorm(p, i ? n[i - 1] : *x, weight, 1e-5f);
  }
  const int y = wr_add(p, n[2], n[0]);
  wr_mark_output(p, y);
  return y;
}

static void run_split(wr_device *second, float *out, int parts, double moved) {
  wr_program p;
  wr_plan plan;
  wr_mem other;
  wr_mem *others[] = {&other};
  wr_buf w[3];
  int x;
  float values[SPLIT_ROWS * SPLIT_D];
  wr_mem_init(&other, second, 0);
  for (int i = 0; i < 3; i++) {
    for (int d = 0; d < SPLIT_D; d++) values[d] = 1 + 0.01f * (float)((d * 7 + i * 3) % 11);
    wr_mem *m = i == 1 ? &other : &mem;
    REQUIRE(wr_mem_alloc(m, WR_MEM_WEIGHTS, SPLIT_BYTES, false, "w", &w[i]) == WEIR_OK);
    CHECK(m->device->api->write(m->device, &w[i], 0, values, SPLIT_BYTES) == WEIR_OK);
  }
  wr_program_init(&p);
  const int y = build_split(&p, w, &x);
  const wr_plan_options options = {.others = others, .n_others = 1, .poison = true};
  if (CHECK_MSG(wr_plan_make(&p, &mem, &options, &plan) == WEIR_OK, "%s", weir_last_error())) {
    CHECK_EQ_INT(plan.n_parts, parts);
    for (int i = 0; i < SPLIT_ROWS * SPLIT_D; i++) values[i] = (float)(i % 13) - 6;
    CHECK(wr_plan_write(&plan, x, 0, values, sizeof values) == WEIR_OK);
    plan.regs_host->live[WR_LIVE_ROWS] = SPLIT_LIVE;
    for (int i = 0; i < 2; i++) CHECK_MSG(wr_plan_run(&plan) == WEIR_OK, "%s", weir_last_error());
    CHECK(wr_plan_read(&plan, y, 0, out, SPLIT_LIVE * SPLIT_BYTES) == WEIR_OK);
    CHECK_EQ_INT((int)plan.moved_bytes, (int)moved);
    wr_plan_free(&plan);
  }
  CHECK(wr_plan_make(&p, &mem, NULL, &plan) == (second == device ? WEIR_OK : WEIR_EUSAGE));
  if (second == device)
    wr_plan_free(&plan);
  else
    CHECK_HAS(weir_last_error(), "not given");
  wr_program_free(&p);
  for (int i = 0; i < 3; i++) wr_mem_free(i == 1 ? &other : &mem, WR_MEM_WEIGHTS, &w[i]);
  CHECK_EQ_INT(wr_mem_used(&other), 0);
}

static void several_devices(void) {
  float one[SPLIT_LIVE * SPLIT_D], two[SPLIT_LIVE * SPLIT_D];
  wr_device *emu;
  if (!open_device("cpu")) return;
  REQUIRE(wr_device_find("emu", NULL)->open(NULL, &emu) == WEIR_OK);
  run_split(device, one, 1, 0);
  run_split(emu, two, 3, 2 * 2 * SPLIT_LIVE * SPLIT_BYTES); /* there and back, twice; x never leaves the CPU */
  for (int i = 0; i < SPLIT_LIVE * SPLIT_D; i++) CHECK_NEAR(two[i], one[i], 1e-5);
  CHECK_EQ_INT(emu->launches, 2);
  emu->api->close(emu);
  close_device();
}

static void devices_that_disagree(void) {
  wr_program p;
  wr_plan plan;
  wr_device *emu;
  wr_mem other;
  wr_mem *others[] = {&other};
  wr_buf w, b;
  if (!open_device("cpu")) return;
  REQUIRE(wr_device_find("emu", NULL)->open(NULL, &emu) == WEIR_OK);
  wr_mem_init(&other, emu, 0);
  REQUIRE(wr_mem_alloc(&mem, WR_MEM_WEIGHTS, SPLIT_BYTES, false, "w", &w) == WEIR_OK);
  REQUIRE(wr_mem_alloc(&other, WR_MEM_WEIGHTS, SPLIT_BYTES, false, "b", &b) == WEIR_OK);
  wr_program_init(&p);
  const int x = wr_value_2d(&p, WR_INPUT, "x", WR_F32, 2, SPLIT_D), weight = wr_value_1d(&p, WR_PARAM, "w", WR_F32, SPLIT_D),
            bias = wr_value_1d(&p, WR_PARAM, "b", WR_F32, SPLIT_D);
  wr_bind(&p, weight, &w, 0);
  wr_bind(&p, bias, &b, 0);
  wr_mark_output(&p, wr_layernorm(&p, x, weight, bias, 1e-5f));
  CHECK_EQ_INT(wr_plan_make(&p, &mem, &(wr_plan_options){.others = others, .n_others = 1}, &plan), WEIR_EUSAGE);
  CHECK_HAS(weir_last_error(), "'w' of cpu and 'b' of emu");
  wr_program_free(&p);
  wr_mem_free(&mem, WR_MEM_WEIGHTS, &w);
  wr_mem_free(&other, WR_MEM_WEIGHTS, &b);
  emu->api->close(emu);
  close_device();
}

TEST_MAIN("program", TEST(llama_gradients), TEST(llama_gradients_fast_rows), TEST(llama_twenty_steps), TEST(lstm_equals_torch),
          TEST(scan_equals_torch), TEST(mixed_batch_same_bits), TEST(plans_7b_training), TEST(plans_70b),
          TEST(prints_and_fuses), TEST(does_not_fuse_what_is_read_twice), TEST(gradient_accumulates_into_state),
          TEST(casts_once), TEST(checker_finds_broken_programs), TEST(builder_failures_are_sticky_sentences),
          TEST(rows_are_forced_and_explained),
          TEST(several_devices), TEST(devices_that_disagree))
