/* The emulated device: runs the single-source kernels (device/dialect.h) on the host, so that they are tested where there is no other device,
 * with sanitizers, and in orders that a real one takes rarely.
 *
 * Memory is the host's. Groups run one after another, and the items of a group as fibers, each to its next barrier, in one order: forwards,
 * backwards, or shuffled anew at every turn (wr_device_options.order 0, 1, or a seed). What the kernels may not do shows so:
 * - a missing barrier: other bits in another order; ThreadSanitizer names both lines, since it takes fibers for threads that only barriers
 *   order.
 * - items that come to different barriers, or to none: the run fails and names the places. A place is a line: two calls of a function that
 *   has a barrier are not told apart.
 * - reads of SHARED memory that nobody wrote: it is NaN before each group. Accesses past it, and past an argument: AddressSanitizer.
 * - more than 64 KB of an item's own arrays: a fault at the guard page below its stack.
 *
 * Not for speed, and one run at a time in a process: SHARED memory is static. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "device/dialect.h"
#include "device/launch_i.h"

#if WR_EMU_ASAN
  #include <sanitizer/asan_interface.h>
  #define ASAN(...) __VA_ARGS__
#else
  #define ASAN(...)
#endif
/* What runs on a fiber's stack and reads what the scheduler writes is not for ThreadSanitizer's eyes. */
#if WR_EMU_TSAN
  #include <sanitizer/tsan_interface.h>
  #define TSAN(...) __VA_ARGS__
  #define UNWATCHED __attribute__((no_sanitize("thread")))
#else
  #define TSAN(...)
  #define UNWATCHED
#endif

enum { STACK_BYTES = 64 << 10 };
typedef enum state { AT_BARRIER, DONE, GONE } state; /* DONE: with this group; GONE: its stack is nobody's */

typedef struct fiber {
  state state;
  int number;
  const char *file; /* of the barrier it waits at */
  int line;
  TSAN(unsigned barriers;) /* that it came to in this group */
  char *stack;
#if defined(__x86_64__)
  void *sp;
#else
  ucontext_t context;
#endif
  ASAN(void *fake;)
  TSAN(void *tsan;)
} fiber;

typedef struct emu {
  int order;
  uint64_t random;
} emu;

/* What runs now, on whatever device: of the one run that holds `lock`. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  fiber fibers[WR_LAUNCH_ITEMS], *self;
  int n_fibers; /* that exist: as many as the largest kernel so far had items; they stay, since to make one takes long under a sanitizer */
  int devices;  /* that are open: the last to be closed ends the fibers, as a run that fails does */
  bool over;    /* fibers that are resumed now go */
  int order[WR_LAUNCH_ITEMS];
  char *stacks;
  size_t stack_bytes; /* of each, and the page below it that nobody may touch */
  const wr_dev_kernel *kernel;
  void **args;
  int64_t group[3], groups[3];
#if defined(__x86_64__)
  void *sp; /* of the scheduler */
#else
  ucontext_t context;
#endif
  ASAN(const void *bottom; size_t bytes; void *fake;)
  TSAN(void *tsan;)
  TSAN(char begins, ends, barrier[2];) /* tags; by parity, so that a later barrier does not order what stands before an earlier one */
} now;

/* -------------------------------------------------------------------------------------------------------------- fibers */

#if defined(__x86_64__)
/* Saves the registers that a callee keeps and the stack pointer, goes on where `to` was saved. */
void wr_emu_switch(void **save, void *to);
__asm__(".text\n.globl wr_emu_switch\n.type wr_emu_switch,@function\nwr_emu_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size wr_emu_switch,.-wr_emu_switch\n");
#endif

UNWATCHED static void to_scheduler(fiber *f) {
  ASAN(__sanitizer_start_switch_fiber(f->state == GONE ? NULL : &f->fake, now.bottom, now.bytes);)
  TSAN(__tsan_switch_to_fiber(now.tsan, __tsan_switch_to_fiber_no_sync);)
#if defined(__x86_64__)
  wr_emu_switch(&f->sp, now.sp);
#else
  swapcontext(&f->context, &now.context);
#endif
  ASAN(__sanitizer_finish_switch_fiber(f->fake, &now.bottom, &now.bytes);)
}

UNWATCHED static void to_fiber(fiber *f) {
  now.self = f;
  ASAN(__sanitizer_start_switch_fiber(&now.fake, f->stack, STACK_BYTES);)
  TSAN(__tsan_switch_to_fiber(f->tsan, __tsan_switch_to_fiber_no_sync);)
#if defined(__x86_64__)
  wr_emu_switch(&now.sp, f->sp);
#else
  swapcontext(&now.context, &f->context);
#endif
  ASAN(__sanitizer_finish_switch_fiber(now.fake, NULL, NULL);)
}

UNWATCHED static void go(fiber *f) {
  TSAN(__tsan_release(&now.ends);)
  f->state = GONE;
  to_scheduler(f);
  abort(); /* nobody comes back to it */
}

/* A fiber's life: one group after another. */
UNWATCHED static void entry(void) {
  fiber *f = now.self;
  ASAN(__sanitizer_finish_switch_fiber(NULL, &now.bottom, &now.bytes);)
  while (!now.over) {
    TSAN(__tsan_acquire(&now.begins);)
    TSAN(f->barriers = 0;) /* fibers that a smaller group did without have counted fewer */
    now.kernel->emulate(now.args);
    TSAN(__tsan_release(&now.ends);)
    f->state = DONE;
    to_scheduler(f);
  }
  go(f);
}

static void make_fiber(int number) {
  fiber *f = &now.fibers[number];
  char *room = now.stacks + (size_t)number * now.stack_bytes, *stack = room + now.stack_bytes - STACK_BYTES;
  *f = (fiber){.number = number, .stack = stack};
  mprotect(room, now.stack_bytes - STACK_BYTES, PROT_NONE); /* if it cannot be had, overflows are found less surely */
#if defined(__x86_64__)
  void **sp = (void **)(void *)(stack + STACK_BYTES);
  *--sp = NULL; /* the frame of entry's caller, of whom there is none: the stack is aligned as after a call */
  *--sp = (void *)(uintptr_t)entry;
  for (int i = 0; i < 6; i++) *--sp = NULL;
  f->sp = sp;
#else
  getcontext(&f->context);
  f->context.uc_stack = (stack_t){.ss_sp = stack, .ss_size = STACK_BYTES};
  f->context.uc_link = NULL;
  makecontext(&f->context, entry, 0);
#endif
  TSAN(f->tsan = __tsan_create_fiber(0);)
}

UNWATCHED int wr_emu_item(void) { return now.self->number; }
UNWATCHED int wr_emu_group(int dim) { return (int)now.group[dim]; }
UNWATCHED int wr_emu_groups(int dim) { return (int)now.groups[dim]; }

UNWATCHED void wr_emu_barrier(const char *file, int line) {
  fiber *f = now.self;
  f->state = AT_BARRIER;
  f->file = file;
  f->line = line;
  TSAN(char *tag = &now.barrier[f->barriers++ & 1];)
  TSAN(__tsan_release(tag);)
  to_scheduler(f);
  if (now.over) go(f); /* the run has failed */
  TSAN(__tsan_acquire(tag);)
}

/* ----------------------------------------------------------------------------------------------------------- a launch */

static uint64_t next_random(emu *e) {
  e->random ^= e->random << 13;
  e->random ^= e->random >> 7;
  e->random ^= e->random << 17;
  return e->random;
}

/* Which of n comes i-th: forwards, backwards; the shuffled order is an array's. */
static void put_in_order(emu *e, int *order, int n) {
  for (int i = 0; i < n; i++) order[i] = e->order == 1 ? n - 1 - i : i;
  for (int i = n - 1; i > 0 && e->order > 1; i--) {
    const int j = (int)(next_random(e) % (uint64_t)(i + 1)), other = order[j];
    order[j] = order[i];
    order[i] = other;
  }
}

static weir_status diverged(const fiber *a, const fiber *b) {
  const fiber *waits = a->state == AT_BARRIER ? a : b, *other = waits == a ? b : a;
  if (other->state == DONE)
    return wr_fail(WEIR_EDEVICE, "kernel %s: item %d waits at %s:%d, but item %d has returned", now.kernel->name, waits->number,
                   waits->file, waits->line, other->number);
  return wr_fail(WEIR_EDEVICE, "kernel %s: item %d waits at %s:%d, but item %d at %s:%d", now.kernel->name, waits->number,
                 waits->file, waits->line, other->number, other->file, other->line);
}

/* SHARED arrays of all kernels lie in one section, see the dialect. */
extern char __start_wr_shared[] __attribute__((weak)), __stop_wr_shared[] __attribute__((weak));

static weir_status run_group(emu *e) {
  const int n = now.kernel->items;
  if (__start_wr_shared) memset(__start_wr_shared, 0xff, (size_t)(__stop_wr_shared - __start_wr_shared));
  TSAN(__tsan_release(&now.begins);)
  do { /* from barrier to barrier */
    put_in_order(e, now.order, n);
    for (int i = 0; i < n; i++) to_fiber(&now.fibers[now.order[i]]);
    for (int i = 1; i < n; i++) {
      const fiber *a = &now.fibers[0], *b = &now.fibers[i];
      if (a->state != b->state || (a->state == AT_BARRIER && (a->file != b->file || a->line != b->line))) return diverged(a, b);
    }
  } while (now.fibers[0].state == AT_BARRIER);
  TSAN(__tsan_acquire(&now.ends);)
  return WEIR_OK;
}

static weir_status run_kernel(emu *e, const wr_dev_kernel *k, void **args, const int64_t groups[3]) {
  int64_t total = 1;
  for (int d = 0; d < 3; d++) total *= now.groups[d] = groups[d];
  now.kernel = k;
  now.args = args;
  while (now.n_fibers < k->items) make_fiber(now.n_fibers++);
  const int64_t turn = e->order > 1 && total ? (int64_t)(next_random(e) % (uint64_t)total) : 0;
  for (int64_t i = 0; i < total; i++) {
    const int64_t g = e->order == 1 ? total - 1 - i : (i + turn) % total;
    now.group[0] = g % groups[0];
    now.group[1] = g / groups[0] % groups[1];
    now.group[2] = g / groups[0] / groups[1];
    WR_TRY(run_group(e));
  }
  return WEIR_OK;
}

static weir_status run_step(wr_device *d, const wr_step *step) {
  wr_launch launch;
  wr_dev_call block;
  wr_dev_regs regs;
  void *args[3 + WR_MAX_ARGS] = {&block, &regs, step->call.scratch};
  WR_TRY(wr_launch_make(step, &launch));
  wr_launch_block(step, &launch, &block);
  memcpy(&regs, step->call.regs, sizeof regs);
  for (int i = 0; i < WR_MAX_ARGS; i++) args[3 + i] = step->call.args[i].data;
  for (int i = 0; i < launch.n_kernels; i++) {
    WR_TRY(run_kernel(d->priv, launch.kernels[i].kernel, args, launch.kernels[i].groups));
    d->launches++;
  }
  return WEIR_OK;
}

/* Those of a run that failed stand in the middle of a kernel. */
static void end_fibers(void) {
  now.over = true;
  for (int i = 0; i < now.n_fibers; i++) {
    to_fiber(&now.fibers[i]);
    TSAN(__tsan_destroy_fiber(now.fibers[i].tsan);)
  }
  TSAN(__tsan_acquire(&now.ends);)
  now.over = false;
  now.n_fibers = 0;
  if (!now.stacks) return;
  const size_t bytes = WR_LAUNCH_ITEMS * now.stack_bytes;
  ASAN(__asan_unpoison_memory_region(now.stacks, bytes);)
  wr_pages_free(now.stacks, bytes);
  now.stacks = NULL;
}

static weir_status emu_run(wr_device *d, wr_list *list) {
  weir_status s = WEIR_OK;
  pthread_mutex_lock(&lock);
  TSAN(now.tsan = __tsan_get_current_fiber();)
  now.stack_bytes = STACK_BYTES + (size_t)sysconf(_SC_PAGESIZE);
  if (!now.stacks) now.stacks = wr_pages_alloc(WR_LAUNCH_ITEMS * now.stack_bytes, false);
  if (!now.stacks) s = wr_fail_nomem(WR_LAUNCH_ITEMS * now.stack_bytes, "the stacks of work items");
  for (int i = 0; i < list->n && s == WEIR_OK; i++) {
    const uint64_t before = list->step_ns ? wr_now_ns() : 0;
    s = run_step(d, &list->steps[i]);
    if (list->step_ns) list->step_ns[i] = wr_now_ns() - before;
  }
  if (s != WEIR_OK) end_fibers();
  pthread_mutex_unlock(&lock);
  return s;
}

/* ------------------------------------------------------------------------------------------- the device: the host's memory */

static weir_status emu_open(const wr_device_options *options, wr_device **out) {
  wr_device *d = NULL;
  emu *e = wr_calloc(1, sizeof *e);
  if (!e) return wr_fail_nomem(sizeof *e, "a device");
  const weir_status s = wr_device_cpu.open(options, &d);
  if (s != WEIR_OK) {
    wr_free(e);
    return s;
  }
  e->order = options ? options->order : 0;
  e->random = UINT64_C(0x9e3779b97f4a7c15) * (uint64_t)(e->order + 1);
  d->api = &wr_device_emu;
  d->isa = 0;
  d->priv = e;
  pthread_mutex_lock(&lock);
  now.devices++;
  pthread_mutex_unlock(&lock);
  *out = d;
  return WEIR_OK;
}

static void emu_close(wr_device *d) {
  pthread_mutex_lock(&lock);
  TSAN(now.tsan = __tsan_get_current_fiber();)
  if (--now.devices == 0) end_fibers();
  pthread_mutex_unlock(&lock);
  wr_free(d->priv);
  wr_device_cpu.close(d);
}

const wr_device_api wr_device_emu = {
    .name = "emu",
    .rows = "dev",
    .doc = "other devices' kernels, emulated on this machine for tests; slow",
    .open = emu_open,
    .close = emu_close,
    .alloc = wr_host_alloc,
    .free = wr_host_free,
    .import = wr_host_import,
    .write = wr_host_write,
    .read = wr_host_read,
    .host = wr_host_addr,
    .run = emu_run,
};
