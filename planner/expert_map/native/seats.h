// Few moves where one slot of a GPU is enough: which GPUs give a slot up, and which expert takes it.
//
// A GPU that carries more than `enough` gives up a slot at least, and an expert that is too heavy for its replicas needs
// one more slot. Every replica that lost its slot, and every new one, then needs one with room: `enough` less what the
// other slots of that GPU carry. A replica that fits somewhere fits wherever there is more room, so there is a seat for
// all of them if, and only if,
//
//     for every weight t     replicas that weigh t or more  <=  given up slots with room for t or more
//
// A slot given up by a GPU that carries too much adds one to the left for weights from its room to its weight, and one
// by a GPU that carries less than enough adds one to the right for weights from its weight to its room. So the GPUs that
// give up a slot without need have to cover an interval of weights each, and as few as can be are those that reach
// farthest, from the least weight on (the greedy cover of a line by intervals). Which of its slots a too full GPU gives
// up is then tried one by one. No GPU gives up two slots.

enum { PASSES = 8, ATTEMPTS = 16 };  // assumed, as what the benchmark's goals of moves and of time leave room for
enum { IMPOSSIBLE = 1 << 30, KEPT = 1 << 30 };  // KEPT: a weight that nobody's room reaches

typedef struct {
    int G, S, num_ranks;
    int *weights, *rooms;  // [G][S] of the expert there, for who comes instead: ranks among all of both
    int *newcomers;        // [ranks + 1] how many new replicas weigh at least so much: differences from rank to rank
    int *given;            // [G] the slot that a GPU has to give up, or NONE
    int *is_gone;          // [G] who gives it up needs no other
} Seats;

// Gives experts too heavy for any GPU more replicas, taken from experts that get least heavy by losing one; returns
// whether that is possible.
static int recount(const Layer *layer, int *counts, double enough)
{
    int missing = 0, *order = zeros(layer->E, sizeof(int));
    double room = enough;
    rising(layer->loads, layer->E, order);
    for (int place = 0; place < layer->S - 1; place++) room -= layer->loads[order[place]];
    free(order);
    for (int expert = 0; expert < layer->E; expert++)
        while (whole(layer->loads[expert] / counts[expert]) > room) {
            if (counts[expert] == layer->G) return 0;
            counts[expert]++;
            missing++;
        }
    for (; missing > 0; missing--) {
        int giver = NONE;
        double least = room;
        for (int expert = 0; expert < layer->E; expert++) {
            if (counts[expert] <= 1 || counts[expert] > layer->counts[expert]) continue;
            double weight = layer->loads[expert] / (counts[expert] - 1);
            if (weight <= least) giver = expert, least = weight;
        }
        if (giver == NONE) return 0;
        counts[giver]--;
    }
    return 1;
}

// Gives up GPU by GPU what must be given up: an expert with too many replicas the one on the fullest GPU, a GPU that
// carries too much its lightest.
static void give_up(const Layer *layer, Seats *seats, const int *counts, const double *weights, const double *carried,
                    double enough)
{
    for (int expert = 0; expert < layer->E; expert++)
        for (int surplus = layer->counts[expert] - counts[expert]; surplus > 0; surplus--) {
            int from = NONE;
            for (int replica = 0; replica < layer->counts[expert]; replica++) {
                int gpu = homes_of(layer, expert)[replica];
                if (seats->given[gpu] == NONE && (from == NONE || carried[gpu] > carried[from])) from = gpu;
            }
            if (from == NONE) continue;
            seats->is_gone[from] = 1;
            for (int slot = 0; slot < layer->S; slot++)
                if (at(layer, from, slot) == expert) seats->given[from] = slot;
        }
    for (int gpu = 0; gpu < layer->G; gpu++) {
        if (seats->given[gpu] != NONE || carried[gpu] <= enough) continue;
        seats->given[gpu] = 0;
        for (int slot = 1; slot < layer->S; slot++)
            if (weights[at(layer, gpu, slot)] < weights[at(layer, gpu, seats->given[gpu])]) seats->given[gpu] = slot;
    }
}

static Seats make_seats(const Layer *layer, const int *counts, const double *weights, const double *carried, double enough)
{
    int size = layer->G * layer->S, num_values = 2 * size + layer->E, rank = NONE;
    Seats seats = {layer->G, layer->S, num_values, zeros(size, sizeof(int)), zeros(size, sizeof(int)),
                   zeros(num_values + 1, sizeof(int)), zeros(layer->G, sizeof(int)), zeros(layer->G, sizeof(int))};
    double *values = zeros(num_values, sizeof(double)), last = -INFINITY;
    int *order = zeros(num_values, sizeof(int)), *ranks = zeros(num_values, sizeof(int));
    for (int place = 0; place < size; place++) {
        values[place] = weights[layer->slots[place]];
        values[size + place] = enough - carried[place / layer->S] + values[place];
    }
    memcpy(values + 2 * size, weights, layer->E * sizeof(double));
    rising(values, num_values, order);
    for (int place = 0; place < num_values; place++) {
        rank += values[order[place]] > last;
        last = values[order[place]];
        ranks[order[place]] = rank;
    }
    memcpy(seats.weights, ranks, size * sizeof(int));
    memcpy(seats.rooms, ranks + size, size * sizeof(int));
    for (int expert = 0; expert < layer->E; expert++) {
        int more = counts[expert] > layer->counts[expert] ? counts[expert] - layer->counts[expert] : 0;
        seats.newcomers[0] += more;
        seats.newcomers[ranks[2 * size + expert] + 1] -= more;
    }
    for (int gpu = 0; gpu < layer->G; gpu++) seats.given[gpu] = NONE;
    give_up(layer, &seats, counts, weights, carried, enough);
    free(values), free(order), free(ranks);
    return seats;
}

// Gives up slots of GPUs with room left until every replica has a seat; returns how many. `covering` gets the slot of
// each of those GPUs.
static int cover_weights(const Seats *seats, int *covering)
{
    int missing = 0, num_covering = 0, *needed = zeros(seats->num_ranks + 1, sizeof(int));
    memcpy(needed, seats->newcomers, (seats->num_ranks + 1) * sizeof(int));
    for (int gpu = 0; gpu < seats->G; gpu++) {
        covering[gpu] = NONE;
        if (seats->given[gpu] == NONE) continue;
        int place = gpu * seats->S + seats->given[gpu];
        needed[0]--;
        needed[seats->rooms[place] + 1]++;
        if (seats->is_gone[gpu]) continue;
        needed[0]++;
        needed[seats->weights[place] + 1]--;
    }
    for (int rank = 0; rank <= seats->num_ranks; rank++)
        for (missing += needed[rank]; missing > 0; missing--, num_covering++) {
            int best = NONE, farthest = rank - 1;
            for (int place = 0; place < seats->G * seats->S; place++)
                if (seats->rooms[place] > farthest && seats->weights[place] < rank
                    && seats->given[place / seats->S] == NONE && covering[place / seats->S] == NONE)
                    best = place, farthest = seats->rooms[place];
            if (best == NONE) {
                free(needed);
                return IMPOSSIBLE;
            }
            covering[best / seats->S] = best % seats->S;
            needed[farthest + 1]++;
        }
    free(needed);
    return num_covering;
}

// Lets full GPUs give up other slots, while that lets fewer other GPUs give one up; returns how many others do.
static int try_slots(Seats *seats, int *covering)
{
    int fewest = cover_weights(seats, covering), *trial = zeros(seats->G, sizeof(int));
    for (int pass = 0; pass < PASSES; pass++)
        for (int gpu = 0; gpu < seats->G; gpu++)
            for (int slot = 0; slot < seats->S; slot++) {
                int was = seats->given[gpu];
                if (was == NONE || seats->is_gone[gpu] || slot == was) continue;
                if (seats->weights[gpu * seats->S + slot] == KEPT) continue;
                seats->given[gpu] = slot;
                int num_covering = cover_weights(seats, trial);
                if (num_covering > fewest) {
                    seats->given[gpu] = was;
                } else {  // as many open the way to fewer
                    fewest = num_covering;
                    memcpy(covering, trial, seats->G * sizeof(int));
                }
            }
    free(trial);
    return fewest;
}

static int is_held_beside(const int64_t *here, int S, int given, int expert)
{
    int found = 0;
    for (int slot = 0; slot < S; slot++) found |= slot != given && here[slot] == expert;
    return found;
}

// The heaviest waiting expert that fits the slot and that the GPU does not hold, or NONE.
static int heaviest_that_fits(const int64_t *here, int S, int given, const int *waiting, const double *weights, int E,
                              double room)
{
    int best = NONE;
    for (int expert = 0; expert < E; expert++)
        if (waiting[expert] > 0 && weights[expert] <= room && (best == NONE || weights[expert] > weights[best])
            && !is_held_beside(here, S, given, expert))
            best = expert;
    return best;
}

// Puts every waiting replica into a slot with room: the slot with least room first, and into it the heaviest that fits.
// Where a GPU holds all that would fit, an expert seated before moves there and a waiting one takes its seat. Returns
// NONE, or the GPU whose slot no replica can take.
static int seat(int64_t *slots, const Seats *seats, const int *old_counts, const int *counts, const double *weights,
                const double *left, const int *given, int E)
{
    int G = seats->G, S = seats->S, failed = NONE;
    int *waiting = zeros(E, sizeof(int)), *order = zeros(G, sizeof(int));
    double *rooms = zeros(G, sizeof(double));
    for (int expert = 0; expert < E; expert++)
        waiting[expert] = counts[expert] > old_counts[expert] ? counts[expert] - old_counts[expert] : 0;
    for (int gpu = 0; gpu < G; gpu++) {
        rooms[gpu] = INFINITY;
        if (given[gpu] == NONE) continue;
        rooms[gpu] = left[gpu] + weights[slots[gpu * S + given[gpu]]];
        waiting[slots[gpu * S + given[gpu]]] += !seats->is_gone[gpu];
    }
    rising(rooms, G, order);
    for (int number = 0; number < G && failed == NONE && given[order[number]] != NONE; number++) {
        int gpu = order[number];
        int64_t *here = slots + gpu * S;
        int best = heaviest_that_fits(here, S, given[gpu], waiting, weights, E, rooms[gpu]);
        if (best != NONE) waiting[best]--;
        for (int place = 0; place < number && best == NONE; place++) {
            int64_t *there = slots + order[place] * S;
            int other = given[order[place]], expert = (int)there[other];
            if (is_held_beside(here, S, given[gpu], expert)) continue;
            int instead = heaviest_that_fits(there, S, other, waiting, weights, E, rooms[order[place]]);
            if (instead == NONE) continue;
            waiting[instead]--;
            there[other] = instead;
            best = expert;
        }
        if (best == NONE) failed = gpu;
        else here[given[gpu]] = best;
    }
    free(waiting), free(order), free(rooms);
    return failed;
}

// Makes the GPU keep the expert in that slot, and give up another if it must give up one; returns whether that can be.
static int bar(Seats *seats, int gpu, int slot)
{
    int *here = seats->weights + gpu * seats->S, lightest = 0;
    here[slot] = KEPT;
    if (seats->given[gpu] == NONE) return 1;
    for (int other = 1; other < seats->S; other++)
        if (here[other] < here[lightest]) lightest = other;
    seats->given[gpu] = lightest;
    return !seats->is_gone[gpu] && here[lightest] != KEPT;
}

// Changes one slot of some GPUs so that none carries more than `enough`; returns whether that was found. If not, the
// layer stays as it was.
static int take_seats(Layer *layer, double enough)
{
    int G = layer->G, S = layer->S, E = layer->E, found = 0;
    int *counts = zeros(E, sizeof(int)), *covering = zeros(G, sizeof(int));
    double *weights = zeros(E, sizeof(double)), *carried = zeros(G, sizeof(double)), *left = zeros(G, sizeof(double));
    int64_t *slots = zeros((size_t)G * S, sizeof(int64_t));
    memcpy(counts, layer->counts, E * sizeof(int));
    int tries = recount(layer, counts, enough) ? ATTEMPTS : 0;
    for (int expert = 0; expert < E; expert++) weights[expert] = whole(layer->loads[expert] / counts[expert]);
    for (int place = 0; place < G * S; place++) carried[place / S] += weights[layer->slots[place]];
    for (int gpu = 0; gpu < G; gpu++) left[gpu] = enough - carried[gpu];
    Seats seats = make_seats(layer, counts, weights, carried, enough);
    for (; tries > 0 && !found && try_slots(&seats, covering) < IMPOSSIBLE; tries--) {
        memcpy(slots, layer->slots, (size_t)G * S * sizeof(int64_t));
        for (int gpu = 0; gpu < G; gpu++)
            if (seats.given[gpu] > covering[gpu]) covering[gpu] = seats.given[gpu];
        int without = seat(slots, &seats, layer->counts, counts, weights, left, covering, E);
        if (without == NONE) found = 1;
        else if (!bar(&seats, without, covering[without])) break;
    }
    if (found) take(layer, slots);
    free(counts), free(covering), free(weights), free(carried), free(left), free(slots);
    free(seats.weights), free(seats.rooms), free(seats.newcomers), free(seats.given), free(seats.is_gone);
    return found;
}
