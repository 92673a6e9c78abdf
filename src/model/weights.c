/* The table of a model's weights: which tensors there must be, that their shapes are what the hyper-parameters say, their types
 * and layouts.
 *
 * A tensor of the file that the table does not know is refused: it would mean something, and leaving it out would give wrong
 * text in silence. */
#include "model/model.h"
#include "model/model_i.h"

#include <strings.h>

typedef enum scope { MODEL, MODEL_BIAS, LAYER, BIAS } scope;
typedef enum need { MUST, MAY } need;

typedef struct tensor_row {
  const char *name;
  int blocks; /* of wr_block */
  scope scope;
  need need;
  wr_use use;
  wr_dim rows, cols;
} tensor_row;

static const tensor_row rows_of[WR_T_COUNT] = {
#define TENSOR(id, blocks, name, scope, need, use, rows, cols) \
  {name, WR_BLOCK_##blocks, scope, need, WR_USE_##use, WR_DIM_##rows, WR_DIM_##cols},
#include "model/tensors.def"
#undef TENSOR
};

static wr_use use_of(wr_tensor_id id) { return rows_of[id].use; }

static bool of_model(const tensor_row *row) { return row->scope == MODEL || row->scope == MODEL_BIAS; }

static int64_t dim_value(const wr_hparams *h, wr_dim d) {
  switch (d) {
#define X(name, value, text) \
  case WR_DIM_##name: return value;
    WR_DIM_MAP(X)
#undef X
  }
  return 0;
}

static const char *const dim_text[] = {
#define X(name, value, text) text,
    WR_DIM_MAP(X)
#undef X
};

static void tensor_name(const tensor_row *row, int layer, char out[WR_GGUF_MAX_NAME + 1]) {
  const char *end = row->scope == BIAS || row->scope == MODEL_BIAS ? "bias" : "weight";
  if (of_model(row))
    snprintf(out, WR_GGUF_MAX_NAME + 1, "%s.%s", row->name, end);
  else
    snprintf(out, WR_GGUF_MAX_NAME + 1, "blk.%d.%s.%s", layer, row->name, end);
}

int wr_weight_dtype(const wr_gguf_type_info *t) {
  for (int i = 0; i < WR_DTYPE_COUNT; i++) {
    const wr_dtype_info *info = &wr_dtypes[i];
    if (strcasecmp(info->name, t->name) != 0 || info->kind == WR_INT || i == WR_F64) continue;
    return (uint32_t)info->block == t->block_elems && (uint32_t)info->block_bytes == t->block_bytes ? i : -1;
  }
  return -1;
}

static weir_status find_dtype(const wr_model *m, const wr_gguf_tensor *t, wr_dtype *out) {
  const int dtype = wr_weight_dtype(t->type);
  if (dtype >= 0) {
    *out = (wr_dtype)dtype;
    return WEIR_OK;
  }
  return wr_fail(WEIR_EUNSUPPORTED, "%s: tensor %s is of type %s, which weir does not compute with", wr_gguf_path(m->gguf),
                 t->name, t->type->name);
}

static weir_status check_shape(const wr_model *m, const wr_gguf_tensor *t, const tensor_row *row) {
  const wr_hparams *h = &m->h;
  const int64_t rows = dim_value(h, row->rows), cols = dim_value(h, row->cols);
  const int want_dims = row->use == WR_USE_VECTOR ? 1 : 2;
  if (t->n_dims == want_dims && t->dim[0] == (uint64_t)cols && t->dim[1] == (uint64_t)rows) return WEIR_OK;
  if (want_dims == 1)
    return wr_fail(WEIR_EFORMAT, "%s: tensor %s has %d dimensions, the first %llu, but it must have one: %lld (%s.%s)",
                   wr_gguf_path(m->gguf), t->name, t->n_dims, (unsigned long long)t->dim[0], (long long)cols, h->arch->name,
                   dim_text[row->cols]);
  return wr_fail(WEIR_EFORMAT,
                 "%s: tensor %s has %d dimensions, %llu rows of %llu, but it must have %lld rows (%s.%s) of %lld (%s.%s)",
                 wr_gguf_path(m->gguf), t->name, t->n_dims, (unsigned long long)t->dim[1], (unsigned long long)t->dim[0],
                 (long long)rows, h->arch->name, dim_text[row->rows], (long long)cols, h->arch->name, dim_text[row->cols]);
}

static weir_status add(wr_model *m, wr_tensor_id id, int layer) {
  const tensor_row *row = &rows_of[id];
  if (!(row->blocks & (int)m->h.arch->block)) return WEIR_OK;
  wr_weight w = {.id = id, .layer = layer};
  tensor_name(row, layer, w.name);
  w.tensor = wr_gguf_tensor_find(m->gguf, w.name);
  if (!w.tensor) {
    if (row->need == MAY) return WEIR_OK;
    return wr_fail(WEIR_EFORMAT, "%s: the tensor %s is missing (%s.block_count is %lld)", wr_gguf_path(m->gguf), w.name,
                   m->h.arch->name, (long long)m->h.layers);
  }
  WR_TRY(check_shape(m, w.tensor, row));
  WR_TRY(find_dtype(m, w.tensor, &w.dtype));
  w.rows = dim_value(&m->h, row->rows);
  w.cols = dim_value(&m->h, row->cols);
  w.bytes = wr_layout_bytes(WR_PLAIN, w.dtype, w.rows, w.cols);
  if (!w.bytes || w.bytes != w.tensor->bytes)
    return wr_fail(WEIR_EFORMAT, "%s: tensor %s has %llu bytes, not the %zu of its shape and type", wr_gguf_path(m->gguf),
                   w.name, (unsigned long long)w.tensor->bytes, w.bytes);
  w.host = w.tensor->data;
  m->index[(1 + layer) * WR_T_COUNT + (int)id] = m->n_weights;
  m->weights[m->n_weights++] = w;
  return WEIR_OK;
}

static weir_status refuse_unknown(const wr_model *m) {
  const size_t n = wr_gguf_n_tensors(m->gguf);
  if ((size_t)m->n_weights == n) return WEIR_OK;
  uint8_t *known = wr_calloc(n, 1);
  if (!known) return wr_fail_nomem(n, "a table of tensors");
  const wr_gguf_tensor *first = wr_gguf_tensor_at(m->gguf, 0);
  for (int i = 0; i < m->n_weights; i++) known[m->weights[i].tensor - first] = 1;
  weir_status s = WEIR_OK;
  for (size_t i = 0; i < n && s == WEIR_OK; i++)
    if (!known[i])
      s = wr_fail(WEIR_EUNSUPPORTED,
                  "%s: weir does not know what the tensor %s means in a model of architecture '%s' with %lld layers",
                  wr_gguf_path(m->gguf), wr_gguf_tensor_at(m->gguf, i)->name, m->h.arch->name, (long long)m->h.layers);
  wr_free(known);
  return s;
}

/* "q4_0, q8_0": types of the matrices, most bytes first. */
static weir_status describe_types(wr_model *m) {
  uint64_t bytes[WR_DTYPE_COUNT] = {0};
  for (int i = 0; i < m->n_weights; i++)
    if (use_of(m->weights[i].id) != WR_USE_VECTOR) bytes[m->weights[i].dtype] += m->weights[i].bytes;
  wr_str s = {0};
  for (;;) {
    int best = 0;
    for (int i = 1; i < WR_DTYPE_COUNT; i++)
      if (bytes[i] > bytes[best]) best = i;
    if (!bytes[best]) break;
    wr_str_printf(&s, "%s%s", s.len ? ", " : "", wr_dtypes[best].name);
    bytes[best] = 0;
  }
  m->types = s.oom || !s.ptr ? NULL : wr_strdup(s.ptr);
  wr_str_free(&s);
  return m->types ? WEIR_OK : wr_fail_nomem(64, "a list of types");
}

weir_status wr_weights_find(wr_model *m) {
  const size_t index = (size_t)(1 + m->h.layers) * WR_T_COUNT;
  m->index = wr_malloc(index * sizeof *m->index);
  m->weights = wr_calloc(WR_MAX(wr_gguf_n_tensors(m->gguf), (size_t)1), sizeof *m->weights);
  if (!m->index || !m->weights) return wr_fail_nomem(index * sizeof *m->index, "the table of weights");
  memset(m->index, 0xff, index * sizeof *m->index);
  /* In the order of use: a packed file that lies in this order is one forward stream a token. */
  for (int id = 0; id < WR_T_COUNT; id++)
    if (id == WR_T_TOKEN_EMBD || id == WR_T_POSITION_EMBD) WR_TRY(add(m, (wr_tensor_id)id, -1));
  for (int layer = 0; layer < m->h.layers; layer++)
    for (int id = 0; id < WR_T_COUNT; id++)
      if (!of_model(&rows_of[id])) WR_TRY(add(m, (wr_tensor_id)id, layer));
  for (int id = 0; id < WR_T_COUNT; id++)
    if (of_model(&rows_of[id]) && id != WR_T_TOKEN_EMBD && id != WR_T_POSITION_EMBD) WR_TRY(add(m, (wr_tensor_id)id, -1));
  WR_TRY(refuse_unknown(m));
  for (int i = 0; i < m->n_weights; i++) m->parameters += m->weights[i].tensor->n_elems;
  return describe_types(m);
}

const wr_weight *wr_model_weight(const wr_model *m, int layer, wr_tensor_id id) {
  const int at = m->index[(1 + layer) * WR_T_COUNT + (int)id];
  return at < 0 ? NULL : &m->weights[at];
}

/* The embedding is a matmul's matrix too where there is no output matrix. */
bool wr_weight_is_matrix(const wr_model *m, const wr_weight *w) {
  if (w->id == WR_T_TOKEN_EMBD) return !wr_model_weight(m, -1, WR_T_OUTPUT);
  return use_of(w->id) == WR_USE_MATRIX;
}

/* q, k and v in one matrix are read as three, each of which must be whole groups. */
bool wr_weight_packs(const wr_model *m, const wr_weight *w) {
  const wr_hparams *h = &m->h;
  if (!wr_weight_is_matrix(m, w) || !wr_layout_ok(WR_PACK16, w->dtype, w->cols)) return false;
  if (w->id == WR_T_ATTN_QKV && (h->heads * h->key_width % WR_PACK_ROWS || h->kv_heads * h->key_width % WR_PACK_ROWS))
    return false;
  return wr_layout_bytes(WR_PACK16, w->dtype, w->rows, w->cols) > 0;
}

/* A table of which a token takes one row. */
bool wr_weight_is_looked_up(const wr_model *m, const wr_weight *w) {
  return use_of(w->id) == WR_USE_TABLE && !wr_weight_is_matrix(m, w);
}

weir_status wr_weights_small(wr_model *m) {
  size_t bytes = 0;
  for (int i = 0; i < m->n_weights; i++) {
    const wr_weight *w = &m->weights[i];
    if (use_of(w->id) == WR_USE_VECTOR && w->dtype != WR_F32) bytes += ((size_t)w->cols * sizeof(float) + 63) / 64 * 64;
  }
  if (!bytes) return WEIR_OK;
  m->small = wr_malloc(bytes);
  if (!m->small) return wr_fail_nomem(bytes, "norms and biases");
  char *at = m->small;
  for (int i = 0; i < m->n_weights; i++) {
    wr_weight *w = &m->weights[i];
    if (use_of(w->id) != WR_USE_VECTOR || w->dtype == WR_F32) continue;
    wr_dtypes[w->dtype].to_float(w->tensor->data, (float *)(void *)at, w->cols);
    w->dtype = WR_F32;
    w->host = at;
    w->bytes = (size_t)w->cols * sizeof(float);
    at += (w->bytes + 63) / 64 * 64;
  }
  return WEIR_OK;
}
