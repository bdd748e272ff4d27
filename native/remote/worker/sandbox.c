/*
 * Seccomp filter of the worker, which the process and its threads cannot remove: it allows what a driver needs
 * and refuses access to other processes, other files and other machines. A filter sees numbers and not the data
 * behind pointers, so the files that can be opened are limited by the root directory in which the worker was
 * started.
 *
 * Theory of operation. One list of system calls is refused with EPERM; a few are checked more closely: opening
 * a file must not create, truncate or hide one, starting a thread must not start a process or a namespace, and
 * signals must go to this very process (except signal 0, which only tests for existence). Calls that callers
 * can do without, such as clone3, fail with ENOSYS; so do calls that are newer than this list.
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
    457 /* calls from here on are newer than this list; 512 to 547 belong to the x32 ABI of x86_64 */
#define OPEN_MAKES    (O_CREAT | O_TRUNC | (O_TMPFILE & ~O_DIRECTORY))
#define NEW_NAMESPACE 0x7e020080u /* CLONE_NEW*, without CLONE_NEWTIME, which only clone3 and unshare take */
#define FILES_MAX     4096

/* By number, because headers of older systems have no name for them; the same on both machines. */
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

static const uint16_t calls_refused[] = {
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
    /* other machines, and sockets of this machine */
    SYS_socket,
    SYS_socketpair,
    SYS_connect,
    SYS_bind,
    SYS_listen,
    SYS_accept,
    SYS_accept4,
    /* another view of the machine, other privileges */
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
    /* files: creating, changing and removing them */
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

/* Calls that callers can do without. */
static const uint16_t calls_absent[] = {
    CALL_clone3,         CALL_openat2,           CALL_io_uring_setup,
    CALL_io_uring_enter, CALL_io_uring_register, CALL_set_mempolicy_home_node};

static struct {
    struct sock_filter step[640];
    unsigned short count;
} filter;

static void filter_add(uint16_t code, uint8_t yes, uint8_t no, uint32_t k)
{
    filter.step[filter.count++] = (struct sock_filter){code, yes, no, k};
}

static void filter_load(size_t offset)
{
    filter_add(BPF_LD | BPF_W | BPF_ABS, 0, 0, (uint32_t)offset);
}

static void filter_load_argument(int index) /* its lower half: the numbers that are checked have no more */
{
    filter_load(offsetof(struct seccomp_data, args) + (size_t)index * 8);
}

static void filter_return(uint32_t action)
{
    filter_add(BPF_RET | BPF_K, 0, 0, action);
}

static void filter_refuse(uint32_t call, uint32_t error)
{
    filter_add(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, call);
    filter_return(SECCOMP_RET_ERRNO | error);
}

/* Refuse a call with one of these bits in an argument. */
static void filter_refuse_bits(uint32_t call, int argument, uint32_t bits)
{
    filter_add(BPF_JMP | BPF_JEQ | BPF_K, 0, 4, call);
    filter_load_argument(argument);
    filter_add(BPF_JMP | BPF_JSET | BPF_K, 0, 1, bits);
    filter_return(SECCOMP_RET_ERRNO | EPERM);
    filter_return(SECCOMP_RET_ALLOW);
}

/* Allow clone for a thread of this process and nothing else. */
static void filter_clone_threads_only(void)
{
    filter_add(BPF_JMP | BPF_JEQ | BPF_K, 0, 5, SYS_clone);
    filter_load_argument(0);
    filter_add(BPF_JMP | BPF_JSET | BPF_K, 2, 0, NEW_NAMESPACE);
    filter_add(BPF_JMP | BPF_JSET | BPF_K, 0, 1, CLONE_THREAD);
    filter_return(SECCOMP_RET_ALLOW);
    filter_return(SECCOMP_RET_ERRNO | EPERM);
}

/* Allow signals to this process, and signal 0 to any. */
static void filter_own_signals_only(uint32_t call, int number)
{
    filter_add(BPF_JMP | BPF_JEQ | BPF_K, 0, 6, call);
    filter_load_argument(number);
    filter_add(BPF_JMP | BPF_JEQ | BPF_K, 2, 0, 0);
    filter_load_argument(0);
    filter_add(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, (uint32_t)getpid());
    filter_return(SECCOMP_RET_ALLOW);
    filter_return(SECCOMP_RET_ERRNO | EPERM);
}

/* prlimit of this process alone, never above its present limits. */
static void filter_write(void)
{
    filter.count = 0;
    filter_load(offsetof(struct seccomp_data, arch));
    filter_add(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, MACHINE);
    filter_return(SECCOMP_RET_KILL_PROCESS);
    filter_load(offsetof(struct seccomp_data, nr));
    filter_add(BPF_JMP | BPF_JGE | BPF_K, 0, 1, CALLS_KNOWN);
    filter_return(SECCOMP_RET_ERRNO | ENOSYS);
    filter_clone_threads_only();
    filter_own_signals_only(SYS_kill, 1);
    filter_own_signals_only(SYS_tgkill, 2);
    filter_refuse_bits(SYS_openat, 2, OPEN_MAKES);
#if defined __x86_64__
    filter_refuse_bits(SYS_open, 1, OPEN_MAKES);
#endif
    for (size_t i = 0; i < sizeof calls_absent / sizeof *calls_absent; i++)
        filter_refuse(calls_absent[i], ENOSYS);
    for (size_t i = 0; i < sizeof calls_refused / sizeof *calls_refused; i++)
        filter_refuse(calls_refused[i], EPERM);
    filter_return(SECCOMP_RET_ALLOW);
}

static bool resource_limit_lower(int what, rlim_t most)
{
    struct rlimit now;
    if (getrlimit(what, &now) != 0) return false;
    if (now.rlim_max > most) now.rlim_max = most;
    if (now.rlim_cur > now.rlim_max) now.rlim_cur = now.rlim_max;
    return setrlimit(what, &now) == 0;
}

static bool capabilities_drop(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0}};
    for (int capability = 0; prctl(PR_CAPBSET_READ, capability) >= 0; capability++)
        prctl(PR_CAPBSET_DROP, capability); /* without the permission for this, it cannot be used either */
    return syscall(SYS_capset, &header, none) == 0;
}

bool cb_sandbox_close_memory(void)
{
    if (resource_limit_lower(RLIMIT_CORE, 0) && prctl(PR_SET_DUMPABLE, 0) == 0) return true;
    fprintf(stderr, "worker: cannot protect its memory from other processes: %s\n", strerror(errno));
    return false;
}

bool cb_sandbox_enter(void)
{
    filter_write();
    struct sock_fprog program = {filter.count, filter.step};
    if (resource_limit_lower(RLIMIT_NOFILE, FILES_MAX) && capabilities_drop() && cb_sandbox_close_memory() &&
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0)
        return true;
    fprintf(stderr, "worker: cannot enter the sandbox: %s\n", strerror(errno));
    return false;
}
