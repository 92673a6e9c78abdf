/* What the files of the OpenCL device share: the library found at run time, its devices, and programs. */
#ifndef WR_OPENCL_I_H
#define WR_OPENCL_I_H

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include "device/device.h"

/* ---- the library: library.c. weir is not linked against it: it is opened when an OpenCL device is asked for or listed. */
#define WR_CL_FUNCTIONS(X) \
  X(clGetPlatformIDs) X(clGetPlatformInfo) X(clGetDeviceIDs) X(clGetDeviceInfo) \
  X(clCreateContext) X(clReleaseContext) X(clCreateCommandQueue) X(clReleaseCommandQueue) \
  X(clCreateBuffer) X(clCreateSubBuffer) X(clReleaseMemObject) \
  X(clCreateProgramWithSource) X(clCreateProgramWithBinary) X(clBuildProgram) X(clGetProgramBuildInfo) X(clGetProgramInfo) \
  X(clReleaseProgram) X(clCreateKernel) X(clReleaseKernel) X(clSetKernelArg) X(clGetKernelWorkGroupInfo) \
  X(clEnqueueNDRangeKernel) X(clEnqueueReadBuffer) X(clEnqueueWriteBuffer) X(clEnqueueFillBuffer) X(clEnqueueMapBuffer) \
  X(clEnqueueUnmapMemObject) X(clEnqueueMarkerWithWaitList) X(clFinish) X(clGetEventInfo) X(clGetEventProfilingInfo) \
  X(clReleaseEvent)
typedef struct wr_cl_api {
#define X(name) __typeof__(name) *name;
  WR_CL_FUNCTIONS(X)
#undef X
} wr_cl_api;
const wr_cl_api *wr_cl(void); /* NULL: not to be had, the sentence is left */

/* The sentence for a call's error, "clCreateBuffer: CL_OUT_OF_RESOURCES (what)". ENOMEM for the errors that say so, else EDEVICE. */
weir_status wr_cl_fail(cl_int error, const char *call, const char *what);
/* Evaluates a call that returns its error; on failure returns from the caller. */
#define WR_CL_TRY(call, what) \
  do { \
    const cl_int wr_cl_error_ = (call); \
    if (wr_cl_error_ != CL_SUCCESS) return wr_cl_fail(wr_cl_error_, #call, what); \
  } while (0)

/* One device of one platform, with what weir has to know of it. */
typedef struct wr_cl_device {
  cl_platform_id platform;
  cl_device_id id;
  char name[96], platform_version[96], driver[96];
  char refusal[160];      /* why weir cannot use it; "": it can */
  uint64_t memory_bytes, max_alloc_bytes, local_bytes;
  size_t max_group, align_bytes; /* work items of a group; of sub-buffers */
  bool shared;            /* its memory is the host's */
  bool exact_divide;      /* can be asked for correctly rounded division and square root */
  bool keeps_kernels;     /* its driver keeps what it compiled itself: program.c */
} wr_cl_device;
/* All devices of all platforms, in the order that the loader gives. The caller frees *out. *n 0 and OK: there are none, and the sentence that
 * says why is left as an error's is. */
weir_status wr_cl_devices(wr_cl_device **out, int *n);
/* wr_device_api.list: all devices, drivers that are registered and cannot be loaded, and a sentence where there is none. */
weir_status wr_cl_list(wr_device_tell_fn *tell, void *user);

/* ---- programs: program.c */
typedef struct wr_cl_programs {
  const wr_cl_api *cl;
  const wr_cl_device *device;
  cl_context context;
  cl_program *built;      /* [wr_dev_sources_n]; NULL: not yet */
  int (*progress)(void *user, const char *what, double done); /* while one is compiled; not 0: ESTOPPED. May be NULL */
  void *user;
  bool told;
} wr_cl_programs;
/* The program of a *_dev.c file (wr_dev_kernel.source), built now if it was not before, from the cache folder where a good binary is. */
weir_status wr_cl_program(wr_cl_programs *p, const char *source, cl_program *out);
weir_status wr_cl_programs_tell(wr_cl_programs *p, double done); /* ESTOPPED: the caller has had enough */
void wr_cl_programs_told(wr_cl_programs *p); /* progress ends, if it was begun */
void wr_cl_programs_free(wr_cl_programs *p);

#endif
