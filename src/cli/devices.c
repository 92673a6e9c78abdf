/* weir devices: what this machine has, and what weir can use of it. */
#include "cli_i.h"

typedef struct show {
  const wr_options *o;
  wr_json j;
} show;

static void show_device(void *user, const weir_device_info *d) {
  show *s = user;
  if (s->o->json) {
    wr_json_object(&s->j);
    wr_json_string(&s->j, "name", d->name);
    wr_json_flag(&s->j, "usable", d->usable);
    wr_json_string(&s->j, "text", d->text);
    if (d->driver) wr_json_string(&s->j, "driver", d->driver);
    if (d->platform) wr_json_string(&s->j, "platform", d->platform);
    if (d->memory_bytes) wr_json_count(&s->j, "memory_bytes", d->memory_bytes);
    wr_json_end(&s->j);
    return;
  }
  printf("%-9s %-4s %s", d->name, d->usable ? "yes" : "no", d->text);
  if (d->memory_bytes) {
    char size[16];
    wr_size(size, (double)d->memory_bytes);
    printf("; %s", size);
  }
  if (d->driver) printf("; driver %s", d->driver);
  if (d->platform) printf("; %s", d->platform);
  putchar('\n');
}

int wr_cmd_devices(const wr_options *o) {
  show s = {.o = o};
  weir_context *ctx;
  const weir_status opened = wr_open_context(o, &ctx);
  if (opened != WEIR_OK) return wr_failed(o, opened);
  if (o->json) {
    wr_json_begin(&s.j, stdout);
    wr_json_object(&s.j);
    wr_json_key(&s.j, "devices");
    wr_json_array(&s.j);
  }
  const weir_status listed = weir_device_list(show_device, &s);
  if (o->json) {
    wr_json_end(&s.j);
    wr_json_string(&s.j, "tune_file", weir_context_tune(ctx));
    wr_json_end(&s.j);
    wr_json_done(&s.j);
  } else {
    printf("tune file: %s\n", weir_context_tune(ctx));
    printf("CUDA and HIP devices: this build has no code for them yet\n");
  }
  weir_context_close(ctx);
  return listed == WEIR_OK ? wr_done(o) : wr_failed(o, listed);
}
