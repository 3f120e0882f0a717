/* A library that is linked to the driver, for programs that load it behind a scope of its own. */
#include "driver.h"

int plugin_use(void)
{
    begin();
    ptr p;
    unsigned word;
    OK(cuMemAlloc_v2(&p, 1 << 20));
    OK(cuMemsetD32_v2(p, 42, 1 << 18));
    OK(cuMemcpyDtoH_v2(&word, p, 4));
    OK(cuMemFree_v2(p));
    printf("code 0, holds %u\n", word);
    return 0;
}
