/* Opening a model: header, hyper-parameters, weights, layouts, and the device's view of the weights. */
#include "model/model.h"
#include "model/model_i.h"

static weir_status import_weights(wr_model *m) {
  const int last = m->n_mems - 1;
  for (int i = 0; i < m->n_weights; i++) {
    wr_weight *w = &m->weights[i];
    const bool ends = w->id == WR_T_OUTPUT || w->id == WR_T_OUTPUT_NORM || w->id == WR_T_OUTPUT_NORM_BIAS;
    wr_mem *mem = m->mems[w->layer >= 0 ? wr_model_place(m, w->layer) : ends ? last : 0];
    WR_TRY(wr_mem_import(mem, WR_MEM_WEIGHTS, w->host, w->bytes, "weights", &w->buf));
    m->weight_bytes += w->bytes;
    m->token_bytes += wr_weight_is_looked_up(m, w) ? w->bytes / (size_t)w->rows : w->bytes;
  }
  return WEIR_OK;
}

/* Where the embedding is the last product's matrix, too. */
static weir_status import_head(wr_model *m) {
  const wr_weight *w = wr_model_weight(m, -1, WR_T_TOKEN_EMBD);
  if (m->n_mems == 1 || wr_model_weight(m, -1, WR_T_OUTPUT)) return WEIR_OK;
  return wr_mem_import(m->mems[m->n_mems - 1], WR_MEM_WEIGHTS, w->host, w->bytes, "weights", &m->head);
}

/* What every token reads, before the first one does. */
static void populate(const wr_model *m) {
  if (m->packed.ptr) wr_map_populate(&m->packed);
  for (int i = 0; !m->packed.ptr && i < wr_gguf_n_parts(m->gguf); i++) wr_map_populate(wr_gguf_part_at(m->gguf, i).map);
}

uint64_t wr_model_huge_bytes(const wr_model *m) {
  if (m->packed.ptr) return wr_pages_huge(m->packed.ptr, m->packed.bytes);
  uint64_t sum = 0;
  for (int i = 0; i < wr_gguf_n_parts(m->gguf); i++) {
    const wr_map *map = wr_gguf_part_at(m->gguf, i).map;
    sum += wr_pages_huge(map->ptr, map->bytes);
  }
  return sum;
}

/* The best type in which that many parameters fit, by its bits each; NULL: none. */
static const wr_dtype_info *type_that_fits(uint64_t parameters, uint64_t bytes) {
  const wr_dtype_info *best = NULL;
  for (int t = 0; t < WR_DTYPE_COUNT; t++) {
    const wr_dtype_info *i = &wr_dtypes[t];
    if (i->kind == WR_INT || (double)parameters * i->block_bytes / i->block > (double)bytes) continue;
    if (!best || i->block_bytes * best->block > best->block_bytes * i->block) best = i;
  }
  return best;
}

/* Before anything is read or packed: a device with little memory says what it would take. */
static weir_status fits_device(const wr_model *m) {
  enum { REST = 10 }; /* a part for what is not weights: KV cache, activations */
  const wr_device *d = m->mem->device;
  const uint64_t taken = wr_mem_used(m->mem) + m->mem->imported_bytes, left = d->memory_bytes - WR_MIN(d->memory_bytes, taken);
  char need[16], have[16];
  uint64_t bytes = 0;
  for (int i = 0; i < m->n_weights; i++) bytes += m->weights[i].bytes;
  if (!d->memory_bytes || bytes <= left || m->n_mems > 1) return WEIR_OK;
  const wr_dtype_info *fits = type_that_fits(m->parameters, left - left / REST);
  wr_size_text(need, bytes);
  wr_size_text(have, left);
  wr_fail(WEIR_ENOMEM, "%s: the weights take %s, but the device %s has %s left", wr_gguf_path(m->gguf), need, d->title, have);
  if (!fits) return wr_fail(WEIR_ENOMEM, "%s; no type of weights is small enough: take the device cpu", weir_last_error());
  return wr_fail(WEIR_ENOMEM, "%s: its %.3g million parameters fit as %s (weir quantize), or take the device cpu",
                 weir_last_error(), (double)m->parameters * 1e-6, fits->name);
}

static weir_status open_model(wr_model *m, const char *path, const wr_model_options *options) {
  const wr_gguf_options file = {.no_mmap = options->no_mmap};
  WR_TRY(wr_gguf_open(path, &file, &m->gguf));
  WR_TRY(wr_hparams_read(m->gguf, &m->h));
  WR_TRY(wr_weights_find(m));
  WR_TRY(fits_device(m));
  wr_str why = {0};
  weir_status s = wr_pack_open(m, options, &why);
  if (s == WEIR_OK) {
    wr_str text = {0};
    wr_str_printf(&text, "%s: %s", m->packed.ptr ? "packed" : "plain", why.ptr ? why.ptr : "");
    m->layout = text.oom || why.oom ? NULL : text.ptr;
    if (!m->layout) {
      wr_str_free(&text);
      s = wr_fail_nomem(text.len, "the name of a layout");
    }
  }
  wr_str_free(&why);
  WR_TRY(s);
  if (!options->plan_only) populate(m);
  WR_TRY(wr_weights_small(m));
  WR_TRY(wr_model_split(m));
  WR_TRY(import_weights(m));
  return import_head(m);
}

weir_status wr_model_open(wr_mem *mem, const char *path, const wr_model_options *options, wr_model **out) {
  const wr_model_options none = {0};
  const uint64_t begin = wr_now_ns();
  wr_model *m = wr_calloc(1, sizeof *m);
  if (!m) return wr_fail_nomem(sizeof *m, "a model");
  m->mem = m->mems[m->n_mems++] = mem;
  for (int i = 0; options && i < options->n_others && m->n_mems < WR_PLAN_DEVICES; i++)
    m->mems[m->n_mems++] = options->others[i];
  const weir_status s = open_model(m, path, options ? options : &none);
  if (s != WEIR_OK) {
    wr_model_close(m);
    return s;
  }
  m->load_seconds = (double)(wr_now_ns() - begin) * 1e-9 - m->pack_seconds;
  *out = m;
  return WEIR_OK;
}

static void release_buf(wr_model *m, wr_buf *b) {
  int k = 0;
  while (k < m->n_mems && m->mems[k]->device != b->device) k++;
  if (k < m->n_mems) wr_mem_free(m->mems[k], WR_MEM_WEIGHTS, b);
}

void wr_model_close(wr_model *m) {
  if (!m) return;
  for (int i = 0; i < m->n_weights; i++) release_buf(m, &m->weights[i].buf);
  release_buf(m, &m->head);
  wr_map_close(&m->packed);
  wr_gguf_close(m->gguf);
  wr_free(m->weights);
  wr_free(m->index);
  wr_free(m->small);
  wr_free(m->types);
  wr_free(m->layout);
  wr_free(m->split);
  wr_free(m);
}
