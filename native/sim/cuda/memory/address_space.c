/*
 * The address space of device memory, and look-up of ranges by address.
 *
 * One reservation of the process's address space is divided into blocks of 2 MiB. Large ranges take whole
 * blocks, first fit in a sorted list of holes; small ranges (below 1 MiB) share blocks in units of 512 B under
 * a bitmap. A table from block to range finds the range of an address in constant time. Pages cost memory only
 * once they are touched and are given back to the kernel when their block is free.
 *
 * An emulator of another machine (qemu-user) keeps a table of all pages of a reservation: 6 MiB for a GiB. It
 * is detected by the growth of the process after a small reservation, and the space is then no larger than
 * that.
 */
#include "sim/cuda/memory/address_space.h"

#include "sim/node/state.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define BLOCK          SIM_LARGE_UNIT
#define UNIT           SIM_SMALL_UNIT
#define UNITS          (BLOCK / UNIT)
#define SPACE_MAX      (8ull << 40)
#define SPACE_MIN      (64ull << 30)
#define SPACE_EMULATED (24ull << 30)
#define PAGE_TABLE_MIN (16ull << 20) /* growth of the process that shows an emulator's page table */
#define GROUPS_MAX     (SIM_DEVICES_MAX + 1)

struct small_block { /* a block shared by small ranges of one group */
    uint64_t base;
    uint32_t used_units, hint;
    uint64_t map[UNITS / 64];
    struct range *owner[UNITS];
    struct small_block *next;
};

struct hole {
    uint64_t base, bytes;
};

struct block {
    struct range *range;
    struct small_block *small;
};

static uint64_t space_base, space_bytes;
static struct block *block_table;
static struct hole *holes;
static size_t hole_count, hole_capacity;
static struct small_block *small_blocks[GROUPS_MAX];
static pthread_mutex_t space_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t space_once = PTHREAD_ONCE_INIT;
static uint64_t next_range_id;

static uint64_t resident_bytes(void)
{
    char text[128] = "";
    unsigned long pages = 0;
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    if (size <= 0 || sscanf(text, "%*u %lu", &pages) != 1) return 0;
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void *space_map(uint64_t bytes)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
}

static void space_reserve(void)
{
    uint64_t before = resident_bytes();
    void *least = space_map(SPACE_EMULATED + BLOCK);
    bool books = least != MAP_FAILED && resident_bytes() > before + PAGE_TABLE_MIN;
    uint64_t lowest = books ? SPACE_EMULATED : SPACE_MIN;
    if (least != MAP_FAILED && !books) munmap(least, SPACE_EMULATED + BLOCK);
    for (uint64_t bytes = books ? SPACE_EMULATED : SPACE_MAX; bytes >= lowest; bytes /= 2) {
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void *p = books ? least : space_map(bytes + BLOCK);
        if (p == MAP_FAILED) continue;
        void *t = mmap(NULL, bytes / BLOCK * sizeof *block_table, PROT_READ | PROT_WRITE, flags, -1, 0);
        holes = calloc(64, sizeof *holes);
        if (t == MAP_FAILED || !holes) {
            munmap(p, bytes + BLOCK);
            continue;
        }
        madvise(p, bytes + BLOCK, MADV_DONTDUMP);
        madvise(p, bytes + BLOCK, MADV_DONTFORK);
        block_table = t;
        hole_capacity = 64;
        space_base = sim_round_up((uint64_t)p, BLOCK);
        holes[0] = (struct hole){space_base, bytes};
        hole_count = 1;
        __atomic_store_n(&space_bytes, bytes, __ATOMIC_RELEASE);
        return;
    }
}

bool space_holds(uint64_t address)
{
    uint64_t bytes = __atomic_load_n(&space_bytes, __ATOMIC_ACQUIRE);
    return bytes && address >= space_base && address < space_base + bytes;
}

void memory_lock(void)
{
    pthread_once(&space_once, space_reserve);
    pthread_mutex_lock(&space_lock);
}

void memory_unlock(void)
{
    pthread_mutex_unlock(&space_lock);
}

static bool hole_insert(size_t at, struct hole h)
{
    if (hole_count == hole_capacity) {
        struct hole *more = realloc(holes, 2 * hole_capacity * sizeof *holes);
        if (!more) return false;
        holes = more;
        hole_capacity *= 2;
    }
    memmove(&holes[at + 1], &holes[at], (hole_count - at) * sizeof *holes);
    holes[at] = h;
    hole_count++;
    return true;
}

static void hole_remove(size_t at)
{
    memmove(&holes[at], &holes[at + 1], (hole_count - at - 1) * sizeof *holes);
    hole_count--;
}

static uint64_t hole_take(size_t i, uint64_t start, uint64_t bytes)
{
    struct hole h = holes[i];
    uint64_t before = start - h.base, after = h.base + h.bytes - (start + bytes);
    if (before && after) {
        if (!hole_insert(i + 1, (struct hole){start + bytes, after})) return 0;
        holes[i].bytes = before;
    } else if (before) {
        holes[i].bytes = before;
    } else if (after) {
        holes[i] = (struct hole){start + bytes, after};
    } else {
        hole_remove(i);
    }
    return start;
}

uint64_t space_take(uint64_t bytes, uint64_t alignment, uint64_t wanted)
{
    if (bytes > space_bytes) return 0;
    bytes = sim_round_up(bytes, BLOCK);
    if (alignment < BLOCK) alignment = BLOCK;
    for (size_t i = 0; wanted && i < hole_count; i++) {
        if (wanted >= holes[i].base && wanted - holes[i].base < holes[i].bytes &&
            bytes <= holes[i].bytes - (wanted - holes[i].base) && wanted % alignment == 0)
            return hole_take(i, wanted, bytes);
    }
    for (size_t i = 0; i < hole_count; i++) {
        uint64_t start = sim_round_up(holes[i].base, alignment), skip = start - holes[i].base;
        if (skip < holes[i].bytes && bytes <= holes[i].bytes - skip) return hole_take(i, start, bytes);
    }
    return 0;
}

void space_give(uint64_t base, uint64_t bytes)
{
    bytes = sim_round_up(bytes, BLOCK);
    size_t low = 0, high = hole_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (holes[middle].base < base)
            low = middle + 1;
        else
            high = middle;
    }
    bool joins_left = low > 0 && holes[low - 1].base + holes[low - 1].bytes == base;
    bool joins_right = low < hole_count && base + bytes == holes[low].base;
    if (joins_left && joins_right) {
        holes[low - 1].bytes += bytes + holes[low].bytes;
        hole_remove(low);
    } else if (joins_left) {
        holes[low - 1].bytes += bytes;
    } else if (joins_right) {
        holes[low].base = base;
        holes[low].bytes += bytes;
    } else {
        hole_insert(low, (struct hole){base, bytes});
    }
}

/* ---- range look-up ---- */

struct range *range_find(uint64_t address)
{
    if (!space_holds(address)) return NULL;
    const struct block *b = &block_table[(address - space_base) / BLOCK];
    struct range *r = b->range;
    if (!r && b->small) r = b->small->owner[(address - b->small->base) / UNIT];
    return r && address - r->base < r->size ? r : NULL;
}

static void blocks_set_range(uint64_t base, uint64_t bytes, struct range *r)
{
    for (uint64_t i = (base - space_base) / BLOCK, end = i + sim_round_up(bytes, BLOCK) / BLOCK; i < end; i++)
        block_table[i].range = r;
}

struct range *range_add(uint64_t base, uint64_t size, uint64_t capacity, enum memory memory)
{
    struct range *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->base = base;
    r->size = size;
    r->capacity = capacity;
    r->memory = memory;
    r->file = -1;
    r->id = ++next_range_id;
    if (space_holds(base)) blocks_set_range(base, capacity, r);
    return r;
}

void range_remove(struct range *r)
{
    if (space_holds(r->base)) {
        struct block *b = &block_table[(r->base - space_base) / BLOCK];
        if (b->range == r) blocks_set_range(r->base, r->capacity, NULL);
    }
    free(r);
}

void range_restore(struct range *r, uint64_t base, uint64_t bytes)
{
    blocks_set_range(base, bytes, r);
}

/* ---- small ranges ---- */

static uint32_t units_find(struct small_block *b, uint32_t count)
{
    uint32_t run = 0;
    if (UNITS - b->used_units < count) return UINT32_MAX;
    for (uint32_t i = 0; i < UNITS; i++) {
        if (i % 64 == 0 && b->map[i / 64] == UINT64_MAX) {
            run = 0;
            i += 63;
            continue;
        }
        run = b->map[i / 64] >> (i % 64) & 1 ? 0 : run + 1;
        if (run == count) return i + 1 - count;
    }
    return UINT32_MAX;
}

static void units_mark(struct small_block *b, uint32_t first, uint32_t count, struct range *r)
{
    for (uint32_t i = first; i < first + count; i++) {
        b->owner[i] = r;
        if (r)
            b->map[i / 64] |= 1ull << (i % 64);
        else
            b->map[i / 64] &= ~(1ull << (i % 64));
    }
    b->used_units = r ? b->used_units + count : b->used_units - count;
}

struct range *small_range_take(uint32_t group, uint64_t size, enum memory memory)
{
    uint32_t count = (uint32_t)(sim_round_up(size, UNIT) / UNIT), first = UINT32_MAX;
    struct small_block *b = small_blocks[group];
    for (int tries = 0; b && tries < 64; b = b->next, tries++) {
        first = units_find(b, count);
        if (first != UINT32_MAX) break;
    }
    if (first == UINT32_MAX) {
        uint64_t base = space_take(BLOCK, BLOCK, 0);
        b = base ? calloc(1, sizeof *b) : NULL;
        if (!b) return NULL;
        b->base = base;
        b->next = small_blocks[group];
        small_blocks[group] = b;
        block_table[(base - space_base) / BLOCK].small = b;
        first = 0;
    }
    struct range *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->base = b->base + first * UNIT;
    r->size = size;
    r->capacity = count * UNIT;
    r->memory = memory;
    r->file = -1;
    r->id = ++next_range_id;
    units_mark(b, first, count, r);
    return r;
}

/* Return true if `r` was a small range, which is then freed. */
bool small_range_give(struct range *r, uint32_t group)
{
    struct block *t = &block_table[(r->base - space_base) / BLOCK];
    struct small_block *b = t->small;
    if (!b) return false;
    units_mark(b, (uint32_t)((r->base - b->base) / UNIT), (uint32_t)(r->capacity / UNIT), NULL);
    if (b->used_units == 0 && (small_blocks[group] != b || b->next)) { /* one empty block is kept */
        for (struct small_block **p = &small_blocks[group]; *p; p = &(*p)->next) {
            if (*p != b) continue;
            *p = b->next;
            break;
        }
        t->small = NULL;
        memory_blank(b->base, BLOCK);
        space_give(b->base, BLOCK);
        free(b);
    }
    free(r);
    return true;
}

void memory_blank(uint64_t base, uint64_t bytes)
{
    madvise((void *)base, bytes, MADV_DONTNEED);
}

void ranges_visit(void (*visit)(struct range *r, void *argument), void *argument)
{
    for (size_t h = 0, block = 0; block < space_bytes / BLOCK;) {
        /* Holes are most of the space: skip them. */
        uint64_t address = space_base + block * BLOCK;
        while (h < hole_count && holes[h].base < address)
            h++;
        if (h < hole_count && holes[h].base == address) {
            block += holes[h].bytes / BLOCK;
            continue;
        }
        struct range *r = block_table[block].range;
        struct small_block *b = block_table[block].small;
        if (r && r->base == address) {
            block += r->memory == MEMORY_RESERVED ? 1 : sim_round_up(r->capacity, BLOCK) / BLOCK;
            visit(r, argument);
            continue;
        }
        for (uint32_t i = 0; b && i < UNITS;) {
            struct range *s = b->owner[i];
            if (s) visit(s, argument);
            i += s ? (uint32_t)(s->capacity / UNIT) : 1;
        }
        block++;
    }
}
