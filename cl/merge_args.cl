// merge_args.cl: one merge as its kernel sees it; the host compiles the same file (src/merge.c).

#define PART_TYPE Q_TYPE // parts.cl: the parts' o is the caller's

typedef struct merge_args {
    tensor_address o_parts; // of the first part; packed rows: one entry
    tensor_address lse_parts;
    tensor_address o;
    tensor_address lse;
    number_address sinks;
    long o_step; // from part to part
    long lse_step;
    int first_group; // of this launch: long calls are cut into several
    int num_groups; // of this launch; 0: nothing to do (the warm-up)
    int heads;
    int rows; // of a head
    int head_dim_v;
    int num_parts;
    int features; // FEATURE_*
    float lse_unit; // natural logarithm's units in the unit of lse and lse_parts
} merge_args;
