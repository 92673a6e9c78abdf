/* Fusion: neighbouring producer and consumer become one instruction, by the table in fuse.def. Runs after the gradient pass, so that rules
 * exist for the plain ops only. */
#include "core/core.h"
#include "core/core_i.h"

#define FUSE(name, producer, consumer) bool wr_fuse_##name(wr_program *p, wr_instr *producer_instr, wr_instr *consumer_instr);
#include "core/fuse.def"
#undef FUSE

static const struct fusion {
  const wr_op *producer, *consumer;
  bool (*apply)(wr_program *, wr_instr *, wr_instr *);
} fusions[] = {
#define FUSE(name, producer, consumer) {&wr_op_##producer, &wr_op_##consumer, wr_fuse_##name},
#include "core/fuse.def"
#undef FUSE
};

/* How many instructions touch a value besides the one that defines it. */
static int readers(const wr_program *p, int value) {
  int n = 0;
  for (int i = 0; i < p->n_instrs; i++) {
    const wr_instr *in = &p->instrs[i];
    for (int a = 0; in->op && in->op->args[a].role != WR_ARG_END; a++)
      n += in->args[a] == value && i != p->values[value].def;
  }
  return n;
}

static bool fuse_into(wr_program *p, const struct fusion *f, wr_instr *consumer) {
  for (int a = 0; f->consumer->args[a].role != WR_ARG_END; a++) {
    const int v = consumer->args[a];
    if (f->consumer->args[a].role != WR_IN || v < 0 || p->values[v].kind != WR_TEMP || p->values[v].def < 0) continue;
    wr_instr *producer = &p->instrs[p->values[v].def];
    if (producer == consumer || producer->op != f->producer || producer->acc || readers(p, v) != 1) continue;
    if (f->apply(p, producer, consumer)) return true;
  }
  return false;
}

weir_status wr_pass_fuse(wr_program *p) {
  WR_TRY(wr_program_status(p));
  for (size_t f = 0; f < WR_ARRAY_LEN(fusions); f++)
    for (int i = 0; i < p->n_instrs; i++)
      if (p->instrs[i].op == fusions[f].consumer && !p->instrs[i].acc) (void)fuse_into(p, &fusions[f], &p->instrs[i]);
  wr_program_compact(p);
  return wr_check(p);
}
