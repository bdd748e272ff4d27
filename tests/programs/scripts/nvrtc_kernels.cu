/* What every second CUDA program has somewhere: a tiled product, a reduction by shuffles, softmax, layer norm. */
#define TILE 16

extern "C" __global__ void sgemm(const float *a, const float *b, float *c, int m, int n, int k)
{
    __shared__ float left[TILE][TILE], right[TILE][TILE + 1];
    int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    float sum = 0;
    for (int at = 0; at < k; at += TILE) {
        int u = at + threadIdx.x, v = at + threadIdx.y;
        left[threadIdx.y][threadIdx.x] = y < m && u < k ? a[y * k + u] : 0;
        right[threadIdx.y][threadIdx.x] = x < n && v < k ? b[v * n + x] : 0;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; i++)
            sum += left[threadIdx.y][i] * right[i][threadIdx.x];
        __syncthreads();
    }
    if (x < n && y < m) c[y * n + x] = sum;
}

struct Sum {
    __device__ static float join(float x, float y) { return x + y; }
};

struct Most {
    __device__ static float join(float x, float y) { return fmaxf(x, y); }
};

template <class How> __device__ float of_warp(float v)
{
    for (int step = 16; step; step >>= 1)
        v = How::join(v, __shfl_xor_sync(~0u, v, step));
    return v;
}

template <class How> __device__ float of_block(float v, float nothing)
{
    __shared__ float part[32];
    v = of_warp<How>(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x % 32 < blockDim.x / 32 ? part[threadIdx.x % 32] : nothing;
    return of_warp<How>(v);
}

extern "C" __global__ void reduce(const float *x, float *out, int n)
{
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        sum += x[i];
    sum = of_block<Sum>(sum, 0);
    if (threadIdx.x == 0) atomicAdd(out, sum);
}

extern "C" __global__ void softmax(const float *x, float *y, int n)
{
    const float *row = x + (size_t)blockIdx.x * n;
    float most = -3.4e38f, sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        most = fmaxf(most, row[i]);
    most = of_block<Most>(most, -3.4e38f);
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        sum += __expf(row[i] - most);
    sum = of_block<Sum>(sum, 0);
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        y[(size_t)blockIdx.x * n + i] = __expf(row[i] - most) / sum;
}

extern "C" __global__ void layer_norm(const float *x, const float *gain, const float *bias, float *y, int n, float eps)
{
    const float *row = x + (size_t)blockIdx.x * n;
    float mean = 0, square = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        mean += row[i];
    mean = of_block<Sum>(mean, 0) / n;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        square += (row[i] - mean) * (row[i] - mean);
    float scale = rsqrtf(of_block<Sum>(square, 0) / n + eps);
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        y[(size_t)blockIdx.x * n + i] = (row[i] - mean) * scale * gain[i] + bias[i];
}
