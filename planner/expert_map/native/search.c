// The inner search for expert maps, compiled when Tidemill is built (hatch_build.py) and called by native.py.
//
// Plain C11: arrays by pointer, shapes as numbers, no state between calls. Numbers are doubles that are whole, and no
// steps are fused or reordered, so that every machine makes the same map.

#define EXPORT __attribute__((visibility("default")))

#include "layer.h"
#include "start.h"
#include "plain.h"
#include "search.h"
#include "solve.h"
#include "seats.h"
#include "spill.h"
#include "improve.h"
#include "bound.h"

EXPORT const char *digest(void) { return DIGEST; }

// First maps, [L][G][S]: `least` replicas of each expert, the others to the hottest.
EXPORT void pack_maps(int L, int E, int G, int S, const double *loads, int least, int64_t *slots)
{
    Layer layer = make_layer(E, G, S, 1, 1, EQUAL);
    for (int index = 0; index < L; index++) {
        layer.loads = loads + (size_t)index * E;
        pack_replicated(&layer, 0.0, least);
        keep(&layer, slots + (size_t)index * G * S);
    }
    drop(&layer);
}

// The load of each GPU, [Q][L][G], and what each node serves of each group's load, [Q][L][groups][M], of Q maps. Experts
// without load count `some_load`, so that their groups are somewhere.
EXPORT void serve(int Q, int L, int E, int G, int S, int M, int num_groups, double some_load, const double *loads,
                  const int64_t *slots, double *carried, double *served)
{
    int *counts = zeros(E, sizeof(int)), size = G * S, per_node = size / M, in_group = E / num_groups;
    for (int row = 0; row < Q * L; row++, slots += size, carried += G, served += num_groups * M) {
        memset(counts, 0, E * sizeof(int));
        for (int place = 0; place < size; place++) counts[slots[place]]++;
        for (int place = 0; place < size; place++) {
            double load = larger(loads[(size_t)(row % L) * E + slots[place]], some_load) / counts[slots[place]];
            carried[place / S] += load;
            served[slots[place] / in_group * M + place / per_node] += load;
        }
    }
    free(counts);
}

// One map with one slot of some GPUs changed so that none carries more than `enough`; returns whether that was found.
EXPORT int change_seats(int E, int G, int S, const double *loads, double enough, int64_t *slots)
{
    Layer layer = make_layer(E, G, S, 1, 1, EQUAL);
    layer.loads = loads;
    take(&layer, slots);
    int found = take_seats(&layer, enough);
    keep(&layer, slots);
    drop(&layer);
    return found;
}
