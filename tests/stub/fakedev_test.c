/* Self-test of the fake-device layer, on whatever OpenCL device there is. Run by CTest, or by hand:
 *
 *   OPENCL_LAYERS=.../libclattn_fakedev.so fakedev_test    every feature, set at run time
 *   ... fakedev_test environment                           obeys the environment of CMakeLists.txt
 *   ... CLATTN_FAKE_REPORT=- fakedev_test leak             leaks a buffer, for the report at exit
 *
 * Each test works between begin() and end(), which create and release the objects below and clear
 * every fake, so none leaves anything for the next. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#undef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <CL/cl_ext.h>

#include "fakedev.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NO_DEVICE = 77 }; /* CTest's SKIP_RETURN_CODE */

/* with_variable takes 4096 bytes of local memory; with_argument, whatever its argument asks for. */
static const char source[] =
    "kernel void plain(global int *out) { out[get_global_id(0)] = (int)get_local_size(0); }\n"
    "kernel void with_variable(global int *out) {\n"
    "    local int shared[1024];\n"
    "    int lane = (int)get_local_id(0);\n"
    "    shared[lane] = lane;\n"
    "    barrier(CLK_LOCAL_MEM_FENCE);\n"
    "    out[get_global_id(0)] = shared[(int)get_local_size(0) - 1 - lane];\n"
    "}\n"
    "kernel void with_argument(global int *out, local int *shared) {\n"
    "    int lane = (int)get_local_id(0);\n"
    "    shared[lane] = lane;\n"
    "    barrier(CLK_LOCAL_MEM_FENCE);\n"
    "    out[get_global_id(0)] = shared[(int)get_local_size(0) - 1 - lane];\n"
    "}\n"
    "kernel __attribute__((reqd_work_group_size(64, 1, 1))) void required(global int *out) {\n"
    "    out[get_global_id(0)] = 1;\n"
    "}\n";

enum { ITEMS = 256 };

static cl_platform_id platform;
static cl_device_id device;
static cl_context context;
static cl_command_queue queue;
static cl_program program;
static cl_mem out;
static struct clattn_fakedev_counters at_begin;

static struct clattn_fakedev_counters counters(void)
{
    struct clattn_fakedev_counters now;
    clattn_fakedev_counters(&now);
    return now;
}

static void fake(const char *variable, const char *value)
{
    assert_true(clattn_fakedev_set(variable, value));
}

static int begin(void **state)
{
    (void)state;
    cl_int status;
    const char *text = source;
    clattn_fakedev_reset();
    at_begin = counters();
    context = clCreateContext(NULL, 1, &device, NULL, NULL, &status);
    assert_int_equal(status, CL_SUCCESS);
    queue = clCreateCommandQueue(context, device, 0, &status);
    assert_int_equal(status, CL_SUCCESS);
    out = clCreateBuffer(context, CL_MEM_READ_WRITE, ITEMS * sizeof(cl_int), NULL, &status);
    assert_int_equal(status, CL_SUCCESS);
    program = clCreateProgramWithSource(context, 1, &text, NULL, &status);
    assert_int_equal(status, CL_SUCCESS);
    assert_int_equal(clBuildProgram(program, 1, &device, "", NULL, NULL), CL_SUCCESS);
    return 0;
}

static int end(void **state)
{
    (void)state;
    static const char *const variables[] = {
        "LOCAL_MEM",
        "LOCAL_MEM_TYPE",
        "WORK_GROUP",
        "KERNEL_WORK_GROUP",
        "WORK_GROUP_MULTIPLE",
        "COMPUTE_UNITS",
        "VECTOR_WIDTH",
        "COMPUTE_CAPABILITY",
        "GLOBAL_MEM",
        "MAX_ALLOC",
        "TYPE",
        "NAME",
        "VENDOR",
        "VENDOR_ID",
        "DRIVER",
        "VERSION",
        "EXTENSIONS",
        "HIDDEN_FUNCTIONS",
        "SVM",
        "REPORT",
        "FAIL",
        "OPENCL_C_VERSION",
    };
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        char variable[64];
        snprintf(variable, sizeof variable, "CLATTN_FAKE_%s", variables[i]);
        fake(variable, NULL);
    }
    assert_int_equal(clReleaseProgram(program), CL_SUCCESS);
    assert_int_equal(clReleaseMemObject(out), CL_SUCCESS);
    assert_int_equal(clReleaseCommandQueue(queue), CL_SUCCESS);
    assert_int_equal(clReleaseContext(context), CL_SUCCESS);

    /* Compared with the beginning rather than with none, so that a test that fails and leaks does
     * not take the next ones with it. */
    const struct clattn_fakedev_counters after = counters();
    assert_memory_equal(after.references, at_begin.references, sizeof after.references);
    assert_memory_equal(after.live, at_begin.live, sizeof after.live);
    assert_int_equal(after.memory_now, at_begin.memory_now);
    assert_int_equal(after.host_pointer_memory_now, at_begin.host_pointer_memory_now);
    return 0;
}

/* A kernel whose first argument is `out`. */
static cl_kernel make_kernel(const char *name)
{
    cl_int status;
    cl_kernel kernel = clCreateKernel(program, name, &status);
    assert_int_equal(status, CL_SUCCESS);
    assert_int_equal(clSetKernelArg(kernel, 0, sizeof out, &out), CL_SUCCESS);
    return kernel;
}

/* Launches ITEMS items in groups of `local`, 0 leaving it to the driver. */
static cl_int launch(cl_kernel kernel, size_t local)
{
    const size_t global = ITEMS;
    cl_int status =
        clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &global, local ? &local : NULL, 0, NULL, NULL);
    return status ? status : clFinish(queue);
}

static cl_int first_result(void)
{
    cl_int result;
    assert_int_equal(clEnqueueReadBuffer(queue, out, CL_TRUE, 0, sizeof result, &result, 0, NULL, NULL),
                     CL_SUCCESS);
    return result;
}

static void assert_text(cl_device_info info, const char *expected)
{
    char text[256];
    size_t size;
    assert_int_equal(clGetDeviceInfo(device, info, 0, NULL, &size), CL_SUCCESS);
    assert_int_equal(size, strlen(expected) + 1);
    assert_int_equal(clGetDeviceInfo(device, info, size - 1, text, NULL), CL_INVALID_VALUE);
    assert_int_equal(clGetDeviceInfo(device, info, sizeof text, text, NULL), CL_SUCCESS);
    assert_string_equal(text, expected);
}

/* A fact that is an integer of `size` bytes. */
static uint64_t device_number(cl_device_info info, size_t size)
{
    unsigned char bytes[sizeof(uint64_t)] = {0};
    size_t given;
    uint64_t number = 0;
    assert_int_equal(clGetDeviceInfo(device, info, sizeof bytes, bytes, &given), CL_SUCCESS);
    assert_int_equal(given, size);
    for (size_t i = 0; i < size; i++) /* every host we test on is little-endian */
        number |= (uint64_t)bytes[i] << 8 * i;
    return number;
}

static size_t kernel_group_size(cl_kernel kernel)
{
    size_t size;
    assert_int_equal(
        clGetKernelWorkGroupInfo(kernel, device, CL_KERNEL_WORK_GROUP_SIZE, sizeof size, &size, NULL),
        CL_SUCCESS);
    return size;
}

/* ---- Facts ---------------------------------------------------------------------------------- */

static void test_facts(void **state)
{
    (void)state;
    fake("CLATTN_FAKE_NAME", "gfx1100");
    fake("CLATTN_FAKE_VENDOR", "Advanced Micro Devices, Inc.");
    fake("CLATTN_FAKE_DRIVER", "3602.0 (HSA1.1,LC)");
    fake("CLATTN_FAKE_VERSION", "OpenCL 2.0 fake");
    fake("CLATTN_FAKE_OPENCL_C_VERSION", "OpenCL C 1.1 ");
    fake("CLATTN_FAKE_VENDOR_ID", "0x1002");
    fake("CLATTN_FAKE_LOCAL_MEM", "65536");
    fake("CLATTN_FAKE_LOCAL_MEM_TYPE", "local");
    fake("CLATTN_FAKE_WORK_GROUP", "256");
    fake("CLATTN_FAKE_COMPUTE_UNITS", "48");
    fake("CLATTN_FAKE_VECTOR_WIDTH", "1");
    fake("CLATTN_FAKE_COMPUTE_CAPABILITY", "86");
    fake("CLATTN_FAKE_GLOBAL_MEM", "1000000");
    fake("CLATTN_FAKE_MAX_ALLOC", "100000");

    assert_text(CL_DEVICE_NAME, "gfx1100");
    assert_text(CL_DEVICE_VENDOR, "Advanced Micro Devices, Inc.");
    assert_text(CL_DRIVER_VERSION, "3602.0 (HSA1.1,LC)");
    assert_text(CL_DEVICE_VERSION, "OpenCL 2.0 fake");
    assert_text(CL_DEVICE_OPENCL_C_VERSION, "OpenCL C 1.1 ");
    assert_int_equal(device_number(CL_DEVICE_VENDOR_ID, sizeof(cl_uint)), 0x1002);
    assert_int_equal(device_number(0x4000, sizeof(cl_uint)), 8); /* cl_nv_device_attribute_query */
    assert_int_equal(device_number(0x4001, sizeof(cl_uint)), 6);
    assert_int_equal(device_number(CL_DEVICE_LOCAL_MEM_SIZE, sizeof(cl_ulong)), 65536);
    assert_int_equal(device_number(CL_DEVICE_LOCAL_MEM_TYPE, sizeof(cl_uint)), CL_LOCAL);
    assert_int_equal(device_number(CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof(size_t)), 256);
    assert_int_equal(device_number(CL_DEVICE_MAX_COMPUTE_UNITS, sizeof(cl_uint)), 48);
    assert_int_equal(device_number(CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT, sizeof(cl_uint)), 1);
    assert_int_equal(device_number(CL_DEVICE_PREFERRED_VECTOR_WIDTH_FLOAT, sizeof(cl_uint)), 1);
    assert_int_equal(device_number(CL_DEVICE_GLOBAL_MEM_SIZE, sizeof(cl_ulong)), 1000000);
    assert_int_equal(device_number(CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof(cl_ulong)), 100000);

    size_t sizes[3];
    assert_int_equal(clGetDeviceInfo(device, CL_DEVICE_MAX_WORK_ITEM_SIZES, sizeof sizes, sizes, NULL),
                     CL_SUCCESS);
    for (int i = 0; i < 3; i++)
        assert_in_range(sizes[i], 1, 256);

    /* A fact taken away is the driver's again. */
    fake("CLATTN_FAKE_NAME", NULL);
    char name[256];
    assert_int_equal(clGetDeviceInfo(device, CL_DEVICE_NAME, sizeof name, name, NULL), CL_SUCCESS);
    assert_string_not_equal(name, "gfx1100");
}

static void test_versions(void **state)
{
    (void)state;
    cl_version version;
    cl_name_version list[32];
    size_t size;
    fake("CLATTN_FAKE_VERSION", "OpenCL 1.2 fake");
    fake("CLATTN_FAKE_OPENCL_C_VERSION", "OpenCL C 1.1");
    if (clGetDeviceInfo(device, CL_DEVICE_OPENCL_C_ALL_VERSIONS, sizeof list, list, &size))
        skip(); /* an OpenCL 1 or 2 driver */
    assert_in_range(size / sizeof *list, 1, 2);
    for (size_t i = 0; i < size / sizeof *list; i++)
        assert_true(list[i].version <= CL_MAKE_VERSION(1, 1, 0));
    assert_int_equal(clGetDeviceInfo(device, CL_DEVICE_NUMERIC_VERSION, sizeof version, &version, NULL),
                     CL_SUCCESS);
    assert_int_equal(version, CL_MAKE_VERSION(1, 2, 0));

    assert_int_equal(clBuildProgram(program, 1, &device, "-cl-std=CL1.2", NULL, NULL),
                     CL_BUILD_PROGRAM_FAILURE);
    assert_int_equal(clBuildProgram(program, 1, &device, "-cl-std=CL1.1", NULL, NULL), CL_SUCCESS);
    assert_int_equal(counters().refusals, 1);
}

static void test_extensions(void **state)
{
    (void)state;
    cl_name_version list[8];
    size_t size;
    fake("CLATTN_FAKE_EXTENSIONS", "cl_khr_fp16_lookalike cl_khr_subgroups");
    assert_text(CL_DEVICE_EXTENSIONS, "cl_khr_fp16_lookalike cl_khr_subgroups");
    assert_int_equal(device_number(CL_DEVICE_DOUBLE_FP_CONFIG, sizeof(cl_device_fp_config)), 0);
    assert_int_equal(device_number(CL_DEVICE_HALF_FP_CONFIG, sizeof(cl_device_fp_config)), 0);
    assert_int_equal(device_number(CL_DEVICE_NATIVE_VECTOR_WIDTH_DOUBLE, sizeof(cl_uint)), 0);
    assert_int_equal(clGetDeviceInfo(device, CL_DEVICE_EXTENSIONS_WITH_VERSION, sizeof list, list, &size),
                     CL_SUCCESS);
    assert_int_equal(size, 2 * sizeof *list);
    assert_string_equal(list[0].name, "cl_khr_fp16_lookalike");
    assert_string_equal(list[1].name, "cl_khr_subgroups");

    fake("CLATTN_FAKE_EXTENSIONS", ""); /* a device without any */
    assert_text(CL_DEVICE_EXTENSIONS, "");
}

static void test_svm_facts(void **state)
{
    (void)state;
    cl_device_svm_capabilities svm;
    fake("CLATTN_FAKE_SVM", "coarse");
    assert_int_equal(device_number(CL_DEVICE_SVM_CAPABILITIES, sizeof svm),
                     CL_DEVICE_SVM_COARSE_GRAIN_BUFFER);
    fake("CLATTN_FAKE_SVM", "none");
    assert_int_equal(device_number(CL_DEVICE_SVM_CAPABILITIES, sizeof svm), 0);
    fake("CLATTN_FAKE_VERSION", "OpenCL 1.2 fake");
    assert_int_equal(clGetDeviceInfo(device, CL_DEVICE_SVM_CAPABILITIES, sizeof svm, &svm, NULL),
                     CL_INVALID_VALUE);
    fake("CLATTN_FAKE_VERSION", "OpenCL 2.0 fake");
    assert_int_equal(device_number(CL_DEVICE_SVM_CAPABILITIES, sizeof svm), 0);
}

/* Copied, as ISO C has no conversion to a function. */
static void find_function(void *function, const char *name)
{
    void *address = clGetExtensionFunctionAddressForPlatform(platform, name);
    memcpy(function, &address, sizeof address);
}

static void test_unified_shared_memory(void **state)
{
    (void)state;
    const size_t bytes = ITEMS * sizeof(cl_int);
    clSetKernelArgMemPointerINTEL_fn set;
    cl_int result = 0;
    cl_int *memory = clSVMAlloc(context, CL_MEM_READ_WRITE, bytes, 0);
    if (!memory)
        skip();
    fake("CLATTN_FAKE_EXTENSIONS", "cl_intel_unified_shared_memory_preview");
    find_function(&set, "clSetKernelArgMemPointerINTEL");
    assert_null(set);
    fake("CLATTN_FAKE_EXTENSIONS", "cl_khr_spir cl_intel_unified_shared_memory");
    find_function(&set, "clSetKernelArgMemPointerINTEL");
    assert_non_null(set);
    cl_kernel kernel = make_kernel("plain");
    assert_int_equal(set(kernel, 0, memory), CL_SUCCESS);
    assert_int_equal(launch(kernel, 16), CL_SUCCESS);
    assert_int_equal(clEnqueueSVMMemcpy(queue, CL_TRUE, &result, memory + 1, sizeof result, 0, NULL, NULL),
                     CL_SUCCESS);
    assert_int_equal(result, 16);
    assert_true(clattn_fakedev_fail("clSetKernelArgMemPointerINTEL:1:-6"));
    assert_int_equal(set(kernel, 0, memory), CL_OUT_OF_HOST_MEMORY);
    assert_int_equal(set(kernel, 0, memory), CL_SUCCESS);
    assert_int_equal(clattn_fakedev_calls("clSetKernelArgMemPointerINTEL"), 3);
    clReleaseKernel(kernel);
    clSVMFree(context, memory);

    fake("CLATTN_FAKE_HIDDEN_FUNCTIONS", "clFinish clSetKernelArgMemPointerINTEL");
    find_function(&set, "clSetKernelArgMemPointerINTEL");
    assert_null(set);
    fake("CLATTN_FAKE_HIDDEN_FUNCTIONS", NULL);
    assert_true(clattn_fakedev_fail("clGetExtensionFunctionAddressForPlatform:1:-6"));
    find_function(&set, "clSetKernelArgMemPointerINTEL");
    assert_null(set);
}

static void test_command_buffer(void **state)
{
    (void)state;
    const size_t global = ITEMS, local = 32;
    cl_int status;
    cl_sync_point_khr point = 0;
    clCreateCommandBufferKHR_fn create;
    clFinalizeCommandBufferKHR_fn finalize;
    clEnqueueCommandBufferKHR_fn enqueue;
    clReleaseCommandBufferKHR_fn release;
    clCommandNDRangeKernelKHR_fn command;
    find_function(&create, "clCreateCommandBufferKHR");
    find_function(&finalize, "clFinalizeCommandBufferKHR");
    find_function(&enqueue, "clEnqueueCommandBufferKHR");
    find_function(&release, "clReleaseCommandBufferKHR");
    find_function(&command, "clCommandNDRangeKernelKHR");
    if (!create || !finalize || !enqueue || !release || !command)
        skip();
    cl_kernel kernel = make_kernel("plain");
    cl_command_buffer_khr buffer = create(1, &queue, NULL, &status);
    assert_int_equal(status, CL_SUCCESS);
    assert_true(clattn_fakedev_fail("clCommandNDRangeKernelKHR:1:-5"));
    assert_int_equal(command(buffer, NULL, NULL, kernel, 1, NULL, &global, &local, 0, NULL, &point, NULL),
                     CL_OUT_OF_RESOURCES);
    assert_int_equal(point, 0);
    assert_int_equal(command(buffer, NULL, NULL, kernel, 1, NULL, &global, &local, 0, NULL, &point, NULL),
                     CL_SUCCESS);
    assert_int_equal(clattn_fakedev_calls("clCommandNDRangeKernelKHR"), 2);
    assert_int_equal(finalize(buffer), CL_SUCCESS);
    assert_int_equal(enqueue(0, NULL, buffer, 0, NULL, NULL), CL_SUCCESS);
    assert_int_equal(clFinish(queue), CL_SUCCESS);
    assert_int_equal(first_result(), 32);
    assert_int_equal(release(buffer), CL_SUCCESS);
    clReleaseKernel(kernel);
    fake("CLATTN_FAKE_HIDDEN_FUNCTIONS", "clCommandNDRangeKernelKHR");
    find_function(&command, "clCommandNDRangeKernelKHR");
    assert_null(command);
}

static cl_int find_devices(cl_device_type type, cl_uint *count)
{
    cl_device_id devices[16];
    return clGetDeviceIDs(platform, type, 16, devices, count);
}

static void assert_device_type(const char *word, cl_device_type type, cl_device_type other)
{
    cl_uint all, count;
    fake("CLATTN_FAKE_TYPE", NULL);
    assert_int_equal(find_devices(CL_DEVICE_TYPE_ALL, &all), CL_SUCCESS);
    fake("CLATTN_FAKE_TYPE", word);
    assert_int_equal(find_devices(type, &count), CL_SUCCESS);
    assert_int_equal(count, all);
    assert_int_equal(find_devices(type | other, &count), CL_SUCCESS);
    assert_int_equal(count, all);
    assert_int_equal(find_devices(CL_DEVICE_TYPE_ALL, &count), CL_SUCCESS);
    assert_int_equal(count, all);
    assert_int_equal(find_devices(CL_DEVICE_TYPE_DEFAULT, &count), CL_SUCCESS);
    assert_int_equal(count, 1);
    assert_int_equal(find_devices(other, &count), CL_DEVICE_NOT_FOUND);
    cl_device_type told = device_number(CL_DEVICE_TYPE, sizeof told);
    assert_true(told == type || told == (type | CL_DEVICE_TYPE_DEFAULT));

    const cl_context_properties properties[] = {CL_CONTEXT_PLATFORM, (cl_context_properties)platform, 0};
    cl_int status;
    cl_context made = clCreateContextFromType(properties, type, NULL, NULL, &status);
    assert_int_equal(status, CL_SUCCESS);
    assert_int_equal(clReleaseContext(made), CL_SUCCESS);
    assert_null(clCreateContextFromType(properties, other, NULL, NULL, &status));
    assert_int_equal(status, CL_DEVICE_NOT_FOUND);
}

static void test_device_type(void **state)
{
    (void)state;
    assert_device_type("gpu", CL_DEVICE_TYPE_GPU, CL_DEVICE_TYPE_CPU);
    assert_device_type("cpu", CL_DEVICE_TYPE_CPU, CL_DEVICE_TYPE_GPU);
    assert_device_type("accelerator", CL_DEVICE_TYPE_ACCELERATOR, CL_DEVICE_TYPE_GPU);
}

/* ---- Limits --------------------------------------------------------------------------------- */

static void test_local_memory_of_variable(void **state)
{
    (void)state;
    cl_kernel kernel = make_kernel("with_variable");
    fake("CLATTN_FAKE_LOCAL_MEM", "4096");
    assert_int_equal(launch(kernel, 64), CL_SUCCESS);
    fake("CLATTN_FAKE_LOCAL_MEM", "4095");
    assert_int_equal(launch(kernel, 64), CL_OUT_OF_RESOURCES);
    assert_int_equal(clEnqueueTask(queue, kernel, 0, NULL, NULL), CL_OUT_OF_RESOURCES);
    assert_int_equal(counters().refusals, 2);
    clReleaseKernel(kernel);
}

static void test_local_memory_of_argument(void **state)
{
    (void)state;
    cl_kernel kernel = make_kernel("with_argument");
    fake("CLATTN_FAKE_LOCAL_MEM", "16384");
    assert_int_equal(clSetKernelArg(kernel, 1, 16384, NULL), CL_SUCCESS);
    assert_int_equal(launch(kernel, 64), CL_SUCCESS);
    /* OpenCL lets the argument be set; it is the launch that asks for too much. */
    assert_int_equal(clSetKernelArg(kernel, 1, 16388, NULL), CL_SUCCESS);
    assert_int_equal(launch(kernel, 64), CL_OUT_OF_RESOURCES);
    assert_int_equal(clSetKernelArg(kernel, 1, 1024, NULL), CL_SUCCESS);
    assert_int_equal(launch(kernel, 64), CL_SUCCESS);
    assert_int_equal(first_result(), 63);
    assert_int_equal(counters().refusals, 1);
    clReleaseKernel(kernel);
}

static void test_work_group(void **state)
{
    (void)state;
    cl_kernel kernel = make_kernel("plain");
    fake("CLATTN_FAKE_WORK_GROUP", "128");
    assert_int_equal(kernel_group_size(kernel), 128);
    assert_int_equal(launch(kernel, 128), CL_SUCCESS);
    assert_int_equal(launch(kernel, 256), CL_INVALID_WORK_GROUP_SIZE);

    /* All dimensions count, without being fooled by a product that wraps to something small. */
    const size_t global[3] = {16, 16, 1}, local[3] = {16, 16, 1};
    assert_int_equal(clEnqueueNDRangeKernel(queue, kernel, 2, NULL, global, local, 0, NULL, NULL),
                     CL_INVALID_WORK_GROUP_SIZE);
    const size_t half = (size_t)1 << (sizeof(size_t) * 4), huge[3] = {half, half, 1};
    assert_int_equal(clEnqueueNDRangeKernel(queue, kernel, 3, NULL, huge, huge, 0, NULL, NULL),
                     CL_INVALID_WORK_GROUP_SIZE);

    /* Left to choose, nobody chooses more than is allowed: 32 is what divides ITEMS. */
    fake("CLATTN_FAKE_WORK_GROUP", "48");
    assert_int_equal(launch(kernel, 0), CL_SUCCESS);
    assert_int_equal(first_result(), 32);
    fake("CLATTN_FAKE_WORK_GROUP", "128");

    fake("CLATTN_FAKE_KERNEL_WORK_GROUP", "32"); /* as after a build that took many registers */
    assert_int_equal(kernel_group_size(kernel), 32);
    assert_int_equal(device_number(CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof(size_t)), 128);
    assert_int_equal(launch(kernel, 64), CL_INVALID_WORK_GROUP_SIZE);
    assert_int_equal(launch(kernel, 32), CL_SUCCESS);

    cl_kernel required = make_kernel("required");
    assert_int_equal(launch(required, 0), CL_INVALID_WORK_GROUP_SIZE);
    fake("CLATTN_FAKE_KERNEL_WORK_GROUP", NULL);
    assert_int_equal(launch(required, 64), CL_SUCCESS);
    clReleaseKernel(required);

    size_t multiple;
    fake("CLATTN_FAKE_WORK_GROUP_MULTIPLE", "64");
    assert_int_equal(clGetKernelWorkGroupInfo(kernel, device, CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE,
                                              sizeof multiple, &multiple, NULL),
                     CL_SUCCESS);
    assert_int_equal(multiple, 64);
    clReleaseKernel(kernel);
}

static void test_memory_limits(void **state)
{
    (void)state;
    cl_int status;
    fake("CLATTN_FAKE_MAX_ALLOC", "65536");
    assert_null(clCreateBuffer(context, 0, 65537, NULL, &status));
    assert_int_equal(status, CL_INVALID_BUFFER_SIZE);
    assert_null(clCreateBuffer(context, 0, 65537, NULL, NULL)); /* errcode_ret is optional */

    fake("CLATTN_FAKE_GLOBAL_MEM", "66560"); /* `out` has 1024 of them */
    cl_mem fits = clCreateBuffer(context, 0, 65536, NULL, &status);
    assert_int_equal(status, CL_SUCCESS);
    assert_null(clCreateBuffer(context, 0, 1, NULL, &status));
    assert_int_equal(status, CL_MEM_OBJECT_ALLOCATION_FAILURE);
    assert_int_equal(clReleaseMemObject(fits), CL_SUCCESS);
    assert_int_equal(counters().refusals, 3);
}

/* ---- Accounting ----------------------------------------------------------------------------- */

static void test_memory(void **state)
{
    (void)state;
    cl_int status;
    char host[512];
    const uint64_t base = ITEMS * sizeof(cl_int);
    assert_int_equal(counters().memory_now, base);

    cl_mem a = clCreateBuffer(context, 0, 100000, NULL, &status);
    cl_mem b = clCreateBuffer(context, CL_MEM_ALLOC_HOST_PTR, 50000, NULL, &status);
    assert_int_equal(counters().memory_now, base + 150000);
    clReleaseMemObject(b);
    assert_int_equal(counters().memory_now, base + 100000);
    assert_int_equal(counters().memory_peak, base + 150000);

    cl_mem borrowed = clCreateBuffer(context, CL_MEM_USE_HOST_PTR, sizeof host, host, &status);
    assert_int_equal(status, CL_SUCCESS);
    assert_int_equal(counters().memory_now, base + 100000);
    assert_int_equal(counters().host_pointer_memory_now, sizeof host);
    clReleaseMemObject(borrowed);
    assert_int_equal(counters().host_pointer_memory_now, 0);

    /* A sub-buffer adds nothing, but keeps its parent's bytes after the parent itself is released.
     */
    const cl_buffer_region region = {.origin = 0, .size = 4096};
    cl_mem part = clCreateSubBuffer(a, 0, CL_BUFFER_CREATE_TYPE_REGION, &region, &status);
    assert_int_equal(status, CL_SUCCESS);
    assert_int_equal(counters().memory_now, base + 100000);
    assert_int_equal(counters().live[CLATTN_FAKEDEV_BUFFER], 3);
    clReleaseMemObject(a);
    assert_int_equal(counters().live[CLATTN_FAKEDEV_BUFFER], 2);
    assert_int_equal(counters().memory_now, base + 100000);
    clReleaseMemObject(part);
    assert_int_equal(counters().memory_now, base);

    assert_int_equal(counters().memory_peak, base + 150000);
    clattn_fakedev_reset();
    assert_int_equal(counters().memory_peak, base);
}

static void test_svm(void **state)
{
    (void)state;
    const uint64_t base = counters().memory_now;
    void *memory = clSVMAlloc(context, CL_MEM_READ_WRITE, 10000, 0);
    if (!memory)
        skip(); /* a device without SVM */
    assert_int_equal(counters().memory_now, base + 10000);
    assert_int_equal(counters().live[CLATTN_FAKEDEV_SVM], 1);
    clSVMFree(context, memory);
    clSVMFree(context, NULL);
    assert_int_equal(counters().live[CLATTN_FAKEDEV_SVM], 0);

    memory = clSVMAlloc(context, CL_MEM_READ_WRITE, 10000, 0);
    cl_event event;
    assert_int_equal(clEnqueueSVMFree(queue, 1, &memory, NULL, NULL, 0, NULL, &event), CL_SUCCESS);
    assert_int_equal(clWaitForEvents(1, &event), CL_SUCCESS);
    clReleaseEvent(event);
    assert_int_equal(counters().memory_now, base);
    assert_int_equal(counters().unknown_releases, 0);
}

static void test_references(void **state)
{
    (void)state;
    assert_int_equal(clRetainMemObject(out), CL_SUCCESS);
    assert_int_equal(clRetainContext(context), CL_SUCCESS);
    assert_int_equal(counters().live[CLATTN_FAKEDEV_BUFFER], 1);
    assert_int_equal(counters().references[CLATTN_FAKEDEV_BUFFER], 2);
    assert_int_equal(counters().references[CLATTN_FAKEDEV_CONTEXT], 2);
    assert_int_equal(clReleaseMemObject(out), CL_SUCCESS);
    assert_int_equal(clReleaseContext(context), CL_SUCCESS);
    assert_int_equal(counters().live[CLATTN_FAKEDEV_BUFFER], 1);
    assert_int_equal(counters().live[CLATTN_FAKEDEV_CONTEXT], 1);
    assert_int_equal(counters().references[CLATTN_FAKEDEV_BUFFER], 1);

    assert_int_equal(clRetainDevice(device), CL_SUCCESS);
    assert_int_equal(counters().live[CLATTN_FAKEDEV_DEVICE], 1);
    assert_int_equal(clReleaseDevice(device), CL_SUCCESS);
    assert_int_equal(counters().live[CLATTN_FAKEDEV_DEVICE], 0);

    assert_int_equal(counters().unknown_releases, 0);
    assert_int_equal(clReleaseMemObject(NULL), CL_INVALID_MEM_OBJECT);
    assert_int_equal(counters().unknown_releases, 1);
}

static void test_events(void **state)
{
    (void)state;
    const cl_int zero = 0;
    const size_t global = ITEMS;
    cl_int status, value;
    cl_event fill, launched, marker, read, user;
    cl_kernel kernel = make_kernel("plain");
    assert_int_equal(
        clEnqueueFillBuffer(queue, out, &zero, sizeof zero, 0, ITEMS * sizeof zero, 0, NULL, &fill),
        CL_SUCCESS);
    assert_int_equal(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &global, NULL, 1, &fill, &launched),
                     CL_SUCCESS);
    assert_int_equal(clEnqueueMarkerWithWaitList(queue, 1, &launched, &marker), CL_SUCCESS);
    assert_int_equal(clEnqueueReadBuffer(queue, out, CL_FALSE, 0, sizeof value, &value, 1, &marker, &read),
                     CL_SUCCESS);
    user = clCreateUserEvent(context, &status);
    assert_int_equal(status, CL_SUCCESS);
    assert_int_equal(clSetUserEventStatus(user, CL_COMPLETE), CL_SUCCESS);
    assert_int_equal(counters().live[CLATTN_FAKEDEV_EVENT], 5);
    assert_int_equal(counters().blocking_transfers, 0);

    void *mapped = clEnqueueMapBuffer(queue, out, CL_TRUE, CL_MAP_READ, 0, 4, 0, NULL, NULL, &status);
    assert_int_equal(status, CL_SUCCESS);
    assert_int_equal(clEnqueueUnmapMemObject(queue, out, mapped, 0, NULL, NULL), CL_SUCCESS);
    assert_int_equal(clFlush(queue), CL_SUCCESS);
    assert_int_equal(clWaitForEvents(1, &read), CL_SUCCESS);
    assert_int_equal(clFinish(queue), CL_SUCCESS);
    assert_int_equal(counters().live[CLATTN_FAKEDEV_EVENT], 5); /* commands without event: none */
    assert_int_equal(counters().blocking_transfers, 1);
    assert_int_equal(counters().launches, 1);
    assert_int_equal(counters().flushes, 1);
    assert_int_equal(counters().event_waits, 1);
    assert_int_equal(counters().finishes, 1);
    assert_int_equal(clattn_fakedev_calls("clEnqueueUnmapMemObject"), 1);
    assert_int_equal(clattn_fakedev_calls("no such function"), 0);

    cl_event *const events[] = {&fill, &launched, &marker, &read, &user};
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(clReleaseEvent(*events[i]), CL_SUCCESS);
    assert_int_equal(counters().live[CLATTN_FAKEDEV_EVENT], 0);
    clReleaseKernel(kernel);
}

static void test_builds(void **state)
{
    (void)state;
    cl_int status;
    size_t size;
    assert_int_equal(counters().builds_from_source, 1);
    assert_int_equal(clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, NULL),
                     CL_SUCCESS);
    unsigned char *binary = malloc(size);
    assert_non_null(binary);
    assert_int_equal(clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof binary, &binary, NULL),
                     CL_SUCCESS);

    const unsigned char *bytes = binary;
    cl_program loaded = clCreateProgramWithBinary(context, 1, &device, &size, &bytes, NULL, &status);
    assert_int_equal(status, CL_SUCCESS);
    assert_int_equal(clBuildProgram(loaded, 1, &device, "", NULL, NULL), CL_SUCCESS);
    assert_int_equal(counters().builds_from_source, 1);
    assert_int_equal(counters().builds_from_binary, 1);
    assert_int_equal(counters().live[CLATTN_FAKEDEV_PROGRAM], 2);
    clReleaseProgram(loaded);
    free(binary);

    cl_kernel kernels[4];
    cl_uint count;
    assert_int_equal(clCreateKernelsInProgram(program, 4, kernels, &count), CL_SUCCESS);
    assert_int_equal(count, 4);
    cl_kernel one = make_kernel("plain");
    assert_int_equal(counters().live[CLATTN_FAKEDEV_KERNEL], 5);
    assert_int_equal(counters().kernel_creations, 1);
    clReleaseKernel(one);
    for (int i = 0; i < 4; i++)
        clReleaseKernel(kernels[i]);
    assert_int_equal(counters().live[CLATTN_FAKEDEV_KERNEL], 0);
    assert_int_equal(counters().created[CLATTN_FAKEDEV_KERNEL], 5);
}

static void *create_and_release(void *unused)
{
    (void)unused;
    for (int i = 0; i < 500; i++) {
        cl_mem buffer = clCreateBuffer(context, 0, 64, NULL, NULL);
        cl_event event = clCreateUserEvent(context, NULL);
        clRetainMemObject(buffer);
        clReleaseMemObject(buffer);
        clReleaseEvent(event);
        clReleaseMemObject(buffer);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    const uint64_t base = counters().memory_now;
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, create_and_release, NULL), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(clattn_fakedev_calls("clCreateBuffer"), 1 + THREADS * 500);
    assert_int_equal(counters().created[CLATTN_FAKEDEV_EVENT], THREADS * 500);
    assert_int_equal(counters().memory_now, base);
    assert_in_range(counters().memory_peak, base + 64, base + THREADS * 64);
    assert_int_equal(counters().unknown_releases, 0);
}

static void test_report(void **state)
{
    (void)state;
    char text[8192];
    const char *path = "fakedev_test_report.json";
    cl_kernel kernel = make_kernel("plain");
    assert_true(clattn_fakedev_report(path));
    clReleaseKernel(kernel);

    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t length = fread(text, 1, sizeof text - 1, file);
    text[length] = '\0';
    fclose(file);
    remove(path);
    assert_non_null(strstr(text, "\"memory_peak\": 1024,"));
    assert_non_null(strstr(text, "\"builds_from_source\": 1,"));
    assert_non_null(strstr(text, "\"clCreateKernel\": 1"));
    assert_non_null(strstr(text, "{\"kind\": \"kernel\", \"by\": \"clCreateKernel\", "
                                 "\"references\": 1, \"bytes\": 0}"));
    assert_false(clattn_fakedev_report("no/such/folder/report.json"));
    assert_false(clattn_fakedev_report(NULL)); /* CLATTN_FAKE_REPORT is not set here */
}

/* ---- Failure injection ---------------------------------------------------------------------- */

static void test_failure(void **state)
{
    (void)state;
    cl_int status;
    assert_true(clattn_fakedev_fail("clCreateKernel:2:-6"));
    cl_kernel first = clCreateKernel(program, "plain", &status);
    assert_int_equal(status, CL_SUCCESS);
    assert_null(clCreateKernel(program, "plain", &status));
    assert_int_equal(status, CL_OUT_OF_HOST_MEMORY);
    cl_kernel third = clCreateKernel(program, "plain", &status);
    assert_int_equal(status, CL_SUCCESS);
    assert_int_equal(counters().live[CLATTN_FAKEDEV_KERNEL], 2);
    assert_int_equal(counters().injected_failures, 1);
    clReleaseKernel(first);
    clReleaseKernel(third);

    /* Several at once, from the nth on, and taken away again. */
    assert_true(clattn_fakedev_fail("clFinish:2+:-36,clRetainContext:1:-5,clReleaseEvent:1:-58"));
    assert_int_equal(clFinish(queue), CL_SUCCESS);
    assert_int_equal(clFinish(queue), CL_INVALID_COMMAND_QUEUE);
    assert_int_equal(clFinish(queue), CL_INVALID_COMMAND_QUEUE);
    assert_int_equal(clRetainContext(context), CL_OUT_OF_RESOURCES);
    assert_int_equal(counters().references[CLATTN_FAKEDEV_CONTEXT], 1);
    cl_event event = clCreateUserEvent(context, NULL);
    assert_int_equal(clReleaseEvent(event), CL_INVALID_EVENT); /* and the event is still there */
    assert_int_equal(counters().live[CLATTN_FAKEDEV_EVENT], 1);
    assert_true(clattn_fakedev_fail(NULL));
    assert_int_equal(clReleaseEvent(event), CL_SUCCESS);
    assert_int_equal(clFinish(queue), CL_SUCCESS);
}

/* One row per function that a library like ours calls: fails, and did nothing. */
static void test_each_function_fails(void **state)
{
    (void)state;
    const size_t global = ITEMS, size = 1;
    const cl_buffer_region region = {.origin = 0, .size = 4};
    const char *text = source;
    const unsigned char byte = 0, *bytes = &byte;
    const cl_int zero = 0;
    size_t fact;
    cl_int status, value;
    cl_event event = NULL;
    cl_kernel kernel = make_kernel("plain");
    cl_event done = clCreateUserEvent(context, &status);
    const struct clattn_fakedev_counters before = counters();

#define FAILS(function, ...)                                          \
    do {                                                              \
        assert_true(clattn_fakedev_fail(#function ":1:-5"));          \
        assert_int_equal(function(__VA_ARGS__), CL_OUT_OF_RESOURCES); \
    } while (0)
#define GIVES_NULL(function, ...)                            \
    do {                                                     \
        assert_true(clattn_fakedev_fail(#function ":1:-5")); \
        assert_null(function(__VA_ARGS__, &status));         \
        assert_int_equal(status, CL_OUT_OF_RESOURCES);       \
    } while (0)

    GIVES_NULL(clCreateContext, NULL, 1, &device, NULL, NULL);
    GIVES_NULL(clCreateCommandQueue, context, device, 0);
    GIVES_NULL(clCreateCommandQueueWithProperties, context, device, NULL);
    GIVES_NULL(clCreateBuffer, context, 0, 64, NULL);
    GIVES_NULL(clCreateSubBuffer, out, 0, CL_BUFFER_CREATE_TYPE_REGION, &region);
    GIVES_NULL(clCreateProgramWithSource, context, 1, &text, NULL);
    GIVES_NULL(clCreateProgramWithBinary, context, 1, &device, &size, &bytes, NULL);
    GIVES_NULL(clCreateKernel, program, "plain");
    GIVES_NULL(clCreateUserEvent, context);
    GIVES_NULL(clEnqueueMapBuffer, queue, out, CL_TRUE, CL_MAP_READ, 0, 4, 0, NULL, NULL);
    FAILS(clGetPlatformIDs, 1, &platform, NULL);
    FAILS(clGetPlatformInfo, platform, CL_PLATFORM_NAME, 0, NULL, &fact);
    FAILS(clGetDeviceIDs, platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL);
    FAILS(clGetDeviceInfo, device, CL_DEVICE_NAME, 0, NULL, &fact);
    FAILS(clGetContextInfo, context, CL_CONTEXT_DEVICES, 0, NULL, &fact);
    FAILS(clGetCommandQueueInfo, queue, CL_QUEUE_CONTEXT, 0, NULL, &fact);
    FAILS(clGetMemObjectInfo, out, CL_MEM_SIZE, 0, NULL, &fact);
    FAILS(clGetProgramInfo, program, CL_PROGRAM_BINARY_SIZES, 0, NULL, &fact);
    FAILS(clGetProgramBuildInfo, program, device, CL_PROGRAM_BUILD_LOG, 0, NULL, &fact);
    FAILS(clGetKernelInfo, kernel, CL_KERNEL_NUM_ARGS, 0, NULL, &fact);
    FAILS(clGetKernelArgInfo, kernel, 0, CL_KERNEL_ARG_NAME, 0, NULL, &fact);
    FAILS(clGetKernelWorkGroupInfo, kernel, device, CL_KERNEL_WORK_GROUP_SIZE, 0, NULL, &fact);
    FAILS(clGetEventInfo, done, CL_EVENT_COMMAND_EXECUTION_STATUS, 0, NULL, &fact);
    FAILS(clGetEventProfilingInfo, done, CL_PROFILING_COMMAND_END, 0, NULL, &fact);
    FAILS(clBuildProgram, program, 1, &device, "", NULL, NULL);
    FAILS(clSetKernelArg, kernel, 0, sizeof out, &out);
    FAILS(clSetEventCallback, done, CL_COMPLETE, NULL, NULL);
    FAILS(clSetUserEventStatus, done, CL_COMPLETE);
    FAILS(clEnqueueNDRangeKernel, queue, kernel, 1, NULL, &global, NULL, 0, NULL, &event);
    FAILS(clEnqueueMarkerWithWaitList, queue, 0, NULL, &event);
    FAILS(clEnqueueBarrierWithWaitList, queue, 0, NULL, &event);
    FAILS(clEnqueueFillBuffer, queue, out, &zero, sizeof zero, 0, sizeof zero, 0, NULL, &event);
    FAILS(clEnqueueCopyBuffer, queue, out, out, 0, 64, 4, 0, NULL, &event);
    FAILS(clEnqueueReadBuffer, queue, out, CL_TRUE, 0, sizeof value, &value, 0, NULL, &event);
    FAILS(clEnqueueWriteBuffer, queue, out, CL_TRUE, 0, sizeof zero, &zero, 0, NULL, &event);
    FAILS(clEnqueueUnmapMemObject, queue, out, NULL, 0, NULL, &event);
    FAILS(clFlush, queue);
    FAILS(clFinish, queue);
    FAILS(clWaitForEvents, 1, &done);
    FAILS(clRetainContext, context);
    FAILS(clRetainDevice, device);
    FAILS(clRetainCommandQueue, queue);
    FAILS(clRetainMemObject, out);
    FAILS(clRetainProgram, program);
    FAILS(clRetainKernel, kernel);
    FAILS(clRetainEvent, done);
    FAILS(clReleaseContext, context);
    FAILS(clReleaseCommandQueue, queue);
    FAILS(clReleaseMemObject, out);
    FAILS(clReleaseProgram, program);
    FAILS(clReleaseKernel, kernel);
    FAILS(clReleaseEvent, done);
#undef FAILS
#undef GIVES_NULL

    assert_true(clattn_fakedev_fail("clSVMAlloc:1:-5"));
    assert_null(clSVMAlloc(context, CL_MEM_READ_WRITE, 64, 0));

    const struct clattn_fakedev_counters after = counters();
    assert_null(event);
    assert_memory_equal(after.references, before.references, sizeof after.references);
    assert_memory_equal(after.created, before.created, sizeof after.created);
    assert_int_equal(after.memory_peak, before.memory_peak);
    assert_int_equal(after.builds_from_source, before.builds_from_source);
    assert_int_equal(after.blocking_transfers, before.blocking_transfers);
    assert_true(clattn_fakedev_fail(NULL));
    clReleaseEvent(done);
    clReleaseKernel(kernel);
}

/* Something like an operation of a library: cleans up whatever goes wrong. Releases nothing twice.
 */
static cl_int operation(void)
{
    cl_int status;
    cl_kernel kernel = NULL;
    cl_event event = NULL;
    const size_t global = ITEMS;
    cl_mem buffer = clCreateBuffer(context, 0, ITEMS * sizeof(cl_int), NULL, &status);
    if (status == CL_SUCCESS)
        kernel = clCreateKernel(program, "plain", &status);
    if (status == CL_SUCCESS)
        status = clSetKernelArg(kernel, 0, sizeof buffer, &buffer);
    if (status == CL_SUCCESS)
        status = clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &global, NULL, 0, NULL, &event);
    if (status == CL_SUCCESS)
        status = clWaitForEvents(1, &event);
    if (event)
        clReleaseEvent(event);
    if (kernel)
        clReleaseKernel(kernel);
    if (buffer)
        clReleaseMemObject(buffer);
    return status;
}

/* The way to test a library: fail its 1st, 2nd, ... call, until it makes no more calls. */
static void test_sweep(void **state)
{
    (void)state;
    const struct clattn_fakedev_counters before = counters();
    int n = 0;
    for (;;) {
        char specs[32];
        snprintf(specs, sizeof specs, "*:%d:-6", ++n);
        clattn_fakedev_reset();
        assert_true(clattn_fakedev_fail(specs));
        cl_int status = operation();
        assert_true(clattn_fakedev_fail(NULL));
        const struct clattn_fakedev_counters after = counters();
        assert_memory_equal(after.references, before.references, sizeof after.references);
        if (after.injected_failures == 0) {
            assert_int_equal(status, CL_SUCCESS);
            break;
        }
        assert_int_equal(status, CL_OUT_OF_HOST_MEMORY);
    }
    assert_int_equal(n, 6);
    /* Where waiting failed, the kernel may still run. */
    assert_int_equal(clFinish(queue), CL_SUCCESS);
}

static void test_bad_settings(void **state)
{
    (void)state;
    static const char *const bad_specs[] = {
        "clCreateKernel",       "clCreateKernel:1",     "clCreateKernel:0:-6",
        "clCreateKernel:1:6",   "clCreateKernel:1:-6,", "clCreateKernel:x:-6",
        "noSuchFunction:1:-6",  "clCreateKernel:1:",    ":1:-6",
        "clCreateKernel:-1:-6", "clCreateKernel:1:-6x",
    };
    fake("CLATTN_FAKE_LOCAL_MEM", "4096");
    assert_true(clattn_fakedev_fail("clFinish:1:-36"));
    for (size_t i = 0; i < sizeof bad_specs / sizeof *bad_specs; i++)
        assert_false(clattn_fakedev_fail(bad_specs[i]));
    assert_false(clattn_fakedev_set("CLATTN_FAKE_NOTHING", "1"));
    assert_false(clattn_fakedev_set("FAKE_NAME", "x"));
    assert_false(clattn_fakedev_set("CLATTN_FAKE_LOCAL_MEM", "0"));
    assert_false(clattn_fakedev_set("CLATTN_FAKE_LOCAL_MEM", "-1"));
    assert_false(clattn_fakedev_set("CLATTN_FAKE_LOCAL_MEM", "32k"));
    assert_false(clattn_fakedev_set("CLATTN_FAKE_TYPE", "local")); /* a word, but of another variable */

    /* None of them changed anything. */
    assert_int_equal(clFinish(queue), CL_INVALID_COMMAND_QUEUE);
    assert_int_equal(device_number(CL_DEVICE_LOCAL_MEM_SIZE, sizeof(cl_ulong)), 4096);
}

/* ---- Programs of their own ------------------------------------------------------------------ */

static void test_environment(void **state)
{
    (void)state;
    cl_int status;
    assert_text(CL_DEVICE_NAME, "tiny");
    assert_int_equal(device_number(CL_DEVICE_LOCAL_MEM_SIZE, sizeof(cl_ulong)), 16384);
    assert_int_equal(device_number(CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof(size_t)), 64);
    assert_true(device_number(CL_DEVICE_TYPE, sizeof(cl_device_type)) & CL_DEVICE_TYPE_GPU);
    cl_kernel kernel = make_kernel("plain");
    assert_null(clCreateKernel(program, "plain", &status));
    assert_int_equal(status, CL_OUT_OF_HOST_MEMORY);
    assert_int_equal(launch(kernel, 128), CL_INVALID_WORK_GROUP_SIZE);
    assert_int_equal(launch(kernel, 64), CL_SUCCESS);
    clReleaseKernel(kernel);
}

static int leak(void)
{
    context = clCreateContext(NULL, 1, &device, NULL, NULL, NULL);
    cl_mem buffer = clCreateBuffer(context, 0, 4096, NULL, NULL);
    clRetainMemObject(buffer);
    clReleaseContext(context);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (clGetPlatformIDs(1, &platform, NULL) != CL_SUCCESS ||
        clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL) != CL_SUCCESS) {
        fprintf(stderr, "no OpenCL device\n");
        return NO_DEVICE;
    }
    if (!clattn_fakedev_active()) {
        fprintf(stderr, "OPENCL_LAYERS does not name this build's libclattn_fakedev\n");
        return EXIT_FAILURE;
    }
    if (strcmp(what, "leak") == 0)
        return leak();

    const struct CMUnitTest environment[] = {
        cmocka_unit_test_setup_teardown(test_environment, begin, end),
    };
    if (strcmp(what, "environment") == 0)
        return cmocka_run_group_tests(environment, NULL, NULL);

#define TEST(function) cmocka_unit_test_setup_teardown(function, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(test_facts),
        TEST(test_versions),
        TEST(test_extensions),
        TEST(test_svm_facts),
        TEST(test_unified_shared_memory),
        TEST(test_command_buffer),
        TEST(test_device_type),
        TEST(test_local_memory_of_variable),
        TEST(test_local_memory_of_argument),
        TEST(test_work_group),
        TEST(test_memory_limits),
        TEST(test_memory),
        TEST(test_svm),
        TEST(test_references),
        TEST(test_events),
        TEST(test_builds),
        TEST(test_threads),
        TEST(test_report),
        TEST(test_failure),
        TEST(test_each_function_fails),
        TEST(test_sweep),
        TEST(test_bad_settings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
