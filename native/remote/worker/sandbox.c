/*
 * A filter of system calls that this process and its threads cannot take off again: what a driver needs is left, what
 * leads to other processes, other files and other machines is not. It sees numbers and not what pointers point to, so
 * which files there are to open is the matter of the root that the worker was started in.
 *
 * Theory of operation. One list of what is refused, with EPERM; a few calls are looked at more closely: opening a file
 * must not make, empty or hide one, starting a thread must not start a process or a namespace, and signals go to this very
 * process (0, which asks only whether somebody is there, to anybody). Calls that a caller gets on without, such as clone3,
 * do not exist; neither do those that are newer than this list.
 */
#define _GNU_SOURCE
#include "remote/worker/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined __x86_64__
#define MACHINE AUDIT_ARCH_X86_64
#elif defined __aarch64__
#define MACHINE AUDIT_ARCH_AARCH64
#else
#error "the numbers of this machine's system calls are not known here"
#endif

#define CALLS_KNOWN \
    457 /* those from here on are newer than this list; 512 to 547 are of the other ABI of x86_64 */
#define OPEN_MAKES    (O_CREAT | O_TRUNC | (O_TMPFILE & ~O_DIRECTORY))
#define NEW_NAMESPACE 0x7e020080u /* CLONE_NEW*, without CLONE_NEWTIME, which only clone3 and unshare take */
#define FILES_MAX     4096

/* By number where a header of an older system has no name for it; the same on both machines. */
#define CALL_pidfd_send_signal       424
#define CALL_io_uring_setup          425
#define CALL_io_uring_enter          426
#define CALL_io_uring_register       427
#define CALL_open_tree               428
#define CALL_move_mount              429
#define CALL_fsopen                  430
#define CALL_fsconfig                431
#define CALL_fsmount                 432
#define CALL_fspick                  433
#define CALL_clone3                  435
#define CALL_openat2                 437
#define CALL_pidfd_getfd             438
#define CALL_process_madvise         440
#define CALL_mount_setattr           442
#define CALL_quotactl_fd             443
#define CALL_process_mrelease        448
#define CALL_set_mempolicy_home_node 450
#define CALL_fchmodat2               452

static const uint16_t refused[] = {
    /* other programs and processes */
    SYS_execve,
    SYS_execveat,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_kcmp,
    SYS_tkill,
    SYS_rt_sigqueueinfo,
    SYS_rt_tgsigqueueinfo,
    CALL_pidfd_send_signal,
    CALL_pidfd_getfd,
    CALL_process_madvise,
    CALL_process_mrelease,
    SYS_sched_setattr,
    SYS_sched_setscheduler,
    SYS_setpriority,
    /* other machines, and sockets of this one */
    SYS_socket,
    SYS_socketpair,
    SYS_connect,
    SYS_bind,
    SYS_listen,
    SYS_accept,
    SYS_accept4,
    /* another view of the machine, other rights */
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_unshare,
    SYS_setns,
    CALL_open_tree,
    CALL_move_mount,
    CALL_fsopen,
    CALL_fsconfig,
    CALL_fsmount,
    CALL_fspick,
    CALL_mount_setattr,
    SYS_setuid,
    SYS_setgid,
    SYS_setreuid,
    SYS_setregid,
    SYS_setresuid,
    SYS_setresgid,
    SYS_setgroups,
    SYS_setfsuid,
    SYS_setfsgid,
    SYS_capset,
    SYS_personality,
    SYS_setsid,
    SYS_setpgid,
    /* the kernel itself */
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_quotactl,
    CALL_quotactl_fd,
    SYS_acct,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_adjtimex,
    SYS_clock_adjtime,
    SYS_syslog,
    SYS_userfaultfd,
    SYS_vhangup,
    SYS_lookup_dcookie,
    SYS_fanotify_init,
    SYS_name_to_handle_at,
    SYS_open_by_handle_at,
    SYS_msgget,
    SYS_semget,
    SYS_shmget,
    SYS_mq_open,
    /* files: making, changing and removing them */
    SYS_mknodat,
    SYS_linkat,
    SYS_symlinkat,
    SYS_renameat2,
    SYS_unlinkat,
    SYS_mkdirat,
    SYS_fchmod,
    SYS_fchmodat,
    CALL_fchmodat2,
    SYS_fchown,
    SYS_fchownat,
    SYS_truncate,
    SYS_setxattr,
    SYS_lsetxattr,
    SYS_fsetxattr,
    SYS_removexattr,
    SYS_lremovexattr,
    SYS_fremovexattr,
    SYS_utimensat,
#ifdef SYS_kexec_file_load
    SYS_kexec_file_load,
#endif
#ifdef SYS_renameat
    SYS_renameat,
#endif
#if defined __x86_64__
    SYS_fork,
    SYS_vfork,
    SYS_creat,
    SYS_mknod,
    SYS_link,
    SYS_symlink,
    SYS_rename,
    SYS_unlink,
    SYS_mkdir,
    SYS_rmdir,
    SYS_chmod,
    SYS_chown,
    SYS_lchown,
    SYS_utime,
    SYS_utimes,
    SYS_futimesat,
    SYS_iopl,
    SYS_ioperm,
    SYS_modify_ldt,
    SYS__sysctl,
    SYS_uselib,
    SYS_ustat,
    SYS_sysfs,
    SYS_create_module,
    SYS_get_kernel_syms,
    SYS_query_module,
#endif
};

/* What callers get on without. */
static const uint16_t absent[] = {CALL_clone3,         CALL_openat2,           CALL_io_uring_setup,
                                  CALL_io_uring_enter, CALL_io_uring_register, CALL_set_mempolicy_home_node};

static struct {
    struct sock_filter step[640];
    unsigned short count;
} filter;

static void add(uint16_t code, uint8_t yes, uint8_t no, uint32_t k)
{
    filter.step[filter.count++] = (struct sock_filter){code, yes, no, k};
}

static void load(size_t offset)
{
    add(BPF_LD | BPF_W | BPF_ABS, 0, 0, (uint32_t)offset);
}

static void load_argument(int index) /* its lower half: the numbers that are looked at have no more */
{
    load(offsetof(struct seccomp_data, args) + (size_t)index * 8);
}

static void answer(uint32_t action)
{
    add(BPF_RET | BPF_K, 0, 0, action);
}

static void refuse(uint32_t call, uint32_t error)
{
    add(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, call);
    answer(SECCOMP_RET_ERRNO | error);
}

/* Refused with one of these bits in an argument. */
static void refuse_bits(uint32_t call, int argument, uint32_t bits)
{
    add(BPF_JMP | BPF_JEQ | BPF_K, 0, 4, call);
    load_argument(argument);
    add(BPF_JMP | BPF_JSET | BPF_K, 0, 1, bits);
    answer(SECCOMP_RET_ERRNO | EPERM);
    answer(SECCOMP_RET_ALLOW);
}

/* A thread of this process and nothing else. */
static void threads_only(void)
{
    add(BPF_JMP | BPF_JEQ | BPF_K, 0, 5, SYS_clone);
    load_argument(0);
    add(BPF_JMP | BPF_JSET | BPF_K, 2, 0, NEW_NAMESPACE);
    add(BPF_JMP | BPF_JSET | BPF_K, 0, 1, CLONE_THREAD);
    answer(SECCOMP_RET_ALLOW);
    answer(SECCOMP_RET_ERRNO | EPERM);
}

/* To this process, or no signal at all. */
static void own_signals_only(uint32_t call, int number)
{
    add(BPF_JMP | BPF_JEQ | BPF_K, 0, 6, call);
    load_argument(number);
    add(BPF_JMP | BPF_JEQ | BPF_K, 2, 0, 0);
    load_argument(0);
    add(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, (uint32_t)getpid());
    answer(SECCOMP_RET_ALLOW);
    answer(SECCOMP_RET_ERRNO | EPERM);
}

/* Of this process alone, and never more than it has. */
static void write_filter(void)
{
    filter.count = 0;
    load(offsetof(struct seccomp_data, arch));
    add(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, MACHINE);
    answer(SECCOMP_RET_KILL_PROCESS);
    load(offsetof(struct seccomp_data, nr));
    add(BPF_JMP | BPF_JGE | BPF_K, 0, 1, CALLS_KNOWN);
    answer(SECCOMP_RET_ERRNO | ENOSYS);
    threads_only();
    own_signals_only(SYS_kill, 1);
    own_signals_only(SYS_tgkill, 2);
    refuse_bits(SYS_openat, 2, OPEN_MAKES);
#if defined __x86_64__
    refuse_bits(SYS_open, 1, OPEN_MAKES);
#endif
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        refuse(absent[i], ENOSYS);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        refuse(refused[i], EPERM);
    answer(SECCOMP_RET_ALLOW);
}

static bool limit(int what, rlim_t most)
{
    struct rlimit now;
    if (getrlimit(what, &now) != 0) return false;
    if (now.rlim_max > most) now.rlim_max = most;
    if (now.rlim_cur > now.rlim_max) now.rlim_cur = now.rlim_max;
    return setrlimit(what, &now) == 0;
}

static bool drop_capabilities(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0}};
    for (int capability = 0; prctl(PR_CAPBSET_READ, capability) >= 0; capability++)
        prctl(PR_CAPBSET_DROP, capability); /* where we may not, it is not ours to use either */
    return syscall(SYS_capset, &header, none) == 0;
}

bool cb_sandbox_close_memory(void)
{
    if (limit(RLIMIT_CORE, 0) && prctl(PR_SET_DUMPABLE, 0) == 0) return true;
    fprintf(stderr, "worker: cannot close its memory to others: %s\n", strerror(errno));
    return false;
}

bool cb_sandbox_enter(void)
{
    write_filter();
    struct sock_fprog program = {filter.count, filter.step};
    if (limit(RLIMIT_NOFILE, FILES_MAX) && drop_capabilities() && cb_sandbox_close_memory() &&
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0)
        return true;
    fprintf(stderr, "worker: cannot be shut in: %s\n", strerror(errno));
    return false;
}
