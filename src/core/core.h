/* core: the program of coarse operations and the passes that turn it into a plan.
 *
 *   build -> check -> cast -> grad -> remat -> fuse -> select -> place -> plan -> run        (one file each; the checker after each in debug builds)
 *
 * A program is a list of instructions in execution order over a table of values. It is written once by a builder, planned once, and
 * replayed thousands of times. Core knows ops only as rows of a table (wr_ops), and memory only as device addresses.
 *
 * Invariants (check.c proves them)
 * - One assignment a value, except arguments that the op marks UPDATE, and outputs whose bit in `acc` is set.
 * - A value is defined before it is used: PARAM, INPUT and STATE from the start, others by an earlier instruction.
 * - What an op's shape rule says about its outputs is what the table of values holds.
 */
#ifndef WR_CORE_H
#define WR_CORE_H

#include "device/device.h"
#include "memory/memory.h"

/* ------------------------------------------------------------------------------------------------ dtypes and layouts: dtype/ */
typedef enum wr_dtype {
#define DTYPE(name, text, block, bytes, kind, tol) WR_##name,
#include "core/dtype.def"
#undef DTYPE
  WR_DTYPE_COUNT
} wr_dtype;

typedef enum wr_dtype_kind { WR_FLOAT, WR_QUANT, WR_INT } wr_dtype_kind;
typedef struct wr_dtype_info {
  const char *name;
  int block, block_bytes;
  wr_dtype_kind kind;
  double tolerance;
  /* n elements, a multiple of block; src/dst unaligned. from_float is NULL for I32 and where the bytes come from a search
   * (the K types: ops/quant). */
  void (*to_float)(const void *src, float *dst, int64_t n);
  void (*from_float)(const float *src, void *dst, int64_t n);
} wr_dtype_info;
extern const wr_dtype_info wr_dtypes[WR_DTYPE_COUNT];
int wr_dtype_find(const char *name); /* -1: none */
/* The same as to_float, the same bits, compiled for an instruction set (WR_ISA_*) that the caller knows to be there. */
typedef void wr_decode_fn(const void *src, float *dst, int64_t n);
wr_decode_fn *wr_decoder(wr_dtype t, int isa_level);

/* How the values of a quantised dtype are made: quant.def. bits 0: it is none. Constant where t is. */
typedef struct wr_quant { int bits, bias, part; bool minimum; int scale_bits, scale_bias; bool table; } wr_quant;
extern const uint8_t wr_iq4[16]; /* the table of the IQ4 types */
static inline __attribute__((always_inline)) wr_quant wr_quant_of(wr_dtype t) {
  switch (t) {
#define QUANT(name, ...) case WR_##name: return (wr_quant){__VA_ARGS__};
#include "core/quant.def"
#undef QUANT
  default: return (wr_quant){0};
  }
}
/* 32-bit words that the packed integer scales of a row take for each 256 elements. */
static inline __attribute__((always_inline)) int wr_quant_words(wr_quant q) {
  return q.scale_bits ? 256 / q.part * (1 + q.minimum) * q.scale_bits / 32 : 0;
}

/* plain: rows one after another. pack16: sixteen rows interleaved, so that a vector lane is a row; the same bytes on every ISA.
 * keys32: a row is a page of 32 positions' keys, quantised. The exact pictures are at the head of dtype/layout.c. */
typedef enum wr_layout { WR_PLAIN, WR_PACK16, WR_KEYS32, WR_LAYOUT_COUNT } wr_layout;
enum { WR_PACK_ROWS = 16, WR_PACK16_VERSION = 1 };
const char *wr_layout_name(wr_layout l);
bool wr_layout_ok(wr_layout l, wr_dtype t, int64_t cols);               /* does this dtype have this layout at this row length? */
size_t wr_layout_bytes(wr_layout l, wr_dtype t, int64_t rows, int64_t cols); /* 0: not possible, or overflow */
/* Bytes of one row (plain), or of one group of sixteen rows (pack16). */
size_t wr_layout_row_bytes(wr_layout l, wr_dtype t, int64_t cols);
/* Pack rows [group0*16, group1*16) of a plain matrix; missing rows of the last group become zero rows. */
void wr_pack16(wr_dtype t, const void *src, int64_t rows, int64_t cols, void *dst, int64_t group0, int64_t group1);
/* Elements [col, col+n) of row `row`, of any dtype and layout; n and col multiples of the dtype's block. The definition of a layout's
 * meaning: the reference kernels and the embedding use it. */
void wr_row_to_float(const wr_arg *a, int64_t row, int64_t col, int64_t n, float *dst);
/* One element as double: fast for F32/F64/F16/BF16/I32, slow but right for the rest. Column counts within a row of ext[0]. */
double wr_get(const wr_arg *a, int64_t row, int64_t col);
void wr_set(const wr_arg *a, int64_t row, int64_t col, double value);   /* FLOAT and INT types */
float wr_f16_to_float(uint16_t h);
uint16_t wr_float_to_f16(float f); /* round to nearest even; overflow to infinity */

/* ------------------------------------------------------------------------------------------------------------ values, instructions */
typedef enum wr_kind { WR_INPUT, WR_OUTPUT, WR_PARAM, WR_STATE, WR_TEMP, WR_SAVED } wr_kind;

/* What a shape rule speaks about: the type of a value. */
typedef struct wr_vtype {
  uint8_t dtype, layout, rank, live;
  int64_t ext[WR_MAX_DIMS]; /* [rank], outermost first; the rest 1 */
} wr_vtype;

typedef struct wr_value {
  const char *name;  /* GGUF's name for weights; "" for temporaries without one */
  wr_vtype t;
  wr_kind kind;
  int64_t stride_bytes;
  int grad;          /* value id of its gradient, -1 */
  int def, first, last; /* instruction that writes it first (-1: none), first and last instruction that touches it; set by plan */
  wr_buf buf;        /* PARAM, STATE: bound by the caller with wr_bind, else placed by place */
  size_t offset;     /* within buf; for planned values within the arena */
  bool bound;
} wr_value;

typedef struct wr_op wr_op;
typedef struct wr_row wr_row;
typedef struct wr_instr {
  const wr_op *op;            /* NULL: removed by a pass */
  const void *params;         /* a copy that the program owns */
  int args[WR_MAX_ARGS];      /* value ids; -1: absent */
  uint32_t acc;               /* bit i: output argument i is added to */
  const wr_row *row;          /* set by select */
} wr_instr;

typedef struct wr_program {
  wr_arena arena;
  wr_value *values;
  int n_values;
  size_t cap_values;
  wr_instr *instrs;
  int n_instrs;
  size_t cap_instrs;
  weir_status status;         /* sticky: the first failure; its sentence is in `error` */
  char *error;
} wr_program;

/* ------------------------------------------------------------------------------------------------------------------------------ ops */
typedef enum wr_role { WR_ARG_END, WR_IN, WR_OUT, WR_UPDATE } wr_role;
enum {
  WR_ARG_OPTIONAL = 1, /* may be -1. An optional output that nobody reads gets no memory: the kernel sees data == NULL */
  WR_ARG_ACC = 2,      /* output: can be added to instead of written */
  WR_ARG_FLOAT = 4,    /* a float activation that the cast policy may change the dtype of */
  WR_ARG_SAVED = 8,    /* optional output that exists only for the gradient */
};
typedef struct wr_op_arg {
  const char *name;
  wr_role role;
  uint8_t flags;
  int8_t inplace; /* output: 1 + index of the input whose memory it may take when that dies here; 0: none */
} wr_op_arg;

typedef struct wr_cost {
  double flop;
  double read_bytes, write_bytes; /* all memory traffic that the op cannot avoid, weights and KV included */
  double weight_bytes;            /* of which PARAM */
  double kv_bytes;                /* of which paged STATE */
  double copy_bytes;              /* of which bytes that are only moved, cast or repacked */
} wr_cost;

typedef struct wr_grad wr_grad;
typedef struct wr_case wr_case; /* ops/: one line of a .cases file */

struct wr_op {
  const char *name, *doc;
  wr_op_arg args[WR_MAX_ARGS]; /* inputs, updates and outputs in the order of wr_call.args; ends with role WR_ARG_END */
  size_t params_bytes;
  /* Checks the inputs (t[i] for each argument; rank 0 = absent) and fills t[] of the outputs (rank 0 on entry unless the caller already
   * has the value). The sentence of a refusal names the argument and both numbers. */
  weir_status (*shape)(const void *params, wr_vtype *t);
  /* Emits the gradient instructions of `i` with the ordinary builders. NULL: the op has no gradient (a sentence says so when asked). */
  weir_status (*grad)(wr_grad *g, const wr_instr *i);
  /* Cost of one call; live rows come from c->regs, shapes from c->args; data pointers may be NULL, presence is args[i].rank != 0. */
  void (*cost)(const wr_call *c, wr_cost *out);
  void (*print)(const void *params, wr_str *s); /* "eps=1e-05 theta=10000"; may be NULL */
  const wr_row *rows;          /* best first, reference last */
  int n_rows;
  /* Builds the program of one .cases line: inputs with fill rules, the op, outputs. */
  weir_status (*make_case)(wr_case *c, wr_program *p);
};

/* A kernel: one row = declared, chosen, tested, benchmarked. */
struct wr_row {
  const char *name;    /* <op>[_bwd]_<types>_<device>[_<isa>][_<trick>]: also the function */
  const char *device;  /* "cpu", or "dev": device/dialect.h. The null device, which runs nothing, takes any row */
  uint32_t isa;        /* level and feature bits that it needs */
  /* Argument constraints, space separated: "x:f32 w:q8_0/pack16 y:f32". "arg:a|b" alternatives; layout after '/', plain if absent,
   * an asterisk stands for any dtype or any layout; arguments not named must be plain f32 (floats) or i32 (tables) or absent. */
  const char *types;
  const char *klass;   /* numeric class: "x q8/32, i32 sums, f32 over k ascending" in short, e.g. "q8k32". Same class = same bits */
  const char *(*refuse)(const wr_call *c);                 /* NULL or a printable reason; shapes only, data may be NULL */
  size_t (*scratch)(const wr_call *c, int n_threads);      /* bytes; NULL: none */
  wr_kernel_fn run;
  wr_launch_fn *launch; /* device "dev": instead of run */
};
#define WR_ROW_FN(fn) void fn(const wr_call *c, const wr_worker *w)

extern const wr_op *const wr_ops[];
extern const int wr_ops_n;
const wr_op *wr_op_find(const char *name);
#define OP(name) extern const wr_op wr_op_##name;
#include "core/ops.def"
#undef OP
int wr_op_n_args(const wr_op *op);

/* ------------------------------------------------------------------------------------------------- building a program: program.c */
void wr_program_init(wr_program *p);
void wr_program_free(wr_program *p);
weir_status wr_program_status(wr_program *p); /* the first failure of any builder call, its sentence restored */
weir_status wr_program_fail(wr_program *p, weir_status s, const char *fmt, ...) WR_PRINTF(3, 4);

/* All return a value id, or -1 after a failure; -1 given as a required argument makes the next call a no-op, so that a builder writes a
 * straight list of calls and looks at wr_program_status() once. */
int wr_value_new(wr_program *p, wr_kind kind, const char *name, const wr_vtype *t);
int wr_value_2d(wr_program *p, wr_kind kind, const char *name, wr_dtype dtype, int64_t rows, int64_t cols); /* plain, live ALL */
int wr_value_1d(wr_program *p, wr_kind kind, const char *name, wr_dtype dtype, int64_t n);
void wr_bind(wr_program *p, int value, const wr_buf *buf, size_t offset); /* PARAM, STATE: memory that the caller owns */
/* The same, rows so many bytes apart, at least what one takes. Not in packed layouts. */
void wr_bind_rows(wr_program *p, int value, const wr_buf *buf, size_t offset, size_t stride_bytes);
void wr_mark_output(wr_program *p, int value);                            /* TEMP -> OUTPUT: kept and readable after a run */
const wr_vtype *wr_type(const wr_program *p, int value);
size_t wr_value_bytes(const wr_value *v); /* from its first row to the end of its last */

enum { WR_NONE = -1, WR_NEW = -2 };
/* Append an instruction. args: one entry for each argument of the op: inputs and updates are value ids or WR_NONE; outputs are WR_NEW (a
 * TEMP is made by the shape rule and its id written back), WR_NONE (optional output not wanted), or an existing id. Copies params. */
weir_status wr_emit(wr_program *p, const wr_op *op, const void *params, int *args);

weir_status wr_check(const wr_program *p);     /* check.c: the invariants; EFAIL names instruction, argument and rule */
void wr_print(const wr_program *p, wr_str *s); /* print.c: one instruction a line, then values; stable, tests compare it */

/* ------------------------------------------------------------------------------------------------------------------------ passes */
typedef struct wr_policy { wr_dtype compute; } wr_policy; /* F32: nothing to do */
weir_status wr_pass_cast(wr_program *p, const wr_policy *policy);

/* Gradients of sum_i <y[i], dy[i]> with respect to every PARAM (and every value in wrt[]) that it depends on. dy[i] has y[i]'s type.
 * Afterwards value.grad of those is the id of the gradient: OUTPUT, or, when wr_grad_into was called before, that STATE is added to. */
weir_status wr_pass_grad(wr_program *p, const int *y, const int *dy, int n, const int *wrt, int n_wrt);
void wr_grad_into(wr_program *p, int param, int accumulator);
/* For gradient rules: */
wr_program *wr_grad_program(wr_grad *g);
int wr_grad_of(wr_grad *g, int value);               /* gradient of an output so far; WR_NONE: nothing flows there */
bool wr_grad_wanted(const wr_grad *g, int value);    /* does anything want the gradient of this input? */
/* `grad` (just emitted as an output of the last instruction, or any value) is a gradient of `value`: the first is kept, a later one turns
 * into ACCUMULATE on the instruction that made it where the op allows, else an `add` is emitted. */
void wr_grad_add(wr_grad *g, int value, int grad);
/* May the instruction that the rule of `i` emits next do i's own work too? Yes when nothing reads i's outputs so far; then i is removed, and
 * the next instruction must write them. */
bool wr_grad_take_over(wr_grad *g, const wr_instr *i);

/* After the gradient pass, whose instructions begin at n_forward: what only gradients read of a segment [begin, end) of the forward pass is
 * made again before they do, instead of being kept. Segments do not overlap. Results are the same bits; remat.c says what is repeated. */
typedef struct wr_segment { int begin, end; } wr_segment;
weir_status wr_pass_remat(wr_program *p, const wr_segment *segments, int n, int n_forward);

weir_status wr_pass_fuse(wr_program *p);
int wr_value_readers(const wr_program *p, int value); /* uses of a value besides the instruction that defines it */

/* ----------------------------------------------------------------------------------------------------------------- plan and run */
/* One numeric class for each (op, weight dtype and layout) over all plans of a model. */
typedef struct wr_class_ledger {
  struct { const char *key, *klass; } entry[64];
  int n;
  bool oom; /* an entry was lost for want of memory; wr_plan_make fails then */
  wr_arena arena;
} wr_class_ledger;
void wr_class_ledger_free(wr_class_ledger *l);

/* tune.c: for kinds of calls (op, type of the weights, rows, size of the weights), the rows that were fastest on this machine, best first.
 * Rows of another numeric class than the table's order leads to are passed over, so that a tune file changes no bit of a result. */
enum { WR_TUNE_ROWS = 4 };
typedef struct wr_tune_entry {
  uint64_t kind; /* hash of the name of the kind */
  const wr_row *rows[WR_TUNE_ROWS];
  int n_rows;
} wr_tune_entry;
typedef struct wr_tune { wr_tune_entry *entries; size_t n; } wr_tune; /* {0}: the order of the table */
weir_status wr_tune_parse(const char *text, wr_tune *out); /* EFORMAT with the reason; *out is untouched then */
void wr_tune_free(wr_tune *t);
const wr_tune_entry *wr_tune_find(const wr_tune *t, const char *kind); /* NULL: none */
void wr_tune_kind(const wr_op *op, const wr_call *c, char *buf, size_t cap); /* of a call with registers; data may be NULL */
void wr_tune_head(wr_str *text);                                             /* the text that parse takes: first the head, */
void wr_tune_add(wr_str *text, const char *kind, const wr_row *const *rows, int n); /* then a kind a line; up to WR_TUNE_ROWS rows */

typedef struct wr_plan_options {
  wr_class_ledger *classes;  /* NULL: none kept */
  const wr_tune *tune;       /* NULL: the order of the table */
  const char *use;           /* "op:row,op:row": forced rows; NULL: $WEIR_USE */
  bool profile;              /* time each step */
  bool poison;               /* fill arena and scratch with NaN before every run (tests) */
  const struct wr_plan *lender; /* whose memory for activations this plan uses too, one of them running at a time; too small: its own */
  wr_mem *const *others;     /* [n_others] further devices, of which values are bound; up to WR_PLAN_DEVICES - 1 */
  int n_others;
} wr_plan_options;

/* Where a plan lives: a device, and the plan's own memory there. A plan on one device has one place and one part.
 * With several devices each instruction runs where its bound values (PARAM, STATE) are, or else where the instruction before it ran. All
 * places have the same arena, so a value has one offset; before a part runs, what it reads of others' results is moved to its place. */
enum { WR_PLAN_DEVICES = 4 };
typedef struct wr_plan_place {
  wr_mem *mem;
  wr_buf arena;              /* activations and scratch */
  bool borrowed_arena;
  wr_buf io;                 /* registers */
} wr_plan_place;
typedef struct wr_plan_part {
  int place, begin, end;     /* instructions [begin, end) */
  wr_list list;              /* their steps, in plan.list */
  struct wr_value_move { int value, from; } *moves; /* from which place */
  int n_moves;
} wr_plan_part;

typedef struct wr_plan {
  wr_program *program;       /* owned by the caller, alive as long as the plan, unchanged */
  wr_mem *mem;
  wr_plan_options options;
  wr_list list;              /* step i is instruction i of the program */
  wr_plan_place places[WR_PLAN_DEVICES]; /* the first is mem's */
  int n_places;
  wr_plan_part *parts;
  int n_parts;
  uint8_t *home, *readers;   /* [program.n_values] the place that has it when a run ends; bit k: place k reads or writes it */
  double moved_bytes;        /* between devices, and between the host and devices that are not the CPU, so far */
  wr_buf params, states;     /* PARAM and STATE that nobody bound */
  size_t arena_bytes, scratch_bytes;
  int n_barriers;
  wr_regs *regs_host;        /* what the next run uses; wr_plan_run writes it to the device */
  uint64_t fingerprint;      /* numeric classes, isa, layouts: what the bits of a result depend on */
} wr_plan;

/* select + place + plan. The program must have passed wr_check. On the null device nothing is allocated. */
weir_status wr_plan_make(wr_program *p, wr_mem *mem, const wr_plan_options *options, wr_plan *out);
void wr_plan_free(wr_plan *plan);
weir_status wr_plan_write(wr_plan *plan, int value, size_t offset, const void *src, size_t n); /* INPUT, PARAM, STATE */
weir_status wr_plan_read(wr_plan *plan, int value, size_t offset, void *dst, size_t n);        /* OUTPUT, PARAM, STATE */
void *wr_plan_host(wr_plan *plan, int value); /* the value's memory where the host can see it, else NULL */
weir_status wr_plan_run(wr_plan *plan);       /* with *plan->regs_host */
void wr_plan_cost(const wr_plan *plan, int step, const wr_regs *regs, wr_cost *out);
/* For each kind of instruction, in the order of the list, the row chosen and why the rows before it were not; what is alike is told once. */
void wr_plan_why(const wr_plan *plan, wr_str *s);

/* Which row would run this call, and why not the better ones. Of the options: classes, tune and use. why may be NULL. NULL: none (the
 * sentence is left in the error). */
const wr_row *wr_select(const wr_op *op, const wr_call *c, const wr_device *d, const wr_plan_options *o, wr_str *why);
/* Does this row take this call on this device? NULL: yes, else the printable reason. */
const char *wr_row_refuses(const wr_op *op, const wr_row *row, const wr_call *c, const wr_device *d, char *buf, size_t cap);

#endif
