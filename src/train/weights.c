/* weights.c: the parameters of a run. Owns the spec that the settings describe, the list of parameters with what each of them gets
 * (optimiser, decay), the memory of weights, moments and accumulated gradients, and the first values.
 *
 * First values are a counter generator's: of (seed, name, element) and nothing else, so neither the order nor the threads nor the
 * layout change them. Normal by Box and Muller, four of a block of 128 random bits.
 */
#include <math.h>

#include "train/train.h"

/* ------------------------------------------------------------------------------------------------------------------- the spec */

weir_status wr_train_spec(weir_trainer *t, int64_t vocab, wr_spec *out) {
  const weir_train_options *o = &t->set.o;
  wr_spec s;
  WR_TRY(wr_spec_preset(o->arch, o->size, vocab, o->ctx, &s));
  const bool wider = o->width || o->heads;
  if (o->layers) s.layers = o->layers;
  if (o->width) s.width = o->width;
  if (o->heads) s.heads = o->heads;
  if (o->ff) s.ff = o->ff;
  if (o->kv_heads)
    s.kv_heads = o->kv_heads;
  else if (wider)
    s.kv_heads = s.heads;
  if (!wr_is(o->tied, "auto")) s.tied = wr_is(o->tied, "yes");
  s.dropout = o->dropout;
  WR_TRY(wr_spec_check(&s));
  *out = s;
  return WEIR_OK;
}

/* ------------------------------------------------------------------------------------------------------------- the parameters */

static wr_rule_kind rule_of(const weir_train_options *o, wr_param_kind kind) {
  if (wr_is(o->optimizer, "sgd")) return WR_RULE_SGD;
  return wr_is(o->optimizer, "muon") && kind == WR_PARAM_MATRIX ? WR_RULE_MUON : WR_RULE_ADAMW;
}

static size_t padded(size_t n) { return (n + 63) / 64 * 64; }

/* The list, from the program of one token: names, kinds and shapes do not depend on the batch. */
static weir_status list_slots(weir_trainer *t) {
  const wr_train_shape shape = {.B = 1, .T = 1, .layout = t->layout, .forward_only = true};
  wr_program p;
  wr_train_io io;
  size_t moments = 0;
  wr_program_init(&p);
  weir_status s = wr_train_build(&p, &t->spec, &shape, &io);
  if (s == WEIR_OK && !(t->slots = wr_calloc((size_t)io.n_params, sizeof *t->slots)))
    s = wr_fail_nomem((size_t)io.n_params * sizeof *t->slots, "the parameters of a run");
  for (int i = 0; s == WEIR_OK && i < io.n_params; i++) {
    const wr_train_param *q = &io.params[i];
    const wr_value *v = &p.values[q->value];
    wr_slot *slot = &t->slots[t->n_slots++];
    *slot = (wr_slot){.name = wr_arena_strdup(&t->arena, v->name),
                      .kind = q->kind,
                      .rule = rule_of(&t->set.o, q->kind),
                      .t = v->t,
                      .decays = t->set.decays[q->kind] && t->set.o.weight_decay > 0,
                      .mean = q->init_mean,
                      .std = q->init_std,
                      .bytes = wr_value_bytes(v),
                      .at = t->weight_bytes,
                      .m_at = moments};
    if (!slot->name) s = wr_fail_nomem(64, "the parameters of a run");
    t->weight_bytes += padded(slot->bytes);
    moments += padded(slot->bytes);
    slot->v_at = slot->rule == WR_RULE_ADAMW ? moments : SIZE_MAX;
    if (slot->rule == WR_RULE_ADAMW) moments += padded(slot->bytes);
  }
  t->moment_bytes = moments;
  wr_program_free(&p);
  return s;
}

weir_status wr_train_weights_open(weir_trainer *t) {
  WR_TRY(list_slots(t));
  wr_mem *mem = &t->ctx->mem;
  pthread_mutex_lock(&t->ctx->lock);
  weir_status s = wr_mem_alloc(mem, WR_MEM_WEIGHTS, t->weight_bytes, true, "weights", &t->weights);
  if (s == WEIR_OK) s = wr_mem_alloc(mem, WR_MEM_STATE, t->moment_bytes, true, "the optimiser's moments", &t->moments);
  if (s == WEIR_OK && t->set.o.accumulate > 1)
    s = wr_mem_alloc(mem, WR_MEM_GRADS, t->weight_bytes, true, "accumulated gradients", &t->grads);
  pthread_mutex_unlock(&t->ctx->lock);
  return s;
}

void wr_train_weights_close(weir_trainer *t) {
  wr_mem *mem = &t->ctx->mem;
  pthread_mutex_lock(&t->ctx->lock);
  wr_mem_free(mem, WR_MEM_WEIGHTS, &t->weights);
  wr_mem_free(mem, WR_MEM_STATE, &t->moments);
  wr_mem_free(mem, WR_MEM_GRADS, &t->grads);
  pthread_mutex_unlock(&t->ctx->lock);
  wr_free(t->slots);
  t->slots = NULL;
}

/* --------------------------------------------------------------------------------------------------------------- first values */

typedef struct filling {
  const wr_slot *slot;
  char *to;
  uint64_t key;
} filling;

static void normals(uint64_t key, uint64_t block, double out[4]) {
  uint32_t r[4];
  wr_philox(key, 0, block, r);
  for (int i = 0; i < 4; i += 2) {
    const double u = ((double)r[i] + 0.5) * 0x1p-32, a = (double)r[i + 1] * (0x1p-32 * 2 * M_PI);
    const double radius = sqrt(-2 * log(u));
    out[i] = radius * cos(a);
    out[i + 1] = radius * sin(a);
  }
}

static void fill_elements(const filling *f, int64_t from, int64_t n, float *out) {
  double z[4];
  for (int64_t i = 0; i < n; i++) {
    const uint64_t e = (uint64_t)(from + i);
    if (f->slot->std > 0 && (i == 0 || e % 4 == 0)) normals(f->key, e / 4, z);
    out[i] = (float)(f->slot->mean + (f->slot->std > 0 ? f->slot->std * z[e % 4] : 0));
  }
}

/* Groups of sixteen rows, a contiguous part for each thread; a vector is one row. */
static void fill_part(void *arg, int tid, int n_threads) {
  const filling *f = arg;
  const wr_vtype *t = &f->slot->t;
  const int64_t rows = t->rank == 1 ? 1 : t->ext[0], cols = t->rank == 1 ? t->ext[0] : t->ext[1];
  const int64_t groups = (rows + WR_PACK_ROWS - 1) / WR_PACK_ROWS;
  const int64_t begin = groups * tid / n_threads, end = groups * (tid + 1) / n_threads;
  for (int64_t g = begin; g < end; g++)
    for (int64_t r = g * WR_PACK_ROWS; r < WR_MIN((g + 1) * WR_PACK_ROWS, rows); r++) {
      if (t->layout == WR_PLAIN) {
        fill_elements(f, r * cols, cols, (float *)(void *)f->to + r * cols);
        continue;
      }
      float *group = (float *)(void *)f->to + g * WR_PACK_ROWS * cols, piece[256];
      for (int64_t k = 0; k < cols; k += 256) {
        const int64_t n = WR_MIN(cols - k, (int64_t)256);
        fill_elements(f, r * cols + k, n, piece);
        for (int64_t i = 0; i < n; i++) group[(k + i) * WR_PACK_ROWS + r % WR_PACK_ROWS] = piece[i];
      }
    }
}

/* The values of another model: every parameter must be there, in the same shape. */
static weir_status init_from(weir_trainer *t, const char *model, char *weights) {
  wr_gguf *g;
  WR_TRY(wr_gguf_open(model, NULL, &g));
  wr_gguf_text arch = {"", 0};
  weir_status s = wr_gguf_get_text(g, "general.architecture", true, &arch);
  if (s == WEIR_OK && (arch.len != strlen(t->spec.arch) || memcmp(arch.ptr, t->spec.arch, arch.len) != 0))
    s = wr_fail(WEIR_EUNSUPPORTED, "%s: the model is a %s, but the run trains a %s", model, wr_escape(arch.ptr, arch.len),
                t->spec.arch);
  wr_tokenizer *its;
  if (s == WEIR_OK && t->tokenizer && (s = wr_tokenizer_open_gguf(g, &its)) == WEIR_OK) {
    if (wr_tokenizer_hash(its) != wr_tokenizer_hash(t->tokenizer))
      s = wr_fail(
          WEIR_EFORMAT,
          "%s: the model's tokenizer has %zu entries (hash %016llx), but the data was made with another of %zu (hash %016llx): "
          "its ids would mean other tokens; build the data with the model's tokenizer",
          model, wr_tokenizer_size(its), (unsigned long long)wr_tokenizer_hash(its), wr_tokenizer_size(t->tokenizer),
          (unsigned long long)wr_tokenizer_hash(t->tokenizer));
    wr_tokenizer_close(its);
  }
  for (int i = 0; s == WEIR_OK && i < t->n_slots; i++) {
    const wr_slot *slot = &t->slots[i];
    const wr_gguf_tensor *have = wr_gguf_tensor_find(g, slot->name);
    const uint64_t rows = slot->t.rank == 1 ? 1 : (uint64_t)slot->t.ext[0],
                   cols = slot->t.rank == 1 ? (uint64_t)slot->t.ext[0] : (uint64_t)slot->t.ext[1];
    if (!have)
      s = wr_fail(WEIR_EFORMAT, "%s: has no tensor %s", model, slot->name);
    else if (have->dim[0] != cols || have->dim[1] != rows || have->n_dims > 2)
      s = wr_fail(WEIR_EFORMAT, "%s: tensor %s is [%llu, %llu], but the run's settings make it [%llu, %llu]", model, slot->name,
                  (unsigned long long)have->dim[1], (unsigned long long)have->dim[0], (unsigned long long)rows,
                  (unsigned long long)cols);
    else if (have->type->number != WR_GGUF_F32)
      s = wr_fail(WEIR_EUNSUPPORTED, "%s: tensor %s is %s: training begins with F32 weights in this version", model, slot->name,
                  have->type->name);
    else if (slot->t.layout == WR_PLAIN)
      memcpy(weights + slot->at, have->data, have->bytes);
    else
      wr_pack16(WR_F32, have->data, (int64_t)rows, (int64_t)cols, weights + slot->at, 0,
                ((int64_t)rows + WR_PACK_ROWS - 1) / WR_PACK_ROWS);
  }
  wr_gguf_close(g);
  return s;
}

weir_status wr_train_weights_init(weir_trainer *t) {
  wr_device *d = t->ctx->device;
  char *weights = d->api->host(d, &t->weights);
  if (t->set.o.init[0]) return init_from(t, t->set.o.init, weights);
  for (int i = 0; i < t->n_slots; i++) {
    const wr_slot *slot = &t->slots[i];
    filling f = {slot, weights + slot->at, wr_hash64(slot->name, strlen(slot->name), (uint64_t)t->set.o.seed)};
    wr_team_run(d->team, fill_part, &f);
  }
  return WEIR_OK;
}
