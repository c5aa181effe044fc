/* clattn.h: exact, IO-aware attention (FlashAttention) for any OpenCL device.
 *
 * SPDX-License-Identifier: MIT
 *
 * This header is the manual. It needs only C11 (or C++11) and the Khronos OpenCL headers, any target
 * version from 1.2 up.
 *
 * What is computed
 * ----------------
 * For query row i and key j of query head h, in float32 and natural units:
 *
 *     s = scale * dot(q_i, k_j)                        default scale: 1 / sqrt(head_dim_qk)
 *     s = softcap * tanh(s / softcap)                  with CLATTN_FEATURE_SOFTCAP
 *     s = s + head_scale[b, h] * bias[b, h, i, j]      with CLATTN_FEATURE_BIAS (and BIAS_HEAD_SCALE)
 *     s = s - slope[b, h] * |position_i - j|           with CLATTN_FEATURE_ALIBI
 *     s = score_mod(s, ...)                            with a text of the caller's
 *     p = softmax of s over the allowed keys           causal bound, window, lengths, mask, key tiles,
 *                                                      mask_mod; a sink joins the denominator
 *     o_i = sum_j p_j v_j,   lse_i = ln(sum_j exp(s_j))
 *
 * with position_i = i + offset (CLATTN_POSITION_*). All of it combines freely, on every path.
 *
 * The result is exact: scores are never stored and never approximated. They are produced tile by tile
 * and folded into a running softmax (Milakov and Gimelshein 2018, "Online normalizer calculation for
 * softmax"; Dao et al. 2022, "FlashAttention", section 3; Dao 2023, "FlashAttention-2", section 3.1),
 * so memory beyond the inputs and outputs does not grow with the product of the lengths. Accumulation
 * is float32 whatever the storage types are. Elementary functions err by units of its rounding; tanh of
 * softcap alone, on tensors of 16 bits, may err by 2e-4 of a score: less than rounding a weight to 16 bits.
 *
 * One-step use
 * ------------
 *     clattn_context *context;   clattn_context_create(&context, cl_context, cl_device, NULL);
 *     clattn_plan_desc desc = CLATTN_PLAN_DESC_INIT;      set dtypes, heads, head dims, features
 *     clattn_plan *plan;         clattn_plan_create(&plan, context, &desc);          compiles here
 *     clattn_forward_args args = CLATTN_FORWARD_ARGS_INIT; set tensors and lengths
 *     clattn_enqueue_forward(plan, queue, &args, 0, NULL, &event);          never compiles or blocks
 *     clattn_plan_release(plan); clattn_context_release(context);
 *
 * examples/quickstart.c is that, in full.
 *
 * Rules that hold everywhere
 * --------------------------
 * - Status: 0 is success, < 0 an OpenCL error code as the driver gave it, > 0 one of clattn_status.
 *   The reason (function, argument, value, what was expected; build logs) goes to the context's log
 *   callback, on the calling thread, before the function returns.
 * - Zero always means the default. Option structs start with `struct_size`, have an _INIT macro and only
 *   ever grow at the end; a struct from a newer header with a non-zero unknown tail is refused.
 * - Features are never inferred from NULL or from shapes: the plan says what takes part; a missing
 *   tensor is an error.
 * - A refused call changes nothing: everything is checked before the first command is enqueued.
 * - Threads: any function may be called from any thread, the same plan from several at once. Release an
 *   object only when no other call uses it.
 * - Ownership: a context retains the cl_context and the device, a plan its context. Queues, buffers and
 *   events passed in are borrowed (the driver retains what its commands need). A returned event is the
 *   caller's.
 * - The library never prints, exits, reads the environment, or keeps global state.
 */
#ifndef CLATTN_H
#define CLATTN_H

#include <stddef.h>
#include <stdint.h>

#include <CL/cl.h>

#if defined(_WIN32) && defined(CLATTN_SHARED)
#ifdef CLATTN_BUILDING
#define CLATTN_API __declspec(dllexport)
#else
#define CLATTN_API __declspec(dllimport)
#endif
#elif defined(__GNUC__)
#define CLATTN_API __attribute__((visibility("default")))
#else
#define CLATTN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version and status ------------------------------------------------------------------------- */

#define CLATTN_VERSION_MAJOR 0
#define CLATTN_VERSION_MINOR 1
#define CLATTN_VERSION_PATCH 0
#define CLATTN_VERSION (CLATTN_VERSION_MAJOR * 1000000u + CLATTN_VERSION_MINOR * 1000u + CLATTN_VERSION_PATCH)

/* The version of the library linked in, as CLATTN_VERSION counts. */
CLATTN_API uint32_t clattn_version(void);

typedef int32_t clattn_status;

#define CLATTN_SUCCESS 0
#define CLATTN_INVALID_ARGUMENT 1   /* a value or a combination that has no meaning */
#define CLATTN_UNSUPPORTED 2        /* meaningful, but not offered by this version or this device */
#define CLATTN_BUFFER_TOO_SMALL 3   /* a tensor's strides and lengths reach beyond its buffer */
#define CLATTN_OUT_OF_HOST_MEMORY 4 /* the host allocator returned NULL */
#define CLATTN_COMPILE_FAILED 5     /* no tile size of the path built; the logs went to the callback */
#define CLATTN_INTERNAL 6           /* a fault of this library: please report it */

/* A short name for any status, OpenCL's codes included. Never NULL. */
CLATTN_API const char *clattn_status_string(clattn_status status);

/* ---- Context ------------------------------------------------------------------------------------ */

typedef struct clattn_context clattn_context;

#define CLATTN_LOG_ERROR 1   /* why a call was refused or failed */
#define CLATTN_LOG_WARNING 2 /* the call succeeds, but something is not as it should be */
#define CLATTN_LOG_INFO 3    /* what a plan picked, builds and their times */
#define CLATTN_LOG_DEBUG 4   /* each call */

typedef void (*clattn_log_fn)(void *user, int32_t level, const char *message);

/* Where compiled programs are kept between processes. `key` is a short file-name-safe text that covers
 * source, options, device, driver and library version. The library frames what it stores and checks
 * the frame when it loads: hooks may return anything, a damaged or foreign entry is rebuilt.
 * Both hooks may be called from several threads at once. PoCL (seen with 3.1) keeps what it compiled itself,
 * and compiles every kernel once more when asked for a program's binary: leave the hooks NULL there. */
typedef struct clattn_cache_hooks {
    void *user;
    /* Copies at most `capacity` bytes of the entry to `data` (may be NULL with capacity 0); returns the
     * entry's whole size, 0 if there is none. */
    size_t (*load)(void *user, const char *key, void *data, size_t capacity);
    void (*store)(void *user, const char *key, const void *data, size_t size);
} clattn_cache_hooks;

/* Memory for the library's own host objects; `alignment` is at most 64. Both or neither are given. */
typedef struct clattn_allocator {
    void *user;
    void *(*allocate)(void *user, size_t size, size_t alignment);
    void (*release)(void *user, void *memory);
} clattn_allocator;

typedef struct clattn_context_options {
    uint32_t struct_size;
    int32_t log_level; /* messages up to this level are made; 0: CLATTN_LOG_WARNING */
    clattn_log_fn log; /* NULL: silent */
    void *log_user;
    clattn_cache_hooks cache;   /* load and store NULL: no cache between processes */
    clattn_allocator allocator; /* NULL: malloc and free */
    /* Finds OpenCL functions by name, where the library is not linked to a loader (Android, machines
     * without OpenCL) or a layer has to be slipped in. NULL: the loader that the library is linked to. */
    void *(*get_proc)(void *user, const char *name);
    void *get_proc_user;
    /* Local memory a kernel may take, in bytes. 0: what the device has. */
    uint64_t max_local_bytes;
    /* Multiply-adds in one kernel launch at the most; longer calls are cut into several launches. For
     * devices with a watchdog. 0: no limit. At least one tile is launched at a time. */
    uint64_t max_work_per_launch;
    /* What clattn_tuning_write or `clattn tune` wrote: choices of tiles that were measured on this device,
     * which go before the library's own. Copied; NULL and 0: none. A damaged text is refused; one for another
     * device, driver or version of the library is passed over with a warning. */
    const void *tuning;
    size_t tuning_bytes;
} clattn_context_options;

/* clang-format off */
#define CLATTN_CONTEXT_OPTIONS_INIT \
    { sizeof(clattn_context_options), 0, NULL, NULL, { NULL, NULL, NULL }, { NULL, NULL, NULL }, NULL, NULL, 0, 0, NULL, 0 }
/* clang-format on */

/* Creates the library's view of one device. `options` may be NULL. `device` must belong to `context`.
 * *out is set to NULL on failure. */
CLATTN_API clattn_status clattn_context_create(clattn_context **out, cl_context context, cl_device_id device,
                                               const clattn_context_options *options);
CLATTN_API void clattn_context_release(clattn_context *context); /* NULL: nothing happens */

/* What a context has built since it was created: for reports, and to hold that nothing is built where nothing
 * should be. */
typedef struct clattn_builds {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t compiled;     /* programs from source */
    uint64_t loaded;       /* programs from the cache */
    uint64_t microseconds; /* that both took, in whichever threads, failed ones included */
} clattn_builds;

#define CLATTN_BUILDS_INIT                \
    {                                     \
        sizeof(clattn_builds), 0, 0, 0, 0 \
    }

/* Fills *builds, whose struct_size is set. */
CLATTN_API clattn_status clattn_context_builds(clattn_context *context, clattn_builds *builds);

/* A ready-made cache in a directory (created if it is missing, one level). Entries appear by atomic
 * rename, so processes may share it. Pass the hooks in clattn_context_options.cache and close the cache
 * after the contexts that use it. Errors while loading or storing are not errors of a call: the program
 * is compiled instead. */
CLATTN_API clattn_status clattn_directory_cache_open(clattn_cache_hooks *out, const char *path);
CLATTN_API void clattn_directory_cache_close(clattn_cache_hooks *hooks); /* closed or zero: nothing */

/* ---- Plan: what is fixed for a model ------------------------------------------------------------ */

typedef struct clattn_plan clattn_plan;

#define CLATTN_DTYPE_DEFAULT 0 /* only where a field says so */
#define CLATTN_DTYPE_F32 1
#define CLATTN_DTYPE_F16 2  /* IEEE binary16; no device extension is needed */
#define CLATTN_DTYPE_BF16 3 /* the upper half of a float32; stored with round to nearest even */
/* For k and v alone: what caches hold. k and v may differ. Values are dequantised inside the kernels.
 * One byte each, times a scale that the call gives (K_SCALE, V_SCALE): */
#define CLATTN_DTYPE_I8 5      /* -127 to 127; the scale is needed */
#define CLATTN_DTYPE_F8_E4M3 6 /* OCP 8-bit float without infinities, largest 448; the scale is optional */
#define CLATTN_DTYPE_F8_E5M2 7 /* OCP 8-bit float with infinities, largest 57344; likewise */
/* Blocks of 32 neighbouring elements of a row with a scale of their own, byte for byte as ggml lays them out
 * (d, m: float16). Head dims are multiples of 32; strides count blocks, the size of one is given. */
#define CLATTN_DTYPE_Q8_0 8  /* 34 bytes: d, 32 signed bytes; x = d q */
#define CLATTN_DTYPE_Q4_0 9  /* 18 bytes: d, 32 nibbles; x = d (q - 8) */
#define CLATTN_DTYPE_Q4_1 10 /* 20 bytes: d, m, 32 nibbles; x = d q + m */
#define CLATTN_DTYPE_Q5_0 11 /* 22 bytes: d, 32 fifth bits, 32 nibbles; x = d (q - 16) */
#define CLATTN_DTYPE_Q5_1 12 /* 24 bytes: d, m, 32 fifth bits, 32 nibbles; x = d q + m */
#define CLATTN_DTYPE_IQ4_NL \
    13 /* 18 bytes: d, 32 nibbles that number the entries of a table; x = d table[q] */

/* What a plan does. */
#define CLATTN_OPERATION_FORWARD 0   /* attention: clattn_enqueue_forward */
#define CLATTN_OPERATION_KV_APPEND 1 /* new keys and values into a cache, RoPE: clattn_enqueue_kv_append */
#define CLATTN_OPERATION_MERGE 2     /* partial states of the same rows into one: clattn_enqueue_merge */
#define CLATTN_OPERATION_CONVERT 3   /* floats to a cache type: clattn_enqueue_convert */

/* Which kernels a forward plan has. Prefill kernels give each work-group many rows of one head; decode
 * kernels give it the few rows of all query heads that share a KV head, and cut the keys of a sequence into
 * splits that several work-groups take, whose results are combined ("Flash-Decoding", Dao et al. 2023). Both
 * serve any lengths. */
#define CLATTN_PHASE_PREFILL 0
#define CLATTN_PHASE_DECODE 1
#define CLATTN_PHASE_BOTH 2 /* the call's q_len decides */

/* Optional parts of a call. A plan names those that take part; their values come with each call. */
#define CLATTN_FEATURE_CAUSAL 0x1u  /* keys j <= i + offset only */
#define CLATTN_FEATURE_WINDOW 0x2u  /* keys i + offset - left <= j <= i + offset + right only */
#define CLATTN_FEATURE_SOFTCAP 0x4u /* s = softcap * tanh(s / softcap) */
#define CLATTN_FEATURE_BIAS 0x8u    /* an additive bias, after softcap; -inf forbids a key */
#define CLATTN_FEATURE_LSE 0x10u    /* log-sum-exp of every row is written */
#define CLATTN_FEATURE_MASK 0x20u   /* a bool mask: a byte for each score; not 0: the key is allowed */
#define CLATTN_FEATURE_BIAS_HEAD_SCALE 0x40u /* a factor of the bias for each head; needs BIAS */
#define CLATTN_FEATURE_ALIBI 0x80u           /* s -= slope * |position - j| (Press et al. 2022) */
#define CLATTN_FEATURE_SINKS 0x100u          /* a learned logit for each head, in the denominator only */
#define CLATTN_FEATURE_Q_LENS 0x200u         /* a valid q length for each batch entry */
#define CLATTN_FEATURE_KV_LENS 0x400u        /* a valid kv length for each batch entry */
#define CLATTN_FEATURE_Q_OFFSETS 0x800u      /* an offset for each batch entry; needs POSITION_EXPLICIT */
#define CLATTN_FEATURE_KEY_TILES 0x1000u     /* block-sparse: a list of allowed key tiles per query tile */
#define CLATTN_FEATURE_LSE_BASE_2 0x2000u    /* lse is log2, not ln, of the sum; needs LSE (or MERGE) */
/* How sequences are stored. Each combines with the others and with Q_LENS and KV_LENS. */
#define CLATTN_FEATURE_CU_SEQLENS_Q 0x4000u /* q, o and lse packed: sequence after sequence, no padding */
#define CLATTN_FEATURE_CU_SEQLENS_K 0x8000u /* k and v packed; not with BLOCK_TABLE */
#define CLATTN_FEATURE_BLOCK_TABLE 0x10000u /* k and v in pages; needs page_size, and KV_LENS */
#define CLATTN_FEATURE_K_SCALE 0x20000u     /* k is multiplied by a scale; needs dtype_k I8 or F8 */
#define CLATTN_FEATURE_V_SCALE 0x40000u     /* v likewise */
#define CLATTN_FEATURE_V_IN_K 0x80000u      /* v is the first head_dim_v columns of k (MLA): read once */
#define CLATTN_FEATURE_STATUS 0x100000u     /* what the device finds wrong is noted (clattn_status_words) */
/* A row's bits do not depend on other sequences, its place in the batch, or padding. Not with PHASE_BOTH,
 * whose choice depends on the longest sequence. */
#define CLATTN_FEATURE_BATCH_INVARIANT 0x200000u
/* Of CLATTN_OPERATION_KV_APPEND. */
#define CLATTN_FEATURE_SLOT_MAPPING 0x400000u /* each new token says where it goes */
#define CLATTN_FEATURE_ROPE_TABLES 0x800000u  /* cosines and sines are given; needs rope */

/* Where query row 0 stands among the keys: row i has position i + offset. It rules causal bound, window,
 * ALiBi and the position that score_mod and mask_mod are told. (Known systems differ: bottom right is
 * FlashAttention >= 2.1, top left is PyTorch's is_causal.) With Q_LENS and KV_LENS the lengths are those
 * of the batch entry. */
#define CLATTN_POSITION_BOTTOM_RIGHT 0 /* offset = kv_len - q_len */
#define CLATTN_POSITION_TOP_LEFT 1     /* offset = 0 */
#define CLATTN_POSITION_EXPLICIT 2     /* offset = q_offset of the call, or q_offsets; may be negative */

/* A kernel family. The first that fits device and plan is taken; see clattn_plan_describe. */
#define CLATTN_PATH_AUTO 0
#define CLATTN_PATH_PORTABLE 1     /* any device: OpenCL C 1.2, no extensions, 16 KiB of local memory */
#define CLATTN_PATH_CPU 2          /* CPU devices: one work-item per tile, explicit vectors */
#define CLATTN_PATH_NVIDIA_MMA 3   /* NVIDIA, compute capability 8.0 and up: matrix units by mma.sync */
#define CLATTN_PATH_NVIDIA_WGMMA 4 /* NVIDIA, compute capability 9.0: matrix units by wgmma */

#define CLATTN_MAX_HEAD_DIM 576
#define CLATTN_MAX_LENGTH (1 << 30) /* of q_len and kv_len */
#define CLATTN_MAX_SPLITS 256

/* Rotary position embedding (Su et al. 2021, "RoFormer", section 3.4.2): which two columns make a pair. */
#define CLATTN_ROPE_NONE 0
#define CLATTN_ROPE_NEOX 1        /* columns c and c + rotary_dim / 2 */
#define CLATTN_ROPE_INTERLEAVED 2 /* columns 2c and 2c + 1 */

typedef struct clattn_plan_desc {
    uint32_t struct_size;
    int32_t phase;         /* CLATTN_PHASE_PREFILL */
    int32_t dtype_q;       /* CLATTN_DTYPE_*; 0: F32 */
    int32_t dtype_k;       /* 0: dtype_q */
    int32_t dtype_v;       /* 0: dtype_k */
    int32_t dtype_o;       /* 0: dtype_q */
    int32_t dtype_bias;    /* 0: F32 */
    int32_t heads_q;       /* >= 1, a multiple of heads_kv */
    int32_t heads_kv;      /* 0: heads_q. Query head h reads KV head h / (heads_q / heads_kv) */
    int32_t head_dim_qk;   /* 1 to CLATTN_MAX_HEAD_DIM */
    int32_t head_dim_v;    /* 0: head_dim_qk */
    uint32_t features;     /* CLATTN_FEATURE_*, or-ed */
    int32_t position_mode; /* CLATTN_POSITION_* */
    int32_t path;          /* CLATTN_PATH_*: AUTO, or one to be forced */
    /* With CLATTN_FEATURE_KEY_TILES: rows and keys of one of the caller's tiles, each >= 1; otherwise 0.
     * Multiples of 64 cost least: the kernels' own tiles then lie within them. */
    int32_t tile_rows;
    int32_t tile_keys;
    /* OpenCL C of the caller's, compiled into the kernels and part of the program's cache key; copied.
     * Each is an expression, or the body of a function (then it holds a `return`), over
     *
     *     float score                  score_mod only: the score so far, in natural units
     *     int batch, head_q, head_kv
     *     int query, position, key     query row i, i + offset, key j: all within their sequence
     *     const __global void *user    clattn_forward_args.user, NULL without
     *     float4 values                clattn_forward_args.user_values
     *
     * score_mod gives the new score (-INFINITY forbids the key); mask_mod gives 0 where the key is
     * forbidden. Both must depend on nothing else; they may also be called for pairs that are forbidden
     * otherwise, with 0 <= query < q_len and 0 <= key < kv_len. Errors of the compiler go to the log
     * with the text's own line numbers, as "score_mod" and "mask_mod". NULL: none. */
    const char *score_mod;
    const char *mask_mod;
    int32_t operation; /* CLATTN_OPERATION_* */
    int32_t page_size; /* with CLATTN_FEATURE_BLOCK_TABLE: tokens of a page, >= 1; otherwise 0. Multiples of 8
                          are fastest */
    /* Decode kernels: into how many splits the keys of a sequence are cut, at most CLATTN_MAX_SPLITS. 0:
     * chosen from device, batch, heads and lengths of each call. With BATCH_INVARIANT it must be 0: splits
     * then have a fixed number of keys. */
    int32_t splits;
    int32_t rope;       /* KV_APPEND: CLATTN_ROPE_* */
    int32_t rotary_dim; /* with rope: the first columns of q and k that are rotated, even; 0: head_dim_qk */
    int32_t reserved;   /* 0 */
} clattn_plan_desc;

/* clang-format off */
#define CLATTN_PLAN_DESC_INIT \
    { sizeof(clattn_plan_desc), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, 0, 0, 0, 0, 0, 0 }
/* clang-format on */

/* Whether clattn_plan_create would accept the description, without compiling anything. On
 * CLATTN_UNSUPPORTED or CLATTN_INVALID_ARGUMENT the reason is copied to `why` (may be NULL), cut to
 * `capacity` bytes with its terminator. What this accepts, creation does not refuse. */
CLATTN_API clattn_status clattn_plan_supported(clattn_context *context, const clattn_plan_desc *desc,
                                               char *why, size_t capacity);

/* Picks a path and tile sizes, compiles (or loads from the cache, or shares with another plan of the
 * context) and runs the kernels once with nothing to do, so that no later call compiles. Window sizes,
 * scale, softcap, strides, offsets and lengths are no part of what is compiled: layers that differ in
 * them share one program. Several threads may create plans at once; a program is built once. */
CLATTN_API clattn_status clattn_plan_create(clattn_plan **out, clattn_context *context,
                                            const clattn_plan_desc *desc);
CLATTN_API void clattn_plan_release(clattn_plan *plan); /* NULL: nothing happens */

/* One line: path, tile sizes, local memory, why earlier rows and paths were passed over. `needed` (may
 * be NULL) receives the size with terminator; CLATTN_BUFFER_TOO_SMALL if `capacity` is less, the text
 * then being cut. With a `capacity` of 0 and `needed` set only the size is asked for: a success. */
CLATTN_API clattn_status clattn_plan_describe(const clattn_plan *plan, char *text, size_t capacity,
                                              size_t *needed);

/* The OpenCL C and the build options that the plan's program was compiled from; for bug reports and
 * offline compilers. Both live as long as the plan. */
CLATTN_API clattn_status clattn_plan_source(const clattn_plan *plan, const char **source,
                                            const char **options);

/* ---- Tuning: tiles by measurement ---------------------------------------------------------------- */

/* The tiles that a plan has come from tables. Their other rows for the same device can be tried by whoever
 * has the time (`clattn tune` does), and the fastest be kept in a text for clattn_context_options.tuning: one
 * choice for each path, kind of kernels (prefill, decode, decode of few rows), types of q, k and v, compiled
 * head dims, kind of scores and, with decode, number of query heads on a KV head. A text names rows of the
 * library's own tables only; what is not among those that fit is passed over.
 *
 * Copies candidate number `index` (from 0, the table's own order) of the plan that `desc` describes: one line
 * without its end, "tile <what the choice is for>: <which row>". The text is "" when there is none left.
 * CLATTN_BUFFER_TOO_SMALL if `capacity` is (1024 is enough); otherwise what is refused is refused as by
 * clattn_plan_create. */
CLATTN_API clattn_status clattn_tuning_candidate(clattn_context *context, const clattn_plan_desc *desc,
                                                 int32_t index, char *text, size_t capacity);

/* Writes a tuning text of `count` such lines, at most one for each choice (the first counts). A plan of a
 * context that has it says "tuned" in its description. `needed` (may be NULL) receives the size with its
 * terminator, which is no part of tuning_bytes; sizes as in clattn_plan_describe. */
CLATTN_API clattn_status clattn_tuning_write(clattn_context *context, const char *const *candidates,
                                             size_t count, char *text, size_t capacity, size_t *needed);

/* ---- Calls: what changes every time ------------------------------------------------------------- */

/* What a tensor's handle is. Buffers are checked against their size; of pointers only the caller knows it. */
#define CLATTN_MEM_BUFFER 0 /* a cl_mem */
#define CLATTN_MEM_SVM 1    /* a pointer from clSVMAlloc, or any host pointer with fine-grained system SVM */
#define CLATTN_MEM_USM 2    /* a pointer of Intel's cl_intel_unified_shared_memory */

/* A tensor of a call; this struct is frozen. Strides are in elements and may be anything >= 0 (0
 * repeats an input along that axis); the last axis of q, k, v and o is contiguous: stride[3] is 1, or 0
 * for short.
 *
 *     q, o    [batch, heads_q,  q_len,  head_dim]    stride: batch, head, token, 1
 *     k, v    [batch, heads_kv, kv_len, head_dim]    stride: batch, head, token, 1
 *     lse     [batch, heads_q,  q_len]  float32      stride: batch, head, token
 *     bias    [batch, heads_q,  q_len,  kv_len]      stride: batch, head, row, key; all as given
 *     mask    likewise, a byte each
 *     bias_head_scale, alibi_slopes, sinks  [batch, heads_q]  float32    stride: batch, head
 *     q_lens, kv_lens, q_offsets            [batch]           int32      stride: batch
 *     tiles_count   [batch, heads_q, query tiles]             int32      stride: batch, head, tile
 *     tiles_index   [batch, heads_q, query tiles, capacity]   int32      stride: batch, head, tile, entry
 *     k_scale, v_scale  [batch, heads_kv, kv_len]  float32               stride: batch, head, token
 *     cu_seqlens_q, cu_seqlens_k            [batch + 1]       int32      contiguous, strides unused
 *     block_table   [batch, max_blocks]     int32                        stride: batch; pages contiguous
 *     status_words  [4]                     int32                        strides 0
 *
 * With CU_SEQLENS_Q: q, o [total_q, heads_q, head_dim], lse [heads_q, total_q]: the stride of batch is unused
 * and that of token leads from one sequence into the next. With CU_SEQLENS_K k, v, k_scale and v_scale
 * likewise, [total_k, heads_kv, ...]. With BLOCK_TABLE the axis batch of k, v, k_scale and v_scale counts
 * pages and token counts within the page: [num_pages, heads_kv, page_size, head_dim] and [num_pages,
 * page_size, heads_kv, head_dim] are strides, K and V side by side in one pool an offset. For types of
 * blocks, strides of k and v count blocks.
 *
 * Strides that are not named are unused.
 * BHSD, BSHD or interleaved QKV are strides, not modes. byte_offset is a multiple of the element size, for
 * types of blocks of the largest power of two that divides a block's (2; Q4_1: 4, Q5_1: 8). Rows whose offset
 * and strides are multiples of four elements are read fastest. */
typedef struct clattn_tensor {
    int32_t mem_kind;
    int32_t reserved;
    void *handle;
    uint64_t byte_offset;
    int64_t stride[4];
    uint64_t reserved2[2];
} clattn_tensor;

/* clang-format off */
#define CLATTN_TENSOR_INIT { 0, 0, NULL, 0, { 0, 0, 0, 0 }, { 0, 0 } }
/* clang-format on */

/* The shape of a call, for size queries. */
typedef struct clattn_bounds {
    uint32_t struct_size;
    uint32_t reserved;
    int64_t batch;
    int64_t q_len;
    int64_t kv_len;
    int64_t total_q; /* with CLATTN_FEATURE_CU_SEQLENS_Q; otherwise 0 */
} clattn_bounds;

/* clang-format off */
#define CLATTN_BOUNDS_INIT { sizeof(clattn_bounds), 0, 0, 0, 0, 0 }
/* clang-format on */

typedef struct clattn_forward_args {
    uint32_t struct_size;
    uint32_t reserved;
    clattn_tensor q, k, v, o;
    clattn_tensor lse;  /* with CLATTN_FEATURE_LSE; otherwise its handle must be NULL */
    clattn_tensor bias; /* with CLATTN_FEATURE_BIAS; otherwise its handle must be NULL */
    clattn_tensor workspace;
    /* Lengths of 0 are legal. Without keys, o = 0 and lse = -inf are written, and k and v may be NULL. */
    int64_t batch;
    int64_t q_len;
    int64_t kv_len;
    int64_t q_offset; /* with CLATTN_POSITION_EXPLICIT; otherwise 0 */
    /* With CLATTN_FEATURE_WINDOW: keys to the left and right of the row's own position that are still
     * seen, both inclusive; -1: unbounded on that side. Otherwise 0. */
    int64_t window_left;
    int64_t window_right;
    float scale;   /* finite, may be negative; 0: 1 / sqrt(head_dim_qk) */
    float softcap; /* > 0 with CLATTN_FEATURE_SOFTCAP, otherwise 0 */

    /* Each with the feature of its name, otherwise its handle must be NULL. */
    clattn_tensor mask;
    clattn_tensor bias_head_scale;
    clattn_tensor alibi_slopes; /* clattn_alibi_slopes computes the standard ones */
    clattn_tensor sinks;        /* not scaled, not capped; -inf: none for that head */
    /* Values are clamped to 0 .. q_len and 0 .. kv_len; nothing beyond them is used, and rows of o and lse
     * beyond an entry's q length are not written. */
    clattn_tensor q_lens;
    clattn_tensor kv_lens;
    clattn_tensor q_offsets; /* clamped to +-CLATTN_MAX_LENGTH */
    /* With CLATTN_FEATURE_KEY_TILES: query tile t is rows t * tile_rows on, key tile u keys u * tile_keys
     * on (sizes: clattn_plan_desc). tiles_index[b, h, t, 0 .. tiles_count[b, h, t] - 1] names the key tiles
     * that the rows of query tile t may see, in any order; counts are clamped to 0 .. tiles_capacity, and
     * entries that name no tile are passed over. (FlexAttention's BlockMask has the same form.) */
    clattn_tensor tiles_count;
    clattn_tensor tiles_index;
    int64_t tiles_capacity; /* length of tiles_index's last axis; 0 without the feature */
    /* For score_mod and mask_mod: any buffer, from byte_offset on (a multiple of 16), strides 0; its handle
     * may be NULL. Without either, NULL and zeros. */
    clattn_tensor user;
    float user_values[4];

    /* Packed sequences: sequence b is rows cu_seqlens[b] to cu_seqlens[b + 1] - 1. Numbers are clamped: rows
     * to 0 .. total, lengths to 0 .. q_len or kv_len, which are the longest; no sequence reaches outside. */
    clattn_tensor cu_seqlens_q;
    clattn_tensor cu_seqlens_k;
    /* Key j of sequence b lies in page block_table[b, j / page_size]. Entries beyond the sequence's keys are
     * not read. A page outside 0 .. num_pages - 1 is not touched: its keys are read from the nearest page
     * that there is, and results of that sequence have no meaning (see status_words). */
    clattn_tensor block_table;
    clattn_tensor k_scale;
    clattn_tensor v_scale;
    clattn_tensor status_words; /* clattn_status_words */
    int64_t total_q;            /* rows of q, o and lse with CU_SEQLENS_Q; otherwise 0 */
    int64_t total_k;            /* rows of k and v with CU_SEQLENS_K; otherwise 0 */
    int64_t num_pages;          /* with BLOCK_TABLE, otherwise 0; likewise max_blocks */
    int64_t max_blocks;         /* kv_len is at most max_blocks * page_size */
} clattn_forward_args;

/* What CLATTN_FEATURE_STATUS writes. The caller sets the words to 0; a word becomes 1 + the number of the
 * highest batch entry in which the thing happened. */
typedef struct clattn_status_words {
    int32_t bad_page;   /* a page id outside the pool */
    int32_t bad_length; /* a length or a row number (q_lens, kv_lens, cu_seqlens) outside its bounds */
    int32_t dropped;    /* append: a token that had no place in the cache */
    int32_t reserved;
} clattn_status_words;

/* clang-format off */
#define CLATTN_FORWARD_ARGS_INIT \
    { sizeof(clattn_forward_args), 0, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, \
      CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, 0, 0, 0, 0, 0, 0, 0.0f, 0.0f, \
      CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, \
      CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, 0, CLATTN_TENSOR_INIT, \
      { 0.0f, 0.0f, 0.0f, 0.0f }, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, \
      CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, 0, 0, 0, 0 }
/* clang-format on */

/* Bytes of workspace that a forward call with these bounds needs at most. Reads no buffer; grows with each
 * bound. It holds two things:
 * - where mask, bias, key tiles or mask_mod take part, these are looked through once, tile by tile, and there
 *   is a byte for each tile, so that tiles that no row may see are never loaded and tiles that every row may
 *   see are not compared. A mask or bias repeated over heads or batch needs less than this says;
 * - with decode kernels, what each split of the keys gave: (head_dim_v + 2) floats for each row, head and
 * split.
 *
 * args.workspace: byte_offset on, with decode kernels a multiple of 4, strides 0; undefined on entry and
 * after the call, and no other call's while this one is in flight. handle NULL: the call makes a buffer of
 * its own on the device, which is let go when its commands have ended. */
CLATTN_API clattn_status clattn_forward_workspace(const clattn_plan *plan, const clattn_bounds *bounds,
                                                  size_t *bytes);

/* The standard ALiBi slopes of any number of heads. With n the largest power of two <= heads and m = max_bias
 * (0: 8): slope h is 2^(-m (h+1) / n) for h < n, and 2^(-(m/2) (2 (h-n) + 1) / n) beyond (Press et al. 2022,
 * "Train short, test long", section 3 and its code for other head counts). `slopes` is host memory for
 * `heads` floats. CLATTN_INVALID_ARGUMENT if it is NULL, heads < 1, or max_bias is negative or not finite. */
CLATTN_API clattn_status clattn_alibi_slopes(float *slopes, int32_t heads, float max_bias);

/* Enqueues one attention call. The commands start after the `num_wait` events of `wait` (and whatever
 * an in-order queue holds); *event, if `event` is not NULL, completes after all of them and is set on
 * every success, also when there was nothing to do. The queue may be in-order or out-of-order and must
 * belong to the context and device of the plan. Nothing is compiled, flushed, finished or waited for;
 * no device memory is allocated, unless the call needs a workspace and is given none. On an OpenCL error
 * after validation the outputs are undefined.
 *
 * Extremes (the full text of what tests hold):
 * - A final score of -inf, from any source, forbids the key. A bias of -inf makes the score -inf whatever
 *   the product is. Finite scores below -1e30 act as -1e30, so a row filled with a framework's most negative
 *   float gives uniform weights. +inf or NaN in an allowed score makes that row of o and lse NaN.
 * - A row with no allowed key: o = 0, lse = -inf; with a sink: o = 0, lse = sink.
 * - Nothing beyond q_len and kv_len (those of the batch entry) is used: it is not read, or read with what
 *   lies before it and dropped. NaN and inf in k and v at keys that no row of the call may see (causal bound,
 *   window, mask, key tiles, mask_mod, bias of -inf) change no bit of the result. A NaN in k at a key
 *   forbidden to a row never reaches that row. A NaN in v at a key forbidden to this row but allowed to
 *   another may reach it (0 * NaN), as in every implementation by matrix products.
 * - Same inputs, device and plan: same bits.
 * Outputs must not overlap inputs or each other, nor an output's rows one another; inputs may share
 * memory. (Rows of one tensor may lie between those of another, in equal strides.) */
CLATTN_API clattn_status clattn_enqueue_forward(clattn_plan *plan, cl_command_queue queue,
                                                const clattn_forward_args *args, cl_uint num_wait,
                                                const cl_event *wait, cl_event *event);

/* Adds one forward call to a command buffer (cl_khr_command_buffer) instead of a queue, to be finalised and
 * enqueued by the caller, as often as wished: lengths, tables and offsets that lie in device memory are read
 * anew each time. `command_buffer` is a cl_command_buffer_khr that records for one queue of the plan's
 * device. `sync_wait` (num_sync of them) and *sync_point (may be NULL) are cl_sync_point_khr. The call must
 * be given its workspace where it needs one; the plan may be released before the recording is replayed.
 * CLATTN_UNSUPPORTED where the device lacks the extension. */
CLATTN_API clattn_status clattn_record_forward(clattn_plan *plan, void *command_buffer,
                                               cl_command_queue queue, const clattn_forward_args *args,
                                               cl_uint num_sync, const cl_uint *sync_wait,
                                               cl_uint *sync_point);

/* ---- KV cache: append --------------------------------------------------------------------------- */

/* One call writes new keys and values into a cache, rotating them (and q) where the plan says so.
 *
 * The plan: operation KV_APPEND; dtype_q is the type of k_new, v_new, q and q_out; dtype_k and dtype_v those
 * of the caches; heads_q, heads_kv, head dims, page_size, rope, rotary_dim; features among CU_SEQLENS_Q (new
 * tokens packed), Q_LENS (new tokens of each entry), BLOCK_TABLE, SLOT_MAPPING, ROPE_TABLES, K_SCALE,
 * V_SCALE, V_IN_K (then there are no v, v_new and v_scale), STATUS.
 *
 * Where token t of entry b goes:
 * - without SLOT_MAPPING: to place p = kv_lens[b] + t of the entry's cache; with pages, to token
 *   p % page_size of page block_table[b, p / page_size];
 * - with SLOT_MAPPING: to place s = slot_mapping[b, t] of the entry's cache; with pages, to token
 *   s % page_size of page s / page_size, whosever that is (there is no block_table then, and max_blocks
 *   is 0). A negative slot: the token is left out.
 *
 * Tokens without a place (at or beyond kv_len, or on a page outside the pool) are dropped and noted in
 * status_words; nothing outside the cache is written. Several tokens must not share a place. kv_lens is
 * clamped to 0 .. kv_len, also where slots say where tokens go.
 *
 * Its position, for RoPE, is positions[b, t] if that tensor is there, otherwise kv_lens[b] + t. Pair c of a
 * row turns by the angle position * rope_scale * rope_base^(-2c / rotary_dim), or with ROPE_TABLES by that of
 * rope_cos and rope_sin at [position, c] (positions are clamped to the table):
 *     x' = x cos - y sin,  y' = y cos + x sin.
 * Angles are computed in float32, to about 2^-22 of their size (from 2^24 on they count as 0), their cosines
 * and sines to 2^-22; tables can be more exact. Columns from rotary_dim on, and v, are not rotated. q is
 * rotated with the same positions, also where its token's key is dropped.
 *
 * What is stored, from x (after RoPE) in float32, round to nearest, ties to even unless said otherwise:
 * - F32, F16, BF16: x; F16 becomes inf beyond its range.
 * - F8: x times 1 / scale, saturated to the largest finite number; NaN stays NaN. The scale is read.
 * - I8: the scale of token and head, largest |x| / 127, is written to k_scale or v_scale; x times 1 / scale,
 *   rounded. A row of zeros has scale 0.
 * - Types of blocks: as ggml's reference quantisers (round half away from zero in Q8_0; the others
 *   truncate x / d + 8.5 and the like). IQ4_NL: the number of largest magnitude is given the entry -127, the
 *   others the entries nearest to them, then d is the one with the least squared error, weighted by x^2.
 * A scale whose inverse is beyond float32's range counts as 0.
 * NaN and inf in types of blocks and I8 give values of that block or row without meaning. */
typedef struct clattn_append_args {
    uint32_t struct_size;
    uint32_t reserved;
    clattn_tensor
        k_new; /* [batch, heads_kv, new_len, head_dim_qk]; packed [total_new, heads_kv, head_dim_qk] */
    clattn_tensor v_new; /* likewise with head_dim_v */
    clattn_tensor k;     /* the cache: as k of a forward call */
    clattn_tensor v;
    clattn_tensor k_scale; /* as of a forward call */
    clattn_tensor v_scale;
    clattn_tensor q;     /* with rope: [batch, heads_q, new_len, head_dim_qk], or packed; NULL: none */
    clattn_tensor q_out; /* rotated q, if there is q; may be q itself */
    /* [batch] int32: keys of each entry before the call. May be NULL if nothing asks for them: slots say the
     * places, positions the angles, and there is no kv_lens_out. */
    clattn_tensor kv_lens;
    clattn_tensor kv_lens_out;  /* [batch] int32: after the call, at most kv_len; may be kv_lens itself; NULL:
                                   not written */
    clattn_tensor q_lens;       /* [batch] int32 with Q_LENS: new tokens of each entry */
    clattn_tensor cu_seqlens_q; /* [batch + 1] int32 with CU_SEQLENS_Q */
    clattn_tensor block_table;  /* [batch, max_blocks] int32 with BLOCK_TABLE and without SLOT_MAPPING */
    /* [batch, new_len] int32, or packed [total_new] (stride: batch, token). An int64 table on a little-endian
     * device is an int32 table with twice the strides. */
    clattn_tensor slot_mapping;
    clattn_tensor positions; /* likewise; NULL: from kv_lens */
    clattn_tensor rope_cos;  /* [rope_len, rotary_dim / 2] float32 with ROPE_TABLES (stride: position) */
    clattn_tensor rope_sin;
    clattn_tensor status_words;
    int64_t batch;
    int64_t new_len;   /* the most new tokens of an entry */
    int64_t total_new; /* with CU_SEQLENS_Q: rows of k_new; otherwise 0 */
    int64_t kv_len;    /* places of an entry's cache; with block_table at most max_blocks * page_size */
    int64_t num_pages;
    int64_t max_blocks;
    int64_t rope_len;
    float rope_base;  /* 0: 10000 */
    float rope_scale; /* of positions; 0: 1 */
} clattn_append_args;

/* clang-format off */
#define CLATTN_APPEND_ARGS_INIT \
    { sizeof(clattn_append_args), 0, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, \
      CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, \
      CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, \
      CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, \
      0, 0, 0, 0, 0, 0, 0, 0.0f, 0.0f }
/* clang-format on */

/* As clattn_enqueue_forward, for a plan of CLATTN_OPERATION_KV_APPEND. Needs no workspace. */
CLATTN_API clattn_status clattn_enqueue_kv_append(clattn_plan *plan, cl_command_queue queue,
                                                  const clattn_append_args *args, cl_uint num_wait,
                                                  const cl_event *wait, cl_event *event);

/* Append, then attention over what was appended, in one call: nothing is enqueued unless both are right. */
CLATTN_API clattn_status clattn_enqueue_append_forward(clattn_plan *append_plan,
                                                       const clattn_append_args *append_args,
                                                       clattn_plan *plan, const clattn_forward_args *args,
                                                       cl_command_queue queue, cl_uint num_wait,
                                                       const cl_event *wait, cl_event *event);

/* ---- Merge: partial states into one -------------------------------------------------------------- */

/* Attention over a union of keys from attention over its parts:
 *     lse = ln(sum_p exp(lse_p)),  o = sum_p exp(lse_p - lse) o_p
 * with 0 weight for a part that saw no key (lse_p = -inf). The plan: operation MERGE; dtype_q is the type of
 * the parts, dtype_o that of the result; heads_q, head_dim_v (head_dim_qk is not used); features among
 * CU_SEQLENS_Q (then rows are just rows, whosever: no cu_seqlens are given, and sinks have no batch), LSE,
 * LSE_BASE_2 (of lse and lse_parts alike), SINKS. A sink that took part in one of the parts must not be given
 * again. A row without any keys: o = 0, lse = -inf. A NaN among its lse_parts makes the row of o and lse NaN.
 * Parts are summed in their order; those that saw no key change no bit. */
typedef struct clattn_merge_args {
    uint32_t struct_size;
    uint32_t reserved;
    clattn_tensor
        o_parts; /* part 0, laid out as o of a forward call; part p: p * o_part_stride elements on */
    clattn_tensor lse_parts; /* likewise, as lse; float32 */
    clattn_tensor o;
    clattn_tensor lse;     /* with CLATTN_FEATURE_LSE */
    clattn_tensor sinks;   /* with CLATTN_FEATURE_SINKS */
    int64_t batch;         /* 0 with CU_SEQLENS_Q */
    int64_t q_len;         /* likewise */
    int64_t total_q;       /* with CU_SEQLENS_Q; otherwise 0 */
    int64_t num_parts;     /* 1 to CLATTN_MAX_SPLITS */
    int64_t o_part_stride; /* at most 2^48; likewise: */
    int64_t lse_part_stride;
} clattn_merge_args;

/* clang-format off */
#define CLATTN_MERGE_ARGS_INIT \
    { sizeof(clattn_merge_args), 0, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, \
      CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, 0, 0, 0, 0, 0, 0 }
/* clang-format on */

/* As clattn_enqueue_forward, for a plan of CLATTN_OPERATION_MERGE. Needs no workspace. */
CLATTN_API clattn_status clattn_enqueue_merge(clattn_plan *plan, cl_command_queue queue,
                                              const clattn_merge_args *args, cl_uint num_wait,
                                              const cl_event *wait, cl_event *event);

/* ---- Convert: floats to a cache type ------------------------------------------------------------- */

/* Every row of `from` is stored in `to`, as append stores it. The plan: operation CONVERT; dtype_q is the
 * type of `from`, dtype_k that of `to`; heads_kv, head_dim_qk; features among K_SCALE. */
typedef struct clattn_convert_args {
    uint32_t struct_size;
    uint32_t reserved;
    clattn_tensor from;  /* [batch, heads_kv, len, head_dim_qk] */
    clattn_tensor to;    /* likewise, in its own strides */
    clattn_tensor scale; /* [batch, heads_kv, len] with K_SCALE: written for I8, read for F8 */
    int64_t batch;
    int64_t len;
} clattn_convert_args;

/* clang-format off */
#define CLATTN_CONVERT_ARGS_INIT \
    { sizeof(clattn_convert_args), 0, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, 0, 0 }
/* clang-format on */

/* As clattn_enqueue_forward, for a plan of CLATTN_OPERATION_CONVERT. Needs no workspace. */
CLATTN_API clattn_status clattn_enqueue_convert(clattn_plan *plan, cl_command_queue queue,
                                                const clattn_convert_args *args, cl_uint num_wait,
                                                const cl_event *wait, cl_event *event);

#ifdef __cplusplus
}
#endif

#endif /* CLATTN_H */
