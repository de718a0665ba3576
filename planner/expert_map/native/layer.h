// One layer's map during the search, and the two steps that change it.
//
//     swap        two slots on two GPUs exchange their experts
//     hand over   an expert with several replicas gives one of its slots to another expert: the replicas of the giver
//                 get heavier, those of the other lighter
//
// Invariants after every step: no GPU holds an expert twice, unless it did at the start; the weight of a replica is its
// load, rounded down to a whole number; `gpu_loads` sums the weights on each GPU. Whole numbers keep these sums exact
// over any number of steps.
//
// Tokens come from all GPUs in equal numbers. A split rule chooses each token's replica:
//     EQUAL            any, each equally often
//     LOCAL_FIRST      the one on the token's GPU; else one on its node; else any. Several are chosen equally often
//     FIRST_ON_NODE    the one on the token's GPU; else the first on its node, if other nodes have replicas too; else
//                      any, each equally often
//
// Take an expert with load w and R replicas, k of them on a node with p of the G GPUs. Under LOCAL_FIRST a replica on
// that node carries
//
//     w / G x (p / k + p x nodes without a replica / R)
//
// This is w / R if all nodes with a replica have equally many. A GPU that holds the expert keeps its own tokens and
// takes fewer from its neighbours, so the preference for the own GPU changes no sum. Under FIRST_ON_NODE each replica
// carries w / R if all R are on one node. Otherwise each carries
//
//     w / G x (1 + p x nodes without a replica / R)        and the first on a node (p - k) x w / G more
//
// Some bounds for equal shares hold for all three rules: the mean, the largest replica (it carries at least w / R),
// groups and coverage. Source of FIRST_ON_NODE: github.com/sgl-project/sglang, release 0.5.23,
// python/sglang/srt/eplb/expert_location.py, _find_nearest_expert.
//
// Shapes: E experts, G GPUs of S slots each, M nodes.

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NONE = -1 };
enum { EQUAL, LOCAL_FIRST, FIRST_ON_NODE };  // split rules

typedef struct {
    int E, G, S, M, split;
    const double *loads;         // [E]
    double *weights;             // [E] load of each replica, under `EQUAL`
    double *next_weights;        // [E] the same if the expert had one more replica
    double *slot_weights;        // [G][S] load of the replica in each slot, under `EQUAL`
    int *by_weight;              // [E] experts, lightest first; valid if `is_sorted`
    double *sorted_weights;      // [E] their weights, in that order
    int is_sorted;
    double *gpu_loads;           // [G]
    int *counts;                 // [E] replicas
    int64_t *slots;              // [G][S] expert in each slot
    int *replica_gpus;           // [G S][E] GPUs of each expert's replicas, in the first `counts` rows
    unsigned char *is_held;      // [E][G] whether the GPU holds the expert
    int *num_on_node, *num_nodes_with; // [E][M] replicas on each node; [E] nodes with at least one
} Layer;

static inline double max(double one, double other) { return one > other ? one : other; }
static inline double min(double one, double other) { return one < other ? one : other; }
static inline double round_down(double number) { return (double)(int64_t)number; }  // of numbers >= 0
static inline int expert_at(const Layer *layer, int gpu, int slot) { return (int)layer->slots[gpu * layer->S + slot]; }
static inline int holds(const Layer *layer, int expert, int gpu) { return layer->is_held[expert * layer->G + gpu]; }
static inline int *replica_gpu(const Layer *layer, int expert, int replica)
{
    return layer->replica_gpus + replica * layer->E + expert;
}

static void *zeros(size_t count, size_t size)
{
    void *found = calloc(count ? count : 1, size);
    if (!found) {
        fputs("tidemill: memory is short: slot_weights is none left for the search of expert maps\n", stderr);
        _exit(EXIT_FAILURE);  // skips Python's clean-up, which would ask for memory too
    }
    return found;
}

// Writes the indices of the numbers to `order`, smallest number first; equal numbers keep their order.
static void argsort(const double *numbers, int size, int *order)
{
    int *merged = zeros(size, sizeof(int));
    for (int place = 0; place < size; place++) order[place] = place;
    for (int width = 1; width < size; width *= 2) {
        for (int start = 0; start < size; start += 2 * width) {
            int middle = start + width < size ? start + width : size;
            int end = middle + width < size ? middle + width : size;
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

static Layer make_layer(int E, int G, int S, int M, int split)
{
    size_t experts = E, gpus = G;
    Layer layer = {.E = E, .G = G, .S = S, .M = M, .split = split};
    layer.weights = zeros(experts, sizeof(double));
    layer.next_weights = zeros(experts, sizeof(double));
    layer.slot_weights = zeros(gpus * S, sizeof(double));
    layer.by_weight = zeros(experts, sizeof(int));
    layer.sorted_weights = zeros(experts, sizeof(double));
    layer.gpu_loads = zeros(gpus, sizeof(double));
    layer.counts = zeros(experts, sizeof(int));
    layer.slots = zeros(gpus * S, sizeof(int64_t));
    layer.replica_gpus = zeros(experts * gpus * S, sizeof(int));
    layer.is_held = zeros(experts * gpus, 1);
    layer.num_on_node = zeros(experts * M, sizeof(int));
    layer.num_nodes_with = zeros(experts, sizeof(int));
    return layer;
}

static void free_layer(Layer *layer)
{
    void *parts[] = {layer->weights, layer->next_weights, layer->slot_weights, layer->by_weight, layer->sorted_weights,
                     layer->gpu_loads, layer->counts, layer->slots, layer->replica_gpus, layer->is_held,
                     layer->num_on_node, layer->num_nodes_with};
    for (size_t part = 0; part < sizeof parts / sizeof *parts; part++) free(parts[part]);
}

// Returns the load of the expert's replica on a GPU after one of its replicas moves from GPU `from` to GPU `to`. With
// `from` NONE a replica is added; with `to` NONE one is removed; with both NONE nothing moves.
static double replica_load(const Layer *layer, int expert, int gpu, int from, int to)
{
    double load = layer->loads[expert];
    int count = layer->counts[expert] + (to != NONE) - (from != NONE);
    if (layer->split == EQUAL) return round_down(load / count);
    int per_node = layer->G / layer->M, node = gpu / per_node;
    int left = from == NONE ? NONE : from / per_node, entered = to == NONE ? NONE : to / per_node;
    const int *num_on_node = layer->num_on_node + expert * layer->M;
    int num_near = num_on_node[node], num_nodes_with = layer->num_nodes_with[expert];
    if (left != entered) {
        num_near += (node == entered) - (node == left);
        num_nodes_with += (entered != NONE && num_on_node[entered] == 0) - (left != NONE && num_on_node[left] == 1);
    }
    int without = layer->M - num_nodes_with;
    if (layer->split == LOCAL_FIRST) return round_down(load * ((1.0 / num_near + (double)without / count) / layer->M));
    if (num_near == count) return round_down(load / count);
    double parts = 1.0 + (double)without * per_node / count;
    int is_first = 1;
    for (int other = node * per_node; other < gpu; other++)
        is_first &= other != to && (other == from || !holds(layer, expert, other));
    if (is_first) parts += per_node - num_near;
    return round_down(load * (parts / layer->G));
}

// Adds `sign` times the load of each of the expert's replicas to its GPU.
static void add_loads(Layer *layer, int expert, double sign)
{
    for (int replica = 0; replica < layer->counts[expert]; replica++) {
        int gpu = *replica_gpu(layer, expert, replica);
        double load = layer->split == EQUAL ? layer->weights[expert] : replica_load(layer, expert, gpu, NONE, NONE);
        layer->gpu_loads[gpu] += sign * load;
    }
}

// Returns the index of the first number >= `least` in rising numbers.
static int lower_bound(const double *numbers, int size, double least)
{
    int first = 0;
    for (int left = size; left > 0;) {
        int half = left / 2, is_less = numbers[first + half] < least;
        first += is_less ? half + 1 : 0;
        left = is_less ? left - half - 1 : half;
    }
    return first;
}

// Sorts the experts by weight, once after `load_map`: few searches get to where they need it.
static void sort_by_weight(Layer *layer)
{
    if (layer->is_sorted) return;
    argsort(layer->weights, layer->E, layer->by_weight);
    for (int place = 0; place < layer->E; place++)
        layer->sorted_weights[place] = layer->weights[layer->by_weight[place]];
    layer->is_sorted = 1;
}

// Restores the order by weight after an expert's weight changed from `before`.
static void resort_expert(Layer *layer, int expert, double before)
{
    double *weights = layer->sorted_weights, now = layer->weights[expert];
    int *by_weight = layer->by_weight, place = lower_bound(weights, layer->E, before);
    while (by_weight[place] != expert) place++;
    for (; place > 0 && weights[place - 1] > now; place--) {
        weights[place] = weights[place - 1];
        by_weight[place] = by_weight[place - 1];
    }
    for (; place + 1 < layer->E && weights[place + 1] < now; place++) {
        weights[place] = weights[place + 1];
        by_weight[place] = by_weight[place + 1];
    }
    weights[place] = now;
    by_weight[place] = expert;
}

// Computes the weight of the expert's replicas, and their weight with one more replica.
static void weigh(Layer *layer, int expert)
{
    double before = layer->weights[expert];
    layer->weights[expert] = round_down(layer->loads[expert] / layer->counts[expert]);
    layer->next_weights[expert] = round_down(layer->loads[expert] / (layer->counts[expert] + 1));
    if (layer->is_sorted) resort_expert(layer, expert, before);
}

// Copies the expert's weight to the slots that hold it.
static void weigh_slots(Layer *layer, int expert)
{
    for (int replica = 0; replica < layer->counts[expert]; replica++)
        for (int slot = 0, place = *replica_gpu(layer, expert, replica) * layer->S; slot < layer->S; slot++, place++)
            if (layer->slots[place] == expert) layer->slot_weights[place] = layer->weights[expert];
}

static void add_replica(Layer *layer, int expert, int gpu)
{
    int *num_on_node = &layer->num_on_node[expert * layer->M + gpu / (layer->G / layer->M)];
    layer->num_nodes_with[expert] += (*num_on_node)++ == 0;
    *replica_gpu(layer, expert, layer->counts[expert]++) = gpu;
    layer->is_held[expert * layer->G + gpu] = 1;
}

static void remove_replica(Layer *layer, int expert, int gpu)
{
    int *num_on_node = &layer->num_on_node[expert * layer->M + gpu / (layer->G / layer->M)];
    int replica = 0;
    layer->num_nodes_with[expert] -= --*num_on_node == 0;
    while (*replica_gpu(layer, expert, replica) != gpu) replica++;
    *replica_gpu(layer, expert, replica) = *replica_gpu(layer, expert, --layer->counts[expert]);
    layer->is_held[expert * layer->G + gpu] = 0;
}

// Sets the layer to the map `slots`, [G][S], in which each expert has at least one slot.
static void load_map(Layer *layer, const int64_t *slots)
{
    memset(layer->is_held, 0, (size_t)layer->E * layer->G);
    memset(layer->counts, 0, layer->E * sizeof(int));
    memset(layer->num_nodes_with, 0, layer->E * sizeof(int));
    memset(layer->num_on_node, 0, (size_t)layer->E * layer->M * sizeof(int));
    memset(layer->gpu_loads, 0, layer->G * sizeof(double));
    memcpy(layer->slots, slots, (size_t)layer->G * layer->S * sizeof(int64_t));
    layer->is_sorted = 0;
    for (int gpu = 0; gpu < layer->G; gpu++)
        for (int slot = 0; slot < layer->S; slot++) add_replica(layer, expert_at(layer, gpu, slot), gpu);
    for (int expert = 0; expert < layer->E; expert++) {
        weigh(layer, expert);
        add_loads(layer, expert, 1);
    }
    for (int place = 0; place < layer->G * layer->S; place++)
        layer->slot_weights[place] = layer->weights[layer->slots[place]];
}

// Copies the map of another layer with the same shapes and loads.
static void copy_layer(Layer *layer, const Layer *other)
{
    size_t experts = layer->E, gpus = layer->G, most = gpus * layer->S;
    memcpy(layer->weights, other->weights, experts * sizeof(double));
    memcpy(layer->next_weights, other->next_weights, experts * sizeof(double));
    memcpy(layer->slot_weights, other->slot_weights, most * sizeof(double));
    memcpy(layer->by_weight, other->by_weight, experts * sizeof(int));
    memcpy(layer->sorted_weights, other->sorted_weights, experts * sizeof(double));
    layer->is_sorted = other->is_sorted;
    memcpy(layer->gpu_loads, other->gpu_loads, gpus * sizeof(double));
    memcpy(layer->counts, other->counts, experts * sizeof(int));
    memcpy(layer->slots, other->slots, most * sizeof(int64_t));
    memcpy(layer->is_held, other->is_held, experts * gpus);
    memcpy(layer->num_on_node, other->num_on_node, experts * layer->M * sizeof(int));
    memcpy(layer->num_nodes_with, other->num_nodes_with, experts * sizeof(int));
    for (size_t expert = 0; expert < experts; expert++)
        for (int replica = 0; replica < layer->counts[expert]; replica++)
            *replica_gpu(layer, expert, replica) = *replica_gpu(other, expert, replica);
}

static void swap(Layer *layer, int gpu, int slot, int other, int other_slot)
{
    int outgoing = expert_at(layer, gpu, slot), incoming = expert_at(layer, other, other_slot);
    if (layer->split != EQUAL) {
        add_loads(layer, outgoing, -1);
        add_loads(layer, incoming, -1);
    }
    layer->slots[gpu * layer->S + slot] = incoming;
    layer->slots[other * layer->S + other_slot] = outgoing;
    remove_replica(layer, outgoing, gpu);
    add_replica(layer, outgoing, other);
    remove_replica(layer, incoming, other);
    add_replica(layer, incoming, gpu);
    if (layer->split != EQUAL) {
        add_loads(layer, outgoing, 1);
        add_loads(layer, incoming, 1);
        return;
    }
    double *slot_weights = layer->slot_weights;
    double left = slot_weights[gpu * layer->S + slot], came = slot_weights[other * layer->S + other_slot];
    slot_weights[gpu * layer->S + slot] = came;
    slot_weights[other * layer->S + other_slot] = left;
    layer->gpu_loads[gpu] -= left - came;
    layer->gpu_loads[other] += left - came;
}

static void hand_over(Layer *layer, int incoming, int gpu, int slot)
{
    int giver = expert_at(layer, gpu, slot);
    add_loads(layer, giver, -1);
    add_loads(layer, incoming, -1);
    remove_replica(layer, giver, gpu);
    add_replica(layer, incoming, gpu);
    layer->slots[gpu * layer->S + slot] = incoming;
    weigh(layer, giver);
    weigh(layer, incoming);
    weigh_slots(layer, giver);
    weigh_slots(layer, incoming);
    add_loads(layer, giver, 1);
    add_loads(layer, incoming, 1);
}

// Returns the index of the first number that equals `number`; there must be one. Here and below four numbers are
// compared at a time, so that compilers use SIMD instructions.
static int find_index(double number, const double *numbers, int size)
{
    int place = 0;
    for (; place + 4 <= size; place += 4) {
        const double *four = numbers + place;
        if ((four[0] == number) | (four[1] == number) | (four[2] == number) | (four[3] == number)) break;
    }
    while (numbers[place] != number) place++;
    return place;
}

// Returns the index of the largest number, the first among equals.
static int argmax(const double *numbers, int size)
{
    double most[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    int place = 0;
    for (; place + 4 <= size; place += 4)
        for (int lane = 0; lane < 4; lane++) most[lane] = max(numbers[place + lane], most[lane]);
    for (; place < size; place++) most[0] = max(numbers[place], most[0]);
    return find_index(max(max(most[0], most[1]), max(most[2], most[3])), numbers, size);
}

// Returns the index of the smallest number, the first among equals.
static int argmin(const double *numbers, int size)
{
    double least[4] = {INFINITY, INFINITY, INFINITY, INFINITY};
    int place = 0;
    for (; place + 4 <= size; place += 4)
        for (int lane = 0; lane < 4; lane++) least[lane] = min(numbers[place + lane], least[lane]);
    for (; place < size; place++) least[0] = min(numbers[place], least[0]);
    return find_index(min(min(least[0], least[1]), min(least[2], least[3])), numbers, size);
}
