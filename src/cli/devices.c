/* weir devices: what this machine has, and what weir can use of it. */
#include "cli_i.h"

int wr_cmd_devices(const wr_options *o) {
  wr_json j;
  weir_context *ctx;
  const weir_status opened = wr_open_context(o, &ctx);
  if (opened != WEIR_OK) return wr_failed(o, opened);
  if (o->json) {
    wr_json_begin(&j, stdout);
    wr_json_object(&j);
    wr_json_key(&j, "devices");
    wr_json_array(&j);
  }
  for (int i = 0; i < weir_device_count(); i++) {
    weir_device_info d;
    const weir_status s = weir_device_at(i, &d);
    if (s != WEIR_OK) {
      weir_context_close(ctx);
      return wr_failed(o, s);
    }
    if (!o->json) {
      printf("%-8s %-4s %s\n", d.name, d.usable ? "yes" : "no", d.text);
      continue;
    }
    wr_json_object(&j);
    wr_json_string(&j, "name", d.name);
    wr_json_flag(&j, "usable", d.usable);
    wr_json_string(&j, "text", d.text);
    wr_json_end(&j);
  }
  if (o->json) {
    wr_json_end(&j);
    wr_json_string(&j, "tune_file", weir_context_tune(ctx));
    wr_json_end(&j);
    wr_json_done(&j);
  } else {
    printf("tune file: %s\n", weir_context_tune(ctx));
    printf("OpenCL, CUDA and HIP devices: this build has no code for them yet\n");
  }
  weir_context_close(ctx);
  return wr_done(o);
}
