/* A library with a constructor that calls back into the program while the loader loads it. */
#define _GNU_SOURCE
#include <dlfcn.h>

__attribute__((constructor)) static void begin(void)
{
    void (*work)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "while_loading");
    if (work) work();
}
