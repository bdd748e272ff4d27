/* What each pointer or handle was charged. */
#ifndef CALABASH_SHIM_LEDGER_H
#define CALABASH_SHIM_LEDGER_H

#include "shim/base.h"

enum cb_kind { CB_LINEAR = 1, CB_ARRAY, CB_MIPMAP, CB_GRAPH_EXEC, CB_MODULE, CB_LIBRARY };
struct cb_entry {
    uint64_t key;
    uint64_t bytes;
    uint64_t context; /* the driver frees it together with this context; 0: with none */
    int32_t device;   /* as charge.h tells it: below -1 for managed memory */
    uint32_t kind;
};
bool cb_ledger_put(const struct cb_entry *entry); /* false: no host memory */
bool cb_ledger_take(uint32_t kind, uint64_t key, struct cb_entry *entry);
bool cb_ledger_get(uint32_t kind, uint64_t key, struct cb_entry *entry);
void cb_ledger_drop_context(int device,
                            uint64_t context); /* the context is gone: uncharges what lived in it */

#endif
