// The search: relieve the fullest GPU step by step, then kick the map and relieve it again.
//
// The fullest is looked for over all windows that count. A step is a swap or a hand-over after which no GPU that it
// touches carries as much in any of them, and the step that gains most is made. Constraints:
//
//     allowed     where an expert may go, because its group stays on a node, say
//     domains     no expert may come to have all its replicas in one failure domain
//     before      the map in service: gain counts per slot whose GPU did not hold its expert before, and only down to
//                 `enough`; in the end every change that is not needed is undone
//
// Without any of these, for one window and equal shares, `relieve_plainly` finds steps sooner.
//
// Random numbers are our own (xorshift64, G. Marsaglia 2003), the same on every machine. A count ends the search, never
// a clock.

static const double FREE = 0.2;  // slots that a step without cost counts as; assumed
enum { MAX_TRIES = 50 };
static const uint64_t SEED = 88172645463325252u;

typedef struct {
    unsigned char *allowed;         // [E][G]; NULL: anywhere
    const unsigned char *before;    // [E][G]; NULL: nothing is in service
    const int64_t *domains;         // [P][G], the domain of each GPU
    int num_partitions;             // P
    int *counted, num_counted;      // the windows that count
    double enough;                  // what the fullest GPU may carry
} Rules;

typedef struct {
    int number, changes;
    int larger_every, any_every;    // every so many kicks four times the changes; every so many not for the fullest GPU
    int num_careful;                // of these first ones, those that only come as far may not cost more slots
    uint64_t seed;
} Kicks;

static int is_plain(const Layer *layer, const Rules *rules)
{
    return layer->W == 1 && layer->split == EQUAL && !rules->allowed && !rules->before && !rules->num_partitions;
}

// The most that a GPU carries in a window that counts, and where.
static double most_carried(const Layer *layer, const Rules *rules, int *worst, int *hot)
{
    double most = -1.0;
    for (int place = 0; place < rules->num_counted; place++) {
        const double *carried = layer->carried + rules->counted[place] * layer->G;
        int gpu = largest(carried, layer->G);
        if (carried[gpu] > most) most = carried[gpu], *worst = rules->counted[place], *hot = gpu;
    }
    return most;
}

static double peak(const Layer *layer, const Rules *rules)
{
    int worst = 0, hot = 0;
    return most_carried(layer, rules, &worst, &hot);
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
            int home = homes_of(layer, expert)[replica];
            if (home == leaves) continue;
            apart |= first != NONE && domains[home] != first;
            first = domains[home];
        }
        exposed += !apart;
    }
    return exposed;
}

static int may_enter(const Layer *layer, const Rules *rules, int expert, int gpu)
{
    return !holds(layer, expert, gpu) && (!rules->allowed || rules->allowed[expert * layer->G + gpu]);
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
    int leaving = at(layer, step->gpu, step->slot);
    return !num_exposed(layer, rules, leaving, step->gpu, step->other)
        && !num_exposed(layer, rules, step->comer, step->other, step->gpu);
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
    if (equal)
        parts = (Parts){weights[leaving], weights[comer], part(layer, window, leaving, NONE, step->gpu, NONE),
                        part(layer, window, comer, NONE, NONE, step->gpu)};
    double most = load_after(layer, window, step->gpu, step, equal);
    for (int number = 0; number < num_leaving + layer->counts[comer] && most < limit; number++) {
        int is_leaving = number < num_leaving;
        int home = is_leaving ? homes_of(layer, leaving)[number] : homes_of(layer, comer)[number - num_leaving];
        if (home != step->gpu && (is_leaving || !holds(layer, leaving, home)))
            most = larger(most, load_after(layer, window, home, step, equal));
    }
    return most;
}

// The same in any window that counts.
static double peak_after(const Layer *layer, const Rules *rules, const Step *step, double limit)
{
    int leaving = at(layer, step->gpu, step->slot);
    double most = 0.0;
    for (int place = 0; place < rules->num_counted && most < limit; place++) {
        int window = rules->counted[place];
        if (layer->split != EQUAL || step->other == NONE) {
            most = larger(most, peak_in(layer, window, step, limit));
            continue;
        }
        const double *weights = layer->weights + window * layer->E, *carried = layer->carried + window * layer->G;
        double moved = weights[leaving] - weights[step->comer];
        most = larger(most, larger(carried[step->gpu] - moved, carried[step->other] + moved));
    }
    return most;
}

// How many more slots hold an expert that their GPU did not hold before.
static int slots_changed(const Layer *layer, const Rules *rules, const Step *step)
{
    const unsigned char *leaving = rules->before + at(layer, step->gpu, step->slot) * layer->G;
    const unsigned char *comer = rules->before + step->comer * layer->G;
    int here = leaving[step->gpu] - comer[step->gpu];
    return step->other == NONE ? here : here + comer[step->other] - leaving[step->other];
}

typedef struct { Step step; double top, gain; } Best;

static void consider(const Layer *layer, const Rules *rules, const Step *step, Best *best)
{
    if (!fits(layer, rules, step)) return;
    double cost = rules->before ? larger(slots_changed(layer, rules, step), FREE) : 1.0;
    double floor = rules->before ? rules->enough : 0.0, limit = best->top - best->gain * cost;
    if (limit <= floor) return;
    double most = peak_after(layer, rules, step, limit);
    if (most >= limit || !stays_covered(layer, rules, step)) return;
    best->step = *step;
    best->gain = (best->top - larger(most, floor)) / cost;
}

// The most that GPUs with other replicas of the giver carry once it has lost the one on this GPU, in one window.
static double most_elsewhere(const Layer *layer, int window, int giver, int gpu)
{
    int place = window * layer->E + giver;
    double heavier = whole(layer->loads[place] / (layer->counts[giver] - 1)) - layer->weights[place], most = 0.0;
    for (int replica = 0; replica < layer->counts[giver]; replica++) {
        int home = homes_of(layer, giver)[replica];
        if (home != gpu) most = larger(most, layer->carried[window * layer->G + home] + heavier);
    }
    return most;
}

// Makes the step that gains most; returns whether there was one. With equal shares, the loads of one or two GPUs in the
// worst window show that most steps gain too little; only the others are looked at closely.
static int relieve(Layer *layer, const Rules *rules, int worst, int hot)
{
    const double *carried = layer->carried + worst * layer->G, *weights = layer->weights + worst * layer->E;
    const double *if_more = layer->weights_if_more + worst * layer->E;
    double least_cost = rules->before ? FREE : 1.0;
    int is_equal = layer->split == EQUAL;
    Best best = {.top = carried[hot], .gain = 0.0};
    for (int gpu = 0; gpu < layer->G; gpu++) {
        for (int slot = 0; slot < layer->S && carried[gpu] < best.top; slot++) {
            int leaving = at(layer, hot, slot);
            for (int other = 0; other < layer->S && may_enter(layer, rules, leaving, gpu); other++) {
                int coming = at(layer, gpu, other);
                double moved = weights[leaving] - weights[coming], gain = best.gain * least_cost;
                if (is_equal && (moved <= gain || carried[gpu] + moved >= best.top - gain)) continue;
                consider(layer, rules, &(Step){hot, slot, gpu, other, coming}, &best);
            }
        }
        for (int slot = 0; slot < layer->S; slot++) {
            int giver = at(layer, gpu, slot);
            if (layer->counts[giver] == 1) continue;
            double elsewhere = is_equal ? most_elsewhere(layer, worst, giver, gpu) : 0.0;
            for (int number = 0; number < (gpu == hot ? layer->E : layer->S); number++) {
                int comer = gpu == hot ? number : at(layer, hot, number);
                double lighter = weights[comer] - if_more[comer], gain = best.gain * least_cost;
                double here = carried[gpu] - weights[giver] + if_more[comer];
                if (is_equal && larger(here, elsewhere - lighter) >= best.top - gain) continue;
                if (is_equal && gpu != hot && lighter <= gain) continue;
                consider(layer, rules, &(Step){gpu, slot, NONE, NONE, comer}, &best);
            }
        }
    }
    if (best.gain > 0) make_step(layer, &best.step);
    return best.gain > 0;
}

// Relieves the fullest GPU until it carries `enough` or no step helps; returns what it carries.
static double descend(Layer *layer, const Rules *rules, double enough)
{
    for (;;) {
        int worst = 0, hot = 0;
        double most = most_carried(layer, rules, &worst, &hot);
        if (most <= enough) return most;
        if (!(is_plain(layer, rules) ? relieve_plainly(layer, hot) : relieve(layer, rules, worst, hot))) return most;
    }
}

static int draw(uint64_t *state, int below)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (int)((*state >> 11) % (uint64_t)below);
}

// Makes a random step: a hand-over to any expert, or to one of the fullest GPU; or a swap of a slot of the fullest GPU.
static int try_any(Layer *layer, const Rules *rules, uint64_t *state, int for_fullest)
{
    int worst = 0, hot = 0, gives = draw(state, 2), gpu = draw(state, layer->G), slot = draw(state, layer->S);
    int number = draw(state, gives && !for_fullest ? layer->E : layer->S);
    most_carried(layer, rules, &worst, &hot);
    Step step = {hot, slot, gpu, number, at(layer, gpu, gives ? slot : number)};
    if (gives) step = (Step){gpu, slot, NONE, NONE, for_fullest ? at(layer, hot, number) : number};
    if (!fits(layer, rules, &step) || !stays_covered(layer, rules, &step)) return 0;
    make_step(layer, &step);
    return 1;
}

static void kick(Layer *layer, const Rules *rules, uint64_t *state, int num_changes, int for_fullest)
{
    for (int tries = 0, changes = 0; tries < MAX_TRIES && changes < num_changes; tries++)
        changes += try_any(layer, rules, state, for_fullest);
}

static int num_changed(const Layer *layer, const unsigned char *before)
{
    int changed = 0;
    for (int gpu = 0; gpu < layer->G; gpu++)
        for (int slot = 0; slot < layer->S; slot++) changed += !before[at(layer, gpu, slot) * layer->G + gpu];
    return changed;
}

// Kicks the best map and relieves it, until the fullest GPU carries `until`; returns how often. Better maps are kept.
static int kick_on(Layer *best, Layer *trial, const Rules *rules, double until, Kicks kicks)
{
    copy(trial, best);
    for (int turn = 0; turn < kicks.number; turn++) {
        double reached = peak(best, rules);
        if (reached <= until) return turn;
        int is_larger = kicks.larger_every && turn % kicks.larger_every == kicks.larger_every - 1;
        int for_fullest = kicks.any_every && turn % kicks.any_every != kicks.any_every - 1;
        kick(trial, rules, &kicks.seed, kicks.changes * (is_larger ? 4 : 1), for_fullest);
        double most = descend(trial, rules, rules->enough);
        int may_be_as_good = turn >= kicks.num_careful
            || num_changed(trial, rules->before) <= num_changed(best, rules->before);
        if (most < reached || (most == reached && may_be_as_good)) copy(best, trial);
        else copy(trial, best);
    }
    return kicks.number;
}

// Puts experts back where they were before, while no GPU comes to carry more than `enough`: an expert takes its slot
// back from one that has other replicas, or changes places with it.
static void undo(Layer *layer, const Rules *rules)
{
    for (int undone = 1; undone;) {
        undone = 0;
        for (int gpu = 0; gpu < layer->G; gpu++)
            for (int slot = 0; slot < layer->S; slot++)
                for (int expert = 0; expert < layer->E; expert++) {
                    if (rules->before[at(layer, gpu, slot) * layer->G + gpu]) break;
                    if (!rules->before[expert * layer->G + gpu] || holds(layer, expert, gpu)) continue;
                    Step step = {gpu, slot, NONE, NONE, expert};
                    int replica = layer->counts[at(layer, gpu, slot)] > 1 ? NONE : 0;
                    for (; replica < layer->counts[expert]; replica++) {
                        if (replica != NONE) {
                            step.other = homes_of(layer, expert)[replica];
                            if (rules->before[expert * layer->G + step.other]) continue;
                            for (step.other_slot = 0; at(layer, step.other, step.other_slot) != expert;) step.other_slot++;
                        }
                        if (fits(layer, rules, &step) && peak_after(layer, rules, &step, INFINITY) <= rules->enough
                            && stays_covered(layer, rules, &step)) {
                            make_step(layer, &step);
                            undone = 1;
                            break;
                        }
                    }
                }
    }
}
