/* Attention over blocks, adjacent slots, and rows that begin with empty columns (Pensieve, 3.4.4). */

#include "kernels.h"

enum {
    TOKENS = 64, /* of the context, in one step */
    ROWS = 64,   /* of queries times heads, in one unit, unless one query has more heads */
    FEW = 8,     /* rows below which keys are read in place, not transposed */
    MOST = 4,    /* rows that are computed together */
    AT_ONCE = 4  /* tokens, at most, whose scores are computed together where keys are read in place */
};

/* The sequences of a wave, as minifuse.kernels.ragged.Ragged describes them. */
typedef struct {
    const int32_t *cu_seqlens, *contexts, *tables, *first; /* first: NULL if contexts have no empty columns */
    int64_t num_sequences, columns, page;
    int64_t num_heads, num_kv_heads, head_dim;
} Wave;

/* cos and sin of each row, [rows, dim]; dim is 0 where positions are learned. */
typedef struct {
    const real *cos, *sin;
    int64_t dim, interleaved;
} Rotation;

/* Rotate the heads of a row: of each, the first `dim` numbers. The partner of x[i] is beside it, or dim / 2 away. */
static inline void rotate(real *to, const real *from, const real *cos, const real *sin, int64_t heads, int64_t head_dim,
                          int64_t dim, int interleaved) {
    for (int64_t head = 0; head < heads; head++, to += head_dim, from += head_dim) {
        int64_t half = dim / 2;
        if (interleaved)
            for (int64_t i = 0; i < dim; i++) to[i] = narrow(wide(from[i]) * wide(cos[i]) + wide(from[i ^ 1]) * wide(sin[i]));
        else
            for (int64_t i = 0; i < half; i++) {
                float a = wide(from[i]), b = wide(from[i + half]);
                to[i] = narrow(a * wide(cos[i]) + b * wide(sin[i]));
                to[i + half] = narrow(b * wide(cos[i + half]) + a * wide(sin[i + half]));
            }
        memcpy(to + dim, from + dim, (head_dim - dim) * sizeof(real));
    }
}

/* Put rotated queries into q; write rotated keys, and values, to the slots of their rows. */
static void rotate_and_write(real *q, const real *heads, const Rotation *angles, real *keys, real *values,
                             const int64_t *slots, const Wave *w, int64_t rows) {
    int64_t of_q = w->num_heads * w->head_dim, of_kv = w->num_kv_heads * w->head_dim, dim = angles->dim;
#pragma omp for
    for (int64_t row = 0; row < rows; row++) {
        const real *from = heads + row * (of_q + 2 * of_kv), *c = angles->cos + row * dim, *s = angles->sin + row * dim;
        rotate(q + row * of_q, from, c, s, w->num_heads, w->head_dim, dim, angles->interleaved);
        if (slots[row] < 0) continue;
        rotate(keys + slots[row] * of_kv, from + of_q, c, s, w->num_kv_heads, w->head_dim, dim, angles->interleaved);
        memcpy(values + slots[row] * of_kv, from + of_q + of_kv, of_kv * sizeof(real));
    }
}

/* scores[r][j] = q[r] . k[j] for R rows of queries, T tokens at a time. `k` is filled up to a multiple of AT_ONCE. */
#define DEFINE_IN_PLACE(R, T)                                                                                          \
    static void scores_##R(float *scores, const float *q, const real *const *k, int count, int64_t head_dim) {         \
        for (int j = 0; j < count; j += T) {                                                                           \
            vec parts[R][T] = {0};                                                                                     \
            int64_t d = 0;                                                                                             \
            for (; d + LANES <= head_dim; d += LANES)                                                                  \
                for (int r = 0; r < R; r++) {                                                                          \
                    vec query;                                                                                         \
                    memcpy(&query, q + r * head_dim + d, sizeof query);                                                \
                    for (int t = 0; t < T; t++) parts[r][t] += query * load(k[j + t] + d);                             \
                }                                                                                                      \
            for (int r = 0; r < R; r++)                                                                                \
                for (int t = 0; t < T; t++) scores[r * TOKENS + j + t] = sum(parts[r][t]);                             \
            for (; d < head_dim; d++)                                                                                  \
                for (int r = 0; r < R; r++)                                                                            \
                    for (int t = 0; t < T; t++) scores[r * TOKENS + j + t] += q[r * head_dim + d] * wide(k[j + t][d]); \
        }                                                                                                              \
    }
DEFINE_IN_PLACE(1, AT_ONCE)
DEFINE_IN_PLACE(2, AT_ONCE)
DEFINE_IN_PLACE(3, AT_ONCE / 2)
DEFINE_IN_PLACE(4, AT_ONCE / 2)

/* The same from keys that are transposed, [head_dim, TOKENS]: a vector holds one number of each of LANES tokens. */
#define DEFINE_ACROSS(R)                                                                                               \
    static void scores_across_##R(float *scores, const float *q, const float *across, int64_t head_dim) {              \
        for (int j = 0; j < TOKENS; j += 2 * LANES) {                                                                  \
            vec low[R] = {0}, high[R] = {0}, first, second;                                                            \
            for (int64_t d = 0; d < head_dim; d++) {                                                                   \
                memcpy(&first, across + d * TOKENS + j, sizeof first);                                                 \
                memcpy(&second, across + d * TOKENS + j + LANES, sizeof second);                                       \
                for (int r = 0; r < R; r++) {                                                                          \
                    low[r] += q[r * head_dim + d] * first;                                                             \
                    high[r] += q[r * head_dim + d] * second;                                                           \
                }                                                                                                      \
            }                                                                                                          \
            for (int r = 0; r < R; r++) {                                                                              \
                memcpy(scores + r * TOKENS + j, &low[r], sizeof low[r]);                                               \
                memcpy(scores + r * TOKENS + j + LANES, &high[r], sizeof high[r]);                                     \
            }                                                                                                          \
        }                                                                                                              \
    }
DEFINE_ACROSS(1)
DEFINE_ACROSS(2)
DEFINE_ACROSS(3)
DEFINE_ACROSS(4)

/* acc[r] = shrink[r] * acc[r] + sum_j p[r][j] v[j], for R rows, two vectors of a value at a time. */
#define DEFINE_ADD_VALUES(R)                                                                                           \
    static void add_values_##R(float *acc, const float *shrink, const float *p, const real *const *v, int count,       \
                               int64_t head_dim) {                                                                     \
        int64_t d = 0;                                                                                                 \
        for (; d + 2 * LANES <= head_dim; d += 2 * LANES) {                                                            \
            vec sums[R][2];                                                                                            \
            memset(sums, 0, sizeof sums);                                                                              \
            for (int j = 0; j < count; j++)                                                                            \
                for (int i = 0; i < 2; i++) {                                                                          \
                    vec value = load(v[j] + d + i * LANES);                                                            \
                    for (int r = 0; r < R; r++) sums[r][i] += p[r * TOKENS + j] * value;                               \
                }                                                                                                      \
            for (int r = 0; r < R; r++)                                                                                \
                for (int i = 0; i < 2; i++) {                                                                          \
                    vec before;                                                                                        \
                    memcpy(&before, acc + r * head_dim + d + i * LANES, sizeof before);                                \
                    before = before * shrink[r] + sums[r][i];                                                          \
                    memcpy(acc + r * head_dim + d + i * LANES, &before, sizeof before);                                \
                }                                                                                                      \
        }                                                                                                              \
        for (; d < head_dim; d++)                                                                                      \
            for (int r = 0; r < R; r++) {                                                                              \
                float total = acc[r * head_dim + d] * shrink[r];                                                       \
                for (int j = 0; j < count; j++) total += p[r * TOKENS + j] * wide(v[j][d]);                            \
                acc[r * head_dim + d] = total;                                                                         \
            }                                                                                                          \
    }
DEFINE_ADD_VALUES(1)
DEFINE_ADD_VALUES(2)
DEFINE_ADD_VALUES(3)
DEFINE_ADD_VALUES(4)

static void (*const SCORES_IN_PLACE[])(float *, const float *, const real *const *, int, int64_t) = {
    NULL, scores_1, scores_2, scores_3, scores_4};
static void (*const SCORES_ACROSS[])(float *, const float *, const float *, int64_t) = {
    NULL, scores_across_1, scores_across_2, scores_across_3, scores_across_4};
static void (*const ADD_VALUES[])(float *, const float *, const float *, const real *const *, int, int64_t) = {
    NULL, add_values_1, add_values_2, add_values_3, add_values_4};

/* Weights of one row: p = 2^(score - peak) and its sum; returns what earlier weights shrink by (an online softmax). */
static inline float weigh(float *row, int count, float *peak, float *total) {
    for (int j = count; j < TOKENS; j++) row[j] = -INFINITY;
    vec largest = (vec){0} - INFINITY;
    for (int j = 0; j < TOKENS; j += LANES) {
        vec score;
        memcpy(&score, row + j, sizeof score);
        largest = choose(score > largest, score, largest);
    }
    float most = *peak;
    for (int i = 0; i < LANES; i++) most = largest[i] > most ? largest[i] : most;
    float shift = most == -INFINITY ? 0 : most; /* no token has been visible to this row yet */
    vec sums = {0};
    for (int j = 0; j < TOKENS; j += LANES) {
        vec score;
        memcpy(&score, row + j, sizeof score);
        score = exp2_of(score - shift);
        sums += score;
        memcpy(row + j, &score, sizeof score);
    }
    float shrink = *peak == -INFINITY ? 0 : exp2f(*peak - shift);
    *total = *total * shrink + sum(sums);
    *peak = most;
    return shrink;
}

/* Bring the keys and values of a token, `count` numbers each, into the second cache. */
static inline void prefetch(const real *k, const real *v, int64_t count) {
    for (int64_t i = 0; i < count; i += 64 / (int64_t)sizeof(real)) {
        __builtin_prefetch(k + i, 0, 2);
        __builtin_prefetch(v + i, 0, 2);
    }
}

/* Attend the queries [begin, end) of one sequence, counted in it, under one KV head. */
static void attend_unit(real *out, const real *q, const real *keys, const real *values, const Wave *w, int64_t s,
                        int64_t begin, int64_t end, int64_t kv_head) {
    int64_t dim = w->head_dim, group = w->num_heads / w->num_kv_heads;
    int64_t row0 = w->cu_seqlens[s], num_queries = w->cu_seqlens[s + 1] - row0;
    int64_t position = w->contexts[s] - num_queries + begin, rows = (end - begin) * group;
    int64_t first = w->first ? w->first[s] : 0;
    int64_t start = first < position ? first : position, stop = position + end - begin;
    const int32_t *table = w->tables + s * w->columns;
    float scale = 1.44269504f / sqrtf((float)dim);
    float queries[rows * dim], acc[rows * dim], scores[rows * TOKENS], peaks[rows], totals[rows], shrinks[rows];
    float across[rows < FEW ? 1 : dim * TOKENS];
    memset(acc, 0, sizeof acc);
    for (int64_t r = 0; r < rows; r++) { /* row r is query r / group of the unit, under head r % group of the group */
        const real *from = q + ((row0 + begin + r / group) * w->num_heads + kv_head * group + r % group) * dim;
        for (int64_t d = 0; d < dim; d++) queries[r * dim + d] = wide(from[d]) * scale;
        peaks[r] = -INFINITY;
        totals[r] = 0;
    }
    for (; start < stop; start += TOKENS) {
        int count = stop - start < TOKENS ? stop - start : TOKENS;
        const real *k[TOKENS], *v[TOKENS];
        int64_t block = w->page ? start / w->page : 0, within = w->page ? start % w->page : start;
        for (int j = 0; j < count; j++) {
            int64_t at = ((table[block] * (w->page ? w->page : 1) + within) * w->num_kv_heads + kv_head) * dim;
            k[j] = keys + at;
            v[j] = values + at;
            if (kv_head == 0) prefetch(k[j], v[j], w->num_kv_heads * dim); /* the other heads come next */
            if (++within == w->page) block++, within = 0; /* never, if page is 0 */
        }
        for (int j = count; j % AT_ONCE; j++) k[j] = k[count - 1];
        if (rows >= FEW) {
            for (int j = 0; j < count; j++)
                for (int64_t d = 0; d < dim; d++) across[d * TOKENS + j] = wide(k[j][d]);
            for (int j = count; j < TOKENS; j++)
                for (int64_t d = 0; d < dim; d++) across[d * TOKENS + j] = 0;
        }
        for (int64_t r = 0; r < rows;) {
            int some = rows - r < MOST ? rows - r : MOST;
            if (rows >= FEW) SCORES_ACROSS[some](scores + r * TOKENS, queries + r * dim, across, dim);
            else SCORES_IN_PLACE[some](scores + r * TOKENS, queries + r * dim, k, count, dim);
            for (int64_t i = r; i < r + some; i++) {
                int64_t at = position + i / group;
                for (int j = 0; j < count && (start < first || start + count > at + 1); j++)
                    if (start + j > at || (start + j < first && start + j != at)) scores[i * TOKENS + j] = -INFINITY;
                shrinks[i] = weigh(scores + i * TOKENS, count, &peaks[i], &totals[i]);
            }
            ADD_VALUES[some](acc + r * dim, shrinks + r, scores + r * TOKENS, v, count, dim);
            r += some;
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        real *to = out + ((row0 + begin + r / group) * w->num_heads + kv_head * group + r % group) * dim;
        for (int64_t d = 0; d < dim; d++) to[d] = narrow(acc[r * dim + d] / totals[r]);
    }
}

/* Attend the queries [rows, num_heads, head_dim] of a wave. A unit is up to ROWS / group queries of a sequence, under one
   KV head; threads take units in turn. */
static void attend_units(real *out, const real *q, const real *keys, const real *values, const Wave *wave, int threads) {
    int64_t heads = wave->num_kv_heads, group = wave->num_heads / heads, most = group < ROWS ? ROWS / group : 1;
    int64_t units[wave->num_sequences + 1]; /* before each sequence */
    units[0] = 0;
    for (int64_t s = 0; s < wave->num_sequences; s++)
        units[s + 1] = units[s] + (wave->cu_seqlens[s + 1] - wave->cu_seqlens[s] + most - 1) / most;
    int64_t together = units[wave->num_sequences] >= 4 * threads ? heads : 1; /* heads whose KV lies side by side */
#pragma omp for schedule(dynamic, together)
    for (int64_t unit = 0; unit < units[wave->num_sequences] * heads; unit++) {
        int64_t s = 0, high = wave->num_sequences, number = unit / heads;
        while (s + 1 < high) { /* the last sequence with units[s] <= number */
            int64_t middle = (s + high) / 2;
            if (units[middle] <= number) s = middle; else high = middle;
        }
        int64_t begin = (number - units[s]) * most, end = wave->cu_seqlens[s + 1] - wave->cu_seqlens[s];
        attend_unit(out, q, keys, values, wave, s, begin, begin + most < end ? begin + most : end, unit % heads);
    }
}

/* Rotate, write KV to `slots` (-1: nowhere, the row is idle), then softmax(q k^T / sqrt(head_dim)) v.
   out is [rows, num_heads * head_dim], keys and values are [slots, num_kv_heads, head_dim]. A row of `heads` has
   num_heads queries, then num_kv_heads keys, then as many values. */
void attend(real *out, const real *heads, const Rotation *angles, real *keys, real *values, const int64_t *slots,
            const Wave *wave, int64_t rows, int threads) {
    real *q = malloc(rows * wave->num_heads * wave->head_dim * sizeof(real));
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        rotate_and_write(q, heads, angles, keys, values, slots, wave, rows);
        attend_units(out, q, keys, values, wave, threads);
    }
    free(q);
}
