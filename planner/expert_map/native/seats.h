// Reach `target` with few moves: each GPU frees at most one slot, and the freed replicas are seated anew.
//
// A GPU above `target` frees a slot, and an expert with too heavy replicas takes a slot from another expert. Every
// replica without a slot then needs a freed one with room for it. A slot's room is `target` less the load of the other
// slots of its GPU. Replicas are seated heaviest first. If no freed slot has room, one more GPU frees a slot: of all
// with room, the one with the lightest replica, because that replica must be seated next. This frees as few slots as
// possible: each slot covers the weights from its replica's to its room, and this is the greedy cover of a line by
// intervals. Then the search tries each slot of every GPU above `target` as the one that it frees.

enum { PASSES = 4 };  // assumed: chosen to meet the benchmark's goals for moves and time

// Adds replicas of experts that are too heavy for any GPU, in slots of the experts that stay lightest without one.
// Writes these slots to `freed`. Returns whether there are enough.
static int add_missing_replicas(Layer *layer, double target, int *freed)
{
    int *order = zeros(layer->E, sizeof(int));
    double room = target;
    argsort(layer->loads, layer->E, order);
    for (int place = 0; place < layer->S - 1; place++) room -= layer->loads[order[place]];
    free(order);
    for (int expert = 0; expert < layer->E; expert++)
        while (layer->weights[expert] > room) {
            int best = NONE;
            double least = room, most = -INFINITY;
            for (int place = 0; place < layer->G * layer->S; place++) {
                int gpu = place / layer->S, giver = (int)layer->slots[place];
                double weight = layer->counts[giver] > 1 ? layer->loads[giver] / (layer->counts[giver] - 1) : INFINITY;
                if (weight > least || holds(layer, expert, gpu) || freed[gpu] != NONE) continue;
                if (weight == least && layer->gpu_loads[gpu] <= most) continue;
                best = place, least = weight, most = layer->gpu_loads[gpu];
            }
            if (best == NONE) return 0;
            freed[best / layer->S] = best % layer->S;
            hand_over(layer, expert, best / layer->S, best % layer->S);
        }
    return 1;
}

// Returns the slot for the expert, or NONE: of the empty ones with room the one with least room; else, on GPUs that are
// not `changed`, the one with the lightest expert.
static int find_seat(const Layer *layer, double target, int expert, const int64_t *slots, const int *changed)
{
    int best = NONE;
    double weight = layer->weights[expert], least = INFINITY;
    for (int place = 0; place < layer->G * layer->S; place++) {
        int gpu = place / layer->S, is_empty = slots[place] == NONE, is_held = 0;
        double leaves = layer->weights[layer->slots[place]], room = target - layer->gpu_loads[gpu] + leaves;
        double rank = is_empty ? room - target : leaves;  // empty slots first
        if (room < weight || rank >= least || (!is_empty && (changed[gpu] || leaves >= weight))) continue;
        for (int slot = 0; slot < layer->S; slot++) is_held |= slots[gpu * layer->S + slot] == expert;
        if (is_held) continue;
        best = place;
        least = rank;
    }
    return best;
}

// Writes a map that seats every replica whose slot is freed. Returns how many more GPUs had to free a slot, or a number
// above `most` if that is not enough.
static int seat_replicas(const Layer *layer, double target, const int *heaviest_first, const int *freed, int most,
                         int64_t *slots)
{
    int num_more = 0, *waiting = zeros(layer->E, sizeof(int)), *changed = zeros(layer->G, sizeof(int));
    memcpy(slots, layer->slots, (size_t)layer->G * layer->S * sizeof(int64_t));
    for (int gpu = 0; gpu < layer->G; gpu++) {
        if (freed[gpu] == NONE) continue;
        changed[gpu] = 1;
        waiting[expert_at(layer, gpu, freed[gpu])]++;
        slots[gpu * layer->S + freed[gpu]] = NONE;
    }
    for (int number = 0; number < layer->E && num_more <= most; number++)
        for (int expert = heaviest_first[number]; waiting[expert] > 0 && num_more <= most; waiting[expert]--) {
            int place = find_seat(layer, target, expert, slots, changed);
            if (place == NONE) {
                num_more = most + 1;
                break;
            }
            if (slots[place] != NONE) {
                waiting[slots[place]]++;
                num_more++;
            }
            changed[place / layer->S] = 1;
            slots[place] = expert;
        }
    free(waiting), free(changed);
    return num_more;
}

static int lightest_slot(const Layer *layer, int gpu)
{
    int lightest = 0;
    for (int slot = 1; slot < layer->S; slot++) {
        double weight = layer->weights[expert_at(layer, gpu, slot)];
        if (weight < layer->weights[expert_at(layer, gpu, lightest)]) lightest = slot;
    }
    return lightest;
}

// Writes the experts in the order of their replicas' weights, heaviest first.
static void sort_heaviest_first(const Layer *layer, int *heaviest_first)
{
    double *negated = zeros(layer->E, sizeof(double));
    for (int expert = 0; expert < layer->E; expert++) negated[expert] = -layer->weights[expert];
    argsort(negated, layer->E, heaviest_first);
    free(negated);
}

// Changes at most one slot of each GPU so that none exceeds `target`. Returns whether it found such a map; if not, the
// layer is left in an unusable state.
static int reseat(Layer *layer, double target)
{
    int G = layer->G, S = layer->S, fewest = G, last = NONE;
    int *freed = zeros(G, sizeof(int)), *may_choose = zeros(G, sizeof(int));
    int *heaviest_first = zeros(layer->E, sizeof(int));
    int64_t *slots = zeros((size_t)G * S, sizeof(int64_t)), *best = zeros((size_t)G * S, sizeof(int64_t));
    for (int gpu = 0; gpu < G; gpu++) freed[gpu] = NONE;
    int passes = add_missing_replicas(layer, target, freed) ? PASSES : 0;
    sort_heaviest_first(layer, heaviest_first);
    for (int gpu = 0; gpu < G; gpu++) {
        may_choose[gpu] = freed[gpu] == NONE && layer->gpu_loads[gpu] > target;
        if (may_choose[gpu]) freed[gpu] = lightest_slot(layer, gpu);
    }
    for (int turn = 0; turn < passes * G * S && turn - last <= G * S; turn++) {
        int gpu = turn / S % G, slot = turn % S, was = freed[gpu];
        if (turn > 0 && (!may_choose[gpu] || slot == was)) continue;
        if (turn > 0) freed[gpu] = slot;
        int num_more = seat_replicas(layer, target, heaviest_first, freed, fewest, slots);
        if (num_more <= fewest) {  // a tie may lead to fewer later
            fewest = num_more;
            last = turn;
            memcpy(best, slots, (size_t)G * S * sizeof(int64_t));
        } else {
            freed[gpu] = was;
        }
    }
    if (last != NONE) load_map(layer, best);
    free(freed), free(may_choose), free(heaviest_first), free(slots), free(best);
    return last != NONE;
}
