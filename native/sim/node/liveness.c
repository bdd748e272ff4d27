/* Liveness of the processes of a node. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/node/liveness.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

bool sim_slot_is_held(struct sim *s, uint32_t slot)
{
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LIVE_BASE + slot, .l_len = 1};
    if (fcntl(s->fd, F_OFD_GETLK, &l) != 0) return true;
    return l.l_type != F_UNLCK;
}

/*
 * The program may have closed our descriptor, and its number may be another file's now. The slot's lock lasts
 * as long as the mapping; any descriptor of the node will do to test the locks of others.
 */
bool sim_liveness_readable(struct sim *s)
{
    struct stat st;
    if (fstat(s->fd, &st) == 0 && st.st_dev == s->file_device && st.st_ino == s->file_inode) return true;
    int fd = open(s->path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return false;
    if (fstat(fd, &st) != 0 || st.st_dev != s->file_device || st.st_ino != s->file_inode) {
        close(fd);
        return false;
    }
    s->fd = fd;
    return true;
}

struct sim_remains sim_remains_on(struct sim *s, uint32_t device)
{
    struct sim_remains found = {0, 0};
    bool looked = false;
    for (uint32_t i = 0; i < sim_procs_used(s->node); i++) {
        const struct sim_proc *p = &s->node->proc[i];
        const struct sim_proc_device *held = &p->device[device];
        if (p->state != SIM_SLOT_LIVE || (int)i == s->slot || held->alloc_bytes + held->context_bytes == 0)
            continue;
        if (!looked && !sim_liveness_readable(s)) break;
        looked = true;
        if (sim_slot_is_held(s, i)) continue;
        found.alloc_bytes += held->alloc_bytes;
        found.context_bytes += held->context_bytes;
    }
    return found;
}
