/* Creation of a node. */
#ifndef CALABASH_SIMCTL_CREATE_H
#define CALABASH_SIMCTL_CREATE_H

/*
 * Create the node file `path` with the cards that `gpus` lists ("4xA100-40GB,2xT4"); `name` and `seed` may be
 * NULL. On failure the process ends with an error.
 */
void simctl_create(const char *path, const char *gpus, const char *name, const char *seed);

#endif
