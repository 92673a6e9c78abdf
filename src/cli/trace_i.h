/* A trace of some steps in the format of Chrome's about:tracing and of Perfetto: JSON, one lane a stage. */
#ifndef WR_CLI_TRACE_I_H
#define WR_CLI_TRACE_I_H

#include "cli_i.h"

typedef struct wr_trace { FILE *f; wr_json json; int left, err; uint64_t first_ns; } wr_trace;
int wr_trace_open(const wr_options *o, wr_trace *t);                     /* no --trace: nothing to do. Else 0, or an exit code: a sentence was printed */
void wr_trace_step(wr_trace *t, const weir_trainer *trainer, int64_t step); /* the first call is passed over: it warms up; then three are kept */
int wr_trace_close(const wr_options *o, wr_trace *t);                    /* 0, or an exit code: it could not be written, a sentence was printed */

#endif
