/* Children that were forked when the driver had been used, and end as programs do; the parent's memory is shared. */
#include "driver.h"
#include <pthread.h>
#include <sys/wait.h>

static ptr block;

/* How many files there are by which others open memory. */
static int shares(void)
{
    char path[4096];
    int count = 0;
    snprintf(path, sizeof path, "%s/fercuda", getenv("XDG_RUNTIME_DIR"));
    DIR *folder = opendir(path);
    for (struct dirent *it; folder && (it = readdir(folder));) {
        size_t n = strlen(it->d_name);
        count += n > 6 && !strcmp(it->d_name + n - 6, ".share");
    }
    if (folder) closedir(folder);
    return count;
}

static int is_child(void)
{
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        alarm(20);
        return 1;
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("child %d %d, %d shared\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0,
           shares());
    return 0;
}

/* A block of 1 MiB that others may open, and some that are freed. */
static void use(void)
{
    char handle[64];
    ptr p;
    begin();
    OK(cuMemAlloc_v2(&block, 1 << 20));
    OK(cuIpcGetMemHandle(handle, block));
    for (int n = 0; n < 100; ++n) {
        OK(cuMemAllocAsync(&p, 1000 << n % 10, 0));
        OK(cuMemFreeAsync(p, 0));
    }
}

static void ends_by_exit(void)
{
    use();
    if (is_child()) exit(7);
    mark("after");
}

static void *thread_of_its_own(void *nothing)
{
    ptr p;
    OK(cuCtxSetCurrent(context));
    OK(cuMemAllocAsync(&p, 5000, (handle)PER_THREAD));
    OK(cuMemFreeAsync(p, (handle)PER_THREAD));
    /* The child has this thread alone, which ends, and with it the child. */
    if (is_child()) pthread_exit(0);
    return nothing;
}

static void ends_with_its_thread(void)
{
    pthread_t thread;
    use();
    pthread_create(&thread, 0, thread_of_its_own, 0);
    pthread_join(thread, 0);
    mark("after");
}

/* Called before the hook takes its last figures, in the child too. */
static void fork_last(void)
{
    is_child();
}

static void is_forked_at_exit(void)
{
    use();
    atexit(fork_last);
    mark("after");
}

int main(int argc, char **argv)
{
    static const test_case cases[] = {{"ends_by_exit", ends_by_exit},
                                      {"ends_with_its_thread", ends_with_its_thread},
                                      {"is_forked_at_exit", is_forked_at_exit},
                                      {0, 0}};
    return run_case(cases, argc, argv);
}
