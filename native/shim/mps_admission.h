/*
 * Admission to a shared multi-process service: a program announces that it is about to start, so that it gets
 * its own share.
 */
#ifndef CALABASH_SHIM_MPS_ADMISSION_H
#define CALABASH_SHIM_MPS_ADMISSION_H

#include "shim/base.h"

/*
 * Before the driver starts: connect, and wait until this program is admitted. Return the connection, or -1 if
 * there is none.
 */
int cb_mps_admission_enter(void);

/* After the driver has started: report what it shows of the share, and end the admission. */
void cb_mps_admission_leave(int door, CUresult result);

#endif
