/* Loaded beside the hook: makes it fail, as often as the variable `EVERY` says, from the first call on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>

__attribute__((constructor)) static void begin(void)
{
    void (*fail)(unsigned) = (void (*)(unsigned))dlsym(RTLD_DEFAULT, "fercuda_fail");
    if (fail) fail(atoi(getenv("EVERY")));
}
