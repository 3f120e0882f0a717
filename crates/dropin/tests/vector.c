/* Launches a kernel over a CUDA driver that is opened by name, with prototypes written out. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef int (*any)();

static void *driver;

static any find(const char *name)
{
    any f = (any)dlsym(driver, name);
    if (!f) {
        fprintf(stderr, "no %s\n", name);
        exit(2);
    }
    return f;
}

static void check(int code, const char *what)
{
    if (code) {
        fprintf(stderr, "%s: %d\n", what, code);
        exit(3);
    }
}

static const char *ptx =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry iota(.param .u64 p, .param .u32 n)\n{\n"
    "  .reg .b64 %a, %o; .reg .b32 %i, %n; .reg .pred %q;\n"
    "  ld.param.u64 %a, [p]; ld.param.u32 %n, [n];\n"
    "  mov.u32 %i, %tid.x; setp.ge.u32 %q, %i, %n; @%q bra done;\n"
    "  mul.wide.u32 %o, %i, 4; add.u64 %a, %a, %o; st.global.u32 [%a], %i;\n"
    "done: ret;\n}\n";

int main(void)
{
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    void *context, *module, *function;
    unsigned long long p;
    unsigned n = 100, out[100], sum = 0;
    check(find("cuInit")(0), "cuInit");
    check(find("cuCtxCreate_v2")(&context, 0, 0), "cuCtxCreate");
    check(find("cuModuleLoadData")(&module, ptx), "cuModuleLoadData");
    check(find("cuModuleGetFunction")(&function, module, "iota"), "cuModuleGetFunction");
    check(((int (*)(unsigned long long *, size_t))find("cuMemAlloc_v2"))(&p, sizeof out), "cuMemAlloc");
    void *params[] = {&p, &n};
    check(((int (*)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                    void **))find("cuLaunchKernel"))(function, 1, 1, 1, 128, 1, 1, 0, 0, params, 0), "cuLaunchKernel");
    check(((int (*)(void *, unsigned long long, size_t))find("cuMemcpyDtoH_v2"))(out, p, sizeof out), "cuMemcpyDtoH");
    for (unsigned i = 0; i < n; ++i) sum += out[i];
    printf("sum %u\n", sum);
    return 0;
}
