/* case_layout.h: how a case's tensors lie in their device buffers. */
#ifndef CLATTN_CASE_LAYOUT_H
#define CLATTN_CASE_LAYOUT_H

#include "attention_case.h"

/* Elements of a tensor. */
int64_t case_elements(const case_tensor *t);

/* Strides of a contiguous tensor, [B,H,N,D] or [B,N,H,D]. Fails on overflow, zeros counted as ones. */
int case_contiguous_strides(const int64_t dim[4], int bshd, int64_t stride[4]);

/* Applies --strides and --offset-bytes to every tensor, whose shapes are known. Returns an exit status. */
int case_lay_out(attention_case *c);

/* Lays the values out as the device buffer has them (offset, strides, guard), everything else
 * filled with 0xff bytes, which are NaNs in every type. To be freed; NULL after a message. */
unsigned char *case_layout_input(const attention_case *c, int tensor);

/* Whether the device buffer is just the values, so that no copy is needed. */
int case_is_plain(const attention_case *c, int tensor);

#endif
