// The search from a given map, under any of the constraints of `Rules`.
//
// For a quantile only some windows count: at first those where the start is most even, then other sets, all of them
// where they are few, else those most like the one or the other window. They are chosen anew while the map gets more
// even in others. The worst of them only ever falls, and with it the quantile. The best of these searches is kept, or
// the first that is enough.

enum { REPEATS = 4, FEW_WINDOWS = 5 };  // of choosing the windows that count; assumed

// Covers the expert by the step that uncovers nobody and changes GPU loads least; returns whether there was one.
static int cover_one(Layer *layer, const Rules *rules, int expert, int exposed)
{
    double least = INFINITY;
    Step best = {.other = NONE};
    for (int gpu = 0; gpu < layer->G; gpu++)
        for (int slot = 0; slot < layer->S && !holds(layer, expert, gpu); slot++) {
            int giver = at(layer, gpu, slot);
            double change = fabs(layer->weights[expert] - layer->weights[giver]);
            int others_exposed = num_exposed(layer, rules, giver, NONE, NONE);
            for (int replica = 0; replica <= layer->counts[expert] && change < least; replica++) {
                Step step = {gpu, slot, NONE, 0, expert};
                if (replica < layer->counts[expert]) step.other = homes_of(layer, expert)[replica];
                if (!fits(layer, rules, &step) || num_exposed(layer, rules, expert, step.other, gpu) >= exposed
                    || num_exposed(layer, rules, giver, gpu, step.other) > others_exposed)
                    continue;
                best = step;
                least = change;
            }
        }
    if (least == INFINITY) return 0;
    while (best.other != NONE && at(layer, best.other, best.other_slot) != expert) best.other_slot++;
    make_step(layer, &best);
    return 1;
}

// Exchanges or hands over slots until every expert is covered; returns whether that succeeded.
static int cover(Layer *layer, const Rules *rules)
{
    for (int expert = 0; expert < layer->E; expert++)
        for (int exposed; (exposed = num_exposed(layer, rules, expert, NONE, NONE)) > 0;)
            if (!cover_one(layer, rules, expert, exposed)) return 0;
    return 1;
}

// Deals the experts out one after the other, again and again, to the GPUs in the order of their domains. With slots for
// all of them twice, two replicas are as many slots apart as there are experts, so that no domain of consecutive GPUs
// with at most half of the slots holds both.
static void deal(Layer *layer, const Rules *rules)
{
    double *domains = zeros(layer->G, sizeof(double));
    int *order = zeros(layer->G, sizeof(int));
    int64_t *slots = zeros((size_t)layer->G * layer->S, sizeof(int64_t));
    for (int gpu = 0; gpu < layer->G; gpu++) domains[gpu] = (double)rules->domains[gpu];
    rising(domains, layer->G, order);
    for (int place = 0; place < layer->G * layer->S; place++)
        slots[order[place / layer->S] * layer->S + place % layer->S] = place % layer->E;
    take(layer, slots);
    free(domains), free(order), free(slots);
}

// Counts the nearest windows, in order of their numbers; returns whether they changed.
static int choose(const Rules *rules, const double *distances, int W)
{
    int *order = zeros(W, sizeof(int)), *chosen = zeros(W, sizeof(int)), changed = 0;
    rising(distances, W, order);
    for (int place = 0; place < rules->num_counted; place++) chosen[order[place]] = 1;
    for (int window = 0, place = 0; window < W; window++) {
        if (!chosen[window]) continue;
        changed |= rules->counted[place] != window;
        rules->counted[place++] = window;
    }
    free(order), free(chosen);
    return changed;
}

static int choose_most_even(const Layer *layer, const Rules *rules)
{
    double *most = zeros(layer->W, sizeof(double));
    for (int window = 0; window < layer->W; window++) {
        const double *carried = layer->carried + window * layer->G;
        most[window] = carried[largest(carried, layer->G)];
    }
    int changed = choose(rules, most, layer->W);
    free(most);
    return changed;
}

static int num_sets(const Layer *layer, const Rules *rules)
{
    if (rules->num_counted == layer->W) return 0;
    return layer->W <= FEW_WINDOWS ? 1 << layer->W : layer->W;
}

// Counts set `number` of windows: those of its bits where windows are few, else those most like window `number`. Returns
// whether there is such a set.
static int choose_set(const Layer *layer, const Rules *rules, int number)
{
    int num_bits = 0;
    double *distances = zeros(layer->W, sizeof(double));
    for (int window = 0; window < layer->W; window++) {
        const double *loads = layer->loads + window * layer->E, *centre = layer->loads + number % layer->W * layer->E;
        int is_in = layer->W <= FEW_WINDOWS && (number >> window & 1);
        num_bits += is_in;
        distances[window] = !is_in;
        for (int expert = 0; expert < layer->E && layer->W > FEW_WINDOWS; expert++)
            distances[window] += fabs(loads[expert] - centre[expert]);
    }
    int is_set = layer->W > FEW_WINDOWS || num_bits == rules->num_counted;
    if (is_set) choose(rules, distances, layer->W);
    free(distances);
    return is_set;
}

// Lets load go to a second node, as little as is needed, and from there to the GPUs of that node.
static void respill(Layer *layer, Rules *rules)
{
    Step step;
    for (int turn = 0; turn < MAX_SPILLS && peak(layer, rules) > rules->enough; turn++) {
        if (!spill_one(layer, rules->enough, rules->enough, &step)) break;
        for (int gpu = 0; gpu < layer->G; gpu++) {
            int per_node = layer->G / layer->M, first = gpu - gpu % per_node;
            for (int slot = 0; slot < layer->S; slot++)
                memset(rules->allowed + at(layer, gpu, slot) * layer->G + first, 1, per_node);
        }
        descend(layer, rules, rules->enough);
    }
    rules->allowed = NULL;  // the last resort
    descend(layer, rules, rules->enough);
}

// Tries the other way from the map in service, and keeps it if it is shorter.
static void reseat_if_fewer(Layer *best, Layer *trial, const Rules *rules, const int64_t *start)
{
    take(trial, start);
    if (!take_seats(trial, rules->enough)) return;
    if (peak(best, rules) > rules->enough || num_changed(trial, rules->before) < num_changed(best, rules->before))
        copy(best, trial);
}

// Improves one layer, which holds its start, in the windows that are counted.
static void improve_layer(Layer *best, Layer *trial, Rules *rules, Kicks kicks, int may_spill, const int64_t *start)
{
    int may_reseat = rules->before && !rules->allowed && !rules->num_partitions && best->W == 1 && best->split == EQUAL;
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        descend(best, rules, rules->enough);
        if (may_reseat) reseat_if_fewer(best, trial, rules, start);
        kick_on(best, trial, rules, rules->enough, kicks);
        if (!choose_most_even(best, rules)) break;
    }
    if (may_spill) respill(best, rules);
    if (rules->before && peak(best, rules) <= rules->enough) undo(best, rules);
}

// Improves maps `start`, [L][G][S], and writes them to `slots`. The fullest GPU of a layer should carry `enough` in the
// `num_counted` most even windows. `num_partitions` of the GPUs into domains, [P][G]; `allowed` may be NULL, else
// [L][E][G]. `in_service`: few slots of the start are to change. `is_covered` gets whether every expert of a layer is.
EXPORT void improve(int L, int E, int G, int S, int W, int M, int split, int num_partitions, int num_counted,
                    int num_kicks, int in_service, int may_spill, const double *loads, const int64_t *start,
                    const unsigned char *allowed, const int64_t *domains, const double *enough, int64_t *slots,
                    unsigned char *is_covered)
{
    Layer best = make_layer(E, G, S, W, M, split), trial = like(&best);
    size_t size = (size_t)G * S, pairs = (size_t)E * G;
    unsigned char *before = zeros(pairs, 1), *free_to_go = zeros(pairs, 1);
    Rules rules = {.domains = domains, .num_partitions = num_partitions, .num_counted = num_counted};
    Kicks kicks = {num_kicks, in_service ? 2 : 6, 0, in_service ? 2 : 0, in_service ? num_kicks / 3 : 0, SEED};
    rules.counted = zeros(W, sizeof(int));
    for (int index = 0; index < L; index++) {
        double least = INFINITY;
        best.loads = trial.loads = loads + (size_t)index * W * E;
        rules.enough = enough[index];
        for (int set = NONE; least > rules.enough && set < num_sets(&best, &rules); set++) {
            if (set != NONE && !choose_set(&best, &rules, set)) continue;
            if (allowed) memcpy(rules.allowed = free_to_go, allowed + index * pairs, pairs);
            take(&best, start + index * size);
            if (in_service) rules.before = memcpy(before, best.held, pairs);
            is_covered[index] = cover(&best, &rules);
            if (!is_covered[index]) {
                deal(&best, &rules);
                is_covered[index] = cover(&best, &rules);
            }
            if (set == NONE) choose_most_even(&best, &rules);
            if (is_covered[index]) improve_layer(&best, &trial, &rules, kicks, may_spill, start + index * size);
            double most = peak(&best, &rules);
            if (most < least) {
                least = most;
                keep(&best, slots + index * size);
            }
        }
    }
    free(before), free(free_to_go), free(rules.counted), drop(&best), drop(&trial);
}
