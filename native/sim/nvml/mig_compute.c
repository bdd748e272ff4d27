/* Compute instances, and the MIG devices that programs see: one for each compute instance. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/node/root_tree.h"
#include "sim/nvml/activity.h"
#include "sim/nvml/mig_geometry.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NV_GI(target, handle)                                        \
    struct nv_target target;                                         \
    do {                                                             \
        nvmlReturn_t nv_result = nv_resolve_gi((handle), &(target)); \
        if (nv_result != NVML_SUCCESS) return nv_result;             \
    } while (0)

static void fill_ci_profile(const struct nv_target *t, unsigned int profile, uint32_t slices,
                            nvmlComputeInstanceProfileInfo_v3_t *info)
{
    const struct sim_gi *g = &t->device->mig.gi[t->gi];
    const struct card_mig *p = mig_by_enum(t->card, g->profile);

    info->id = profile;
    info->sliceCount = slices;
    info->instanceCount = g->slice_count / slices;
    info->multiprocessorCount = g->sm_count * slices / g->slice_count;
    if (p != NULL) {
        info->sharedCopyEngineCount = p->copy_engines;
        info->sharedDecoderCount = p->decoders;
        info->sharedJpegCount = p->jpeg_engines;
        info->sharedOfaCount = p->ofa_engines;
        if (slices == g->slice_count)
            snprintf(info->name, sizeof info->name, "MIG %s", p->name);
        else
            snprintf(info->name, sizeof info->name, "MIG %uc.%s", slices, p->name);
    }
}

static nvmlReturn_t ci_profile(const struct nv_target *t, unsigned int profile, unsigned int engines,
                               uint32_t *slices)
{
    if (profile >= NVML_COMPUTE_INSTANCE_PROFILE_COUNT ||
        engines >= NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    *slices = mig_ci_slices(&t->device->mig.gi[t->gi], profile);
    return *slices != 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

NVML_API nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned int profile,
                                                      unsigned int engines,
                                                      nvmlComputeInstanceProfileInfo_t *info)
{
    NV_GI(t, instance);
    NV_NEED(info);
    nvmlComputeInstanceProfileInfo_v3_t full = {0};
    uint32_t slices;
    nvmlReturn_t result = ci_profile(&t, profile, engines, &slices);

    if (result != NVML_SUCCESS) return result;
    fill_ci_profile(&t, profile, slices, &full);
    *info = (nvmlComputeInstanceProfileInfo_t){.id = full.id,
                                               .sliceCount = full.sliceCount,
                                               .instanceCount = full.instanceCount,
                                               .multiprocessorCount = full.multiprocessorCount,
                                               .sharedCopyEngineCount = full.sharedCopyEngineCount,
                                               .sharedDecoderCount = full.sharedDecoderCount,
                                               .sharedJpegCount = full.sharedJpegCount,
                                               .sharedOfaCount = full.sharedOfaCount};
    return NVML_SUCCESS;
}

/* The second version ends before the capabilities and is otherwise the third. */
NVML_API nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned int profile,
                                                       unsigned int engines,
                                                       nvmlComputeInstanceProfileInfo_v2_t *info)
{
    NV_GI(t, instance);
    NV_NEED(info);
    nvmlComputeInstanceProfileInfo_v3_t full = {.version = info->version};
    uint32_t slices;
    nvmlReturn_t result = ci_profile(&t, profile, engines, &slices);

    if (result != NVML_SUCCESS) return result;
    fill_ci_profile(&t, profile, slices, &full);
    if (info->version == nvmlComputeInstanceProfileInfo_v3)
        memcpy(info, &full, sizeof full);
    else if (info->version == nvmlComputeInstanceProfileInfo_v2)
        memcpy(info, &full, offsetof(nvmlComputeInstanceProfileInfo_v3_t, capabilities));
    else
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    return NVML_SUCCESS;
}

NVML_API nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance, unsigned int profile,
                                                            unsigned int *count)
{
    NV_GI(t, instance);
    NV_NEED(count);
    uint32_t slices;
    nvmlReturn_t result = ci_profile(&t, profile, 0, &slices);

    if (result != NVML_SUCCESS) return result;
    *count = 0;
    sim_lock_device(t.sim, t.index);
    for (uint32_t start = 0; start + slices <= t.device->mig.gi[t.gi].slice_count; start += slices)
        *count += mig_ci_start(&t, slices, start) != UINT32_MAX;
    sim_unlock_device(t.sim, t.index);
    return NVML_SUCCESS;
}

NVML_API nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t instance, unsigned int profile,
                                                             nvmlComputeInstancePlacement_t *placements,
                                                             unsigned int *count)
{
    NV_GI(t, instance);
    NV_NEED(count);
    uint32_t slices;
    nvmlReturn_t result = ci_profile(&t, profile, 0, &slices);

    if (result != NVML_SUCCESS) return result;
    unsigned int capacity = *count;

    *count = t.device->mig.gi[t.gi].slice_count / slices;
    if (placements == NULL) return NVML_SUCCESS;
    if (capacity < *count) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < *count; i++)
        placements[i] = (nvmlComputeInstancePlacement_t){.start = i * slices, .size = slices};
    return NVML_SUCCESS;
}

/*
 * Name a compute instance: unique for every instance ever created on this card, a hash over the card, the index
 * and the layout's generation, in the form of a UUID.
 */
static void ci_name(const struct nv_target *t, struct sim_ci *c)
{
    const uint8_t *u = t->device->profile.uuid_bytes;
    uint64_t hash[2] = {0x9E3779B97F4A7C15ull, 0xC2B2AE3D27D4EB4Full};
    uint32_t more[] = {c->gi_id, c->id, t->device->mig.generation};
    uint8_t bytes[16 + sizeof more], out[16];

    memcpy(bytes, u, 16);
    memcpy(bytes + 16, more, sizeof more);
    for (size_t i = 0; i < sizeof bytes; i++)
        for (int k = 0; k < 2; k++) {
            hash[k] = (hash[k] ^ bytes[i]) * 0x100000001B3ull; /* FNV-1a */
            hash[k] ^= hash[k] >> 29;
        }
    memcpy(out, hash, sizeof out);
    out[6] = (uint8_t)((out[6] & 0x0F) | 0x50);
    out[8] = (uint8_t)((out[8] & 0x3F) | 0x80);
    snprintf(c->uuid, sizeof c->uuid,
             "MIG-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", out[0], out[1],
             out[2], out[3], out[4], out[5], out[6], out[7], out[8], out[9], out[10], out[11], out[12],
             out[13], out[14], out[15]);
}

/* The lowest number that no compute instance of this GPU instance has. */
static uint32_t ci_free_id(const struct sim_mig *m, uint32_t gi)
{
    uint32_t taken = 0;

    for (uint32_t i = 0; i < SIM_CI_MAX; i++)
        if (m->ci[i].used && m->ci[i].gi_id == gi) taken |= 1u << (m->ci[i].id & 31);
    return (uint32_t)__builtin_ctz(~taken);
}

/* Requires the device's lock. */
static nvmlReturn_t ci_create(const struct nv_target *t, unsigned int profile, uint32_t slices,
                              uint32_t wanted, nvmlComputeInstance_t *out)
{
    struct sim_mig *m = &t->device->mig;
    uint32_t start = mig_ci_start(t, slices, wanted), place = 0;

    while (place < SIM_CI_MAX && m->ci[place].used)
        place++;
    if (start == UINT32_MAX || place == SIM_CI_MAX) return NVML_ERROR_INSUFFICIENT_RESOURCES;
    struct sim_ci c = {.id = ci_free_id(m, t->gi),
                       .gi_id = t->gi,
                       .profile = profile,
                       .eng_profile = NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
                       .slice_start = start,
                       .slice_count = slices};

    m->generation++;
    c.born = m->generation;
    ci_name(t, &c);
    m->ci[place] = c;
    __atomic_store_n(&m->ci[place].used, 1, __ATOMIC_RELEASE);
    *out = nv_ci_handle(t->index, place);
    return NVML_SUCCESS;
}

static nvmlReturn_t ci_create_at(nvmlGpuInstance_t instance, unsigned int profile, uint32_t wanted,
                                 nvmlComputeInstance_t *out)
{
    NV_GI(t, instance);
    NV_NEED(out);
    uint32_t slices;
    nvmlReturn_t result = ci_profile(&t, profile, 0, &slices);

    if (result != NVML_SUCCESS) return NVML_ERROR_INVALID_ARGUMENT;
    if (geteuid() != 0) return NVML_ERROR_NO_PERMISSION;
    sim_lock_device(t.sim, t.index);
    result = ci_create(&t, profile, slices, wanted, out);
    sim_unlock_device(t.sim, t.index);
    if (result == NVML_SUCCESS) root_refresh(t.sim, t.index);
    return result;
}

NVML_API nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned int profile,
                                              nvmlComputeInstance_t *out)
{
    return ci_create_at(instance, profile, UINT32_MAX, out);
}

NVML_API nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t instance, unsigned int profile,
                                                           const nvmlComputeInstancePlacement_t *placement,
                                                           nvmlComputeInstance_t *out)
{
    NV_NEED(placement);
    return ci_create_at(instance, profile, placement->start, out);
}

NVML_API nvmlComputeInstanceDestroy(nvmlComputeInstance_t instance)
{
    struct nv_target t;
    nvmlReturn_t result = nv_resolve_ci(instance, &t);

    if (result != NVML_SUCCESS) return result;
    if (geteuid() != 0) return NVML_ERROR_NO_PERMISSION;
    nv_refresh(&t);
    sim_lock_device(t.sim, t.index);
    for (uint32_t i = 0; i < sim_procs_used(t.sim->node); i++) {
        const struct sim_proc *p = &t.sim->node->proc[i];

        if (p->state == SIM_SLOT_LIVE && p->device[t.index].context_count > 0 &&
            p->device[t.index].mig_used && p->device[t.index].mig_gi_id == t.gi &&
            p->device[t.index].mig_ci_id == t.device->mig.ci[t.ci].id)
            result = NVML_ERROR_IN_USE;
    }
    if (result == NVML_SUCCESS) {
        memset(&t.device->mig.ci[t.ci], 0, sizeof t.device->mig.ci[t.ci]);
        t.device->mig.generation++;
    }
    sim_unlock_device(t.sim, t.index);
    if (result == NVML_SUCCESS) root_refresh(t.sim, t.index);
    return result;
}

NVML_API nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned int profile,
                                            nvmlComputeInstance_t *instances, unsigned int *count)
{
    NV_GI(t, instance);
    NV_NEED(instances);
    NV_NEED(count);
    uint32_t slices;
    nvmlReturn_t result = ci_profile(&t, profile, 0, &slices);

    if (result != NVML_SUCCESS) return result;
    uint32_t most = t.device->mig.gi[t.gi].slice_count / slices;

    *count = 0;
    for (uint32_t i = 0; i < SIM_CI_MAX && *count < most; i++) {
        const struct sim_ci *c = &t.device->mig.ci[i];

        if (c->used && c->gi_id == t.gi && c->profile == profile)
            instances[(*count)++] = nv_ci_handle(t.index, i);
    }
    return NVML_SUCCESS;
}

NVML_API nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned int id,
                                               nvmlComputeInstance_t *out)
{
    NV_GI(t, instance);
    NV_NEED(out);
    for (uint32_t i = 0; i < SIM_CI_MAX; i++) {
        const struct sim_ci *c = &t.device->mig.ci[i];

        if (!c->used || c->gi_id != t.gi || c->id != id) continue;
        *out = nv_ci_handle(t.index, i);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *info)
{
    struct nv_target t;
    nvmlReturn_t result = nv_resolve_ci(instance, &t);

    if (result != NVML_SUCCESS) return result;
    NV_NEED(info);
    const struct sim_ci *c = &t.device->mig.ci[t.ci];

    *info = (nvmlComputeInstanceInfo_t){.device = nv_device_handle(t.index),
                                        .gpuInstance = nv_gi_handle(t.index, t.gi),
                                        .id = c->id,
                                        .profileId = c->profile,
                                        .placement = {.start = c->slice_start, .size = c->slice_count}};
    return NVML_SUCCESS;
}

/* The first version ends before the placement. */
NVML_API nvmlComputeInstanceGetInfo(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *info)
{
    nvmlComputeInstanceInfo_t full;

    NV_NEED(info);
    nvmlReturn_t result = nvmlComputeInstanceGetInfo_v2(instance, &full);

    if (result == NVML_SUCCESS) memcpy(info, &full, offsetof(nvmlComputeInstanceInfo_t, placement));
    return result;
}

NVML_API nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig)
{
    NV_TARGET(t, device, NV_CARD | NV_MIG | NV_LOST);
    NV_NEED(is_mig);
    *is_mig = t.mig;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    NV_TARGET(t, device, NV_MIG);
    NV_NEED(id);
    *id = t.device->mig.gi[t.gi].id;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    NV_TARGET(t, device, NV_MIG);
    NV_NEED(id);
    *id = t.device->mig.ci[t.ci].id;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(count);
    *count = t.card->mig_slices;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(mig);
    if (t.card->mig_count == 0) return NVML_ERROR_NOT_SUPPORTED;
    if (index >= t.card->mig_slices) return NVML_ERROR_INVALID_ARGUMENT;
    for (uint32_t i = 0, seen = 0; i < SIM_CI_MAX; i++) {
        if (!t.device->mig.ci[i].used || seen++ != index) continue;
        *mig = nv_mig_handle(t.index, i);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
    NV_TARGET(t, mig, NV_MIG | NV_LOST);
    NV_NEED(device);
    *device = nv_device_handle(t.index);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    NV_TARGET(t, device, NV_CARD | NV_MIG);
    NV_NEED(attributes);
    if (!t.mig) return NVML_ERROR_NOT_SUPPORTED; /* as with the real driver: MIG devices only */
    const struct sim_gi *g = &t.device->mig.gi[t.gi];
    const struct sim_ci *c = &t.device->mig.ci[t.ci];
    nvmlComputeInstanceProfileInfo_v3_t p = {0};

    if (g->slice_count == 0 || c->slice_count == 0) return NVML_ERROR_UNKNOWN;
    fill_ci_profile(&t, c->profile, c->slice_count, &p);
    *attributes = (nvmlDeviceAttributes_t){.multiprocessorCount = p.multiprocessorCount,
                                           .sharedCopyEngineCount = p.sharedCopyEngineCount,
                                           .sharedDecoderCount = p.sharedDecoderCount,
                                           .sharedJpegCount = p.sharedJpegCount,
                                           .sharedOfaCount = p.sharedOfaCount,
                                           .gpuInstanceSliceCount = g->slice_count,
                                           .computeInstanceSliceCount = c->slice_count,
                                           .memorySizeMB = g->memory_bytes / CARD_MIB};
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    return nvmlDeviceGetAttributes_v2(device, attributes);
}
