/* check_case.h: the cases that `clattn check` runs: groups that share a compiled program, and in
 * each the variants of a call times lengths. */
#ifndef CLATTN_CHECK_CASE_H
#define CLATTN_CHECK_CASE_H

#include "attention_case.h"
#include "random_values.h"

/* What one program serves. */
typedef struct check_group {
    int32_t dtype[4]; /* q, k, v, o */
    int32_t head_dim_qk, head_dim_v;
    int full;           /* softcap and bias */
    int32_t dtype_bias; /* with full */
    int quick;          /* part of --quick */
} check_group;

extern const check_group check_groups[];
extern const int num_check_groups;

/* How many cases a group has. */
int check_case_count(const check_group *group, int quick);

/* One case with its inputs. */
typedef struct check_case {
    char name[160]; /* "causal, 2x4x63 heads 2, kv 129" */
    attention_case c;
    void *owned[4]; /* q, k, v, bias */
} check_case;

/* Makes number `index` of a group from a seed. Returns an exit status; to be released on success.
 */
int check_case_make(check_case *out, const check_group *group, int quick, int index, int32_t path,
                    uint64_t seed);
void check_case_release(check_case *check);

#endif
