#include "remote/client/device/remote_attributes.h"

void cb_remote_attributes_mask(struct cb_device *d)
{
    static const CUdevice_attribute absent[] = {
        /*
         * Memory is copied to the card before a command, and back when the program waits: not while the command
         * runs.
         */
        CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
        CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
        CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED,
        /* The program's own pages cannot be mirrored. */
        CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
        CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
        CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
        CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_NUMA_CONFIG,
        /* A file descriptor of the worker is not valid in this process. */
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES,
        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
        CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED,
    };
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++)
        d->attribute[absent[i]].value = 0;
}
