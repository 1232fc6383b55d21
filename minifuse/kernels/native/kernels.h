/* What the kernels of a CPU share: numbers, vectors of them, and the operators that a team of threads computes.

   Each operator has the arguments and results of its plain twin in minifuse/kernels/operators.py or
   minifuse/attention/vectorised.py. Arithmetic is float32; tensors are `real`: float, or with -DBFLOAT16 the upper half
   of one. Threads are OpenMP's, those of torch in the same process. */

#ifndef MINIFUSE_KERNELS_H
#define MINIFUSE_KERNELS_H

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

/* A product with packed weights and perhaps a bias, NULL if there is none. */
typedef struct {
    const real *panels, *bias;
    int64_t inputs, outputs;
} Product;

/* Every thread of a team calls these with the same arguments, and each computes its share; all return together. */
void team_linear(real *out, const real *x, float *room, const Product *weights, int64_t rows);
void team_rms_norm(real *out, real *total, const real *x, const real *residual, const real *weight, int64_t rows,
                   int64_t size, float eps);
void team_silu_mul(real *out, const real *gate_up, int64_t rows, int64_t size);

/* Room for `count` inputs of a product as float32: NULL if they are float32 already. */
static inline float *room_for(int64_t count) { return sizeof(real) == sizeof(float) ? NULL : malloc(count * sizeof(float)); }

#endif
