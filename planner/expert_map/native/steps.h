// The best step that relieves a GPU: of all swaps, or of all hand-overs, the one that gains most.
//
// A step gains what the GPUs that it touches carry less than the hot one did, in any window. Constraints:
//
//     prices      what it costs that an expert is on a GPU: nothing where the map in service has it, BARRED where it may
//                 not be. Gain counts per price, and only down to `enough`
//     domains     no expert may come to have all its replicas in one failure domain
//
// With equal shares most steps are pruned without being evaluated. An expert helps in the place of another only where it is lighter,
// and not by more than the emptiest GPU may still take: of experts in the order of their weights, those are a few in a
// row. A hand-over makes all other replicas of the giver heavier: the two fullest GPUs that hold one decide for all.

static const double FREE = 0.2;  // slots that a step without cost counts as; assumed
static const double HALF = 0.5;  // of a token
enum { BARRED = 255 };

typedef struct {
    const unsigned char *prices;    // [E][G]; NULL: anything goes anywhere
    const int64_t *domains;         // [P][G], the domain of each GPU
    int num_partitions;             // P
    double enough;                  // what the fullest GPU may carry
} Rules;

typedef struct { int gpu, slot, other, other_slot, comer; } Step;  // `other` NONE: a hand-over to `comer`

static void make_step(Layer *layer, const Step *step)
{
    if (step->other == NONE) hand_over(layer, step->comer, step->gpu, step->slot);
    else swap(layer, step->gpu, step->slot, step->other, step->other_slot);
}

// In how many partitions all replicas of the expert would be in one domain, after one moved as in `part`.
static int num_exposed(const Layer *layer, const Rules *rules, int expert, int leaves, int enters)
{
    int exposed = 0;
    for (int partition = 0; partition < rules->num_partitions; partition++) {
        const int64_t *domains = rules->domains + partition * layer->G;
        int64_t first = enters == NONE ? NONE : domains[enters];
        int apart = 0;
        for (int replica = 0; replica < layer->counts[expert]; replica++) {
            int home = *home_of(layer, expert, replica);
            if (home == leaves) continue;
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

static int fits(const Layer *layer, const Rules *rules, const Step *step)
{
    int leaving = at(layer, step->gpu, step->slot);
    if (!may_enter(layer, rules, step->comer, step->gpu)) return 0;
    return step->other == NONE ? layer->counts[leaving] > 1 : may_enter(layer, rules, leaving, step->other);
}

static int stays_covered(const Layer *layer, const Rules *rules, const Step *step)
{
    if (!rules->num_partitions) return 1;
    return !num_exposed(layer, rules, at(layer, step->gpu, step->slot), step->gpu, step->other)
        && !num_exposed(layer, rules, step->comer, step->other, step->gpu);
}

static int cost_of(const Layer *layer, const Rules *rules, const Step *step)
{
    int leaving = at(layer, step->gpu, step->slot);
    int cost = price(layer, rules, step->comer, step->gpu) - price(layer, rules, leaving, step->gpu);
    if (step->other == NONE) return cost;
    return cost + price(layer, rules, leaving, step->other) - price(layer, rules, step->comer, step->other);
}

static int anything_goes(const Layer *layer, const Rules *rules)
{
    return layer->W == 1 && layer->split == EQUAL && !rules->prices && !rules->num_partitions;
}

// What a replica of each of the two experts of a hand-over carries, now and then, on any GPU: for equal shares.
typedef struct { double leaving, comer, leaving_then, comer_then; } Parts;

// What the GPU carries after the step.
static double load_after(const Layer *layer, int window, int gpu, const Step *step, const Parts *equal)
{
    int leaving = at(layer, step->gpu, step->slot), comer = step->comer;
    double load = layer->carried[window * layer->G + gpu];
    if (holds(layer, leaving, gpu)) load -= equal ? equal->leaving : part(layer, window, leaving, gpu, NONE, NONE);
    if (holds(layer, comer, gpu)) load -= equal ? equal->comer : part(layer, window, comer, gpu, NONE, NONE);
    if (gpu == step->other || (gpu != step->gpu && holds(layer, leaving, gpu)))
        load += equal ? equal->leaving_then : part(layer, window, leaving, gpu, step->gpu, step->other);
    if (gpu == step->gpu || (gpu != step->other && holds(layer, comer, gpu)))
        load += equal ? equal->comer_then : part(layer, window, comer, gpu, step->other, step->gpu);
    return load;
}

// The most that a GPU which the step touches carries after it, in one window; `limit` or more: too much.
static double peak_in(const Layer *layer, int window, const Step *step, double limit)
{
    int leaving = at(layer, step->gpu, step->slot), comer = step->comer, num_leaving = layer->counts[leaving];
    const double *weights = layer->weights + window * layer->E;
    Parts parts, *equal = layer->split == EQUAL ? &parts : NULL;
    if (equal && step->other != NONE) {  // of other replicas nothing changes
        const double *carried = layer->carried + window * layer->G;
        double moved = weights[leaving] - weights[comer];
        return larger(carried[step->gpu] - moved, carried[step->other] + moved);
    }
    if (equal)
        parts = (Parts){weights[leaving], weights[comer], part(layer, window, leaving, NONE, step->gpu, NONE),
                        part(layer, window, comer, NONE, NONE, step->gpu)};
    double most = load_after(layer, window, step->gpu, step, equal);
    for (int number = 0; number < num_leaving + layer->counts[comer] && most < limit; number++) {
        int is_leaving = number < num_leaving;
        int home = is_leaving ? *home_of(layer, leaving, number) : *home_of(layer, comer, number - num_leaving);
        if (home != step->gpu && (is_leaving || !holds(layer, leaving, home)))
            most = larger(most, load_after(layer, window, home, step, equal));
    }
    return most;
}

static double peak_after(const Layer *layer, const Step *step, double limit)
{
    double most = 0.0;
    for (int window = 0; window < layer->W && most < limit; window++) most = larger(most, peak_in(layer, window, step, limit));
    return most;
}

// The best step so far that relieves the hot GPU in the worst window, where it carries `top`. Of those that gain as much
// it is the first in the order of `comes_first`, however they are looked for.
typedef struct { int worst, hot; double top, gain; Step step; } Best;

static int comes_first(const Step *one, const Step *other)
{
    if ((one->other == NONE) != (other->other == NONE)) return other->other == NONE;  // swaps are first
    if (one->gpu != other->gpu) return one->gpu < other->gpu;
    if (one->other != other->other) return one->other < other->other;
    if (one->slot != other->slot) return one->slot < other->slot;
    return one->other_slot != other->other_slot ? one->other_slot < other->other_slot : one->comer < other->comer;
}

// What the fullest GPU has to come below so that a step may gain as much as the best. Loads are whole: half is nothing.
static double limit_of(const Rules *rules, const Best *best)
{
    return best->gain > 0 ? best->top - best->gain * (rules->prices ? FREE : 1.0) + HALF : best->top;
}

// How much less than `top` the GPUs that the step touches carry after it, per price; 0 if it is not better than the best.
static double gain_of(const Layer *layer, const Rules *rules, const Step *step, const Best *best)
{
    if (!fits(layer, rules, step)) return 0.0;
    double cost = rules->prices ? larger(cost_of(layer, rules, step), FREE) : 1.0;
    double floor = rules->prices ? rules->enough : 0.0, limit = best->top - best->gain * cost;
    if (best->gain > 0 && comes_first(step, &best->step)) limit += HALF;
    if (limit <= floor) return 0.0;
    double most = peak_after(layer, step, limit);
    return most < limit && stays_covered(layer, rules, step) ? (best->top - larger(most, floor)) / cost : 0.0;
}

static void keep_if_better(const Step *step, double gain, Best *best)
{
    if (gain <= 0 || gain < best->gain || (gain == best->gain && !comes_first(step, &best->step))) return;
    best->gain = gain;
    best->step = *step;
}

// Looks at the swap of a slot of the hot GPU with one of another GPU; `fuller` is the load of the fuller of both then.
static void consider(const Layer *layer, const Rules *rules, int slot, int gpu, int other, double fuller, Best *best)
{
    int leaving = at(layer, best->hot, slot), coming = at(layer, gpu, other);
    if (holds(layer, leaving, gpu) || holds(layer, coming, best->hot)) return;
    Step step = {best->hot, slot, gpu, other, coming};
    keep_if_better(&step, anything_goes(layer, rules) ? best->top - fuller : gain_of(layer, rules, &step, best), best);
}

static int any_within(const double *numbers, int size, double low, double high)
{
    int found = 0;
    for (int place = 0; place < size; place++) found |= (numbers[place] > low) & (numbers[place] < high);
    return found;
}

// Looks for a better swap of a slot of the hot GPU with one of this GPU.
static void find_swap_with(const Layer *layer, const Rules *rules, int gpu, Best *best)
{
    const int S = layer->S, is_equal = layer->split == EQUAL;
    const double *there = layer->weights_there + best->worst * layer->G * S, top = best->top;
    double carried = layer->carried[best->worst * layer->G + gpu], limit = limit_of(rules, best);
    if (is_equal ? top + carried >= 2 * limit : carried >= top) return;  // one has at least half of both
    for (int slot = 0; slot < S; slot++) {
        double leaves = there[best->hot * S + slot];
        if (is_equal && !any_within(there + gpu * S, S, leaves + carried - limit, leaves + limit - top)) continue;
        for (int other = 0; other < S; other++) {
            double moved = leaves - there[gpu * S + other], fuller = larger(top - moved, carried + moved);
            if (is_equal && fuller >= limit) continue;
            consider(layer, rules, slot, gpu, other, fuller, best);
            limit = limit_of(rules, best);
        }
    }
}

// Looks for a better swap of a slot of the hot GPU with one of any other: with the emptiest GPU first, as its best swap
// leaves few experts to look at.
static void find_swap(const Layer *layer, const Rules *rules, Best *best)
{
    const double *carried = layer->carried + best->worst * layer->G, *weights = layer->weights + best->worst * layer->E;
    const double *ranked_weights = layer->ranked_weights + best->worst * layer->E;
    const int *ranked = layer->ranked + best->worst * layer->E, is_equal = layer->split == EQUAL;
    const int emptiest = smallest(carried, layer->G);
    if (is_equal) find_swap_with(layer, rules, emptiest, best);
    for (int slot = 0; slot < layer->S; slot++) {
        double limit = limit_of(rules, best), leaves = weights[at(layer, best->hot, slot)];
        int place = is_equal ? first_from(ranked_weights, layer->E, leaves - (best->top - limit)) : layer->E;
        while (place-- > 0) {
            double moved = leaves - ranked_weights[place];
            if (is_equal && carried[emptiest] + moved >= limit) break;
            int coming = ranked[place];
            if (holds(layer, coming, best->hot)) continue;
            for (int replica = 0; replica < layer->counts[coming]; replica++) {
                int gpu = *home_of(layer, coming, replica), other = 0;
                double fuller = larger(best->top - moved, carried[gpu] + moved);
                if (is_equal ? fuller >= limit : carried[gpu] >= best->top) continue;
                while (at(layer, gpu, other) != coming) other++;
                consider(layer, rules, slot, gpu, other, fuller, best);
                limit = limit_of(rules, best);
            }
        }
    }
}

// The two fullest GPUs with replicas of an expert, and what they carry once it has lost one elsewhere.
typedef struct { int gpus[2]; double carried[2]; } Fullest;

static Fullest fullest_homes(const Layer *layer, int window, int giver)
{
    const double *carried = layer->carried + window * layer->G;
    int place = window * layer->E + giver, num_homes = layer->counts[giver];
    double heavier = whole(layer->loads[place] / (num_homes - 1)) - layer->weights[place];
    Fullest found = {{NONE, NONE}, {-INFINITY, -INFINITY}};
    for (int replica = 0; replica < num_homes; replica++) {
        int gpu = *home_of(layer, giver, replica);
        double then = carried[gpu] + heavier;
        if (gpu == found.gpus[0] || then <= found.carried[1]) continue;
        int is_first = then > found.carried[0];
        if (is_first) found.gpus[1] = found.gpus[0], found.carried[1] = found.carried[0];
        found.gpus[!is_first] = gpu;
        found.carried[!is_first] = then;
    }
    return found;
}

// Looks for a better hand-over of a slot to an expert of the hot GPU, or of a slot of the hot GPU to any expert.
static void find_hand_over(const Layer *layer, const Rules *rules, Best *best)
{
    const int worst = best->worst, hot = best->hot, is_equal = layer->split == EQUAL;
    const double *carried = layer->carried + worst * layer->G, *weights = layer->weights + worst * layer->E;
    const double *if_more = layer->weights_if_more + worst * layer->E, top = best->top;
    double limit = limit_of(rules, best), lightest = INFINITY, most_lighter = 0.0;
    for (int number = 0; number < layer->S; number++) {
        int comer = at(layer, hot, number);
        lightest = smaller(lightest, if_more[comer]);
        most_lighter = larger(most_lighter, weights[comer] - if_more[comer]);
    }
    for (int giver = 0; giver < layer->E; giver++) {
        if (layer->counts[giver] == 1) continue;
        Fullest fullest = fullest_homes(layer, worst, giver);
        for (int replica = 0; replica < layer->counts[giver]; replica++) {
            int gpu = *home_of(layer, giver, replica), slot = 0, is_hot = gpu == hot, second = gpu == fullest.gpus[0];
            double left = carried[gpu] - weights[giver], elsewhere = fullest.carried[second];
            if (is_equal && left + (is_hot ? 0.0 : lightest) >= limit) continue;
            if (is_equal && !is_hot && elsewhere - most_lighter >= limit) continue;
            // What is too much elsewhere gets less only by an expert that is there as well.
            int is_short = !is_hot || (is_equal && elsewhere >= limit), from = is_hot ? fullest.gpus[second] : hot;
            while (at(layer, gpu, slot) != giver) slot++;
            for (int number = 0; number < (is_short ? layer->S : layer->E); number++) {
                int comer = is_short ? at(layer, from, number) : number;
                double then = if_more[comer], lighter = weights[comer] - then;
                if (is_equal && ((left + then >= limit) | (elsewhere - lighter >= limit))) continue;
                if (is_equal && !is_hot && top - lighter >= limit) continue;
                Step step = {gpu, slot, NONE, is_hot ? 0 : number, comer};
                keep_if_better(&step, gain_of(layer, rules, &step, best), best);
                limit = limit_of(rules, best);
            }
        }
    }
}
