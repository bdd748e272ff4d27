/*
 * The directory tree of a node's private root (node/root_tree.h): the files that do not change after its creation,
 * with the contents of a real driver's files and of the kernel's PCI bus.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "sim/ctl/root_tree.h"

#include "sim/ctl/open.h"
#include "sim/node/root_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__aarch64__)
#define MACHINE "aarch64"
#else
#define MACHINE "x86_64"
#endif
#define LIBRARIES  "usr/lib/" MACHINE "-linux-gnu"
#define NODE_CTL   255
#define NODE_MODES 254

static void check_written(int result, const char *path)
{
    if (result != 0)
        simctl_fail("the tree is made beside the state file", "cannot write root/%s: %s", path,
                    strerror(-result));
}

#define PUT(root, path, ...) check_written(root_write((root), (path), __VA_ARGS__), (path))

static void write_driver(int root, const struct sim_node *node)
{
    const char *version = node->driver_version;

    PUT(root, "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX " MACHINE " Kernel Module  %s  (simulated)\nGCC version:  none\n",
        version);
    PUT(root, "proc/driver/nvidia/params",
        "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n");
    PUT(root, "proc/devices",
        "Character devices:\n%3u nvidia\n%3u nvidia-modeset\n%3u nvidiactl\n%3u nvidia-uvm\n%3u "
        "nvidia-caps\n\n"
        "Block devices:\n",
        ROOT_MAJOR_GPU, ROOT_MAJOR_GPU, ROOT_MAJOR_GPU, ROOT_MAJOR_UVM, ROOT_MAJOR_CAPS);
    PUT(root, "sys/module/nvidia/version", "%s\n", version);
    check_written(root_node(root, "dev/nvidiactl", ROOT_MAJOR_GPU, NODE_CTL), "dev/nvidiactl");
    check_written(root_node(root, "dev/nvidia-modeset", ROOT_MAJOR_GPU, NODE_MODES), "dev/nvidia-modeset");
    check_written(root_node(root, "dev/nvidia-uvm", ROOT_MAJOR_UVM, 0), "dev/nvidia-uvm");
    check_written(root_node(root, "dev/nvidia-uvm-tools", ROOT_MAJOR_UVM, 1), "dev/nvidia-uvm-tools");
}

/* Head of the PCI configuration space: identity and class, little-endian. */
static void write_config(int root, const char *path, const struct sim_profile *p)
{
    uint32_t words[64] = {p->pci_device_id, 0x00100006u, 0x030200A1u};

    words[11] = p->pci_subsystem_id;
    int fd = openat(root, path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);

    if (fd < 0 || write(fd, words, sizeof words) != (ssize_t)sizeof words) check_written(-errno, path);
    close(fd);
}

static void write_card(int root, const struct sim_node *node, uint32_t index)
{
    const struct sim_profile *p = &node->device[index].profile;
    char bdf[32], path[128], node_path[32];

    snprintf(bdf, sizeof bdf, "%04x:%02x:%02x.0", p->pci_domain, p->pci_bus, p->pci_device);
    snprintf(path, sizeof path, "proc/driver/nvidia/gpus/%s/information", bdf);
    PUT(root, path,
        "Model: \t\t %s\nIRQ:   \t\t 0\nGPU UUID: \t %s\nVideo BIOS: \t %s\nBus Type: \t PCIe\nDMA Size: \t "
        "47 bits\n"
        "DMA Mask: \t 0x7fffffffffff\nBus Location: \t %s\nDevice Minor: \t %u\nGPU Firmware: \t %s\n"
        "GPU Excluded:\t No\n",
        p->name, p->uuid, p->vbios, bdf, p->minor_number, node->driver_version);

    const struct {
        const char *name;
        uint32_t value;
    } files[] = {{"vendor", p->pci_device_id & 0xFFFF},
                 {"device", p->pci_device_id >> 16},
                 {"subsystem_vendor", p->pci_subsystem_id & 0xFFFF},
                 {"subsystem_device", p->pci_subsystem_id >> 16}};

    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(path, sizeof path, "sys/bus/pci/devices/%s/%s", bdf, files[i].name);
        PUT(root, path, "0x%04x\n", files[i].value);
    }
    snprintf(path, sizeof path, "sys/bus/pci/devices/%s/class", bdf);
    PUT(root, path, "0x030200\n"); /* a 3D controller */
    snprintf(path, sizeof path, "sys/bus/pci/devices/%s/numa_node", bdf);
    PUT(root, path, "%d\n", p->numa_node);
    snprintf(path, sizeof path, "sys/bus/pci/devices/%s/resource", bdf);
    PUT(root, path, "0x%016x 0x%016x 0x%016x\n", 0, 0, 0);
    snprintf(path, sizeof path, "sys/bus/pci/devices/%s/config", bdf);
    write_config(root, path, p);
    PUT(root, "sys/bus/pci/drivers/nvidia/module", "%s", "");
    snprintf(path, sizeof path, "sys/bus/pci/devices/%s/driver", bdf);
    if (symlinkat("../../drivers/nvidia", root, path) != 0 && errno != EEXIST) check_written(-errno, path);
    snprintf(node_path, sizeof node_path, "dev/nvidia%u", p->minor_number);
    check_written(root_node(root, node_path, ROOT_MAJOR_GPU, p->minor_number), node_path);
}

/* Table of the minors of the capabilities of every instance that a card can have. */
static void write_minors(int root, const struct sim_node *node)
{
    const char *path = "proc/driver/nvidia-caps/mig-minors";

    PUT(root, path, "config 1\nmonitor 2\n");
    int fd = openat(root, path, O_WRONLY | O_APPEND | O_CLOEXEC);

    for (uint32_t i = 0; i < node->device_count; i++) {
        uint32_t gpu = node->device[i].profile.minor_number;

        for (uint32_t gi = 0; gi < ROOT_GI_MAX; gi++) {
            dprintf(fd, "gpu%u/gi%u/access %u\n", gpu, gi, root_gi_minor(gpu, gi));
            for (uint32_t ci = 0; ci < ROOT_CI_MAX; ci++)
                dprintf(fd, "gpu%u/gi%u/ci%u/access %u\n", gpu, gi, ci, root_ci_minor(gpu, gi, ci));
        }
    }
    close(fd);
    check_written(root_capability(root, "proc/driver/nvidia/capabilities/mig/config", 1), path);
    check_written(root_capability(root, "proc/driver/nvidia/capabilities/mig/monitor", 2), path);
}

/* Copy a library that lies beside this program, under the names that a driver installs. */
static void copy_library(int root, const char *library, const char *version)
{
    char from[4096], to[128], link_path[128], target[64];
    struct stat st;
    ssize_t length = readlink("/proc/self/exe", from, sizeof from - 32);
    char *slash = length > 0 ? memrchr(from, '/', (size_t)length) : NULL;

    if (slash == NULL) check_written(-ENOENT, LIBRARIES);
    snprintf(slash + 1, 32, "%s.so.1", library);
    snprintf(to, sizeof to, LIBRARIES "/%s.so.%s", library, version);
    PUT(root, to, "%s", "");
    int in = open(from, O_RDONLY | O_CLOEXEC),
        out = openat(root, to, O_WRONLY | O_TRUNC | O_NOFOLLOW | O_CLOEXEC);
    bool ok = in >= 0 && out >= 0 && fstat(in, &st) == 0 && fchmod(out, 0755) == 0;

    for (off_t at = 0; ok && at < st.st_size;)
        ok = sendfile(out, in, &at, (size_t)(st.st_size - at)) > 0;
    if (!ok) check_written(-errno, to);
    close(in);
    close(out);
    for (int i = 0; i < 2; i++) {
        snprintf(link_path, sizeof link_path, LIBRARIES "/%s.so%s", library, i == 0 ? ".1" : "");
        snprintf(target, sizeof target, "%s.so.%s", library, i == 0 ? version : "1");
        if (symlinkat(target, root, link_path) != 0 && errno != EEXIST) check_written(-errno, link_path);
    }
}

static void directory_of(const char *state, char *out, size_t size)
{
    const char *slash = strrchr(state, '/');

    snprintf(out, size, "%.*sroot", slash != NULL ? (int)(slash - state) + 1 : 0, state);
}

int simctl_root(struct sim *s)
{
    char path[4096 + 8];
    struct stat st;

    directory_of(s->path, path, sizeof path);
    if (mkdir(path, 0755) != 0 && errno != EEXIST)
        simctl_fail(NULL, "cannot make %s: %s", path, strerror(errno));
    int root = root_open(s);

    if (root < 0) simctl_fail("remove it, or become its owner", "%s is not a directory of this user", path);
    write_driver(root, s->node);
    write_minors(root, s->node);
    for (uint32_t i = 0; i < s->node->device_count; i++)
        write_card(root, s->node, i);
    copy_library(root, "libcuda", s->node->driver_version);
    copy_library(root, "libnvidia-ml", s->node->driver_version);
    bool nodes = fstatat(root, "dev/nvidiactl", &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISCHR(st.st_mode);

    close(root);
    for (uint32_t i = 0; i < s->node->device_count; i++)
        root_refresh(s, i);
    printf("root %s (%s)\n", path,
           nodes ? "devices are character nodes that answer ENXIO"
                 : "devices are empty files: making nodes needs root");
    return EXIT_OK;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *walk)
{
    (void)st;
    (void)kind;
    (void)walk;
    return remove(path);
}

void simctl_remove_root(const char *state)
{
    char path[4096 + 8];
    struct stat st;

    directory_of(state, path, sizeof path);
    if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode))
        nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}
