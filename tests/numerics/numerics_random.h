/* numerics_random.h: numbers that a seed repeats on every machine. */
#ifndef CLATTN_NUMERICS_RANDOM_H
#define CLATTN_NUMERICS_RANDOM_H

#include <stdint.h>

typedef struct random_state {
    uint64_t state;
} random_state;

/* A generator of its own for each seed and topic, so that adding a draw to one leaves others as
 * they were. */
random_state random_for(uint64_t seed, const char *topic, uint64_t number);

uint64_t random_bits(random_state *random);
int64_t random_between(random_state *random, int64_t least, int64_t most); /* both inclusive */
float random_normal(random_state *random);
int random_chance(random_state *random, int percent);

/* Draws without replacement, shuffled again when empty: every value comes up once in `count` draws.
 */
enum { DECK_CARDS = 48 };

typedef struct deck {
    int64_t card[DECK_CARDS];
    int count;
    int next;
} deck;

void deck_add(deck *cards, int64_t value);
int64_t deck_draw(deck *cards, random_state *random);

#endif
