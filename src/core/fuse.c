/* Fusion: neighbouring producer and consumer become one instruction, by the table in fuse.def. Runs after the gradient pass, so that rules
 * exist for the plain ops only. */
#include "core/core.h"
#include "core/core_i.h"

#define FUSE(name, producer, consumer) bool wr_fuse_##name(wr_program *p, wr_instr *producer_instr, wr_instr *consumer_instr);
#define FUSE_ALL FUSE
#include "core/fuse.def"
#undef FUSE
#undef FUSE_ALL

static const struct fusion {
  const wr_op *producer, *consumer;
  bool (*apply)(wr_program *, wr_instr *, wr_instr *);
  bool all;
} fusions[] = {
#define FUSE(name, producer, consumer) {&wr_op_##producer, &wr_op_##consumer, wr_fuse_##name, false},
#define FUSE_ALL(name, producer, consumer) {&wr_op_##producer, &wr_op_##consumer, wr_fuse_##name, true},
#include "core/fuse.def"
#undef FUSE
#undef FUSE_ALL
};

int wr_value_readers(const wr_program *p, int value) {
  int n = 0;
  for (int i = 0; i < p->n_instrs; i++) {
    const wr_instr *in = &p->instrs[i];
    for (int a = 0; in->op && in->op->args[a].role != WR_ARG_END; a++) n += in->args[a] == value && i != p->values[value].def;
  }
  return n;
}

static bool fuse_into(wr_program *p, const struct fusion *f, wr_instr *consumer) {
  for (int a = 0; f->consumer->args[a].role != WR_ARG_END; a++) {
    const int v = consumer->args[a];
    if (f->consumer->args[a].role != WR_IN || v < 0 || p->values[v].kind != WR_TEMP || p->values[v].def < 0) continue;
    wr_instr *producer = &p->instrs[p->values[v].def];
    if (producer == consumer || producer->op != f->producer || producer->acc || wr_value_readers(p, v) != 1) continue;
    if (f->apply(p, producer, consumer)) return true;
  }
  return false;
}

static int first_output(const wr_instr *in) {
  for (int a = 0; in->op->args[a].role != WR_ARG_END; a++)
    if (in->op->args[a].role == WR_OUT) return in->args[a];
  return -1;
}

static bool reads(const wr_instr *in, int value) {
  for (int a = 0; in->op && in->op->args[a].role != WR_ARG_END; a++)
    if (in->args[a] == value) return true;
  return false;
}

/* The producer into every reader of its first output, if each of them takes it. Other outputs must not be read. */
static void fuse_into_all(wr_program *p, const struct fusion *f, wr_instr *producer) {
  const int value = first_output(producer);
  if (value < 0 || p->values[value].kind != WR_TEMP || producer->acc) return;
  for (int a = 0; f->producer->args[a].role != WR_ARG_END; a++)
    if (f->producer->args[a].role == WR_OUT && producer->args[a] >= 0 && producer->args[a] != value &&
        wr_value_readers(p, producer->args[a]))
      return;
  for (int sure = 0; sure < 2; sure++)
    for (int i = 0; i < p->n_instrs; i++) {
      wr_instr *reader = &p->instrs[i], trial = *reader;
      if (reader == producer || !reads(reader, value)) continue;
      if (!sure && (reader->op != f->consumer || reader->acc || !f->apply(p, producer, &trial))) return;
      if (sure && !f->apply(p, producer, reader)) return; /* out of memory: the readers so far are right, the producer stays */
    }
  producer->op = NULL;
}

weir_status wr_pass_fuse(wr_program *p) {
  WR_TRY(wr_program_status(p));
  for (size_t f = 0; f < WR_ARRAY_LEN(fusions); f++)
    for (int i = 0; i < p->n_instrs; i++) {
      wr_instr *in = &p->instrs[i];
      if (fusions[f].all && in->op == fusions[f].producer) fuse_into_all(p, &fusions[f], in);
      if (!fusions[f].all && in->op == fusions[f].consumer && !in->acc) (void)fuse_into(p, &fusions[f], in);
    }
  wr_program_compact(p);
  return wr_check(p);
}
