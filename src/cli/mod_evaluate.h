/* mod_evaluate.h: what score_mod and mask_mod of a case give, for the reference: their texts run alone in a
 * small kernel, one work-item for each query and key, away from everything that attention kernels do. */
#ifndef CLATTN_MOD_EVALUATE_H
#define CLATTN_MOD_EVALUATE_H

#include "attention_case.h"
#include "cli_device.h"

typedef struct mod_evaluator {
    cli_device *device;      /* borrowed */
    const attention_case *c; /* borrowed */
    cl_program program;
    cl_kernel kernel;
    cl_mem scores, allowed, sequences, user;
    float *score;          /* [batch, heads_q, q_len, kv_len]: put in, and after evaluation given back */
    unsigned char *allows; /* likewise, after evaluation */
    size_t count;
} mod_evaluator;

/* Returns an exit status; after a failure nothing is held. */
int mod_evaluator_open(mod_evaluator *out, cli_device *device, const attention_case *c);
void mod_evaluator_close(mod_evaluator *evaluator);

/* A pass of the reference with the first collects the scores that the texts are asked about; after
 * mod_evaluate, a pass with the second gets what they answered. */
reference_mod mod_collector(mod_evaluator *evaluator);
reference_mod mod_answers(mod_evaluator *evaluator);
int mod_evaluate(mod_evaluator *evaluator);

#endif
