/*
 * Every hook, with the place of the real function behind it. The table is found by its section, so that those
 * who look into it stand below the hooks.
 */
#include "shim/hook.h"
#include "shim/nvml_view.h"
#include "shim/real.h"

static const struct cb_hook table[] CB_HOOKS = {
#define CB_NAME(name) {#name, (void *)name, (void **)&cb_real.name},
#include "shim/hooks.inc"
#undef CB_NAME
#define CB_NAME(name) {#name, (void *)cb_nvml_denied, NULL},
#include "shim/denied.inc"
#undef CB_NAME
};
