// Where searches start: how many replicas each expert gets, and a first packing of them. Also EPLB's own map.
//
// Replicas: one redundant slot after the other goes to the expert with the highest load / (replicas + shift), the lower
// expert first among equals. Without a shift the largest replica is as small as it can be. A negative shift favours
// experts with few replicas, a positive one those with many. No expert gets more replicas than there are GPUs.
//
// Packing: longest first, each to the GPU that carries least so far and has a free slot. Ours also leaves out GPUs that
// hold the expert; EPLB's does not, and like the published code it decides in float32, where another rounding would
// make another map.
//
// Sources: github.com/deepseek-ai/EPLB; longest processing time first, R. L. Graham 1969.

typedef struct { int *gpus, size; const double *carried; } Heap;  // of GPUs: the lightest first, the lower among equals

static int is_before(const Heap *heap, int gpu, int other)
{
    const double *carried = heap->carried;
    return carried[gpu] < carried[other] || (carried[gpu] == carried[other] && gpu < other);
}

// Moves the first GPU, whose load has risen, down to its place.
static void sink(Heap *heap)
{
    if (heap->size == 0) return;
    int gpu = heap->gpus[0], place = 0;
    for (int child; (child = 2 * place + 1) < heap->size; place = child) {
        if (child + 1 < heap->size && is_before(heap, heap->gpus[child + 1], heap->gpus[child])) child++;
        if (!is_before(heap, heap->gpus[child], gpu)) break;
        heap->gpus[place] = heap->gpus[child];
    }
    heap->gpus[place] = gpu;
}

static void remove_first(Heap *heap)
{
    heap->gpus[0] = heap->gpus[--heap->size];
    sink(heap);
}

static void put(Heap *heap, int gpu)
{
    int place = heap->size++;
    for (int parent; place > 0 && is_before(heap, gpu, heap->gpus[parent = (place - 1) / 2]); place = parent)
        heap->gpus[place] = heap->gpus[parent];
    heap->gpus[place] = gpu;
}

static void replicate(const double *loads, int E, int num_slots, int num_gpus, double shift, int least, int *counts)
{
    double *priorities = zeros(E, sizeof(double));
    for (int expert = 0; expert < E; expert++) {
        counts[expert] = least;
        priorities[expert] = loads[expert] / (least + shift);
    }
    for (int left = num_slots - least * E; left > 0; left--) {
        int first = largest(priorities, E);
        counts[first]++;
        priorities[first] = counts[first] < num_gpus ? loads[first] / (counts[first] + shift) : -1.0;
    }
    free(priorities);
}

static void eplb_counts(const double *loads, int E, int num_slots, int *counts)
{
    double *priorities = zeros(E, sizeof(double));
    for (int expert = 0; expert < E; expert++) {
        counts[expert] = 1;
        priorities[expert] = (float)loads[expert];
    }
    for (int left = num_slots - E; left > 0; left--) {
        int first = largest(priorities, E);
        counts[first]++;
        priorities[first] = (float)loads[first] / (float)counts[first];
    }
    free(priorities);
}

// Writes EPLB's packing of these replicas, [G][S], and returns the load of its fullest GPU.
static double eplb_slots(const double *loads, const int *counts, int E, int G, int S, int64_t *slots)
{
    double *falling = zeros(E, sizeof(double)), *carried = zeros(G, sizeof(double)), most = 0.0;
    int *order = zeros(E, sizeof(int)), *filled = zeros(G, sizeof(int));
    Heap heap = {zeros(G, sizeof(int)), G, carried};  // of the GPUs with room
    for (int gpu = 0; gpu < G; gpu++) heap.gpus[gpu] = gpu;
    for (int expert = 0; expert < E; expert++) falling[expert] = -((float)loads[expert] / (float)counts[expert]);
    rising(falling, E, order);
    for (int place = 0; place < E; place++)
        for (int expert = order[place], replica = 0; replica < counts[expert]; replica++) {
            int gpu = heap.gpus[0];
            slots[gpu * S + filled[gpu]++] = expert;
            carried[gpu] = (float)(carried[gpu] - falling[expert]);
            if (filled[gpu] == S) remove_first(&heap);
            else sink(&heap);
        }
    for (int gpu = 0; gpu < G; gpu++) {
        double total = 0.0;
        for (int slot = 0; slot < S; slot++) total += loads[slots[gpu * S + slot]] / counts[slots[gpu * S + slot]];
        most = larger(most, total);
    }
    free(falling), free(carried), free(order), free(filled), free(heap.gpus);
    return most;
}

// Frees a slot of a GPU that lacks the expert by passing its most similar expert on to a GPU with room; returns the GPU.
// One exists: no expert has more replicas than there are GPUs, and of a full GPU's S experts at least two are not on
// the GPU with room, which holds this one and at most S - 2 others.
static int make_room(Layer *layer, int *filled, int expert)
{
    int open = 0, best_gpu = NONE, best_slot = NONE;
    double least = INFINITY;
    while (filled[open] == layer->S) open++;
    for (int gpu = 0; gpu < layer->G; gpu++)
        for (int slot = 0; slot < layer->S && filled[gpu] == layer->S && !holds(layer, expert, gpu); slot++) {
            int other = at(layer, gpu, slot);
            double change = fabs(layer->weights[other] - layer->weights[expert]);
            if (change < least && !holds(layer, other, open)) best_gpu = gpu, best_slot = slot, least = change;
        }
    int other = at(layer, best_gpu, best_slot);
    layer->slots[open * layer->S + filled[open]++] = other;
    leave(layer, other, best_gpu);
    come(layer, other, open);
    layer->carried[best_gpu] -= layer->weights[other];
    layer->carried[open] += layer->weights[other];
    layer->slots[best_gpu * layer->S + best_slot] = expert;
    return best_gpu;
}

// Places `counts` replicas of each expert, at most as many as there are GPUs. For one window of load.
static void pack(Layer *layer, const int *counts)
{
    int E = layer->E, G = layer->G, *order = zeros(E, sizeof(int)), *filled = zeros(G, sizeof(int));
    int *chosen = zeros(G, sizeof(int));
    double *falling = zeros(E, sizeof(double));
    Heap heap = {zeros(G, sizeof(int)), G, layer->carried};  // of the GPUs with room that did not just get the expert
    clear(layer);
    for (int gpu = 0; gpu < G; gpu++) heap.gpus[gpu] = gpu;
    for (int expert = 0; expert < E; expert++) {
        layer->counts[expert] = counts[expert];
        weigh(layer, expert);
        layer->counts[expert] = 0;  // until they come
        falling[expert] = -layer->weights[expert];
    }
    rising(falling, E, order);
    for (int place = 0; place < E; place++) {
        int expert = order[place], num_chosen = 0;
        for (int replica = 0; replica < counts[expert]; replica++) {
            int gpu;
            if (heap.size == 0) {
                gpu = make_room(layer, filled, expert);
            } else {
                gpu = chosen[num_chosen++] = heap.gpus[0];
                remove_first(&heap);
                layer->slots[gpu * layer->S + filled[gpu]++] = expert;
            }
            come(layer, expert, gpu);
            layer->carried[gpu] += layer->weights[expert];
        }
        for (int number = 0; number < num_chosen; number++)
            if (filled[chosen[number]] < layer->S) put(&heap, chosen[number]);
    }
    free(order), free(filled), free(chosen), free(falling), free(heap.gpus);
}

static void pack_replicated(Layer *layer, double shift, int least)
{
    int *counts = zeros(layer->E, sizeof(int));
    replicate(layer->loads, layer->E, layer->G * layer->S, layer->G, shift, least, counts);
    pack(layer, counts);
    free(counts);
}

static int is_among(const int64_t *slots, int end, int64_t expert)
{
    int found = 0;
    for (int slot = 0; slot < end; slot++) found |= slots[slot] == expert;
    return found;
}

// Swaps second replicas on a GPU, each for the most similar expert of a GPU that lacks it; returns whether none is left.
static int swap_repeats(int64_t *slots, const double *loads, const int *counts, int G, int S)
{
    for (int gpu = 0; gpu < G; gpu++)
        for (int slot = 1; slot < S; slot++) {
            int64_t *here = slots + gpu * S, repeated = here[slot], *best = NULL;
            double weight = loads[repeated] / counts[repeated], least = INFINITY;
            if (!is_among(here, slot, repeated)) continue;
            for (int other = 0; other < G; other++)
                for (int place = 0; place < S && !is_among(slots + other * S, S, repeated); place++) {
                    int64_t *there = slots + other * S + place;
                    double change = fabs(loads[*there] / counts[*there] - weight);
                    if (change < least && !is_among(here, S, *there)) best = there, least = change;
                }
            if (!best) return 0;
            here[slot] = *best;
            *best = repeated;
        }
    return 1;
}

// Holds EPLB's map with repeated experts parted, and returns the load of EPLB's fullest GPU. Holds a packing of our own
// where swaps cannot part them, or where an expert has more replicas than there are GPUs.
static double take_eplbs(Layer *layer)
{
    int *counts = zeros(layer->E, sizeof(int));
    int64_t *slots = zeros((size_t)layer->G * layer->S, sizeof(int64_t));
    eplb_counts(layer->loads, layer->E, layer->G * layer->S, counts);
    double most = eplb_slots(layer->loads, counts, layer->E, layer->G, layer->S, slots);
    int fits = counts[0] <= layer->G;
    for (int expert = 1; expert < layer->E; expert++) fits &= counts[expert] <= layer->G;
    if (fits && swap_repeats(slots, layer->loads, counts, layer->G, layer->S)) take(layer, slots);
    else pack_replicated(layer, 0.0, 1);
    free(counts), free(slots);
    return most;
}
