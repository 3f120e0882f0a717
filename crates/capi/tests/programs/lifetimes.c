/*
 * Lifetimes: buffers, views, foreign memory, jobs, sessions that two threads close, arenas,
 * reboots, forks; and at the end no tenant holds memory. The first argument is a seed.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static unsigned char any_byte(void) { return (unsigned char)rand(); }

static void fill(unsigned char *bytes, size_t len) {
    size_t at;
    for (at = 0; at < len; at++)
        bytes[at] = any_byte();
}

/* ---- buffers ---- */

static void values_come_back_from_every_regime(fer_runtime runtime) {
    fer_session session = a_session(runtime, "regimes");
    const uint64_t shape[2] = {30, 100};
    unsigned char sent[3000], got[3000];
    fer_layout layout, back;
    fer_buffer buffer, view;
    fer_buffer_details details;
    uint64_t address;
    uint32_t regime, x, y;
    OK(fer_layout_contiguous(FER_DTYPE_U8, 2, shape, &layout));
    for (regime = FER_REGIME_POOL; regime <= FER_REGIME_PINNED; regime++) {
        fill(sent, sizeof sent);
        OK(fer_alloc_buffer(session, &layout, regime, &buffer));
        OK(fer_upload_bytes(session, buffer, sent, sizeof sent));
        OK(fer_buffer_info(session, buffer, &details));
        CHECK(details.bytes == sizeof sent && details.regime == regime && !details.is_exported);
        CHECK(memcmp(&details.layout, &layout, sizeof layout) == 0);
        OK(fer_export_buffer_device_ptr(session, buffer, &address));
        OK(fer_buffer_info(session, buffer, &details));
        CHECK(address != 0 && details.is_exported);
        /* The same transposed. */
        back = layout;
        back.shape[0] = 100, back.shape[1] = 30;
        back.strides[0] = 1, back.strides[1] = 100;
        OK(fer_view_buffer(session, buffer, &back, 0, &view));
        OK(fer_free_buffer(session, buffer));
        OK(fer_download_bytes(session, view, got, sizeof got));
        for (y = 0; y < 30; y++)
            for (x = 0; x < 100; x++)
                CHECK(got[x * 30 + y] == sent[y * 100 + x]);
        OK(fer_fill_buffer(session, view, 7));
        OK(fer_download_bytes(session, view, got, sizeof got));
        CHECK(got[0] == 7 && memcmp(got, got + 1, sizeof got - 1) == 0);
        OK(fer_free_buffer(session, view));
        GIVES(FER_ERROR_STALE_HANDLE, fer_free_buffer(session, view));
        SAYS("freed");
    }
    OK(fer_session_close(session));
}

static void a_limit_is_kept(fer_runtime runtime) {
    fer_session session;
    fer_session_details details;
    fer_layout layout = bytes_of(4096);
    fer_buffer buffer = 77;
    OK(fer_session_open(runtime, "small", 4096, &session));
    OK(fer_free_buffer(session, a_buffer(session, 4096)));
    a_buffer(session, 1);
    GIVES(FER_ERROR_LIMIT, fer_alloc_buffer(session, &layout, FER_REGIME_POOL, &buffer));
    SAYS("small");
    SAYS("4.0 KiB");
    SAYS("512 B");
    CHECK(buffer == 77);
    OK(fer_session_info(session, &details));
    CHECK(details.held_bytes == 512 && details.peak_bytes == 4096);
    CHECK(details.limit_bytes == 4096 && details.buffers == 1);
    OK(fer_session_close(session));
}

static void too_much_is_refused_with_who_holds_it(fer_runtime runtime) {
    fer_session session = a_session(runtime, "greedy");
    fer_memory_details memory;
    fer_layout layout;
    fer_buffer buffer;
    OK(fer_memory_info(runtime, &memory));
    CHECK(memory.free_bytes > 0 && memory.free_bytes <= memory.total_bytes);
    layout = bytes_of(memory.total_bytes);
    a_buffer(session, 1 << 20);
    GIVES(FER_ERROR_OUT_OF_MEMORY, fer_alloc_buffer(session, &layout, FER_REGIME_POOL, &buffer));
    SAYS("greedy 1.0 MiB");
    OK(fer_session_close(session));
}

/* ---- foreign memory ---- */

static void once(void *context) { __atomic_add_fetch((int *)context, 1, __ATOMIC_SEQ_CST); }

static void foreign_memory_is_given_back_once(fer_runtime runtime) {
    fer_session lender = a_session(runtime, "lender"), session = a_session(runtime, "borrower");
    unsigned char sent[500], got[500];
    fer_layout layout = bytes_of(sizeof sent), small = bytes_of(8);
    fer_buffer lent, borrowed, view;
    fer_buffer_details details;
    uint64_t address;
    int calls = 0;
    OK(fer_alloc_buffer(lender, &layout, FER_REGIME_POOL, &lent));
    OK(fer_export_buffer_device_ptr(lender, lent, &address));
    /* A failed import calls no deleter. */
    GIVES(FER_ERROR_INVALID_ARGUMENT,
          fer_import_device_ptr(session, address, &layout, once, &calls, NULL));
    GIVES(FER_ERROR_STALE_HANDLE,
          fer_import_device_ptr(99, address, &layout, once, &calls, &borrowed));
    CHECK(calls == 0);
    OK(fer_import_device_ptr(session, address, &layout, once, &calls, &borrowed));
    OK(fer_buffer_info(session, borrowed, &details));
    CHECK(details.regime == FER_REGIME_FOREIGN);
    fill(sent, sizeof sent);
    OK(fer_upload_bytes(session, borrowed, sent, sizeof sent));
    OK(fer_download_bytes(lender, lent, got, sizeof got));
    CHECK(memcmp(sent, got, sizeof got) == 0);
    OK(fer_view_buffer(session, borrowed, &small, 100, &view));
    OK(fer_free_buffer(session, borrowed));
    OK(fer_stream_sync(session));
    CHECK(__atomic_load_n(&calls, __ATOMIC_SEQ_CST) == 0);
    OK(fer_free_buffer(session, view));
    /* Another, which is freed with the session; and one without a deleter. */
    OK(fer_import_device_ptr(session, address, &layout, once, &calls, &borrowed));
    OK(fer_import_device_ptr(session, address, &layout, NULL, NULL, &borrowed));
    OK(fer_session_close(session));
    CHECK(__atomic_load_n(&calls, __ATOMIC_SEQ_CST) == 2);
    OK(fer_session_close(lender));
    CHECK(calls == 2);
}

/* ---- jobs ---- */

struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int is_entered, is_open, answer;
};

/* Waits until the gate is open. */
static int held_back(void *context, void *stream) {
    struct gate *gate = context;
    CHECK(stream != NULL);
    pthread_mutex_lock(&gate->lock);
    gate->is_entered = 1;
    pthread_cond_broadcast(&gate->changed);
    while (!gate->is_open)
        pthread_cond_wait(&gate->changed, &gate->lock);
    pthread_mutex_unlock(&gate->lock);
    return gate->answer;
}

static void until_entered(struct gate *gate) {
    pthread_mutex_lock(&gate->lock);
    while (!gate->is_entered)
        pthread_cond_wait(&gate->changed, &gate->lock);
    pthread_mutex_unlock(&gate->lock);
}

static void open_gate(struct gate *gate) {
    pthread_mutex_lock(&gate->lock);
    gate->is_open = 1;
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
}

#define CLOSED_GATE {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0}

static void *waits(void *job) { return (void *)(intptr_t)fer_job_wait(*(fer_job *)job, FER_WAIT_FOREVER); }

static void jobs_wait_end_and_are_cancelled(fer_runtime runtime) {
    fer_session session = a_session(runtime, "jobs");
    fer_buffer buffer = a_buffer(session, 1000);
    unsigned char sent[1000], got[1000], untouched[1000];
    struct gate gate = CLOSED_GATE;
    fer_job first, upload, cancelled, download, forgotten, fence;
    pthread_t threads[3];
    uint32_t state, was_cancelled = 7;
    int at;
    void *given;
    fill(sent, sizeof sent);
    memset(got, 0, sizeof got);
    memset(untouched, 5, sizeof untouched);
    OK(fer_submit_host_work(session, held_back, &gate, &first));
    OK(fer_upload_async(session, buffer, sent, sizeof sent, &upload));
    OK(fer_upload_async(session, buffer, untouched, sizeof untouched, &cancelled));
    OK(fer_download_async(session, buffer, got, sizeof got, &download));
    OK(fer_download_async(session, buffer, untouched, sizeof untouched, &forgotten));
    OK(fer_submit_fence(session, &fence));
    until_entered(&gate);
    OK(fer_job_status(first, &state));
    CHECK(state == FER_JOB_RUNNING);
    OK(fer_job_status(fence, &state));
    CHECK(state == FER_JOB_WAITING);
    GIVES(FER_ERROR_TIMEOUT, fer_job_wait(fence, 0));
    GIVES(FER_ERROR_TIMEOUT, fer_job_wait(fence, SECOND / 100));
    SAYS("try:");
    OK(fer_job_cancel(first, &was_cancelled));
    CHECK(was_cancelled == 0);
    OK(fer_job_cancel(cancelled, &was_cancelled));
    CHECK(was_cancelled == 1);
    OK(fer_job_cancel(cancelled, NULL));
    OK(fer_job_free(forgotten));
    GIVES(FER_ERROR_STALE_HANDLE, fer_job_wait(forgotten, 0));
    for (at = 0; at < 3; at++)
        CHECK(pthread_create(&threads[at], NULL, waits, &download) == 0);
    open_gate(&gate);
    for (at = 0; at < 3; at++) {
        CHECK(pthread_join(threads[at], &given) == 0);
        CHECK((intptr_t)given == FER_OK);
    }
    OK(fer_job_wait(download, 0));
    CHECK(memcmp(sent, got, sizeof got) == 0);
    GIVES(FER_ERROR_CANCELLED, fer_job_wait(cancelled, FER_WAIT_FOREVER));
    GIVES(FER_ERROR_CANCELLED, fer_job_wait(cancelled, 0));
    OK(fer_job_status(cancelled, &state));
    CHECK(state == FER_JOB_CANCELLED);
    OK(fer_job_wait(fence, 60 * SECOND));
    OK(fer_job_status(fence, &state));
    CHECK(state == FER_JOB_DONE);
    for (at = 0; at < 1000; at++)
        CHECK(untouched[at] == 5);

    gate.is_open = 1;
    gate.answer = -3;
    OK(fer_submit_host_work(session, held_back, &gate, &fence));
    GIVES(FER_ERROR_HOST_WORK, fer_job_wait(fence, FER_WAIT_FOREVER));
    SAYS("-3");
    GIVES(FER_ERROR_HOST_WORK, fer_job_wait(fence, 0));
    OK(fer_job_status(fence, &state));
    CHECK(state == FER_JOB_FAILED);
    OK(fer_session_close(session));
    GIVES(FER_ERROR_STALE_HANDLE, fer_job_wait(download, 0));
}

/* ---- sessions ---- */

static void *closes(void *session) { return (void *)(intptr_t)fer_session_close(*(fer_session *)session); }

/* Works until the session is gone, whatever the calls return. */
static void *works(void *given) {
    fer_session session = *(fer_session *)given;
    fer_layout layout = bytes_of(3000);
    unsigned char bytes[3000] = {0};
    fer_buffer buffer;
    fer_job job;
    fer_status status;
    do {
        status = fer_alloc_buffer(session, &layout, FER_REGIME_POOL, &buffer);
        if (status == FER_OK)
            status = fer_upload_async(session, buffer, bytes, sizeof bytes, &job);
        if (status == FER_OK)
            status = fer_job_wait(job, FER_WAIT_FOREVER);
        if (status == FER_OK)
            status = fer_free_buffer(session, buffer);
    } while (status == FER_OK);
    return (void *)(intptr_t)status;
}

static void threads_that_close_one_session_close_it_once(fer_runtime runtime) {
    int round, at, closed;
    for (round = 0; round < 20; round++) {
        fer_session session = a_session(runtime, "closed twice");
        pthread_t threads[5];
        void *given[5];
        for (at = 0; at < 2; at++)
            CHECK(pthread_create(&threads[at], NULL, works, &session) == 0);
        if (round % 2) {
            struct timespec pause = {0, 300000};
            nanosleep(&pause, NULL);
        }
        for (at = 2; at < 5; at++)
            CHECK(pthread_create(&threads[at], NULL, closes, &session) == 0);
        for (at = 0, closed = 0; at < 5; at++) {
            CHECK(pthread_join(threads[at], &given[at]) == 0);
            if (at < 2)
                CHECK((intptr_t)given[at] == FER_ERROR_ENDED ||
                      (intptr_t)given[at] == FER_ERROR_STALE_HANDLE ||
                      (intptr_t)given[at] == FER_ERROR_CANCELLED);
            else if ((intptr_t)given[at] == FER_OK)
                closed++;
            else
                CHECK((intptr_t)given[at] == FER_ERROR_STALE_HANDLE);
        }
        CHECK(closed == 1);
    }
}

static void a_runtime_takes_its_sessions_along(void) {
    fer_runtime runtime = a_runtime();
    fer_session sessions[2];
    sessions[0] = a_session(runtime, "one");
    sessions[1] = a_session(runtime, "two");
    a_buffer(sessions[0], 100000);
    OK(fer_runtime_close(runtime));
    GIVES(FER_ERROR_STALE_HANDLE, fer_stream_sync(sessions[0]));
    GIVES(FER_ERROR_STALE_HANDLE, fer_session_close(sessions[1]));
    GIVES(FER_ERROR_STALE_HANDLE, fer_runtime_close(runtime));
}

static void a_reboot_ends_sessions(fer_runtime runtime) {
    fer_session session = a_session(runtime, "rebooted");
    fer_buffer buffer = a_buffer(session, 5 << 20);
    fer_reboot_details details;
    fer_session_details in_session;
    fer_layout layout = bytes_of(8);
    unsigned char bytes[8];
    void *stream;
    uint64_t epoch;
    OK(fer_session_stream(session, &stream));
    CHECK(stream != NULL);
    OK(fer_reboot(runtime, &details));
    CHECK(details.sessions == 1 && details.returned_bytes >= 5 << 20 && !details.was_reset);
    CHECK(details.others == 0);
    epoch = details.epoch;
    GIVES(FER_ERROR_ENDED, fer_download_bytes(session, buffer, bytes, 8));
    SAYS("rebooted");
    GIVES(FER_ERROR_ENDED, fer_alloc_buffer(session, &layout, FER_REGIME_POOL, &buffer));
    GIVES(FER_ERROR_ENDED, fer_session_info(session, &in_session));
    GIVES(FER_ERROR_ENDED, fer_session_stream(session, &stream));
    OK(fer_session_close(session));
    OK(fer_reboot(runtime, NULL));
    OK(fer_reset(runtime, &details));
    CHECK(details.epoch == epoch + 2 && details.sessions == 0 && !details.was_reset);
}

/* ---- kernels ---- */

static const char PAIRS[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry sum(.param .u64 into, .param .align 4 .b8 pair[12], .param .u8 more)\n{\n"
    "    .reg .b32 %r<5>;\n    .reg .b16 %h<2>;\n    .reg .b64 %d<2>;\n"
    "    ld.param.u64 %d1, [into];\n    ld.param.u32 %r1, [pair];\n"
    "    ld.param.u32 %r2, [pair+8];\n    ld.param.u8 %h1, [more];\n"
    "    cvt.u32.u16 %r3, %h1;\n    add.u32 %r1, %r1, %r2;\n    add.u32 %r1, %r1, %r3;\n"
    "    st.global.u32 [%d1], %r1;\n    ret;\n}\n";

static void structures_are_copied_and_kernels_end_with_their_module(fer_runtime runtime) {
    fer_session session = a_session(runtime, "kernels"), other = a_session(runtime, "others");
    fer_module module;
    fer_kernel kernel, again;
    fer_launch launch = {{1, 1, 1}, {1, 1, 1}, 0, 0};
    fer_argument arguments[3] = {{0, 0, {0}}, {0, 0, {0}}, {0, 0, {0}}};
    uint32_t pair[3] = {1000, 5, 70000}, sum = 0;
    fer_buffer buffer = a_buffer(session, 4);
    OK(fer_module_load_image(session, PAIRS, sizeof PAIRS - 1, &module));
    OK(fer_module_kernel(module, "sum", &kernel));
    OK(fer_module_kernel(module, "sum", &again));
    CHECK(kernel == again);
    arguments[0].kind = FER_ARGUMENT_BUFFER;
    arguments[0].value.buffer = buffer;
    arguments[1].kind = FER_ARGUMENT_STRUCTURE;
    arguments[1].bytes = sizeof pair;
    arguments[1].value.structure = pair;
    arguments[2].kind = FER_ARGUMENT_NUMBER;
    arguments[2].bytes = 1;
    arguments[2].value.bytes[0] = 200;
    OK(fer_ptxlaunch_submit(session, kernel, &launch, arguments, 3));
    memset(pair, 0, sizeof pair);
    OK(fer_download_bytes(session, buffer, &sum, 4));
    CHECK(sum == 1000 + 70000 + 200);
    arguments[1].bytes = 8;
    GIVES(FER_ERROR_LAUNCH, fer_ptxlaunch_submit(session, kernel, &launch, arguments, 3));
    SAYS("argument 1 is 12 bytes");
    arguments[1].bytes = 12;
    GIVES(FER_ERROR_STALE_HANDLE, fer_ptxlaunch_submit(other, kernel, &launch, arguments, 3));
    OK(fer_module_unload(module));
    GIVES(FER_ERROR_STALE_HANDLE, fer_ptxlaunch_submit(session, kernel, &launch, arguments, 3));
    GIVES(FER_ERROR_STALE_HANDLE, fer_module_kernel(module, "sum", &kernel));
    OK(fer_session_close(session));
    OK(fer_session_close(other));
}

/* ---- arenas ---- */

static void an_arena_is_planned_saved_and_freed(fer_runtime runtime) {
    static const char *const NAMES[4] = {"input", "hidden", "more", "output"};
    fer_session session = a_session(runtime, "arena");
    fer_tensor_spec tensors[4];
    fer_arena arenas[2];
    fer_arena_details details[2];
    fer_session_details in_session;
    fer_buffer buffers[4], of_other;
    uint64_t offsets[4], at_other, needed, all = 0;
    unsigned char sent[4][3000], got[3000];
    char cut[10], *plan;
    uint32_t at, other, which;
    for (at = 0; at < 4; at++) {
        memset(&tensors[at], 0, sizeof tensors[at]);
        tensors[at].name = NAMES[at];
        tensors[at].dtype = FER_DTYPE_U8;
        tensors[at].rank = 2;
        tensors[at].shape[0] = 3;
        tensors[at].shape[1] = 1000 - 100 * at;
        tensors[at].from_step = at;
        tensors[at].until_step = at + 2;
        all += 3 * tensors[at].shape[1];
    }
    OK(fercuda_ignite(session, tensors, 4, &arenas[0]));
    OK(fer_arena_plan(arenas[0], NULL, 0, &needed));
    plan = malloc(needed);
    CHECK(plan != NULL);
    OK(fer_arena_plan(arenas[0], plan, needed, &needed));
    CHECK(strlen(plan) + 1 == needed && strstr(plan, "hidden") != NULL);
    OK(fer_arena_plan(arenas[0], cut, sizeof cut, &needed));
    CHECK(strlen(cut) == sizeof cut - 1 && strncmp(cut, plan, sizeof cut - 1) == 0);
    OK(fercuda_ignite_plan(session, plan, &arenas[1]));
    free(plan);
    OK(fer_arena_info(arenas[0], &details[0]));
    OK(fer_arena_info(arenas[1], &details[1]));
    CHECK(details[0].bytes == details[1].bytes && details[0].bytes < all);
    CHECK(details[0].tensors == 4 && details[0].buffer != details[1].buffer);
    for (at = 0; at < 4; at++) {
        OK(fer_arena_tensor(arenas[0], NAMES[at], &buffers[at], &offsets[at]));
        OK(fer_arena_tensor(arenas[1], NAMES[at], &of_other, &at_other));
        CHECK(offsets[at] == at_other && buffers[at] != of_other);
    }
    /* At each step the live tensors keep their values. */
    for (at = 0; at < 4; at++) {
        uint64_t len = 3 * tensors[at].shape[1];
        fill(sent[at], len);
        OK(fer_upload_bytes(session, buffers[at], sent[at], len));
        for (which = 0; which <= at; which++) {
            other = at - which;
            if (tensors[other].until_step <= at)
                break;
            len = 3 * tensors[other].shape[1];
            OK(fer_download_bytes(session, buffers[other], got, len));
            CHECK(memcmp(sent[other], got, len) == 0);
        }
    }
    /* One that the program has freed itself. */
    OK(fer_free_buffer(session, buffers[2]));
    OK(fer_arena_free(arenas[0]));
    GIVES(FER_ERROR_STALE_HANDLE, fer_free_buffer(session, buffers[0]));
    GIVES(FER_ERROR_STALE_HANDLE, fer_arena_free(arenas[0]));
    OK(fer_session_info(session, &in_session));
    CHECK(in_session.buffers == 5);
    OK(fer_arena_free(arenas[1]));
    OK(fer_session_info(session, &in_session));
    CHECK(in_session.buffers == 0 && in_session.held_bytes == 0);
    tensors[3].name = "input";
    GIVES(FER_ERROR_PLAN, fercuda_ignite(session, tensors, 4, &arenas[0]));
    SAYS("input");
    OK(fer_session_close(session));
}

/* ---- telemetry, contract, forks ---- */

static void what_is_intercepted_is_counted(fer_runtime runtime) {
    fer_session session = a_session(runtime, "counted");
    fer_intercept_telemetry before, after;
    fer_holder holders[4];
    fer_buffer buffer;
    uint64_t count, at, found = 0;
    uint32_t enabled = 0;
    OK(fer_intercept_telemetry_enabled(&enabled));
    CHECK(enabled == 1);
    OK(fer_intercept_telemetry_reset());
    OK(fer_intercept_telemetry_get(&before));
    CHECK(before.allocations == 0 && before.frees == 0 && before.fallbacks == 0);
    buffer = a_buffer(session, 3 << 20);
    OK(fer_intercept_telemetry_get(&after));
    CHECK(after.allocations == 1 && after.frees == 0 && !after.is_racing);
    CHECK(after.live_bytes == before.live_bytes + (3 << 20) && after.peak_bytes >= 3 << 20);
    OK(fer_holders(runtime, holders, 4, &count));
    for (at = 0; at < count; at++)
        found += !strcmp(holders[at].name, "counted") && holders[at].pooled_bytes == 3 << 20;
    CHECK(found == 1);
    OK(fer_free_buffer(session, buffer));
    OK(fer_session_close(session));
    OK(fer_intercept_telemetry_get(&after));
    CHECK(after.allocations == 1 && after.frees == 1 && after.live_bytes == before.live_bytes);
}

static void the_contract_says_what_is_served(void) {
    fer_execution_contract contract;
    uint32_t number, served, entrypoint;
    OK(fer_execution_contract_get(&contract));
    CHECK(contract.abi_major == FER_ABI_MAJOR && contract.abi_minor == FER_ABI_MINOR);
    for (number = FER_ENTRYPOINT_TENSOR; number <= FER_ENTRYPOINT_FRAMEWORK_ALLOCATOR; number++) {
        OK(fer_entrypoint_served(number, &served));
        CHECK(served == (contract.entrypoints >> number & 1));
        CHECK(strcmp(fer_entrypoint_name(number), "unknown") != 0);
    }
    CHECK(contract.entrypoints >> FER_ENTRYPOINT_TENSOR & 1);
    CHECK(contract.entrypoints >> FER_ENTRYPOINT_JIT_INTENT & 1);
    CHECK(contract.entrypoints >> FER_ENTRYPOINT_JIT_LAUNCH & 1);
    CHECK(contract.entrypoints >> FER_ENTRYPOINT_RESIDENT_DAEMON & 1);
    CHECK(contract.frontends >> FER_FRONTEND_C & 1);
    /* Only the hook does, which is absent. */
    CHECK(!(contract.entrypoints >> FER_ENTRYPOINT_FRAMEWORK_ALLOCATOR & 1));
    OK(fer_frontend_entrypoint(FER_FRONTEND_RUST_FERRITE_TORCH, &entrypoint));
    CHECK(entrypoint == FER_ENTRYPOINT_FRAMEWORK_ALLOCATOR);
    CHECK(strcmp(fer_frontend_name(FER_FRONTEND_RUST_FERRITE_TORCH), "rust_ferrite_torch") == 0);
}

static void the_child_of_a_fork_is_told_so(fer_runtime runtime) {
    fer_session session = a_session(runtime, "forked");
    fer_runtime another;
    int status, ends[2];
    char said = 'n';
    pid_t child;
    CHECK(pipe(ends) == 0);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        GIVES(FER_ERROR_FORKED, fer_stream_sync(session));
        GIVES(FER_ERROR_FORKED, fer_session_close(session));
        GIVES(FER_ERROR_FORKED, fer_runtime_open(FER_DEVICE_FROM_ENVIRONMENT, 0, &another));
        GIVES(FER_ERROR_FORKED, fer_runtime_close(runtime));
        SAYS("forked");
        CHECK(write(ends[1], "y", 1) == 1);
        /* A leak check at exit would report the threads that do not exist here. */
        kill(getpid(), SIGKILL);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(close(ends[1]) == 0 && read(ends[0], &said, 1) == 1 && said == 'y');
    CHECK(close(ends[0]) == 0);
    OK(fer_session_close(session));
}

int main(int count, char **given) {
    fer_runtime runtime;
    CHECK(count == 2);
    srand((unsigned)strtoul(given[1], NULL, 10));
    runtime = a_runtime();
    values_come_back_from_every_regime(runtime);
    a_limit_is_kept(runtime);
    too_much_is_refused_with_who_holds_it(runtime);
    foreign_memory_is_given_back_once(runtime);
    jobs_wait_end_and_are_cancelled(runtime);
    threads_that_close_one_session_close_it_once(runtime);
    a_runtime_takes_its_sessions_along();
    structures_are_copied_and_kernels_end_with_their_module(runtime);
    an_arena_is_planned_saved_and_freed(runtime);
    what_is_intercepted_is_counted(runtime);
    the_contract_says_what_is_served();
    a_reboot_ends_sessions(runtime);
    the_child_of_a_fork_is_told_so(runtime);
    at_its_end(runtime);
    return 0;
}
