// Where searches start: how many replicas each expert gets, and a first packing of them.
//
// Replicas: one redundant slot after the other goes to the expert with the highest load / (replicas + shift), the lower
// expert first among equals. Without a shift the largest replica is as small as it can be. A negative shift favours
// experts with few replicas, a positive one those with many. No expert gets more than `most` replicas.
//
// Packing: longest first, each to the GPU that carries least so far and has a free slot. Ours also leaves out GPUs that
// hold the expert. EPLB's does not, and like the published code it decides in float32, where another rounding would make
// another map.
//
// Sources: github.com/deepseek-ai/EPLB; longest processing time first, R. L. Graham 1969.

static double quotient(double load, double count, int as_eplb) { return as_eplb ? (float)load / (float)count : load / count; }

static void replicate(const double *loads, int E, int num_slots, int most, double shift, int least, int as_eplb, int *counts)
{
    double *priorities = zeros(E, sizeof(double));
    for (int expert = 0; expert < E; expert++) {
        counts[expert] = least;
        priorities[expert] = quotient(loads[expert], least + shift, as_eplb);
    }
    for (int left = num_slots - least * E; left > 0; left--) {
        int first = largest(priorities, E);
        counts[first]++;
        priorities[first] = counts[first] < most ? quotient(loads[first], counts[first] + shift, as_eplb) : -1.0;
    }
    free(priorities);
}

typedef struct {
    int G, S, *filled;  // slots of each GPU that are taken
    const double *weights;
    double *carried;
    int64_t *slots;
} Packing;

static int is_on(const Packing *packing, int gpu, int64_t expert)
{
    int found = 0;
    for (int slot = 0; slot < packing->filled[gpu]; slot++) found |= packing->slots[gpu * packing->S + slot] == expert;
    return found;
}

// Frees a slot of a GPU that lacks the expert by passing its most similar expert on to a GPU with room; returns the GPU.
// One exists: no expert has more replicas than there are GPUs, and of a full GPU's S experts at least two are not on
// the GPU with room, which holds this one and at most S - 2 others.
static int make_room(Packing *packing, int expert)
{
    int S = packing->S, open = 0, best = NONE;
    double least = INFINITY;
    while (packing->filled[open] == S) open++;
    for (int place = 0; place < packing->G * S; place++) {
        int64_t other = packing->slots[place];
        double change = fabs(packing->weights[other] - packing->weights[expert]);
        if (packing->filled[place / S] < S || change >= least) continue;
        if (is_on(packing, place / S, expert) || is_on(packing, open, other)) continue;
        best = place;
        least = change;
    }
    int64_t other = packing->slots[best];
    packing->slots[open * S + packing->filled[open]++] = other;
    packing->carried[best / S] -= packing->weights[other];
    packing->carried[open] += packing->weights[other];
    packing->slots[best] = expert;
    return best / S;
}

// Writes a packing of these replicas, [G][S], and returns what its fullest GPU carries.
static double pack(const double *loads, const int *counts, int E, int G, int S, int as_eplb, int64_t *slots)
{
    int *order = zeros(E, sizeof(int)), *chosen = zeros(G, sizeof(int));
    double *weights = zeros(E, sizeof(double)), *falling = zeros(E, sizeof(double)), *spare = zeros(G, sizeof(double));
    Packing packing = {G, S, zeros(G, sizeof(int)), weights, zeros(G, sizeof(double)), slots};
    for (int expert = 0; expert < E; expert++) {
        weights[expert] = quotient(loads[expert], counts[expert], as_eplb);
        if (!as_eplb) weights[expert] = whole(weights[expert]);
        falling[expert] = -weights[expert];
    }
    rising(falling, E, order);
    for (int place = 0; place < E; place++) {
        int expert = order[place], num_chosen = 0;
        for (int replica = 0; replica < counts[expert]; replica++) {
            int gpu = largest(spare, G);
            if (spare[gpu] == -INFINITY) gpu = make_room(&packing, expert);
            else slots[gpu * S + packing.filled[gpu]++] = expert;
            packing.carried[gpu] += weights[expert];
            if (as_eplb) packing.carried[gpu] = (float)packing.carried[gpu];
            spare[gpu] = as_eplb && packing.filled[gpu] < S ? -packing.carried[gpu] : -INFINITY;
            if (!as_eplb) chosen[num_chosen++] = gpu;
        }
        for (int number = 0; number < num_chosen; number++)
            if (packing.filled[chosen[number]] < S) spare[chosen[number]] = -packing.carried[chosen[number]];
    }
    memset(packing.carried, 0, G * sizeof(double));
    for (int place = 0; place < G * S; place++) packing.carried[place / S] += loads[slots[place]] / counts[slots[place]];
    double fullest = packing.carried[largest(packing.carried, G)];
    free(order), free(chosen), free(weights), free(falling), free(spare), free(packing.filled), free(packing.carried);
    return fullest;
}

// Packs every layer with `least` replicas of each expert or more, or with these `replicas`, [L][E] or NULL: slots,
// [L][G][S], and what the fullest GPU of each layer carries, [L]. `as_eplb` makes it the map of the published EPLB.
EXPORT void pack_maps(int L, int E, int G, int S, const double *loads, double shift, int least, int as_eplb,
                      const int64_t *replicas, int64_t *slots, double *fullest)
{
    int *counts = zeros(E, sizeof(int));
    for (int index = 0; index < L; index++, loads += E, slots += G * S) {
        if (!replicas) replicate(loads, E, G * S, as_eplb ? G * S : G, shift, least, as_eplb, counts);
        for (int expert = 0; replicas && expert < E; expert++) counts[expert] = (int)*replicas++;
        fullest[index] = pack(loads, counts, E, G, S, as_eplb, slots);
    }
    free(counts);
}
