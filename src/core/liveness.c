/* Where each value lives in the arena.
 *
 * The future is known: a value needs memory from the instruction that writes it to the last one that reads it. One walk over the list
 * with a set of live blocks sorted by offset; each new block takes the smallest gap that holds it. An output may take the memory of an input that
 * dies at the same instruction where its op says so (`inplace`).
 *
 * INPUT values are written by the host before a run and OUTPUT values read after it, so both keep their memory for the whole list. PARAM
 * and STATE are not in the arena. Optional outputs that nobody reads are absent.
 *
 * A block is returned QUARANTINE instructions after its last use: neighbouring instructions that do not depend on each other then share no
 * memory, so that reuse adds no barrier between them. */
#include "core/core.h"
#include "core/core_i.h"

enum { ALIGN = 64, QUARANTINE = 3 };

typedef struct block {
  size_t offset, bytes;
  int free_after;
} block;
typedef struct arena_state {
  block *live;
  int n;
  size_t cap, end;
} arena_state;

static bool in_arena(const wr_value *v) { return v->kind != WR_PARAM && v->kind != WR_STATE; }

weir_status wr_liveness(const wr_program *p, wr_memory_plan *m) {
  for (int v = 0; v < p->n_values; v++) m->values[v] = (wr_life){.first = -1, .last = -1};
  for (int i = 0; i < p->n_instrs; i++) {
    const wr_instr *in = &p->instrs[i];
    for (int a = 0; in->op->args[a].role != WR_ARG_END; a++) {
      const int v = in->args[a];
      if (v < 0) continue;
      if (m->values[v].first < 0) m->values[v].first = i;
      m->values[v].last = i;
    }
  }
  for (int i = 0; i < p->n_instrs; i++) {
    const wr_instr *in = &p->instrs[i];
    for (int a = 0; in->op->args[a].role != WR_ARG_END; a++) {
      const int v = in->args[a];
      if (v < 0 || in->op->args[a].role != WR_OUT || !(in->op->args[a].flags & WR_ARG_OPTIONAL)) continue;
      const wr_kind kind = p->values[v].kind;
      m->values[v].absent = m->values[v].last == i && m->values[v].first == i && (kind == WR_TEMP || kind == WR_SAVED);
    }
  }
  for (int v = 0; v < p->n_values; v++) {
    m->values[v].bytes = wr_value_bytes(&p->values[v]);
    if (!m->values[v].bytes) return wr_fail(WEIR_EUSAGE, "value '%s' has no size", p->values[v].name);
  }
  return WEIR_OK;
}

/* The smallest gap that holds `bytes`, or the end. false: no memory for the bookkeeping. */
static bool take(arena_state *s, size_t bytes, int free_after, size_t *offset) {
  const size_t need = (bytes + ALIGN - 1) / ALIGN * ALIGN;
  size_t at = 0, best_gap = SIZE_MAX;
  int before = s->n;
  for (int i = 0; i <= s->n; i++) {
    const size_t start = i ? s->live[i - 1].offset + s->live[i - 1].bytes : 0;
    const size_t stop = i < s->n ? s->live[i].offset : SIZE_MAX;
    const size_t gap = stop - start;
    if (gap < need || (gap >= best_gap && best_gap != SIZE_MAX)) continue;
    if (i == s->n && best_gap != SIZE_MAX) continue; /* a real gap is better than growing */
    best_gap = gap;
    before = i;
    at = start;
  }
  if (!wr_grow((void **)&s->live, &s->cap, (size_t)s->n + 1, sizeof *s->live)) return false;
  memmove(&s->live[before + 1], &s->live[before], sizeof *s->live * (size_t)(s->n - before));
  s->live[before] = (block){at, need, free_after};
  s->n++;
  s->end = WR_MAX(s->end, at + need);
  *offset = at;
  return true;
}

static void release(arena_state *s, int now) {
  int kept = 0;
  for (int i = 0; i < s->n; i++)
    if (s->live[i].free_after >= now) s->live[kept++] = s->live[i];
  s->n = kept;
}

/* The input whose memory output `a` of instruction i takes over, or -1. */
static int dying_input(const wr_program *p, const wr_memory_plan *m, int i, int a) {
  const wr_instr *in = &p->instrs[i];
  const int at = in->op->args[a].inplace - 1;
  if (at < 0 || in->args[at] < 0) return -1;
  const int v = in->args[at], out = in->args[a];
  const wr_kind kind = p->values[v].kind;
  if ((kind != WR_TEMP && kind != WR_SAVED) || m->values[v].last != i || m->values[v].absent) return -1;
  if (m->values[v].bytes != m->values[out].bytes || p->values[v].stride_bytes != p->values[out].stride_bytes) return -1;
  for (int b = 0; in->op->args[b].role != WR_ARG_END; b++)
    if (b != at && in->args[b] == v) return -1;
  return v;
}

static void extend(arena_state *s, size_t offset, int free_after) {
  for (int i = 0; i < s->n; i++)
    if (s->live[i].offset == offset) s->live[i].free_after = free_after;
}

weir_status wr_place_arena(const wr_program *p, wr_memory_plan *m) {
  arena_state s = {0};
  bool ok = true;
  for (int v = 0; v < p->n_values && ok; v++)
    if (p->values[v].kind == WR_INPUT) ok = take(&s, m->values[v].bytes, INT32_MAX, &m->values[v].offset);
  for (int i = 0; i < p->n_instrs && ok; i++) {
    const wr_instr *in = &p->instrs[i];
    release(&s, i);
    for (int a = 0; in->op->args[a].role != WR_ARG_END && ok; a++) {
      const int v = in->args[a];
      if (v < 0 || in->op->args[a].role != WR_OUT || !in_arena(&p->values[v])) continue;
      wr_life *life = &m->values[v];
      if (life->first != i || life->absent) continue;
      const int until = p->values[v].kind == WR_OUTPUT ? INT32_MAX : life->last + QUARANTINE;
      const int donor = dying_input(p, m, i, a);
      if (donor >= 0) {
        life->offset = m->values[donor].offset;
        extend(&s, life->offset, until);
      } else {
        ok = take(&s, life->bytes, until, &life->offset);
      }
    }
    if (ok && m->scratch[i].bytes) ok = take(&s, m->scratch[i].bytes, i + QUARANTINE, &m->scratch[i].offset);
  }
  m->arena_bytes = s.end;
  wr_free(s.live);
  return ok ? WEIR_OK : wr_fail_nomem(s.cap * sizeof *s.live, "the memory plan");
}
