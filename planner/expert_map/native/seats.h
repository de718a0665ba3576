// Few moves where one slot of a GPU is enough: which GPUs give a slot up, and which expert takes it.
//
// A GPU that carries more than `enough` gives up a slot, and an expert that is too heavy for its replicas takes a slot
// from another. Every replica that is without a slot then needs one with room: `enough` less what the other slots of
// that GPU carry. They are seated from the heaviest to the lightest. A slot with room for one has room for all that are
// lighter, so it does not matter which of them is taken. Where no slot has room, one more GPU gives up a slot: of all
// that have room, the one whose replica is lightest, because that replica waits next. As few GPUs as can be give up a
// slot that way (each covers the weights from its replica's to its room, and this is the greedy cover of a line by
// intervals). Which of its slots a too full GPU gives up is then tried one by one. No GPU gives up two slots.

enum { PASSES = 4 };  // assumed, as what the benchmark's goals of moves and of time leave room for

// Hands slots over to experts that are too heavy for any GPU, from experts that get least heavy by losing one; `given`
// gets those slots. Returns whether that is possible.
static int add_replicas(Layer *layer, double enough, int *given)
{
    int *order = zeros(layer->E, sizeof(int));
    double room = enough;
    rising(layer->loads, layer->E, order);
    for (int place = 0; place < layer->S - 1; place++) room -= layer->loads[order[place]];
    free(order);
    for (int expert = 0; expert < layer->E; expert++)
        while (layer->weights[expert] > room) {
            int best = NONE;
            double least = room, most = -INFINITY;
            for (int place = 0; place < layer->G * layer->S; place++) {
                int gpu = place / layer->S, giver = (int)layer->slots[place];
                double weight = layer->counts[giver] > 1 ? layer->loads[giver] / (layer->counts[giver] - 1) : INFINITY;
                if (weight > least || holds(layer, expert, gpu) || given[gpu] != NONE) continue;
                if (weight == least && layer->carried[gpu] <= most) continue;
                best = place, least = weight, most = layer->carried[gpu];
            }
            if (best == NONE) return 0;
            given[best / layer->S] = best % layer->S;
            hand_over(layer, expert, best / layer->S, best % layer->S);
        }
    return 1;
}

// The slot that the expert takes: the one with least room that is empty in `slots`, or if none has room the one with the
// lightest expert of all GPUs that are not `changed`; or NONE.
static int find_seat(const Layer *layer, double enough, int expert, const int64_t *slots, const int *changed)
{
    int best = NONE;
    double weight = layer->weights[expert], least = INFINITY;
    for (int place = 0; place < layer->G * layer->S; place++) {
        int gpu = place / layer->S, is_empty = slots[place] == NONE, is_held = 0;
        double leaves = layer->weights[layer->slots[place]], room = enough - layer->carried[gpu] + leaves;
        double rank = is_empty ? room - enough : leaves;  // empty ones come first
        if (room < weight || rank >= least || (!is_empty && (changed[gpu] || leaves >= weight))) continue;
        for (int slot = 0; slot < layer->S; slot++) is_held |= slots[gpu * layer->S + slot] == expert;
        if (is_held) continue;
        best = place;
        least = rank;
    }
    return best;
}

// Writes a map in which every replica whose slot is given up has another. Returns how many more GPUs gave one up, or more
// than `most` when it takes more than that.
static int seat(const Layer *layer, double enough, const int *falling, const int *given, int most, int64_t *slots)
{
    int num_more = 0, *waiting = zeros(layer->E, sizeof(int)), *changed = zeros(layer->G, sizeof(int));
    memcpy(slots, layer->slots, (size_t)layer->G * layer->S * sizeof(int64_t));
    for (int gpu = 0; gpu < layer->G; gpu++) {
        if (given[gpu] == NONE) continue;
        changed[gpu] = 1;
        waiting[at(layer, gpu, given[gpu])]++;
        slots[gpu * layer->S + given[gpu]] = NONE;
    }
    for (int number = 0; number < layer->E && num_more <= most; number++)
        for (int expert = falling[number]; waiting[expert] > 0 && num_more <= most; waiting[expert]--) {
            int place = find_seat(layer, enough, expert, slots, changed);
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
    for (int slot = 1; slot < layer->S; slot++)
        if (layer->weights[at(layer, gpu, slot)] < layer->weights[at(layer, gpu, lightest)]) lightest = slot;
    return lightest;
}

// The experts from the heaviest replica to the lightest.
static void falling_weights(const Layer *layer, int *falling)
{
    double *negated = zeros(layer->E, sizeof(double));
    for (int expert = 0; expert < layer->E; expert++) negated[expert] = -layer->weights[expert];
    rising(negated, layer->E, falling);
    free(negated);
}

// Changes one slot of some GPUs so that none carries more than `enough`. Returns whether that was found; the layer then
// has that map, and else is of no use any more.
static int take_seats(Layer *layer, double enough)
{
    int G = layer->G, S = layer->S, fewest = G, last = NONE;
    int *given = zeros(G, sizeof(int)), *may_choose = zeros(G, sizeof(int)), *falling = zeros(layer->E, sizeof(int));
    int64_t *slots = zeros((size_t)G * S, sizeof(int64_t)), *best = zeros((size_t)G * S, sizeof(int64_t));
    for (int gpu = 0; gpu < G; gpu++) given[gpu] = NONE;
    int passes = add_replicas(layer, enough, given) ? PASSES : 0;
    falling_weights(layer, falling);
    for (int gpu = 0; gpu < G; gpu++) {
        may_choose[gpu] = given[gpu] == NONE && layer->carried[gpu] > enough;
        if (may_choose[gpu]) given[gpu] = lightest_slot(layer, gpu);
    }
    for (int turn = 0; turn < passes * G * S && turn - last <= G * S; turn++) {
        int gpu = turn / S % G, slot = turn % S, was = given[gpu];
        if (turn > 0 && (!may_choose[gpu] || slot == was)) continue;
        if (turn > 0) given[gpu] = slot;
        int num_more = seat(layer, enough, falling, given, fewest, slots);
        if (num_more <= fewest) {  // as many open the way to fewer
            fewest = num_more;
            last = turn;
            memcpy(best, slots, (size_t)G * S * sizeof(int64_t));
        } else {
            given[gpu] = was;
        }
    }
    if (last != NONE) take(layer, best);
    free(given), free(may_choose), free(falling), free(slots), free(best);
    return last != NONE;
}
