/* Building a program: a table of values, and instructions appended in execution order.
 *
 * Failures are sticky: the first one is kept with its sentence, later builder calls do nothing and return -1. So a builder is a straight list of
 * calls with one look at wr_program_status() at its end. */
#include "core/core.h"
#include "core/core_i.h"

const wr_op *const wr_ops[] = {
#define OP(name) &wr_op_##name,
#include "core/ops.def"
#undef OP
};
const int wr_ops_n = (int)WR_ARRAY_LEN(wr_ops);

const wr_op *wr_op_find(const char *name) {
  for (int i = 0; i < wr_ops_n; i++)
    if (strcmp(wr_ops[i]->name, name) == 0) return wr_ops[i];
  return NULL;
}

int wr_op_n_args(const wr_op *op) {
  int n = 0;
  while (n < WR_MAX_ARGS && op->args[n].role != WR_ARG_END) n++;
  return n;
}

void wr_program_init(wr_program *p) { *p = (wr_program){0}; }

void wr_program_free(wr_program *p) {
  wr_arena_free(&p->arena);
  wr_free(p->values);
  wr_free(p->instrs);
  wr_free(p->error);
  *p = (wr_program){0};
}

weir_status wr_program_status(wr_program *p) {
  if (p->status == WEIR_OK) return WEIR_OK;
  return wr_fail(p->status, "%s", p->error ? p->error : "no memory for a program");
}

weir_status wr_program_fail(wr_program *p, weir_status s, const char *fmt, ...) {
  if (p->status != WEIR_OK) return p->status;
  char text[512];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  p->status = s;
  p->error = wr_strdup(text);
  return wr_fail(s, "%s", text);
}

/* Bytes of a value and of one of its rows; false: overflow, or a row that the layout cannot hold. */
static bool value_bytes(const wr_vtype *t, size_t *row, size_t *total) {
  size_t inner = 1;
  for (int d = 1; d < WR_MAX_DIMS; d++)
    if (t->ext[d] <= 0 || !wr_mul_size(inner, (size_t)t->ext[d], &inner)) return false;
  if (t->ext[0] <= 0 || inner > INT64_MAX) return false;
  const size_t one = wr_layout_row_bytes((wr_layout)t->layout, (wr_dtype)t->dtype, (int64_t)inner);
  const size_t all = wr_layout_bytes((wr_layout)t->layout, (wr_dtype)t->dtype, t->ext[0], (int64_t)inner);
  if (!one || !all) return false;
  *row = one;
  *total = all;
  return true;
}

int wr_value_new(wr_program *p, wr_kind kind, const char *name, const wr_vtype *t) {
  if (p->status != WEIR_OK) return -1;
  wr_vtype full = *t;
  for (int d = full.rank; d < WR_MAX_DIMS; d++) full.ext[d] = 1;
  size_t row, total;
  if (full.rank < 1 || full.rank > WR_MAX_DIMS || full.dtype >= WR_DTYPE_COUNT || full.layout >= WR_LAYOUT_COUNT ||
      !value_bytes(&full, &row, &total)) {
    wr_program_fail(p, WEIR_EUSAGE, "value '%s': %s in layout %s cannot have extents [%lld, %lld, %lld, %lld]", name,
                    full.dtype < WR_DTYPE_COUNT ? wr_dtypes[full.dtype].name : "an unknown dtype",
                    full.layout < WR_LAYOUT_COUNT ? wr_layout_name((wr_layout)full.layout) : "unknown", (long long)full.ext[0],
                    (long long)full.ext[1], (long long)full.ext[2], (long long)full.ext[3]);
    return -1;
  }
  const char *copy = wr_arena_strdup(&p->arena, name ? name : "");
  if (!copy || !wr_grow((void **)&p->values, &p->cap_values, (size_t)p->n_values + 1, sizeof *p->values)) {
    wr_program_fail(p, WEIR_ENOMEM, "no memory for value '%s' of a program", name);
    return -1;
  }
  p->values[p->n_values] = (wr_value){
      .name = copy, .t = full, .kind = kind, .stride_bytes = (int64_t)row, .grad = -1, .def = -1, .first = -1, .last = -1};
  return p->n_values++;
}

int wr_value_2d(wr_program *p, wr_kind kind, const char *name, wr_dtype dtype, int64_t rows, int64_t cols) {
  return wr_value_new(p, kind, name, &(wr_vtype){.dtype = (uint8_t)dtype, .rank = 2, .ext = {rows, cols}});
}

int wr_value_1d(wr_program *p, wr_kind kind, const char *name, wr_dtype dtype, int64_t n) {
  return wr_value_new(p, kind, name, &(wr_vtype){.dtype = (uint8_t)dtype, .rank = 1, .ext = {n}});
}

void wr_bind(wr_program *p, int value, const wr_buf *buf, size_t offset) {
  if (p->status != WEIR_OK || value < 0) return;
  wr_value *v = &p->values[value];
  v->buf = *buf;
  v->offset = offset;
  v->bound = true;
  const size_t need = wr_value_bytes(v);
  if (v->kind != WR_PARAM && v->kind != WR_STATE)
    wr_program_fail(p, WEIR_EUSAGE, "value '%s' is neither PARAM nor STATE: only those have memory of the caller's", v->name);
  else if (offset > buf->bytes || need > buf->bytes - offset)
    wr_program_fail(p, WEIR_EUSAGE, "value '%s' needs %zu bytes at %zu, its buffer has %zu", v->name, need, offset, buf->bytes);
}

void wr_bind_rows(wr_program *p, int value, const wr_buf *buf, size_t offset, size_t stride_bytes) {
  if (p->status == WEIR_OK && value >= 0) p->values[value].stride_bytes = (int64_t)stride_bytes;
  wr_bind(p, value, buf, offset);
}

size_t wr_value_bytes(const wr_value *v) {
  size_t row, total;
  if (!value_bytes(&v->t, &row, &total)) return 0;
  return (size_t)v->stride_bytes == row ? total : (size_t)(v->t.ext[0] - 1) * (size_t)v->stride_bytes + row;
}

void wr_mark_output(wr_program *p, int value) {
  if (p->status == WEIR_OK && value >= 0) p->values[value].kind = WR_OUTPUT;
}

const wr_vtype *wr_type(const wr_program *p, int value) {
  static const wr_vtype none = {.ext = {0, 0, 0, 0}};
  return value < 0 || value >= p->n_values ? &none : &p->values[value].t;
}

bool wr_vtype_equal(const wr_vtype *a, const wr_vtype *b) {
  return a->dtype == b->dtype && a->layout == b->layout && a->rank == b->rank && a->live == b->live &&
         memcmp(a->ext, b->ext, sizeof a->ext) == 0;
}

weir_status wr_instr_shape(const wr_program *p, const wr_op *op, const void *params, const int *args, bool outputs_too,
                           wr_vtype *t) {
  const int n = wr_op_n_args(op);
  memset(t, 0, sizeof *t * WR_MAX_ARGS);
  for (int i = 0; i < n; i++)
    if (args[i] >= 0 && (op->args[i].role != WR_OUT || outputs_too)) t[i] = p->values[args[i]].t;
  return op->shape(params, t);
}

weir_status wr_emit(wr_program *p, const wr_op *op, const void *params, int *args) {
  const int n = wr_op_n_args(op);
  if (p->status == WEIR_OK) {
    for (int i = 0; i < n; i++) {
      const wr_op_arg *a = &op->args[i];
      if (args[i] >= p->n_values) return wr_program_fail(p, WEIR_EUSAGE, "%s: argument '%s' is no value", op->name, a->name);
      if (args[i] >= 0 || (a->flags & WR_ARG_OPTIONAL) || (a->role == WR_OUT && args[i] == WR_NEW)) continue;
      wr_program_fail(p, WEIR_EUSAGE, "%s: argument '%s' is missing", op->name, a->name);
      break;
    }
  }
  wr_vtype t[WR_MAX_ARGS];
  if (p->status == WEIR_OK && wr_instr_shape(p, op, params, args, false, t) != WEIR_OK)
    wr_program_fail(p, WEIR_EUSAGE, "%s: %s", op->name, weir_last_error());
  for (int i = 0; i < n && p->status == WEIR_OK; i++) {
    if (op->args[i].role != WR_OUT) continue;
    if (args[i] == WR_NEW)
      args[i] = wr_value_new(p, op->args[i].flags & WR_ARG_SAVED ? WR_SAVED : WR_TEMP, "", &t[i]);
    else if (args[i] >= 0 && !wr_vtype_equal(&t[i], &p->values[args[i]].t))
      wr_program_fail(p, WEIR_EUSAGE, "%s: output '%s' has another type than value '%s'", op->name, op->args[i].name,
                      p->values[args[i]].name);
  }
  wr_instr instr = {.op = op};
  if (p->status == WEIR_OK) {
    void *copy = wr_arena_alloc(&p->arena, WR_MAX(op->params_bytes, (size_t)1));
    if (!copy || !wr_grow((void **)&p->instrs, &p->cap_instrs, (size_t)p->n_instrs + 1, sizeof *p->instrs))
      wr_program_fail(p, WEIR_ENOMEM, "no memory for instruction %s", op->name);
    else if (op->params_bytes)
      memcpy(copy, params, op->params_bytes);
    instr.params = copy;
  }
  if (p->status != WEIR_OK) {
    for (int i = 0; i < n; i++)
      if (op->args[i].role == WR_OUT && args[i] == WR_NEW) args[i] = -1;
    return p->status;
  }
  for (int i = 0; i < WR_MAX_ARGS; i++) instr.args[i] = i < n && args[i] >= 0 ? args[i] : -1;
  for (int i = 0; i < n; i++)
    if (op->args[i].role == WR_OUT && instr.args[i] >= 0 && p->values[instr.args[i]].def < 0)
      p->values[instr.args[i]].def = p->n_instrs;
  p->instrs[p->n_instrs++] = instr;
  return WEIR_OK;
}

void wr_program_compact(wr_program *p) {
  int kept = 0;
  for (int v = 0; v < p->n_values; v++) p->values[v].def = -1;
  for (int i = 0; i < p->n_instrs; i++) {
    if (!p->instrs[i].op) continue;
    p->instrs[kept] = p->instrs[i];
    const wr_instr *in = &p->instrs[kept];
    for (int a = 0; in->op->args[a].role != WR_ARG_END; a++)
      if (in->op->args[a].role == WR_OUT && in->args[a] >= 0 && p->values[in->args[a]].def < 0)
        p->values[in->args[a]].def = kept;
    kept++;
  }
  p->n_instrs = kept;
}
