/* Fuzz target: the bytes are a run's metrics.jsonl, samples.jsonl and config.json at once. Whatever they are, the page has one script, ours, and
 * no control characters. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char folder[] = "/tmp/weir-fuzz-report-XXXXXX";

static const char *at(const char *name) {
  static char path[128];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  return path;
}

static void remove_folder(void) {
  static const char *const names[] = {"metrics.jsonl", "samples.jsonl", "config.json", "report.html"};
  for (size_t i = 0; i < WR_ARRAY_LEN(names); i++) unlink(at(names[i]));
  rmdir(folder);
}

static void put(const char *name, const uint8_t *data, size_t size) {
  FILE *f = fopen(at(name), "wb");
  if (!f || fwrite(data, 1, size, f) != size || fclose(f)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static bool made;
  if (!made) {
    if (!mkdtemp(folder) || atexit(remove_folder)) abort();
    made = true;
  }
  put("metrics.jsonl", data, size);
  put("samples.jsonl", data, size);
  put("config.json", data, size);
  char *page = NULL;
  size_t n = 0;
  if (weir_report_write(folder) != WEIR_OK || wr_file_read(at("report.html"), 1u << 30, &page, &n) != WEIR_OK) abort();
  int scripts = 0;
  for (const char *p = page; (p = strcasestr(p, "<script")); p++) scripts++;
  for (size_t i = 0; i < n; i++)
    if ((unsigned char)page[i] < ' ' && page[i] != '\n' && page[i] != '\t') abort();
  if (scripts != 1 || wr_utf8_valid(page, n) != n) abort();
  wr_free(page);
  return 0;
}
