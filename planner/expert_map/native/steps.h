// Find the best step that relieves the hot GPU: of all swaps, or of all hand-overs, the one that gains most.
//
// The gain of a step is the hot GPU's load before it, less the highest load afterwards of any GPU that it touches.
// Constraints:
//
//     prices      the price of an expert on a GPU: 0 where the map in service has it, BARRED where it may not be. Gain
//                 is divided by price, and gain below `target` does not count
//     domains     no expert may have all its replicas in one failure domain
//
// With equal shares most steps are pruned unevaluated. A swap helps only if the incoming expert is lighter, and by no
// more than the emptiest GPU can take. In the order of weights these experts are a few neighbours. A hand-over makes
// all other replicas of the giver heavier, so the two fullest GPUs that hold the giver decide for all.

static const double MIN_PRICE = 0.2;  // that a step without a price counts as, in slots; assumed
static const double HALF = 0.5;       // a token
enum { BARRED = 255 };

typedef struct {
    const unsigned char *prices;    // [E][G]; NULL: any expert may go anywhere
    const int64_t *domains;         // [P][G], the domain of each GPU
    int num_partitions;             // P
    double target;                  // load that the fullest GPU may have
} Rules;

typedef struct { int gpu, slot, other, other_slot, incoming; } Step;  // `other` NONE: a hand-over to `incoming`

static void make_step(Layer *layer, const Step *step)
{
    if (step->other == NONE) hand_over(layer, step->incoming, step->gpu, step->slot);
    else swap(layer, step->gpu, step->slot, step->other, step->other_slot);
}

// Returns in how many partitions all replicas of the expert are in one domain, after a move as in `replica_load`.
static int num_exposed(const Layer *layer, const Rules *rules, int expert, int from, int to)
{
    int exposed = 0;
    for (int partition = 0; partition < rules->num_partitions; partition++) {
        const int64_t *domains = rules->domains + partition * layer->G;
        int64_t first = to == NONE ? NONE : domains[to];
        int apart = 0;
        for (int replica = 0; replica < layer->counts[expert]; replica++) {
            int home = *replica_gpu(layer, expert, replica);
            if (home == from) continue;
            apart |= first != NONE && domains[home] != first;
            first = domains[home];
        }
        exposed += !apart;
    }
    return exposed;
}

static int price(const Layer *layer, const Rules *rules, int expert, int gpu)
{
    return rules->prices ? rules->prices[expert * layer->G + gpu] : 0;
}

static int may_enter(const Layer *layer, const Rules *rules, int expert, int gpu)
{
    return !holds(layer, expert, gpu) && price(layer, rules, expert, gpu) < BARRED;
}

static int is_allowed(const Layer *layer, const Rules *rules, const Step *step)
{
    int outgoing = expert_at(layer, step->gpu, step->slot);
    if (!may_enter(layer, rules, step->incoming, step->gpu)) return 0;
    return step->other == NONE ? layer->counts[outgoing] > 1 : may_enter(layer, rules, outgoing, step->other);
}

static int stays_covered(const Layer *layer, const Rules *rules, const Step *step)
{
    if (!rules->num_partitions) return 1;
    return !num_exposed(layer, rules, expert_at(layer, step->gpu, step->slot), step->gpu, step->other)
        && !num_exposed(layer, rules, step->incoming, step->other, step->gpu);
}

static int price_of_step(const Layer *layer, const Rules *rules, const Step *step)
{
    int outgoing = expert_at(layer, step->gpu, step->slot);
    int cost = price(layer, rules, step->incoming, step->gpu) - price(layer, rules, outgoing, step->gpu);
    if (step->other == NONE) return cost;
    return cost + price(layer, rules, outgoing, step->other) - price(layer, rules, step->incoming, step->other);
}

static int is_unconstrained(const Layer *layer, const Rules *rules)
{
    return layer->split == EQUAL && !rules->prices && !rules->num_partitions;
}

// With equal shares: the weights of a hand-over's two experts, before and after it.
typedef struct { double outgoing, incoming, outgoing_then, incoming_then; } ReplicaLoads;

// Returns the GPU's load after the step.
static double load_after(const Layer *layer, int gpu, const Step *step, const ReplicaLoads *equal)
{
    int outgoing = expert_at(layer, step->gpu, step->slot), incoming = step->incoming;
    double load = layer->gpu_loads[gpu];
    if (holds(layer, outgoing, gpu))
        load -= equal ? equal->outgoing : replica_load(layer, outgoing, gpu, NONE, NONE);
    if (holds(layer, incoming, gpu))
        load -= equal ? equal->incoming : replica_load(layer, incoming, gpu, NONE, NONE);
    if (gpu == step->other || (gpu != step->gpu && holds(layer, outgoing, gpu)))
        load += equal ? equal->outgoing_then : replica_load(layer, outgoing, gpu, step->gpu, step->other);
    if (gpu == step->gpu || (gpu != step->other && holds(layer, incoming, gpu)))
        load += equal ? equal->incoming_then : replica_load(layer, incoming, gpu, step->other, step->gpu);
    return load;
}

// Returns the highest load after the step of the GPUs that it touches. It stops at `limit`.
static double peak_after(const Layer *layer, const Step *step, double limit)
{
    int outgoing = expert_at(layer, step->gpu, step->slot), incoming = step->incoming;
    int num_outgoing = layer->counts[outgoing];
    const double *weights = layer->weights;
    ReplicaLoads parts, *equal = layer->split == EQUAL ? &parts : NULL;
    if (equal && step->other != NONE) {  // a swap touches only these two GPUs
        double moved = weights[outgoing] - weights[incoming];
        return max(layer->gpu_loads[step->gpu] - moved, layer->gpu_loads[step->other] + moved);
    }
    if (equal)
        parts = (ReplicaLoads){weights[outgoing], weights[incoming],
                               replica_load(layer, outgoing, NONE, step->gpu, NONE),
                               replica_load(layer, incoming, NONE, NONE, step->gpu)};
    double most = load_after(layer, step->gpu, step, equal);
    for (int number = 0; number < num_outgoing + layer->counts[incoming] && most < limit; number++) {
        int is_outgoing = number < num_outgoing;
        int home =
            is_outgoing ? *replica_gpu(layer, outgoing, number) : *replica_gpu(layer, incoming, number - num_outgoing);
        if (home != step->gpu && (is_outgoing || !holds(layer, outgoing, home)))
            most = max(most, load_after(layer, home, step, equal));
    }
    return most;
}

// The best step so far for the hot GPU, whose load is `top`. Of steps with equal gain it is the first by `comes_first`,
// whatever the order of the search.
typedef struct { int hot; double top, gain; Step step; } Best;

static int comes_first(const Step *one, const Step *other)
{
    if ((one->other == NONE) != (other->other == NONE)) return other->other == NONE;  // swaps are first
    if (one->gpu != other->gpu) return one->gpu < other->gpu;
    if (one->other != other->other) return one->other < other->other;
    if (one->slot != other->slot) return one->slot < other->slot;
    return one->other_slot != other->other_slot ? one->other_slot < other->other_slot : one->incoming < other->incoming;
}

// Returns the load that a step must stay below to gain as much as the best. Loads are whole, so HALF decides ties only.
static double load_to_beat(const Rules *rules, const Best *best)
{
    return best->gain > 0 ? best->top - best->gain * (rules->prices ? MIN_PRICE : 1.0) + HALF : best->top;
}

// Returns the gain of the step per price, or 0 if it is not better than the best.
static double compute_gain(const Layer *layer, const Rules *rules, const Step *step, const Best *best)
{
    if (!is_allowed(layer, rules, step)) return 0.0;
    double cost = rules->prices ? max(price_of_step(layer, rules, step), MIN_PRICE) : 1.0;
    double floor = rules->prices ? rules->target : 0.0, limit = best->top - best->gain * cost;
    if (best->gain > 0 && comes_first(step, &best->step)) limit += HALF;
    if (limit <= floor) return 0.0;
    double most = peak_after(layer, step, limit);
    return most < limit && stays_covered(layer, rules, step) ? (best->top - max(most, floor)) / cost : 0.0;
}

static void keep_if_better(const Step *step, double gain, Best *best)
{
    if (gain <= 0 || gain < best->gain || (gain == best->gain && !comes_first(step, &best->step))) return;
    best->gain = gain;
    best->step = *step;
}

// Keeps the swap of a slot of the hot GPU with one of another GPU if it is better. `fuller` is the higher load of the
// two GPUs afterwards.
static void try_swap(const Layer *layer, const Rules *rules, int slot, int gpu, int other, double fuller, Best *best)
{
    int outgoing = expert_at(layer, best->hot, slot), incoming = expert_at(layer, gpu, other);
    if (holds(layer, outgoing, gpu) || holds(layer, incoming, best->hot)) return;
    Step step = {best->hot, slot, gpu, other, incoming};
    double gain = is_unconstrained(layer, rules) ? best->top - fuller : compute_gain(layer, rules, &step, best);
    keep_if_better(&step, gain, best);
}

static int has_any_between(const double *numbers, int size, double low, double high)
{
    int found = 0;
    for (int place = 0; place < size; place++) found |= (numbers[place] > low) & (numbers[place] < high);
    return found;
}

// Finds a better swap between the hot GPU and this one.
static void find_swap_with(const Layer *layer, const Rules *rules, int gpu, Best *best)
{
    const int S = layer->S, is_equal = layer->split == EQUAL;
    const double *slot_weights = layer->slot_weights, top = best->top;
    double load = layer->gpu_loads[gpu], limit = load_to_beat(rules, best);
    if (is_equal ? top + load >= 2 * limit : load >= top) return;  // one of them has at least half of the sum
    for (int slot = 0; slot < S; slot++) {
        double leaves = slot_weights[best->hot * S + slot];
        double low = leaves + load - limit, high = leaves + limit - top;
        if (is_equal && !has_any_between(slot_weights + gpu * S, S, low, high)) continue;
        for (int other = 0; other < S; other++) {
            double moved = leaves - slot_weights[gpu * S + other], fuller = max(top - moved, load + moved);
            if (is_equal && fuller >= limit) continue;
            try_swap(layer, rules, slot, gpu, other, fuller, best);
            limit = load_to_beat(rules, best);
        }
    }
}

// Finds a better swap between the hot GPU and any other. It tries the emptiest GPU first: after its best swap few
// experts are left to try.
static void find_swap(const Layer *layer, const Rules *rules, Best *best)
{
    const double *gpu_loads = layer->gpu_loads;
    const double *weights = layer->weights, *sorted_weights = layer->sorted_weights;
    const int *by_weight = layer->by_weight, is_equal = layer->split == EQUAL;
    const int emptiest = argmin(gpu_loads, layer->G);
    if (is_equal) find_swap_with(layer, rules, emptiest, best);
    for (int slot = 0; slot < layer->S; slot++) {
        double limit = load_to_beat(rules, best), leaves = weights[expert_at(layer, best->hot, slot)];
        int place = is_equal ? lower_bound(sorted_weights, layer->E, leaves - (best->top - limit)) : layer->E;
        while (place-- > 0) {
            double moved = leaves - sorted_weights[place];
            if (is_equal && gpu_loads[emptiest] + moved >= limit) break;
            int incoming = by_weight[place];
            if (holds(layer, incoming, best->hot)) continue;
            for (int replica = 0; replica < layer->counts[incoming]; replica++) {
                int gpu = *replica_gpu(layer, incoming, replica), other = 0;
                double fuller = max(best->top - moved, gpu_loads[gpu] + moved);
                if (is_equal ? fuller >= limit : gpu_loads[gpu] >= best->top) continue;
                while (expert_at(layer, gpu, other) != incoming) other++;
                try_swap(layer, rules, slot, gpu, other, fuller, best);
                limit = load_to_beat(rules, best);
            }
        }
    }
}

// The two fullest GPUs with replicas of an expert, and their loads after it lost a replica on another GPU.
typedef struct { int gpus[2]; double gpu_loads[2]; } Fullest;

static Fullest find_fullest_homes(const Layer *layer, int giver)
{
    const double *gpu_loads = layer->gpu_loads;
    int num_homes = layer->counts[giver];
    double heavier = round_down(layer->loads[giver] / (num_homes - 1)) - layer->weights[giver];
    Fullest found = {{NONE, NONE}, {-INFINITY, -INFINITY}};
    for (int replica = 0; replica < num_homes; replica++) {
        int gpu = *replica_gpu(layer, giver, replica);
        double then = gpu_loads[gpu] + heavier;
        if (gpu == found.gpus[0] || then <= found.gpu_loads[1]) continue;
        int is_first = then > found.gpu_loads[0];
        if (is_first) found.gpus[1] = found.gpus[0], found.gpu_loads[1] = found.gpu_loads[0];
        found.gpus[!is_first] = gpu;
        found.gpu_loads[!is_first] = then;
    }
    return found;
}

// Finds a better hand-over of any slot to an expert of the hot GPU, or of a slot of the hot GPU to any expert.
static void find_hand_over(const Layer *layer, const Rules *rules, Best *best)
{
    const int hot = best->hot, is_equal = layer->split == EQUAL;
    const double *gpu_loads = layer->gpu_loads, *weights = layer->weights, *next_weights = layer->next_weights;
    const double top = best->top;
    double limit = load_to_beat(rules, best), lightest = INFINITY, most_lighter = 0.0;
    for (int number = 0; number < layer->S; number++) {
        int incoming = expert_at(layer, hot, number);
        lightest = min(lightest, next_weights[incoming]);
        most_lighter = max(most_lighter, weights[incoming] - next_weights[incoming]);
    }
    for (int giver = 0; giver < layer->E; giver++) {
        if (layer->counts[giver] == 1) continue;
        Fullest fullest = find_fullest_homes(layer, giver);
        for (int replica = 0; replica < layer->counts[giver]; replica++) {
            int gpu = *replica_gpu(layer, giver, replica), slot = 0;
            int is_hot = gpu == hot, second = gpu == fullest.gpus[0];
            double left = gpu_loads[gpu] - weights[giver], elsewhere = fullest.gpu_loads[second];
            if (is_equal && left + (is_hot ? 0.0 : lightest) >= limit) continue;
            if (is_equal && !is_hot && elsewhere - most_lighter >= limit) continue;
            // Another GPU that is too full gets relief only if the new replica's expert is on it as well.
            int is_short = !is_hot || (is_equal && elsewhere >= limit), source = is_hot ? fullest.gpus[second] : hot;
            while (expert_at(layer, gpu, slot) != giver) slot++;
            for (int number = 0; number < (is_short ? layer->S : layer->E); number++) {
                int incoming = is_short ? expert_at(layer, source, number) : number;
                double then = next_weights[incoming], lighter = weights[incoming] - then;
                if (is_equal && ((left + then >= limit) | (elsewhere - lighter >= limit))) continue;
                if (is_equal && !is_hot && top - lighter >= limit) continue;
                Step step = {gpu, slot, NONE, is_hot ? 0 : number, incoming};
                keep_if_better(&step, compute_gain(layer, rules, &step, best), best);
                limit = load_to_beat(rules, best);
            }
        }
    }
}
