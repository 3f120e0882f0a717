// A library with cuBLASLt's interface, for tests without a GPU: it writes each call to LOG, and
// computes products in host memory, which the software device's addresses are.
// VERSION, STATUS_OF_MATMUL and WITHOUT_HEURISTIC are given by the test.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef VERSION
#define VERSION 130100
#endif
#ifndef STATUS_OF_MATMUL
#define STATUS_OF_MATMUL 0
#endif

#define SAY(...)                                                                                   \
    do {                                                                                           \
        FILE *file = fopen(LOG, "a");                                                              \
        fprintf(file, __VA_ARGS__);                                                                \
        fputc('\n', file);                                                                         \
        fclose(file);                                                                              \
    } while (0)

enum { F32 = 0, F64 = 1, I8 = 3, I32 = 10 };

struct layout {
    int type, batch;
    uint64_t rows, cols;
    int64_t leading, stride;
};

struct desc {
    int compute, scale, transposed[2];
    uint32_t epilogue;
    uint64_t bias, scales[3];
    int bias_type, fast;
};

struct preference {
    uint64_t workspace;
    uint32_t alignment[4], reductions;
};

struct algorithm {
    uint64_t magic, alignment[4], rest[3];
};

struct result {
    struct algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

size_t cublasLtGetVersion(void) { return VERSION; }

int cublasLtCreate(void **handle) {
    *handle = malloc(1);
    SAY("create handle");
    return 0;
}

int cublasLtDestroy(void *handle) {
    free(handle);
    SAY("destroy handle");
    return 0;
}

int cublasLtMatmulDescCreate(struct desc **desc, int compute, int scale) {
    *desc = calloc(1, sizeof **desc);
    (*desc)->compute = compute;
    (*desc)->scale = scale;
    (*desc)->epilogue = 1;
    SAY("create desc compute=%d scale=%d", compute, scale);
    return 0;
}

int cublasLtMatmulDescDestroy(struct desc *desc) {
    free(desc);
    SAY("destroy desc");
    return 0;
}

int cublasLtMatmulDescSetAttribute(struct desc *desc, int attribute, const void *value,
                                   size_t bytes) {
    void *place;
    size_t expected = 8;
    switch (attribute) {
    case 3: case 4: place = &desc->transposed[attribute - 3]; expected = 4; break;
    case 7: place = &desc->epilogue; expected = 4; break;
    case 8: place = &desc->bias; break;
    case 17: case 18: place = &desc->scales[attribute - 17]; break;
    case 20: place = &desc->scales[2]; break;
    case 25: place = &desc->fast; expected = 1; break;
    case 26: place = &desc->bias_type; expected = 4; break;
    default: return 7;
    }
    if (bytes != expected) return 7;
    memcpy(place, value, bytes);
    if (attribute != 8 && (attribute < 17 || attribute > 20))
        SAY("desc attribute %d = %d", attribute, bytes == 1 ? *(int8_t *)value : *(int *)value);
    return 0;
}

int cublasLtMatrixLayoutCreate(struct layout **layout, int type, uint64_t rows, uint64_t cols,
                               int64_t leading) {
    struct layout made = {type, 1, rows, cols, leading, 0};
    *layout = malloc(sizeof made);
    **layout = made;
    SAY("create layout type=%d rows=%lu cols=%lu ld=%ld", type, rows, cols, leading);
    return 0;
}

int cublasLtMatrixLayoutDestroy(struct layout *layout) {
    free(layout);
    SAY("destroy layout");
    return 0;
}

int cublasLtMatrixLayoutSetAttribute(struct layout *layout, int attribute, const void *value,
                                     size_t bytes) {
    if (attribute == 5 && bytes == 4) layout->batch = *(const int *)value;
    else if (attribute == 6 && bytes == 8) layout->stride = *(const int64_t *)value;
    else return 7;
    SAY("layout attribute %d = %ld", attribute, attribute == 5 ? layout->batch : layout->stride);
    return 0;
}

int cublasLtMatmulPreferenceCreate(struct preference **preference) {
    *preference = calloc(1, sizeof **preference);
    (*preference)->reductions = 7;
    return 0;
}

int cublasLtMatmulPreferenceDestroy(struct preference *preference) {
    free(preference);
    SAY("destroy preference");
    return 0;
}

int cublasLtMatmulPreferenceSetAttribute(struct preference *preference, int attribute,
                                         const void *value, size_t bytes) {
    if (attribute == 1 && bytes == 8) preference->workspace = *(const uint64_t *)value;
    else if (attribute == 3 && bytes == 4) preference->reductions = *(const uint32_t *)value;
    else if (attribute >= 5 && attribute <= 8 && bytes == 4)
        preference->alignment[attribute - 5] = *(const uint32_t *)value;
    else return 7;
    return 0;
}

#ifndef WITHOUT_HEURISTIC
// Three algorithms with 0, 512 and 4096 bytes of workspace, and one that is not supported; none
// for 16-bit types.
int cublasLtMatmulAlgoGetHeuristic(void *handle, struct desc *desc, struct layout *a,
                                   struct layout *b, struct layout *c, struct layout *d,
                                   struct preference *preference, int requested,
                                   struct result *results, int *returned) {
    static const size_t NEEDS[] = {0, 512, 4096};
    (void)handle, (void)b, (void)c, (void)d;
    uint32_t *align = preference->alignment;
    SAY("heuristic count=%d workspace=%lu align=%u,%u,%u,%u reductions=%u bias=%d", requested,
        preference->workspace, align[0], align[1], align[2], align[3], preference->reductions,
        desc->bias != 0);
    *returned = 0;
    if (a->type == 2) return 15;
    for (int i = 0; i < 4 && *returned < requested; i++) {
        if (i < 3 && NEEDS[i] > preference->workspace) continue;
        struct result *result = &results[(*returned)++];
        memset(result, 0, sizeof *result);
        result->algorithm.magic = 0xa190;
        for (int j = 0; j < 4; j++) result->algorithm.alignment[j] = align[j];
        result->workspace = i < 3 ? NEEDS[i] : 0;
        result->state = i < 3 ? 0 : 15;
        result->waves = 0.5f;
    }
    return 0;
}
#endif

static double load(const void *memory, int type, int64_t at) {
    switch (type) {
    case F32: return ((const float *)memory)[at];
    case F64: return ((const double *)memory)[at];
    case I8: return ((const int8_t *)memory)[at];
    default: return ((const int32_t *)memory)[at];
    }
}

static double scalar(const void *value, int type) { return load(value, type == I32 ? I32 : type, 0); }

static void compute(struct desc *desc, double alpha, const void *A, struct layout *a, const void *B,
                    struct layout *b, double beta, const void *C, struct layout *c, void *D,
                    struct layout *d) {
    uint64_t k = desc->transposed[0] ? a->rows : a->cols;
    for (int batch = 0; batch < d->batch; batch++)
        for (uint64_t col = 0; col < d->cols; col++)
            for (uint64_t row = 0; row < d->rows; row++) {
                double sum = 0;
                for (uint64_t i = 0; i < k; i++) {
                    int64_t left = desc->transposed[0] ? row * a->leading + i : i * a->leading + row;
                    int64_t right = desc->transposed[1] ? i * b->leading + col : col * b->leading + i;
                    sum += load(A, a->type, batch * a->stride + left) *
                           load(B, b->type, batch * b->stride + right);
                }
                sum *= alpha;
                if (beta != 0)
                    sum += beta * load(C, c->type, batch * c->stride + col * c->leading + row);
                if (desc->epilogue & 4) sum += load((void *)desc->bias, d->type, row);
                if (desc->epilogue & 2) sum = sum > 0 ? sum : 0;
                int64_t at = batch * d->stride + col * d->leading + row;
                if (d->type == F32) ((float *)D)[at] = sum;
                else if (d->type == F64) ((double *)D)[at] = sum;
                else ((int32_t *)D)[at] = sum;
            }
}

int cublasLtMatmul(void *handle, struct desc *desc, const void *alpha, const void *A,
                   struct layout *a, const void *B, struct layout *b, const void *beta,
                   const void *C, struct layout *c, void *D, struct layout *d,
                   const struct algorithm *algorithm, void *workspace, size_t workspace_bytes,
                   void *stream) {
    (void)handle;
    SAY("matmul magic=%lx alpha=%g beta=%g in_place=%d workspace=%d bytes=%lu stream=%d scales=%d%d%d",
        algorithm->magic, scalar(alpha, desc->scale), scalar(beta, desc->scale), C == D,
        workspace != 0, workspace_bytes, stream != 0, desc->scales[0] != 0, desc->scales[1] != 0,
        desc->scales[2] != 0);
    if (STATUS_OF_MATMUL) return STATUS_OF_MATMUL;
    const void *operands[] = {A, B, C, D};
    for (int i = 0; i < 4; i++)
        if (algorithm->alignment[i] && (uintptr_t)operands[i] % algorithm->alignment[i]) return 11;
    if (a->type == F32 || a->type == F64 || a->type == I8)
        compute(desc, scalar(alpha, desc->scale), A, a, B, b, scalar(beta, desc->scale), C, c, D, d);
    return 0;
}
