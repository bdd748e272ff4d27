/*
 * Registry of kernels implemented in C: functions on host memory with the meaning of the kernel of that name,
 * and the bytes and operations that it would cost. A launch does what its grid covers and no more.
 *
 * The modelled time is the roofline: the larger of bytes / bandwidth and operations / peak, plus the launch
 * overhead.
 */
#include "sim/cuda/launch/kernel_registry.h"

#include "sim/cuda/memory/memory.h"

#include <ctype.h>

#define OVERHEAD_NS 2000

static uint64_t argument_pointer(const struct kernel_call *k, size_t offset)
{
    uint64_t v;
    memcpy(&v, k->parameters + offset, sizeof v);
    return v;
}

static int argument_int(const struct kernel_call *k, size_t offset)
{
    int v;
    memcpy(&v, k->parameters + offset, sizeof v);
    return v;
}

static float argument_float(const struct kernel_call *k, size_t offset)
{
    float v;
    memcpy(&v, k->parameters + offset, sizeof v);
    return v;
}

static uint64_t threads_along(const struct kernel_call *k, int axis)
{
    return (uint64_t)k->grid[axis] * k->block[axis];
}

/* Elements that the first axis of the grid covers, of n. */
static uint64_t covered_elements(const struct kernel_call *k, int n)
{
    uint64_t threads = threads_along(k, 0);
    if (n <= 0) return 0;
    return threads < (uint64_t)n ? threads : (uint64_t)n;
}

#define REQUIRE(c, address, bytes) \
    if ((bytes) != 0 && !memory_allows(c, address, bytes)) return CUDA_ERROR_ILLEGAL_ADDRESS

/* So many elements of four bytes each. */
#define REQUIRE_WORDS(c, address, count)                                          \
    if ((count) != 0 && (address) % 4 != 0) return CUDA_ERROR_MISALIGNED_ADDRESS; \
    REQUIRE(c, address, 4ull * (count))

/* vector_add(const float *a, const float *b, float *c, int n): c = a + b */
static void vector_add_cost(const struct kernel_call *k, struct kernel_cost *cost)
{
    uint64_t n = covered_elements(k, argument_int(k, 24));
    *cost = (struct kernel_cost){.bytes = 12 * n, .flops = n};
}

static CUresult vector_add(struct context *c, const struct kernel_call *k)
{
    uint64_t n = covered_elements(k, argument_int(k, 24)), a = argument_pointer(k, 0),
             b = argument_pointer(k, 8), out = argument_pointer(k, 16);
    REQUIRE_WORDS(c, a, n);
    REQUIRE_WORDS(c, b, n);
    REQUIRE_WORDS(c, out, n);
    for (uint64_t i = 0; i < n; i++)
        ((float *)out)[i] = ((const float *)a)[i] + ((const float *)b)[i];
    return CUDA_SUCCESS;
}

/* saxpy(float a, const float *x, float *y, int n): y = a x + y */
static void saxpy_cost(const struct kernel_call *k, struct kernel_cost *cost)
{
    uint64_t n = covered_elements(k, argument_int(k, 24));
    *cost = (struct kernel_cost){.bytes = 12 * n, .flops = 2 * n};
}

static CUresult saxpy(struct context *c, const struct kernel_call *k)
{
    uint64_t n = covered_elements(k, argument_int(k, 24)), x = argument_pointer(k, 8),
             y = argument_pointer(k, 16);
    float a = argument_float(k, 0);
    REQUIRE_WORDS(c, x, n);
    REQUIRE_WORDS(c, y, n);
    for (uint64_t i = 0; i < n; i++)
        ((float *)y)[i] += a * ((const float *)x)[i];
    return CUDA_SUCCESS;
}

/* sgemm_naive(const float *a, const float *b, float *c, int m, int n, int k): c[m,n] = a[m,k] b[k,n],
 * row-major; the first axis of the grid covers columns, the second rows. */
static void sgemm_cost(const struct kernel_call *k, struct kernel_cost *cost)
{
    uint64_t m = (uint32_t)argument_int(k, 24), n = (uint32_t)argument_int(k, 28),
             d = (uint32_t)argument_int(k, 32);
    *cost = (struct kernel_cost){.bytes = 4 * (m * d + d * n + m * n), .flops = 2 * m * n * d};
}

static CUresult sgemm(struct context *c, const struct kernel_call *k)
{
    uint64_t a = argument_pointer(k, 0), b = argument_pointer(k, 8), out = argument_pointer(k, 16);
    int m = argument_int(k, 24), n = argument_int(k, 28), d = argument_int(k, 32);
    if (m <= 0 || n <= 0 || d <= 0) return CUDA_SUCCESS;
    REQUIRE_WORDS(c, a, (uint64_t)m * (uint64_t)d);
    REQUIRE_WORDS(c, b, (uint64_t)d * (uint64_t)n);
    REQUIRE_WORDS(c, out, (uint64_t)m * (uint64_t)n);
    uint64_t columns = threads_along(k, 0) < (uint64_t)n ? threads_along(k, 0) : (uint64_t)n;
    uint64_t rows = threads_along(k, 1) < (uint64_t)m ? threads_along(k, 1) : (uint64_t)m;
    const float *x = (const float *)a, *y = (const float *)b;
    for (uint64_t i = 0; i < rows; i++) {
        float *row = (float *)out + i * (uint64_t)n;
        memset(row, 0, columns * sizeof *row);
        for (uint64_t p = 0; p < (uint64_t)d; p++) {
            for (uint64_t j = 0; j < columns; j++)
                row[j] += x[i * (uint64_t)d + p] * y[p * (uint64_t)n + j];
        }
    }
    return CUDA_SUCCESS;
}

/* reduce_sum(const float *x, float *sum, int n): *sum = the sum of x */
static void reduce_cost(const struct kernel_call *k, struct kernel_cost *cost)
{
    uint64_t n = (uint64_t)(argument_int(k, 16) > 0 ? argument_int(k, 16) : 0);
    *cost = (struct kernel_cost){.bytes = 4 * n, .flops = n};
}

static CUresult reduce_sum(struct context *c, const struct kernel_call *k)
{
    uint64_t x = argument_pointer(k, 0), out = argument_pointer(k, 8),
             n = (uint64_t)(argument_int(k, 16) > 0 ? argument_int(k, 16) : 0);
    REQUIRE_WORDS(c, x, n);
    REQUIRE_WORDS(c, out, 1u);
    double sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += (double)((const float *)x)[i];
    *(float *)out = (float)sum;
    return CUDA_SUCCESS;
}

/* fill(float *x, float value, int n) */
static void fill_cost(const struct kernel_call *k, struct kernel_cost *cost)
{
    *cost = (struct kernel_cost){.bytes = 4 * covered_elements(k, argument_int(k, 12))};
}

static CUresult fill(struct context *c, const struct kernel_call *k)
{
    uint64_t x = argument_pointer(k, 0), n = covered_elements(k, argument_int(k, 12));
    REQUIRE_WORDS(c, x, n);
    for (uint64_t i = 0; i < n; i++)
        ((float *)x)[i] = argument_float(k, 8);
    return CUDA_SUCCESS;
}

/* iota(int *x, int n): x[i] = i */
static void iota_cost(const struct kernel_call *k, struct kernel_cost *cost)
{
    *cost = (struct kernel_cost){.bytes = 4 * covered_elements(k, argument_int(k, 8))};
}

static CUresult iota(struct context *c, const struct kernel_call *k)
{
    uint64_t x = argument_pointer(k, 0), n = covered_elements(k, argument_int(k, 8));
    REQUIRE_WORDS(c, x, n);
    for (uint64_t i = 0; i < n; i++)
        ((int *)x)[i] = (int)i;
    return CUDA_SUCCESS;
}

/* spin_ns(unsigned long long ns): occupies the card for exactly that long */
static void spin_cost(const struct kernel_call *k, struct kernel_cost *cost)
{
    uint64_t ns = argument_pointer(k, 0);
    *cost = (struct kernel_cost){.exact_ns = ns ? ns : 1};
}

/*
 * touch(char *x, size_t n): writes one byte in every page; sizes beyond any card cost nothing and fail by their
 * address
 */
static void touch_cost(const struct kernel_call *k, struct kernel_cost *cost)
{
    const uint64_t most = 1ull << 40, n = argument_pointer(k, 8);
    *cost = (struct kernel_cost){.bytes = n < most ? n : 0};
}

static CUresult touch(struct context *c, const struct kernel_call *k)
{
    uint64_t x = argument_pointer(k, 0), n = argument_pointer(k, 8);
    REQUIRE(c, x, n);
    for (uint64_t i = 0; i < n; i += 4096)
        ((volatile char *)x)[i] = 1;
    return CUDA_SUCCESS;
}

/* sweep(const char *x, size_t n): reads n bytes and nothing more */
static CUresult sweep(struct context *c, const struct kernel_call *k)
{
    REQUIRE(c, argument_pointer(k, 0), argument_pointer(k, 8));
    return CUDA_SUCCESS;
}

static void no_cost(const struct kernel_call *k, struct kernel_cost *cost)
{
    (void)k;
    *cost = (struct kernel_cost){0};
}

static const struct kernel registry[] = {
    {"vector_add", "pppi", vector_add_cost, vector_add},
    {"saxpy", "fppi", saxpy_cost, saxpy},
    {"sgemm_naive", "pppiii", sgemm_cost, sgemm},
    {"reduce_sum", "ppi", reduce_cost, reduce_sum},
    {"fill", "pfi", fill_cost, fill},
    {"iota", "pi", iota_cost, iota},
    {"spin_ns", "l", spin_cost, NULL},
    {"touch", "pl", touch_cost, touch},
    {"sweep", "pl", touch_cost, sweep},
    {"empty", "", no_cost, NULL},
};

uint32_t kernel_parameters(const struct kernel *k, struct parameter *out, uint32_t *bytes)
{
    uint32_t count = 0, at = 0;
    for (const char *p = k->signature; *p; p++) {
        uint32_t size = *p == 'p' || *p == 'l' ? 8 : 4;
        at = (uint32_t)sim_round_up(at, size);
        out[count++] = (struct parameter){at, size};
        at += size;
    }
    *bytes = at;
    return count;
}

/* The plain name, or the first name in an Itanium-mangled one (`_Z` length name ...). */
const struct kernel *kernel_find(const char *symbol)
{
    size_t length = strlen(symbol);
    if (symbol[0] == '_' && symbol[1] == 'Z' && isdigit((unsigned char)symbol[2])) {
        char *end;
        unsigned long said = strtoul(symbol + 2, &end, 10);
        symbol = end;
        length = strlen(symbol);
        if (said > length) return NULL;
        length = said;
    }
    for (size_t i = 0; i < sizeof registry / sizeof registry[0]; i++) {
        if (strlen(registry[i].name) == length && memcmp(registry[i].name, symbol, length) == 0)
            return &registry[i];
    }
    return NULL;
}

uint64_t copy_duration(const struct sim_profile *p, uint64_t bytes, uint64_t bandwidth_bps)
{
    uint64_t overhead = p->launch_overhead_ns ? p->launch_overhead_ns : OVERHEAD_NS;
    if (!bandwidth_bps) bandwidth_bps = 12000000000ull;
    return overhead + (uint64_t)((double)bytes * 1e9 / (double)bandwidth_bps);
}

uint64_t kernel_duration(const struct sim_profile *p, const struct kernel_cost *cost)
{
    if (cost->exact_ns) return cost->exact_ns;
    uint64_t by_bytes =
        copy_duration(p, cost->bytes, p->memory_bandwidth_bps ? p->memory_bandwidth_bps : 500000000000ull);
    uint64_t by_flops = copy_duration(p, cost->flops, p->flops_fp32 ? p->flops_fp32 : 10000000000000ull);
    return by_bytes > by_flops ? by_bytes : by_flops;
}
