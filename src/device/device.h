/* device: the table of devices, their memory, and the contract between a planned list of kernel calls and the device that runs it.
 *
 * Owns: opening devices, allocating and copying their memory, running a list. Knows kernels only as function pointers with
 * arguments; what an op means, and how a list comes about, is core's business. A new device is a folder with one wr_device_api.
 *
 * Addresses (wr_arg.data, wr_buf.addr) belong to the device. Only its own kernels follow them. Host code moves bytes with
 * write/read, or asks wr_buf_host(), which is NULL where the host cannot see the memory.
 */
#ifndef WR_DEVICE_H
#define WR_DEVICE_H

#include "base/base.h"

enum { WR_MAX_ARGS = 20, WR_MAX_DIMS = 4 };

/* ---- a kernel call */

/* One argument as a kernel sees it. A value is rows: ext[0] rows of ext[1]*ext[2]*ext[3] contiguous elements. */
typedef struct wr_arg {
  void *data;               /* device address of the first row; NULL: an optional argument that is absent (test this, not ext) */
  int64_t ext[WR_MAX_DIMS]; /* outermost first; unused ones are 1 */
  int64_t stride_bytes;     /* between rows of ext[0]; in a packed layout: of the whole tensor's groups, see core/dtype/layout.c */
  uint8_t rank, dtype, layout; /* wr_dtype, wr_layout of core */
  uint8_t live;             /* which register says how many of the ext[0] rows are alive in this run (wr_live); 0: all */
} wr_arg;

/* Registers: what changes from run to run and is not a tensor. One small block in device memory; kernels read it there. */
enum wr_live { WR_LIVE_ALL, WR_LIVE_ROWS, WR_LIVE_OUT, WR_LIVE_SEQS, WR_LIVE_COUNT };
typedef struct wr_regs {
  int64_t live[WR_LIVE_COUNT]; /* [WR_LIVE_ROWS] token rows in this run, [OUT] rows that want logits, [SEQS] sequences */
  int64_t kv_tok;              /* sum over live rows of the cache positions that each attends to: for cost only */
  int64_t step;                /* optimiser step, from 1 */
  uint64_t seed;
  float lr, loss_scale, grad_scale; /* grad_scale multiplies gradients in the optimiser (clipping, 1/loss_scale); 0 means 1 */
  int32_t found_inf;           /* predicate: optimisers skip the update when it is not 0 */
} wr_regs;

typedef struct wr_call {
  wr_arg args[WR_MAX_ARGS]; /* in the order of the op's argument list */
  const void *params;       /* the op's parameter struct */
  const wr_regs *regs;
  void *scratch;            /* what the row's scratch() booked at plan time; contents undefined; 64-byte aligned */
  size_t scratch_bytes;
  uint32_t acc;             /* bit i: add to output i instead of writing it (the op's argument is marked WR_ARG_ACC) */
  const struct wr_call *next; /* a hint: the next call of the same op, whose parameters a kernel may begin to fetch; may be NULL */
} wr_call;

/* Which thread of the team is calling. A CPU kernel is called once by every thread of the team and takes its part. */
typedef struct wr_worker {
  int tid, n_threads;
  wr_team *team;
  atomic_int *take; /* thread 0's counters of this step, one a phase, zero at the start of a run; used by wr_take only */
  int take_stride;  /* in atomic_ints between two threads' counters */
} wr_worker;
enum { WR_TAKE_PHASES = 2 };

typedef void (*wr_kernel_fn)(const wr_call *c, const wr_worker *w);

/* ---- kernels of devices other than the CPU, written once for all of them: device/dialect.h */
typedef struct wr_dev_kernel {
  const char *name, *source; /* its function; the file that it stands in: wr_dev_sources */
  int items, n_args;         /* of a group; arguments of the call that it gets, from the first on */
  void (*emulate)(void **args);
} wr_dev_kernel;

/* The kernels that a call takes, one after another, each with its grid of groups, and the numbers that they read. */
enum { WR_LAUNCH_KERNELS = 6, WR_LAUNCH_NUMBERS = 12 };
typedef struct wr_launch {
  struct { const wr_dev_kernel *kernel; int64_t groups[3]; } kernels[WR_LAUNCH_KERNELS];
  int n_kernels;
  int64_t n[WR_LAUNCH_NUMBERS];
  float f[WR_LAUNCH_NUMBERS];
} wr_launch;
/* Of a row of such a device: from shapes and parameters, for the whole bucket; *out is zero. */
typedef void wr_launch_fn(const wr_call *c, wr_launch *out);
void wr_launch_add(wr_launch *l, const wr_dev_kernel *k, int64_t x, int64_t y, int64_t z); /* a grid with a 0 in it is left out */

/* The text of each *_dev.c file, with what it includes of the dialect: tools/embed-kernels. */
typedef struct wr_dev_source { const char *path, *text; } wr_dev_source;
extern const wr_dev_source wr_dev_sources[];
extern const int wr_dev_sources_n;

/* Rows of argument i that are alive in this run. */
static inline int64_t wr_live_rows(const wr_call *c, int i) {
  const wr_arg *a = &c->args[i];
  if (!a->live) return a->ext[0];
  return WR_MIN(c->regs->live[a->live], a->ext[0]);
}
static inline int64_t wr_inner(const wr_arg *a) { return a->ext[1] * a->ext[2] * a->ext[3]; }

/* Share out n units of work. Each thread begins with its own contiguous part (so neighbouring weights stay one stream) in steps of
 * at most `grain`; when it has none left it takes steps from the others, so that a thread whose core was taken delays nobody for
 * long. Sets [*begin, *end); false: nothing is left. `phase` 0..WR_TAKE_PHASES-1: calls that share out twice (with a barrier
 * in between) use one each. The result of a kernel must not depend on who took what. */
bool wr_take(const wr_worker *w, int phase, int64_t n, int64_t grain, int64_t *begin, int64_t *end);
static inline void wr_barrier(const wr_worker *w) {
  if (w->n_threads > 1) wr_team_barrier(w->team, w->tid);
}

/* ---- a list of calls, as the plan hands it to a device */
typedef struct wr_step {
  wr_kernel_fn run;     /* the CPU's; NULL: launch */
  wr_launch_fn *launch; /* other devices' */
  const char *name;  /* the row's name: in profiles and in the null device's counts */
  bool barrier;      /* all earlier steps must have finished before this one starts */
  double bytes, flop; /* by the op's cost rule at full bucket: what the null device counts */
  wr_call call;
} wr_step;

typedef struct wr_list {
  wr_step *steps;
  int n;
  uint64_t *step_ns; /* NULL, or [n]: filled with the wall time of each step (to its end on the slowest thread) */
  atomic_int *take;  /* CPU: [n_threads][wr_list_take_stride(n)], owned by the list */
  void *prepared;    /* the device's own, see prepare */
} wr_list;
/* atomic_ints between two threads' counters: whole cache lines, so that a thread's own counters are its own. */
static inline int wr_list_take_stride(int n_steps) { return (n_steps * WR_TAKE_PHASES + 15) / 16 * 16; }

/* ---- devices */
typedef struct wr_device wr_device;

/* A piece of device memory. */
typedef struct wr_buf {
  wr_device *device;
  void *addr;    /* device address; on the null device a made-up number that nobody follows */
  size_t bytes;
  bool imported; /* memory of the host that somebody else owns, used in place */
} wr_buf;

typedef struct wr_device_options {
  int threads; /* 0: all usable physical cores */
  bool pin;
  int order; /* emu: of the work items, see device/emu/emu.c */
  int index; /* opencl: which of its devices, from 1 on; 0: the first that can be used */
  int (*progress)(void *user, const char *what, double done); /* of what takes long: compiling kernels. Not 0: ESTOPPED. May be NULL */
  void *user;
} wr_device_options;

/* A line of `weir devices`. Pointers are good during the call that tells it. */
typedef struct wr_device_facts {
  const char *name, *text, *driver, *platform; /* driver, platform: NULL where there is none */
  uint64_t memory_bytes;                       /* 0: not known, or what the host has */
  bool usable;                                 /* can run models here */
} wr_device_facts;
typedef void wr_device_tell_fn(void *user, const wr_device_facts *f);

typedef struct wr_device_api {
  const char *name; /* "cpu", "opencl", "null" */
  const char *rows; /* the rows that it runs: wr_row.device; NULL: runs nothing, any row will do */
  const char *doc;
  weir_status (*list)(wr_device_tell_fn *tell, void *user); /* NULL: it is one device, and always there */
  weir_status (*open)(const wr_device_options *options, wr_device **out);
  void (*close)(wr_device *d);
  weir_status (*alloc)(wr_device *d, size_t bytes, bool huge, const char *what, wr_buf *out); /* 64-byte aligned, zeroed */
  void (*free)(wr_device *d, wr_buf *b);                                                     /* imported: only forgets it */
  weir_status (*import)(wr_device *d, const void *host, size_t bytes, wr_buf *out); /* EUNSUPPORTED: copy instead */
  weir_status (*write)(wr_device *d, wr_buf *dst, size_t offset, const void *src, size_t n);
  weir_status (*read)(wr_device *d, const wr_buf *src, size_t offset, void *dst, size_t n);
  void *(*host)(wr_device *d, const wr_buf *b);                                     /* NULL: the host cannot see it */
  /* Once for a list, before its first run: what can fail or takes long (compiling kernels). Both NULL: nothing to do. */
  weir_status (*prepare)(wr_device *d, wr_list *list);
  void (*release)(wr_device *d, wr_list *list);
  weir_status (*run)(wr_device *d, wr_list *list);
} wr_device_api;

struct wr_device {
  const wr_device_api *api;
  wr_team *team;     /* the host's threads: kernels of the CPU, and the host's own work beside any device. NULL: runs nothing */
  int n_threads;     /* 1 on devices without a team */
  uint32_t isa;      /* cpu: WR_ISA_* levels and features that kernels may use */
  int64_t launches;  /* kernels of the dialect that were started since it was opened */
  size_t used_bytes, peak_bytes;
  bool own_memory;       /* apart from the host's */
  uint64_t memory_bytes; /* that it may take, imports included; 0: what the host has, see wr_memory_available */
  const char *title;     /* for people; NULL: the api's name says it */
  void *priv;
};

static inline const char *wr_device_title(const wr_device *d) { return d->title ? d->title : d->api->name; }

extern const wr_device_api wr_device_cpu, wr_device_opencl, wr_device_emu, wr_device_null;
/* "cpu", "opencl:1"; *index: the number after the colon and one, 0 without; NULL: none is allowed. NULL: no such device. */
const wr_device_api *wr_device_find(const char *name, int *index);
extern const wr_device_api *const wr_devices[];
extern const int wr_devices_n;

/* Memory of the host, for the devices whose memory it is: device.c. */
weir_status wr_host_alloc(wr_device *d, size_t bytes, bool huge, const char *what, wr_buf *out);
void wr_host_free(wr_device *d, wr_buf *b);
weir_status wr_host_import(wr_device *d, const void *host, size_t bytes, wr_buf *out);
weir_status wr_host_write(wr_device *d, wr_buf *dst, size_t offset, const void *src, size_t n);
weir_status wr_host_read(wr_device *d, const wr_buf *src, size_t offset, void *dst, size_t n);
void *wr_host_addr(wr_device *d, const wr_buf *b);

/* What the null device saw since it was opened. */
typedef struct wr_null_counts { int64_t runs, calls; double bytes, flop; size_t allocated_bytes; } wr_null_counts;
wr_null_counts wr_null_device_counts(const wr_device *d);

/* ---- CPU instruction sets. A level includes all lower ones of its family.
 * avx512: F+BW+VL+DQ+VNNI; neon: Armv8.2's with the dot products of bytes, kernels and files named so are compiled for it. */
enum wr_isa { WR_ISA_GENERIC = 0, WR_ISA_AVX2 = 1, WR_ISA_AVX512 = 2, WR_ISA_NEON = 1 };
/* X(LEVEL, name, ...) for each that weir is compiled for, the best first; the Makefile's ISAS. */
#if defined(__x86_64__)
#define WR_EACH_ISA(X, ...) X(AVX512, avx512, __VA_ARGS__) X(AVX2, avx2, __VA_ARGS__) X(GENERIC, generic, __VA_ARGS__)
#elif defined(__aarch64__)
#define WR_EACH_ISA(X, ...) X(NEON, neon, __VA_ARGS__) X(GENERIC, generic, __VA_ARGS__)
#else
#define WR_EACH_ISA(X, ...) X(GENERIC, generic, __VA_ARGS__)
#endif
enum { WR_ISA_LEVEL_MASK = 0xff, WR_ISA_AVX512_FP16 = 0x100, WR_ISA_AVX512_BF16 = 0x200, WR_ISA_AMX_INT8 = 0x400,
       WR_ISA_AVX512_AMX = WR_ISA_AVX512 | WR_ISA_AMX_INT8 };
const char *wr_isa_name(uint32_t isa);       /* "avx512" */
const char *wr_isa_missing(uint32_t needed, uint32_t have); /* "avx512", "amx": what is needed first; NULL: nothing */
weir_status wr_isa_detect(uint32_t *out);    /* what this CPU and OS allow, lowered by WEIR_ISA=generic|avx2|avx512|neon */

#endif
