/* Storage types in kernels (cl/convert.cl, cache_types.cl, encode.cl) against the host's codecs, bit for bit:
 * every way to read them, every byte of them, and what is stored for ordinary, extreme and halfway numbers.
 * The host's codecs are held to the formats' definitions; to ggml's own code by tests/conformance. */
#include "../../src/cli/cache_types.h"

#include "../../src/cli/random_values.h"
#include "../../src/cli/tensor_convert.h"
#include "fixture.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE(name)                                 \
    extern const unsigned char clattn__cl_##name[]; \
    extern const size_t clattn__cl_##name##_size;
PIECE(convert)
PIECE(cache_types)
PIECE(encode)
PIECE(cache_types_test)
#undef PIECE

static const int32_t types[] = {
    CLATTN_DTYPE_F32,     CLATTN_DTYPE_F16,     CLATTN_DTYPE_BF16, CLATTN_DTYPE_I8,
    CLATTN_DTYPE_F8_E4M3, CLATTN_DTYPE_F8_E5M2, CLATTN_DTYPE_Q8_0, CLATTN_DTYPE_Q4_0,
    CLATTN_DTYPE_Q4_1,    CLATTN_DTYPE_Q5_0,    CLATTN_DTYPE_Q5_1, CLATTN_DTYPE_IQ4_NL,
};
enum { TYPES = sizeof types / sizeof types[0] };

static cl_program program;

static int open_all(void **state)
{
    static unsigned char log[100000];
    const char *text[] = {(const char *)clattn__cl_convert, (const char *)clattn__cl_cache_types,
                          (const char *)clattn__cl_encode, (const char *)clattn__cl_cache_types_test};
    const size_t size[] = {clattn__cl_convert_size, clattn__cl_cache_types_size, clattn__cl_encode_size,
                           clattn__cl_cache_types_test_size};
    cl_int code;
    if (fixture_open(state) != 0)
        return -1;
    program = clCreateProgramWithSource(device.context, 4, text, size, &code);
    if (code != CL_SUCCESS)
        return -1;
    code = clBuildProgram(program, 1, &device.id, "-cl-std=CL1.2", NULL, NULL);
    if (code != CL_SUCCESS) {
        clGetProgramBuildInfo(program, device.id, CL_PROGRAM_BUILD_LOG, sizeof log, log, NULL);
        printf("%s\n", (const char *)log);
    }
    return code == CL_SUCCESS ? 0 : -1;
}

static int close_all(void **state)
{
    clReleaseProgram(program);
    return fixture_close(state);
}

/* ---- Running the kernels ---- */

enum { ROW = 4 }; /* units before those of interest; LOAD_QUAD may ask for a multiple of four */

static cl_mem buffer_of(size_t bytes, const void *from)
{
    cl_int code;
    cl_mem buffer = clCreateBuffer(device.context, CL_MEM_READ_WRITE, bytes, NULL, &code);
    assert_int_equal(code, CL_SUCCESS);
    if (from)
        assert_int_equal(clEnqueueWriteBuffer(device.queue, buffer, CL_TRUE, 0, bytes, from, 0, NULL, NULL),
                         CL_SUCCESS);
    return buffer;
}

static void run(cl_kernel kernel, int64_t items, cl_mem result, void *out, size_t offset, size_t bytes)
{
    const size_t global = (size_t)items;
    assert_int_equal(clEnqueueNDRangeKernel(device.queue, kernel, 1, NULL, &global, NULL, 0, NULL, NULL),
                     CL_SUCCESS);
    assert_int_equal(clEnqueueReadBuffer(device.queue, result, CL_TRUE, offset, bytes, out, 0, NULL, NULL),
                     CL_SUCCESS);
}

static cl_kernel kernel_of(const char *what, int32_t type)
{
    char name[32];
    cl_int code;
    snprintf(name, sizeof name, "%s_%d", what, (int)type);
    cl_kernel kernel = clCreateKernel(program, name, &code);
    assert_int_equal(code, CL_SUCCESS);
    return kernel;
}

static void set_arg(cl_kernel kernel, cl_uint index, size_t size, const void *value)
{
    assert_int_equal(clSetKernelArg(kernel, index, size, value), CL_SUCCESS);
}

/* NaN is equal to NaN, whatever its bits. */
static void assert_same(const float *is, const float *expected, int64_t count, const char *what, int32_t type)
{
    for (int64_t i = 0; i < count; i++)
        if (!(isnan(is[i]) && isnan(expected[i])) && memcmp(&is[i], &expected[i], sizeof *is) != 0)
            fail_msg("%s of %s: element %d is %a, expected %a", what, dtype_name(type), (int)i, (double)is[i],
                     (double)expected[i]);
}

/* All ways to read `count` elements (a multiple of 32). */
static void check_reading(int32_t type, const void *units, int count)
{
    static const char *const ways[] = {"ROW1",      "ROW8",        "ROW16",
                                       "LOAD_QUAD", "GATHER_QUAD", "a cut GATHER_QUAD"};
    const float scale = 0.37f;
    const int is_scaled = type >= CLATTN_DTYPE_I8 && type <= CLATTN_DTYPE_F8_E5M2;
    const int end = dtype_elements(type) == 1 ? count - 18 : count - 32; /* of the cut one */
    const size_t before = ROW * dtype_size(type);
    const size_t bytes = (size_t)(count / dtype_elements(type)) * dtype_size(type);
    const size_t floats = 6 * (size_t)count + 1;
    unsigned char *all = malloc(before + bytes);
    float *expected = malloc(sizeof(float) * 2 * (size_t)count), *out = malloc(sizeof(float) * floats);
    assert_true(all && expected && out);
    memset(all, 0x55, before);
    memcpy(all + before, units, bytes);
    cache_decode_row(type, units, count, 1.0f, expected);
    cache_decode_row(type, units, count, scale, expected + count);

    cl_mem from = buffer_of(before + bytes, all), to = buffer_of(sizeof(float) * floats, NULL);
    cl_kernel kernel = kernel_of("read", type);
    const cl_int row = ROW, cl_count = count, cl_end = end;
    set_arg(kernel, 0, sizeof from, &from);
    set_arg(kernel, 1, sizeof to, &to);
    set_arg(kernel, 2, sizeof row, &row);
    set_arg(kernel, 3, sizeof cl_count, &cl_count);
    set_arg(kernel, 4, sizeof cl_end, &cl_end);
    set_arg(kernel, 5, sizeof scale, &scale);
    run(kernel, count / 16, to, out, 0, sizeof(float) * floats);
    for (int way = 0; way < 5; way++)
        assert_same(out + way * count, way == 3 && is_scaled ? expected + count : expected, count, ways[way],
                    type);
    memset(expected + end, 0, sizeof(float) * (size_t)(count - end));
    assert_same(out + 5 * (size_t)count, expected, count, ways[5], type);
    assert_float_equal(
        out[6 * (size_t)count],
        (float)dtype_size(type) + (is_scaled ? 1000 : 0) + (type >= CLATTN_DTYPE_Q8_0 ? 10000 : 0), 0);
    clReleaseKernel(kernel);
    clReleaseMemObject(from);
    clReleaseMemObject(to);
    free(all);
    free(expected);
    free(out);
}

/* What the device stores, to the byte; what lies before and behind stays as it is. */
static void check_storing(int32_t type, const float *x, int count, float scale)
{
    const size_t size = dtype_size(type), bytes = (size_t)(count / dtype_elements(type)) * size;
    const size_t before = ROW * size, whole = before + bytes + size;
    unsigned char *expected = malloc(whole), *out = malloc(whole);
    assert_true(expected && out);
    memset(expected, 0x55, whole);
    cl_mem from = buffer_of(sizeof(float) * (size_t)count, x), to = buffer_of(whole, expected);
    float used;
    cache_encode_row(type, x, count, scale, expected + before, &used);

    cl_kernel kernel = kernel_of("store", type);
    const cl_int row = ROW, cl_count = count;
    set_arg(kernel, 0, sizeof from, &from);
    set_arg(kernel, 1, sizeof to, &to);
    set_arg(kernel, 2, sizeof row, &row);
    set_arg(kernel, 3, sizeof cl_count, &cl_count);
    set_arg(kernel, 4, sizeof used, &used);
    run(kernel, (count + 31) / 32, to, out, 0, whole);
    for (size_t i = 0; i < whole; i++)
        if (out[i] != expected[i]) {
            const int64_t unit = ((int64_t)i - (int64_t)before) / (int64_t)size;
            fail_msg("stored %s: byte %d of unit %d is 0x%02x, expected 0x%02x (x[0] of it: %a)",
                     dtype_name(type), (int)((i - before) % size), (int)unit, out[i], expected[i],
                     (double)x[unit * dtype_elements(type) % count]);
        }
    clReleaseKernel(kernel);
    clReleaseMemObject(from);
    clReleaseMemObject(to);
    free(expected);
    free(out);
}

/* ---- Reading ---- */

/* The format's own words: sign, exponent, fraction. */
static void test_f8_by_definition(void **state)
{
    (void)state;
    static const struct {
        uint8_t bits;
        float e4m3, e5m2;
    } known[] = {{0x00, 0.0f, 0.0f},       {0x01, 0x1p-9f, 0x1p-16f}, {0x03, 0x3p-9f, 0x3p-16f},
                 {0x38, 1.0f, 0.5f},       {0x3c, 1.5f, 1.0f},        {0x7b, 352.0f, 57344.0f},
                 {0x7c, 384.0f, INFINITY}, {0x7e, 448.0f, NAN},       {0x7f, NAN, NAN}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        for (int negative = 0; negative < 2; negative++) {
            const uint8_t bits = (uint8_t)(known[i].bits | negative << 7);
            const float expected[2] = {negative ? -known[i].e4m3 : known[i].e4m3,
                                       negative ? -known[i].e5m2 : known[i].e5m2};
            const float is[2] = {f8_to_f32(CLATTN_DTYPE_F8_E4M3, bits),
                                 f8_to_f32(CLATTN_DTYPE_F8_E5M2, bits)};
            assert_same(is, expected, 1, "a known value", CLATTN_DTYPE_F8_E4M3);
            assert_same(is + 1, expected + 1, 1, "a known value", CLATTN_DTYPE_F8_E5M2);
        }
}

static void test_every_byte(void **state)
{
    uint8_t bytes[256];
    (void)state;
    for (int i = 0; i < 256; i++)
        bytes[i] = (uint8_t)i;
    check_reading(CLATTN_DTYPE_I8, bytes, 256);
    check_reading(CLATTN_DTYPE_F8_E4M3, bytes, 256);
    check_reading(CLATTN_DTYPE_F8_E5M2, bytes, 256);
}

/* Every byte at every place of a block, with every kind of d and m. */
static void test_every_code(void **state)
{
    static const uint16_t scales[] = {0x3c00, 0xbc00, 0x0001, 0x83ff, 0x0400, 0x7bff,
                                      0x0000, 0x8000, 0x2e66, 0xb555, 0x7c00, 0x7e00};
    enum { BLOCKS = 256 * 4, SCALES = sizeof scales / sizeof scales[0] };
    (void)state;
    for (int t = 0; t < TYPES; t++) {
        const size_t size = dtype_size(types[t]);
        if (dtype_elements(types[t]) == 1)
            continue;
        const int has_m = types[t] == CLATTN_DTYPE_Q4_1 || types[t] == CLATTN_DTYPE_Q5_1;
        uint8_t *blocks = malloc(BLOCKS * size);
        assert_non_null(blocks);
        for (int b = 0; b < BLOCKS; b++) {
            uint8_t *block = blocks + (size_t)b * size;
            for (size_t i = 0; i < size; i++)
                block[i] = (uint8_t)(b + 37 * (int)i);
            for (int i = 0; i <= has_m; i++) {
                const uint16_t bits = scales[(b / (1 + 5 * i) + i) % SCALES];
                block[2 * i] = (uint8_t)bits;
                block[2 * i + 1] = (uint8_t)(bits >> 8);
            }
        }
        check_reading(types[t], blocks, 32 * BLOCKS);
        free(blocks);
    }
}

static void test_plain_types(void **state)
{
    enum { COUNT = 512 };
    float values[COUNT];
    random_state random = {7};
    (void)state;
    for (int t = 0; t < 3; t++) {
        for (int i = 0; i < COUNT; i++)
            tensor_store((unsigned char *)values + (size_t)i * dtype_size(types[t]), types[t],
                         ldexpf(random_normal(&random), i % 40 - 20));
        check_reading(types[t], values, COUNT);
    }
}

/* The layouts, said once more by hand: d = 0.5, m = -2, codes that differ. */
static void test_layouts(void **state)
{
    float out[32];
    uint8_t block[34] = {0x00, 0x38};
    (void)state;
    block[2] = 0x80; /* -128 */
    block[33] = 0x7f;
    cache_decode_row(CLATTN_DTYPE_Q8_0, block, 32, 1.0f, out);
    assert_true(out[0] == -64.0f && out[31] == 63.5f);
    memset(block + 2, 0, 32);
    block[2] = 0xf1; /* element 0: 1, element 16: 15 */
    cache_decode_row(CLATTN_DTYPE_Q4_0, block, 32, 1.0f, out);
    assert_true(out[0] == -3.5f && out[16] == 3.5f && out[1] == -4.0f);
    cache_decode_row(CLATTN_DTYPE_IQ4_NL, block, 32, 1.0f, out);
    assert_true(out[0] == -52.0f && out[16] == 56.5f && out[1] == -63.5f);
    const uint8_t q4_1[20] = {0x00, 0x38, 0x00, 0xc0, 0xf1};
    cache_decode_row(CLATTN_DTYPE_Q4_1, q4_1, 32, 1.0f, out);
    assert_true(out[0] == -1.5f && out[16] == 5.5f && out[1] == -2.0f);
    const uint8_t q5_0[22] = {0x00, 0x38, 0x01, 0x00, 0x00, 0x80, 0xf1};
    cache_decode_row(CLATTN_DTYPE_Q5_0, q5_0, 32, 1.0f, out);
    assert_true(out[0] == 0.5f && out[16] == -0.5f && out[1] == -8.0f && out[31] == 0.0f);
    const uint8_t q5_1[24] = {0x00, 0x38, 0x00, 0xc0, 0x01, 0x00, 0x00, 0x80, 0xf1};
    cache_decode_row(CLATTN_DTYPE_Q5_1, q5_1, 32, 1.0f, out);
    assert_true(out[0] == 6.5f && out[16] == 5.5f && out[1] == -2.0f && out[31] == 6.0f);
}

/* ---- Storing ---- */

/* Between two neighbours the middle goes to the even one, and anything else to the nearer. */
static void test_f8_rounding(void **state)
{
    enum { PER_NUMBER = 4, LARGEST = 0x7e, COUNT = 2 * PER_NUMBER * LARGEST + 16 };
    static float x[COUNT];
    (void)state;
    for (int t = 0; t < 2; t++) {
        const int32_t type = t ? CLATTN_DTYPE_F8_E5M2 : CLATTN_DTYPE_F8_E4M3;
        const int largest = t ? 0x7b : 0x7e;
        int count = 0;
        for (int bits = 0; bits < largest; bits++) {
            const float low = f8_to_f32(type, (uint8_t)bits), high = f8_to_f32(type, (uint8_t)(bits + 1));
            const float middle = 0.5f * (low + high);
            const float tried[PER_NUMBER] = {low, middle, nextafterf(middle, low), nextafterf(middle, high)};
            const int expected[PER_NUMBER] = {bits, bits + bits % 2, bits, bits + 1};
            for (int i = 0; i < PER_NUMBER; i++) {
                assert_int_equal(f32_to_f8(type, tried[i]), expected[i]);
                assert_int_equal(f32_to_f8(type, -tried[i]), expected[i] | 0x80);
                x[count++] = tried[i];
                x[count++] = -tried[i];
            }
        }
        const float beyond[] = {f8_to_f32(type, (uint8_t)largest), 1e6f, FLT_MAX, INFINITY, -INFINITY};
        for (int i = 0; i < 5; i++) {
            assert_int_equal(f32_to_f8(type, beyond[i]), largest | (beyond[i] < 0 ? 0x80 : 0));
            x[count++] = beyond[i];
        }
        assert_int_equal(f32_to_f8(type, NAN) & 0x7f, 0x7f);
        x[count++] = NAN;
        x[count++] = 1e-44f;
        x[count++] = -0.0f;
        check_storing(type, x, count, 1.0f);
        check_storing(type, x, count, 0.3f);
        check_storing(type, x, count, 1e-40f); /* has no inverse */
    }
}

enum { ROW_COUNT = 32 * 64 };

/* The block's first number is the largest, the second 0, the others up to 3 ulp from half-way between
 * multiples of its 1 / steps. */
static float next_to_change(float largest, int i, float steps, float normal)
{
    if (i < 2)
        return i == 0 ? 1.0f + fabsf(normal) : 0.0f;
    float x = (rintf((float)i * (steps - 1.0f) / 31.0f) - 0.5f) * largest / steps;
    for (int ulp = i % 7; ulp != 3; ulp += ulp < 3 ? 1 : -1)
        x = nextafterf(x, ulp < 3 ? -largest : largest);
    return x;
}

/* Fills blocks of 32, each of its own kind. */
static void make_blocks(float x[ROW_COUNT], int kind, random_state *random)
{
    static const int steps[] = {8, 15, 16, 31, 127};
    for (int i = 0; i < ROW_COUNT; i++) {
        const float normal = random_normal(random);
        const int block = i / 32;
        switch (kind) {
        case 0: /* ordinary, of all magnitudes */
            x[i] = ldexpf(normal, block % 60 - 30);
            break;
        case 1: /* halfway between codes, where the largest decides what a code is */
            x[i] = i % 32 == block % 32 ? (float)(block % 2 ? 127 : -8) : 0.25f * (float)(i * 7 % 65 - 32);
            break;
        case 2: /* the largest magnitude more than once, with either sign */
            x[i] = (i * 5 + block) % 3 == 0 ? 2.5f : (i + block) % 3 == 1 ? -2.5f : normal * 0.5f;
            break;
        case 3: /* around the smallest numbers */
            x[i] = ldexpf(normal, -120 - block % 35);
            break;
        case 4: /* one sign */
            x[i] = (block % 2 ? 1.0f : -1.0f) * (3.0f + fabsf(normal));
            break;
        case 5: /* all the same, zeros of both signs among them */
            x[i] = block % 4 == 0 ? 0.0f : block % 4 == 1 ? -0.0f : block % 4 == 2 ? -1.7f : 300.0f;
            break;
        case 6: /* next to where codes change, which one rounding more or less decides */
            x[i] = next_to_change(x[i / 32 * 32], i % 32, (float)steps[block % 5], normal);
            break;
        default: /* zeros but for one */
            x[i] = i % 32 == block % 32 ? normal : i % 2 ? 0.0f : -0.0f;
        }
    }
}

static void test_storing(void **state)
{
    static float x[ROW_COUNT];
    random_state random = {7};
    (void)state;
    for (int kind = 0; kind <= 7; kind++) {
        make_blocks(x, kind, &random);
        for (int t = 0; t < TYPES; t++) {
            check_storing(types[t], x, ROW_COUNT, 0.0f);
            if (dtype_elements(types[t]) == 1)
                check_storing(types[t], x, 32 + 7, 0.7f);
        }
    }
}

/* A row of I8 is scaled by its largest magnitude. */
static void test_i8_scale(void **state)
{
    enum { COUNT = 64 };
    float x[COUNT], scale, largest[COUNT], out[COUNT], expected[COUNT];
    int8_t bytes[COUNT];
    random_state random = {7};
    (void)state;
    for (int i = 0; i < COUNT; i++) {
        x[i] = 0.01f * (float)i;
        largest[i] = ldexpf(fabsf(random_normal(&random)), i % 20 - 10);
        expected[i] = largest[i] / 127.0f;
    }
    x[40] = -2.54f;
    cache_encode_row(CLATTN_DTYPE_I8, x, COUNT, 0.0f, bytes, &scale);
    assert_float_equal(scale, 0.02f, 1e-8f);
    assert_true(bytes[40] == -127 && bytes[1] == 0 && bytes[2] == 1 && bytes[63] == 32);
    memset(x, 0, sizeof x);
    cache_encode_row(CLATTN_DTYPE_I8, x, COUNT, 0.0f, bytes, &scale);
    assert_true(scale == 0.0f && bytes[0] == 0);

    cl_mem from = buffer_of(sizeof largest, largest), to = buffer_of(sizeof out, NULL);
    cl_int code;
    cl_kernel kernel = clCreateKernel(program, "i8_scale", &code);
    assert_int_equal(code, CL_SUCCESS);
    set_arg(kernel, 0, sizeof from, &from);
    set_arg(kernel, 1, sizeof to, &to);
    run(kernel, COUNT, to, out, 0, sizeof out);
    assert_same(out, expected, COUNT, "the scale", CLATTN_DTYPE_I8);
    clReleaseKernel(kernel);
    clReleaseMemObject(from);
    clReleaseMemObject(to);
}

/* There and back: the error that so many bits leave of normal numbers, in deviations. */
static void test_error(void **state)
{
    static const float limit[] = {
        [CLATTN_DTYPE_F32] = 0.0f,     [CLATTN_DTYPE_F16] = 2.4e-4f,   [CLATTN_DTYPE_BF16] = 1.8e-3f,
        [CLATTN_DTYPE_I8] = 7.7e-3f,   [CLATTN_DTYPE_F8_E4M3] = 0.03f, [CLATTN_DTYPE_F8_E5M2] = 0.056f,
        [CLATTN_DTYPE_Q8_0] = 5.5e-3f, [CLATTN_DTYPE_Q4_0] = 0.09f,    [CLATTN_DTYPE_Q4_1] = 0.083f,
        [CLATTN_DTYPE_Q5_0] = 0.044f,  [CLATTN_DTYPE_Q5_1] = 0.04f,    [CLATTN_DTYPE_IQ4_NL] = 0.084f,
    };
    static float x[ROW_COUNT], back[ROW_COUNT];
    static uint8_t units[4 * ROW_COUNT];
    random_state random = {7};
    (void)state;
    for (int i = 0; i < ROW_COUNT; i++)
        x[i] = random_normal(&random);
    for (int t = 0; t < TYPES; t++) {
        double sum = 0;
        float scale;
        cache_encode_row(types[t], x, ROW_COUNT, 0.0f, units, &scale);
        cache_decode_row(types[t], units, ROW_COUNT, scale, back);
        for (int i = 0; i < ROW_COUNT; i++)
            sum += (double)(x[i] - back[i]) * (double)(x[i] - back[i]);
        const double error = sqrt(sum / ROW_COUNT);
        if (error > (double)limit[types[t]] || error < 0.7 * (double)limit[types[t]])
            fail_msg("%s: error %g, expected up to %g", dtype_name(types[t]), error, (double)limit[types[t]]);
    }
}

static void test_names(void **state)
{
    (void)state;
    for (int t = 0; t < TYPES; t++) {
        assert_int_equal(dtype_from_name(dtype_name(types[t])), types[t]);
        const char *file = dtype_safetensors_name(types[t]);
        assert_int_equal(dtype_from_safetensors_name(file), dtype_elements(types[t]) == 1 ? types[t] : 0);
    }
    assert_int_equal(dtype_from_name("?"), 0);
    assert_int_equal(dtype_from_name(""), 0);
    assert_string_equal(dtype_name(4), "?");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f8_by_definition),
        cmocka_unit_test(test_every_byte),
        cmocka_unit_test(test_every_code),
        cmocka_unit_test(test_plain_types),
        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_f8_rounding),
        cmocka_unit_test(test_storing),
        cmocka_unit_test(test_i8_scale),
        cmocka_unit_test(test_error),
        cmocka_unit_test(test_names),
    };
    fixture_arguments(argc, argv);
    return cmocka_run_group_tests(tests, open_all, close_all);
}
