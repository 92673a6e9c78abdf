/* The places of the arguments of this family's ops in wr_call.args: the same order as in their tables in scan.c. */
#ifndef WR_OPS_SCAN_I_H
#define WR_OPS_SCAN_I_H

enum { SCAN_A, SCAN_B, SCAN_H0, SCAN_H, SCAN_HT };
enum { SCAN_BWD_DH, SCAN_BWD_DHT, SCAN_BWD_A, SCAN_BWD_B, SCAN_BWD_H0, SCAN_BWD_H, SCAN_BWD_DA, SCAN_BWD_DB, SCAN_BWD_DH0 };

#endif
