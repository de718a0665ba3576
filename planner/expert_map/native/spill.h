// Groups on nodes, but for a few hot experts that have a replica on a second node as well.
//
// Where whole groups stay on nodes, the heaviest pair of groups decides how even a map can be. A replica on another node
// takes part of the load there, and that is what costs: bytes grow with the load that is served elsewhere. So the least
// bytes are those of the load above what a node may carry, and of nothing else:
//
//     choose      an expert of the fullest node whose part is as large as what is too much there, for a node that then
//                 still carries no more than at the last level, so that nothing has to be passed on later
//     make room   in a slot of an expert that has more replicas on that node: no node's load changes but for the part
//     even out    the GPUs of each node by swaps among them, which cross to no node

enum { MAX_SPILLS = 48 };          // a layer and level
static const double HEAVIEST = 0.9;  // of what a GPU may carry: a replica that gets heavier leaves that much room; tried

static int is_whole_on(const Layer *layer, int expert, int node)
{
    return layer->near[expert * layer->M + node] == layer->counts[expert];
}

// What a move costs: the load still to be moved counts twice, the load served elsewhere once, so that it pays to move as
// much as is needed.
static double toll(double excess, double room, double load, double elsewhere)
{
    return 2 * (larger(excess - load, 0.0) + larger(load - room, 0.0)) + elsewhere;
}

// The hand-over that gives an expert of the fullest node, with all replicas there, one on another node.
static int find_spill(const Layer *layer, int full, double excess, const double *rooms, double heaviest, Step *best)
{
    int per_node = layer->G / layer->M, expert = NONE, to = NONE;
    double least = 2 * excess, fullest_load = INFINITY;
    for (int node = 0; node < layer->M; node++)
        for (int place = full * per_node * layer->S; place < (full + 1) * per_node * layer->S && rooms[node] > 0; place++) {
            int other = (int)layer->slots[place];
            double load = layer->loads[other] / (layer->counts[other] + 1), cost = toll(excess, rooms[node], load, load);
            if (cost < least && is_whole_on(layer, other, full)) expert = other, to = node, least = cost;
        }
    if (expert == NONE) return 0;
    double weight = layer->loads[expert] / (layer->counts[expert] + 1);
    for (int place = to * per_node * layer->S; place < (to + 1) * per_node * layer->S; place++) {
        int gpu = place / layer->S, giver = (int)layer->slots[place];
        if (layer->counts[giver] == 1 || holds(layer, expert, gpu) || !is_whole_on(layer, giver, to)) continue;
        double heavier = layer->loads[giver] / (layer->counts[giver] - 1);
        if (heavier > heaviest) continue;
        double most = layer->carried[gpu] - layer->weights[giver] + weight;
        for (int replica = 0; replica < layer->counts[giver]; replica++) {
            int home = *home_of(layer, giver, replica);
            if (home != gpu) most = larger(most, layer->carried[home] + heavier - layer->weights[giver]);
        }
        if (most >= fullest_load) continue;
        *best = (Step){gpu, place % layer->S, NONE, NONE, expert};
        fullest_load = most;
    }
    return fullest_load < INFINITY;
}

// The swap of a replica of the fullest node for a lighter one of another node, for nodes that have no slot to spare.
static int find_exchange(const Layer *layer, int full, double excess, const double *rooms, Step *best)
{
    int per_node = layer->G / layer->M, S = layer->S, found = 0;
    double least = 2 * excess;
    for (int gpu = full * per_node; gpu < (full + 1) * per_node; gpu++)
        for (int other_gpu = 0; other_gpu < layer->G; other_gpu++) {
            double room = rooms[other_gpu / per_node];
            for (int slot = 0; slot < S && room > 0; slot++) {
                int expert = at(layer, gpu, slot);
                double weight = layer->weights[expert];
                if (weight >= least || holds(layer, expert, other_gpu)) continue;
                for (int other = 0; other < S; other++) {
                    int light = at(layer, other_gpu, other);
                    double light_weight = layer->weights[light];
                    double cost = toll(excess, room, weight - light_weight, weight + light_weight);
                    if (cost >= least || holds(layer, light, gpu)) continue;
                    *best = (Step){gpu, slot, other_gpu, other, light};
                    least = cost;
                    found = 1;
                }
            }
        }
    return found;
}

// Moves load from the fullest node to another, which may then carry `last` a GPU; returns whether it succeeded.
static int spill_one(Layer *layer, double enough, double last, Step *step)
{
    int per_node = layer->G / layer->M;
    double *nodes = zeros(layer->M, sizeof(double)), *rooms = zeros(layer->M, sizeof(double));
    for (int gpu = 0; gpu < layer->G; gpu++) nodes[gpu / per_node] += layer->carried[gpu];
    int full = largest(nodes, layer->M);
    double excess = nodes[full] - enough * per_node;
    for (int node = 0; node < layer->M; node++) rooms[node] = last * per_node - nodes[node];
    int found = excess > 0 && (find_spill(layer, full, excess, rooms, enough * HEAVIEST, step)
                               || find_exchange(layer, full, excess, rooms, step));
    if (found) make_step(layer, step);
    free(nodes), free(rooms);
    return found;
}

// Swaps among the GPUs of each node until none carries more than `enough`, or no swap helps.
static void even_out_nodes(Layer *layer, const Rules *rules)
{
    int per_node = layer->G / layer->M;
    for (int first = 0; first < layer->G; first += per_node) {
        int end = first + per_node, hot = first + largest(layer->carried + first, per_node);
        if (layer->carried[hot] > rules->enough) even_out(layer, rules, first, end);
        for (;;) {
            hot = first + largest(layer->carried + first, per_node);
            Best best = {0, hot, layer->carried[hot]};
            for (int gpu = first; gpu < end && best.top > rules->enough; gpu++) find_swap_with(layer, rules, gpu, &best);
            if (best.gain == 0) break;
            make_step(layer, &best.step);
        }
    }
}

// Writes maps [1 + Q][L][G][S]: the start, and one for each of Q falling levels of the fullest GPU's load, [Q][L]. Each
// level starts from the map of the one before; a layer that gets no more even for its bytes stays as it was.
EXPORT void spill(int L, int E, int G, int S, int M, int Q, const double *loads, const int64_t *start,
                  const double *levels, int64_t *slots)
{
    Layer layer = make_layer(E, G, S, 1, M, EQUAL);
    size_t size = (size_t)G * S;
    size_t bytes = size * sizeof(int64_t);
    for (int index = 0; index < L; index++) {
        layer.loads = loads + (size_t)index * E;
        take(&layer, start + index * size);
        memcpy(slots + index * size, layer.slots, bytes);
        double carried = peak(&layer);
        for (int level = 0; level < Q; level++) {
            Rules rules = {.enough = levels[(size_t)level * L + index]};
            double last = levels[(size_t)(Q - 1) * L + index];
            Step step;
            for (int turn = 0; turn < MAX_SPILLS && spill_one(&layer, rules.enough, last, &step);) turn++;
            even_out_nodes(&layer, &rules);
            double now = peak(&layer);
            if (now < carried) carried = now;
            else take(&layer, slots + ((size_t)level * L + index) * size);
            memcpy(slots + ((size_t)(level + 1) * L + index) * size, layer.slots, bytes);
        }
    }
    drop(&layer);
}
