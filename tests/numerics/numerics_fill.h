/* numerics_fill.h: the numbers in a call's inputs.
 *
 * Only what a call may read is filled: per-entry values; mask where lengths, causal bound and window allow
 * the key; bias where the mask, key tiles and mask_mod allow it too; rows of q that see some key; rows of k
 * and v that some row of their heads' group sees. All else stays as spec.unread says: in particular k and v
 * at forbidden keys. Lists of key tiles hold junk, repetitions, and beyond their count tiles that would be
 * valid. */
#ifndef CLATTN_NUMERICS_FILL_H
#define CLATTN_NUMERICS_FILL_H

#include "numerics_data.h"

void fill_inputs(call_data *data, random_state *random);

#endif
