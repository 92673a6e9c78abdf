/* Recomputation: values of the forward pass that only gradients read are made again shortly before that, instead of being kept.
 *
 * A segment is a stretch of the forward pass. What it makes and nothing of the forward pass outside it reads is inside: of these values the
 * ones that gradients read, and what it takes to make them, are repeated in front of the first instruction that reads one, and the gradients
 * read the repetitions. The segment's own values then die within the forward pass, and SAVED ones that nobody reads get no memory.
 *
 * Invariant: the repeated instructions are the same ops with the same parameters on the same values, so the same kernels give the same
 * bits; randomness (dropout) depends on registers and names only. Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost. */
#include "core/core.h"
#include "core/core_i.h"

typedef struct remat {
  wr_program *p;
  const wr_segment *segments;
  int n_segments, n_forward;
  int n_values;     /* before the pass */
  int *home;        /* [n_values] the segment that a value is inside of, -1 */
  bool *needed;     /* [n_values] inside of a segment and read by a gradient, or what that is made of */
  int *again;       /* [n_values] the repetition of a value, -1 */
  bool *done;       /* [n_segments] repeated */
  wr_instr *instrs; /* the new list */
  int n;
  size_t cap;
} remat;

static const wr_op_arg *arg_of(const wr_instr *in, int a) { return &in->op->args[a]; }
#define EACH_ARG(in, a) for (int a = 0; arg_of(in, a)->role != WR_ARG_END; a++)

/* What changes something, or adds to it, cannot be repeated. */
static bool repeatable(const wr_program *p, const wr_segment *s) {
  for (int i = s->begin; i < s->end; i++) {
    const wr_instr *in = &p->instrs[i];
    if (in->acc) return false;
    EACH_ARG(in, a)
    if (arg_of(in, a)->role == WR_UPDATE) return false;
  }
  return true;
}

static void find_homes(remat *m) {
  const wr_program *p = m->p;
  for (int v = 0; v < m->n_values; v++) m->home[v] = m->again[v] = -1;
  for (int s = 0; s < m->n_segments; s++)
    for (int i = m->segments[s].begin; i < m->segments[s].end && repeatable(p, &m->segments[s]); i++) {
      const wr_instr *in = &p->instrs[i];
      EACH_ARG(in, a) {
        const int v = in->args[a];
        if (arg_of(in, a)->role == WR_OUT && v >= 0 && (p->values[v].kind == WR_TEMP || p->values[v].kind == WR_SAVED))
          m->home[v] = s;
      }
    }
  for (int i = 0; i < m->n_forward; i++) {
    const wr_instr *in = &p->instrs[i];
    EACH_ARG(in, a) {
      const int v = in->args[a], s = v >= 0 ? m->home[v] : -1;
      if (s >= 0 && (i < m->segments[s].begin || i >= m->segments[s].end)) m->home[v] = -1;
    }
  }
}

static bool makes_needed(const remat *m, const wr_instr *in) {
  EACH_ARG(in, a)
  if (arg_of(in, a)->role == WR_OUT && in->args[a] >= 0 && m->needed[in->args[a]]) return true;
  return false;
}

static void find_needed(remat *m) {
  const wr_program *p = m->p;
  for (int i = m->n_forward; i < p->n_instrs; i++) {
    const wr_instr *in = &p->instrs[i];
    EACH_ARG(in, a)
    if (in->args[a] >= 0 && m->home[in->args[a]] >= 0) m->needed[in->args[a]] = true;
  }
  for (int i = m->n_forward - 1; i >= 0; i--) {
    const wr_instr *in = &p->instrs[i];
    if (!makes_needed(m, in)) continue;
    EACH_ARG(in, a)
    if (arg_of(in, a)->role == WR_IN && in->args[a] >= 0 && m->home[in->args[a]] >= 0) m->needed[in->args[a]] = true;
  }
}

static void append(remat *m, const wr_instr *in) {
  if (wr_grow((void **)&m->instrs, &m->cap, (size_t)m->n + 1, sizeof *m->instrs))
    m->instrs[m->n++] = *in;
  else
    wr_program_fail(m->p, WEIR_ENOMEM, "no memory for the recomputation of a program of %d instructions", m->n);
}

/* The instructions of a segment that make what is needed, with new values. */
static void repeat(remat *m, const wr_segment *s) {
  wr_program *p = m->p;
  for (int i = s->begin; i < s->end && p->status == WEIR_OK; i++) {
    wr_instr in = p->instrs[i];
    if (!makes_needed(m, &in)) continue;
    EACH_ARG(&in, a) {
      const int v = in.args[a];
      if (v < 0) continue;
      if (arg_of(&in, a)->role == WR_IN) {
        if (m->again[v] >= 0) in.args[a] = m->again[v];
      } else if (!m->needed[v] && arg_of(&in, a)->flags & WR_ARG_OPTIONAL) {
        in.args[a] = WR_NONE;
      } else {
        const wr_vtype t = p->values[v].t;
        in.args[a] = m->again[v] = wr_value_new(p, p->values[v].kind, p->values[v].name, &t);
      }
    }
    if (p->status == WEIR_OK) append(m, &in);
  }
}

static void rewrite(remat *m) {
  wr_program *p = m->p;
  for (int i = 0; i < p->n_instrs && p->status == WEIR_OK; i++) {
    wr_instr in = p->instrs[i];
    for (int a = 0; i >= m->n_forward && arg_of(&in, a)->role != WR_ARG_END; a++) {
      const int v = in.args[a], s = v >= 0 && v < m->n_values ? m->home[v] : -1;
      if (s < 0) continue;
      if (!m->done[s]) repeat(m, &m->segments[s]);
      m->done[s] = true;
      in.args[a] = m->again[v];
    }
    append(m, &in);
  }
}

weir_status wr_pass_remat(wr_program *p, const wr_segment *segments, int n, int n_forward) {
  WR_TRY(wr_program_status(p));
  for (int s = 0; s < n; s++)
    if (segments[s].begin < 0 || segments[s].begin > segments[s].end || segments[s].end > n_forward || n_forward > p->n_instrs)
      return wr_program_fail(p, WEIR_EUSAGE, "segment %d [%d, %d) is no part of the %d instructions of the forward pass", s,
                             segments[s].begin, segments[s].end, n_forward);
  if (!n) return WEIR_OK;
  const size_t values = (size_t)WR_MAX(p->n_values, 1);
  remat m = {.p = p, .segments = segments, .n_segments = n, .n_forward = n_forward, .n_values = p->n_values};
  m.home = wr_calloc(values, sizeof *m.home);
  m.needed = wr_calloc(values, sizeof *m.needed);
  m.again = wr_calloc(values, sizeof *m.again);
  m.done = wr_calloc((size_t)n, sizeof *m.done);
  if (!m.home || !m.needed || !m.again || !m.done)
    wr_program_fail(p, WEIR_ENOMEM, "no memory for the recomputation of %d values", p->n_values);
  else {
    find_homes(&m);
    find_needed(&m);
    rewrite(&m);
  }
  if (p->status == WEIR_OK) {
    wr_free(p->instrs);
    p->instrs = m.instrs;
    p->n_instrs = m.n;
    p->cap_instrs = m.cap;
    wr_program_compact(p); /* sets where values are defined */
  } else {
    wr_free(m.instrs);
  }
  wr_free(m.home);
  wr_free(m.needed);
  wr_free(m.again);
  wr_free(m.done);
  return wr_program_status(p);
}
