/* The directory tree of root_tree.h: its files, and the part that follows the MIG layout. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/node/root_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define PATH_BYTES 256

/* Numbered as by the driver: config 1, monitor 2, then nine for each GPU instance of each card. */
uint32_t root_gi_minor(uint32_t gpu_minor, uint32_t gi)
{
    return 3 + (gpu_minor * ROOT_GI_MAX + gi) * (ROOT_CI_MAX + 1);
}

uint32_t root_ci_minor(uint32_t gpu_minor, uint32_t gi, uint32_t ci)
{
    return root_gi_minor(gpu_minor, gi) + 1 + ci;
}

int root_open(const struct sim *s)
{
    char path[sizeof s->path];
    struct stat st;
    const char *slash = strrchr(s->path, '/');
    int length = slash != NULL ? (int)(slash - s->path) + 1 : 0;
    if (snprintf(path, sizeof path, "%.*sroot", length, s->path) >= (int)sizeof path) return -1;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && (fstat(fd, &st) != 0 || st.st_uid != geteuid())) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static int directories_make(int root, const char *path)
{
    char part[PATH_BYTES];
    for (const char *slash = strchr(path, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        snprintf(part, sizeof part, "%.*s", (int)(slash - path), path);
        if (mkdirat(root, part, 0755) != 0 && errno != EEXIST) return -errno;
    }
    return 0;
}

int root_write(int root, const char *path, const char *format, ...)
{
    char text[4096];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (length < 0 || length >= (int)sizeof text) return -EMSGSIZE;
    int result = directories_make(root, path);
    if (result != 0) return result;
    int fd = openat(root, path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0) return -errno;
    if (write(fd, text, (size_t)length) != length) result = -EIO;
    close(fd);
    return result;
}

int root_node(int root, const char *path, uint32_t major_number, uint32_t minor_number)
{
    int result = directories_make(root, path);
    if (result != 0) return result;
    if (mknodat(root, path, S_IFCHR | 0666, makedev(major_number, minor_number)) == 0)
        return fchmodat(root, path, 0666, 0) == 0 ? 0 : -errno;
    if (errno == EEXIST) return 0;
    return errno == EPERM ? root_write(root, path, "%s", "") : -errno;
}

int root_capability(int root, const char *path, uint32_t minor_number)
{
    char node[PATH_BYTES];
    int result = root_write(root, path, "DeviceFileMinor: %u\nDeviceFileMode: 256\nDeviceFileModify: 1\n",
                            minor_number);
    if (result != 0) return result;
    snprintf(node, sizeof node, "dev/nvidia-caps/nvidia-cap%u", minor_number);
    return root_node(root, node, ROOT_MAJOR_CAPS, minor_number);
}

/* Create one instance's file and device node, or remove them with its directory. */
static void instance_update(int root, const char *directory, bool used, uint32_t minor_number)
{
    char path[PATH_BYTES], node[PATH_BYTES];
    snprintf(path, sizeof path, "%s/access", directory);
    if (used) {
        root_capability(root, path, minor_number);
        return;
    }
    snprintf(node, sizeof node, "dev/nvidia-caps/nvidia-cap%u", minor_number);
    if (unlinkat(root, path, 0) == 0) unlinkat(root, node, 0);
    unlinkat(root, directory, AT_REMOVEDIR);
}

void root_refresh(const struct sim *s, uint32_t device)
{
    const struct sim_device *d = &s->node->device[device];
    uint32_t gpu = d->profile.minor_number;
    char directory[PATH_BYTES];
    int root = root_open(s);
    if (root < 0) return;
    while (flock(root, LOCK_EX) != 0 && errno == EINTR)
        ;
    for (uint32_t gi = 0; gi < ROOT_GI_MAX && gi < SIM_GI_MAX; gi++) {
        bool used[ROOT_CI_MAX] = {false};
        for (uint32_t i = 0; i < SIM_CI_MAX; i++) {
            const struct sim_ci *c = &d->mig.ci[i];
            if (c->used && c->gi_id == gi && c->id < ROOT_CI_MAX) used[c->id] = true;
        }
        for (uint32_t ci = 0; ci < ROOT_CI_MAX; ci++) {
            snprintf(directory, sizeof directory, "proc/driver/nvidia/capabilities/gpu%u/mig/gi%u/ci%u", gpu,
                     gi, ci);
            instance_update(root, directory, used[ci], root_ci_minor(gpu, gi, ci));
        }
        snprintf(directory, sizeof directory, "proc/driver/nvidia/capabilities/gpu%u/mig/gi%u", gpu, gi);
        instance_update(root, directory, d->mig.gi[gi].used != 0, root_gi_minor(gpu, gi));
    }
    close(root);
}
