/* Look-up of a function in a loaded object without the dynamic linker; see elf.c. */
#ifndef CALABASH_SHIM_ELF_H
#define CALABASH_SHIM_ELF_H

/* Address of `name` in the C library or the old libdl; NULL: not loaded, or no such symbol. */
void *cb_libc_symbol(const char *name);

/*
 * Return true if the object at `address` has the DT_SONAME `soname` or, having none, lies in a file of that
 * name.
 */
int cb_object_is(const void *address, const char *soname);

struct link_map;

/*
 * Return true if a driver is among the objects of a namespace, by their DT_SONAME. `any`: one of its objects.
 */
int cb_list_has_driver(const struct link_map *any);

#endif
