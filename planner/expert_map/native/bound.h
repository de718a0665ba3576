// Lower bounds on the load of the fullest GPU: bound.py says why they hold.

enum { BISECTIONS = 20 };
static const double NEGLIGIBLE = 1e-4;  // a bound by so little more is not looked for
static const double LESS = 1 - 1e-9;    // every quotient errs by less, and always to the side that keeps the bound proven

// How many slots are needed so that no replica carries more than `largest`.
static int fewest_slots(const double *loads, int E, double largest)
{
    int fewest = 0;
    for (int expert = 0; expert < E; expert++) fewest += (int)larger(ceil(loads[expert] / largest * LESS), 1.0);
    return fewest;
}

// C: the load of one replica of each expert together, after `left_over` more replicas are given to them.
static double least_load(const double *loads, int E, int left_over)
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
    for (int expert = 0; expert < E; expert++) least += loads[expert] / counts[expert] * LESS;
    free(counts);
    return least;
}

// A lower bound on the number of replicas heavier than `heavy`, when none is heavier than `largest`; `left_over` is how
// many slots there are beyond those that `largest` needs.
static int fewest_heavy(const double *loads, int E, double largest, double heavy, int left_over)
{
    double *costs = zeros(E, sizeof(double)), *spared = zeros(E, sizeof(double)), *worth = zeros(E, sizeof(double));
    int num_heavy = 0, *order = zeros(E, sizeof(int));
    double max_spared = 0.0, left = left_over;
    for (int expert = 0; expert < E; expert++) {
        double count = larger(ceil(loads[expert] / largest * LESS), 1.0);
        if (loads[expert] > heavy * count) {
            num_heavy += (int)count;
            spared[expert] = count;
            costs[expert] = larger(ceil(loads[expert] / heavy * LESS) - count, 1.0);
        }
        worth[expert] = -spared[expert] / larger(costs[expert], 1.0);
    }
    rising(worth, E, order);
    for (int place = 0; place < E; place++) {
        int expert = order[place];
        double spent = smaller(costs[expert], left);
        left -= spent;
        max_spared += spared[expert] * spent / larger(costs[expert], 1.0);
    }
    free(costs), free(spared), free(worth), free(order);
    return num_heavy - (int)(max_spared + 1e-9);
}

// Whether it is proven that every map has a GPU that carries more than `most`; `loads` rise.
static int is_out_of_reach(const double *loads, int E, int G, int S, double most, int with_pairs)
{
    int left_over = G * S - fewest_slots(loads, E, most), num_others = S - 1 < E ? S - 1 : E;
    if (left_over < 0) return 1;
    if (loads[num_others - 1] > most / 2) return 0;
    double others = least_load(loads, num_others, left_over);
    if (others >= most) return 1;
    double largest = most - others;
    left_over = G * S - fewest_slots(loads, E, largest);
    if (left_over < 0 || !with_pairs) return left_over < 0;
    others = loads[num_others - 1] <= largest / 2 ? least_load(loads, num_others - 1, left_over) : 0.0;
    return fewest_heavy(loads, E, largest, (most - others) / 2 * (1 + 1e-9), left_over) > G;
}

// The highest load found that no map can keep to, `low` at least: no map's fullest GPU carries less than that.
static double out_of_reach(const double *loads, int E, int G, int S, double low, int with_pairs)
{
    if (S == 1 || !is_out_of_reach(loads, E, G, S, low * (1 + NEGLIGIBLE), with_pairs)) return low;
    double high = low;
    for (int expert = 0; expert < S && expert < E && !with_pairs; expert++) high += loads[expert];
    if (with_pairs) high += loads[E - 1];
    for (int turn = 0; turn < BISECTIONS; turn++) {
        double middle = (low + high) / 2;
        if (is_out_of_reach(loads, E, G, S, middle, with_pairs)) low = middle;
        else high = middle;
    }
    return low;
}

static double largest_replica(const double *loads, int E, int G, int S, int least)
{
    int *counts = zeros(E, sizeof(int));
    double most = 0.0;
    replicate(loads, E, G * S, G, 0.0, least, 0, counts);
    for (int expert = 0; expert < E; expert++) most = larger(most, loads[expert] / counts[expert] * LESS);
    free(counts);
    return most;
}

// Bounds by kind, with at least `least` replicas of each expert: mean, replicas, packing, pairs; [4][L].
EXPORT void bounds(int L, int E, int G, int S, const double *loads, int least, double *found)
{
    double *sorted = zeros(E, sizeof(double));
    int *order = zeros(E, sizeof(int));
    for (int index = 0; index < L; index++) {
        double total = 0.0;
        rising(loads + (size_t)index * E, E, order);
        for (int expert = 0; expert < E; expert++) total += sorted[expert] = loads[(size_t)index * E + order[expert]];
        double mean = total / G * LESS, replicas = largest_replica(sorted, E, G, S, least);
        double packing = out_of_reach(sorted, E, G, S, larger(mean, replicas), 0);
        found[index] = mean;
        found[L + index] = replicas;
        found[2 * L + index] = packing;
        found[3 * L + index] = out_of_reach(sorted, E, G, S, packing, 1);
    }
    free(sorted), free(order);
}
