/* The ledger: the charge of each pointer or handle of this process. */
#ifndef CALABASH_SHIM_LEDGER_H
#define CALABASH_SHIM_LEDGER_H

#include "shim/base.h"

enum cb_kind { CB_LINEAR = 1, CB_ARRAY, CB_MIPMAP, CB_GRAPH_EXEC, CB_MODULE, CB_LIBRARY };
struct cb_entry {
    uint64_t key;
    uint64_t bytes;
    uint64_t context; /* the driver frees it together with this context; 0: with no context */
    int32_t device;   /* as in charge.h: below -1 for managed memory */
    uint32_t kind;
};
bool cb_ledger_put(const struct cb_entry *entry); /* return false if there is no host memory */
bool cb_ledger_take(uint32_t kind, uint64_t key, struct cb_entry *entry);
bool cb_ledger_get(uint32_t kind, uint64_t key, struct cb_entry *entry);
/* the context was destroyed: uncharge what was allocated in it */
void cb_ledger_drop_context(int device, uint64_t context);

#endif
