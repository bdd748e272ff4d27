#include "remote/wire/span.h"

uint8_t cb_span_member;
