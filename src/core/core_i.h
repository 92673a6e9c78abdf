/* What the files of core share among themselves. */
#ifndef WR_CORE_I_H
#define WR_CORE_I_H

#include "core/core.h"

bool wr_vtype_equal(const wr_vtype *a, const wr_vtype *b);
/* Runs the op's shape rule over the types of args; t[WR_MAX_ARGS] is filled. outputs_too: existing outputs are shown to the rule. */
weir_status wr_instr_shape(const wr_program *p, const wr_op *op, const void *params, const int *args, bool outputs_too, wr_vtype *t);
void wr_program_compact(wr_program *p); /* drops dead instructions (op == NULL) */

/* Every word of `use` (NULL: $WEIR_USE) names an op and a row of it, else EUSAGE: a misspelt one would silently force nothing. */
weir_status wr_use_check(const char *use);

/* ---- plan.c in two files: liveness.c lays values out in the arena */
typedef struct wr_life { int first, last; size_t bytes, offset; bool absent; } wr_life; /* of a value, in instructions */
typedef struct wr_memory_plan {
  wr_life *values;   /* [program.n_values] */
  wr_life *scratch;  /* [program.n_instrs]; bytes set by the caller before */
  size_t arena_bytes;
} wr_memory_plan;
weir_status wr_liveness(const wr_program *p, wr_memory_plan *m);
weir_status wr_place_arena(const wr_program *p, wr_memory_plan *m);

/* ---- split.c: which place runs which instruction, and what has to be moved between them. Fills places, parts, home, readers. */
weir_status wr_plan_split(wr_plan *plan);
weir_status wr_move(wr_plan *plan, const wr_plan_part *to, const struct wr_value_move *m); /* the live rows */

#endif
