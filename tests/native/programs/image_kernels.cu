/* Kernels whose names the simulated card knows; the real compiler makes PTX, cubin and fat binary of them. */
extern "C" __global__ void vector_add(const float *a, const float *b, float *c, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

// With a C++ name: _Z5saxpyfPKfPfi
__global__ void saxpy(float factor, const float *x, float *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i] + y[i];
}
