/*
 * All hooks, with the place of the real function behind each. The table is found by its section, so that the
 * units that search it do not depend on the hooks.
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
