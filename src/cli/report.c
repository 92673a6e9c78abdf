/* weir report: the page of a training run, made again from the files of its folder. */
#include "cli_i.h"

int wr_cmd_report(const wr_options *o) {
  const weir_status s = weir_report_write(o->args[0]);
  if (s != WEIR_OK) return wr_failed(o, s);
  char path[4200];
  snprintf(path, sizeof path, "%s/report.html", o->args[0]);
  if (o->json) {
    wr_json j;
    wr_json_begin(&j, stdout);
    wr_json_object(&j);
    wr_json_string(&j, "report", path);
    wr_json_end(&j);
    wr_json_done(&j);
  } else {
    printf("%s\n", path);
  }
  return wr_done(o);
}
