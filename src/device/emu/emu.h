/* emu: what the dialect's work items ask of the emulated device that runs them. Used by device/dialect.h only. */
#ifndef WR_EMU_H
#define WR_EMU_H

int wr_emu_item(void);
int wr_emu_group(int dim);
int wr_emu_groups(int dim);
/* Returns when all items of the group have come to this line; if they do not, the run fails. */
void wr_emu_barrier(const char *file, int line);

#endif
