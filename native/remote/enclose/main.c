/*
 * calabash-enclose OPTION... -- PROGRAM ARGUMENT...: becomes PROGRAM with as little of the machine as it needs.
 *
 *   --go FD            first wait until a byte arrives there; its end without one ends us
 *   --root DIRECTORY   a root of its own, built there: nothing but what --see and --write name, and no network
 *   --see PATH         this file or directory, not writable; one that does not exist is left out
 *   --write PATH       this file or directory as it is
 *   --user UID         as this user and the group of the same number, without others and without capabilities
 *
 * PROGRAM gets the variables that begin with PROGRAM_ here, without that prefix, and no others. They are not among the
 * words because every user of the machine can read those.
 *
 * Where the kernel lets nobody have a root of their own, PROGRAM has the machine's, and that is said. Everything else that
 * fails ends us.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define VISIBLE_MAX 64
#define SET_MAX     32
#define HANDED_ON   "PROGRAM_"

struct visible {
    const char *path;
    bool writable;
};

static struct {
    int go;
    long user;
    const char *root;
    struct visible visible[VISIBLE_MAX];
    int visible_count;
    char *set[SET_MAX + 1];
    int set_count;
    char **program;
} asked = {.go = -1, .user = -1};

static _Noreturn void fail(const char *what, const char *which)
{
    fprintf(stderr, "enclose: %s %s: %s\n", what, which, strerror(errno));
    exit(125);
}

static _Noreturn void usage(void)
{
    fprintf(stderr,
            "usage: calabash-enclose [--go FD] [--root DIRECTORY] [--see PATH] [--write PATH] [--user UID]"
            " -- PROGRAM [ARGUMENT]\n");
    exit(2);
}

static long number(const char *text)
{
    char *end = NULL;
    long found = strtol(text, &end, 10);
    if (!*text || *end || found < 0 || found > INT_MAX) usage();
    return found;
}

static void add_visible(const char *path, bool writable)
{
    if (asked.visible_count == VISIBLE_MAX || path[0] != '/') usage();
    asked.visible[asked.visible_count++] = (struct visible){path, writable};
}

static void read_words(int argc, char **argv)
{
    int at = 1;
    for (; at < argc && strcmp(argv[at], "--") != 0; at += 2) {
        const char *option = argv[at];
        if (at + 1 >= argc) usage();
        char *value = argv[at + 1];
        if (strcmp(option, "--go") == 0) {
            asked.go = (int)number(value);
        } else if (strcmp(option, "--user") == 0) {
            asked.user = number(value);
        } else if (strcmp(option, "--root") == 0) {
            asked.root = value;
        } else if (strcmp(option, "--see") == 0 || strcmp(option, "--write") == 0) {
            add_visible(value, strcmp(option, "--write") == 0);
        } else {
            usage();
        }
    }
    if (at + 1 >= argc) usage();
    asked.program = argv + at + 1;
}

static void take_variables(void)
{
    for (char **variable = environ; *variable; variable++) {
        if (strncmp(*variable, HANDED_ON, strlen(HANDED_ON)) != 0) continue;
        if (asked.set_count == SET_MAX) usage();
        asked.set[asked.set_count++] = *variable + strlen(HANDED_ON);
    }
}

static void await_go(void)
{
    char byte;
    ssize_t got;
    do {
        got = read(asked.go, &byte, 1);
    } while (got < 0 && errno == EINTR);
    if (got != 1) exit(0); /* whoever started us has given up */
    close(asked.go);
}

/* ---- a root of its own ---- */

static void inside(char path[PATH_MAX], const char *of)
{
    if (snprintf(path, PATH_MAX, "%s%s", asked.root, of) >= PATH_MAX) {
        errno = ENAMETOOLONG;
        fail("cannot show", of);
    }
}

static void make_parents(const char *of)
{
    char path[PATH_MAX];
    inside(path, of);
    for (char *slash = strchr(path + strlen(asked.root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(path, 0755) != 0 && errno != EEXIST) fail("cannot make", path);
        *slash = '/';
    }
}

/* As on the machine, where /lib is a link to usr/lib on many. */
static void show_link(const char *of)
{
    char path[PATH_MAX], to[PATH_MAX];
    ssize_t length = readlink(of, to, sizeof to - 1);
    if (length < 0) fail("cannot read", of);
    to[length] = 0;
    inside(path, of);
    if (symlink(to, path) != 0 && errno != EEXIST) fail("cannot show", of);
}

static void show(const struct visible *v)
{
    char path[PATH_MAX];
    struct stat status;
    if (lstat(v->path, &status) != 0) return;
    make_parents(v->path);
    if (S_ISLNK(status.st_mode)) {
        show_link(v->path);
        return;
    }
    inside(path, v->path);
    if (S_ISDIR(status.st_mode)) {
        if (mkdir(path, 0755) != 0 && errno != EEXIST) fail("cannot make", path);
    } else {
        int fd = open(path, O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
        if (fd < 0 && errno != EACCES && errno != EROFS && errno != ENXIO) fail("cannot make", path);
        if (fd >= 0) close(fd);
    }
    if (mount(v->path, path, NULL, MS_BIND, NULL) != 0) fail("cannot show", v->path);
    unsigned long flags = MS_BIND | MS_REMOUNT | MS_NOSUID | (v->writable ? 0 : MS_RDONLY);
    if (mount(NULL, path, NULL, flags, NULL) != 0) fail("cannot protect", v->path);
}

static void enter_root(void)
{
    if (unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS) != 0) {
        if (errno != EPERM && errno != ENOSYS && errno != EINVAL) fail("cannot have", "namespaces");
        fprintf(stderr,
                "enclose: the kernel gives no namespaces here: the worker sees the machine's files\n");
        return;
    }
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        fail("cannot part from", "the machine's mounts");
    if (mount("calabash", asked.root, "tmpfs", MS_NOSUID | MS_NODEV, "size=256k,nr_inodes=1k,mode=755") != 0)
        fail("cannot make a root in", asked.root);
    for (int i = 0; i < asked.visible_count; i++)
        show(&asked.visible[i]);
    if (chdir(asked.root) != 0 || syscall(SYS_pivot_root, ".", ".") != 0 || umount2(".", MNT_DETACH) != 0 ||
        chdir("/") != 0)
        fail("cannot enter", asked.root);
    if (mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV,
              "size=256k,nr_inodes=1k,mode=755") != 0)
        fail("cannot protect", "the root");
}

/* ---- a user of its own ---- */

static void limit(int what, rlim_t most)
{
    struct rlimit now;
    if (getrlimit(what, &now) != 0) return;
    if (now.rlim_max < most) most = now.rlim_max;
    now.rlim_cur = now.rlim_max = most;
    if (setrlimit(what, &now) != 0) fail("cannot set", "limits");
}

static void become_user(void)
{
    uid_t uid = (uid_t)asked.user;
    for (int capability = 0; prctl(PR_CAPBSET_READ, capability) >= 0; capability++)
        prctl(PR_CAPBSET_DROP, capability);
    limit(RLIMIT_NPROC, 4096); /* of this user, who is nobody else's */
    if (setgroups(0, NULL) != 0 || setresgid(uid, uid, uid) != 0 || setresuid(uid, uid, uid) != 0)
        fail("cannot become", "another user");
    if (setuid(0) == 0) {
        errno = EPERM;
        fail("is still", "root");
    }
}

int main(int argc, char **argv)
{
    read_words(argc, argv);
    take_variables();
    if (asked.go >= 0) await_go();
    umask(022);
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_NOFILE, 16384);
    if (asked.root) enter_root();
    if (asked.user >= 0) become_user();
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) fail("cannot give up", "privileges");
    umask(077);
    signal(SIGPIPE, SIG_IGN);
    execve(asked.program[0], asked.program, asked.set);
    fail("cannot start", asked.program[0]);
}
