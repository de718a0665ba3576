// The inner search for expert maps, compiled when Tidemill is built (hatch_build.py) and called by native/__init__.py.
//
// Plain C11: arrays by pointer, shapes as numbers, no state between calls. Loads are doubles with whole values, and the
// compiler may neither fuse nor reorder operations, so every machine makes the same map.

#define EXPORT __attribute__((visibility("default")))

#include "layer.h"
#include "start.h"
#include "steps.h"
#include "search.h"
#include "seats.h"
#include "spill.h"
#include "bound.h"

EXPORT const char *digest(void) { return DIGEST; }

// Gives the expert a replica in another failure domain, by the step that changes GPU loads least and exposes no other
// expert. Returns whether there was one.
static int cover_expert(Layer *layer, const Rules *rules, int expert, int exposed)
{
    double least = INFINITY;
    Step best = {.other = NONE};
    for (int gpu = 0; gpu < layer->G; gpu++)
        for (int slot = 0; slot < layer->S && !holds(layer, expert, gpu); slot++) {
            int giver = expert_at(layer, gpu, slot);
            double change = fabs(layer->weights[expert] - layer->weights[giver]);
            int others_exposed = num_exposed(layer, rules, giver, NONE, NONE);
            for (int replica = 0; replica <= layer->counts[expert] && change < least; replica++) {
                Step step = {gpu, slot, NONE, 0, expert};
                if (replica < layer->counts[expert]) step.other = *replica_gpu(layer, expert, replica);
                if (!is_allowed(layer, rules, &step) || num_exposed(layer, rules, expert, step.other, gpu) >= exposed
                    || num_exposed(layer, rules, giver, gpu, step.other) > others_exposed)
                    continue;
                best = step;
                least = change;
            }
        }
    if (least == INFINITY) return 0;
    while (best.other != NONE && expert_at(layer, best.other, best.other_slot) != expert) best.other_slot++;
    make_step(layer, &best);
    return 1;
}

// Makes steps until every expert has replicas in two failure domains; returns whether that succeeded.
static int cover(Layer *layer, const Rules *rules)
{
    for (int expert = 0; expert < layer->E; expert++)
        for (int exposed; (exposed = num_exposed(layer, rules, expert, NONE, NONE)) > 0;)
            if (!cover_expert(layer, rules, expert, exposed)) return 0;
    return 1;
}

// Tries `reseat` from the map in service. Its map is kept if the best so far misses `target` or moves more slots.
static void reseat_if_cheaper(Layer *best, Layer *trial, const Rules *rules, const int64_t *start)
{
    load_map(trial, start);
    if (!reseat(trial, rules->target)) return;
    if (peak(best) > rules->target || total_price(trial, rules) < total_price(best, rules))
        load_map(best, trial->slots);
}

// Improves the maps `start`, [L][G][S], and writes them to `slots`. A layer is done when its fullest GPU's load is at
// most `target`, [L]. Writes that load to `fullest`, [L]. A layer where not every expert can be covered stays as it is.
// `loads` is [L][E], `prices` [L][E][G] or NULL, `domains` [num_partitions][G]: the failure domain of each GPU.
EXPORT void improve(int L, int E, int G, int S, int M, int split, int num_partitions, int num_kicks, int turn,
                    int may_reseat, const double *loads, const int64_t *start, const unsigned char *prices,
                    const int64_t *domains, const double *target, int64_t *slots, double *fullest)
{
    Layer best = make_layer(E, G, S, M, split), trial = make_layer(E, G, S, M, split);
    Rules rules = {.domains = domains, .num_partitions = num_partitions};
    for (int index = 0; index < L; index++, start += G * S, slots += G * S) {
        best.loads = trial.loads = loads + (size_t)index * E;
        rules.target = target[index];
        if (prices) rules.prices = prices + (size_t)index * E * G;
        load_map(&best, start);
        if (cover(&best, &rules)) {
            if (!prices && num_kicks == 0) even_out(&best, &rules, 0, G);
            descend(&best, &rules);
            if (may_reseat) reseat_if_cheaper(&best, &trial, &rules, start);
            kick(&best, &trial, &rules, num_kicks, SEED + turn);
            if (prices && peak(&best) <= rules.target) move_back(&best, &rules);
        }
        memcpy(slots, best.slots, (size_t)G * S * sizeof(int64_t));
        fullest[index] = peak(&best);
    }
    free_layer(&best), free_layer(&trial);
}

// Writes the load of each GPU in each layer, [L][G].
EXPORT void gpu_loads(int L, int E, int G, int S, int M, int split, const double *loads, const int64_t *slots,
                      double *gpu_loads)
{
    Layer layer = make_layer(E, G, S, M, split);
    for (int index = 0; index < L; index++) {
        layer.loads = loads + (size_t)index * E;
        load_map(&layer, slots + (size_t)index * G * S);
        memcpy(gpu_loads + (size_t)index * G, layer.gpu_loads, G * sizeof(double));
    }
    free_layer(&layer);
}
