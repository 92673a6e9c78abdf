/* The OpenCL library as it is found when weir runs (libOpenCL.so.1, or what WEIR_OPENCL names), the names of its errors, and the devices that it has.
 *
 * The loader (libOpenCL.so.1) passes over drivers that it cannot load without a word; so that a user learns of them, the files by which
 * drivers are registered (*.icd, each a line with a library's name) are read here too. References: OpenCL 1.2 specification, 4.1, 4.2;
 * cl_khr_icd. */
#include "device/opencl/opencl_i.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

enum { PLATFORMS_MAX = 16, DEVICES_MAX = 64, ICD_FILE_BYTES = 4096 };
static const int NO_PLATFORM = -1001; /* CL_PLATFORM_NOT_FOUND_KHR */

/* ---------------------------------------------------------------------------------------------------------- library */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static wr_cl_api functions;
static char missing[256]; /* why there is none */

static void load(void) {
  const char *chosen = getenv("WEIR_OPENCL"), *name = chosen && *chosen ? chosen : "libOpenCL.so.1";
  void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(missing, sizeof missing, "no OpenCL here: %s (Debian: ocl-icd-libopencl1 and a driver)", dlerror());
    return;
  }
  const char *absent = NULL;
#define X(name) \
  if (!(functions.name = (__typeof__(name) *)dlsym(library, #name))) absent = #name;
  WR_CL_FUNCTIONS(X)
#undef X
  if (!absent) return; /* it stays open: drivers do not like to be unloaded */
  snprintf(missing, sizeof missing, "%.100s is too old: it has no %s, which OpenCL 1.2 has", name, absent);
  dlclose(library);
}

const wr_cl_api *wr_cl(void) {
  pthread_once(&once, load);
  if (!missing[0]) return &functions;
  wr_fail(WEIR_EDEVICE, "%s", missing);
  return NULL;
}

/* ----------------------------------------------------------------------------------------------------------- errors */

static const struct {
  cl_int error;
  const char *name;
} errors[] = {
#define E(name) \
  { name, #name }
    E(CL_DEVICE_NOT_FOUND),
    E(CL_DEVICE_NOT_AVAILABLE),
    E(CL_COMPILER_NOT_AVAILABLE),
    E(CL_MEM_OBJECT_ALLOCATION_FAILURE),
    E(CL_OUT_OF_RESOURCES),
    E(CL_OUT_OF_HOST_MEMORY),
    E(CL_PROFILING_INFO_NOT_AVAILABLE),
    E(CL_MEM_COPY_OVERLAP),
    E(CL_BUILD_PROGRAM_FAILURE),
    E(CL_MAP_FAILURE),
    E(CL_MISALIGNED_SUB_BUFFER_OFFSET),
    E(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST),
    E(CL_LINKER_NOT_AVAILABLE),
    E(CL_INVALID_VALUE),
    E(CL_INVALID_DEVICE_TYPE),
    E(CL_INVALID_PLATFORM),
    E(CL_INVALID_DEVICE),
    E(CL_INVALID_CONTEXT),
    E(CL_INVALID_QUEUE_PROPERTIES),
    E(CL_INVALID_COMMAND_QUEUE),
    E(CL_INVALID_HOST_PTR),
    E(CL_INVALID_MEM_OBJECT),
    E(CL_INVALID_BINARY),
    E(CL_INVALID_BUILD_OPTIONS),
    E(CL_INVALID_PROGRAM),
    E(CL_INVALID_PROGRAM_EXECUTABLE),
    E(CL_INVALID_KERNEL_NAME),
    E(CL_INVALID_KERNEL_DEFINITION),
    E(CL_INVALID_KERNEL),
    E(CL_INVALID_ARG_INDEX),
    E(CL_INVALID_ARG_VALUE),
    E(CL_INVALID_ARG_SIZE),
    E(CL_INVALID_KERNEL_ARGS),
    E(CL_INVALID_WORK_DIMENSION),
    E(CL_INVALID_WORK_GROUP_SIZE),
    E(CL_INVALID_WORK_ITEM_SIZE),
    E(CL_INVALID_GLOBAL_OFFSET),
    E(CL_INVALID_EVENT_WAIT_LIST),
    E(CL_INVALID_EVENT),
    E(CL_INVALID_OPERATION),
    E(CL_INVALID_BUFFER_SIZE),
    E(CL_INVALID_GLOBAL_WORK_SIZE),
    E(CL_INVALID_PROPERTY),
#undef E
};

weir_status wr_cl_fail(cl_int error, const char *call, const char *what) {
  char name[32];
  const char *known = NULL;
  for (size_t i = 0; i < WR_ARRAY_LEN(errors) && !known; i++)
    if (errors[i].error == error) known = errors[i].name;
  snprintf(name, sizeof name, "error %d", error);
  const bool memory =
      error == CL_MEM_OBJECT_ALLOCATION_FAILURE || error == CL_OUT_OF_RESOURCES || error == CL_OUT_OF_HOST_MEMORY;
  const char *function = strstr(call, "cl"); /* "cl->clFinish(queue)" or the name alone */
  if (function && strncmp(function, "cl->", 4) == 0) function += 4;
  return wr_fail(memory ? WEIR_ENOMEM : WEIR_EDEVICE, "the OpenCL device: %s: %.*s says %s", what,
                 (int)strcspn(function ? function : call, "("), function ? function : call, known ? known : name);
}

/* ----------------------------------------------------------------------------------------------------- what there is */

static void platform_text(const wr_cl_api *cl, cl_platform_id p, cl_platform_info what, char *out, size_t cap) {
  char text[1024] = "";
  if (cl->clGetPlatformInfo(p, what, sizeof text - 1, text, NULL) != CL_SUCCESS) text[0] = 0;
  snprintf(out, cap, "%s", wr_escape(text, strlen(text)));
}

static void device_text(const wr_cl_api *cl, cl_device_id d, cl_device_info what, char *out, size_t cap) {
  char text[1024] = "";
  if (cl->clGetDeviceInfo(d, what, sizeof text - 1, text, NULL) != CL_SUCCESS) text[0] = 0;
  snprintf(out, cap, "%s", wr_escape(text, strlen(text)));
}

/* Numbers of a device are of several widths; 0 where it does not say. */
static uint64_t device_number(const wr_cl_api *cl, cl_device_id d, cl_device_info what) {
  uint64_t wide = 0;
  size_t bytes = 0;
  if (cl->clGetDeviceInfo(d, what, sizeof wide, &wide, &bytes) != CL_SUCCESS) return 0;
  if (bytes != sizeof(uint32_t)) return wide;
  uint32_t narrow;
  memcpy(&narrow, &wide, sizeof narrow);
  return narrow;
}

/* At least 1.2 of "OpenCL 1.2 anything"? */
static bool recent(const char *version) {
  int major = 0, minor = 0;
  return sscanf(version, "OpenCL %d.%d", &major, &minor) == 2 && (major > 1 || minor >= 2);
}

static void refuse(const wr_cl_api *cl, wr_cl_device *d) {
  enum { GROUP = 256, LOCAL = 16 << 10 }; /* what kernels of the dialect may use anywhere */
  char version[96];
  device_text(cl, d->id, CL_DEVICE_VERSION, version, sizeof version);
  if (!recent(d->platform_version) || !recent(version))
    snprintf(d->refusal, sizeof d->refusal, "it speaks '%.60s', weir needs OpenCL 1.2",
             recent(d->platform_version) ? version : d->platform_version);
  else if (!device_number(cl, d->id, CL_DEVICE_AVAILABLE))
    snprintf(d->refusal, sizeof d->refusal, "its driver says that it is not available");
  else if (!device_number(cl, d->id, CL_DEVICE_COMPILER_AVAILABLE))
    snprintf(d->refusal, sizeof d->refusal, "its driver has no compiler");
  else if (!device_number(cl, d->id, CL_DEVICE_ENDIAN_LITTLE) || device_number(cl, d->id, CL_DEVICE_ADDRESS_BITS) != 64)
    snprintf(d->refusal, sizeof d->refusal, "its addresses are not of 64 bits, little-endian");
  else if (d->max_group < GROUP || d->local_bytes < LOCAL)
    snprintf(d->refusal, sizeof d->refusal, "groups of %zu work items with %llu bytes: weir needs %d and %d", d->max_group,
             (unsigned long long)d->local_bytes, GROUP, LOCAL);
}

static void describe(const wr_cl_api *cl, cl_platform_id platform, cl_device_id id, wr_cl_device *d) {
  *d = (wr_cl_device){.platform = platform, .id = id};
  const uint64_t type = device_number(cl, id, CL_DEVICE_TYPE), math = device_number(cl, id, CL_DEVICE_SINGLE_FP_CONFIG);
  platform_text(cl, platform, CL_PLATFORM_VERSION, d->platform_version, sizeof d->platform_version);
  device_text(cl, id, CL_DEVICE_NAME, d->name, sizeof d->name);
  device_text(cl, id, CL_DRIVER_VERSION, d->driver, sizeof d->driver);
  d->memory_bytes = device_number(cl, id, CL_DEVICE_GLOBAL_MEM_SIZE);
  d->max_alloc_bytes = device_number(cl, id, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
  d->local_bytes = device_number(cl, id, CL_DEVICE_LOCAL_MEM_SIZE);
  d->max_group = (size_t)device_number(cl, id, CL_DEVICE_MAX_WORK_GROUP_SIZE);
  d->align_bytes = (size_t)WR_MAX(device_number(cl, id, CL_DEVICE_MEM_BASE_ADDR_ALIGN) / 8, 64);
  d->shared = (type & CL_DEVICE_TYPE_CPU) || device_number(cl, id, CL_DEVICE_HOST_UNIFIED_MEMORY);
  char platform_name[96];
  platform_text(cl, platform, CL_PLATFORM_NAME, platform_name, sizeof platform_name);
  d->keeps_kernels = strcmp(platform_name, "Portable Computing Language") == 0;
  d->exact_divide = (math & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT) != 0;
  refuse(cl, d);
}

weir_status wr_cl_devices(wr_cl_device **out, int *n) {
  cl_platform_id platforms[PLATFORMS_MAX];
  cl_device_id ids[DEVICES_MAX];
  cl_uint n_platforms = 0, n_ids;
  *n = 0;
  *out = NULL;
  const wr_cl_api *cl = wr_cl();
  if (!cl) return WEIR_OK;
  const cl_int e = cl->clGetPlatformIDs(PLATFORMS_MAX, platforms, &n_platforms);
  if (e == NO_PLATFORM || (e == CL_SUCCESS && !n_platforms)) {
    wr_fail(WEIR_EDEVICE, "OpenCL is here, but no driver for it (no file in /etc/OpenCL/vendors that can be used)");
    return WEIR_OK;
  }
  if (e != CL_SUCCESS) return wr_cl_fail(e, "clGetPlatformIDs", "its platforms");
  wr_cl_device *list = wr_calloc(DEVICES_MAX, sizeof *list);
  if (!list) return wr_fail_nomem(DEVICES_MAX * sizeof *list, "a list of devices");
  for (cl_uint p = 0; p < WR_MIN(n_platforms, (cl_uint)PLATFORMS_MAX); p++) {
    if (cl->clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, DEVICES_MAX, ids, &n_ids) != CL_SUCCESS) continue;
    for (cl_uint i = 0; i < WR_MIN(n_ids, (cl_uint)DEVICES_MAX) && *n < DEVICES_MAX; i++)
      describe(cl, platforms[p], ids[i], &list[(*n)++]);
  }
  if (!*n) wr_fail(WEIR_EDEVICE, "OpenCL is here, but none of its drivers has a device");
  *out = list;
  return WEIR_OK;
}

/* ---------------------------------------------------------------------------------------------------- broken drivers */

/* Where the loader looks: OCL_ICD_VENDORS, a folder or one file; else OPENCL_VENDOR_PATH, else the system's folder. */
static const char *vendors(void) {
  const char *ocl_icd = getenv("OCL_ICD_VENDORS"), *khronos = getenv("OPENCL_VENDOR_PATH");
  return ocl_icd && *ocl_icd ? ocl_icd : khronos && *khronos ? khronos : "/etc/OpenCL/vendors";
}

/* false: it can be loaded. */
static bool broken(const char *path, char *text, size_t cap) {
  char *line = NULL;
  size_t bytes;
  if (wr_file_read(path, ICD_FILE_BYTES, &line, &bytes) != WEIR_OK) {
    snprintf(text, cap, "a driver cannot be used: %s", weir_last_error());
    return true;
  }
  line[strcspn(line, "\r\n")] = 0;
  void *driver = *line ? dlopen(line, RTLD_LAZY | RTLD_LOCAL) : NULL;
  if (driver)
    dlclose(driver);
  else
    snprintf(text, cap, "a driver cannot be used: %s names '%s': %s", path, wr_escape(line, strlen(line)),
             *line ? dlerror() : "no library");
  wr_free(line);
  return !driver;
}

static void tell_broken(wr_device_tell_fn *tell, void *user) {
  const char *folder = vendors();
  char path[1024], text[512];
  DIR *d = opendir(folder);
  if (!d && wr_ends_with(folder, ".icd") && broken(folder, text, sizeof text))
    tell(user, &(wr_device_facts){.name = "opencl", .text = text});
  for (struct dirent *e; d && (e = readdir(d));) {
    snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
    if (wr_ends_with(e->d_name, ".icd") && broken(path, text, sizeof text))
      tell(user, &(wr_device_facts){.name = "opencl", .text = text});
  }
  if (d) closedir(d);
}

weir_status wr_cl_list(wr_device_tell_fn *tell, void *user) {
  wr_cl_device *list;
  int n;
  const weir_status s = wr_cl_devices(&list, &n);
  if (s != WEIR_OK || !n) tell(user, &(wr_device_facts){.name = "opencl", .text = weir_last_error()});
  for (int i = 0; i < n; i++) {
    char name[24], text[512];
    const wr_cl_device *d = &list[i];
    snprintf(name, sizeof name, "opencl:%d", i);
    snprintf(text, sizeof text, "%s, %s%s%s", d->name, d->shared ? "in the host's memory" : "with memory of its own",
             d->refusal[0] ? "; cannot be used: " : "", d->refusal);
    tell(user, &(wr_device_facts){.name = name,
                                  .text = text,
                                  .driver = d->driver,
                                  .platform = d->platform_version,
                                  .memory_bytes = d->memory_bytes,
                                  .usable = !d->refusal[0]});
  }
  wr_free(list);
  if (wr_cl()) tell_broken(tell, user);
  return WEIR_OK; /* what is wrong was told */
}
