/* The training program of a spec: embedding, the architecture's blocks, head and loss, then the gradients of all parameters.
 *
 *   tokens, pos, first, targets, scale -> loss; gradients of scale * loss, written, or added to STATEs
 *
 * Parameters are PARAM values with GGUF's names in the order of their use. */
#include <math.h>

#include "model/model.h"
#include "model/train_i.h"
#include "ops/ops.h"

static const wr_train_arch *const archs[] = {&wr_train_llama, &wr_train_gpt2};

const wr_train_arch *wr_train_arch_find(const char *name) {
  for (size_t i = 0; i < WR_ARRAY_LEN(archs); i++)
    if (strncmp(archs[i]->name, name, sizeof((wr_spec *)0)->arch) == 0) return archs[i];
  return NULL;
}

/* -------------------------------------------------------------------------------------------------------------- parameters */

static void full_name(const wr_train_builder *b, const char *what, char *name, size_t cap) {
  if (what[0] == '/')
    snprintf(name, cap, "%s", what + 1);
  else
    snprintf(name, cap, "blk.%d.%s", b->layer, what);
}

static int parameter(wr_train_builder *b, const char *what, wr_param_kind kind, int64_t rows, int64_t cols, double mean,
                     double std) {
  char name[80];
  full_name(b, what, name, sizeof name);
  const bool matrix = kind == WR_PARAM_MATRIX || kind == WR_PARAM_EMBEDDING;
  const wr_vtype t = {.dtype = WR_F32,
                      .layout = (uint8_t)(matrix ? b->shape->layout : WR_PLAIN),
                      .rank = (uint8_t)(cols ? 2 : 1),
                      .ext = {rows, cols}};
  const int value = wr_value_new(b->p, WR_PARAM, name, &t);
  if (value < 0) return WR_NONE;
  if (b->io.n_params == b->cap_params) {
    wr_program_fail(b->p, WEIR_EFAIL, "parameter '%s' is one more than %s declares", name, b->spec->arch);
    return WR_NONE;
  }
  b->io.params[b->io.n_params++] = (wr_train_param){value, kind, mean, std};
  return value;
}

/* sqrt(2 / 5D): 0.02 at GPT-2's widths, larger for narrow models. Nguyen and Salazar 2019, Transformers without Tears. */
static double small_std(const wr_train_builder *b) { return sqrt(0.4 / (double)b->spec->width); }

int wr_train_matrix(wr_train_builder *b, const char *what, int64_t rows, int64_t cols) {
  return parameter(b, what, WR_PARAM_MATRIX, rows, cols, 0, small_std(b));
}
/* The residual adds up 2L of these: Radford et al. 2019 (GPT-2) divide by its root. */
int wr_train_back(wr_train_builder *b, const char *what, int64_t rows, int64_t cols) {
  return parameter(b, what, WR_PARAM_MATRIX, rows, cols, 0, small_std(b) / sqrt(2 * (double)b->spec->layers));
}
int wr_train_table(wr_train_builder *b, const char *what, int64_t rows, int64_t cols) {
  return parameter(b, what, WR_PARAM_EMBEDDING, rows, cols, 0, 0.02);
}
int wr_train_norm(wr_train_builder *b, const char *what) { return parameter(b, what, WR_PARAM_NORM, b->spec->width, 0, 1, 0); }
int wr_train_bias(wr_train_builder *b, const char *what, int64_t n) { return parameter(b, what, WR_PARAM_BIAS, n, 0, 0, 0); }

int wr_train_dropout(wr_train_builder *b, int x, const char *what) {
  char name[80];
  full_name(b, what, name, sizeof name);
  return b->spec->dropout > 0 && !b->shape->forward_only ? wr_dropout(b->p, x, (float)b->spec->dropout, name) : x;
}

int wr_train_residual(wr_train_builder *b, int x, int y, int matrix, int bias, const char *name) {
  if (b->spec->dropout > 0 && !b->shape->forward_only)
    return wr_add(b->p, x, wr_train_dropout(b, wr_matmul(b->p, y, matrix, bias, WR_NONE), name));
  return wr_matmul(b->p, y, matrix, bias, x);
}

int wr_train_layers(wr_train_builder *b, int x, wr_train_part *attention, wr_train_part *feed_forward) {
  const wr_remat remat = b->shape->remat;
  for (b->layer = 0; b->layer < b->spec->layers; b->layer++) {
    const int begin = b->p->n_instrs;
    x = attention(b, x);
    if (remat == WR_REMAT_ATTENTION) b->segments[b->n_segments++] = (wr_segment){begin, b->p->n_instrs};
    x = feed_forward(b, x);
    if (remat == WR_REMAT_BLOCK) b->segments[b->n_segments++] = (wr_segment){begin, b->p->n_instrs};
  }
  return x;
}

/* ---------------------------------------------------------------------------------------------------------------- the program */

static weir_status check_shape(const wr_spec *s, const wr_train_shape *shape) {
  if (shape->B < 1 || shape->T < 1 || shape->B > INT32_MAX / shape->T)
    return wr_fail(WEIR_EUSAGE,
                   "%lld sequences of %lld tokens cannot be one run: both must be at least 1, their product below 2^31",
                   (long long)shape->B, (long long)shape->T);
  if (shape->T > s->context_tok)
    return wr_fail(WEIR_EUSAGE, "sequences are %lld tokens long, but the context is %lld", (long long)shape->T,
                   (long long)s->context_tok);
  return WEIR_OK;
}

static int table_of_rows(wr_program *p, const char *name, int64_t rows) { return wr_value_1d(p, WR_INPUT, name, WR_I32, rows); }

/* Of every parameter: a STATE that its gradient is added to. */
static void accumulate(wr_train_builder *b) {
  for (int i = 0; i < b->io.n_params && b->p->status == WEIR_OK; i++) {
    const int param = b->io.params[i].value;
    const wr_vtype t = *wr_type(b->p, param);
    char name[96];
    snprintf(name, sizeof name, "grad.%s", b->p->values[param].name);
    wr_grad_into(b->p, param, wr_value_new(b->p, WR_STATE, name, &t));
  }
}

weir_status wr_train_build(wr_program *p, const wr_spec *s, const wr_train_shape *shape, wr_train_io *out) {
  WR_TRY(wr_spec_check(s));
  WR_TRY(check_shape(s, shape));
  const wr_train_arch *arch = wr_train_arch_find(s->arch);
  const int64_t rows = shape->B * shape->T;
  wr_train_builder b = {.p = p, .spec = s, .shape = shape};
  b.cap_params = (int)s->layers * arch->params_a_layer + arch->params_besides;
  b.io.params = wr_arena_alloc(&p->arena, (size_t)b.cap_params * sizeof *b.io.params);
  b.segments = wr_arena_alloc(&p->arena, (size_t)s->layers * sizeof *b.segments);
  if (!b.io.params || !b.segments)
    return wr_fail_nomem((size_t)b.cap_params * sizeof *b.io.params, "the parameters of a model");
  b.io.tokens = table_of_rows(p, "tokens", rows);
  b.io.targets = table_of_rows(p, "targets", rows);
  b.io.pos = table_of_rows(p, "pos", rows);
  b.io.first = table_of_rows(p, "first", rows);
  b.io.scale = wr_value_1d(p, WR_INPUT, "scale", WR_F32, 1);
  const int embedding = wr_train_table(&b, "/token_embd.weight", s->vocab, s->width);
  const int x = arch->hidden(&b, wr_embed(p, embedding, b.io.tokens));
  const int head = s->tied ? embedding : wr_train_table(&b, "/output.weight", s->vocab, s->width);
  b.io.loss = wr_head_xent(p, x, head, b.io.targets);
  wr_mark_output(p, b.io.loss);
  b.io.first_backward = p->n_instrs;
  if (!shape->forward_only) {
    if (shape->accumulate) accumulate(&b);
    WR_TRY(wr_program_status(p));
    WR_TRY(wr_pass_grad(p, &b.io.loss, &b.io.scale, 1, NULL, 0));
    b.io.first_backward = p->values[b.io.loss].def; /* the head's loss and gradients are one instruction */
  }
  WR_TRY(wr_program_status(p));
  if (!shape->forward_only) WR_TRY(wr_pass_remat(p, b.segments, b.n_segments, b.io.first_backward));
  WR_TRY(wr_check(p));
  *out = b.io;
  return WEIR_OK;
}
