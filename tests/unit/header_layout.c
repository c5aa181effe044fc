/* The layout of the public structs: no padding, so that every byte of an option struct has a
 * meaning and the places are the same for every compiler. Compiled as C11 and C++11, never run. */
#include <clattn.h>

/* <assert.h> is not there on a bare 32-bit compiler. */
#ifndef __cplusplus
#define static_assert _Static_assert
#endif

/* A field follows the one before without a gap. The first is at 0. */
#define FIRST(type, field) static_assert(offsetof(type, field) == 0, #type " begins with " #field)
#define AFTER(type, before, field)                                                                  \
    static_assert(offsetof(type, field) == offsetof(type, before) + sizeof(((type *)NULL)->before), \
                  #type ": a gap before " #field)
#define LAST(type, field)                                                                \
    static_assert(sizeof(type) == offsetof(type, field) + sizeof(((type *)NULL)->field), \
                  #type ": a gap after " #field)

typedef clattn_context_options options;
FIRST(options, struct_size);
AFTER(options, struct_size, log_level);
AFTER(options, log_level, log);
AFTER(options, log, log_user);
AFTER(options, log_user, cache);
AFTER(options, cache, allocator);
AFTER(options, allocator, get_proc);
AFTER(options, get_proc, get_proc_user);
AFTER(options, get_proc_user, max_local_bytes);
AFTER(options, max_local_bytes, max_work_per_launch);
AFTER(options, max_work_per_launch, tuning);
AFTER(options, tuning, tuning_bytes);
LAST(options, tuning_bytes);

typedef clattn_cache_hooks hooks;
FIRST(hooks, user);
AFTER(hooks, user, load);
AFTER(hooks, load, store);
LAST(hooks, store);

typedef clattn_allocator allocator;
FIRST(allocator, user);
AFTER(allocator, user, allocate);
AFTER(allocator, allocate, release);
LAST(allocator, release);

typedef clattn_builds builds;
FIRST(builds, struct_size);
AFTER(builds, struct_size, reserved);
AFTER(builds, reserved, compiled);
AFTER(builds, compiled, loaded);
AFTER(builds, loaded, microseconds);
LAST(builds, microseconds);

typedef clattn_plan_desc desc;
static_assert(offsetof(desc, phase) == 4, "phase");
static_assert(offsetof(desc, heads_q) == 28, "heads_q");
static_assert(offsetof(desc, features) == 44, "features");
static_assert(offsetof(desc, path) == 52, "path");
AFTER(desc, path, tile_rows);
AFTER(desc, tile_rows, tile_keys);
AFTER(desc, tile_keys, score_mod);
AFTER(desc, score_mod, mask_mod);
AFTER(desc, mask_mod, operation);
AFTER(desc, operation, page_size);
AFTER(desc, page_size, splits);
AFTER(desc, splits, rope);
AFTER(desc, rope, rotary_dim);
AFTER(desc, rotary_dim, reserved);
LAST(desc, reserved);

typedef clattn_tensor tensor;
FIRST(tensor, mem_kind);
AFTER(tensor, mem_kind, reserved);
AFTER(tensor, reserved, handle);
#if UINTPTR_MAX > 0xffffffff /* some 32-bit ABIs align byte_offset to 8 */
AFTER(tensor, handle, byte_offset);
#endif
AFTER(tensor, byte_offset, stride);
AFTER(tensor, stride, reserved2);
LAST(tensor, reserved2);

typedef clattn_bounds bounds;
FIRST(bounds, struct_size);
AFTER(bounds, struct_size, reserved);
AFTER(bounds, reserved, batch);
AFTER(bounds, batch, q_len);
AFTER(bounds, q_len, kv_len);
AFTER(bounds, kv_len, total_q);
LAST(bounds, total_q);

typedef clattn_forward_args forward_args;
FIRST(forward_args, struct_size);
AFTER(forward_args, struct_size, reserved);
AFTER(forward_args, reserved, q);
AFTER(forward_args, q, k);
AFTER(forward_args, k, v);
AFTER(forward_args, v, o);
AFTER(forward_args, o, lse);
AFTER(forward_args, lse, bias);
AFTER(forward_args, bias, workspace);
AFTER(forward_args, workspace, batch);
AFTER(forward_args, batch, q_len);
AFTER(forward_args, q_len, kv_len);
AFTER(forward_args, kv_len, q_offset);
AFTER(forward_args, q_offset, window_left);
AFTER(forward_args, window_left, window_right);
AFTER(forward_args, window_right, scale);
AFTER(forward_args, scale, softcap);
AFTER(forward_args, softcap, mask);
AFTER(forward_args, mask, bias_head_scale);
AFTER(forward_args, bias_head_scale, alibi_slopes);
AFTER(forward_args, alibi_slopes, sinks);
AFTER(forward_args, sinks, q_lens);
AFTER(forward_args, q_lens, kv_lens);
AFTER(forward_args, kv_lens, q_offsets);
AFTER(forward_args, q_offsets, tiles_count);
AFTER(forward_args, tiles_count, tiles_index);
AFTER(forward_args, tiles_index, tiles_capacity);
AFTER(forward_args, tiles_capacity, user);
AFTER(forward_args, user, user_values);
AFTER(forward_args, user_values, cu_seqlens_q);
AFTER(forward_args, cu_seqlens_q, cu_seqlens_k);
AFTER(forward_args, cu_seqlens_k, block_table);
AFTER(forward_args, block_table, k_scale);
AFTER(forward_args, k_scale, v_scale);
AFTER(forward_args, v_scale, status_words);
AFTER(forward_args, status_words, total_q);
AFTER(forward_args, total_q, total_k);
AFTER(forward_args, total_k, num_pages);
AFTER(forward_args, num_pages, max_blocks);
LAST(forward_args, max_blocks);

typedef clattn_append_args append_args;
FIRST(append_args, struct_size);
AFTER(append_args, struct_size, reserved);
AFTER(append_args, reserved, k_new);
AFTER(append_args, k_new, v_new);
AFTER(append_args, v_new, k);
AFTER(append_args, k, v);
AFTER(append_args, v, k_scale);
AFTER(append_args, k_scale, v_scale);
AFTER(append_args, v_scale, q);
AFTER(append_args, q, q_out);
AFTER(append_args, q_out, kv_lens);
AFTER(append_args, kv_lens, kv_lens_out);
AFTER(append_args, kv_lens_out, q_lens);
AFTER(append_args, q_lens, cu_seqlens_q);
AFTER(append_args, cu_seqlens_q, block_table);
AFTER(append_args, block_table, slot_mapping);
AFTER(append_args, slot_mapping, positions);
AFTER(append_args, positions, rope_cos);
AFTER(append_args, rope_cos, rope_sin);
AFTER(append_args, rope_sin, status_words);
AFTER(append_args, status_words, batch);
AFTER(append_args, batch, new_len);
AFTER(append_args, new_len, total_new);
AFTER(append_args, total_new, kv_len);
AFTER(append_args, kv_len, num_pages);
AFTER(append_args, num_pages, max_blocks);
AFTER(append_args, max_blocks, rope_len);
AFTER(append_args, rope_len, rope_base);
AFTER(append_args, rope_base, rope_scale);
LAST(append_args, rope_scale);

typedef clattn_merge_args merge_args;
FIRST(merge_args, struct_size);
AFTER(merge_args, struct_size, reserved);
AFTER(merge_args, reserved, o_parts);
AFTER(merge_args, o_parts, lse_parts);
AFTER(merge_args, lse_parts, o);
AFTER(merge_args, o, lse);
AFTER(merge_args, lse, sinks);
AFTER(merge_args, sinks, batch);
AFTER(merge_args, batch, q_len);
AFTER(merge_args, q_len, total_q);
AFTER(merge_args, total_q, num_parts);
AFTER(merge_args, num_parts, o_part_stride);
AFTER(merge_args, o_part_stride, lse_part_stride);
LAST(merge_args, lse_part_stride);

typedef clattn_convert_args convert_args;
FIRST(convert_args, struct_size);
AFTER(convert_args, struct_size, reserved);
AFTER(convert_args, reserved, from);
AFTER(convert_args, from, to);
AFTER(convert_args, to, scale);
AFTER(convert_args, scale, batch);
AFTER(convert_args, batch, len);
LAST(convert_args, len);

typedef clattn_status_words status_words;
FIRST(status_words, bad_page);
AFTER(status_words, bad_page, bad_length);
AFTER(status_words, bad_length, dropped);
AFTER(status_words, dropped, reserved);
LAST(status_words, reserved);

/* Sizes of this version; older ones stay accepted. */
#if UINTPTR_MAX == 0xffffffffffffffff
static_assert(sizeof(clattn_context_options) == 120, "clattn_context_options");
static_assert(sizeof(clattn_tensor) == 72, "clattn_tensor");
static_assert(sizeof(clattn_bounds) == 40, "clattn_bounds");
static_assert(sizeof(clattn_forward_args) == 1776, "clattn_forward_args");
#endif

/* The _INIT macros initialise every field (-Wextra sees a missing one) and set the size. */
extern const clattn_context_options initialised_options;
extern const clattn_plan_desc initialised_desc;
extern const clattn_tensor initialised_tensor;
extern const clattn_bounds initialised_bounds;
extern const clattn_forward_args initialised_args;
extern const clattn_append_args initialised_append;
extern const clattn_merge_args initialised_merge;
extern const clattn_convert_args initialised_convert;
const clattn_context_options initialised_options = CLATTN_CONTEXT_OPTIONS_INIT;
const clattn_plan_desc initialised_desc = CLATTN_PLAN_DESC_INIT;
const clattn_tensor initialised_tensor = CLATTN_TENSOR_INIT;
const clattn_bounds initialised_bounds = CLATTN_BOUNDS_INIT;
const clattn_forward_args initialised_args = CLATTN_FORWARD_ARGS_INIT;
const clattn_append_args initialised_append = CLATTN_APPEND_ARGS_INIT;
const clattn_merge_args initialised_merge = CLATTN_MERGE_ARGS_INIT;
const clattn_convert_args initialised_convert = CLATTN_CONVERT_ARGS_INIT;
