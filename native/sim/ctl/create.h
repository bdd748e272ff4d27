/* Making a node. */
#ifndef CALABASH_SIMCTL_CREATE_H
#define CALABASH_SIMCTL_CREATE_H

/* Make the node file `path` of the cards that `gpus` lists ("4xA100-40GB,2xT4"); `name` and `seed` may be NULL.
 * Ends with an error when it cannot be. */
void simctl_create(const char *path, const char *gpus, const char *name, const char *seed);

#endif
