#include "path.h"

#include "emit.h"

#define PIECE(name)                                 \
    extern const unsigned char clattn__cl_##name[]; \
    extern const size_t clattn__cl_##name##_size;
PIECE(args)
PIECE(convert)
PIECE(cache_types)
PIECE(bounds)
PIECE(address)
PIECE(score)
PIECE(tiles)
PIECE(check)
PIECE(combine)
PIECE(lazy)
PIECE(hopper)
PIECE(shares)
PIECE(tile_order)
PIECE(wgmma_tiles)
PIECE(wgmma_engine)
PIECE(wgmma_chunks)
PIECE(nvidia_wgmma)
PIECE(portable)
PIECE(decode)
PIECE(nvidia_ptx)
PIECE(nvidia_score)
PIECE(nvidia_lazy)
PIECE(nvidia_decode)
PIECE(nvidia_tile)
PIECE(nvidia_half)
PIECE(nvidia_tf32)
PIECE(nvidia_mma)
PIECE(cpu_vectors)
PIECE(cpu)
PIECE(cpu_decode)
PIECE(parts)
PIECE(append_args)
PIECE(convert_args)
PIECE(merge_args)
PIECE(encode)
PIECE(rows)
PIECE(append)
PIECE(convert_rows)
PIECE(merge)
#undef PIECE

/* clang-format off */
#define PIECE(name) { "cl/" #name ".cl", clattn__cl_##name, &clattn__cl_##name##_size }
/* clang-format on */

#define FORWARD_PIECES                                                                            \
    PIECE(args), PIECE(convert), PIECE(cache_types), PIECE(bounds), PIECE(address), PIECE(score), \
        PIECE(tiles), PIECE(check)

static int is_cpu(const clattn__device *device, const char **why)
{
    *why = "the device is no CPU";
    return (device->type & CL_DEVICE_TYPE_CPU) != 0;
}

static int is_sm_80(const clattn__device *device, const char **why)
{
    *why = "the device is not NVIDIA's of compute capability 8.0 or above";
    return device->compute_capability >= 80;
}

static int is_sm_90(const clattn__device *device, const char **why)
{
    *why = "the device is not NVIDIA's of compute capability 9.0";
    return device->compute_capability == 90;
}

static int is_any(const clattn__device *device, const char **why)
{
    (void)device;
    *why = "";
    return 1;
}

/* Its prefill kernels do not, and head dims beyond these are no faster than elsewhere. */
static int takes_bytes(const clattn_plan_desc *desc)
{
    enum { MAX_BYTES_DIM = 128 };
    const int is_byte = desc->dtype_k == CLATTN_DTYPE_I8 || desc->dtype_k == CLATTN_DTYPE_F8_E4M3 ||
                        desc->dtype_k == CLATTN_DTYPE_F8_E5M2;
    return desc->phase == CLATTN_PHASE_DECODE && desc->dtype_q == CLATTN_DTYPE_F16 && is_byte &&
           desc->dtype_v == desc->dtype_k && desc->head_dim_qk <= MAX_BYTES_DIM &&
           desc->head_dim_v <= MAX_BYTES_DIM && (desc->features & CLATTN_FEATURE_V_IN_K) == 0;
}

static int takes_mma(const clattn_plan_desc *desc, const char **why)
{
    enum { MAX_DIM = 256, MAX_F32_DIM = 128 };
    if (takes_bytes(desc))
        return 1;
    if (desc->dtype_k != desc->dtype_q || desc->dtype_v != desc->dtype_q)
        *why = "it takes q, k and v of one type, or in decode f16 over caches of one type of bytes";
    else if (desc->head_dim_qk > MAX_DIM || desc->head_dim_v > MAX_DIM)
        *why = "it takes head dims up to 256";
    else if (desc->dtype_q == CLATTN_DTYPE_F32 &&
             (desc->head_dim_qk > MAX_F32_DIM || desc->head_dim_v > MAX_F32_DIM))
        *why = "it takes head dims up to 128 in f32";
    else if ((desc->features & CLATTN_FEATURE_V_IN_K) != 0)
        *why = "it does not take v in k";
    else
        return 1;
    return 0;
}

/* What wgmma multiplies, with a softmax that looks at no score's place but for ALiBi. */
static int takes_wgmma(const clattn_plan_desc *desc, const char **why)
{
    enum { MOST_DIM = 256 };
    const uint32_t single_scores = CLATTN_FEATURE_BIAS | CLATTN_FEATURE_MASK | CLATTN_FEATURE_KEY_TILES;
    *why = "q, k, v and o are not all of one 16-bit type";
    if ((desc->dtype_q != CLATTN_DTYPE_F16 && desc->dtype_q != CLATTN_DTYPE_BF16) ||
        desc->dtype_k != desc->dtype_q || desc->dtype_v != desc->dtype_q || desc->dtype_o != desc->dtype_q)
        return 0;
    *why = "a head dim is above 256";
    if (desc->head_dim_qk > MOST_DIM || desc->head_dim_v > MOST_DIM)
        return 0;
    *why = "it takes no bias, mask, key tiles, score_mod or mask_mod";
    if ((desc->features & single_scores) != 0 || desc->score_mod != NULL || desc->mask_mod != NULL)
        return 0;
    *why = "it has no decode kernels of its own";
    return desc->phase != CLATTN_PHASE_DECODE;
}

/* What all forward programs have. */
#define FORWARD_PROGRAM(tile, is_decode, any, aligned, combine, row_bytes, tells_formula, is_resident,  \
                        hidden, ...)                                                                    \
    {                                                                                                   \
        tile, is_decode, {any, aligned, "classify_tiles", combine, "check_sequences"}, CLATTN__BUFFERS, \
            sizeof(attention_args), row_bytes, tells_formula, is_resident, hidden,                      \
        {                                                                                               \
            FORWARD_PIECES, __VA_ARGS__                                                                 \
        }                                                                                               \
    }
#define FORWARD_ROWS(tile, is_decode, any, aligned, combine, row_bytes, tells_formula, ...) \
    FORWARD_PROGRAM(tile, is_decode, any, aligned, combine, row_bytes, tells_formula, 0, 0, __VA_ARGS__)
#define FORWARD(tile, is_decode, any, aligned, combine, ...) \
    FORWARD_ROWS(tile, is_decode, any, aligned, combine, 0, 0, __VA_ARGS__)

/* Statements in cl/nvidia_wgmma.cl that the source compiler does not see. */
#define WGMMA_STATEMENTS 14
#define NO_PROGRAM                         \
    {                                      \
        NULL, 0, {NULL}, 0, 0, 0, 0, 0, 0, \
        {                                  \
            {                              \
                NULL, NULL, NULL           \
            }                              \
        }                                  \
    }

/* Of any GPU; other paths take them beside their own prefill kernels. */
#define PORTABLE_DECODE                                                                                \
    FORWARD(clattn__tile_portable_decode, 1, "forward_any", "forward_aligned", "combine", PIECE(lazy), \
            PIECE(portable), PIECE(parts), PIECE(combine))
#define PORTABLE_DECODE_FEW                                                                              \
    FORWARD(clattn__tile_portable_decode_few, 1, "decode_any", "decode_aligned", "combine", PIECE(lazy), \
            PIECE(decode), PIECE(parts), PIECE(combine))

/* Of NVIDIA's GPUs from compute capability 8.0 on. */
#define NVIDIA_DECODE_FEW                                                                    \
    FORWARD_ROWS(clattn__tile_nvidia_decode, 1, "decode_any", "decode_aligned", NULL, 16, 0, \
                 PIECE(nvidia_ptx), PIECE(nvidia_score), PIECE(nvidia_lazy), PIECE(nvidia_decode))

static const clattn__path table[] = {
    {CLATTN_PATH_CPU,
     "cpu",
     is_cpu,
     NULL,
     {FORWARD(clattn__tile_cpu, 0, "forward", NULL, NULL, PIECE(cpu_vectors), PIECE(cpu)),
      FORWARD(clattn__tile_cpu_decode, 1, "decode", NULL, "combine", PIECE(cpu_vectors), PIECE(cpu_decode),
              PIECE(parts), PIECE(combine)),
      NO_PROGRAM},
     NO_PROGRAM},
    {CLATTN_PATH_NVIDIA_WGMMA,
     "nvidia_wgmma",
     is_sm_90,
     takes_wgmma,
     {FORWARD_PROGRAM(clattn__tile_nvidia_wgmma, 0, "forward", NULL, NULL, 0, 1, 1, WGMMA_STATEMENTS,
                      PIECE(nvidia_ptx), PIECE(nvidia_score), PIECE(hopper), PIECE(tile_order), PIECE(shares),
                      PIECE(wgmma_tiles), PIECE(wgmma_engine), PIECE(wgmma_chunks), PIECE(nvidia_wgmma)),
      PORTABLE_DECODE, NVIDIA_DECODE_FEW},
     PORTABLE_DECODE_FEW},
    {CLATTN_PATH_NVIDIA_MMA,
     "nvidia_mma",
     is_sm_80,
     takes_mma,
     {FORWARD_ROWS(clattn__tile_nvidia_mma, 0, "forward_any", "forward_aligned", NULL, 16, 1,
                   PIECE(nvidia_ptx), PIECE(nvidia_score), PIECE(nvidia_lazy), PIECE(nvidia_tile),
                   PIECE(nvidia_half), PIECE(nvidia_tf32), PIECE(tile_order), PIECE(nvidia_mma)),
      PORTABLE_DECODE, NVIDIA_DECODE_FEW},
     PORTABLE_DECODE_FEW},
    {CLATTN_PATH_PORTABLE,
     "portable",
     is_any,
     NULL,
     {FORWARD(clattn__tile_portable, 0, "forward_any", "forward_aligned", NULL, PIECE(lazy), PIECE(portable)),
      PORTABLE_DECODE, PORTABLE_DECODE_FEW},
     NO_PROGRAM},
};

const clattn__path *clattn__path_at(int index)
{
    return (size_t)index < sizeof table / sizeof *table ? &table[index] : NULL;
}

/* What operations other than attention share: types and addresses, and rows that go to caches. */
#define ADDRESS_PIECES PIECE(convert), PIECE(cache_types), PIECE(bounds), PIECE(address)
#define ROW_PIECES ADDRESS_PIECES, PIECE(encode), PIECE(rows)

#define OPERATION(name, kernels, num_buffers, args, ...)                                            \
    {                                                                                               \
        CLATTN_PATH_PORTABLE, name, is_any, NULL,                                                   \
            {{clattn__tile_flat, 0, kernels, num_buffers, sizeof(args), 0, 0, 0, 0, {__VA_ARGS__}}, \
             NO_PROGRAM,                                                                            \
             NO_PROGRAM},                                                                           \
            NO_PROGRAM                                                                              \
    }
#define KERNELS(...) \
    {                \
        __VA_ARGS__  \
    }

int clattn__formula(const clattn__recipe *recipe, const clattn__kernel_shape *shape)
{
    return recipe->tells_formula ? shape->score_formula : 0;
}

int clattn__score_full(const clattn__recipe *recipe, const clattn__kernel_shape *shape)
{
    return shape->score_full && !clattn__formula(recipe, shape);
}

static const clattn__path operations[] = {
    [CLATTN_OPERATION_KV_APPEND] =
        OPERATION("append", KERNELS("append", "append_lengths"), CLATTN__APPEND_BUFFERS, append_args,
                  PIECE(args), PIECE(append_args), ROW_PIECES, PIECE(append)),
    [CLATTN_OPERATION_MERGE] =
        OPERATION("merge", KERNELS("merge"), CLATTN__MERGE_BUFFERS, merge_args, PIECE(args),
                  PIECE(merge_args), ADDRESS_PIECES, PIECE(parts), PIECE(merge)),
    [CLATTN_OPERATION_CONVERT] =
        OPERATION("convert", KERNELS("convert_rows"), CLATTN__CONVERT_BUFFERS, convert_args, PIECE(args),
                  PIECE(convert_args), ROW_PIECES, PIECE(convert_rows)),
};

const clattn__path *clattn__path_of_operation(int32_t operation) { return &operations[operation]; }
