/* Compiled PTX of modules. A library has no context of its own, so its variables are placed once in each. */
#include "sim/cuda/module/module_code.h"

#include "sim/cuda/memory/memory.h"

struct placement {
    struct placed placed;
    struct context *context;
    struct range **range; /* by variable */
    struct placement *next;
};

struct code {
    struct program *program;
    struct placement *placements;
    pthread_mutex_t lock;
};

static __thread struct report *last_report;

const struct report *code_report(void)
{
    static const struct report nothing;
    return last_report ? last_report : &nothing;
}

CUresult code_compile(const struct image *i, struct code **out)
{
    *out = NULL;
    if (!last_report) last_report = calloc(1, sizeof *last_report);
    if (!last_report) return CUDA_ERROR_OUT_OF_MEMORY;
    memset(last_report, 0, sizeof *last_report);
    if (!i->ptx) return CUDA_SUCCESS;
    struct code *c = calloc(1, sizeof *c);
    if (!c) return CUDA_ERROR_OUT_OF_MEMORY;
    c->program = ptx_compile(i->ptx, i->ptx_bytes, last_report);
    if (!c->program) {
        free(c);
        return last_report->version_unsupported ? CUDA_ERROR_UNSUPPORTED_PTX_VERSION : CUDA_ERROR_INVALID_PTX;
    }
    pthread_mutex_init(&c->lock, NULL);
    *out = c;
    return CUDA_SUCCESS;
}

const struct routine *code_entry(const struct code *c, const char *name)
{
    return c ? program_entry(c->program, name) : NULL;
}

bool code_by_name(const struct code *c)
{
    for (uint32_t i = 0; c && i < c->program->variable_count; i++) {
        if (strcmp(c->program->variable[i].name, CODE_BY_NAME) == 0) return true;
    }
    return false;
}

uint32_t code_shared(const struct code *c)
{
    return c ? (uint32_t)c->program->shared_bytes : 0;
}

uint32_t code_constants(const struct code *c)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; c && i < c->program->variable_count; i++) {
        const struct variable *v = &c->program->variable[i];
        if (v->space == SPACE_CONST && !v->external) bytes += v->bytes;
    }
    return bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX;
}

uint32_t code_registers(const struct code *c, const struct routine *r)
{
    /* and a block of 1024 threads fits, which compilers ensure */
    uint32_t guess = 14 + r->register_words / 3;
    if (guess > 64) guess = 64;
    uint32_t most = c->program->registers_max ? c->program->registers_max : 255;
    if (r->threads_max && most > 65536 / r->threads_max) most = 65536 / r->threads_max;
    if (most < 16) most = 16;
    return guess < 16 ? 16 : guess < most ? guess : most;
}

static void placement_free(struct placement *p, const struct program *program)
{
    for (uint32_t i = 0; p->range && i < program->variable_count; i++) {
        if (p->range[i]) memory_drop(p->range[i]);
    }
    free(p->range);
    free(p->placed.address);
    free(p->placed.constant);
    free(p);
}

const struct program *code_program(const struct code *c)
{
    return c->program;
}

void code_drop(struct code *c, const struct context *context)
{
    if (!c) return;
    pthread_mutex_lock(&c->lock);
    for (struct placement **at = &c->placements; *at;) {
        struct placement *p = *at;
        if (context && p->context != context) {
            at = &p->next;
            continue;
        }
        *at = p->next;
        placement_free(p, c->program);
    }
    pthread_mutex_unlock(&c->lock);
}

void code_free(struct code *c)
{
    if (!c) return;
    code_drop(c, NULL);
    program_free(c->program);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* ---- placement ---- */

static uint64_t relocation_value(const struct reloc *r, const uint64_t *address)
{
    return r->function ? WINDOW_FUNCTION | r->target : address[r->target] + r->addend;
}

static CUresult variables_place(const struct program *p, struct context *context, void *owner,
                                struct placement *to)
{
    for (uint32_t i = 0; i < p->variable_count; i++) {
        const struct variable *v = &p->variable[i];
        if (v->space != SPACE_GLOBAL && v->space != SPACE_CONST) continue;
        if (v->external || !v->bytes) continue;
        OK_OR_RETURN(memory_take(context, context->device, v->bytes, MEMORY_DEVICE, &to->range[i]));
        to->range[i]->owner = owner;
        to->placed.address[i] = to->range[i]->base;
    }
    for (uint32_t i = 0; i < p->variable_count; i++) {
        const struct variable *v = &p->variable[i];
        if (!to->range[i]) continue;
        uint8_t *base = (uint8_t *)to->range[i]->base;
        uint64_t known = v->initial_bytes < v->bytes ? v->initial_bytes : v->bytes;
        if (known) memcpy(base, v->initial, known);
        /* a large one is zero already */
        if (v->bytes < SIM_SMALL_BYTES) memset(base + known, 0, v->bytes - known);
        for (uint32_t k = 0; k < v->reloc_count; k++) {
            uint64_t address = relocation_value(&v->reloc[k], to->placed.address);
            memcpy(base + v->reloc[k].offset, &address, v->reloc[k].width < 8 ? v->reloc[k].width : 8);
        }
    }
    return CUDA_SUCCESS;
}

static CUresult placement_fill(const struct program *p, struct context *context, void *owner,
                               struct placement *to)
{
    to->context = context;
    to->placed.program = p;
    to->range = calloc(p->variable_count + 1, sizeof(struct range *));
    to->placed.address = calloc(p->variable_count + 1, sizeof *to->placed.address);
    to->placed.constant = aligned_alloc(64, (p->constant_bytes + 127u) / 64 * 64);
    if (!to->range || !to->placed.address || !to->placed.constant) return CUDA_ERROR_OUT_OF_MEMORY;
    OK_OR_RETURN(variables_place(p, context, owner, to));
    if (p->constant_bytes) memcpy(to->placed.constant, p->constant, p->constant_bytes);
    for (uint32_t i = 0; i < p->reloc_count; i++) {
        const struct reloc *r = &p->reloc[i];
        uint64_t address = relocation_value(r, to->placed.address);
        for (uint32_t lane = 0; lane < LANES; lane++)
            memcpy(to->placed.constant + r->offset + lane * r->width, &address, r->width);
    }
    return CUDA_SUCCESS;
}

static CUresult placement_get(struct code *c, struct context *context, void *owner, struct placement **out)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&c->lock);
    struct placement *p = c->placements;
    while (p && p->context != context)
        p = p->next;
    if (!p) {
        p = calloc(1, sizeof *p);
        result = p ? placement_fill(c->program, context, owner, p) : CUDA_ERROR_OUT_OF_MEMORY;
        if (result == CUDA_SUCCESS) {
            p->next = c->placements;
            c->placements = p;
        } else if (p) {
            placement_free(p, c->program);
        }
    }
    pthread_mutex_unlock(&c->lock);
    *out = p;
    return result;
}

CUresult code_place(struct code *c, struct context *context, void *owner, const struct placed **out)
{
    struct placement *p;
    OK_OR_RETURN(placement_get(c, context, owner, &p));
    *out = &p->placed;
    return CUDA_SUCCESS;
}

CUresult code_global(struct code *c, struct context *context, void *owner, const char *name,
                     CUdeviceptr *address, size_t *bytes)
{
    const struct program *p = c->program;
    for (uint32_t i = 0; i < p->variable_count; i++) {
        const struct variable *v = &p->variable[i];
        if (v->external || (v->space != SPACE_GLOBAL && v->space != SPACE_CONST) ||
            strcmp(v->name, name) != 0)
            continue;
        struct placement *at;
        OK_OR_RETURN(placement_get(c, context, owner, &at));
        if (address) *address = at->placed.address[i];
        if (bytes) *bytes = v->bytes;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}
