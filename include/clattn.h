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
 * is float32 whatever the storage types are.
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
 * Both hooks may be called from several threads at once. */
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
} clattn_context_options;

/* clang-format off */
#define CLATTN_CONTEXT_OPTIONS_INIT \
    { sizeof(clattn_context_options), 0, NULL, NULL, { NULL, NULL, NULL }, { NULL, NULL, NULL }, NULL, NULL, 0, 0 }
/* clang-format on */

/* Creates the library's view of one device. `options` may be NULL. `device` must belong to `context`.
 * *out is set to NULL on failure. */
CLATTN_API clattn_status clattn_context_create(clattn_context **out, cl_context context, cl_device_id device,
                                               const clattn_context_options *options);
CLATTN_API void clattn_context_release(clattn_context *context); /* NULL: nothing happens */

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

#define CLATTN_PHASE_PREFILL 0

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
#define CLATTN_FEATURE_LSE_BASE_2 0x2000u    /* lse is log2, not ln, of the sum; needs LSE */

/* Where query row 0 stands among the keys: row i has position i + offset. It rules causal bound, window,
 * ALiBi and the position that score_mod and mask_mod are told. (Known systems differ: bottom right is
 * FlashAttention >= 2.1, top left is PyTorch's is_causal.) With Q_LENS and KV_LENS the lengths are those
 * of the batch entry. */
#define CLATTN_POSITION_BOTTOM_RIGHT 0 /* offset = kv_len - q_len */
#define CLATTN_POSITION_TOP_LEFT 1     /* offset = 0 */
#define CLATTN_POSITION_EXPLICIT 2     /* offset = q_offset of the call, or q_offsets; may be negative */

/* A kernel family. The first that fits device and plan is taken; see clattn_plan_describe. */
#define CLATTN_PATH_AUTO 0
#define CLATTN_PATH_PORTABLE 1 /* any device: OpenCL C 1.2, no extensions, 16 KiB of local memory */
#define CLATTN_PATH_CPU 2      /* CPU devices: one work-item per tile, explicit vectors */

#define CLATTN_MAX_HEAD_DIM 576
#define CLATTN_MAX_LENGTH (1 << 30) /* of q_len and kv_len */

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
} clattn_plan_desc;

/* clang-format off */
#define CLATTN_PLAN_DESC_INIT { sizeof(clattn_plan_desc), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL }
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

/* ---- Calls: what changes every time ------------------------------------------------------------- */

#define CLATTN_MEM_BUFFER 0 /* handle is a cl_mem. Others are reserved and refused. */

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
 *
 * Strides that are not named are unused.
 * BHSD, BSHD or interleaved QKV are strides, not modes. byte_offset is a multiple of the element size.
 * Rows whose offset and strides are multiples of four elements are read fastest. */
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
} clattn_bounds;

/* clang-format off */
#define CLATTN_BOUNDS_INIT { sizeof(clattn_bounds), 0, 0, 0, 0 }
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
    /* Values are clamped to 0 .. q_len and 0 .. kv_len; nothing is read beyond them, and rows of o and lse
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
} clattn_forward_args;

/* clang-format off */
#define CLATTN_FORWARD_ARGS_INIT \
    { sizeof(clattn_forward_args), 0, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, \
      CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, 0, 0, 0, 0, 0, 0, 0.0f, 0.0f, \
      CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, \
      CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, CLATTN_TENSOR_INIT, 0, CLATTN_TENSOR_INIT, \
      { 0.0f, 0.0f, 0.0f, 0.0f } }
/* clang-format on */

/* Bytes of workspace that a forward call with these bounds needs at most. Reads no buffer; grows with each
 * bound. 0 unless mask, bias, key tiles or mask_mod take part: these are looked through once, tile by tile,
 * and the workspace holds a byte for each tile, so that tiles that no row may see are never loaded and tiles
 * that every row may see are not compared. A mask or bias repeated over heads or batch needs less than this
 * says.
 *
 * args.workspace: byte_offset on, strides 0; undefined on entry and after the call, and no other call's
 * while this one is in flight. handle NULL: the call makes a buffer of its own on the device, which is let
 * go when its commands have ended. */
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
 * - Nothing is read beyond q_len and kv_len (those of the batch entry). NaN and inf in k and v at keys that
 *   no row of the call may see (causal bound, window, mask, key tiles, mask_mod, bias of -inf) change no bit
 *   of the result. A NaN in k at a key forbidden to a row never reaches that row. A NaN in v at a key
 *   forbidden to this row but allowed to another may reach it (0 * NaN), as in every implementation by
 *   matrix products.
 * - Same inputs, device and plan: same bits.
 * Outputs must not overlap inputs or each other, nor an output's rows one another; inputs may share
 * memory. */
CLATTN_API clattn_status clattn_enqueue_forward(clattn_plan *plan, cl_command_queue queue,
                                                const clattn_forward_args *args, cl_uint num_wait,
                                                const cl_event *wait, cl_event *event);

#ifdef __cplusplus
}
#endif

#endif /* CLATTN_H */
