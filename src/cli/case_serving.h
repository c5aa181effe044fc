/* case_serving.h: how sequences lie in a case's tensors (padded, packed, in pages), which of their rows are
 * valid, and what is appended to caches. */
#ifndef CLATTN_CASE_SERVING_H
#define CLATTN_CASE_SERVING_H

#include "attention_case.h"

enum {
    FORM_BHSD,   /* [batch, heads, tokens, dim] */
    FORM_BSHD,   /* [batch, tokens, heads, dim] */
    FORM_PACKED, /* [total, heads, dim]: in a case, batch is 1 and token counts the rows of all */
    FORM_PAGES   /* [pages, page_size, heads, dim]: in a case, batch counts pages */
};

/* Of q, k, v, o and what lies as they do: k_new, v_new, k_scale, v_scale. */
int case_form(const attention_case *c, int tensor);

/* What is the same for all: B,H,N,D in the words of the form. */
const char *case_form_text(int form);

/* Reads cu_seqlens_q, cu_seqlens_k and block_table, before everything else. */
int case_read_sequences(attention_case *c, const safetensors_file *file, const char *name);

/* Takes sizes from q, k and v, which have been read. */
int case_set_sizes(attention_case *c, const char *name);

/* Everything that is appended or scales a cache, and what goes only together; after the other tensors. */
int case_read_serving(attention_case *c, const safetensors_file *file, const char *name);

/* Rows of batch entry `b`: of q; keys before the call; appended ones; keys that attention sees. */
int64_t case_q_len(const attention_case *c, int64_t b);
int64_t case_old_len(const attention_case *c, int64_t b);
int64_t case_new_len(const attention_case *c, int64_t b);
int64_t case_kv_len(const attention_case *c, int64_t b);

/* Where row i of entry b lies along the axes batch and token of q, o and lse. */
void case_row_place(const attention_case *c, int64_t b, int64_t i, int64_t *batch, int64_t *token);

/* Likewise key j in k, v and their scales. Returns 0 if it has no place (no page of the pool). */
int case_key_place(const attention_case *c, int64_t b, int64_t j, int64_t *batch, int64_t *token);

/* Columns that RoPE turns; 0: none. */
int64_t case_rotary_dim(const attention_case *c);

/* Whether the call writes into k and v. */
int case_appends(const attention_case *c);

#endif
