// args.cl: one attention call as every kernel sees it. Also compiled by the host (src/kernel_args.h), which
// fills it in; so it holds nothing but fixed-size fields, widest first, and the size is a multiple of 8.
//
// Element (b, h, i, c) of a tensor lies at  base + b*batch + h*head + i*token + c  elements.

// With CU_SEQLENS_* the batch stride is 0 and sequences begin at rows of their own; with pages it leads from page
// to page. address.cl knows.

#define FEATURE_LSE 0x10 // as CLATTN_FEATURE_*: what kernels ask for
#define FEATURE_BIAS 0x8
#define FEATURE_MASK 0x20
#define FEATURE_BIAS_HEAD_SCALE 0x40
#define FEATURE_ALIBI 0x80
#define FEATURE_SINKS 0x100
#define FEATURE_Q_LENS 0x200
#define FEATURE_KV_LENS 0x400
#define FEATURE_Q_OFFSETS 0x800
#define FEATURE_CU_SEQLENS_Q 0x4000
#define FEATURE_CU_SEQLENS_K 0x8000
#define FEATURE_K_SCALE 0x20000
#define FEATURE_V_SCALE 0x40000
#define FEATURE_BATCH_INVARIANT 0x200000

typedef struct tensor_address {
    long base;
    long batch;
    long head;
    long token;
} tensor_address;

// One number for each batch entry and head, or (with head = 0) for each batch entry.
typedef struct number_address {
    long base;
    long batch;
    long head;
} number_address;

typedef struct attention_args {
    tensor_address q;
    tensor_address k;
    tensor_address v;
    tensor_address o;
    tensor_address lse;
    tensor_address bias; // token: from row to row
    tensor_address mask; // likewise
    tensor_address tiles_count; // token: from query tile to query tile
    tensor_address tiles_index; // likewise; from entry to entry: tiles_entry
    tensor_address tile_map; // token: from row of the map to row; head and batch are 0 where it repeats
    tensor_address k_scale;
    tensor_address v_scale;
    number_address bias_head_scale;
    number_address alibi_slopes;
    number_address sinks;
    number_address q_lens;
    number_address kv_lens;
    number_address q_offsets;
    long bias_key; // from key to key
    long mask_key;
    long tiles_entry;
    long tiles_capacity;
    long user; // bytes
    long cu_seqlens_q;
    long cu_seqlens_k;
    long block_table; // and from entry to entry of the batch:
    long block_table_batch;
    long status_words;
    long k_lead; // of types of blocks: bytes from the handle to block 0, less than one
    long v_lead;
    long parts; // floats from the workspace's begin; what splits give (address.cl)
    long ticket; // of this call alone; below 2^40; for kernels whose last work-group combines (address.cl)
    long part_rows; // rows of q, of all sequences together
    long q_offset; // with POSITION_EXPLICIT
    long window_begin; // causal bound and window relative to the row's position (bounds.cl)
    long window_end;
    int first_group; // of this launch: long calls are cut into several
    int num_groups; // of this launch; 0: nothing to do (the warm-up)
    int q_tiles; // query tiles per head
    int heads_q;
    int heads_per_kv; // query heads that share one KV head
    int q_len; // the most that an entry has
    int kv_len; // likewise
    int head_dim_qk; // true dims; the kernels are compiled for HEAD_DIM_QK >= head_dim_qk
    int head_dim_v;
    int position_mode; // POSITION_*
    int features; // FEATURE_*
    int transforms; // whether more than masks changes scores: softcap, bias, ALiBi, score_mod
    int map_has_bias; // whether entries of the tile map know the bias's -inf
    int tile_rows; // of the caller's key tiles; 0: none take part
    int tile_keys;
    int map_rows; // scores that an entry of the tile map stands for
    int map_keys;
    int map_heads; // planes of the map: 1, or one for each head
    int map_height; // entries from top to bottom
    int map_width; // 0: there is no map
    int batch;
    int total_q; // rows of packed q
    int total_k;
    int num_pages;
    int num_splits; // of each sequence's keys
    int split_keys; // keys of a split; 0: as many as make splits even
    float scale; // natural units
    float scale_log2; // scale * log2(e)
    float softcap; // 0: none
    float low_cap[3]; // what softcap does to small products (src/low_cap.h)
    float lse_unit; // natural logarithm's units in the unit of lse
    float user_values[4];
} attention_args;
