// A library with cuFFT's interface, for tests without a GPU: it writes each call to LOG, and
// transforms f32 and f64 signals in host memory by their definition. WITHOUT_DOUBLE,
// STATUS_OF_MAKE and VERSION are given by the test.
#include <complex.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef VERSION
#define VERSION 12000
#endif
#ifndef STATUS_OF_MAKE
#define STATUS_OF_MAKE 0
#endif

#define SAY(...)                                                                                   \
    do {                                                                                           \
        FILE *file = fopen(LOG, "a");                                                              \
        fprintf(file, __VA_ARGS__);                                                                \
        fputc('\n', file);                                                                         \
        fclose(file);                                                                              \
    } while (0)

typedef long long wide;

struct side {
    wide extents[3], stride, distance;
};

static struct plan {
    int rank, type;
    wide lengths[3], batch;
    struct side in, out;
    void *work, *stream;
} plans[4096];
static int count;

int cufftGetVersion(int *version) {
    *version = VERSION;
    return 0;
}

int cufftCreate(int *plan) {
    *plan = count++;
    SAY("create %d", *plan);
    return 0;
}

int cufftDestroy(int plan) {
    SAY("destroy %d", plan);
    return 0;
}

int cufftSetAutoAllocation(int plan, int allocate) {
    SAY("auto %d %d", plan, allocate);
    return 0;
}

// Extents are kept as those of the last dimensions of three.
static void keep(wide *to, const wide *from, int rank) {
    for (int i = 0; i < 3; i++) to[i] = i < 3 - rank ? 1 : from[i - (3 - rank)];
}

int cufftMakePlanMany64(int plan, int rank, wide *lengths, wide *in, wide in_stride,
                        wide in_distance, wide *out, wide out_stride, wide out_distance, int type,
                        wide batch, size_t *work) {
    struct plan *it = &plans[plan];
    it->rank = rank;
    it->type = type;
    it->batch = batch;
    keep(it->lengths, lengths, rank);
    keep(it->in.extents, in, rank);
    keep(it->out.extents, out, rank);
    it->in.stride = in_stride, it->in.distance = in_distance;
    it->out.stride = out_stride, it->out.distance = out_distance;
    SAY("make %d rank=%d n=%lld in=%lld,%lld,%lld out=%lld,%lld,%lld type=%x batch=%lld", plan,
        rank, lengths[rank - 1], in[rank - 1], in_stride, in_distance, out[rank - 1], out_stride,
        out_distance, type, batch);
    *work = 512;
    return STATUS_OF_MAKE;
}

int cufftSetWorkArea(int plan, void *work) {
    plans[plan].work = work;
    return 0;
}

int cufftSetStream(int plan, void *stream) {
    plans[plan].stream = stream;
    return 0;
}

static wide place(const struct side *side, wide batch, const wide *at) {
    return batch * side->distance +
           ((at[0] * side->extents[1] + at[1]) * side->extents[2] + at[2]) * side->stride;
}

static double complex load(const void *memory, int is_double, int is_real, wide at) {
    if (is_double)
        return is_real ? ((const double *)memory)[at] : ((const double complex *)memory)[at];
    return is_real ? ((const float *)memory)[at] : ((const float complex *)memory)[at];
}

static void store(void *memory, int is_double, int is_real, wide at, double complex value) {
    if (is_double && is_real) ((double *)memory)[at] = creal(value);
    else if (is_double) ((double complex *)memory)[at] = value;
    else if (is_real) ((float *)memory)[at] = creal(value);
    else ((float complex *)memory)[at] = value;
}

#define EACH(index, extents)                                                                       \
    for ((index)[0] = 0; (index)[0] < (extents)[0]; (index)[0]++)                                  \
        for ((index)[1] = 0; (index)[1] < (extents)[1]; (index)[1]++)                              \
            for ((index)[2] = 0; (index)[2] < (extents)[2]; (index)[2]++)

static int execute(int number, void *in, void *out, int direction) {
    struct plan *plan = &plans[number];
    int is_double = plan->type >= 0x60, kind = plan->type & 15;
    int from_real = kind == 0xa, to_real = kind == 0xc;
    wide *n = plan->lengths, j[3], k[3], half[3] = {n[0], n[1], n[2] / 2 + 1};
    SAY("exec %d direction=%d in_place=%d work=%d stream=%d", number, direction, in == out,
        plan->work != 0, plan->stream != 0);
    double complex *results = malloc(n[0] * n[1] * n[2] * sizeof *results);
    for (wide batch = 0; batch < plan->batch; batch++) {
        wide next = 0;
        EACH(k, from_real ? half : n) {
            double complex sum = 0;
            EACH(j, n) {
                wide at[3] = {j[0], j[1], j[2]};
                int mirrored = to_real && j[2] >= half[2];
                if (mirrored)
                    for (int i = 0; i < 3; i++) at[i] = (n[i] - j[i]) % n[i];
                double complex value = load(in, is_double, from_real, place(&plan->in, batch, at));
                double turn = 0;
                for (int i = 0; i < 3; i++) turn += (double)(j[i] * k[i] % n[i]) / n[i];
                sum += (mirrored ? conj(value) : value) * cexp(I * direction * 2 * M_PI * turn);
            }
            results[next++] = sum;
        }
        next = 0;
        EACH(k, from_real ? half : n)
        store(out, is_double, to_real, place(&plan->out, batch, k), results[next++]);
    }
    free(results);
    return 0;
}

int cufftExecC2C(int plan, void *in, void *out, int direction) {
    return execute(plan, in, out, direction);
}
int cufftExecR2C(int plan, void *in, void *out) { return execute(plan, in, out, -1); }
int cufftExecC2R(int plan, void *in, void *out) { return execute(plan, in, out, 1); }
#ifndef WITHOUT_DOUBLE
int cufftExecZ2Z(int plan, void *in, void *out, int direction) {
    return execute(plan, in, out, direction);
}
int cufftExecD2Z(int plan, void *in, void *out) { return execute(plan, in, out, -1); }
int cufftExecZ2D(int plan, void *in, void *out) { return execute(plan, in, out, 1); }
#endif
