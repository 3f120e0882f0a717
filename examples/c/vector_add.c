/*
 * Adds two vectors on a device: a session, three buffers, a kernel as PTX text, a launch
 * with checked arguments, and at the end no tenant that holds memory.
 *
 *     cc -std=c99 -Iinclude examples/c/vector_add.c -Llib -lfercuda -o vector_add
 *     FERCUDA_DEVICE=soft FERCUDA_SOFT_CHECK=1 LD_LIBRARY_PATH=lib ./vector_add
 */
#include <stdio.h>
#include <stdlib.h>

#include <fercuda/fercuda.h>

#define LEN 10007u

static const char PTX[] =
    ".version 8.0\n"
    ".target sm_80\n"
    ".address_size 64\n"
    ".visible .entry add(.param .u64 a, .param .u64 b, .param .u64 sum, .param .u32 n)\n"
    "{\n"
    "    .reg .pred %p<2>;\n"
    "    .reg .b32 %r<6>;\n"
    "    .reg .f32 %f<4>;\n"
    "    .reg .b64 %d<8>;\n"
    "    ld.param.u32 %r1, [n];\n"
    "    mov.u32 %r2, %ctaid.x;\n"
    "    mov.u32 %r3, %ntid.x;\n"
    "    mov.u32 %r4, %tid.x;\n"
    "    mad.lo.u32 %r5, %r2, %r3, %r4;\n"
    "    setp.ge.u32 %p1, %r5, %r1;\n"
    "    @%p1 ret;\n"
    "    ld.param.u64 %d1, [a];\n"
    "    ld.param.u64 %d2, [b];\n"
    "    ld.param.u64 %d3, [sum];\n"
    "    mul.wide.u32 %d4, %r5, 4;\n"
    "    add.s64 %d5, %d1, %d4;\n"
    "    add.s64 %d6, %d2, %d4;\n"
    "    add.s64 %d7, %d3, %d4;\n"
    "    ld.global.f32 %f1, [%d5];\n"
    "    ld.global.f32 %f2, [%d6];\n"
    "    add.f32 %f3, %f1, %f2;\n"
    "    st.global.f32 [%d7], %f3;\n"
    "    ret;\n"
    "}\n";

/* Prints the error, and exits. */
static void must(fer_status status, const char *what) {
    if (status != FER_OK) {
        fprintf(stderr, "%s: %s\n%s\n", what, fer_status_name(status), fer_last_error_message());
        exit(EXIT_FAILURE);
    }
}

#define MUST(call) must((call), #call)

int main(void) {
    static float a[LEN], b[LEN], sum[LEN];
    const uint64_t shape[1] = {LEN};
    fer_runtime runtime;
    fer_session session;
    fer_layout layout;
    fer_buffer on_device[3];
    fer_module module;
    fer_kernel add;
    fer_launch launch = {{(LEN + 255) / 256, 1, 1}, {256, 1, 1}, 0, 0};
    fer_argument arguments[4];
    uint64_t holders, wrong = 0;
    size_t at;

    for (at = 0; at < LEN; at++) {
        a[at] = (float)rand() / (float)RAND_MAX;
        b[at] = (float)rand() / (float)RAND_MAX;
    }
    MUST(fer_runtime_open(FER_DEVICE_FROM_ENVIRONMENT, 0, &runtime));
    MUST(fer_session_open(runtime, "vector_add", 1 << 20, &session));
    MUST(fer_layout_contiguous(FER_DTYPE_F32, 1, shape, &layout));
    for (at = 0; at < 3; at++)
        MUST(fer_alloc_buffer(session, &layout, FER_REGIME_POOL, &on_device[at]));
    MUST(fer_upload_bytes(session, on_device[0], a, sizeof a));
    MUST(fer_upload_bytes(session, on_device[1], b, sizeof b));

    MUST(fer_module_load_ptx(session, PTX, &module));
    MUST(fer_module_kernel(module, "add", &add));
    for (at = 0; at < 3; at++) {
        arguments[at].kind = FER_ARGUMENT_BUFFER;
        arguments[at].bytes = 8;
        arguments[at].value.buffer = on_device[at];
    }
    arguments[3].kind = FER_ARGUMENT_NUMBER;
    arguments[3].bytes = 4;
    arguments[3].value.u32 = LEN;
    MUST(fer_ptxlaunch_submit(session, add, &launch, arguments, 4));
    MUST(fer_download_bytes(session, on_device[2], sum, sizeof sum));

    /* One addition is rounded in one way only. */
    for (at = 0; at < LEN; at++) {
        float expected = a[at] + b[at];
        wrong += sum[at] != expected;
    }
    MUST(fer_session_close(session));
    MUST(fer_holders(runtime, NULL, 0, &holders));
    MUST(fer_runtime_close(runtime));
    printf("%u sums, %u wrong; %u hold memory\n", LEN, (unsigned)wrong, (unsigned)holders);
    return wrong || holders ? EXIT_FAILURE : EXIT_SUCCESS;
}
