// Lower bounds on the load of the fullest GPU: bound.py says why they hold.

enum { BISECTIONS = 20 };
static const double NEGLIGIBLE = 1e-4;  // no search for a bound that is higher by less
static const double MARGIN_BELOW = 1 - 1e-9;    // covers rounding: a bound may be too low, never too high

// Returns the fewest slots with which no replica exceeds `largest`.
static int min_slots(const double *loads, int E, double largest)
{
    int fewest = 0;
    for (int expert = 0; expert < E; expert++) fewest += (int)max(ceil(loads[expert] / largest * MARGIN_BELOW), 1.0);
    return fewest;
}

// Returns C: the sum over experts of one replica's load, after `left_over` more replicas went where they lower it most.
static double min_other_load(const double *loads, int E, int left_over)
{
    int *counts = zeros(E, sizeof(int));
    double least = 0.0;
    for (int expert = 0; expert < E; expert++) counts[expert] = 1;
    for (; left_over > 0 && E > 0; left_over--) {
        int helped = 0;
        double most = -1.0;
        for (int expert = 0; expert < E; expert++) {
            double helps = loads[expert] / ((double)counts[expert] * (counts[expert] + 1));
            if (helps > most) helped = expert, most = helps;
        }
        counts[helped]++;
    }
    for (int expert = 0; expert < E; expert++) least += loads[expert] / counts[expert] * MARGIN_BELOW;
    free(counts);
    return least;
}

// Returns a lower bound on the number of replicas heavier than `heavy` if none exceeds `largest`. `left_over` is the
// number of slots beyond the `min_slots` of `largest`.
static int min_heavy_replicas(const double *loads, int E, double largest, double heavy, int left_over)
{
    double *costs = zeros(E, sizeof(double)), *spared = zeros(E, sizeof(double)), *worth = zeros(E, sizeof(double));
    int num_heavy = 0, *order = zeros(E, sizeof(int));
    double max_spared = 0.0, left = left_over;
    for (int expert = 0; expert < E; expert++) {
        double count = max(ceil(loads[expert] / largest * MARGIN_BELOW), 1.0);
        if (loads[expert] > heavy * count) {
            num_heavy += (int)count;
            spared[expert] = count;
            costs[expert] = max(ceil(loads[expert] / heavy * MARGIN_BELOW) - count, 1.0);
        }
        worth[expert] = -spared[expert] / max(costs[expert], 1.0);
    }
    argsort(worth, E, order);
    for (int place = 0; place < E; place++) {
        int expert = order[place];
        double spent = min(costs[expert], left);
        left -= spent;
        max_spared += spared[expert] * spent / max(costs[expert], 1.0);
    }
    free(costs), free(spared), free(worth), free(order);
    return num_heavy - (int)(max_spared + 1e-9);
}

// Returns whether every map provably has a GPU above `most`; `loads` rise.
static int is_unreachable(const double *loads, int E, int G, int S, double most, int with_pairs)
{
    int left_over = G * S - min_slots(loads, E, most), num_others = S - 1 < E ? S - 1 : E;
    if (left_over < 0) return 1;
    if (loads[num_others - 1] > most / 2) return 0;
    double others = min_other_load(loads, num_others, left_over);
    if (others >= most) return 1;
    double largest = most - others;
    left_over = G * S - min_slots(loads, E, largest);
    if (left_over < 0 || !with_pairs) return left_over < 0;
    others = loads[num_others - 1] <= largest / 2 ? min_other_load(loads, num_others - 1, left_over) : 0.0;
    return min_heavy_replicas(loads, E, largest, (most - others) / 2 * (1 + 1e-9), left_over) > G;
}

// Returns the highest load found that every map's fullest GPU provably reaches, at least `low`.
static double max_unreachable(const double *loads, int E, int G, int S, double low, int with_pairs)
{
    if (S == 1 || !is_unreachable(loads, E, G, S, low * (1 + NEGLIGIBLE), with_pairs)) return low;
    double high = low;
    for (int expert = 0; expert < S && expert < E && !with_pairs; expert++) high += loads[expert];
    if (with_pairs) high += loads[E - 1];
    for (int turn = 0; turn < BISECTIONS; turn++) {
        double middle = (low + high) / 2;
        if (is_unreachable(loads, E, G, S, middle, with_pairs)) low = middle;
        else high = middle;
    }
    return low;
}

static double largest_replica(const double *loads, int E, int G, int S, int least)
{
    int *counts = zeros(E, sizeof(int));
    double most = 0.0;
    replicate(loads, E, G * S, G, 0.0, least, 0, counts);
    for (int expert = 0; expert < E; expert++) most = max(most, loads[expert] / counts[expert] * MARGIN_BELOW);
    free(counts);
    return most;
}

// Writes the bounds by kind, with at least `least` replicas of each expert: mean, replicas, packing, pairs; [4][L].
EXPORT void lower_bounds(int L, int E, int G, int S, const double *loads, int least, double *found)
{
    double *sorted = zeros(E, sizeof(double));
    int *order = zeros(E, sizeof(int));
    for (int index = 0; index < L; index++) {
        double total = 0.0;
        argsort(loads + (size_t)index * E, E, order);
        for (int expert = 0; expert < E; expert++) total += sorted[expert] = loads[(size_t)index * E + order[expert]];
        double mean = total / G * MARGIN_BELOW, replicas = largest_replica(sorted, E, G, S, least);
        double packing = max_unreachable(sorted, E, G, S, max(mean, replicas), 0);
        found[index] = mean;
        found[L + index] = replicas;
        found[2 * L + index] = packing;
        found[3 * L + index] = max_unreachable(sorted, E, G, S, packing, 1);
    }
    free(sorted), free(order);
}
