/* emu: what the dialect's work items ask of the emulated device that runs them. Used by device/dialect.h only. */
#ifndef WR_EMU_H
#define WR_EMU_H

/* The sanitizer that this is built with, in gcc's words and in clang's. */
#if defined(__SANITIZE_ADDRESS__)
#define WR_EMU_ASAN 1
#elif defined(__SANITIZE_THREAD__)
#define WR_EMU_TSAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WR_EMU_ASAN 1
#elif __has_feature(thread_sanitizer)
#define WR_EMU_TSAN 1
#endif
#endif

int wr_emu_item(void);
int wr_emu_group(int dim);
int wr_emu_groups(int dim);
/* Returns when all items of the group have come to this line; if they do not, the run fails. */
void wr_emu_barrier(const char *file, int line);

#endif
