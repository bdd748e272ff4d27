/* The door of a shared service: where a program says that it is about to begin, so that it is given its own share. */
#ifndef CALABASH_SHIM_DOOR_H
#define CALABASH_SHIM_DOOR_H

#include "shim/base.h"

/* Before the driver starts: knock, and wait until it is this program's turn. The open door, or -1 when there is none. */
int cb_door_enter(void);

/* The driver has started: say what it shows of the share, and let the next one in. */
void cb_door_leave(int door, CUresult result);

#endif
