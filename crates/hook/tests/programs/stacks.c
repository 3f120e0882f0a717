/* Allocates through a bridge library, first from deep below, then from near the top of small stacks above
   which nothing may be read. */
#define _GNU_SOURCE
#include "driver.h"
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#define MiB (1ull << 20)
enum { STACK = 256 << 10, GUARD = 64 << 10 };

static int (*bridge_alloc)(ptr *, size_t, int);
static ucontext_t outside, fiber;

static void shallow(void)
{
    ptr p;
    for (int n = 0; n < 2; ++n) OK(bridge_alloc(&p, MiB, 0));
}

/* A stack that ends where memory does. */
static char *stack(void)
{
    char *all = mmap(0, STACK + GUARD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED || mprotect(all + STACK, GUARD, PROT_NONE)) _exit(5);
    return all;
}

static void *in_thread(void *context)
{
    OK(cuCtxSetCurrent(context));
    shallow();
    return 0;
}

static void in_handler(int number)
{
    shallow();
}

int main(int argc, char **argv)
{
    ptr p;
    begin();
    bridge_alloc = (int (*)(ptr *, size_t, int))dlsym(dlopen(argv[1], RTLD_NOW), "bridge_alloc");
    for (int n = 0; n < 3; ++n) OK(bridge_alloc(&p, MiB, 1));

    getcontext(&fiber);
    fiber.uc_stack.ss_sp = stack();
    fiber.uc_stack.ss_size = STACK;
    fiber.uc_link = &outside;
    makecontext(&fiber, shallow, 0);
    swapcontext(&outside, &fiber);
    printf("a fiber has what it asked for\n");

    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack(), STACK);
    if (pthread_create(&thread, &attributes, in_thread, context)) return 6;
    pthread_join(thread, 0);
    printf("a thread has what it asked for\n");

    stack_t other = {stack(), 0, STACK};
    struct sigaction action = {0};
    action.sa_handler = in_handler;
    action.sa_flags = SA_ONSTACK;
    if (sigaltstack(&other, 0) || sigaction(SIGUSR1, &action, 0)) return 7;
    raise(SIGUSR1);
    printf("a handler has what it asked for\n");
    return 0;
}
