/*
 * The ledger: the charge of each pointer or handle of this process, so that freeing it returns exactly that.
 *
 * A hash of 256 chained shards, each under a lock held for a few instructions. It is memory of one process: a
 * killed process needs no cleanup of it, and a forked child starts with an empty ledger, since the parent's
 * allocations are not the child's. An address that is not found is passed through uncharged: memory from before
 * the shim started, or imported.
 */
#include "shim/ledger.h"

#include "shim/charge.h"
#include "shim/spin.h"

#include <stdlib.h>

#define SHARDS 256u

struct node {
    struct node *next;
    struct cb_entry entry;
};

static struct shard {
    cb_spin lock;
    struct node *first;
} shards[SHARDS];

static struct shard *shard_of(uint64_t key)
{
    return &shards[(key * 0x9E3779B97F4A7C15ull) >> 56];
}

bool cb_ledger_put(const struct cb_entry *entry)
{
    struct node *node = malloc(sizeof(*node));
    if (node == NULL) return false;
    struct shard *shard = shard_of(entry->key);
    node->entry = *entry;
    cb_lock(&shard->lock);
    node->next = shard->first;
    shard->first = node;
    cb_unlock(&shard->lock);
    return true;
}

bool cb_ledger_take(uint32_t kind, uint64_t key, struct cb_entry *entry)
{
    struct shard *shard = shard_of(key);
    struct node *found = NULL;
    cb_lock(&shard->lock);
    for (struct node **link = &shard->first; *link != NULL; link = &(*link)->next) {
        if ((*link)->entry.key == key && (*link)->entry.kind == kind) {
            found = *link;
            *link = found->next;
            break;
        }
    }
    cb_unlock(&shard->lock);
    if (found == NULL) return false;
    *entry = found->entry;
    free(found);
    return true;
}

bool cb_ledger_get(uint32_t kind, uint64_t key, struct cb_entry *entry)
{
    struct shard *shard = shard_of(key);
    bool found = false;
    cb_lock(&shard->lock);
    for (struct node *node = shard->first; node != NULL && !found; node = node->next) {
        if (node->entry.key == key && node->entry.kind == kind) {
            *entry = node->entry;
            found = true;
        }
    }
    cb_unlock(&shard->lock);
    return found;
}

/* Uncharge and remove the entries of one context, or with context 0 of one device; see cb_ledger_drop_*. */
static void ledger_drop(int device, uint64_t context)
{
    for (unsigned i = 0; i < SHARDS; i++) {
        struct node *dropped = NULL;
        cb_lock(&shards[i].lock);
        for (struct node **link = &shards[i].first; *link != NULL;) {
            struct node *node = *link;
            if (cb_device_of_charge(node->entry.device) == device && node->entry.context == context) {
                *link = node->next;
                node->next = dropped;
                dropped = node;
            } else {
                link = &node->next;
            }
        }
        cb_unlock(&shards[i].lock);
        while (dropped != NULL) {
            struct node *next = dropped->next;
            cb_uncharge(dropped->entry.device, dropped->entry.bytes);
            free(dropped);
            dropped = next;
        }
    }
}

void cb_ledger_drop_context(int device, uint64_t context)
{
    if (context != 0) ledger_drop(device, context);
}

static void ledger_after_fork(void)
{
    /*
     * Another thread may have been changing a chain when the process forked, so the chains are not followed:
     * the parent's nodes are abandoned, in pages that the child never writes.
     */
    for (unsigned i = 0; i < SHARDS; i++) {
        shards[i].first = NULL;
        shards[i].lock.held = 0;
    }
}
CB_AT_FORK(ledger_after_fork);
