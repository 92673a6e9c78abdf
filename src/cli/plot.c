/* A loss curve for a terminal: see plot_i.h. A braille character is a cell of 2 × 4 dots, so a plot of 60 × 12 cells has 120 × 48 points. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plot_i.h"

enum { MAX_COLUMNS = 160, MAX_ROWS = 24, LABEL = 9 };

void wr_curve_add(wr_curve *c, double x, double y) {
  if (!isfinite(y)) return;
  if (c->width == 0) c->width = c->in_last = 1;
  if (c->in_last == c->width) {
    if (c->n == CURVE_POINTS) {
      for (size_t i = 0; i < CURVE_POINTS / 2; i++) {
        c->x[i] = (c->x[2 * i] + c->x[2 * i + 1]) / 2;
        c->y[i] = (c->y[2 * i] + c->y[2 * i + 1]) / 2;
      }
      c->n /= 2;
      c->width *= 2;
    }
    c->in_last = 0;
    c->n++;
    c->x[c->n - 1] = c->y[c->n - 1] = 0;
  }
  const double share = 1 / (double)++c->in_last;
  c->x[c->n - 1] += (x - c->x[c->n - 1]) * share;
  c->y[c->n - 1] += (y - c->y[c->n - 1]) * share;
}

typedef struct canvas {
  int columns, rows, wide, high; /* cells; dots a cell */
  unsigned char dots[MAX_ROWS][MAX_COLUMNS], marked[MAX_ROWS][MAX_COLUMNS];
  double x0, x1, y0, y1;
} canvas;

static int dot_x(const canvas *p, double x) { return (int)lround((x - p->x0) / (p->x1 - p->x0) * (p->columns * p->wide - 1)); }
static int dot_y(const canvas *p, double y) { return (int)lround((p->y1 - y) / (p->y1 - p->y0) * (p->rows * p->high - 1)); }

static void dot(canvas *p, int x, int y) {
  static const unsigned char bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}; /* U+2800 … U+28FF */
  if (x < 0 || y < 0 || x >= p->columns * p->wide || y >= p->rows * p->high) return;
  p->dots[y / p->high][x / p->wide] |= bits[y % p->high][x % p->wide];
}

static void stroke(canvas *p, int x0, int y0, int x1, int y1) {
  const int n = abs(x1 - x0) > abs(y1 - y0) ? abs(x1 - x0) : abs(y1 - y0);
  for (int i = 0; i <= n; i++) dot(p, x0 + (x1 - x0) * i / (n ? n : 1), y0 + (y1 - y0) * i / (n ? n : 1));
}

static void widen(canvas *p, const wr_curve *c) {
  for (size_t i = 0; i < c->n; i++) {
    p->x0 = fmin(p->x0, c->x[i]);
    p->x1 = fmax(p->x1, c->x[i]);
    p->y0 = fmin(p->y0, c->y[i]);
    p->y1 = fmax(p->y1, c->y[i]);
  }
}

static void print_row(FILE *to, const canvas *p, int r, bool utf8) {
  const double y = p->y1 - (p->y1 - p->y0) * (r + 0.5) / p->rows;
  if (r % 3 == 0 || r == p->rows - 1)
    fprintf(to, "%*.*f %s", LABEL - 2, fabs(p->y1) < 0.1 ? 4 : 2, y, utf8 ? "┤" : "|");
  else
    fprintf(to, "%*s %s", LABEL - 2, "", utf8 ? "│" : "|");
  int last = p->columns - 1;
  while (last >= 0 && !p->dots[r][last] && !p->marked[r][last]) last--;
  for (int x = 0; x <= last; x++) {
    if (p->marked[r][x])
      fputs(utf8 ? "◆" : "o", to);
    else if (!p->dots[r][x])
      fputc(' ', to);
    else if (utf8)
      fprintf(to, "\xe2%c%c", 0xa0 + (p->dots[r][x] >> 6), 0x80 + (p->dots[r][x] & 63));
    else
      fputc('*', to);
  }
  fputc('\n', to);
}

static void print_steps(FILE *to, const canvas *p, bool utf8) {
  fprintf(to, "%*s %s", LABEL - 2, "", utf8 ? "└" : "+");
  for (int x = 0; x < p->columns; x++) fputs(utf8 ? "─" : "-", to);
  char left[24], middle[24], right[32];
  snprintf(left, sizeof left, "%.0f", p->x0);
  snprintf(middle, sizeof middle, "%.0f", (p->x0 + p->x1) / 2);
  snprintf(right, sizeof right, "step %.0f", p->x1);
  const int half = p->columns / 2 - (int)strlen(middle) / 2 - (int)strlen(left);
  const int rest = p->columns - (int)(strlen(left) + strlen(middle) + strlen(right)) - half;
  if (half > 0 && rest > 0) fprintf(to, "\n%*s%s%*s%s%*s%s", LABEL, "", left, half, "", middle, rest, "", right);
  fputc('\n', to);
}

void wr_plot(FILE *to, const wr_curve *line, const wr_curve *marks, const char *line_name, const char *marks_name, int columns,
             int rows, bool utf8) {
  if (line->n < 2) return;
  canvas p = {.columns = columns - LABEL - 1,
              .rows = rows,
              .wide = utf8 ? 2 : 1,
              .high = utf8 ? 4 : 1,
              .x0 = INFINITY,
              .x1 = -INFINITY,
              .y0 = INFINITY,
              .y1 = -INFINITY};
  if (p.columns > MAX_COLUMNS) p.columns = MAX_COLUMNS;
  if (p.columns < 10) p.columns = 10;
  if (p.rows > MAX_ROWS) p.rows = MAX_ROWS;
  widen(&p, line);
  widen(&p, marks);
  if (p.y1 - p.y0 < 1e-9) p.y1 = p.y0 + 1;
  if (p.x1 - p.x0 < 1e-9) return;
  int last_x = -1, last_y = -1;
  for (size_t i = 0; i < line->n;) { /* the mean of what falls into a column of dots: a line, not a cloud */
    const int x = dot_x(&p, line->x[i]);
    double sum = 0;
    size_t k = 0;
    for (; i < line->n && dot_x(&p, line->x[i]) == x; i++, k++) sum += line->y[i];
    const int y = dot_y(&p, sum / (double)k);
    stroke(&p, last_x < 0 ? x : last_x, last_x < 0 ? y : last_y, x, y);
    last_x = x;
    last_y = y;
  }
  for (size_t i = 0; i < marks->n; i++) p.marked[dot_y(&p, marks->y[i]) / p.high][dot_x(&p, marks->x[i]) / p.wide] = 1;
  fprintf(to, "%*s %s", LABEL - 2, "", line_name);
  if (marks->n) fprintf(to, "  %s %s", utf8 ? "◆" : "o", marks_name);
  fputc('\n', to);
  for (int r = 0; r < p.rows; r++) print_row(to, &p, r, utf8);
  print_steps(to, &p, utf8);
}
