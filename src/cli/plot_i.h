/* A curve that grows as a run goes on, and its drawing in a terminal. */
#ifndef WR_CLI_PLOT_I_H
#define WR_CLI_PLOT_I_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* At most CURVE_POINTS points: when they are full, neighbours become their mean, and from then on each point is one of twice as many. */
enum { CURVE_POINTS = 1024 };
typedef struct wr_curve {
  double x[CURVE_POINTS], y[CURVE_POINTS]; /* means */
  size_t n, width, in_last;                /* width: values that a full point holds; {0} is an empty curve */
} wr_curve;
void wr_curve_add(wr_curve *c, double x, double y); /* ascending x; a y that is not finite is left out */

/* `line` as a line and `marks` (may be empty) as single marks over it, with axes. Braille when utf8, else plain characters. Nothing for
 * fewer than two points. */
void wr_plot(FILE *to, const wr_curve *line, const wr_curve *marks, const char *line_name, const char *marks_name, int columns, int rows,
             bool utf8);

#endif
