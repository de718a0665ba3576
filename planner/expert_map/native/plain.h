// The quick way to relieve the fullest GPU, where any expert may go anywhere, for one window of load and equal shares.
//
// Each step is the swap of one of its slots that leaves the fuller of the two GPUs emptiest. Where no swap helps, the
// best hand-over follows: one of its experts gets a replica elsewhere, or one that has replicas elsewhere leaves it.
// Swaps come first because they are found in a third of the time, and a search that kicks gets as far by them. With four
// or five slots a GPU, where single swaps run out early, two slots are swapped for two when nothing else helps.
//
// `even_out` comes before, because it is quick: GPUs pair up, the fullest with the emptiest, and every pair makes the
// swap that leaves its two loads closest.

typedef struct { int gpu, slot, other, other_slot, comer; } Step;  // `other` NONE: a hand-over to `comer`

static void make_step(Layer *layer, const Step *step)
{
    if (step->other == NONE) hand_over(layer, step->comer, step->gpu, step->slot);
    else swap(layer, step->gpu, step->slot, step->other, step->other_slot);
}

// The best swap with a GPU from `first` up to `end`; what the fuller of the two then carries, or `carried[hot]`.
static double best_swap(const Layer *layer, int hot, int first, int end, Step *best)
{
    const double *weights = layer->weights, *carried = layer->carried;
    double least = carried[hot];
    for (int gpu = first; gpu < end; gpu++) {
        if (carried[hot] + carried[gpu] >= 2 * least) continue;  // one of two carries at least half of both
        for (int slot = 0; slot < layer->S; slot++) {
            int leaving = at(layer, hot, slot);
            if (holds(layer, leaving, gpu)) continue;
            for (int other = 0; other < layer->S; other++) {
                int coming = at(layer, gpu, other);
                double moved = weights[leaving] - weights[coming];
                double fuller = larger(carried[hot] - moved, carried[gpu] + moved);
                if (fuller < least && !holds(layer, coming, hot)) {
                    *best = (Step){hot, slot, gpu, other, coming};
                    least = fuller;
                }
            }
        }
    }
    return least;
}

// What the fullest GPU touched carries, after the giver lost its slot on `gpu` and `expert` of the hot GPU took it.
static double after_replica(const Layer *layer, int hot, int gpu, int giver, int expert, double weight, double least)
{
    const double *weights = layer->weights, *carried = layer->carried;
    double heavier = whole(layer->loads[giver] / (layer->counts[giver] - 1)) - weights[giver];
    double lighter = weights[expert] - weight;
    double fuller = larger(carried[gpu] - weights[giver] + weight,
                           carried[hot] - lighter + (holds(layer, giver, hot) ? heavier : 0.0));
    for (int replica = 0; replica < layer->counts[giver] && fuller < least; replica++) {
        int home = homes_of(layer, giver)[replica];
        if (home != gpu && home != hot)
            fuller = larger(fuller, carried[home] + heavier - (holds(layer, expert, home) ? lighter : 0.0));
    }
    return fuller;
}

// The best hand-over that gives an expert of the hot GPU another replica elsewhere.
static double best_replica(const Layer *layer, int hot, double least, Step *best)
{
    const double *weights = layer->weights, *carried = layer->carried, *loads = layer->loads;
    double lightest = INFINITY, most_lighter = 0.0;
    for (int number = 0; number < layer->S; number++) {
        int expert = at(layer, hot, number);
        double weight = layer->weights_if_more[expert];
        lightest = smaller(lightest, weight);
        most_lighter = larger(most_lighter, weights[expert] - weight);
    }
    for (int gpu = 0; gpu < layer->G; gpu++)
        for (int slot = 0; slot < layer->S && gpu != hot; slot++) {
            int giver = at(layer, gpu, slot);
            if (layer->counts[giver] == 1 || carried[gpu] - weights[giver] + lightest >= least) continue;
            double heavier = whole(loads[giver] / (layer->counts[giver] - 1)) - weights[giver], elsewhere = 0.0;
            for (int replica = 0; replica < layer->counts[giver]; replica++) {
                int home = homes_of(layer, giver)[replica];
                if (home != gpu && home != hot) elsewhere = larger(elsewhere, carried[home]);
            }
            if (elsewhere + heavier - most_lighter >= least) continue;  // whoever of the hot GPU's is there as well
            for (int number = 0; number < layer->S; number++) {
                int expert = at(layer, hot, number);
                if (expert == giver || holds(layer, expert, gpu)) continue;
                double weight = layer->weights_if_more[expert];
                double fuller = after_replica(layer, hot, gpu, giver, expert, weight, least);
                if (fuller < least) {
                    *best = (Step){gpu, slot, NONE, NONE, expert};
                    least = fuller;
                }
            }
        }
    return least;
}

// The best expert to take a slot of the hot GPU from one that has replicas elsewhere.
static double best_newcomer(const Layer *layer, int hot, double least, Step *best)
{
    const double *weights = layer->weights, *carried = layer->carried, *loads = layer->loads;
    for (int slot = 0; slot < layer->S; slot++) {
        int giver = at(layer, hot, slot);
        if (layer->counts[giver] == 1) continue;
        double heavier = whole(loads[giver] / (layer->counts[giver] - 1)) - weights[giver], elsewhere = 0.0;
        for (int replica = 0; replica < layer->counts[giver]; replica++) {
            int home = homes_of(layer, giver)[replica];
            if (home != hot) elsewhere = larger(elsewhere, carried[home] + heavier);
        }
        for (int expert = 0; expert < layer->E && elsewhere < least; expert++) {
            double weight = layer->weights_if_more[expert];
            double fuller = larger(elsewhere, carried[hot] - weights[giver] + weight);
            if (fuller < least && expert != giver && !holds(layer, expert, hot)) {
                *best = (Step){hot, slot, NONE, NONE, expert};
                least = fuller;
            }
        }
    }
    return least;
}

// Makes the best swap of two slots for two; returns whether there was one.
static int swap_two(Layer *layer, int hot)
{
    const double *weights = layer->weights, *carried = layer->carried;
    double least = carried[hot];
    Step one = {.gpu = NONE}, two = one;
    if (layer->S != 4 && layer->S != 5) return 0;
    for (int gpu = 0; gpu < layer->G; gpu++) {
        if (carried[hot] + carried[gpu] >= 2 * least) continue;
        for (int first = 0; first < layer->S; first++)
            for (int second = first + 1; second < layer->S; second++) {
                int leaving = at(layer, hot, first), leaving_too = at(layer, hot, second);
                if (holds(layer, leaving, gpu) || holds(layer, leaving_too, gpu)) continue;
                double both = weights[leaving] + weights[leaving_too];
                for (int third = 0; third < layer->S; third++)
                    for (int fourth = 0; fourth < third; fourth++) {
                        int coming = at(layer, gpu, third), coming_too = at(layer, gpu, fourth);
                        double moved = both - (weights[coming] + weights[coming_too]);
                        double fuller = larger(carried[hot] - moved, carried[gpu] + moved);
                        if (fuller >= least || holds(layer, coming, hot) || holds(layer, coming_too, hot)) continue;
                        one = (Step){hot, first, gpu, third, coming};
                        two = (Step){hot, second, gpu, fourth, coming_too};
                        least = fuller;
                    }
            }
    }
    if (one.gpu == NONE) return 0;
    make_step(layer, &one);
    make_step(layer, &two);
    return 1;
}

static int relieve_plainly(Layer *layer, int hot)
{
    double most = layer->carried[hot];
    Step best;
    if (best_swap(layer, hot, 0, layer->G, &best) < most
        || best_newcomer(layer, hot, best_replica(layer, hot, most, &best), &best) < most) {
        make_step(layer, &best);
        return 1;
    }
    return swap_two(layer, hot);
}

// Pairs the GPUs from `first` up to `end` and swaps within each pair, `num_rounds` times.
static void even_out(Layer *layer, int first, int end, int num_rounds)
{
    int num_gpus = end - first, *ranked = zeros(num_gpus, sizeof(int));
    for (int round = 0; round < num_rounds; round++) {
        rising(layer->carried + first, num_gpus, ranked);
        for (int rank = 0; rank < num_gpus / 2; rank++) {
            int emptier = first + ranked[rank], fuller = first + ranked[num_gpus - 1 - rank];
            Step best;
            if (best_swap(layer, fuller, emptier, emptier + 1, &best) < layer->carried[fuller]) make_step(layer, &best);
        }
    }
    free(ranked);
}
