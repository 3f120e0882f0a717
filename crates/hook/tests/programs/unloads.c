/* Loads each library of its arguments, uses the driver in it, and unloads it. Says where one took the place of another. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **names)
{
    void *last = 0;
    const char *last_name = "";
    for (int n = 1; n < count; ++n) {
        void *library = dlopen(names[n], RTLD_NOW);
        int (*use)(void) = library ? (int (*)(void))dlsym(library, "plugin_use") : 0;
        if (!use) {
            printf("cannot open: %s\n", dlerror());
            return 4;
        }
        if ((void *)use == last && strcmp(names[n], last_name)) printf("in place of another\n");
        last = (void *)use;
        last_name = names[n];
        use();
        fflush(stdout);
        if (dlclose(library)) return 5;
        if (dlopen(names[n], RTLD_NOW | RTLD_NOLOAD)) return 6;
    }
    return 0;
}
