/* Products with packed weights. */

#include "kernels.h"

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

static void (*const TIMES[])(real *, const float *, const real *, const real *, int64_t, int64_t, int64_t) = {
    NULL, times_panel_1, times_panel_2, times_panel_3, times_panel_4, times_panel_5, times_panel_6};

/* x as float32: itself, or copied to `room`. */
static const float *widened(const real *x, float *room, int64_t count) {
    if (!room) return (const float *)x;
#pragma omp for
    for (int64_t i = 0; i < count; i++) room[i] = wide(x[i]);
    return room;
}

/* out = x W^T + bias, of x [rows, inputs]. Threads share a chunk of rows, and take panels of it. */
void team_linear(real *out, const real *x, float *room, const Product *weights, int64_t rows) {
    int64_t inputs = weights->inputs, outputs = weights->outputs;
    int64_t count = (outputs + PANEL - 1) / PANEL, chunks = (rows + CHUNK - 1) / CHUNK;
    const float *from = widened(x, room, rows * inputs);
#pragma omp for
    for (int64_t unit = 0; unit < chunks * count; unit++) {
        int64_t panel = unit % count, at = panel * PANEL, begin = unit / count * CHUNK;
        int64_t end = begin + CHUNK < rows ? begin + CHUNK : rows, width = outputs - at < PANEL ? outputs - at : PANEL;
        const real *bias = weights->bias ? weights->bias + at : NULL;
        for (int64_t row = begin; row < end; row += TILE)
            TIMES[end - row < TILE ? end - row : TILE](out + row * outputs + at, from + row * inputs,
                                                       weights->panels + panel * inputs * PANEL, bias, inputs, outputs,
                                                       width);
    }
}

void linear(real *out, const real *x, const Product *weights, int64_t rows, int threads) {
    float *room = room_for(rows * weights->inputs);
#pragma omp parallel num_threads(threads) if (threads > 1)
    team_linear(out, x, room, weights, rows);
    free(room);
}
