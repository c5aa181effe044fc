/* layer.h: what the tests' OpenCL layers (OPENCL_LAYERS) have in common: how they are loaded, and answers. A
 * layer gives its name and puts its functions into the table; all others go to the driver below. */
#ifndef LAYER_H
#define LAYER_H

#undef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 300 /* only for it the dispatch table is declared in full */
#include <CL/cl.h>
#include <CL/cl_layer.h>

extern const cl_icd_dispatch *layer_below;

/* What the layer at hand defines. */
extern const char layer_name[];
void layer_replace(cl_icd_dispatch *table);

/* Answers a query with a fact. */
cl_int layer_answer(const void *fact, size_t fact_size, size_t size, void *value, size_t *size_ret);

/* The sources of a program as one text, which the caller frees; NULL without memory. */
char *layer_join(cl_uint count, const char **strings, const size_t *lengths);

/* A driver that takes no binary, so that every program is made from source. */
cl_program CL_API_CALL layer_refuse_binary(cl_context context, cl_uint count, const cl_device_id *devices,
                                           const size_t *lengths, const unsigned char **binaries,
                                           cl_int *status, cl_int *errcode_ret);

#endif
