/* Looking a function up in a loaded object without the dynamic linker's help; see elf.c. */
#ifndef CALABASH_SHIM_ELF_H
#define CALABASH_SHIM_ELF_H

/* The address of `name` in the C library or the old libdl; NULL: not loaded or not there. */
void *cb_libc_symbol(const char *name);

/* Whether the object at `address` calls itself `soname` or, having none, lies in a file of that name. */
int cb_object_is(const void *address, const char *soname);

struct link_map;

/* Whether a driver is among the objects of a namespace, by what they call themselves. `any`: one of them. */
int cb_list_has_driver(const struct link_map *any);

#endif
