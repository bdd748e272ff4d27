#include "remote/client/api/object_table.h"

#define CHUNK 1024u

struct entry {
    void *data;
    uint32_t next_free; /* number + 1 */
    bool alive;
    struct cb_progress progress; /* of an event or a stream */
};

static struct table {
    struct entry *chunk[CB_OBJECTS_MAX / CHUNK];
    uint32_t used, free;
} ours[CB_KIND_COUNT], theirs[CB_KIND_COUNT];
static pthread_mutex_t objects_lock = PTHREAD_MUTEX_INITIALIZER;

static struct table *object_table_of(enum cb_kind kind, uint32_t *number)
{
    struct table *t = *number < CB_WORKER_NUMBER ? &ours[kind] : &theirs[kind];
    *number &= CB_WORKER_NUMBER - 1;
    return t;
}

static struct entry *object_entry(enum cb_kind kind, uint32_t number)
{
    struct table *t = object_table_of(kind, &number);
    if (number >= __atomic_load_n(&t->used, __ATOMIC_ACQUIRE)) return NULL;
    struct entry *chunk = __atomic_load_n(&t->chunk[number / CHUNK], __ATOMIC_ACQUIRE);
    return chunk ? &chunk[number % CHUNK] : NULL;
}

static struct entry *entry_take(struct table *t, uint32_t *number)
{
    if (t->free) {
        *number = t->free - 1;
        struct entry *e = &t->chunk[*number / CHUNK][*number % CHUNK];
        t->free = e->next_free;
        return e;
    }
    if (t->used == CB_OBJECTS_MAX) return NULL;
    struct entry **chunk = &t->chunk[t->used / CHUNK];
    if (!*chunk) *chunk = calloc(CHUNK, sizeof **chunk);
    if (!*chunk) return NULL;
    *number = t->used;
    struct entry *e = &(*chunk)[t->used % CHUNK];
    __atomic_store_n(&t->used, t->used + 1, __ATOMIC_RELEASE);
    return e;
}

uint64_t cb_object_new(enum cb_kind kind)
{
    uint32_t number = 0;
    pthread_mutex_lock(&objects_lock);
    struct entry *e = entry_take(&ours[kind], &number);
    if (e) *e = (struct entry){.alive = true};
    pthread_mutex_unlock(&objects_lock);
    return e ? cb_object_id(kind, number) : 0;
}

void cb_drop_object(uint64_t id)
{
    enum cb_kind kind = (enum cb_kind)(id >> 40 & 0xff);
    if (kind >= CB_KIND_COUNT || !cb_object_is(id, kind)) return;
    pthread_mutex_lock(&objects_lock);
    struct entry *e = object_entry(kind, cb_object_number(id));
    if (e && e->alive && e->progress.seq) cb_progress_set(&e->progress, 0, CB_PROGRESS_UNKNOWN);
    if (e && e->alive && cb_object_number(id) >= CB_WORKER_NUMBER)
        *e = (struct entry){0}; /* the worker may reuse its number */
    else if (e && e->alive) {
        *e = (struct entry){.next_free = ours[kind].free};
        ours[kind].free = cb_object_number(id) + 1;
    }
    pthread_mutex_unlock(&objects_lock);
}

bool cb_object_alive(uint64_t id, enum cb_kind kind)
{
    if (!cb_object_is(id, kind)) return false;
    if (cb_object_number(id) >= CB_WORKER_NUMBER) return true;
    const struct entry *e = object_entry(kind, cb_object_number(id));
    return e && e->alive;
}

bool cb_object_learn(uint64_t id, void *data)
{
    uint32_t number = cb_object_number(id);
    struct table *t = object_table_of((enum cb_kind)(id >> 40 & 0xff), &number);
    if (number >= CB_OBJECTS_MAX) return false;
    pthread_mutex_lock(&objects_lock);
    struct entry *chunk = t->chunk[number / CHUNK];
    if (!chunk) {
        chunk = calloc(CHUNK, sizeof *chunk);
        __atomic_store_n(&t->chunk[number / CHUNK], chunk, __ATOMIC_RELEASE);
    }
    if (chunk) {
        chunk[number % CHUNK] = (struct entry){.data = data, .alive = true};
        if (t->used <= number) __atomic_store_n(&t->used, number + 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&objects_lock);
    return chunk != NULL;
}

void **cb_object_data(uint64_t id, enum cb_kind kind)
{
    if (!cb_object_is(id, kind)) return NULL;
    struct entry *e = object_entry(kind, cb_object_number(id));
    return e && e->alive ? &e->data : NULL;
}

struct cb_progress *cb_object_progress(uint64_t id, enum cb_kind kind)
{
    if (!cb_object_is(id, kind) || cb_object_number(id) >= CB_WORKER_NUMBER) return NULL;
    struct entry *e = object_entry(kind, cb_object_number(id));
    return e && e->alive ? &e->progress : NULL;
}
