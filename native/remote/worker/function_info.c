/*
 * Descriptions of kernels. Names and parameters of all kernels are sent with the image. Attributes are sent
 * with them if the image is small: reading them makes a driver load a kernel, which a driver that loads lazily
 * should not do for every kernel of a large image.
 */
#include "remote/worker/function_info.h"

#include "remote/wire/code.h"
#include "remote/wire/device.h"
#include "remote/worker/object.h"

#define FULL_DESCRIPTION_MAX 64u /* most kernels of an image that is described with all attributes */
#define PART_MAX             (CB_ANSWER_MAX / 2)
#define COUNT_MAX            (1u << 20)

static CUdevice current_device(void)
{
    CUdevice device = 0;
    if (CB_CALL(cuCtxGetDevice)(&device) != CUDA_SUCCESS) device = 0;
    return device;
}

CUresult cb_describe_attributes(struct cb_request *q, enum cb_kind kind, void *handle)
{
    struct cb_attribute a[CB_FUNCTION_ATTRIBUTES] = {0};
    CUdevice device = current_device();
    for (unsigned int i = 0; i < CB_FUNCTION_ATTRIBUTES; i++) {
        CUfunction_attribute which = (CUfunction_attribute)i;
        a[i].result = kind == CB_KIND_FUNCTION
                          ? CB_CALL(cuFuncGetAttribute)(&a[i].value, which, handle)
                          : CB_CALL(cuKernelGetAttribute)(&a[i].value, which, handle, device);
    }
    cb_give_word(q, (uint64_t)device);
    cb_give_bytes(q, a, sizeof a);
    return a[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK].result;
}

static CUresult function_describe(struct cb_request *q, enum cb_kind kind, void *handle, bool in_full)
{
    const char *name;
    struct {
        uint32_t offset, bytes;
    } parameter[CB_PARAMETERS_MAX];
    uint32_t count = 0;
    size_t offset, bytes;
    bool function = kind == CB_KIND_FUNCTION;
    CUresult result =
        function ? CB_CALL(cuFuncGetName)(&name, handle) : CB_CALL(cuKernelGetName)(&name, handle);
    if (result != CUDA_SUCCESS) return result;
    while (count < CB_PARAMETERS_MAX &&
           (function ? CB_CALL(cuFuncGetParamInfo)(handle, count, &offset, &bytes)
                     : CB_CALL(cuKernelGetParamInfo)(handle, count, &offset, &bytes)) == CUDA_SUCCESS) {
        parameter[count].offset = (uint32_t)offset;
        parameter[count++].bytes = (uint32_t)bytes;
    }
    cb_give_word(q, cb_object_name(q, kind, handle));
    cb_give_word(q, in_full);
    cb_give_string(q, name);
    cb_give_word(q, count);
    cb_give_bytes(q, parameter, count * sizeof parameter[0]);
    return in_full ? cb_describe_attributes(q, kind, handle) : CUDA_SUCCESS;
}

CUresult cb_describe_function(struct cb_request *q, enum cb_kind kind, void *handle)
{
    return function_describe(q, kind, handle, true);
}

static CUresult functions_list(enum cb_kind image, void *handle, unsigned int *count, void ***out)
{
    bool module = image == CB_KIND_MODULE;
    CUresult result = module ? CB_CALL(cuModuleGetFunctionCount)(count, handle)
                             : CB_CALL(cuLibraryGetKernelCount)(count, handle);
    if (result != CUDA_SUCCESS) return result;
    *out = *count <= COUNT_MAX ? calloc(*count + 1u, sizeof **out) : NULL;
    if (!*out) return CUDA_ERROR_OUT_OF_MEMORY;
    result = module ? CB_CALL(cuModuleEnumerateFunctions)((CUfunction *)*out, *count, handle)
                    : CB_CALL(cuLibraryEnumerateKernels)((CUkernel *)*out, *count, handle);
    if (result != CUDA_SUCCESS) free(*out);
    return result;
}

CUresult cb_describe_image(struct cb_request *q, enum cb_kind kind, void *image, uint64_t from)
{
    unsigned int count = 0;
    void **all = NULL;
    CUresult result = functions_list(kind, image, &count, &all);
    if (result != CUDA_SUCCESS) return result;
    enum cb_kind of = kind == CB_KIND_MODULE ? CB_KIND_FUNCTION : CB_KIND_KERNEL;
    const char *mode = getenv("CUDA_MODULE_LOADING");
    bool in_full = count <= FULL_DESCRIPTION_MAX || (mode && strcmp(mode, "EAGER") == 0);
    cb_give_word(q, count);
    for (uint64_t i = from; i < count && q->given < PART_MAX && result == CUDA_SUCCESS; i++) {
        cb_give_word(q, 1);
        result = function_describe(q, of, all[i], in_full);
    }
    cb_give_word(q, 0);
    free(all);
    return result;
}
