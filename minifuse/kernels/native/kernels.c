/* The operators of a CPU: norms, SwiGLU, rotation, attention over blocks, argmax.

   One function an operator, with the same arguments and results as its plain twin in minifuse/kernels/operators.py or
   minifuse/attention/vectorised.py. Arithmetic is float32; tensors are `real`: float, or with -DBFLOAT16 the upper half
   of one. Loops run in OpenMP's threads, those of torch in the same process. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef BFLOAT16
typedef uint16_t real;
static inline float wide(real x) {
    union { uint32_t bits; float value; } u = {(uint32_t)x << 16};
    return u.value;
}
static inline real narrow(float x) { /* to the nearest, ties to even */
    union { float value; uint32_t bits; } u = {x};
    if (x != x) return 0x7fc0;
    return (u.bits + 0x7fff + (u.bits >> 16 & 1)) >> 16;
}
#else
typedef float real;
static inline float wide(real x) { return x; }
static inline real narrow(float x) { return x; }
#endif

#if defined(__AVX512F__)
enum { LANES = 16 }; /* numbers in a `vec`: as wide as the processor's registers */
#elif defined(__AVX__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
enum {
    TOKENS = 64, /* of the context, in one step of attention */
    ROWS = 64,   /* of queries times heads, in one unit of attention, unless one query has more heads */
    FEW = 8      /* rows below which keys are read in place, not transposed */
};
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));

static inline vec load(const real *from) {
#ifdef BFLOAT16
    vec x;
    for (int i = 0; i < LANES; i++) x[i] = wide(from[i]);
    return x;
#else
    vec x;
    memcpy(&x, from, sizeof x);
    return x;
#endif
}

static inline float sum(vec x) {
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
}

static inline vec choose(ints mask, vec yes, vec no) {
    return (vec)((mask & (ints)yes) | (~mask & (ints)no));
}

/* 2^x to within 2e-7, for x <= 0; 0 for -inf, NaN for NaN (Cody and Waite: 2^x = 2^n 2^f, |f| <= 1/2). */
static inline vec exp2_of(vec x) {
    vec least = {0};
    least += -126.0f;
    vec bounded = choose(x < least, least, x);
    ints n = __builtin_convertvector(bounded - 0.5f, ints); /* truncates: rounds numbers below 0 */
    vec f = (bounded - __builtin_convertvector(n, vec)) * 0.693147180559945f;
    vec p = 1.0f + f * (1.0f + f * (0.5f + f * (1.66666667e-1f + f * (4.16666667e-2f + f * (8.33333333e-3f + f * 1.38888889e-3f)))));
    vec power = (vec)((n + 127) << 23);
    return choose(x < least, (vec){0}, p * power);
}

/* How many outputs a panel of packed weights has: two vectors. Python asks for it. */
enum { PANEL = 2 * LANES, TILE = 6, CHUNK = 32 * TILE };
int panel_size(void) { return PANEL; }

/* Lay weights [outputs, inputs] out in panels [inputs, PANEL], the last one filled up with zeros. */
void pack(real *panels, const real *weights, int64_t outputs, int64_t inputs) {
    for (int64_t at = 0; at < outputs; at += PANEL)
        for (int64_t i = 0; i < inputs; i++)
            for (int64_t j = 0; j < PANEL; j++)
                *panels++ = at + j < outputs ? weights[(at + j) * inputs + i] : narrow(0);
}

/* R rows of x times one panel: the first `width` outputs, plus bias. */
#define TIMES_PANEL(R)                                                                                                 \
    static void times_panel_##R(real *out, const float *x, const real *panel, const real *bias, int64_t inputs,        \
                                int64_t outputs, int64_t width) {                                                      \
        vec low[R] = {0}, high[R] = {0};                                                                               \
        for (int64_t i = 0; i < inputs; i++) {                                                                         \
            vec first = load(panel + i * PANEL), second = load(panel + i * PANEL + LANES);                             \
            for (int r = 0; r < R; r++) {                                                                              \
                low[r] += x[r * inputs + i] * first;                                                                   \
                high[r] += x[r * inputs + i] * second;                                                                 \
            }                                                                                                          \
        }                                                                                                              \
        for (int r = 0; r < R; r++) {                                                                                  \
            float row[PANEL];                                                                                          \
            memcpy(row, &low[r], sizeof low[r]);                                                                       \
            memcpy(row + LANES, &high[r], sizeof high[r]);                                                             \
            for (int64_t j = 0; j < width; j++) out[r * outputs + j] = narrow(row[j] + (bias ? wide(bias[j]) : 0));    \
        }                                                                                                              \
    }
TIMES_PANEL(1)
TIMES_PANEL(2)
TIMES_PANEL(3)
TIMES_PANEL(4)
TIMES_PANEL(5)
TIMES_PANEL(6)

/* out = x W^T + bias, of x [rows, inputs] and packed weights. Threads share a chunk of rows, and take panels of it. */
void linear(real *out, const real *x, const real *panels, const real *bias, int64_t rows, int64_t inputs,
            int64_t outputs, int threads) {
    static void (*const times[])(real *, const float *, const real *, const real *, int64_t, int64_t, int64_t) = {
        NULL, times_panel_1, times_panel_2, times_panel_3, times_panel_4, times_panel_5, times_panel_6};
#ifdef BFLOAT16
    float *from = malloc(rows * inputs * sizeof(float));
    for (int64_t i = 0; i < rows * inputs; i++) from[i] = wide(x[i]);
#else
    const float *from = x;
#endif
    int64_t count = (outputs + PANEL - 1) / PANEL, chunks = (rows + CHUNK - 1) / CHUNK;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t unit = 0; unit < chunks * count; unit++) {
        int64_t panel = unit % count, at = panel * PANEL, begin = unit / count * CHUNK;
        int64_t end = begin + CHUNK < rows ? begin + CHUNK : rows, width = outputs - at < PANEL ? outputs - at : PANEL;
        for (int64_t row = begin; row < end; row += TILE)
            times[end - row < TILE ? end - row : TILE](out + row * outputs + at, from + row * inputs,
                                                       panels + panel * inputs * PANEL, bias ? bias + at : NULL, inputs,
                                                       outputs, width);
    }
#ifdef BFLOAT16
    free(from);
#endif
}

/* out = x / sqrt(mean(x^2) + eps) * weight, of rows of `size`. With `residual`, of total = x + residual. */
void rms_norm(real *out, real *total, const real *x, const real *residual, const real *weight, int64_t rows,
              int64_t size, float eps, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * size > 32768)
    for (int64_t row = 0; row < rows; row++) {
        const real *from = x + row * size;
        if (residual) {
            real *to = total + row * size;
            for (int64_t i = 0; i < size; i++) to[i] = narrow(wide(from[i]) + wide(residual[row * size + i]));
            from = to;
        }
        vec parts = {0};
        int64_t i = 0;
        for (; i + LANES <= size; i += LANES) parts += load(from + i) * load(from + i);
        float squares = sum(parts);
        for (; i < size; i++) squares += wide(from[i]) * wide(from[i]);
        float scale = 1 / sqrtf(squares / size + eps);
        for (int64_t i = 0; i < size; i++) out[row * size + i] = narrow(wide(from[i]) * scale * wide(weight[i]));
    }
}

/* out = silu(gate) * up, side by side in rows of 2 * `size`. */
void silu_mul(real *out, const real *gate_up, int64_t rows, int64_t size, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * size > 16384)
    for (int64_t row = 0; row < rows; row++) {
        const real *gate = gate_up + row * 2 * size, *up = gate + size;
        real *to = out + row * size;
        int64_t i = 0;
        for (; i + LANES <= size; i += LANES) {
            vec x = load(gate + i), magnitude = choose(x < 0, x, -x);
            vec e = exp2_of(magnitude * 1.44269504f); /* e^-|x|, which cannot overflow */
            vec sigmoid = choose(x < 0, e, (vec){0} + 1.0f) / (1.0f + e);
            vec product = x * sigmoid * load(up + i);
            for (int j = 0; j < LANES; j++) to[i + j] = narrow(product[j]);
        }
        for (; i < size; i++) to[i] = narrow(wide(gate[i]) / (1 + expf(-wide(gate[i]))) * wide(up[i]));
    }
}

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

/* Rotate queries and keys, write keys and values to `slots` (-1: an idle row, which writes none), return queries.
   A row of `heads` has num_heads queries, then num_kv_heads keys, then as many values. cos and sin are [rows, dim]. */
void rotate_and_write(real *q, const real *heads, const real *cos, const real *sin, real *keys, real *values,
                      const int64_t *slots, int64_t rows, int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
                      int64_t dim, int interleaved, int threads) {
    int64_t of_q = num_heads * head_dim, of_kv = num_kv_heads * head_dim;
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * of_q > 32768)
    for (int64_t row = 0; row < rows; row++) {
        const real *from = heads + row * (of_q + 2 * of_kv), *c = cos + row * dim, *s = sin + row * dim;
        rotate(q + row * of_q, from, c, s, num_heads, head_dim, dim, interleaved);
        if (slots[row] < 0) continue;
        rotate(keys + slots[row] * of_kv, from + of_q, c, s, num_kv_heads, head_dim, dim, interleaved);
        memcpy(values + slots[row] * of_kv, from + of_q + of_kv, of_kv * sizeof(real));
    }
}

/* scores[r][j] = q[r] . k[j] for R rows of queries and `count` tokens, keys read in place. */
#define SCORES_IN_PLACE(R)                                                                                             \
    static void scores_##R(float *scores, const float *q, const real *const *k, int count, int64_t head_dim) {         \
        for (int j = 0; j < count; j++) {                                                                              \
            vec parts[R] = {0};                                                                                        \
            int64_t d = 0;                                                                                             \
            for (; d + LANES <= head_dim; d += LANES) {                                                                \
                vec key = load(k[j] + d), query;                                                                       \
                for (int r = 0; r < R; r++) {                                                                          \
                    memcpy(&query, q + r * head_dim + d, sizeof query);                                                \
                    parts[r] += query * key;                                                                           \
                }                                                                                                      \
            }                                                                                                          \
            for (int r = 0; r < R; r++) {                                                                              \
                float score = sum(parts[r]);                                                                           \
                for (int64_t i = d; i < head_dim; i++) score += q[r * head_dim + i] * wide(k[j][i]);                   \
                scores[r * TOKENS + j] = score;                                                                        \
            }                                                                                                          \
        }                                                                                                              \
    }
SCORES_IN_PLACE(1)
SCORES_IN_PLACE(2)
SCORES_IN_PLACE(3)
SCORES_IN_PLACE(4)

/* The same from keys that are transposed, [head_dim, TOKENS]: a vector holds one number of each of LANES tokens. */
#define SCORES_ACROSS(R)                                                                                               \
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
SCORES_ACROSS(1)
SCORES_ACROSS(2)
SCORES_ACROSS(3)
SCORES_ACROSS(4)

/* acc[r] = shrink[r] * acc[r] + sum_j p[r][j] v[j], for R rows. */
#define ADD_VALUES(R)                                                                                                  \
    static void add_values_##R(float *acc, const float *shrink, const float *p, const real *const *v, int count,       \
                               int64_t head_dim) {                                                                     \
        int64_t d = 0;                                                                                                 \
        for (; d + 2 * LANES <= head_dim; d += 2 * LANES) {                                                            \
            vec low[R], high[R];                                                                                       \
            for (int r = 0; r < R; r++) {                                                                              \
                memcpy(&low[r], acc + r * head_dim + d, sizeof low[r]);                                                \
                memcpy(&high[r], acc + r * head_dim + d + LANES, sizeof high[r]);                                      \
                low[r] *= shrink[r];                                                                                   \
                high[r] *= shrink[r];                                                                                  \
            }                                                                                                          \
            for (int j = 0; j < count; j++) {                                                                          \
                vec first = load(v[j] + d), second = load(v[j] + d + LANES);                                           \
                for (int r = 0; r < R; r++) {                                                                          \
                    low[r] += p[r * TOKENS + j] * first;                                                               \
                    high[r] += p[r * TOKENS + j] * second;                                                             \
                }                                                                                                      \
            }                                                                                                          \
            for (int r = 0; r < R; r++) {                                                                              \
                memcpy(acc + r * head_dim + d, &low[r], sizeof low[r]);                                                \
                memcpy(acc + r * head_dim + d + LANES, &high[r], sizeof high[r]);                                      \
            }                                                                                                          \
        }                                                                                                              \
        for (; d < head_dim; d++)                                                                                      \
            for (int r = 0; r < R; r++) {                                                                              \
                float total = acc[r * head_dim + d] * shrink[r];                                                       \
                for (int j = 0; j < count; j++) total += p[r * TOKENS + j] * wide(v[j][d]);                            \
                acc[r * head_dim + d] = total;                                                                         \
            }                                                                                                          \
    }
ADD_VALUES(1)
ADD_VALUES(2)
ADD_VALUES(3)
ADD_VALUES(4)

/* Weights of one row: p = 2^(score - peak) and its sum; returns what earlier weights shrink by (an online softmax). */
static inline float weigh(float *row, int count, float *peak, float *total) {
    for (int j = count; j < TOKENS; j++) row[j] = -INFINITY;
    float most = *peak;
    for (int j = 0; j < TOKENS; j++) most = row[j] > most ? row[j] : most;
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

/* The sequences of a wave, as minifuse.kernels.ragged.Ragged describes them. */
typedef struct {
    const int32_t *cu_seqlens, *contexts, *tables, *first; /* first: NULL if contexts have no empty columns */
    int64_t num_sequences, columns, page;
    int64_t num_heads, num_kv_heads, head_dim;
} Wave;

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
            if (++within == w->page) block++, within = 0; /* never, if page is 0 */
        }
        if (rows >= FEW) {
            for (int j = 0; j < count; j++)
                for (int64_t d = 0; d < dim; d++) across[d * TOKENS + j] = wide(k[j][d]);
            for (int j = count; j < TOKENS; j++)
                for (int64_t d = 0; d < dim; d++) across[d * TOKENS + j] = 0;
        }
#define FOR_ROWS(R)                                                                                                    \
    if (rows >= FEW)                                                                                                   \
        scores_across_##R(scores + r * TOKENS, queries + r * dim, across, dim);                                        \
    else                                                                                                               \
        scores_##R(scores + r * TOKENS, queries + r * dim, k, count, dim);                                             \
    for (int64_t i = r; i < r + R; i++) {                                                                              \
        int64_t at = position + i / group;                                                                             \
        for (int j = 0; j < count && (start < first || start + count > at + 1); j++)                                                                                \
            if (start + j > at || (start + j < first && start + j != at)) scores[i * TOKENS + j] = -INFINITY;          \
        shrinks[i] = weigh(scores + i * TOKENS, count, &peaks[i], &totals[i]);                                         \
    }                                                                                                                  \
    add_values_##R(acc + r * dim, shrinks + r, scores + r * TOKENS, v, count, dim);                                    \
    r += R;
        int64_t r = 0;
        while (r + 4 <= rows) { FOR_ROWS(4) }
        if (r + 2 <= rows && rows - r != 3) { FOR_ROWS(2) }
        if (r + 3 <= rows) { FOR_ROWS(3) }
        if (r < rows) { FOR_ROWS(1) }
    }
    for (int64_t r = 0; r < rows; r++) {
        real *to = out + ((row0 + begin + r / group) * w->num_heads + kv_head * group + r % group) * dim;
        for (int64_t d = 0; d < dim; d++) to[d] = narrow(acc[r * dim + d] / totals[r]);
    }
}

/* softmax(q k^T / sqrt(head_dim)) v: out and q are [rows, num_heads, head_dim], keys and values [slots, num_kv_heads,
   head_dim]. A unit is up to ROWS / group queries of a sequence, under one KV head; threads take units in turn. */
void attend(real *out, const real *q, const real *keys, const real *values, const Wave *wave, int threads) {
    int64_t heads = wave->num_kv_heads, group = wave->num_heads / heads, most = group < ROWS ? ROWS / group : 1;
    int64_t units[wave->num_sequences + 1]; /* before each sequence */
    units[0] = 0;
    for (int64_t s = 0; s < wave->num_sequences; s++)
        units[s + 1] = units[s] + (wave->cu_seqlens[s + 1] - wave->cu_seqlens[s] + most - 1) / most;
    int64_t together = units[wave->num_sequences] >= 4 * threads ? heads : 1; /* heads whose KV lies side by side */
#pragma omp parallel for num_threads(threads) schedule(dynamic, together) if (threads > 1)
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

/* The index of each row's largest number, the first of equals; `not_finite` where it is NaN or infinite. */
void argmax(int64_t *out, const real *x, int64_t rows, int64_t size, int64_t not_finite, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * size > 65536)
    for (int64_t row = 0; row < rows; row++) {
        const real *from = x + row * size;
        vec largest = (vec){0} - INFINITY;
        ints nan = {0};
        int64_t i = 0;
        for (; i + LANES <= size; i += LANES) {
            vec value = load(from + i);
            nan |= value != value;
            largest = choose(value > largest, value, largest);
        }
        float most = -INFINITY;
        int strange = 0;
        for (int j = 0; j < LANES; j++) {
            strange |= nan[j];
            most = largest[j] > most ? largest[j] : most;
        }
        for (; i < size; i++) {
            float value = wide(from[i]);
            strange |= value != value;
            most = value > most ? value : most;
        }
        out[row] = not_finite;
        if (strange || !(fabsf(most) <= 3.4028235e38f)) continue;
        for (i = 0; wide(from[i]) != most; i++);
        out[row] = i;
    }
}
