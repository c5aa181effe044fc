/* numerics_random.c: splitmix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
 * generators"). */
#include "numerics_random.h"

#include <assert.h>
#include <math.h>

uint64_t random_bits(random_state *random)
{
    uint64_t z = random->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

random_state random_for(uint64_t seed, const char *topic, uint64_t number)
{
    random_state random = {seed};
    for (; *topic != '\0'; topic++)
        random.state = random_bits(&random) ^ (uint64_t)*topic;
    random.state = random_bits(&random) ^ number;
    return random;
}

int64_t random_between(random_state *random, int64_t least, int64_t most)
{
    return least + (int64_t)(random_bits(random) % (uint64_t)(most - least + 1));
}

int random_chance(random_state *random, int percent) { return random_between(random, 0, 99) < percent; }

/* Box and Muller's method. */
float random_normal(random_state *random)
{
    const double two_pi = 6.283185307179586;
    const double radius = ((double)(random_bits(random) >> 11) + 1) / 9007199254740992.0;
    const double angle = (double)(random_bits(random) >> 11) / 9007199254740992.0;
    return (float)(sqrt(-2 * log(radius)) * cos(two_pi * angle));
}

void deck_add(deck *cards, int64_t value)
{
    assert(cards->count < DECK_CARDS);
    cards->card[cards->count++] = value;
    cards->next = cards->count; /* shuffle before the next draw */
}

static void shuffle(deck *cards, random_state *random)
{
    for (int i = cards->count - 1; i > 0; i--) {
        const int other = (int)random_between(random, 0, i);
        const int64_t card = cards->card[i];
        cards->card[i] = cards->card[other];
        cards->card[other] = card;
    }
    cards->next = 0;
}

int64_t deck_draw(deck *cards, random_state *random)
{
    if (cards->next == cards->count)
        shuffle(cards, random);
    return cards->card[cards->next++];
}
