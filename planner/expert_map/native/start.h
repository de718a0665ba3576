// The start of a search: the number of replicas of each expert, and a first packing of them.
//
// Replicas: each redundant slot in turn goes to the expert with the highest load / (replicas + shift), the lower number
// first among equals. Without a shift the largest replica is as small as possible. A negative shift favours experts
// with few replicas, a positive one those with many. No expert gets more than `most` replicas.
//
// Packing: the heaviest replica first, each to the emptiest GPU with a free slot. Ours skips GPUs that already hold the
// expert; EPLB's does not. EPLB's computes in float32, like the published code, because another rounding would make
// another map.
//
// Sources: github.com/deepseek-ai/EPLB; longest processing time first, R. L. Graham 1969.

static double divide(double load, double count, int as_eplb)
{
    return as_eplb ? (float)load / (float)count : load / count;
}

static void replicate(const double *loads, int E, int num_slots, int most, double shift, int least, int as_eplb,
                      int *counts)
{
    double *priorities = zeros(E, sizeof(double));
    for (int expert = 0; expert < E; expert++) {
        counts[expert] = least;
        priorities[expert] = divide(loads[expert], least + shift, as_eplb);
    }
    for (int left = num_slots - least * E; left > 0; left--) {
        int first = argmax(priorities, E);
        counts[first]++;
        priorities[first] = counts[first] < most ? divide(loads[first], counts[first] + shift, as_eplb) : -1.0;
    }
    free(priorities);
}

typedef struct {
    int G, S, *filled;  // number of occupied slots of each GPU
    const double *weights;
    double *gpu_loads;
    int64_t *slots;
} Packing;

static int is_on(const Packing *packing, int gpu, int64_t expert)
{
    int found = 0;
    for (int slot = 0; slot < packing->filled[gpu]; slot++) found |= packing->slots[gpu * packing->S + slot] == expert;
    return found;
}

// Gives the expert a slot of a full GPU that lacks it; returns the GPU. That slot's expert, the most similar in weight,
// moves to a GPU with room. Such a slot exists: no expert has more replicas than there are GPUs, and of a full GPU's S
// experts at least two are not on the GPU with room, which holds this one and at most S - 2 others.
static int make_room(Packing *packing, int expert)
{
    int S = packing->S, roomy = 0, best = NONE;
    double least = INFINITY;
    while (packing->filled[roomy] == S) roomy++;
    for (int place = 0; place < packing->G * S; place++) {
        int64_t other = packing->slots[place];
        double change = fabs(packing->weights[other] - packing->weights[expert]);
        if (packing->filled[place / S] < S || change >= least) continue;
        if (is_on(packing, place / S, expert) || is_on(packing, roomy, other)) continue;
        best = place;
        least = change;
    }
    int64_t other = packing->slots[best];
    packing->slots[roomy * S + packing->filled[roomy]++] = other;
    packing->gpu_loads[best / S] -= packing->weights[other];
    packing->gpu_loads[roomy] += packing->weights[other];
    packing->slots[best] = expert;
    return best / S;
}

// Writes a packing of these replicas, [G][S], and returns the load of its fullest GPU.
static double pack(const double *loads, const int *counts, int E, int G, int S, int as_eplb, int64_t *slots)
{
    int *order = zeros(E, sizeof(int)), *chosen = zeros(G, sizeof(int));
    double *weights = zeros(E, sizeof(double)), *negated = zeros(E, sizeof(double)), *spare = zeros(G, sizeof(double));
    Packing packing = {G, S, zeros(G, sizeof(int)), weights, zeros(G, sizeof(double)), slots};
    for (int expert = 0; expert < E; expert++) {
        weights[expert] = divide(loads[expert], counts[expert], as_eplb);
        if (!as_eplb) weights[expert] = round_down(weights[expert]);
        negated[expert] = -weights[expert];
    }
    argsort(negated, E, order);
    for (int place = 0; place < E; place++) {
        int expert = order[place], num_chosen = 0;
        for (int replica = 0; replica < counts[expert]; replica++) {
            int gpu = argmax(spare, G);
            if (spare[gpu] == -INFINITY) gpu = make_room(&packing, expert);
            else slots[gpu * S + packing.filled[gpu]++] = expert;
            packing.gpu_loads[gpu] += weights[expert];
            if (as_eplb) packing.gpu_loads[gpu] = (float)packing.gpu_loads[gpu];
            spare[gpu] = as_eplb && packing.filled[gpu] < S ? -packing.gpu_loads[gpu] : -INFINITY;
            if (!as_eplb) chosen[num_chosen++] = gpu;
        }
        for (int number = 0; number < num_chosen; number++)
            if (packing.filled[chosen[number]] < S) spare[chosen[number]] = -packing.gpu_loads[chosen[number]];
    }
    memset(packing.gpu_loads, 0, G * sizeof(double));
    for (int place = 0; place < G * S; place++)
        packing.gpu_loads[place / S] += loads[slots[place]] / counts[slots[place]];
    double fullest = packing.gpu_loads[argmax(packing.gpu_loads, G)];
    free(order), free(chosen), free(weights), free(negated), free(spare), free(packing.filled), free(packing.gpu_loads);
    return fullest;
}

// Packs every layer: writes slots, [L][G][S], and the load of each layer's fullest GPU, [L]. Each expert gets at least
// `least` replicas, or the number in `replicas`, [L][E], unless that is NULL. `as_eplb` makes the published EPLB's map.
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
