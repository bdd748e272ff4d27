/* Threads that help each other through launches: as many as the process has processors, made when first needed. */
#ifndef CALABASH_SIM_PTX_POOL_H
#define CALABASH_SIM_PTX_POOL_H

/* Runs `work` of `job` in this thread; returns when those that were asked for help have left it too. */
void pool_run(void *job, void (*work)(void *job));
/* From within `work`: whoever is idle may run it too. Nothing after the first time. */
void pool_help(void *job);

#endif
