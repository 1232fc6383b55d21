/* The two token-wise halves of a LLaMA layer, each by one team of threads (minifuse/model/text/rotary.py). */

#include "kernels.h"

typedef struct {
    const real *attention_norm, *mlp_norm;
    Product qkv, out, gate_up, down;
    float eps;
} Layer;

/* heads = qkv(norm(x)), of x [rows, hidden]. */
void pre_attention(real *heads, const real *x, const Layer *layer, int64_t rows, int threads) {
    int64_t hidden = layer->qkv.inputs;
    real *normed = malloc(rows * hidden * sizeof(real));
    float *room = room_for(rows * hidden);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        team_rms_norm(normed, NULL, x, NULL, layer->attention_norm, rows, hidden, layer->eps);
        team_linear(heads, normed, room, &layer->qkv, rows);
    }
    free(normed);
    free(room);
}

/* total = x + out(attended); y = total + down(silu_mul(gate_up(norm(total)))). */
void post_attention(real *y, const real *x, const real *attended, const Layer *layer, int64_t rows, int threads) {
    int64_t hidden = layer->out.outputs, of_q = layer->out.inputs, inner = layer->down.inputs;
    real *projected = malloc(rows * (3 * hidden + 3 * inner) * sizeof(real)), *total = projected + rows * hidden;
    real *normed = total + rows * hidden, *gate_up = normed + rows * hidden, *gated = gate_up + 2 * rows * inner;
    float *room = room_for(rows * (of_q + hidden + inner)); /* for the inputs of each product */
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        team_linear(projected, attended, room, &layer->out, rows);
        team_rms_norm(normed, total, projected, x, layer->mlp_norm, rows, hidden, layer->eps);
        team_linear(gate_up, normed, room, &layer->gate_up, rows);
        team_silu_mul(gated, gate_up, rows, inner);
        team_linear(y, gated, room, &layer->down, rows);
#pragma omp for
        for (int64_t i = 0; i < rows * hidden; i++) y[i] = narrow(wide(total[i]) + wide(y[i]));
    }
    free(projected);
    free(room);
}
