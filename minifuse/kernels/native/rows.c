/* Operators on rows: norms, SwiGLU, argmax. */

#include "kernels.h"

/* out = x / sqrt(mean(x^2) + eps) * weight, of rows of `size`. With `residual`, of total = x + residual. */
void team_rms_norm(real *out, real *total, const real *x, const real *residual, const real *weight, int64_t rows,
                   int64_t size, float eps) {
#pragma omp for
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

void rms_norm(real *out, real *total, const real *x, const real *residual, const real *weight, int64_t rows,
              int64_t size, float eps, int threads) {
#pragma omp parallel num_threads(threads) if (threads > 1 && rows * size > 32768)
    team_rms_norm(out, total, x, residual, weight, rows, size, eps);
}

/* out = silu(gate) * up, side by side in rows of 2 * `size`. */
void team_silu_mul(real *out, const real *gate_up, int64_t rows, int64_t size) {
#pragma omp for
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

void silu_mul(real *out, const real *gate_up, int64_t rows, int64_t size, int threads) {
#pragma omp parallel num_threads(threads) if (threads > 1 && rows * size > 16384)
    team_silu_mul(out, gate_up, rows, size);
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
