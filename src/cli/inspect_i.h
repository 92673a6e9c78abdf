/* The command `weir inspect`. argv[0] is its name; returns the exit code. */
#ifndef WR_CLI_INSPECT_I_H
#define WR_CLI_INSPECT_I_H

int wr_cmd_inspect(int argc, char **argv);

#endif
