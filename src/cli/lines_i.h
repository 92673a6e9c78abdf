/* Lines that a person types, or that a program writes: with editing and history where both ends are a terminal and libedit is there,
 * plainly elsewhere. One user at a time: the library's state is the process's. */
#ifndef WR_CLI_LINES_I_H
#define WR_CLI_LINES_I_H

#include <stdbool.h>
#include <stddef.h>

typedef enum wr_line { WR_LINE_READ, WR_LINE_INTERRUPTED, WR_LINE_END, WR_LINE_FAILED } wr_line;

/* plain: no editing whatever there is. history: a file, or NULL. interrupted: asked whenever a signal came; true ends the line. */
void wr_lines_open(bool plain, const char *history, bool (*interrupted)(void));
/* One line without its newline, of any bytes. *text: free(). The prompt is shown where somebody types. */
wr_line wr_lines_read(const char *prompt, char **text, size_t *n);
void wr_lines_remember(const char *text); /* in the history */
void wr_lines_close(void);                /* writes the history */
bool wr_lines_edited(void);               /* is there editing? */

#endif
