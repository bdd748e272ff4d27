#ifndef CALABASH_REMOTE_DRIVER_H
#define CALABASH_REMOTE_DRIVER_H

#include <stdbool.h>

bool cb_driver_open(void); /* false: there is none, and that was said */

#endif
