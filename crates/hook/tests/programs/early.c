/* A library whose constructor, while the loader loads it, does what the program says. */
#define _GNU_SOURCE
#include <dlfcn.h>

__attribute__((constructor)) static void begin(void)
{
    void (*work)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "while_loading");
    if (work) work();
}
