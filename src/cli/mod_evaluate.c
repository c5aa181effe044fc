/* mod_evaluate.c: the caller's texts in a kernel of their own. */
#include "mod_evaluate.h"

#include "cli.h"
#include "cli_program.h"

#include <stdlib.h>
#include <string.h>

extern const unsigned char clattn_mod_evaluate_cl[];
extern const size_t clattn_mod_evaluate_cl_size;

#define PARAMETERS                                                                                      \
    "int batch, int head_q, int head_kv, int query, int position, int key, const __global void *user, " \
    "float4 values"

/* ---- The program -------------------------------------------------------------------------------- */

static int is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Whether a text is the body of a function rather than an expression. */
static int holds_return(const char *text)
{
    for (const char *at = strstr(text, "return"); at; at = strstr(at + 1, "return"))
        if ((at == text || !is_word(at[-1])) && !is_word(at[6]))
            return 1;
    return 0;
}

static size_t append_function(char *out, size_t capacity, const char *head, const char *text)
{
    const int body = holds_return(text);
    cli_format(out, capacity, "%s\n{\n%s%s%s\n}\n", head, body ? "" : "return (", text, body ? "" : "\n);");
    return strlen(out);
}

static int build(mod_evaluator *e)
{
    const call_options *o = &e->c->options;
    const char *score_text = o->score_mod ? o->score_mod : "score",
               *mask_text = o->mask_mod ? o->mask_mod : "1";
    const size_t capacity =
        strlen(score_text) + strlen(mask_text) + clattn_mod_evaluate_cl_size + 2 * sizeof PARAMETERS + 256;
    char *source = malloc(capacity);
    if (!source)
        return cli_fail(CLI_FAILED, "out of memory");
    size_t used =
        append_function(source, capacity, "float score_text(float score, " PARAMETERS ")", score_text);
    used += append_function(source + used, capacity - used, "int mask_text(" PARAMETERS ")", mask_text);
    memcpy(source + used, clattn_mod_evaluate_cl, clattn_mod_evaluate_cl_size);
    e->program = cli_program_build(e->device, (const unsigned char *)source,
                                   used + clattn_mod_evaluate_cl_size, "-cl-std=CL1.2", "--verify's kernel");
    free(source);
    if (!e->program)
        return CLI_FAILED;
    cl_int status;
    e->kernel = clCreateKernel(e->program, "mod_evaluate", &status);
    return status == CL_SUCCESS ? CLI_OK : cli_opencl_fail(status, "mod_evaluate");
}

/* ---- Memory ------------------------------------------------------------------------------------- */

static int create_buffer(mod_evaluator *e, cl_mem *out, size_t bytes, const void *values)
{
    cl_int status;
    *out = clCreateBuffer(e->device->context, CL_MEM_READ_WRITE, bytes > 0 ? bytes : 1, NULL, &status);
    if (status == CL_SUCCESS && values && bytes > 0)
        status = clEnqueueWriteBuffer(e->device->queue, *out, CL_TRUE, 0, bytes, values, 0, NULL, NULL);
    return status == CL_SUCCESS ? CLI_OK : cli_opencl_fail(status, "a buffer of --verify");
}

/* Lengths and offset of each batch entry, in the range of the kernels' int. */
static int create_sequences(mod_evaluator *e)
{
    const reference_call call = case_reference(e->c);
    const size_t count = (size_t)e->c->batch * 3;
    cl_int *values = malloc(count * sizeof *values + 1);
    if (!values)
        return cli_fail(CLI_FAILED, "out of memory");
    for (int64_t b = 0; b < e->c->batch; b++) {
        const reference_sequence s = reference_sequence_of(&call, b);
        const int64_t most = CLATTN_MAX_LENGTH;
        values[3 * b] = (cl_int)s.q_len;
        values[3 * b + 1] = (cl_int)s.kv_len;
        values[3 * b + 2] = (cl_int)(s.offset < -most ? -most : s.offset > most ? most : s.offset);
    }
    const int status = create_buffer(e, &e->sequences, count * sizeof *values, values);
    free(values);
    return status;
}

static int create_memory(mod_evaluator *e)
{
    const attention_case *c = e->c;
    const case_tensor *user = &c->tensor[TENSOR_USER];
    e->count = (size_t)(c->batch * c->heads_q * c->q_len * c->kv_len);
    e->score = calloc(e->count + 1, sizeof *e->score);
    e->allows = calloc(e->count + 1, 1);
    if (!e->score || !e->allows)
        return cli_fail(CLI_FAILED, "not enough memory for --verify with score_mod or mask_mod");
    int status = create_buffer(e, &e->scores, e->count * sizeof *e->score, NULL);
    if (status == CLI_OK)
        status = create_buffer(e, &e->allowed, e->count, e->allows);
    if (status == CLI_OK)
        status = create_sequences(e);
    if (status == CLI_OK && user->present)
        status = create_buffer(e, &e->user, user->value_bytes, user->values);
    return status;
}

int mod_evaluator_open(mod_evaluator *out, cli_device *device, const attention_case *c)
{
    memset(out, 0, sizeof *out);
    out->device = device;
    out->c = c;
    int status = build(out);
    if (status == CLI_OK)
        status = create_memory(out);
    if (status != CLI_OK)
        mod_evaluator_close(out);
    return status;
}

void mod_evaluator_close(mod_evaluator *e)
{
    cl_mem buffers[4] = {e->scores, e->allowed, e->sequences, e->user};
    for (int i = 0; i < 4; i++)
        if (buffers[i])
            clReleaseMemObject(buffers[i]);
    if (e->kernel)
        clReleaseKernel(e->kernel);
    if (e->program)
        clReleaseProgram(e->program);
    free(e->score);
    free(e->allows);
    memset(e, 0, sizeof *e);
}

/* ---- Running ------------------------------------------------------------------------------------ */

static cl_int set_arguments(mod_evaluator *e)
{
    const attention_case *c = e->c;
    const cl_mem buffers[4] = {e->scores, e->allowed, e->sequences, e->user};
    const cl_int sizes[4] = {(cl_int)c->heads_q, (cl_int)c->heads_kv, (cl_int)c->q_len, (cl_int)c->kv_len};
    cl_int status = CL_SUCCESS;
    for (cl_uint i = 0; status == CL_SUCCESS && i < 4; i++)
        status = clSetKernelArg(e->kernel, i, sizeof(cl_mem), buffers[i] ? &buffers[i] : NULL);
    if (status == CL_SUCCESS)
        status = clSetKernelArg(e->kernel, 4, sizeof c->options.user_values, c->options.user_values);
    for (cl_uint i = 0; status == CL_SUCCESS && i < 4; i++)
        status = clSetKernelArg(e->kernel, 5 + i, sizeof sizes[i], &sizes[i]);
    return status;
}

int mod_evaluate(mod_evaluator *e)
{
    const attention_case *c = e->c;
    const cl_command_queue queue = e->device->queue;
    const size_t size[3] = {(size_t)c->kv_len, (size_t)c->q_len, (size_t)(c->batch * c->heads_q)};
    const size_t bytes = e->count * sizeof *e->score;
    if (e->count == 0)
        return CLI_OK;
    cl_int status = set_arguments(e);
    if (status == CL_SUCCESS)
        status = clEnqueueWriteBuffer(queue, e->scores, CL_TRUE, 0, bytes, e->score, 0, NULL, NULL);
    if (status == CL_SUCCESS)
        status = clEnqueueNDRangeKernel(queue, e->kernel, 3, NULL, size, NULL, 0, NULL, NULL);
    if (status == CL_SUCCESS)
        status = clEnqueueReadBuffer(queue, e->scores, CL_TRUE, 0, bytes, e->score, 0, NULL, NULL);
    if (status == CL_SUCCESS)
        status = clEnqueueReadBuffer(queue, e->allowed, CL_TRUE, 0, e->count, e->allows, 0, NULL, NULL);
    return status == CL_SUCCESS ? CLI_OK : cli_opencl_fail(status, "--verify's kernel");
}

/* ---- For the reference -------------------------------------------------------------------------- */

static size_t index_of(const mod_evaluator *e, int64_t batch, int64_t head_q, int64_t query, int64_t key)
{
    return (size_t)(((batch * e->c->heads_q + head_q) * e->c->q_len + query) * e->c->kv_len + key);
}

static double collect(void *user, double score, int64_t batch, int64_t head_q, int64_t head_kv, int64_t query,
                      int64_t position, int64_t key)
{
    mod_evaluator *e = user;
    (void)head_kv;
    (void)position;
    e->score[index_of(e, batch, head_q, query, key)] = (float)score;
    return score;
}

static double answer_score(void *user, double score, int64_t batch, int64_t head_q, int64_t head_kv,
                           int64_t query, int64_t position, int64_t key)
{
    const mod_evaluator *e = user;
    (void)score;
    (void)head_kv;
    (void)position;
    return (double)e->score[index_of(e, batch, head_q, query, key)];
}

static int answer_mask(void *user, int64_t batch, int64_t head_q, int64_t head_kv, int64_t query,
                       int64_t position, int64_t key)
{
    const mod_evaluator *e = user;
    (void)head_kv;
    (void)position;
    return e->allows[index_of(e, batch, head_q, query, key)];
}

reference_mod mod_collector(mod_evaluator *e)
{
    const reference_mod mod = {collect, NULL, e};
    return mod;
}

reference_mod mod_answers(mod_evaluator *e)
{
    const reference_mod mod = {e->c->options.score_mod ? answer_score : NULL,
                               e->c->options.mask_mod ? answer_mask : NULL, e};
    return mod;
}
