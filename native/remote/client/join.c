#include "remote/client/join.h"

#include "remote/client/generated.h"
#include "remote/client/range.h"
#include "remote/client/session.h"

static void join(unsigned int member, const char *where)
{
    cb_span_member = (uint8_t)member;
    cb_session_where = where;
}

static bool owns(uint64_t address)
{
    struct cb_range r;
    return cb_range_of(address, &r);
}

/* Seen from outside in the libraries that spans load, and in no other. */
EXPORT const struct cb_session_port cb_session_port = {sizeof cb_session_port, join, owns, cb_client_address};
