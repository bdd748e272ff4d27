/* MIG mode and GPU instances: profiles, placements, creation, destruction. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/node/root_tree.h"
#include "sim/nvml/activity.h"
#include "sim/nvml/mig_geometry.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NV_MIG_CARD(target, handle)     \
    NV_TARGET(target, handle, NV_CARD); \
    if ((target).card->mig_count == 0) return NVML_ERROR_NOT_SUPPORTED

NVML_API nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *now, unsigned int *pending)
{
    NV_MIG_CARD(t, device);
    NV_NEED(now);
    NV_NEED(pending);
    *now = t.device->mig.mode;
    *pending = t.device->mig.mode_pending;
    return NVML_SUCCESS;
}

static bool card_is_busy(const struct nv_target *t)
{
    for (uint32_t i = 0; i < sim_procs_used(t->sim->node); i++) {
        const struct sim_proc *p = &t->sim->node->proc[i];

        if (p->state == SIM_SLOT_LIVE && p->device[t->index].context_count > 0) return true;
    }
    for (uint32_t i = 0; i < SIM_GI_MAX; i++)
        if (t->device->mig.gi[i].used) return true;
    return false;
}

/* The mode changes at once on an idle card; on a busy one it stays pending, and `activation` has the reason. */
NVML_API nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned int mode, nvmlReturn_t *activation)
{
    NV_MIG_CARD(t, device);
    NV_NEED(activation);
    if (mode > NVML_DEVICE_MIG_ENABLE) return NVML_ERROR_INVALID_ARGUMENT;
    if (geteuid() != 0) return NVML_ERROR_NO_PERMISSION;
    struct sim_mig *m = &t.device->mig;

    nv_refresh(&t);
    sim_lock_device(t.sim, t.index);
    *activation = NVML_SUCCESS;
    m->mode_pending = mode;
    if (m->mode != mode) {
        if (card_is_busy(&t)) {
            *activation = NVML_ERROR_IN_USE;
        } else {
            m->mode = mode;
            m->generation++;
        }
    }
    sim_unlock_device(t.sim, t.index);
    return NVML_SUCCESS;
}

static void fill_profile(const struct card_mig *p, nvmlGpuInstanceProfileInfo_v3_t *info)
{
    info->id = p->id;
    info->sliceCount = p->slices;
    info->instanceCount = p->max_count;
    info->multiprocessorCount = p->sm_count;
    info->copyEngineCount = p->copy_engines;
    info->decoderCount = p->decoders;
    info->encoderCount = 0;
    info->jpegCount = p->jpeg_engines;
    info->ofaCount = p->ofa_engines;
    info->memorySizeMB = p->memory_mib;
    snprintf(info->name, sizeof info->name, "MIG %s", p->name);
    info->capabilities = 0;
}

static nvmlReturn_t profile_find(const struct nv_target *t, unsigned int profile,
                                 const struct card_mig **found)
{
    if (profile >= NVML_GPU_INSTANCE_PROFILE_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
    *found = mig_by_enum(t->card, profile);
    return *found != NULL ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

NVML_API nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned int profile,
                                             nvmlGpuInstanceProfileInfo_t *info)
{
    NV_MIG_CARD(t, device);
    NV_NEED(info);
    const struct card_mig *p;
    nvmlReturn_t result = profile_find(&t, profile, &p);

    if (result != NVML_SUCCESS) return result;
    *info = (nvmlGpuInstanceProfileInfo_t){.id = p->id,
                                           .sliceCount = p->slices,
                                           .instanceCount = p->max_count,
                                           .multiprocessorCount = p->sm_count,
                                           .copyEngineCount = p->copy_engines,
                                           .decoderCount = p->decoders,
                                           .jpegCount = p->jpeg_engines,
                                           .ofaCount = p->ofa_engines,
                                           .memorySizeMB = p->memory_mib};
    return NVML_SUCCESS;
}

/* The version that the caller sets tells which of the two structures it passes. */
static nvmlReturn_t fill_versioned(const struct card_mig *p, nvmlGpuInstanceProfileInfo_v2_t *info)
{
    nvmlGpuInstanceProfileInfo_v3_t full = {.version = nvmlGpuInstanceProfileInfo_v3};

    fill_profile(p, &full);
    if (info->version == nvmlGpuInstanceProfileInfo_v3) {
        memcpy(info, &full, sizeof full);
        return NVML_SUCCESS;
    }
    if (info->version != nvmlGpuInstanceProfileInfo_v2) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    info->id = full.id;
    info->isP2pSupported = 0;
    info->sliceCount = full.sliceCount;
    info->instanceCount = full.instanceCount;
    info->multiprocessorCount = full.multiprocessorCount;
    info->copyEngineCount = full.copyEngineCount;
    info->decoderCount = full.decoderCount;
    info->encoderCount = full.encoderCount;
    info->jpegCount = full.jpegCount;
    info->ofaCount = full.ofaCount;
    info->memorySizeMB = full.memorySizeMB;
    memcpy(info->name, full.name, sizeof info->name);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned int profile,
                                              nvmlGpuInstanceProfileInfo_v2_t *info)
{
    NV_MIG_CARD(t, device);
    NV_NEED(info);
    const struct card_mig *p;
    nvmlReturn_t result = profile_find(&t, profile, &p);

    return result == NVML_SUCCESS ? fill_versioned(p, info) : result;
}

NVML_API nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned int id,
                                                  nvmlGpuInstanceProfileInfo_v2_t *info)
{
    NV_MIG_CARD(t, device);
    NV_NEED(info);
    const struct card_mig *p = mig_by_id(t.card, id);

    return p != NULL ? fill_versioned(p, info) : NVML_ERROR_NOT_SUPPORTED;
}

NVML_API nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned int id,
                                                       nvmlGpuInstancePlacement_t *placements,
                                                       unsigned int *count)
{
    NV_MIG_CARD(t, device);
    NV_NEED(count);
    const struct card_mig *p = mig_by_id(t.card, id);

    if (p == NULL) return NVML_ERROR_NOT_SUPPORTED;
    unsigned int capacity = *count;

    *count = p->start_count;
    if (placements == NULL) return NVML_SUCCESS;
    if (capacity < p->start_count) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (uint32_t i = 0; i < p->start_count; i++)
        placements[i] = (nvmlGpuInstancePlacement_t){.start = p->starts[i], .size = p->size};
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, unsigned int id,
                                                    nvmlGpuInstancePlacement_t *placements,
                                                    unsigned int *count)
{
    return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, id, placements, count);
}

NVML_API nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned int id, unsigned int *count)
{
    NV_MIG_CARD(t, device);
    NV_NEED(count);
    const struct card_mig *p = mig_by_id(t.card, id);

    if (p == NULL || !t.device->mig.mode) return NVML_ERROR_NOT_SUPPORTED;
    sim_lock_device(t.sim, t.index);
    *count = mig_capacity(&t, p);
    sim_unlock_device(t.sim, t.index);
    return NVML_SUCCESS;
}

/* Find a free index in the state file. The whole card is instance 0, others count from 1. */
static uint32_t gi_free_index(const struct sim_mig *m, bool whole)
{
    for (uint32_t i = whole ? 0 : 1; i < SIM_GI_MAX; i++)
        if (!m->gi[i].used) return i;
    return UINT32_MAX;
}

/* Requires the device's lock. */
static nvmlReturn_t gi_create(const struct nv_target *t, const struct card_mig *p, uint32_t wanted,
                              nvmlGpuInstance_t *out)
{
    struct sim_mig *m = &t->device->mig;
    uint32_t place = gi_free_index(m, p->slices == t->card->mig_slices), start = UINT32_MAX;

    if (wanted != UINT32_MAX && !mig_is_legal(p, wanted)) return NVML_ERROR_INVALID_ARGUMENT;
    for (uint32_t i = 0; i < p->start_count && start == UINT32_MAX; i++)
        if ((wanted == UINT32_MAX || wanted == p->starts[i]) && mig_fits(t, p, p->starts[i]))
            start = p->starts[i];
    if (start == UINT32_MAX || place == UINT32_MAX) return NVML_ERROR_INSUFFICIENT_RESOURCES;
    m->gi[place] = (struct sim_gi){.used = 1,
                                   .id = place,
                                   .profile = p->nvml_enum,
                                   .slice_start = start,
                                   .slice_count = p->slices,
                                   .sm_count = p->sm_count,
                                   .memory_slices = p->size,
                                   .media = (uint32_t)p->media,
                                   .memory_bytes = p->memory_mib * CARD_MIB};
    m->generation++;
    *out = nv_gi_handle(t->index, place);
    return NVML_SUCCESS;
}

static nvmlReturn_t gi_create_at(nvmlDevice_t device, unsigned int id,
                                 const nvmlGpuInstancePlacement_t *placement, nvmlGpuInstance_t *out)
{
    NV_MIG_CARD(t, device);
    NV_NEED(out);
    const struct card_mig *p = mig_by_id(t.card, id);

    if (p == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    if (!t.device->mig.mode) return NVML_ERROR_NOT_SUPPORTED;
    if (geteuid() != 0) return NVML_ERROR_NO_PERMISSION;
    if (placement != NULL && placement->size != p->size) return NVML_ERROR_INVALID_ARGUMENT;
    sim_lock_device(t.sim, t.index);
    nvmlReturn_t result = gi_create(&t, p, placement != NULL ? placement->start : UINT32_MAX, out);
    sim_unlock_device(t.sim, t.index);
    if (result == NVML_SUCCESS) root_refresh(t.sim, t.index);
    return result;
}

NVML_API nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *out)
{
    return gi_create_at(device, id, NULL, out);
}

NVML_API nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned int id,
                                                  const nvmlGpuInstancePlacement_t *placement,
                                                  nvmlGpuInstance_t *out)
{
    NV_NEED(placement);
    return gi_create_at(device, id, placement, out);
}

static bool has_compute_instance(const struct sim_mig *m, uint32_t gi)
{
    for (uint32_t i = 0; i < SIM_CI_MAX; i++)
        if (m->ci[i].used && m->ci[i].gi_id == gi) return true;
    return false;
}

NVML_API nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
    struct nv_target t;
    nvmlReturn_t result = nv_resolve_gi(instance, &t);

    if (result != NVML_SUCCESS) return result;
    if (geteuid() != 0) return NVML_ERROR_NO_PERMISSION;
    struct sim_mig *m = &t.device->mig;

    nv_refresh(&t);
    sim_lock_device(t.sim, t.index);
    if (m->gi[t.gi].used_bytes > 0 || has_compute_instance(m, t.gi)) {
        result = NVML_ERROR_IN_USE;
    } else {
        memset(&m->gi[t.gi], 0, sizeof m->gi[t.gi]);
        m->generation++;
    }
    sim_unlock_device(t.sim, t.index);
    if (result == NVML_SUCCESS) root_refresh(t.sim, t.index);
    return result;
}

NVML_API nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instances,
                                   unsigned int *count)
{
    NV_MIG_CARD(t, device);
    NV_NEED(instances);
    NV_NEED(count);
    const struct card_mig *p = mig_by_id(t.card, id);

    if (p == NULL) return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    for (uint32_t i = 0; i < SIM_GI_MAX && *count < p->max_count; i++)
        if (t.device->mig.gi[i].used && t.device->mig.gi[i].profile == p->nvml_enum)
            instances[(*count)++] = nv_gi_handle(t.index, i);
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned int id, nvmlGpuInstance_t *instance)
{
    NV_MIG_CARD(t, device);
    NV_NEED(instance);
    if (id >= SIM_GI_MAX || !t.device->mig.gi[id].used) return NVML_ERROR_NOT_FOUND;
    *instance = nv_gi_handle(t.index, id);
    return NVML_SUCCESS;
}

NVML_API nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info)
{
    struct nv_target t;
    nvmlReturn_t result = nv_resolve_gi(instance, &t);

    if (result != NVML_SUCCESS) return result;
    NV_NEED(info);
    const struct sim_gi *g = &t.device->mig.gi[t.gi];
    const struct card_mig *p = mig_by_enum(t.card, g->profile);

    if (p == NULL) return NVML_ERROR_UNKNOWN;
    *info = (nvmlGpuInstanceInfo_t){.device = nv_device_handle(t.index),
                                    .id = g->id,
                                    .profileId = p->id,
                                    .placement = {.start = g->slice_start, .size = g->memory_slices}};
    return NVML_SUCCESS;
}
