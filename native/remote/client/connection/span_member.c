#include "remote/client/connection/span_member.h"

#include "remote/client/api/generated.h"
#include "remote/client/connection/session.h"
#include "remote/client/memory/memory_ranges.h"
#include "remote/wire/tls.h"

static void member_join(unsigned int member, const char *where)
{
    cb_span_member = (uint8_t)member;
    cb_session_where = where;
}

static bool member_owns(uint64_t address)
{
    struct cb_range r;
    return cb_range_of(address, &r);
}

/* Exported by the libraries that spans load, and by no other. */
EXPORT const struct cb_session_port cb_session_port = {sizeof cb_session_port, member_join, cb_tls_look_in,
                                                       member_owns, cb_client_address};
