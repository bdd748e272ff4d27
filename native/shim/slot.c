/*
 * Finding the slot, checking it and mapping its pages.
 *
 * Sealed slots. A pool of root makes each slot a tmpfs and sets the immutable attribute on its directory. The
 * kernel lets only a process with CAP_LINUX_IMMUTABLE in the initial user namespace set that attribute, so no
 * tenant can make a directory that has it, whatever namespaces, mounts or file systems it makes, and no file in
 * it can be replaced. Both pages have to lie on the file system of that directory.
 *
 * A process that such a pool has taken into an allocation has a finite hard limit of RLIMIT_LOCKS, which Linux
 * does not use otherwise. The limit is inherited, and only CAP_SYS_RESOURCE in the initial user namespace can
 * raise it again. A process with this mark accepts sealed slots only. The limits page names the control group
 * of its allocation by its number, and the process compares that with the number that the kernel reports for
 * the process (PIDFD_GET_INFO, Linux 6.13), or with the name in /proc/self/cgroup if the kernel reports no
 * number. Neither depends on the mounts that the process sees. So the slot of another allocation is refused as
 * well, and that of an ended one.
 *
 * Other slots are checked by their owners, as follows.
 *
 * In a container the slot is at a fixed path, which the tenant cannot redirect. Elsewhere the environment names
 * it; then it must belong to root, to the owner of this library, or to the user who runs the program. Nobody
 * else may have write permission on the limits. Whatever is missing or fails a check is refused: a tenant
 * without limits does not run. No open blocks: a pipe or a device in place of a file is refused as well.
 *
 * A process that the kernel counts to an allocation of a pool (its control group is
 * .../calabash-XXXXXXXX/ALLOCATION) accepts limits from that pool alone: the slot, and each directory above it
 * up to the root, must belong to the owner of that group or to root, without write permission for others, and
 * the limits must name that very allocation. So a member of root's pool cannot forge a slot. The control group
 * is looked up below the mounts that /proc/self/mountinfo shows; one that cannot be seen is assumed to be
 * root's.
 */
#define _GNU_SOURCE
#include "shim/slot.h"

#include "shim/base.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <linux/stat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#define FIXED_PATH      "/run/calabash/slot"
#define LEASE_FD_LOWEST 200 /* above the low descriptors that programs arrange by hand */
#define WAIT_NS         1000000l
#define WAITS_MAX       100
#define PROC_ROOT_INODE 1

/* Numbers and structures that older headers lack. */
#define CALL_PIDFD_OPEN 434
#define CALL_OPENAT2    437
struct pidfd_group { /* the first 64 bytes of struct pidfd_info */
    uint64_t mask;
    uint64_t group;
    uint32_t others[12];
};
#define GROUP_TOLD      (1ull << 2)
#define ASK_PIDFD_GROUP _IOWR(0xFF, 11, struct pidfd_group)

/* The control group of this process in a pool: the name of its allocation, and the owner of the group. */
struct membership {
    char allocation[64];
    uid_t owner;
    bool proven; /* read from the kernel's own file, whatever is mounted over it */
};

struct slot {
    char path[4096];
    int directory;
    bool fixed;
    bool sealed; /* made by root of the machine */
    bool marked; /* this process accepts sealed slots only */
    dev_t device;
    bool member;
    struct membership membership; /* valid if `member` */
};

/* fstat() got its present symbol in glibc 2.33 only. */
static int file_status(int fd, struct stat *status)
{
    return (int)syscall(SYS_fstat, fd, status);
}

static int visit_for_owner(struct dl_phdr_info *info, size_t size, void *argument)
{
    struct stat status;
    const char *slash = strrchr(info->dlpi_name, '/');
    (void)size;
    if (slash == NULL || strcmp(slash + 1, "libcalabash.so") != 0) return 0;
    if (syscall(SYS_newfstatat, AT_FDCWD, info->dlpi_name, &status, 0) == 0)
        *(uid_t *)argument = status.st_uid;
    return 1;
}

static bool is_on_file_system(int fd, long kind)
{
    struct statfs found = {0};
    return fstatfs(fd, &found) == 0 && (unsigned long)found.f_type == (unsigned long)kind;
}

/* Return true if root of the machine made this directory immutable on a tmpfs. */
static bool slot_is_sealed(int directory)
{
    struct statx found = {0};
    return is_on_file_system(directory, TMPFS_MAGIC) &&
           syscall(SYS_statx, directory, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &found) == 0 &&
           (found.stx_attributes & STATX_ATTR_IMMUTABLE) != 0;
}

/* Return true if a pool with sealed slots has taken this process in; also if that cannot be read. */
static bool process_is_marked(void)
{
    struct rlimit locks = {0};
    return getrlimit(RLIMIT_LOCKS, &locks) != 0 || locks.rlim_max != RLIM_INFINITY;
}

/* Number of the control group of this process; 0: the kernel does not report it. */
static uint64_t own_cgroup_number(void)
{
    struct pidfd_group told = {.mask = GROUP_TOLD};
    int self = (int)syscall(CALL_PIDFD_OPEN, (pid_t)syscall(SYS_getpid), 0);
    if (self < 0) return 0;
    bool done = ioctl(self, ASK_PIDFD_GROUP, &told) == 0 && (told.mask & GROUP_TOLD) != 0;
    close(self);
    return done ? told.group : 0;
}

/*
 * Open a file of /proc without following mounts over it; -1: this kernel cannot, or /proc is another file
 * system.
 */
static int proc_open_unmasked(const char *path)
{
    struct open_how how = {.flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC,
                           .resolve = RESOLVE_NO_XDEV | RESOLVE_NO_MAGICLINKS};
    struct stat root = {0};
    int fd = -1, proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (proc < 0) return -1;
    if (is_on_file_system(proc, PROC_SUPER_MAGIC) && file_status(proc, &root) == 0 &&
        root.st_ino == PROC_ROOT_INODE)
        fd = (int)syscall(CALL_OPENAT2, proc, path, &how, sizeof(how));
    close(proc);
    return fd;
}

/*
 * Read the line of a file of /proc that contains `wanted` into `line`; return false if there is none. `proven`:
 * the file is the kernel's, whatever is mounted over it.
 */
static bool proc_find_line(const char *path, const char *wanted, char *line, size_t size, bool *proven)
{
    char text[16384];
    size_t length = 0;
    int fd = proc_open_unmasked(path + strlen("/proc/"));
    if (proven != NULL) *proven = fd >= 0;
    if (fd < 0) fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return false;
    for (ssize_t got;
         length < sizeof(text) - 1 && (got = read(fd, text + length, sizeof(text) - 1 - length)) > 0;)
        length += (size_t)got;
    close(fd);
    text[length] = 0;
    char *found = strstr(text, wanted);
    if (found == NULL) return false;
    char *begin = found, *end = strchr(found, '\n');
    while (begin > text && begin[-1] != '\n')
        begin--;
    length = end != NULL ? (size_t)(end - begin) : strlen(begin);
    if (length >= size) return false;
    memcpy(line, begin, length);
    line[length] = 0;
    return true;
}

/*
 * Return true if `pid` is in the control group ".../calabash-XXXXXXXX/ALLOCATION" of this process or below it.
 */
bool cb_slot_holds(int32_t pid)
{
    char own[4096], other[4096], path[32];
    int saved = errno;
    snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)pid);
    bool told = proc_find_line("/proc/self/cgroup", "/calabash-", own, sizeof(own), NULL);
    bool holds = !told || proc_find_line(path, "/calabash-", other, sizeof(other), NULL);
    if (told && holds) {
        const char *mine = strstr(own, "/calabash-") + 1, *its = strstr(other, "/calabash-") + 1;
        size_t pool = strcspn(mine, "/");
        size_t length = mine[pool] != 0 ? pool + 1 + strcspn(mine + pool + 1, "/") : pool;
        holds = strncmp(mine, its, length) == 0 && (its[length] == 0 || its[length] == '/');
    }
    errno = saved;
    return holds;
}

static bool membership_read(struct membership *member)
{
    char line[4096], mount[4096], path[8192];
    struct stat status;
    if (!proc_find_line("/proc/self/cgroup", "/calabash-", line, sizeof(line), &member->proven)) return false;
    const char *group = strchr(line, '/'), *pool = strstr(line, "/calabash-");
    const char *allocation = strchr(pool + 1, '/');
    if (allocation == NULL || allocation - pool != 18 || strspn(pool + 10, "0123456789abcdef") != 8)
        return false;
    size_t length = strcspn(allocation + 1, "/");
    if (length == 0 || length >= sizeof(member->allocation)) return false;
    memcpy(member->allocation, allocation + 1, length);
    member->allocation[length] = 0;
    member->owner = 0;
    char *point = NULL, *position = NULL;
    if (proc_find_line("/proc/self/mountinfo", " - cgroup2 ", mount, sizeof(mount), NULL))
        for (int field = 0; field < 5; field++)
            point = strtok_r(field == 0 ? mount : NULL, " ", &position);
    if (point != NULL &&
        snprintf(path, sizeof(path), "%s%.*s", point, (int)(allocation + 1 + length - group), group) <
            (int)sizeof(path) &&
        syscall(SYS_newfstatat, AT_FDCWD, path, &status, 0) == 0)
        member->owner = status.st_uid;
    return true;
}

static bool writable_by_others(const struct stat *status)
{
    return (status->st_mode & S_IWOTH) != 0 && (status->st_mode & S_ISVTX) == 0;
}

/*
 * Check the slot and the directories up to the root: owned by the pool's owner or by root, and not writable by
 * others.
 */
static bool ancestors_belong_to_pool(int directory, uid_t owner)
{
    struct stat status, above;
    bool fine = true;
    int at = fcntl(directory, F_DUPFD_CLOEXEC, 0);
    for (int depth = 0; at >= 0 && fine && depth < 256; depth++) {
        int up = openat(at, "..", O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC);
        if (up < 0)
            up = openat(at, "..", O_PATH | O_DIRECTORY | O_CLOEXEC); /* searchable but perhaps not readable */
        fine = up >= 0 && file_status(at, &status) == 0 && file_status(up, &above) == 0 &&
               (status.st_uid == owner || status.st_uid == 0) && !writable_by_others(&status);
        close(at);
        at = up;
        if (fine && status.st_dev == above.st_dev && status.st_ino == above.st_ino) break;
    }
    if (at >= 0) close(at);
    return fine;
}

static bool owner_is_trusted(const struct slot *slot, uid_t owner)
{
    uid_t library = 0;
    if (owner == 0 || (!slot->fixed && owner == geteuid())) return true;
    dl_iterate_phdr(visit_for_owner, &library);
    return owner == library;
}

static bool slot_open_directory(struct slot *slot)
{
    const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    slot->directory = open(FIXED_PATH, flags);
    slot->fixed = slot->directory >= 0 || errno != ENOENT;
    const char *path = slot->fixed ? FIXED_PATH : getenv("CALABASH_SLOT");
    if (path == NULL || path[0] != '/') {
        cb_say("no limits found: there is no " FIXED_PATH " and CALABASH_SLOT names no directory; "
               "hint: start the program with `calabash run`");
        return false;
    }
    strncpy(slot->path, path, sizeof(slot->path) - 1);
    if (!slot->fixed) slot->directory = open(path, flags);
    if (slot->directory < 0) {
        cb_say("cannot open the slot %s: %s; hint: its allocation may have been released", path,
               strerror(errno));
        return false;
    }
    struct stat status = {0};
    slot->sealed = slot_is_sealed(slot->directory);
    slot->marked = process_is_marked();
    slot->member = membership_read(&slot->membership);
    if (slot->marked && !slot->sealed) {
        cb_say("the slot %s was not made by the pool that started this program; hint: leave the slot and "
               "CALABASH_SLOT as `calabash run` has set them up",
               path);
        return false;
    }
    if (file_status(slot->directory, &status) != 0 ||
        (!slot->sealed &&
         (!owner_is_trusted(slot, status.st_uid) || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0))) {
        cb_say("the slot %s is not trusted: owner %u, mode %o", path, (unsigned)status.st_uid,
               (unsigned)status.st_mode & 07777u);
        return false;
    }
    slot->device = status.st_dev;
    if (slot->member && !slot->fixed && !slot->sealed &&
        !ancestors_belong_to_pool(slot->directory, slot->membership.owner)) {
        cb_say("the slot %s does not belong to the pool of this process; "
               "hint: leave CALABASH_SLOT as `calabash run` has set it",
               path);
        return false;
    }
    return true;
}

static void *slot_map_pages(const struct slot *slot, const char *name, size_t size, bool writable)
{
    struct stat status;
    int fd =
        openat(slot->directory, name, (writable ? O_RDWR : O_RDONLY) | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        cb_say("cannot open %s/%s: %s", slot->path, name,
               errno == ELOOP ? "it is a symbolic link" : strerror(errno));
        return NULL;
    }
    void *page = NULL;
    if (file_status(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        cb_say("%s/%s is not a regular file", slot->path, name);
    } else if ((uint64_t)status.st_size != size) {
        cb_say("%s/%s has %lld bytes, expected %zu: damaged, or of another version of calabash", slot->path,
               name, (long long)status.st_size, size);
    } else if (slot->sealed && (status.st_dev != slot->device || !is_on_file_system(fd, TMPFS_MAGIC))) {
        cb_say("%s/%s is not on the file system of its slot", slot->path, name);
    } else if (!writable && !slot->sealed &&
               (!owner_is_trusted(slot, status.st_uid) || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0)) {
        cb_say("%s/%s is not trusted: owner %u, mode %o", slot->path, name, (unsigned)status.st_uid,
               (unsigned)status.st_mode & 07777u);
    } else {
        page = mmap(NULL, size, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
        if (page == MAP_FAILED) {
            cb_say("cannot map %s/%s: %s", slot->path, name, strerror(errno));
            page = NULL;
        }
    }
    close(fd);
    return page;
}

static int slot_take_lease(const struct slot *slot)
{
    const struct timespec pause = {.tv_sec = 0, .tv_nsec = WAIT_NS};
    int fd = openat(slot->directory, "lease", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) {
        cb_say("cannot open %s/lease: %s", slot->path, strerror(errno));
        return -1;
    }
    struct stat status;
    if (file_status(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        cb_say("%s/lease is not a regular file", slot->path);
        close(fd);
        return -1;
    }
    int high = fcntl(fd, F_DUPFD_CLOEXEC, LEASE_FD_LOWEST);
    if (high >= 0) {
        close(fd);
        fd = high;
    }
    /* The pool holds the exclusive lock for an instant when it checks whether a process is left. */
    for (int i = 0; i < WAITS_MAX; i++) {
        if (flock(fd, LOCK_SH | LOCK_NB) == 0) return fd;
        if (errno != EWOULDBLOCK && errno != EINTR) break;
        nanosleep(&pause, NULL);
    }
    cb_say("cannot take the lease of %s: its allocation has ended", slot->path);
    close(fd);
    return -1;
}

/* Return true if the limits are those of the allocation that the kernel counts this process to. */
static bool limits_name_own_group(const struct slot *slot, const struct cb_limits *limits)
{
    const char *name = limits->name[0] != 0 ? limits->name : limits->allocation;
    size_t size = limits->name[0] != 0 ? sizeof(limits->name) : sizeof(limits->allocation);
    bool named = slot->member && strncmp(name, slot->membership.allocation, size) == 0;
    if (!slot->sealed) return !slot->member || slot->fixed || named;
    if (limits->group == 0) return !slot->marked; /* a container's slot, where the agent makes no groups */
    /* A group that root has made within the allocation's has a number of its own, and the name above it. */
    return own_cgroup_number() == limits->group || (named && slot->membership.proven);
}

static bool slot_check_pages(const struct slot *slot, const struct cb_limits *limits,
                             const struct cb_usage *usage)
{
    const struct timespec pause = {.tv_sec = 0, .tv_nsec = WAIT_NS};
    for (int i = 0; i < WAITS_MAX && (__atomic_load_n(&limits->generation, __ATOMIC_ACQUIRE) & 1u) != 0; i++)
        nanosleep(&pause, NULL);
    if (limits->magic != CB_LIMITS_MAGIC || usage->magic != CB_USAGE_MAGIC) {
        cb_say("the pages in %s are damaged: magic %016llx and %016llx", slot->path,
               (unsigned long long)limits->magic, (unsigned long long)usage->magic);
        return false;
    }
    if (limits->version < CB_PAGE_PLAIN || limits->version > CB_PAGE_VERSION ||
        usage->version != limits->version) {
        cb_say("the pages in %s have version %u and %u, this library supports %u to %u; "
               "hint: run the program in a slice of the same version of calabash",
               slot->path, limits->version, usage->version, CB_PAGE_PLAIN, CB_PAGE_VERSION);
        return false;
    }
    if (!limits_name_own_group(slot, limits)) {
        cb_say("the slot %s is not that of this process's allocation, or the kernel does not report its "
               "control group; "
               "hint: start containers with the control group namespace of their host",
               slot->path);
        return false;
    }
    __atomic_thread_fence(__ATOMIC_ACQUIRE); /* what was read above is not newer than what is read next */
    if (limits->device_count == 0 || limits->device_count > CB_DEVICES_MAX ||
        (__atomic_load_n(&limits->generation, __ATOMIC_ACQUIRE) & 1u) != 0) {
        cb_say("the limits in %s are damaged: %u devices, generation %u", slot->path, limits->device_count,
               limits->generation);
        return false;
    }
    return true;
}

bool cb_slot_open(struct cb_slot_files *files)
{
    struct slot slot = {.directory = -1};
    bool opened = false;
    memset(files, 0, sizeof(*files));
    files->lease_fd = -1;
    if (slot_open_directory(&slot) &&
        (files->limits = slot_map_pages(&slot, "limits", sizeof(struct cb_limits), false)) != NULL &&
        (files->usage = slot_map_pages(&slot, "usage", sizeof(struct cb_usage), true)) != NULL &&
        slot_check_pages(&slot, files->limits, files->usage))
        opened = (__atomic_load_n(&files->limits->flags, __ATOMIC_ACQUIRE) & CB_LIMITS_LEASELESS) != 0 ||
                 (files->lease_fd = slot_take_lease(&slot)) >= 0;
    if (slot.directory >= 0) close(slot.directory);
    return opened;
}
