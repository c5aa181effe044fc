/* case_tensors.h: from the tensors of a file to those of a case: names, types, shapes and values checked, so
 * that messages can name the tensor and what was expected. `name` is the file's. */
#ifndef CLATTN_CASE_TENSORS_H
#define CLATTN_CASE_TENSORS_H

#include "attention_case.h"

/* ---- case_tensors.c ---- */

/* Refuses tensors that have no meaning, or none yet. */
int case_check_names(const safetensors_file *file, const char *name);

/* Takes values and type of a tensor; the shape is copied, but not looked at. */
int case_read_floats(case_tensor *t, const safetensors_tensor *source, const char *name);
int case_read_f32(case_tensor *t, const safetensors_tensor *source, const char *name);
int case_read_bools(case_tensor *t, const safetensors_tensor *source, const char *name);
int case_read_integers(case_tensor *t, const safetensors_tensor *source, const char *name);
int case_read_raw(case_tensor *t, const safetensors_tensor *source, const char *name);

/* ---- case_matrices.c ---- */

/* One of q, k, v, k_new and v_new, in the form that it has. */
int case_read_matrix(attention_case *c, int tensor, const safetensors_file *file, const char *name);

/* q, k and v, and with them the sizes of the case. */
int case_read_matrices(attention_case *c, const safetensors_file *file, const char *name);

/* ---- case_extras.c ---- */

/* Everything else that is there, once the sizes are known; also what options stand for. */
int case_read_extras(attention_case *c, const safetensors_file *file, const char *name);

#endif
