// Maps with groups on nodes, except for a few hot experts with a replica on a second node.
//
// If whole groups stay on nodes, the heaviest pair of groups limits how even a map can be. A replica on a second node
// takes part of the load there. That costs bytes, in proportion to the load that is served there. So only a node's
// excess is moved:
//
//     choose      an expert of the fullest node and another node. The load of the new replica should match the excess,
//                 and the other node must stay within the last level, so that nothing has to move on later
//     make room   in a slot of an expert with more replicas on that node, so that no other node's load changes
//     even out    the GPUs of each node, by swaps inside the node

enum { MAX_SPILLS = 48 };                    // per layer and level
static const double MAX_WEIGHT_SHARE = 0.9;  // of the target, for a replica that gets heavier; found by trial

static int is_only_on(const Layer *layer, int expert, int node)
{
    return layer->num_on_node[expert * layer->M + node] == layer->counts[expert];
}

// Returns the cost of a move: excess that stays counts twice, load served elsewhere once, so moving all excess pays.
static double cost_of_spill(double excess, double room, double load, double elsewhere)
{
    return 2 * (max(excess - load, 0.0) + max(load - room, 0.0)) + elsewhere;
}

// Finds the hand-over that puts a replica of an expert of the fullest node on another node. Until then all of the
// expert's replicas are on the fullest node.
static int find_spill(const Layer *layer, int full, double excess, const double *rooms, double heaviest, Step *best)
{
    int per_node = layer->G / layer->M, expert = NONE, to = NONE;
    double least = 2 * excess, fullest_load = INFINITY;
    for (int node = 0; node < layer->M; node++)
        for (int slot = 0; slot < per_node * layer->S && rooms[node] > 0; slot++) {
            int other = (int)layer->slots[full * per_node * layer->S + slot];
            double load = layer->loads[other] / (layer->counts[other] + 1);
            double cost = cost_of_spill(excess, rooms[node], load, load);
            if (cost < least && is_only_on(layer, other, full)) expert = other, to = node, least = cost;
        }
    if (expert == NONE) return 0;
    double weight = layer->loads[expert] / (layer->counts[expert] + 1);
    for (int place = to * per_node * layer->S; place < (to + 1) * per_node * layer->S; place++) {
        int gpu = place / layer->S, giver = (int)layer->slots[place];
        if (layer->counts[giver] == 1 || holds(layer, expert, gpu) || !is_only_on(layer, giver, to)) continue;
        double heavier = layer->loads[giver] / (layer->counts[giver] - 1);
        if (heavier > heaviest) continue;
        double most = layer->gpu_loads[gpu] - layer->weights[giver] + weight;
        for (int replica = 0; replica < layer->counts[giver]; replica++) {
            int home = *replica_gpu(layer, giver, replica);
            if (home != gpu) most = max(most, layer->gpu_loads[home] + heavier - layer->weights[giver]);
        }
        if (most >= fullest_load) continue;
        *best = (Step){gpu, place % layer->S, NONE, NONE, expert};
        fullest_load = most;
    }
    return fullest_load < INFINITY;
}

// Finds the swap of a replica of the fullest node with a lighter one of another node, for nodes without a spare slot.
static int find_exchange(const Layer *layer, int full, double excess, const double *rooms, Step *best)
{
    int per_node = layer->G / layer->M, S = layer->S, found = 0;
    double least = 2 * excess;
    for (int gpu = full * per_node; gpu < (full + 1) * per_node; gpu++)
        for (int other_gpu = 0; other_gpu < layer->G; other_gpu++) {
            double room = rooms[other_gpu / per_node];
            for (int slot = 0; slot < S && room > 0; slot++) {
                int expert = expert_at(layer, gpu, slot);
                double weight = layer->weights[expert];
                if (weight >= least || holds(layer, expert, other_gpu)) continue;
                for (int other = 0; other < S; other++) {
                    int light = expert_at(layer, other_gpu, other);
                    double light_weight = layer->weights[light];
                    double cost = cost_of_spill(excess, room, weight - light_weight, weight + light_weight);
                    if (cost >= least || holds(layer, light, gpu)) continue;
                    *best = (Step){gpu, slot, other_gpu, other, light};
                    least = cost;
                    found = 1;
                }
            }
        }
    return found;
}

// Moves load from the fullest node to another, which may reach `last` per GPU; returns whether it succeeded.
static int spill_once(Layer *layer, double target, double last, Step *step)
{
    int per_node = layer->G / layer->M;
    double *nodes = zeros(layer->M, sizeof(double)), *rooms = zeros(layer->M, sizeof(double));
    for (int gpu = 0; gpu < layer->G; gpu++) nodes[gpu / per_node] += layer->gpu_loads[gpu];
    int full = argmax(nodes, layer->M);
    double excess = nodes[full] - target * per_node;
    for (int node = 0; node < layer->M; node++) rooms[node] = last * per_node - nodes[node];
    int found = excess > 0 && (find_spill(layer, full, excess, rooms, target * MAX_WEIGHT_SHARE, step)
                               || find_exchange(layer, full, excess, rooms, step));
    if (found) make_step(layer, step);
    free(nodes), free(rooms);
    return found;
}

// Swaps experts among the GPUs of each node until none exceeds `target` or no swap helps.
static void even_out_nodes(Layer *layer, const Rules *rules)
{
    int per_node = layer->G / layer->M;
    for (int first = 0; first < layer->G; first += per_node) {
        int end = first + per_node, hot = first + argmax(layer->gpu_loads + first, per_node);
        if (layer->gpu_loads[hot] > rules->target) even_out(layer, rules, first, end);
        for (;;) {
            hot = first + argmax(layer->gpu_loads + first, per_node);
            Best best = {hot, layer->gpu_loads[hot]};
            for (int gpu = first; gpu < end && best.top > rules->target; gpu++)
                find_swap_with(layer, rules, gpu, &best);
            if (best.gain == 0) break;
            make_step(layer, &best.step);
        }
    }
}

// Writes maps [1 + Q][L][G][S]: the start, and one for each of Q falling limits on the fullest GPU's load, `levels`
// [Q][L]. Each level starts from the previous level's map. A layer that gets no more even keeps its map.
EXPORT void spill(int L, int E, int G, int S, int M, int Q, const double *loads, const int64_t *start,
                  const double *levels, int64_t *slots)
{
    Layer layer = make_layer(E, G, S, M, EQUAL);
    size_t size = (size_t)G * S;
    size_t bytes = size * sizeof(int64_t);
    for (int index = 0; index < L; index++) {
        layer.loads = loads + (size_t)index * E;
        load_map(&layer, start + index * size);
        memcpy(slots + index * size, layer.slots, bytes);
        double gpu_loads = peak(&layer);
        for (int level = 0; level < Q; level++) {
            Rules rules = {.target = levels[(size_t)level * L + index]};
            double last = levels[(size_t)(Q - 1) * L + index];
            Step step;
            for (int turn = 0; turn < MAX_SPILLS && spill_once(&layer, rules.target, last, &step);) turn++;
            even_out_nodes(&layer, &rules);
            double now = peak(&layer);
            if (now < gpu_loads) gpu_loads = now;
            else load_map(&layer, slots + ((size_t)level * L + index) * size);
            memcpy(slots + ((size_t)(level + 1) * L + index) * size, layer.slots, bytes);
        }
    }
    free_layer(&layer);
}
