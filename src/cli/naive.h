/* naive.h: three-kernel attention with an N x N buffer on the device: the yardstick of time and
 * memory. */
#ifndef CLATTN_NAIVE_H
#define CLATTN_NAIVE_H

#include "cli_device.h"

typedef struct naive_program {
    cli_device *device; /* borrowed */
    cl_program program;
    cl_kernel scores, softmax, weighted;
    int32_t dtype;
    size_t side, width; /* see naive.cl */
} naive_program;

/* Contiguous [batch, heads, length, head dim], one storage type. */
typedef struct naive_shape {
    int64_t batch, heads_q, heads_kv, q_len, kv_len, head_dim_qk, head_dim_v;
    int causal; /* bottom right */
} naive_shape;

int naive_program_open(naive_program *out, cli_device *device, int32_t dtype);
void naive_program_close(naive_program *program);

/* Bytes of the buffer for S and P. */
uint64_t naive_scores_bytes(const naive_shape *shape, int32_t dtype);

/* Enqueues the three kernels; `scores` has naive_scores_bytes. Does not wait. */
int naive_enqueue(naive_program *program, const naive_shape *shape, cl_mem q, cl_mem k, cl_mem v,
                  cl_mem scores, cl_mem o);

#endif
