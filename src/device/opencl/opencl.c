/* OpenCL devices: the kernels of the dialect by OpenCL 1.2, on any vendor's driver.
 *
 * Memory. On a device that shares the host's (a processor, an integrated GPU) a buffer is host pages that the driver is given to use in place,
 * and what is imported stays where it is; the host owns every writable buffer between runs (it is held mapped), the device during one. Other
 * devices have buffers of their own, whose addresses here are made up, distinct and never followed; copies go through a queue of their own.
 *
 * Lists. What an argument points to is found in a sorted table of buffers, once, by prepare(): a kernel gets the buffer, and the offset in it
 * through its call block, so that a million arguments take no sub-buffers. Call blocks are device memory, written once; each is a sub-buffer,
 * since a kernel takes its block as it is. Each start of a kernel has a kernel object with its arguments set, so that a run only enqueues.
 *
 * Invariants: runs of a device take turns; when run() returns, it is over. The order of a list is the compute queue's. */
#include <pthread.h>

#include "device/launch_i.h"
#include "device/opencl/opencl_i.h"

typedef struct buffer {
  cl_mem mem;
  const char *addr, *base; /* of the buffer; of mem's first byte: an import's is the beginning of its first page */
  size_t bytes, mem_bytes; /* from addr; from base */
  bool imported;
  bool mapped; /* the host's now */
} buffer;

typedef struct start {
  cl_kernel kernel;
  size_t global[3], local[3];
  int step;
  bool first; /* of its kernel on this device: some drivers compile then */
} start;

typedef struct prepared {
  start *starts;
  cl_event *events; /* profiled: [n] */
  int n;
  cl_mem blocks, *block; /* of each step, sub-buffers of `blocks` */
  int n_blocks;
  buffer **used; /* writable ones: what the host gives away for a run */
  int n_used;
  bool ran;
} prepared;

typedef struct state {
  const wr_cl_api *cl;
  wr_cl_device facts;
  cl_context context;
  cl_command_queue compute, profiled, copy;
  wr_cl_programs programs;
  const wr_dev_kernel **known; /* kernels that a list has started */
  size_t n_known, cap_known;
  buffer **buffers; /* sorted by addr */
  size_t n_buffers, cap_buffers;
  uintptr_t next; /* made-up address */
  size_t imported_bytes;
  pthread_mutex_t running;
} state;
static const uintptr_t FIRST_ADDRESS = 4096;
enum { PAGE = 4096, LINE = 64 };

/* --------------------------------------------------------------------------------------------------------- the table */

/* The first that begins above the address. */
static size_t place_of(const state *s, const char *addr) {
  size_t lo = 0, hi = s->n_buffers;
  while (lo < hi) {
    const size_t mid = (lo + hi) / 2;
    if (s->buffers[mid]->addr <= addr)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo;
}

static weir_status remember(state *s, const buffer *b) {
  buffer *kept = wr_malloc(sizeof *kept);
  if (!kept || !wr_grow((void **)&s->buffers, &s->cap_buffers, s->n_buffers + 1, sizeof(buffer *))) {
    wr_free(kept);
    return wr_fail_nomem(sizeof *kept, "a buffer");
  }
  *kept = *b;
  const size_t at = place_of(s, b->addr);
  memmove(s->buffers + at + 1, s->buffers + at, (s->n_buffers - at) * sizeof(buffer *));
  s->buffers[at] = kept;
  s->n_buffers++;
  return WEIR_OK;
}

/* Which buffer holds the address; n_buffers: none. */
static size_t find(const state *s, const void *addr) {
  const size_t i = place_of(s, addr);
  return i && (const char *)addr < s->buffers[i - 1]->addr + s->buffers[i - 1]->bytes ? i - 1 : s->n_buffers;
}

static void *host_of(const buffer *b) { return (void *)(uintptr_t)b->base; }

static void drop(state *s, size_t i) {
  buffer *b = s->buffers[i];
  if (b->mapped) {
    s->cl->clEnqueueUnmapMemObject(s->compute, b->mem, host_of(b), 0, NULL, NULL);
    s->cl->clFinish(s->compute);
  }
  s->cl->clReleaseMemObject(b->mem);
  if (s->facts.shared && !b->imported) wr_pages_free(host_of(b), b->mem_bytes);
  wr_free(b);
  memmove(s->buffers + i, s->buffers + i + 1, (s->n_buffers - i - 1) * sizeof(buffer *));
  s->n_buffers--;
}

/* ------------------------------------------------------------------------------------------------------------ memory */

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static weir_status fits(const wr_device *d, size_t bytes, const char *what) {
  const state *s = d->priv;
  char need[16], most[16], used[16];
  const uint64_t taken = d->used_bytes + s->imported_bytes;
  wr_size_text(need, bytes);
  if (bytes > s->facts.max_alloc_bytes) {
    wr_size_text(most, s->facts.max_alloc_bytes);
    return wr_fail(WEIR_ENOMEM, "%s takes %s, but the OpenCL device '%s' gives at most %s in one piece", what, need,
                   s->facts.name, most);
  }
  if (taken + bytes <= d->memory_bytes) return WEIR_OK;
  wr_size_text(most, d->memory_bytes);
  wr_size_text(used, taken);
  return wr_fail(WEIR_ENOMEM, "%s takes %s, but of the %s of the OpenCL device '%s' %s are in use", what, need, most,
                 s->facts.name, used);
}

static weir_status map(state *s, buffer *b) {
  cl_int error;
  s->cl->clEnqueueMapBuffer(s->compute, b->mem, CL_FALSE, CL_MAP_READ | CL_MAP_WRITE, 0, b->mem_bytes, 0, NULL, NULL, &error);
  if (error != CL_SUCCESS) return wr_cl_fail(error, "clEnqueueMapBuffer", "giving memory back to the host");
  b->mapped = true;
  return WEIR_OK;
}

/* host: NULL, the device's own memory. */
static weir_status create(state *s, cl_mem_flags flags, void *host, buffer *b, const char *what) {
  cl_int error;
  b->mem = s->cl->clCreateBuffer(s->context, flags | (host ? CL_MEM_USE_HOST_PTR : 0), b->mem_bytes, host, &error);
  return error == CL_SUCCESS ? WEIR_OK : wr_cl_fail(error, "clCreateBuffer", what);
}

static weir_status zero(state *s, const buffer *b, const char *what) {
  const uint8_t byte = 0;
  WR_CL_TRY(s->cl->clEnqueueFillBuffer(s->copy, b->mem, &byte, 1, 0, b->mem_bytes, 0, NULL, NULL), what);
  WR_CL_TRY(s->cl->clFinish(s->copy), what);
  return WEIR_OK;
}

static weir_status alloc_shared(state *s, buffer *b, bool huge, const char *what) {
  b->addr = b->base = wr_pages_alloc(b->mem_bytes, huge);
  if (!b->base) return wr_fail_nomem(b->mem_bytes, what);
  WR_TRY(create(s, CL_MEM_READ_WRITE, host_of(b), b, what));
  WR_TRY(map(s, b));
  WR_CL_TRY(s->cl->clFinish(s->compute), what);
  return remember(s, b);
}

static weir_status alloc_own(state *s, buffer *b, const char *what) {
  b->addr = b->base = (const char *)s->next;
  WR_TRY(create(s, CL_MEM_READ_WRITE, NULL, b, what));
  WR_TRY(zero(s, b, what));
  WR_TRY(remember(s, b));
  s->next += round_up(b->mem_bytes, PAGE);
  return WEIR_OK;
}

static weir_status opencl_alloc(wr_device *d, size_t bytes, bool huge, const char *what, wr_buf *out) {
  state *s = d->priv;
  const size_t least = WR_MAX(bytes, (size_t)1);
  buffer b = {.bytes = least, .mem_bytes = round_up(least, LINE)};
  WR_TRY(fits(d, bytes, what));
  const weir_status status = s->facts.shared ? alloc_shared(s, &b, huge, what) : alloc_own(s, &b, what);
  if (status != WEIR_OK) {
    if (b.mem) s->cl->clReleaseMemObject(b.mem);
    if (s->facts.shared) wr_pages_free(host_of(&b), b.base ? b.mem_bytes : 0);
    return status;
  }
  *out = (wr_buf){.device = d, .addr = (void *)(uintptr_t)b.addr, .bytes = bytes};
  d->used_bytes += bytes;
  d->peak_bytes = WR_MAX(d->peak_bytes, d->used_bytes);
  return WEIR_OK;
}

/* Whole lines from the beginning of a page on, which is what drivers can use in place. */
static weir_status opencl_import(wr_device *d, const void *host, size_t bytes, wr_buf *out) {
  state *s = d->priv;
  if (!s->facts.shared)
    return wr_fail(WEIR_EUNSUPPORTED, "the OpenCL device '%s' does not see the host's memory", s->facts.name);
  const char *addr = host, *base = addr - (uintptr_t)host % PAGE;
  const size_t least = WR_MAX(bytes, (size_t)1);
  buffer b = {
      .addr = addr, .base = base, .bytes = least, .mem_bytes = round_up((size_t)(addr - base) + least, LINE), .imported = true};
  WR_TRY(fits(d, bytes, "what is used in place"));
  WR_TRY(create(s, CL_MEM_READ_ONLY, host_of(&b), &b, "memory of the host"));
  const weir_status status = remember(s, &b);
  if (status != WEIR_OK) {
    s->cl->clReleaseMemObject(b.mem);
    return status;
  }
  *out = (wr_buf){.device = d, .addr = (void *)(uintptr_t)host, .bytes = bytes, .imported = true};
  s->imported_bytes += bytes;
  return WEIR_OK;
}

static void opencl_free(wr_device *d, wr_buf *b) {
  state *s = d->priv;
  const size_t i = b->addr ? find(s, b->addr) : s->n_buffers;
  if (i < s->n_buffers) {
    drop(s, i);
    *(b->imported ? &s->imported_bytes : &d->used_bytes) -= b->bytes;
  }
  *b = (wr_buf){0};
}

static weir_status past_end(const wr_buf *b, size_t offset, size_t n, const char *what) {
  if (offset <= b->bytes && n <= b->bytes - offset) return WEIR_OK;
  return wr_fail(WEIR_EUSAGE, "%s of %zu bytes at %zu is past the end of a buffer of %zu bytes", what, n, offset, b->bytes);
}

static weir_status opencl_write(wr_device *d, wr_buf *dst, size_t offset, const void *src, size_t n) {
  state *s = d->priv;
  if (s->facts.shared) return wr_host_write(d, dst, offset, src, n);
  WR_TRY(past_end(dst, offset, n, "write"));
  const size_t i = find(s, dst->addr);
  if (!n) return WEIR_OK;
  WR_CL_TRY(s->cl->clEnqueueWriteBuffer(s->copy, s->buffers[i]->mem, CL_TRUE, offset, n, src, 0, NULL, NULL), "a copy to it");
  return WEIR_OK;
}

static weir_status opencl_read(wr_device *d, const wr_buf *src, size_t offset, void *dst, size_t n) {
  state *s = d->priv;
  if (s->facts.shared) return wr_host_read(d, src, offset, dst, n);
  WR_TRY(past_end(src, offset, n, "read"));
  const size_t i = find(s, src->addr);
  if (!n) return WEIR_OK;
  WR_CL_TRY(s->cl->clEnqueueReadBuffer(s->copy, s->buffers[i]->mem, CL_TRUE, offset, n, dst, 0, NULL, NULL), "a copy from it");
  return WEIR_OK;
}

static void *opencl_host(wr_device *d, const wr_buf *b) {
  const state *s = d->priv;
  return s->facts.shared ? b->addr : NULL;
}

/* ------------------------------------------------------------------------------------------------------------- lists */

static void opencl_release(wr_device *d, wr_list *list) {
  state *s = d->priv;
  prepared *p = list->prepared;
  if (!p) return;
  for (int i = 0; i < p->n; i++)
    if (p->starts[i].kernel) s->cl->clReleaseKernel(p->starts[i].kernel);
  for (int i = 0; i < p->n_blocks; i++)
    if (p->block[i]) s->cl->clReleaseMemObject(p->block[i]);
  if (p->blocks) s->cl->clReleaseMemObject(p->blocks);
  wr_free(p->starts);
  wr_free(p->events);
  wr_free(p->block);
  wr_free(p->used);
  wr_free(p);
  list->prepared = NULL;
}

/* The buffer that an address lies in, and where; the list is noted as one that uses it. NULL: no buffer, offset 0. */
static weir_status locate(state *s, prepared *p, const void *addr, const char *step, cl_mem *mem, int64_t *offset) {
  *mem = NULL;
  *offset = 0;
  if (!addr) return WEIR_OK;
  const size_t at = find(s, addr);
  if (at == s->n_buffers) return wr_fail(WEIR_EFAIL, "%s: an argument is in no buffer of the OpenCL device", step);
  buffer *b = s->buffers[at];
  *mem = b->mem;
  *offset = (const char *)addr - b->base;
  int i = 0;
  while (i < p->n_used && p->used[i] != b) i++;
  if (!b->imported && i == p->n_used) p->used[p->n_used++] = b;
  return WEIR_OK;
}

static weir_status check_kernel(const state *s, cl_kernel k, const wr_dev_kernel *what) {
  size_t most = 0;
  cl_ulong local = 0;
  WR_CL_TRY(s->cl->clGetKernelWorkGroupInfo(k, s->facts.id, CL_KERNEL_WORK_GROUP_SIZE, sizeof most, &most, NULL), what->name);
  WR_CL_TRY(s->cl->clGetKernelWorkGroupInfo(k, s->facts.id, CL_KERNEL_LOCAL_MEM_SIZE, sizeof local, &local, NULL), what->name);
  if ((size_t)what->items <= most && local <= s->facts.local_bytes) return WEIR_OK;
  return wr_fail(WEIR_EDEVICE,
                 "kernel %s has groups of %d work items and %llu bytes, the OpenCL device '%s' takes %zu and %llu", what->name,
                 what->items, (unsigned long long)local, s->facts.name, most, (unsigned long long)s->facts.local_bytes);
}

static weir_status get_to_know(state *s, const wr_dev_kernel *kernel, bool *is_new) {
  size_t i = 0;
  while (i < s->n_known && s->known[i] != kernel) i++;
  *is_new = i == s->n_known;
  if (!*is_new) return WEIR_OK;
  if (!wr_grow((void **)(uintptr_t)&s->known, &s->cap_known, s->n_known + 1, sizeof *s->known))
    return wr_fail_nomem(s->n_known * sizeof *s->known, "a list of kernels");
  s->known[s->n_known++] = kernel;
  return WEIR_OK;
}

/* Call block, registers, scratch, then the first n_args arguments. */
static weir_status make_start(state *s, const wr_launch *l, int k, const cl_mem *args, start *out) {
  const wr_dev_kernel *kernel = l->kernels[k].kernel;
  cl_program program;
  cl_int error;
  WR_TRY(wr_cl_program(&s->programs, kernel->source, &program));
  out->kernel = s->cl->clCreateKernel(program, kernel->name, &error);
  if (error != CL_SUCCESS) return wr_cl_fail(error, "clCreateKernel", kernel->name);
  WR_TRY(check_kernel(s, out->kernel, kernel));
  WR_TRY(get_to_know(s, kernel, &out->first));
  for (int i = 0; i < 3 + kernel->n_args; i++)
    WR_CL_TRY(s->cl->clSetKernelArg(out->kernel, (cl_uint)i, sizeof(cl_mem), args[i] ? &args[i] : NULL), kernel->name);
  for (int i = 0; i < 3; i++) {
    out->local[i] = i ? 1 : (size_t)kernel->items;
    out->global[i] = (size_t)l->kernels[k].groups[i] * out->local[i];
  }
  return WEIR_OK;
}

static weir_status sub_buffer(state *s, prepared *p, int step, size_t pitch) {
  cl_int error;
  const cl_buffer_region region = {(size_t)step * pitch, sizeof(wr_dev_call)};
  p->block[step] = s->cl->clCreateSubBuffer(p->blocks, CL_MEM_READ_ONLY, CL_BUFFER_CREATE_TYPE_REGION, &region, &error);
  return error == CL_SUCCESS ? WEIR_OK : wr_cl_fail(error, "clCreateSubBuffer", "a call's numbers");
}

static weir_status prepare_step(state *s, prepared *p, const wr_step *step, int i, size_t pitch, wr_dev_call *block) {
  wr_launch l;
  cl_mem args[3 + WR_MAX_ARGS] = {NULL};
  int64_t offset;
  WR_TRY(wr_launch_make(step, &l));
  wr_launch_block(step, &l, block);
  WR_TRY(sub_buffer(s, p, i, pitch));
  args[0] = p->block[i];
  WR_TRY(locate(s, p, step->call.regs, step->name, &args[1], &offset));
  if (offset) return wr_fail(WEIR_EFAIL, "%s: its registers do not begin a buffer", step->name);
  WR_TRY(locate(s, p, step->call.scratch, step->name, &args[2], &block->scratch_offset));
  for (int a = 0; a < WR_MAX_ARGS; a++)
    WR_TRY(locate(s, p, step->call.args[a].data, step->name, &args[3 + a], &block->arg[a].offset));
  for (int k = 0; k < l.n_kernels; k++) {
    start *to = &p->starts[p->n++];
    to->step = i;
    WR_TRY(make_start(s, &l, k, args, to));
  }
  return WEIR_OK;
}

static weir_status prepare_all(state *s, wr_list *list, prepared *p) {
  const size_t pitch = round_up(sizeof(wr_dev_call), s->facts.align_bytes), n = (size_t)list->n;
  cl_int error;
  p->starts = wr_calloc(n * WR_LAUNCH_KERNELS, sizeof *p->starts);
  p->block = wr_calloc(n, sizeof(cl_mem));
  p->used = wr_calloc(s->n_buffers, sizeof(buffer *));
  char *blocks = wr_calloc(n, pitch);
  weir_status status = WEIR_OK;
  if (!p->starts || !p->block || !p->used || !blocks) status = wr_fail_nomem(n * pitch, "a list of calls");
  p->n_blocks = p->block ? list->n : 0;
  if (status == WEIR_OK) {
    p->blocks = s->cl->clCreateBuffer(s->context, CL_MEM_READ_ONLY, n * pitch, NULL, &error);
    if (error != CL_SUCCESS) status = wr_cl_fail(error, "clCreateBuffer", "a list of calls");
  }
  for (int i = 0; i < list->n && status == WEIR_OK; i++)
    status = prepare_step(s, p, &list->steps[i], i, pitch, (wr_dev_call *)(void *)(blocks + (size_t)i * pitch));
  if (status == WEIR_OK) {
    error = s->cl->clEnqueueWriteBuffer(s->copy, p->blocks, CL_TRUE, 0, n * pitch, blocks, 0, NULL, NULL);
    if (error != CL_SUCCESS) status = wr_cl_fail(error, "clEnqueueWriteBuffer", "a list of calls");
  }
  if (status == WEIR_OK && list->step_ns && !(p->events = wr_calloc((size_t)WR_MAX(p->n, 1), sizeof(cl_event))))
    status = wr_fail_nomem((size_t)p->n * sizeof(cl_event), "a list of calls");
  wr_free(blocks);
  return status;
}

static weir_status opencl_prepare(wr_device *d, wr_list *list) {
  if (!list->n) return WEIR_OK;
  list->prepared = wr_calloc(1, sizeof(prepared));
  if (!list->prepared) return wr_fail_nomem(sizeof(prepared), "a list of calls");
  const weir_status status = prepare_all(d->priv, list, list->prepared);
  wr_cl_programs_told(&((state *)d->priv)->programs);
  if (status != WEIR_OK) opencl_release(d, list);
  return status;
}

static weir_status enqueue(wr_device *d, prepared *p, cl_command_queue queue) {
  state *s = d->priv;
  for (int i = 0; i < p->n; i++) {
    const start *at = &p->starts[i];
    WR_CL_TRY(s->cl->clEnqueueNDRangeKernel(queue, at->kernel, 3, NULL, at->global, at->local, 0, NULL,
                                            p->events ? &p->events[i] : NULL),
              "a kernel");
    d->launches++;
    if (!at->first || p->ran) continue;
    WR_TRY(wr_cl_programs_tell(&s->programs, (double)i / p->n));
    WR_CL_TRY(s->cl->clFinish(queue), "a kernel's first run");
  }
  p->ran = true;
  return WEIR_OK;
}

/* All that was enqueued has ended well. */
static weir_status finish(state *s, cl_command_queue queue) {
  cl_event last = NULL;
  cl_int ended = CL_COMPLETE;
  const cl_int marked = s->cl->clEnqueueMarkerWithWaitList(queue, 0, NULL, &last);
  cl_int error = s->cl->clFinish(queue);
  if (marked != CL_SUCCESS) return wr_cl_fail(marked, "clEnqueueMarkerWithWaitList", "a run");
  if (error == CL_SUCCESS) error = s->cl->clGetEventInfo(last, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof ended, &ended, NULL);
  s->cl->clReleaseEvent(last);
  if (error == CL_SUCCESS && ended < 0) error = ended;
  return error == CL_SUCCESS ? WEIR_OK : wr_cl_fail(error, "clFinish", "a run");
}

static weir_status give_to_device(state *s, prepared *p, cl_command_queue queue) {
  for (int i = 0; i < p->n_used; i++) {
    buffer *b = p->used[i];
    if (!b->mapped) continue;
    b->mapped = false;
    WR_CL_TRY(s->cl->clEnqueueUnmapMemObject(queue, b->mem, host_of(b), 0, NULL, NULL), "giving memory to it");
  }
  return WEIR_OK;
}

/* What was enqueued is over when this returns, whatever it returns. */
static weir_status give_to_host(state *s, prepared *p) {
  weir_status status = WEIR_OK;
  for (int i = 0; i < p->n_used && s->facts.shared && status == WEIR_OK; i++)
    if (!p->used[i]->mapped) status = map(s, p->used[i]);
  if (status == WEIR_OK) return finish(s, s->compute);
  s->cl->clFinish(s->compute);
  return status;
}

static weir_status read_times(state *s, wr_list *list) {
  prepared *p = list->prepared;
  weir_status status = WEIR_OK;
  memset(list->step_ns, 0, (size_t)list->n * sizeof *list->step_ns);
  for (int i = 0; i < p->n; i++) {
    cl_ulong begin = 0, end = 0;
    if (!p->events[i]) continue;
    const cl_int error = s->cl->clGetEventProfilingInfo(p->events[i], CL_PROFILING_COMMAND_START, sizeof begin, &begin, NULL);
    if (error != CL_SUCCESS && status == WEIR_OK) status = wr_cl_fail(error, "clGetEventProfilingInfo", "a kernel's time");
    s->cl->clGetEventProfilingInfo(p->events[i], CL_PROFILING_COMMAND_END, sizeof end, &end, NULL);
    list->step_ns[p->starts[i].step] += end - begin;
    s->cl->clReleaseEvent(p->events[i]);
    p->events[i] = NULL;
  }
  return status;
}

static weir_status run_locked(wr_device *d, wr_list *list) {
  state *s = d->priv;
  prepared *p = list->prepared;
  const cl_command_queue queue = p->events ? s->profiled : s->compute;
  weir_status status = give_to_device(s, p, queue);
  if (status == WEIR_OK) status = enqueue(d, p, queue);
  if (status != WEIR_OK || p->events) { /* the host takes memory back by the compute queue, when this one is done */
    const cl_int error = s->cl->clFinish(queue);
    if (status == WEIR_OK && error != CL_SUCCESS) status = wr_cl_fail(error, "clFinish", "a run");
  }
  char sentence[512];
  snprintf(sentence, sizeof sentence, "%s", weir_last_error());
  const weir_status back = give_to_host(s, p), times = p->events ? read_times(s, list) : WEIR_OK;
  if (status != WEIR_OK) return wr_fail(status, "%s", sentence);
  return back == WEIR_OK ? times : back;
}

static weir_status opencl_run(wr_device *d, wr_list *list) {
  state *s = d->priv;
  if (!list->n) return WEIR_OK;
  pthread_mutex_lock(&s->running);
  const weir_status status = run_locked(d, list);
  wr_cl_programs_told(&s->programs);
  pthread_mutex_unlock(&s->running);
  return status;
}

/* ----------------------------------------------------------------------------------------------------- open and close */

static void free_state(state *s) {
  const wr_cl_api *cl = s->cl;
  const cl_command_queue queues[] = {s->compute, s->profiled, s->copy};
  while (s->n_buffers) drop(s, s->n_buffers - 1);
  wr_free(s->buffers);
  wr_free(s->known);
  wr_cl_programs_free(&s->programs);
  for (size_t i = 0; i < WR_ARRAY_LEN(queues); i++)
    if (queues[i]) cl->clReleaseCommandQueue(queues[i]);
  if (s->context) cl->clReleaseContext(s->context);
  pthread_mutex_destroy(&s->running);
  wr_free(s);
}

/* The usable device of that number; -1: the first. */
static weir_status choose(int index, wr_cl_device *out) {
  wr_cl_device *list;
  int n;
  WR_TRY(wr_cl_devices(&list, &n));
  if (!n) {
    wr_free(list);
    return WEIR_EDEVICE; /* and the sentence */
  }
  int i = index;
  for (i = WR_MAX(i, 0); index < 0 && i < n - 1 && list[i].refusal[0];) i++;
  weir_status s = WEIR_OK;
  if (i >= n)
    s = wr_fail(WEIR_EUSAGE, "there is no device opencl:%d, the last is opencl:%d (weir devices lists them)", i, n - 1);
  else if (list[i].refusal[0])
    s = wr_fail(WEIR_EDEVICE, "the device opencl:%d ('%s') cannot be used: %s", i, list[i].name, list[i].refusal);
  else
    *out = list[i];
  wr_free(list);
  return s;
}

static weir_status open_state(state *s, const wr_device_options *o) {
  cl_int error;
  s->cl = wr_cl();
  if (!s->cl) return WEIR_EDEVICE; /* and the sentence */
  WR_TRY(choose(o ? o->index - 1 : -1, &s->facts));
  const cl_context_properties properties[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)s->facts.platform, 0};
  s->context = s->cl->clCreateContext(properties, 1, &s->facts.id, NULL, NULL, &error);
  if (error != CL_SUCCESS) return wr_cl_fail(error, "clCreateContext", s->facts.name);
  cl_command_queue *const queues[] = {&s->compute, &s->profiled, &s->copy};
  for (size_t i = 0; i < WR_ARRAY_LEN(queues); i++) {
    *queues[i] =
        s->cl->clCreateCommandQueue(s->context, s->facts.id, queues[i] == &s->profiled ? CL_QUEUE_PROFILING_ENABLE : 0, &error);
    if (error != CL_SUCCESS) return wr_cl_fail(error, "clCreateCommandQueue", s->facts.name);
  }
  s->next = FIRST_ADDRESS;
  s->programs = (wr_cl_programs){.cl = s->cl, .device = &s->facts, .context = s->context};
  if (o) s->programs.progress = o->progress, s->programs.user = o->user;
  s->programs.built = wr_calloc((size_t)WR_MAX(wr_dev_sources_n, 1), sizeof(cl_program));
  return s->programs.built ? WEIR_OK : wr_fail_nomem((size_t)wr_dev_sources_n * sizeof(cl_program), "the programs of a device");
}

static weir_status opencl_open(const wr_device_options *options, wr_device **out) {
  wr_device *d = NULL;
  state *s = wr_calloc(1, sizeof *s);
  if (!s) return wr_fail_nomem(sizeof *s, "a device");
  pthread_mutex_init(&s->running, NULL);
  weir_status status = open_state(s, options);
  if (status == WEIR_OK) status = wr_device_cpu.open(options, &d); /* the host's threads */
  if (status != WEIR_OK) {
    free_state(s);
    return status;
  }
  d->api = &wr_device_opencl;
  d->isa = 0;
  d->own_memory = !s->facts.shared;
  d->memory_bytes = s->facts.memory_bytes;
  d->title = s->facts.name;
  d->priv = s;
  *out = d;
  return WEIR_OK;
}

static void opencl_close(wr_device *d) {
  free_state(d->priv);
  wr_device_cpu.close(d);
}

const wr_device_api wr_device_opencl = {
    .name = "opencl",
    .rows = "dev",
    .doc = "GPUs and processors by their OpenCL driver",
    .list = wr_cl_list,
    .open = opencl_open,
    .close = opencl_close,
    .alloc = opencl_alloc,
    .free = opencl_free,
    .import = opencl_import,
    .write = opencl_write,
    .read = opencl_read,
    .host = opencl_host,
    .prepare = opencl_prepare,
    .release = opencl_release,
    .run = opencl_run,
};
