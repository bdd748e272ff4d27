/* Prints the number of devices that the driver shows, then the UUID of each. */
#include <cuda.h>
#include <stdio.h>

int main(void)
{
    int count = 0;
    CUresult result = cuInit(0);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NO_DEVICE) return 1;
    (void)cuDeviceGetCount(&count);
    printf("%d\n", count);
    for (int i = 0; i < count; i++) {
        CUuuid uuid;
        if (cuDeviceGetUuid(&uuid, i) != CUDA_SUCCESS) return 1;
        for (int b = 0; b < 16; b++)
            printf("%s%02x", b == 4 || b == 6 || b == 8 || b == 10 ? "-" : "", (unsigned char)uuid.bytes[b]);
        printf("\n");
    }
    return 0;
}
