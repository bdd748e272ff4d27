#ifndef CALABASH_REMOTE_DRIVER_H
#define CALABASH_REMOTE_DRIVER_H

#include <stdbool.h>

bool cb_driver_open(void); /* return false, after a message, if there is no driver */

#endif
