// One layer's map while it is being made: what is where, and the two steps that everything is made of.
//
//     swap        two slots on two GPUs exchange their experts
//     hand over   a slot passes from an expert with several replicas to another: the replicas of the one get heavier,
//                 those of the other lighter
//
// Invariants after every step: no GPU holds an expert twice, unless it did at first; a weight is what a replica carries, rounded down to a whole
// number; `carried` is the sum of a GPU's. Whole numbers keep sums exact however long the chain of steps is.
//
// Tokens come from all GPUs alike and split equally among replicas, or by one of two rules that look at places. A token's
// replica is
//     LOCAL_FIRST      one on its own GPU if there is one, else one on its own node, else any; of several of those, each
//                      equally often
//     FIRST_ON_NODE    one on its own GPU if there is one; else, if its node has replicas and others have some too, the
//                      first on its node; else any, each equally often
//
// Of an expert with load w, R replicas and k of them on a node of p of the G GPUs, a replica on that node carries under
// LOCAL_FIRST
//
//     w / G x (p / k + p x nodes without a replica / R)
//
// which is w / R wherever nodes with a replica have equally many. A GPU that holds the expert keeps its own tokens and
// takes fewer of its neighbours', so that own GPU first changes no sum. Under FIRST_ON_NODE it does: unless all R are on
// the node, where each carries w / R, the others there carry
//
//     w / G x (1 + p x nodes without a replica / R)        and the first p - k more parts of w / G
//
// Of the bounds for equal shares these hold for both rules: the mean, the largest replica, which carries at least w / R,
// and those of groups and of coverage. Source of FIRST_ON_NODE: github.com/sgl-project/sglang, release 0.5.23,
// python/sglang/srt/eplb/expert_location.py, _find_nearest_expert.
//
// Shapes: E experts, G GPUs of S slots each, W windows of load, M nodes.

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NONE = -1 };
enum { EQUAL, LOCAL_FIRST, FIRST_ON_NODE };  // how tokens choose among replicas

typedef struct {
    int E, G, S, W, M, split;
    const double *loads;     // [W][E]
    double *weights;         // [W][E] what each replica carries, for the split `EQUAL`
    double *weights_if_more; // [W][E] what it would carry with one replica more
    double *weights_there;   // [W][G][S] what the replica in a slot carries, for the split `EQUAL`
    int *ranked;             // [W][E] the experts by weight, from the lightest on, once `is_ranked`
    double *ranked_weights;  // [W][E] their weights in that order
    int is_ranked;
    double *carried;         // [W][G]
    int *counts;             // [E] replicas
    int64_t *slots;          // [G][S] the expert there
    int *homes;              // [G S][E] the GPUs of its replicas: the first `counts` rows
    unsigned char *held;     // [E][G] whether the GPU holds the expert
    int *near, *num_with;    // [E][M] replicas on each node, [E] nodes with one at least
} Layer;

static inline double larger(double one, double other) { return one > other ? one : other; }
static inline double smaller(double one, double other) { return one < other ? one : other; }
static inline double whole(double number) { return (double)(int64_t)number; }  // rounded down: none is negative
static inline int at(const Layer *layer, int gpu, int slot) { return (int)layer->slots[gpu * layer->S + slot]; }
static inline int holds(const Layer *layer, int expert, int gpu) { return layer->held[expert * layer->G + gpu]; }
static inline int *home_of(const Layer *layer, int expert, int replica) { return layer->homes + replica * layer->E + expert; }

static void *zeros(size_t count, size_t size)
{
    void *found = calloc(count ? count : 1, size);
    if (!found) {
        fputs("tidemill: memory is short: there is none left for the search of expert maps\n", stderr);
        _exit(EXIT_FAILURE);  // the process ends, as nobody can hand this up: Python's own clean-up would ask for memory
    }
    return found;
}

// The indices of the numbers from smallest to largest; equal numbers keep their order.
static void rising(const double *numbers, int size, int *order)
{
    int *merged = zeros(size, sizeof(int));
    for (int place = 0; place < size; place++) order[place] = place;
    for (int width = 1; width < size; width *= 2) {
        for (int start = 0; start < size; start += 2 * width) {
            int middle = start + width < size ? start + width : size, end = middle + width < size ? middle + width : size;
            int left = start, right = middle;
            for (int place = start; place < end; place++) {
                int takes_left = left < middle && (right == end || !(numbers[order[right]] < numbers[order[left]]));
                merged[place] = order[takes_left ? left++ : right++];
            }
        }
        memcpy(order, merged, size * sizeof(int));
    }
    free(merged);
}

static Layer make_layer(int E, int G, int S, int W, int M, int split)
{
    size_t experts = E, gpus = G;
    Layer layer = {.E = E, .G = G, .S = S, .W = W, .M = M, .split = split};
    layer.weights = zeros(W * experts, sizeof(double));
    layer.weights_if_more = zeros(W * experts, sizeof(double));
    layer.weights_there = zeros(W * gpus * S, sizeof(double));
    layer.ranked = zeros(W * experts, sizeof(int));
    layer.ranked_weights = zeros(W * experts, sizeof(double));
    layer.carried = zeros(W * gpus, sizeof(double));
    layer.counts = zeros(experts, sizeof(int));
    layer.slots = zeros(gpus * S, sizeof(int64_t));
    layer.homes = zeros(experts * gpus * S, sizeof(int));
    layer.held = zeros(experts * gpus, 1);
    layer.near = zeros(experts * M, sizeof(int));
    layer.num_with = zeros(experts, sizeof(int));
    return layer;
}

static void drop(Layer *layer)
{
    void *parts[] = {layer->weights, layer->weights_if_more, layer->weights_there, layer->ranked, layer->ranked_weights,
                     layer->carried, layer->counts, layer->slots, layer->homes, layer->held, layer->near, layer->num_with};
    for (size_t part = 0; part < sizeof parts / sizeof *parts; part++) free(parts[part]);
}

// Returns what a replica of the expert carries on the GPU, after one moved from GPU `leaves` to GPU `enters`. NONE for
// both: now; for one of them: a replica only comes or only goes.
static double part(const Layer *layer, int window, int expert, int gpu, int leaves, int enters)
{
    double load = layer->loads[window * layer->E + expert];
    int count = layer->counts[expert] + (enters != NONE) - (leaves != NONE);
    if (layer->split == EQUAL) return whole(load / count);
    int per_node = layer->G / layer->M, node = gpu / per_node;
    int left = leaves == NONE ? NONE : leaves / per_node, entered = enters == NONE ? NONE : enters / per_node;
    const int *near = layer->near + expert * layer->M;
    int num_near = near[node], num_with = layer->num_with[expert];
    if (left != entered) {
        num_near += (node == entered) - (node == left);
        num_with += (entered != NONE && near[entered] == 0) - (left != NONE && near[left] == 1);
    }
    int without = layer->M - num_with;
    if (layer->split == LOCAL_FIRST) return whole(load * ((1.0 / num_near + (double)without / count) / layer->M));
    if (num_near == count) return whole(load / count);
    double parts = 1.0 + (double)without * per_node / count;
    int is_first = 1;
    for (int other = node * per_node; other < gpu; other++)
        is_first &= other != enters && (other == leaves || !holds(layer, expert, other));
    if (is_first) parts += per_node - num_near;
    return whole(load * (parts / layer->G));
}

static void carry(Layer *layer, int expert, double sign)
{
    for (int window = 0; window < layer->W; window++)
        for (int replica = 0; replica < layer->counts[expert]; replica++) {
            int gpu = *home_of(layer, expert, replica);
            double load = layer->split == EQUAL ? layer->weights[window * layer->E + expert]
                                                : part(layer, window, expert, gpu, NONE, NONE);
            layer->carried[window * layer->G + gpu] += sign * load;
        }
}

// The index of the first number that is `least` or more, in numbers that rise.
static int first_from(const double *numbers, int size, double least)
{
    int first = 0;
    for (int left = size; left > 0;) {
        int half = left / 2, is_less = numbers[first + half] < least;
        first += is_less ? half + 1 : 0;
        left = is_less ? left - half - 1 : half;
    }
    return first;
}

// Ranks the experts of a map that was taken, if that was not done: few maps are searched so far that it is needed.
static void rank(Layer *layer)
{
    for (int first = 0; first < layer->W * layer->E && !layer->is_ranked; first += layer->E) {
        rising(layer->weights + first, layer->E, layer->ranked + first);
        for (int place = first; place < first + layer->E; place++)
            layer->ranked_weights[place] = layer->weights[first + layer->ranked[place]];
    }
    layer->is_ranked = 1;
}

// Moves an expert whose weight was `before` to where it belongs now.
static void rank_again(Layer *layer, int window, int expert, double before)
{
    double *weights = layer->ranked_weights + window * layer->E, now = layer->weights[window * layer->E + expert];
    int *ranked = layer->ranked + window * layer->E, place = first_from(weights, layer->E, before);
    while (ranked[place] != expert) place++;
    for (; place > 0 && weights[place - 1] > now; place--) {
        weights[place] = weights[place - 1];
        ranked[place] = ranked[place - 1];
    }
    for (; place + 1 < layer->E && weights[place + 1] < now; place++) {
        weights[place] = weights[place + 1];
        ranked[place] = ranked[place + 1];
    }
    weights[place] = now;
    ranked[place] = expert;
}

// Writes what a replica of the expert carries, and what it would carry with one more.
static void weigh(Layer *layer, int expert)
{
    for (int window = 0; window < layer->W; window++) {
        int place = window * layer->E + expert;
        double before = layer->weights[place];
        layer->weights[place] = whole(layer->loads[place] / layer->counts[expert]);
        layer->weights_if_more[place] = whole(layer->loads[place] / (layer->counts[expert] + 1));
        if (layer->is_ranked) rank_again(layer, window, expert, before);
    }
}

// Writes what the expert's replicas carry to their slots.
static void weigh_slots(Layer *layer, int expert)
{
    for (int replica = 0; replica < layer->counts[expert]; replica++)
        for (int slot = 0, place = *home_of(layer, expert, replica) * layer->S; slot < layer->S; slot++, place++)
            for (int window = 0; window < layer->W && layer->slots[place] == expert; window++)
                layer->weights_there[window * layer->G * layer->S + place] = layer->weights[window * layer->E + expert];
}

static void come(Layer *layer, int expert, int gpu)
{
    int *near = &layer->near[expert * layer->M + gpu / (layer->G / layer->M)];
    layer->num_with[expert] += (*near)++ == 0;
    *home_of(layer, expert, layer->counts[expert]++) = gpu;
    layer->held[expert * layer->G + gpu] = 1;
}

static void leave(Layer *layer, int expert, int gpu)
{
    int *near = &layer->near[expert * layer->M + gpu / (layer->G / layer->M)];
    int replica = 0;
    layer->num_with[expert] -= --*near == 0;
    while (*home_of(layer, expert, replica) != gpu) replica++;
    *home_of(layer, expert, replica) = *home_of(layer, expert, --layer->counts[expert]);
    layer->held[expert * layer->G + gpu] = 0;
}

// Holds the map `slots`, [G][S], with each expert at least once.
static void take(Layer *layer, const int64_t *slots)
{
    memset(layer->held, 0, (size_t)layer->E * layer->G);
    memset(layer->counts, 0, layer->E * sizeof(int));
    memset(layer->num_with, 0, layer->E * sizeof(int));
    memset(layer->near, 0, (size_t)layer->E * layer->M * sizeof(int));
    memset(layer->carried, 0, (size_t)layer->W * layer->G * sizeof(double));
    memcpy(layer->slots, slots, (size_t)layer->G * layer->S * sizeof(int64_t));
    layer->is_ranked = 0;
    for (int gpu = 0; gpu < layer->G; gpu++)
        for (int slot = 0; slot < layer->S; slot++) come(layer, at(layer, gpu, slot), gpu);
    for (int expert = 0; expert < layer->E; expert++) {
        weigh(layer, expert);
        carry(layer, expert, 1);
    }
    for (int window = 0; window < layer->W; window++)
        for (int place = 0; place < layer->G * layer->S; place++)
            layer->weights_there[window * layer->G * layer->S + place] = layer->weights[window * layer->E + layer->slots[place]];
}

// Holds the map of another layer of the same shapes and loads.
static void copy(Layer *layer, const Layer *other)
{
    size_t experts = layer->E, gpus = layer->G, windows = layer->W, most = gpus * layer->S;
    memcpy(layer->weights, other->weights, windows * experts * sizeof(double));
    memcpy(layer->weights_if_more, other->weights_if_more, windows * experts * sizeof(double));
    memcpy(layer->weights_there, other->weights_there, windows * most * sizeof(double));
    memcpy(layer->ranked, other->ranked, windows * experts * sizeof(int));
    memcpy(layer->ranked_weights, other->ranked_weights, windows * experts * sizeof(double));
    layer->is_ranked = other->is_ranked;
    memcpy(layer->carried, other->carried, windows * gpus * sizeof(double));
    memcpy(layer->counts, other->counts, experts * sizeof(int));
    memcpy(layer->slots, other->slots, most * sizeof(int64_t));
    memcpy(layer->held, other->held, experts * gpus);
    memcpy(layer->near, other->near, experts * layer->M * sizeof(int));
    memcpy(layer->num_with, other->num_with, experts * sizeof(int));
    for (size_t expert = 0; expert < experts; expert++)
        for (int replica = 0; replica < layer->counts[expert]; replica++)
            *home_of(layer, expert, replica) = *home_of(other, expert, replica);
}

// Both steps: the expert in `slot` of `gpu` goes to `other`, if that is a GPU, and `comer` comes from there.
static void swap(Layer *layer, int gpu, int slot, int other, int other_slot)
{
    int leaving = at(layer, gpu, slot), coming = at(layer, other, other_slot);
    if (layer->split != EQUAL) {
        carry(layer, leaving, -1);
        carry(layer, coming, -1);
    }
    layer->slots[gpu * layer->S + slot] = coming;
    layer->slots[other * layer->S + other_slot] = leaving;
    leave(layer, leaving, gpu);
    come(layer, leaving, other);
    leave(layer, coming, other);
    come(layer, coming, gpu);
    if (layer->split != EQUAL) {
        carry(layer, leaving, 1);
        carry(layer, coming, 1);
        return;
    }
    for (int window = 0; window < layer->W; window++) {
        double *there = layer->weights_there + window * layer->G * layer->S, *carried = layer->carried + window * layer->G;
        double left = there[gpu * layer->S + slot], came = there[other * layer->S + other_slot];
        there[gpu * layer->S + slot] = came;
        there[other * layer->S + other_slot] = left;
        carried[gpu] -= left - came;
        carried[other] += left - came;
    }
}

static void hand_over(Layer *layer, int comer, int gpu, int slot)
{
    int giver = at(layer, gpu, slot);
    carry(layer, giver, -1);
    carry(layer, comer, -1);
    leave(layer, giver, gpu);
    come(layer, comer, gpu);
    layer->slots[gpu * layer->S + slot] = comer;
    weigh(layer, giver);
    weigh(layer, comer);
    weigh_slots(layer, giver);
    weigh_slots(layer, comer);
    carry(layer, giver, 1);
    carry(layer, comer, 1);
}

// The index of the first number that is this one, which is among them. Four at a time, which compilers do at once: here
// and below.
static int place_of(double number, const double *numbers, int size)
{
    int place = 0;
    for (; place + 4 <= size; place += 4) {
        const double *four = numbers + place;
        if ((four[0] == number) | (four[1] == number) | (four[2] == number) | (four[3] == number)) break;
    }
    while (numbers[place] != number) place++;
    return place;
}

// The index of the largest number, the first among equals.
static int largest(const double *numbers, int size)
{
    double most[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    int place = 0;
    for (; place + 4 <= size; place += 4)
        for (int lane = 0; lane < 4; lane++) most[lane] = larger(numbers[place + lane], most[lane]);
    for (; place < size; place++) most[0] = larger(numbers[place], most[0]);
    return place_of(larger(larger(most[0], most[1]), larger(most[2], most[3])), numbers, size);
}

// The index of the smallest number, the first among equals.
static int smallest(const double *numbers, int size)
{
    double least[4] = {INFINITY, INFINITY, INFINITY, INFINITY};
    int place = 0;
    for (; place + 4 <= size; place += 4)
        for (int lane = 0; lane < 4; lane++) least[lane] = smaller(numbers[place + lane], least[lane]);
    for (; place < size; place++) least[0] = smaller(numbers[place], least[0]);
    return place_of(smaller(smaller(least[0], least[1]), smaller(least[2], least[3])), numbers, size);
}
