/*
 * The arena of handles: equal cells in one reservation that is never unmapped, so that any value a program
 * passes can be checked, and a freed handle is recognised as such until its cell is used again (last, not
 * first).
 */
#include "sim/cuda/process/object.h"

#include <sys/mman.h>

#define CELL        512u
#define ARENA_BYTES (1ull << 31)
#define CELLS       (ARENA_BYTES / CELL)

static unsigned char *arena;
static uint64_t next_cell;
static void *free_head, *free_tail; /* linked through the second word of a free cell's payload */
static uint64_t free_count;
static pthread_mutex_t arena_lock = PTHREAD_MUTEX_INITIALIZER;

/* Cells are reused only when this many are free, so that a stale handle stays recognisable for a while. */
#define QUARANTINE 256u

static void **cell_link(void *cell)
{
    return (void **)((unsigned char *)cell + 16);
}

void *object_new(enum kind kind, size_t size)
{
    if (size > CELL) abort();
    pthread_mutex_lock(&arena_lock);
    if (!arena) {
        void *p = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                       -1, 0);
        if (p != MAP_FAILED) arena = p;
    }
    struct object *o = NULL;
    if (arena && (free_count > QUARANTINE || next_cell == CELLS) && free_head) {
        o = free_head;
        free_head = *cell_link(o);
        if (!free_head) free_tail = NULL;
        free_count--;
    } else if (arena && next_cell < CELLS) {
        o = (void *)(arena + CELL * next_cell++);
    }
    pthread_mutex_unlock(&arena_lock);
    if (!o) return NULL;
    uint32_t generation = o->generation + 1;
    memset(o, 0, CELL);
    o->generation = generation;
    __atomic_store_n(&o->kind, (uint32_t)kind, __ATOMIC_RELEASE);
    return o;
}

void object_free(void *object)
{
    struct object *o = object;
    __atomic_store_n(&o->kind, (uint32_t)KIND_FREE, __ATOMIC_RELEASE);
    pthread_mutex_lock(&arena_lock);
    *cell_link(o) = NULL;
    if (free_tail)
        *cell_link(free_tail) = o;
    else
        free_head = o;
    free_tail = o;
    free_count++;
    pthread_mutex_unlock(&arena_lock);
}

void *object_get(const void *handle, enum kind kind)
{
    uintptr_t a = (uintptr_t)handle, base = (uintptr_t)arena;
    if (!base || a < base || a >= base + ARENA_BYTES || (a - base) % CELL) return NULL;
    struct object *o = (struct object *)a;
    return __atomic_load_n(&o->kind, __ATOMIC_ACQUIRE) == (uint32_t)kind ? o : NULL;
}
