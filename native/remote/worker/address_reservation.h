/* Address range of a session of a span: all further memory of the driver lies in it. */
#ifndef CALABASH_REMOTE_WORKER_ADDRESS_RESERVATION_H
#define CALABASH_REMOTE_WORKER_ADDRESS_RESERVATION_H

#include <stdint.h>

/* Reserve all other addresses, as that member of a span. */
void cb_span_reserve_addresses(uint8_t member);

#endif
