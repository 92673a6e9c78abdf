/* Fuzz target: the bytes are a run's configuration. What is taken from them is written as config.json and read again: the same settings. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "train/train.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static weir_status resolve(const void *bytes, size_t n, wr_settings *out) {
  static const weir_train_data source = {.path = "text.txt"};
  char path[64];
  bool resumes;
  const int fd = memfd_create("config", MFD_CLOEXEC);
  if (fd < 0 || write(fd, bytes, n) != (ssize_t)n) abort();
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  const weir_train_options o = {.config = path, .data = &source, .n_data = 1};
  const weir_status s = wr_settings_resolve(&o, NULL, out, &resumes);
  close(fd);
  return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  wr_settings a, b;
  wr_str one = {0}, two = {0};
  if (resolve(data, size, &a) != WEIR_OK) return 0;
  wr_settings_json(&a, &one);
  if (one.oom || resolve(one.ptr, one.len, &b) != WEIR_OK) abort();
  wr_settings_json(&b, &two);
  if (two.oom || one.len != two.len || memcmp(one.ptr, two.ptr, one.len) != 0) abort();
  wr_str_free(&one);
  wr_str_free(&two);
  wr_settings_free(&a);
  wr_settings_free(&b);
  return 0;
}
