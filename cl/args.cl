// args.cl: one attention call as every kernel sees it. Also compiled by the host (src/enqueue.c), which
// fills it in; so it holds nothing but fixed-size fields, widest first, and the size is a multiple of 8.
//
// Element (b, h, i, c) of a tensor lies at  base + b*batch + h*head + i*token + c  elements.

typedef struct tensor_address {
    long base;
    long batch;
    long head;
    long token;
} tensor_address;

typedef struct attention_args {
    tensor_address q;
    tensor_address k;
    tensor_address v;
    tensor_address o;
    tensor_address lse;
    tensor_address bias; // token: from row to row
    long bias_key;       // from key to key
    int first_group;     // of this launch: long calls are cut into several
    int num_groups;      // of this launch; 0: nothing to do (the warm-up)
    int q_tiles;         // query tiles per head
    int heads_q;
    int heads_per_kv; // query heads that share one KV head
    int q_len;
    int kv_len;
    int head_dim_qk; // true dims; the kernels are compiled for HEAD_DIM_QK >= head_dim_qk
    int head_dim_v;
    int band_begin; // row i may see key j if  i + band_begin <= j < i + band_end: causal bound, window
    int band_end;   // and offset folded into two numbers, each within +-2^30
    int want_lse;
    float scale;      // natural units
    float scale_log2; // scale * log2(e)
    float softcap;    // 0: none
    int has_bias;
} attention_args;
