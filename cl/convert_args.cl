// convert_args.cl: one conversion as its kernel sees it; the host compiles the same file (src/convert.c).

#define FEATURE_K_SCALE 0x20000 // as CLATTN_FEATURE_K_SCALE

typedef struct convert_args {
    tensor_address from;
    tensor_address to;
    tensor_address scale;
    long to_lead; // as k_lead in attention_args
    int first_group; // of this launch: long calls are cut into several
    int num_groups; // of this launch; 0: nothing to do (the warm-up)
    int heads;
    int len; // rows of a head
    int head_dim;
    int features; // FEATURE_*
} convert_args;
