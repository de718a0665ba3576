// One layer's map while it is being made: what is where, and the two steps that everything is made of.
//
//     swap        two slots on two GPUs exchange their experts
//     hand over   a slot passes from an expert with several replicas to another: the replicas of the one get heavier,
//                 those of the other lighter
//
// Invariants after every step: no GPU holds an expert twice; a weight is what a replica carries, rounded down to a whole
// number; `carried` is the sum of a GPU's. Whole numbers keep sums exact however long the chain of steps is.
//
// Shapes: E experts, G GPUs of S slots each, W windows of load, M nodes.

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { NONE = -1 };
enum { EQUAL, LOCAL_FIRST, FIRST_ON_NODE };  // how tokens choose among replicas: see split.py

typedef struct {
    int E, G, S, W, M, split;
    const double *loads;     // [W][E]
    double *weights;         // [W][E] what each replica carries, for the split `EQUAL`
    double *weights_if_more; // [W][E] what it would carry with one replica more
    double *carried;         // [W][G]
    int *counts;             // [E] replicas
    int *slots;              // [G][S] the expert there
    int *homes;              // [E][G] the GPUs of its replicas: the first `counts` entries
    unsigned char *held;     // [E][G] whether the GPU holds the expert
    int *near, *num_with;    // [E][M] replicas on each node, [E] nodes with one at least
} Layer;

static inline double larger(double one, double other) { return one > other ? one : other; }
static inline double smaller(double one, double other) { return one < other ? one : other; }
static inline double whole(double number) { return (double)(int64_t)number; }  // rounded down: none is negative
static inline int at(const Layer *layer, int gpu, int slot) { return layer->slots[gpu * layer->S + slot]; }
static inline int holds(const Layer *layer, int expert, int gpu) { return layer->held[expert * layer->G + gpu]; }
static inline const int *homes_of(const Layer *layer, int expert) { return layer->homes + (size_t)expert * layer->G; }

static void *zeros(size_t count, size_t size)
{
    void *found = calloc(count ? count : 1, size);
    if (!found) abort();
    return found;
}

static Layer make_layer(int E, int G, int S, int W, int M, int split)
{
    size_t experts = E, gpus = G;
    Layer layer = {.E = E, .G = G, .S = S, .W = W, .M = M, .split = split};
    layer.weights = zeros(W * experts, sizeof(double));
    layer.weights_if_more = zeros(W * experts, sizeof(double));
    layer.carried = zeros(W * gpus, sizeof(double));
    layer.counts = zeros(experts, sizeof(int));
    layer.slots = zeros(gpus * S, sizeof(int));
    layer.homes = zeros(experts * gpus, sizeof(int));
    layer.held = zeros(experts * gpus, 1);
    layer.near = zeros(experts * M, sizeof(int));
    layer.num_with = zeros(experts, sizeof(int));
    return layer;
}

static Layer like(const Layer *layer)
{
    Layer made = make_layer(layer->E, layer->G, layer->S, layer->W, layer->M, layer->split);
    made.loads = layer->loads;
    return made;
}

static void drop(Layer *layer)
{
    void *parts[] = {layer->weights, layer->weights_if_more, layer->carried, layer->counts, layer->slots, layer->homes, layer->held,
                     layer->near, layer->num_with};
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
    const int *homes = homes_of(layer, expert);
    for (int window = 0; window < layer->W; window++)
        for (int replica = 0; replica < layer->counts[expert]; replica++) {
            double load = layer->split == EQUAL ? layer->weights[window * layer->E + expert]
                                                : part(layer, window, expert, homes[replica], NONE, NONE);
            layer->carried[window * layer->G + homes[replica]] += sign * load;
        }
}

static void weigh(Layer *layer, int expert)
{
    for (int place = expert; place < layer->W * layer->E; place += layer->E) {
        layer->weights[place] = whole(layer->loads[place] / layer->counts[expert]);
        layer->weights_if_more[place] = whole(layer->loads[place] / (layer->counts[expert] + 1));
    }
}

static void come(Layer *layer, int expert, int gpu)
{
    int *near = &layer->near[expert * layer->M + gpu / (layer->G / layer->M)];
    layer->num_with[expert] += (*near)++ == 0;
    layer->homes[(size_t)expert * layer->G + layer->counts[expert]++] = gpu;
    layer->held[expert * layer->G + gpu] = 1;
}

static void leave(Layer *layer, int expert, int gpu)
{
    int *near = &layer->near[expert * layer->M + gpu / (layer->G / layer->M)];
    int *homes = layer->homes + (size_t)expert * layer->G, replica = 0;
    layer->num_with[expert] -= --*near == 0;
    while (homes[replica] != gpu) replica++;
    homes[replica] = homes[--layer->counts[expert]];
    layer->held[expert * layer->G + gpu] = 0;
}

static void clear(Layer *layer)
{
    for (int gpu = 0; gpu < layer->G; gpu++)
        for (int slot = 0; slot < layer->S; slot++) layer->held[at(layer, gpu, slot) * layer->G + gpu] = 0;
    memset(layer->counts, 0, layer->E * sizeof(int));
    memset(layer->num_with, 0, layer->E * sizeof(int));
    memset(layer->near, 0, (size_t)layer->E * layer->M * sizeof(int));
    memset(layer->carried, 0, (size_t)layer->W * layer->G * sizeof(double));
}

// Holds the map `slots`, [G][S]: each expert at least once, and none twice on a GPU.
static void take(Layer *layer, const int64_t *slots)
{
    clear(layer);
    for (int gpu = 0; gpu < layer->G; gpu++)
        for (int slot = 0; slot < layer->S; slot++) {
            layer->slots[gpu * layer->S + slot] = (int)slots[gpu * layer->S + slot];
            come(layer, at(layer, gpu, slot), gpu);
        }
    for (int expert = 0; expert < layer->E; expert++) {
        weigh(layer, expert);
        carry(layer, expert, 1);
    }
}

static void keep(const Layer *layer, int64_t *slots)
{
    for (int place = 0; place < layer->G * layer->S; place++) slots[place] = layer->slots[place];
}

static void copy(Layer *target, const Layer *source)
{
    clear(target);
    memcpy(target->weights, source->weights, (size_t)source->W * source->E * sizeof(double));
    memcpy(target->weights_if_more, source->weights_if_more, (size_t)source->W * source->E * sizeof(double));
    memcpy(target->carried, source->carried, (size_t)source->W * source->G * sizeof(double));
    memcpy(target->counts, source->counts, source->E * sizeof(int));
    memcpy(target->slots, source->slots, (size_t)source->G * source->S * sizeof(int));
    memcpy(target->near, source->near, (size_t)source->E * source->M * sizeof(int));
    memcpy(target->num_with, source->num_with, source->E * sizeof(int));
    for (int expert = 0; expert < source->E; expert++)
        for (int replica = 0; replica < source->counts[expert]; replica++) {
            int gpu = homes_of(source, expert)[replica];
            target->homes[(size_t)expert * source->G + replica] = gpu;
            target->held[expert * source->G + gpu] = 1;
        }
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
        const double *weights = layer->weights + window * layer->E;
        double *carried = layer->carried + window * layer->G, moved = weights[leaving] - weights[coming];
        carried[gpu] -= moved;
        carried[other] += moved;
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
    carry(layer, giver, 1);
    carry(layer, comer, 1);
}

// The index of the largest number, the first among equals. Four at a time first, which compilers do at once.
static int largest(const double *numbers, int size)
{
    double most[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    int place = 0;
    for (; place + 4 <= size; place += 4)
        for (int lane = 0; lane < 4; lane++)
            most[lane] = numbers[place + lane] > most[lane] ? numbers[place + lane] : most[lane];
    for (; place < size; place++) most[0] = larger(numbers[place], most[0]);
    double found = larger(larger(most[0], most[1]), larger(most[2], most[3]));
    for (place = 0; numbers[place] != found;) place++;
    return place;
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
