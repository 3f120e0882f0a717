/*
 * The dispatcher: good and bad tasks, a full ring, buffers that are freed meanwhile, and every
 * way to end it: stopped, freed, with its session, a reboot, its runtime, in two threads. At
 * the end no tenant holds memory. The first argument is a seed.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <pthread.h>

#define LEN 4096u
#define LONG (60 * SECOND)
/* Length of a task that takes a while. */
#define SLOW_LEN (1u << 19)

static fer_buffer words(fer_session session, uint64_t len) {
    fer_layout layout;
    fer_buffer buffer;
    OK(fer_layout_contiguous(FER_DTYPE_U32, 1, &len, &layout));
    OK(fer_alloc_buffer(session, &layout, FER_REGIME_POOL, &buffer));
    OK(fer_fill_buffer(session, buffer, 0));
    return buffer;
}

static fer_task a_task(uint32_t number, uint64_t word) {
    fer_task task;
    memset(&task, 0, sizeof task);
    task.task = number;
    task.words[0] = word;
    return task;
}

/* Adds a span: these words of a buffer. */
static void span(fer_task *task, fer_buffer buffer, uint64_t from, uint64_t len) {
    fer_task_span *span = &task->spans[task->span_count++];
    span->buffer = buffer;
    span->offset_bytes = 4 * from;
    span->bytes = 4 * len;
}

static fer_ticket submitted(fer_dispatcher dispatcher, const fer_task *task) {
    fer_ticket ticket = 0;
    OK(fer_dispatcher_submit(dispatcher, task, &ticket));
    return ticket;
}

static uint64_t value_of(fer_dispatcher dispatcher, const fer_task *task) {
    fer_ticket ticket = submitted(dispatcher, task);
    fer_task_result result;
    uint32_t state;
    OK(fer_ticket_wait(ticket, LONG, &result));
    OK(fer_ticket_wait(ticket, 0, NULL));
    OK(fer_ticket_status(ticket, &state));
    CHECK(state == FER_JOB_DONE);
    OK(fer_ticket_free(ticket));
    GIVES(FER_ERROR_STALE_HANDLE, fer_ticket_wait(ticket, 0, NULL));
    return result.value;
}

static uint64_t sum_of(fer_dispatcher dispatcher, fer_buffer buffer, uint64_t from, uint64_t len) {
    fer_task sum = a_task(FER_TASK_SUM_U32, 0);
    span(&sum, buffer, from, 1);
    span(&sum, buffer, from, len);
    return value_of(dispatcher, &sum);
}

static fer_task fill_of(fer_buffer buffer, uint64_t from, uint64_t len, uint64_t pattern) {
    fer_task fill = a_task(FER_TASK_FILL, pattern);
    span(&fill, buffer, from, len);
    return fill;
}

static fer_dispatcher booted(fer_session session, const fer_buffer *buffers, uint64_t count,
                             uint32_t capacity) {
    fer_dispatcher_options options;
    fer_dispatcher dispatcher = 0;
    OK(fer_dispatcher_defaults(&options));
    options.capacity = capacity;
    options.watchdog_ns = LONG;
    OK(fer_persistent_dispatcher_boot(session, &options, buffers, count, &dispatcher));
    return dispatcher;
}

static fer_dispatcher_details info(fer_dispatcher dispatcher) {
    fer_dispatcher_details details;
    OK(fer_dispatcher_info(dispatcher, &details));
    CHECK(details.submitted == details.depth + details.done + details.lost);
    return details;
}

static void tasks_do_what_they_say(fer_runtime runtime) {
    fer_session session = a_session(runtime, "tasks");
    fer_buffer buffers[2];
    fer_dispatcher dispatcher;
    fer_task task;
    static uint32_t sent[LEN], got[LEN];
    uint32_t sum = 0, at;
    buffers[0] = words(session, LEN);
    buffers[1] = words(session, LEN);
    for (at = 0; at < LEN; at++)
        sum += sent[at] = (uint32_t)rand() * 2654435761u;
    dispatcher = booted(session, buffers, 2, 8);
    OK(fer_upload_bytes(session, buffers[0], sent, sizeof sent));
    task = a_task(FER_TASK_COPY, 0);
    span(&task, buffers[1], 0, LEN);
    span(&task, buffers[0], 0, LEN);
    CHECK(value_of(dispatcher, &task) == LEN);
    OK(fer_download_bytes(session, buffers[1], got, sizeof got));
    CHECK(memcmp(sent, got, sizeof got) == 0);
    CHECK(sum_of(dispatcher, buffers[1], 0, LEN) == sum);
    OK(fer_download_bytes(session, buffers[1], got, sizeof got));
    CHECK(got[0] == sum && memcmp(sent + 1, got + 1, sizeof got - 4) == 0);
    task = fill_of(buffers[1], 7, 100, 0xdeadbeef);
    CHECK(value_of(dispatcher, &task) == 100);
    OK(fer_download_bytes(session, buffers[1], got, sizeof got));
    CHECK(got[6] == sent[6] && got[107] == sent[107]);
    for (at = 7; at < 107; at++)
        CHECK(got[at] == 0xdeadbeef);
    OK(fer_dispatcher_stop(dispatcher, LONG));
    CHECK(info(dispatcher).done == 3 && info(dispatcher).is_stopped);
    OK(fer_dispatcher_free(dispatcher));
    OK(fer_session_close(session));
}

static void a_bad_task_is_its_own_error(fer_runtime runtime) {
    fer_session session = a_session(runtime, "bad tasks");
    fer_buffer buffer = words(session, LEN);
    fer_dispatcher dispatcher = booted(session, &buffer, 1, 8);
    fer_task bad[9], good = fill_of(buffer, 0, LEN, 0);
    const char *const said[9] = {"no task 77", "no task 0",   "outside its buffer", "outside its buffer",
                                 "not whole", "not whole", "2 spans", "equal length",
                                 "3 steps"};
    static uint32_t got[LEN];
    fer_ticket ticket;
    uint32_t at, state, word;
    for (at = 0; at < 9; at++)
        bad[at] = fill_of(buffer, 0, LEN, 1);
    bad[0].task = 77;
    bad[1].task = 0;
    bad[2].spans[0].offset_bytes = 4;
    bad[3].spans[0].offset_bytes = UINT64_MAX - 3;
    bad[4].spans[0].bytes = 6;
    bad[5].spans[0].offset_bytes = 2;
    bad[5].spans[0].bytes = 4;
    bad[6].task = FER_TASK_COPY;
    bad[7].task = FER_TASK_AXPY_F32;
    bad[7].spans[0].bytes = 8;
    span(&bad[7], buffer, 8, 3);
    bad[8].task = FER_TASK_SUM_F32;
    bad[8].spans[0].bytes = 4;
    bad[8].steps = 3;
    span(&bad[8], buffer, 0, LEN);
    for (at = 0; at < 9; at++) {
        ticket = submitted(dispatcher, &bad[at]);
        GIVES(FER_ERROR_TASK, fer_ticket_wait(ticket, LONG, NULL));
        SAYS(said[at]);
        SAYS("try:");
        GIVES(FER_ERROR_TASK, fer_ticket_wait(ticket, 0, NULL));
        OK(fer_ticket_status(ticket, &state));
        CHECK(state == FER_JOB_FAILED);
        OK(fer_download_bytes(session, buffer, got, sizeof got));
        for (word = 0; word < LEN; word++)
            CHECK(got[word] == 0);
        CHECK(value_of(dispatcher, &good) == LEN);
    }
    CHECK(info(dispatcher).done == 18 && info(dispatcher).depth == 0);
    OK(fer_dispatcher_free(dispatcher));
    /* Its tickets were freed with it. */
    GIVES(FER_ERROR_STALE_HANDLE, fer_ticket_wait(ticket, 0, NULL));
    SAYS("ticket");
    OK(fer_session_close(session));
}

/* A task that takes some time, and tasks behind it. */
struct busy {
    fer_session session;
    fer_buffer buffers[2];
    fer_dispatcher dispatcher;
    fer_ticket slow, behind;
};

static struct busy a_busy_one(fer_runtime runtime, uint32_t words_of_it) {
    struct busy it;
    fer_task slow, fill;
    it.session = a_session(runtime, "busy");
    it.buffers[0] = words(it.session, words_of_it);
    it.buffers[1] = words(it.session, LEN);
    it.dispatcher = booted(it.session, it.buffers, 2, 2);
    slow = fill_of(it.buffers[0], 0, words_of_it, 1);
    fill = fill_of(it.buffers[1], 0, LEN, 1);
    it.slow = submitted(it.dispatcher, &slow);
    it.behind = submitted(it.dispatcher, &fill);
    return it;
}

static void a_full_ring_says_so_at_once(fer_runtime runtime) {
    struct busy it = a_busy_one(runtime, SLOW_LEN);
    fer_task fill = fill_of(it.buffers[1], 0, LEN, 2);
    fer_ticket ticket = 77, low;
    uint32_t state;
    GIVES(FER_ERROR_FULL, fer_dispatcher_submit(it.dispatcher, &fill, &ticket));
    SAYS("all 2 slots of priority 0");
    CHECK(ticket == 77);
    CHECK(info(it.dispatcher).submitted == 2 && info(it.dispatcher).capacity == 2);
    /* Another priority has its own ring. */
    fill.priority = 1;
    low = submitted(it.dispatcher, &fill);
    OK(fer_ticket_status(low, &state));
    CHECK(state == FER_JOB_WAITING);
    GIVES(FER_ERROR_TIMEOUT, fer_ticket_wait(low, 0, NULL));
    OK(fer_ticket_wait(low, LONG, NULL));
    OK(fer_ticket_status(it.behind, &state));
    CHECK(state == FER_JOB_DONE);
    fill.priority = 0;
    CHECK(value_of(it.dispatcher, &fill) == LEN);
    OK(fer_session_close(it.session));
}

static void stopping_runs_what_was_submitted_and_freeing_does_not(fer_runtime runtime) {
    struct busy it = a_busy_one(runtime, SLOW_LEN);
    fer_task fill = fill_of(it.buffers[1], 0, 1, 3);
    static uint32_t got[LEN];
    uint32_t state, was, len;
    GIVES(FER_ERROR_TIMEOUT, fer_dispatcher_stop(it.dispatcher, 0));
    SAYS("try:");
    GIVES(FER_ERROR_ENDED, fer_dispatcher_submit(it.dispatcher, &fill, NULL));
    OK(fer_dispatcher_stop(it.dispatcher, LONG));
    OK(fer_dispatcher_stop(it.dispatcher, 0));
    OK(fer_ticket_wait(it.slow, 0, NULL));
    OK(fer_ticket_wait(it.behind, 0, NULL));
    CHECK(info(it.dispatcher).done == 2 && info(it.dispatcher).lost == 0);
    OK(fer_dispatcher_free(it.dispatcher));
    GIVES(FER_ERROR_STALE_HANDLE, fer_dispatcher_free(it.dispatcher));
    OK(fer_session_close(it.session));

    /* Freed while the first task runs; a descheduled thread misses that: then a longer one. */
    for (len = SLOW_LEN;; len *= 2) {
        CHECK(len <= 16 * SLOW_LEN);
        it = a_busy_one(runtime, len);
        do
            OK(fer_ticket_status(it.slow, &was));
        while (was == FER_JOB_WAITING);
        OK(fer_dispatcher_free(it.dispatcher));
        GIVES(FER_ERROR_STALE_HANDLE, fer_ticket_status(it.behind, &state));
        OK(fer_download_bytes(it.session, it.buffers[1], got, sizeof got));
        OK(fer_session_close(it.session));
        /* The tasks behind it were dropped. */
        if (was == FER_JOB_RUNNING && got[0] == 0)
            break;
    }
}

static void a_task_is_cancelled_before_it_begins_and_while_it_runs(fer_runtime runtime) {
    struct busy it = a_busy_one(runtime, SLOW_LEN);
    fer_task_result result;
    uint32_t state;
    OK(fer_ticket_cancel(it.behind));
    OK(fer_ticket_cancel(it.slow));
    GIVES(FER_ERROR_CANCELLED, fer_ticket_wait(it.slow, LONG, &result));
    GIVES(FER_ERROR_CANCELLED, fer_ticket_wait(it.behind, LONG, &result));
    OK(fer_ticket_status(it.behind, &state));
    CHECK(state == FER_JOB_CANCELLED);
    CHECK(sum_of(it.dispatcher, it.buffers[1], 0, LEN) == 0);
    OK(fer_session_close(it.session));
}

static void freed_buffers_stay_until_the_kernel_has_ended(fer_runtime runtime) {
    fer_session session = a_session(runtime, "freed");
    fer_buffer buffer = words(session, LEN);
    fer_dispatcher dispatcher = booted(session, &buffer, 1, 8);
    fer_session_details details;
    fer_task fill = fill_of(buffer, 0, LEN, 5);
    OK(fer_free_buffer(session, buffer));
    GIVES(FER_ERROR_STALE_HANDLE, fer_fill_buffer(session, buffer, 0));
    OK(fer_session_info(session, &details));
    CHECK(details.buffers == 0 && details.held_bytes == 4 * LEN);
    CHECK(value_of(dispatcher, &fill) == LEN);
    CHECK(sum_of(dispatcher, buffer, 0, LEN) == 5 * LEN);
    OK(fer_dispatcher_stop(dispatcher, LONG));
    OK(fer_session_info(session, &details));
    CHECK(details.held_bytes == 0);
    OK(fer_session_close(session));
    GIVES(FER_ERROR_STALE_HANDLE, fer_dispatcher_stop(dispatcher, 0));
    SAYS("dispatcher");
}

static void a_buffer_that_does_not_lie_right_is_refused(fer_runtime runtime) {
    fer_session session = a_session(runtime, "views");
    fer_buffer whole = words(session, LEN), view;
    fer_layout layout = bytes_of(64);
    fer_dispatcher dispatcher = 77;
    OK(fer_view_buffer(session, whole, &layout, 8, &view));
    GIVES(FER_ERROR_LAYOUT, fer_persistent_dispatcher_boot(session, NULL, &view, 1, &dispatcher));
    SAYS("multiple of 16");
    SAYS("try:");
    CHECK(dispatcher == 77);
    OK(fer_session_close(session));
}

static void what_owns_a_dispatcher_ends_it_behind_its_tasks(void) {
    fer_runtime runtime = a_runtime();
    struct busy it = a_busy_one(runtime, SLOW_LEN);
    fer_reboot_details reboot;
    fer_task fill = fill_of(it.buffers[1], 0, 1, 3);
    OK(fer_reboot(runtime, &reboot));
    CHECK(reboot.sessions == 1 && reboot.others == 0);
    /* Its counters can be read until its session's handle is closed. */
    GIVES(FER_ERROR_ENDED, fer_dispatcher_submit(it.dispatcher, &fill, NULL));
    OK(fer_ticket_wait(it.slow, 0, NULL));
    OK(fer_ticket_wait(it.behind, 0, NULL));
    CHECK(info(it.dispatcher).done == 2 && info(it.dispatcher).is_stopped);
    OK(fer_session_close(it.session));
    GIVES(FER_ERROR_STALE_HANDLE, fer_dispatcher_free(it.dispatcher));
    GIVES(FER_ERROR_STALE_HANDLE, fer_ticket_free(it.slow));

    it = a_busy_one(runtime, SLOW_LEN);
    OK(fer_runtime_close(runtime));
    GIVES(FER_ERROR_STALE_HANDLE, fer_dispatcher_submit(it.dispatcher, &fill, NULL));
    GIVES(FER_ERROR_STALE_HANDLE, fer_ticket_wait(it.behind, 0, NULL));
}

/* Submits and waits until the dispatcher is gone. */
static void *works(void *given) {
    struct busy *it = given;
    fer_task fill = fill_of(it->buffers[1], 0, 8, 9);
    fer_ticket ticket;
    fer_status status;
    do {
        status = fer_dispatcher_submit(it->dispatcher, &fill, &ticket);
        if (status == FER_OK)
            status = fer_ticket_wait(ticket, LONG, NULL);
        if (status == FER_OK)
            status = fer_ticket_free(ticket);
    } while (status == FER_OK || status == FER_ERROR_FULL);
    return (void *)(intptr_t)status;
}

static void *frees(void *given) {
    struct busy *it = given;
    return (void *)(intptr_t)fer_dispatcher_free(it->dispatcher);
}

static void *closes(void *given) {
    struct busy *it = given;
    return (void *)(intptr_t)fer_session_close(it->session);
}

static void threads_may_end_it_while_others_submit(fer_runtime runtime) {
    int round, at, freed;
    for (round = 0; round < 6; round++) {
        struct busy it = a_busy_one(runtime, SLOW_LEN);
        pthread_t threads[4];
        void *given[4];
        CHECK(pthread_create(&threads[0], NULL, works, &it) == 0);
        CHECK(pthread_create(&threads[1], NULL, frees, &it) == 0);
        CHECK(pthread_create(&threads[2], NULL, frees, &it) == 0);
        CHECK(pthread_create(&threads[3], NULL, round % 2 ? closes : works, &it) == 0);
        for (at = 0, freed = 0; at < 4; at++) {
            CHECK(pthread_join(threads[at], &given[at]) == 0);
            freed += (at == 1 || at == 2) && (intptr_t)given[at] == FER_OK;
        }
        CHECK(freed <= 1 && (round % 2 || freed == 1));
        CHECK((intptr_t)given[0] == FER_ERROR_ENDED ||
              (intptr_t)given[0] == FER_ERROR_STALE_HANDLE);
        if (round % 2 == 0)
            OK(fer_session_close(it.session));
        else
            CHECK((intptr_t)given[3] == FER_OK);
    }
}

int main(int count, char **given) {
    fer_runtime runtime;
    CHECK(count == 2);
    srand((unsigned)strtoul(given[1], NULL, 10));
    runtime = a_runtime();
    tasks_do_what_they_say(runtime);
    a_bad_task_is_its_own_error(runtime);
    a_full_ring_says_so_at_once(runtime);
    stopping_runs_what_was_submitted_and_freeing_does_not(runtime);
    a_task_is_cancelled_before_it_begins_and_while_it_runs(runtime);
    freed_buffers_stay_until_the_kernel_has_ended(runtime);
    a_buffer_that_does_not_lie_right_is_refused(runtime);
    what_owns_a_dispatcher_ends_it_behind_its_tasks();
    threads_may_end_it_while_others_submit(runtime);
    at_its_end(runtime);
    return 0;
}
