/* serving_choices.h: what random serving tests draw calls from. */
#ifndef CLATTN_SERVING_CHOICES_H
#define CLATTN_SERVING_CHOICES_H

#include "numerics_choices.h"
#include "numerics_serving.h"

/* What is compiled into a call's kernels; some dozens of cases share a choice. */
typedef struct serving_program {
    int32_t path, phase;
    int32_t q, o, k, v, bias;
    int32_t dim_qk, dim_v; /* the largest of their class */
    int32_t group;         /* query heads of a KV head */
    int32_t page_size;     /* 0: no pages */
    int v_in_k, has_status;
    int full;
    mod_choice mods;
    int appends; /* some of the cases do */
    int32_t rope;
    int has_tables;
} serving_program;

/* Programs of one path and seed take turns in phase, storage, types and scores. */
serving_program choose_serving_program(int32_t path, uint64_t seed, int number);

serving_spec choose_serving(const serving_program *program, uint64_t seed, int number);

#endif
