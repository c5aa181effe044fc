// append_args.cl: one append as kernels see it; the host compiles the same file (src/append.c).
// Fixed-size fields, widest first, and a size that is a multiple of 8, as in args.cl.

#define FEATURE_BLOCK_TABLE 0x10000 // as CLATTN_FEATURE_*
#define FEATURE_K_SCALE 0x20000
#define FEATURE_V_SCALE 0x40000
#define FEATURE_STATUS 0x100000
#define FEATURE_SLOT_MAPPING 0x400000
#define FEATURE_ROPE_TABLES 0x800000

#define ROPE_NONE 0 // as CLATTN_ROPE_*
#define ROPE_NEOX 1
#define ROPE_INTERLEAVED 2

typedef struct append_args {
    tensor_address k_new; // with CU_SEQLENS_Q the batch stride is 0 and token counts rows of all entries
    tensor_address v_new;
    tensor_address k; // batch: from entry to entry, or from page to page
    tensor_address v;
    tensor_address k_scale;
    tensor_address v_scale;
    tensor_address q;
    tensor_address q_out;
    number_address slot_mapping; // head: from token to token
    number_address positions; // likewise
    number_address kv_lens;
    number_address kv_lens_out;
    number_address q_lens;
    long cu_seqlens_q;
    long block_table;
    long block_table_batch;
    long rope_cos;
    long rope_cos_row;
    long rope_sin;
    long rope_sin_row;
    long status_words;
    long k_lead; // as in attention_args
    long v_lead;
    int first_group; // of this launch: long calls are cut into several
    int num_groups; // of this launch; 0: nothing to do (the warm-up)
    int batch;
    int new_len; // the most new tokens of an entry
    int total_new; // rows of packed tokens
    int kv_len; // places of an entry
    int num_pages;
    int page_size;
    int heads_kv;
    int rows_v; // of a token: heads_kv, or 0 where v is part of k
    int rows_q; // heads_q, or 0: no q is rotated
    int head_dim_qk;
    int head_dim_v;
    int features; // FEATURE_*
    int has_kv_lens;
    int has_kv_lens_out;
    int has_positions;
    int rope; // ROPE_*
    int rotary_dim;
    int rope_len; // rows of the tables
    float rope_step; // log2 of the angle's factor from one pair to the next
    float rope_scale;
} append_args;
