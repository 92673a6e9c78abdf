/* Programs of the OpenCL device: a *_dev.c file each, compiled by the driver, kept as the driver's binary in <cache>/opencl.
 *
 * A binary's name is a hash of all that it depends on: source text, options, device, driver, platform. Its file is a head with a checksum and
 * the binary; what is damaged, or what the driver does not take, is compiled anew and replaced. What cannot be kept is no failure.
 *
 * PoCL compiles a kernel when it is first started and keeps it in a cache of its own; asked for a binary, it would first compile every kernel
 * of the program, minutes for ours. It is not asked. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>

#include "device/opencl/opencl_i.h"

static const char MAGIC[8] = "WEIROCL1";
static const size_t BINARY_MAX = 256u << 20;

typedef struct binary_head {
  char magic[8];
  uint64_t key, bytes, hash; /* of what follows */
} binary_head;

static const char *options_of(const wr_cl_device *d) {
  return d->exact_divide ? "-cl-std=CL1.2 -cl-fp32-correctly-rounded-divide-sqrt" : "-cl-std=CL1.2";
}

static uint64_t key_of(const wr_cl_device *d, const char *text) {
  const char *parts[] = {text, options_of(d), d->name, d->driver, d->platform_version};
  uint64_t h = 1;
  for (size_t i = 0; i < WR_ARRAY_LEN(parts); i++) h = wr_hash64(parts[i], strlen(parts[i]) + 1, h);
  return h;
}

static weir_status cache_path(uint64_t key, char *folder, char *path, size_t cap) {
  static const char sub[] = "/opencl";
  WR_TRY(wr_cache_dir(folder, cap - sizeof sub));
  strcat(folder, sub);
  const int n = snprintf(path, cap, "%s/%016" PRIx64 ".bin", folder, key);
  return n > 0 && (size_t)n < cap ? WEIR_OK : wr_fail(WEIR_EFAIL, "the name of the cache folder is too long");
}

/* The head of the compiler's log, as one sentence's end. */
static weir_status build_failed(wr_cl_programs *p, cl_program program, const char *source, cl_int error) {
  enum { LOG_MAX = 1 << 20, SHOWN = 800 };
  size_t bytes = 0;
  if (error != CL_BUILD_PROGRAM_FAILURE) return wr_cl_fail(error, "clBuildProgram", source);
  p->cl->clGetProgramBuildInfo(program, p->device->id, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes);
  char *log = bytes && bytes <= LOG_MAX ? wr_calloc(bytes + 1, 1) : NULL;
  if (log) p->cl->clGetProgramBuildInfo(program, p->device->id, CL_PROGRAM_BUILD_LOG, bytes, log, NULL);
  wr_str shown = {0};
  if (log) wr_str_escape(&shown, log, WR_MIN(strlen(log), (size_t)SHOWN));
  const weir_status s = wr_fail(WEIR_EDEVICE, "the driver of '%s' (%s) cannot compile %s: %s", p->device->name,
                                p->device->driver, source, shown.len && !shown.oom ? shown.ptr : "it says no more");
  wr_str_free(&shown);
  wr_free(log);
  return s;
}

/* NULL: no binary that can be used. */
static cl_program from_cache(wr_cl_programs *p, const char *path, uint64_t key) {
  char *file = NULL;
  size_t bytes = 0;
  binary_head h;
  cl_program program = NULL;
  if (wr_file_read(path, BINARY_MAX, &file, &bytes) != WEIR_OK) return NULL;
  if (bytes >= sizeof h) memcpy(&h, file, sizeof h);
  if (bytes < sizeof h || memcmp(h.magic, MAGIC, sizeof MAGIC) != 0 || h.key != key || h.bytes != bytes - sizeof h ||
      h.hash != wr_hash64(file + sizeof h, bytes - sizeof h, 1)) {
    wr_log(WEIR_LOG_WARN, "%s is damaged: its kernels are compiled anew", path);
  } else {
    const size_t n = bytes - sizeof h;
    const unsigned char *binary = (const unsigned char *)file + sizeof h;
    cl_int error, taken;
    program = p->cl->clCreateProgramWithBinary(p->context, 1, &p->device->id, &n, &binary, &taken, &error);
    if (error == CL_SUCCESS) error = p->cl->clBuildProgram(program, 1, &p->device->id, options_of(p->device), NULL, NULL);
    if (error != CL_SUCCESS && program) {
      p->cl->clReleaseProgram(program);
      program = NULL;
    }
    if (!program) wr_log(WEIR_LOG_WARN, "%s: the driver does not take it back: its kernels are compiled anew", path);
  }
  wr_free(file);
  return program;
}

static weir_status write_binary(const char *folder, const char *path, wr_str *file, uint64_t key) {
  binary_head h = {.key = key, .bytes = file->len - sizeof h};
  memcpy(h.magic, MAGIC, sizeof MAGIC);
  h.hash = wr_hash64(file->ptr + sizeof h, file->len - sizeof h, 1);
  memcpy(file->ptr, &h, sizeof h);
  WR_TRY(wr_mkdir_p(folder));
  return wr_file_write_atomic(path, file->ptr, file->len);
}

static void keep(wr_cl_programs *p, cl_program program, const char *folder, const char *path, uint64_t key) {
  size_t bytes = 0;
  if (p->cl->clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof bytes, &bytes, NULL) != CL_SUCCESS || !bytes ||
      bytes > BINARY_MAX - sizeof(binary_head))
    return;
  wr_str file = {.ptr = wr_calloc(1, sizeof(binary_head) + bytes), .len = sizeof(binary_head) + bytes};
  unsigned char *at = file.ptr ? (unsigned char *)file.ptr + sizeof(binary_head) : NULL;
  if (at && p->cl->clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof at, &at, NULL) == CL_SUCCESS &&
      write_binary(folder, path, &file, key) != WEIR_OK)
    wr_log(WEIR_LOG_WARN, "compiled kernels are not kept: %s", weir_last_error());
  wr_free(file.ptr);
}

weir_status wr_cl_programs_tell(wr_cl_programs *p, double done) {
  char what[160];
  if (!p->progress) return WEIR_OK;
  p->told = true;
  snprintf(what, sizeof what, "compiling kernels for %s", p->device->name);
  return p->progress(p->user, what, done) ? wr_fail(WEIR_ESTOPPED, "stopped while kernels were compiled") : WEIR_OK;
}

void wr_cl_programs_told(wr_cl_programs *p) {
  if (p->told) (void)p->progress(p->user, "compiling kernels", 1);
  p->told = false;
}

static weir_status compile(wr_cl_programs *p, const wr_dev_source *source, cl_program *out) {
  cl_int error;
  const char *text = source->text;
  WR_TRY(wr_cl_programs_tell(p, (double)(source - wr_dev_sources) / wr_dev_sources_n));
  cl_program program = p->cl->clCreateProgramWithSource(p->context, 1, &text, NULL, &error);
  if (error != CL_SUCCESS) return wr_cl_fail(error, "clCreateProgramWithSource", source->path);
  error = p->cl->clBuildProgram(program, 1, &p->device->id, options_of(p->device), NULL, NULL);
  if (error != CL_SUCCESS) {
    const weir_status s = build_failed(p, program, source->path, error);
    p->cl->clReleaseProgram(program);
    return s;
  }
  *out = program;
  return WEIR_OK;
}

static weir_status make(wr_cl_programs *p, const wr_dev_source *source, cl_program *out) {
  char folder[PATH_MAX], path[PATH_MAX];
  const uint64_t key = key_of(p->device, source->text);
  const bool kept = !p->device->keeps_kernels && cache_path(key, folder, path, sizeof path) == WEIR_OK;
  if (kept && (*out = from_cache(p, path, key))) return WEIR_OK;
  WR_TRY(compile(p, source, out));
  if (kept) keep(p, *out, folder, path, key);
  return WEIR_OK;
}

weir_status wr_cl_program(wr_cl_programs *p, const char *source, cl_program *out) {
  int i = 0;
  while (i < wr_dev_sources_n && strcmp(wr_dev_sources[i].path, source) != 0) i++;
  if (i == wr_dev_sources_n) return wr_fail(WEIR_EFAIL, "the text of %s is not in the library", source);
  if (!p->built[i]) WR_TRY(make(p, &wr_dev_sources[i], &p->built[i]));
  *out = p->built[i];
  return WEIR_OK;
}

void wr_cl_programs_free(wr_cl_programs *p) {
  for (int i = 0; p->built && i < wr_dev_sources_n; i++)
    if (p->built[i]) p->cl->clReleaseProgram(p->built[i]);
  wr_free(p->built);
}
