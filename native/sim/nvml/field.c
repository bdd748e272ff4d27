/* Field values: figures that monitoring agents read by number. */
#include "sim/nvml/activity.h"
#include "sim/nvml/core.h"

#define MEMORY_OVER_GPU_C 5u /* stacked memory runs a little warmer than the chip */
#define HBM_BUS_BITS      1024u
#define MARGIN_SHUTDOWN_C (-5)

static nvmlReturn_t value_put(nvmlFieldValue_t *v, uint64_t value)
{
    v->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
    v->value.ullVal = value;
    return NVML_SUCCESS;
}

static nvmlReturn_t value_put_uint(nvmlFieldValue_t *v, uint32_t value)
{
    v->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
    v->value.ullVal = 0;
    v->value.uiVal = value;
    return NVML_SUCCESS;
}

static nvmlReturn_t field_memory_errors(const struct sim_device *d, nvmlFieldValue_t *v)
{
    const struct sim_faults *f = &d->faults;

    if (!d->profile.ecc_capable) return NVML_ERROR_NOT_SUPPORTED;
    switch (v->fieldId) {
    case NVML_FI_DEV_ECC_CURRENT:
        return value_put_uint(v, d->ecc_mode);
    case NVML_FI_DEV_ECC_PENDING:
        return value_put_uint(v, d->ecc_mode_pending);
    case NVML_FI_DEV_ECC_SBE_VOL_TOTAL:
    case NVML_FI_DEV_ECC_SBE_VOL_DEV:
        return value_put(v, f->ecc_volatile_sbe);
    case NVML_FI_DEV_ECC_DBE_VOL_TOTAL:
    case NVML_FI_DEV_ECC_DBE_VOL_DEV:
        return value_put(v, f->ecc_volatile_dbe);
    case NVML_FI_DEV_ECC_SBE_AGG_TOTAL:
    case NVML_FI_DEV_ECC_SBE_AGG_DEV:
        return value_put(v, f->ecc_aggregate_sbe);
    case NVML_FI_DEV_ECC_DBE_AGG_TOTAL:
    case NVML_FI_DEV_ECC_DBE_AGG_DEV:
        return value_put(v, f->ecc_aggregate_dbe);
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

static nvmlReturn_t field_repairs(const struct nv_target *t, nvmlFieldValue_t *v)
{
    const struct sim_faults *f = &t->device->faults;
    bool remaps = t->card->remapping;

    switch (v->fieldId) {
    case NVML_FI_DEV_RETIRED_SBE:
    case NVML_FI_DEV_RETIRED_DBE:
    case NVML_FI_DEV_RETIRED_PENDING:
        return remaps ? NVML_ERROR_NOT_SUPPORTED : value_put(v, 0);
    case NVML_FI_DEV_REMAPPED_COR:
        return remaps ? value_put(v, f->remapped_rows_correctable) : NVML_ERROR_NOT_SUPPORTED;
    case NVML_FI_DEV_REMAPPED_UNC:
        return remaps ? value_put(v, f->remapped_rows_uncorrectable) : NVML_ERROR_NOT_SUPPORTED;
    case NVML_FI_DEV_REMAPPED_PENDING:
        return remaps ? value_put(v, f->remapped_rows_pending > 0) : NVML_ERROR_NOT_SUPPORTED;
    case NVML_FI_DEV_REMAPPED_FAILURE:
        return remaps ? value_put(v, 0) : NVML_ERROR_NOT_SUPPORTED;
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

static nvmlReturn_t field_power_and_temperature(const struct nv_target *t, nvmlFieldValue_t *v)
{
    const struct sim_profile *p = &t->device->profile;

    switch (v->fieldId) {
    case NVML_FI_DEV_POWER_AVERAGE:
    case NVML_FI_DEV_POWER_INSTANT:
        return value_put_uint(v, nv_power_mw(t));
    case NVML_FI_DEV_POWER_MIN_LIMIT:
        return value_put_uint(v, p->power_limit_min_mw);
    case NVML_FI_DEV_POWER_MAX_LIMIT:
        return value_put_uint(v, p->power_limit_max_mw);
    case NVML_FI_DEV_POWER_DEFAULT_LIMIT:
        return value_put_uint(v, p->power_limit_mw);
    case NVML_FI_DEV_POWER_CURRENT_LIMIT:
    case NVML_FI_DEV_POWER_REQUESTED_LIMIT:
        return value_put_uint(v, nv_power_limit_mw(t));
    case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
    case NVML_FI_DEV_ENERGY:
        return p->architecture < NVML_DEVICE_ARCH_VOLTA ? NVML_ERROR_NOT_SUPPORTED
                                                        : value_put(v, nv_energy_mj(t));
    case NVML_FI_DEV_MEMORY_TEMP:
        return p->memory_bus_bits < HBM_BUS_BITS ? NVML_ERROR_NOT_SUPPORTED
                                                 : value_put_uint(v, nv_temperature_c(t) + MEMORY_OVER_GPU_C);
    case NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT:
        v->valueType = NVML_VALUE_TYPE_SIGNED_INT;
        v->value.sllVal = 0;
        v->value.siVal = MARGIN_SHUTDOWN_C;
        return NVML_SUCCESS;
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

static nvmlReturn_t field_links(const struct nv_target *t, nvmlFieldValue_t *v)
{
    const struct card *c = t->card;

    switch (v->fieldId) {
    case NVML_FI_DEV_NVLINK_LINK_COUNT:
        return value_put_uint(v, c->nvlink_count);
    case NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON:
        return c->nvlink_count ? value_put_uint(v, c->nvlink_mb_s) : NVML_ERROR_NOT_SUPPORTED;
    case NVML_FI_DEV_NVLINK_GET_SPEED:
        return v->scopeId < c->nvlink_count ? value_put_uint(v, c->nvlink_mb_s) : NVML_ERROR_NOT_SUPPORTED;
    case NVML_FI_DEV_NVLINK_GET_VERSION:
        return v->scopeId < c->nvlink_count ? value_put_uint(v, c->nvlink_version) : NVML_ERROR_NOT_SUPPORTED;
    case NVML_FI_DEV_NVLINK_GET_STATE:
        return v->scopeId < c->nvlink_count ? value_put_uint(v, t->device->profile.nvlink_peer_mask != 0)
                                            : NVML_ERROR_NOT_SUPPORTED;
    case NVML_FI_DEV_PCIE_REPLAY_COUNTER:
    case NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER:
        return value_put(v, 0);
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

NVML_API nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    NV_TARGET(t, device, NV_CARD);
    NV_NEED(values);
    if (count < 1) return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        nvmlFieldValue_t *v = &values[i];

        v->timestamp = (long long)(nv_realtime_ns() / 1000);
        v->latencyUsec = 0;
        v->nvmlReturn = field_memory_errors(t.device, v);
        if (v->nvmlReturn == NVML_ERROR_NOT_SUPPORTED) v->nvmlReturn = field_repairs(&t, v);
        if (v->nvmlReturn == NVML_ERROR_NOT_SUPPORTED) v->nvmlReturn = field_power_and_temperature(&t, v);
        if (v->nvmlReturn == NVML_ERROR_NOT_SUPPORTED) v->nvmlReturn = field_links(&t, v);
    }
    return NVML_SUCCESS;
}
