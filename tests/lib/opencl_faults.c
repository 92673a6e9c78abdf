/* The OpenCL library with faults in it, for tests/opencl.py: linked with the real one, which has all functions but these. WEIR_OPENCL names it.
 *   OPENCL_FAULT="clCreateBuffer 3 -4"   that function's third call, and each after it, gives error -4
 *   OPENCL_VERSION="OpenCL 1.1 old", OPENCL_NAME=Other     what platforms say that they speak, and are
 *   OPENCL_OWN_MEMORY=1                  devices are GPUs whose memory is not the host's
 *   OPENCL_COUNT=FILE                    at the end, how many programs were built from source, and kernels enqueued */
#define _GNU_SOURCE
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int sources, kernels;

static cl_int fault(const char *name, int *calls) {
  char function[64];
  int nth, error;
  const char *text = getenv("OPENCL_FAULT");
  ++*calls;
  if (!text || sscanf(text, "%63s %d %d", function, &nth, &error) != 3 || strcmp(function, name) != 0 || *calls < nth) return CL_SUCCESS;
  return error;
}

__attribute__((destructor)) static void tell(void) {
  FILE *f = getenv("OPENCL_COUNT") ? fopen(getenv("OPENCL_COUNT"), "w") : NULL;
  if (!f) return;
  fprintf(f, "%d %d\n", sources, kernels);
  fclose(f);
}

#define REAL(name) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))
/* A function that returns its error, and one that gives an object and leaves its error at `error`. */
#define PLAIN(name, params, ...)                \
  cl_int name params {                          \
    static int calls;                           \
    const cl_int e = fault(#name, &calls);      \
    return e ? e : REAL(name)(__VA_ARGS__);     \
  }
#define OBJECT(type, name, params, ...)         \
  type name params {                            \
    static int calls;                           \
    const cl_int e = fault(#name, &calls);      \
    if (!e) return REAL(name)(__VA_ARGS__);     \
    if (error) *error = e;                      \
    return NULL;                                \
  }

PLAIN(clGetPlatformIDs, (cl_uint n, cl_platform_id *p, cl_uint *got), n, p, got)
PLAIN(clBuildProgram, (cl_program p, cl_uint n, const cl_device_id *d, const char *o, void (*f)(cl_program, void *), void *u), p, n, d, o, f, u)
PLAIN(clSetKernelArg, (cl_kernel k, cl_uint i, size_t n, const void *v), k, i, n, v)
OBJECT(cl_context, clCreateContext, (const cl_context_properties *p, cl_uint n, const cl_device_id *d,
       void (*f)(const char *, const void *, size_t, void *), void *u, cl_int *error), p, n, d, f, u, error)
OBJECT(cl_command_queue, clCreateCommandQueue, (cl_context c, cl_device_id d, cl_command_queue_properties p, cl_int *error), c, d, p, error)
OBJECT(cl_mem, clCreateBuffer, (cl_context c, cl_mem_flags f, size_t n, void *p, cl_int *error), c, f, n, p, error)
OBJECT(cl_mem, clCreateSubBuffer, (cl_mem m, cl_mem_flags f, cl_buffer_create_type t, const void *p, cl_int *error), m, f, t, p, error)
OBJECT(cl_kernel, clCreateKernel, (cl_program p, const char *n, cl_int *error), p, n, error)
OBJECT(void *, clEnqueueMapBuffer, (cl_command_queue q, cl_mem m, cl_bool b, cl_map_flags f, size_t o, size_t n, cl_uint w, const cl_event *l,
       cl_event *ev, cl_int *error), q, m, b, f, o, n, w, l, ev, error)

cl_program clCreateProgramWithSource(cl_context c, cl_uint n, const char **text, const size_t *bytes, cl_int *error) {
  sources++;
  return REAL(clCreateProgramWithSource)(c, n, text, bytes, error);
}

cl_int clFinish(cl_command_queue q) { /* what runs would go on in memory that is given back */
  static int calls;
  const cl_int e = fault("clFinish", &calls), real = REAL(clFinish)(q);
  return e ? e : real;
}

cl_int clEnqueueNDRangeKernel(cl_command_queue q, cl_kernel k, cl_uint n, const size_t *offset, const size_t *global, const size_t *local,
                              cl_uint waits, const cl_event *list, cl_event *out) {
  static int calls;
  const cl_int e = fault("clEnqueueNDRangeKernel", &calls);
  kernels++;
  return e ? e : REAL(clEnqueueNDRangeKernel)(q, k, n, offset, global, local, waits, list, out);
}

cl_int clGetPlatformInfo(cl_platform_id p, cl_platform_info what, size_t cap, void *out, size_t *bytes) {
  const char *said = what == CL_PLATFORM_VERSION ? getenv("OPENCL_VERSION") : what == CL_PLATFORM_NAME ? getenv("OPENCL_NAME") : NULL;
  if (!said || !out) return REAL(clGetPlatformInfo)(p, what, cap, out, bytes);
  snprintf(out, cap, "%s", said);
  return CL_SUCCESS;
}

cl_int clGetDeviceInfo(cl_device_id d, cl_device_info what, size_t cap, void *out, size_t *bytes) {
  const cl_int e = REAL(clGetDeviceInfo)(d, what, cap, out, bytes);
  if (e || !getenv("OPENCL_OWN_MEMORY") || !out) return e;
  if (what == CL_DEVICE_TYPE) *(cl_device_type *)out = CL_DEVICE_TYPE_GPU;
  if (what == CL_DEVICE_HOST_UNIFIED_MEMORY) *(cl_bool *)out = CL_FALSE;
  return e;
}
