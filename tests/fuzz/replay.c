/* replay.c: a fuzz target as a plain test, where no fuzzer is installed. Runs LLVMFuzzerTestOneInput on every file of the folders
 * and on every file named by the arguments. A crash ends the program; the last line printed names the file. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int runs, failures;

static void run_file(const char *path) {
  FILE *f = fopen(path, "rb");
  struct stat st;
  uint8_t *data = NULL;
  if (f && fstat(fileno(f), &st) == 0) data = malloc((size_t)st.st_size + 1);
  if (!data || fread(data, 1, (size_t)st.st_size, f) != (size_t)st.st_size) {
    printf("FAIL %s: cannot be read\n", path);
    failures++;
  } else {
    printf("%s\n", path);
    fflush(stdout);
    /* a copy of exactly its size, so that a read past the end is seen by the address sanitizer */
    uint8_t *exact = realloc(data, st.st_size ? (size_t)st.st_size : 1);
    if (exact) data = exact;
    LLVMFuzzerTestOneInput(data, (size_t)st.st_size);
    runs++;
  }
  free(data);
  if (f) fclose(f);
}

int main(int argc, char **argv) {
  const char *slash = strrchr(argv[0], '/');
  for (int i = 1; i < argc; i++) {
    struct stat st;
    DIR *dir = stat(argv[i], &st) == 0 && S_ISDIR(st.st_mode) ? opendir(argv[i]) : NULL;
    if (!dir) {
      if (stat(argv[i], &st) == 0) run_file(argv[i]);
      continue;
    }
    for (struct dirent *e; (e = readdir(dir));) {
      char path[4096];
      if (e->d_name[0] == '.') continue;
      if (snprintf(path, sizeof path, "%s/%s", argv[i], e->d_name) < (int)sizeof path) run_file(path);
    }
    closedir(dir);
  }
  printf("fuzz-%s: %d passed, %d failed, 0 skipped\n", slash ? slash + 1 : argv[0], runs, failures);
  return failures ? 1 : 0;
}
