/* weir convert: a model, run or checkpoint as one GGUF file. */
#include <math.h>

#include "cli_i.h"

static int show_progress(void *user, double done) {
  wr_progress(user, "converting", fmin(done, 0.999));
  return wr_interrupted();
}

int wr_cmd_convert(const wr_options *o) {
  if (!o->out) return wr_usage(o, "--out is missing: the .gguf file to write");
  const weir_convert_options options = {
      .type = o->type, .requantize = o->requantize, .force = o->force, .threads = (int)o->threads, .progress = show_progress, .user = (void *)(uintptr_t)o};
  weir_convert_result r;
  wr_on_signal(wr_stop_by_progress, NULL);
  const weir_status s = weir_convert(o->args[0], o->out, &options, &r);
  wr_on_signal(NULL, NULL);
  wr_progress(o, "", 1);
  if (s != WEIR_OK) return wr_failed(o, s);
  if (o->json) {
    wr_json j;
    wr_json_begin(&j, stdout);
    wr_json_object(&j);
    wr_json_string(&j, "out", o->out);
    wr_json_count(&j, "tensors", r.tensors);
    wr_json_count(&j, "parameters", r.parameters);
    wr_json_count(&j, "bytes", r.bytes);
    wr_json_number(&j, "seconds", r.seconds);
    wr_json_end(&j);
    wr_json_done(&j);
  } else {
    char size[16];
    wr_size(size, (double)r.bytes);
    printf("%s: %llu parameters in %zu tensors, %s\n", o->out, (unsigned long long)r.parameters, r.tensors, size);
  }
  return wr_done(o);
}
