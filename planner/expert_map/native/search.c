// The inner search for expert maps, compiled when Tidemill is built (hatch_build.py) and called by native/__init__.py.
//
// Plain C11: arrays by pointer, shapes as numbers, no state between calls. Numbers are doubles that are whole, and no
// steps are fused or reordered, so that every machine makes the same map.

#define EXPORT __attribute__((visibility("default")))

#include "layer.h"
#include "start.h"
#include "steps.h"
#include "search.h"
#include "seats.h"
#include "spill.h"
#include "bound.h"

EXPORT const char *digest(void) { return DIGEST; }

// Covers the expert by the step that uncovers nobody and changes GPU loads least; returns whether there was one.
static int cover_one(Layer *layer, const Rules *rules, int expert, int exposed)
{
    double least = INFINITY;
    Step best = {.other = NONE};
    for (int gpu = 0; gpu < layer->G; gpu++)
        for (int slot = 0; slot < layer->S && !holds(layer, expert, gpu); slot++) {
            int giver = at(layer, gpu, slot);
            double change = fabs(layer->weights[expert] - layer->weights[giver]);
            int others_exposed = num_exposed(layer, rules, giver, NONE, NONE);
            for (int replica = 0; replica <= layer->counts[expert] && change < least; replica++) {
                Step step = {gpu, slot, NONE, 0, expert};
                if (replica < layer->counts[expert]) step.other = *home_of(layer, expert, replica);
                if (!fits(layer, rules, &step) || num_exposed(layer, rules, expert, step.other, gpu) >= exposed
                    || num_exposed(layer, rules, giver, gpu, step.other) > others_exposed)
                    continue;
                best = step;
                least = change;
            }
        }
    if (least == INFINITY) return 0;
    while (best.other != NONE && at(layer, best.other, best.other_slot) != expert) best.other_slot++;
    make_step(layer, &best);
    return 1;
}

// Exchanges or hands over slots until every expert is covered; returns whether that succeeded.
static int cover(Layer *layer, const Rules *rules)
{
    for (int expert = 0; expert < layer->E; expert++)
        for (int exposed; (exposed = num_exposed(layer, rules, expert, NONE, NONE)) > 0;)
            if (!cover_one(layer, rules, expert, exposed)) return 0;
    return 1;
}

// Tries the other way from the map in service, and keeps it if it is shorter.
static void reseat_if_fewer(Layer *best, Layer *trial, const Rules *rules, const int64_t *start)
{
    take(trial, start);
    if (!take_seats(trial, rules->enough)) return;
    if (peak(best) > rules->enough || total_price(trial, rules) < total_price(best, rules)) take(best, trial->slots);
}

// Improves maps `start`, [L][G][S], and writes them to `slots`, until the fullest GPU of a layer carries `enough`, [L].
// `fullest` gets what it carries, [L]. A layer in which not every expert can be covered stays as it is. Loads are [L][W][E], `prices` [L][E][G] or NULL.
// `num_partitions` of the GPUs into domains, [P][G].
EXPORT void improve(int L, int E, int G, int S, int W, int M, int split, int num_partitions, int num_kicks, int turn,
                    int may_reseat, const double *loads, const int64_t *start, const unsigned char *prices,
                    const int64_t *domains, const double *enough, int64_t *slots, double *fullest)
{
    Layer best = make_layer(E, G, S, W, M, split), trial = make_layer(E, G, S, W, M, split);
    Rules rules = {.domains = domains, .num_partitions = num_partitions};
    for (int index = 0; index < L; index++, start += G * S, slots += G * S) {
        best.loads = trial.loads = loads + (size_t)index * W * E;
        rules.enough = enough[index];
        if (prices) rules.prices = prices + (size_t)index * E * G;
        take(&best, start);
        if (cover(&best, &rules)) {
            if (W == 1 && !prices && num_kicks == 0) even_out(&best, &rules, 0, G);
            descend(&best, &rules);
            if (may_reseat) reseat_if_fewer(&best, &trial, &rules, start);
            kick_on(&best, &trial, &rules, num_kicks, SEED + turn);
            if (prices && peak(&best) <= rules.enough) undo(&best, &rules);
        }
        memcpy(slots, best.slots, (size_t)G * S * sizeof(int64_t));
        fullest[index] = peak(&best);
    }
    drop(&best), drop(&trial);
}

// What each GPU carries in each layer, [L][G].
EXPORT void carry_all(int L, int E, int G, int S, int M, int split, const double *loads, const int64_t *slots,
                      double *carried)
{
    Layer layer = make_layer(E, G, S, 1, M, split);
    for (int index = 0; index < L; index++) {
        layer.loads = loads + (size_t)index * E;
        take(&layer, slots + (size_t)index * G * S);
        memcpy(carried + (size_t)index * G, layer.carried, G * sizeof(double));
    }
    drop(&layer);
}
