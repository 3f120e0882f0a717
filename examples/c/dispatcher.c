/*
 * Tasks for a resident kernel: y = a * x + y in parts, and the sum of all of it, without a
 * launch for any. If the ring is full the program waits for its oldest task.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fercuda/fercuda.h>

#define LEN 16384u
#define PART 512u
#define PARTS (LEN / PART)

static void must(fer_status status, const char *what) {
    if (status != FER_OK) {
        fprintf(stderr, "%s: %s\n%s\n", what, fer_status_name(status), fer_last_error_message());
        exit(EXIT_FAILURE);
    }
}

#define MUST(call) must((call), #call)

static void wait_and_free(fer_ticket ticket) {
    const uint64_t second = 1000000000;
    MUST(fer_ticket_wait(ticket, 60 * second, NULL));
    MUST(fer_ticket_free(ticket));
}

int main(void) {
    static float x[LEN], y[LEN], got[LEN];
    const float a = 0.5f;
    const uint64_t shape[1] = {LEN}, one[1] = {1};
    fer_runtime runtime;
    fer_session session;
    fer_layout layout;
    /* x, y and the sum. */
    fer_buffer buffers[3];
    fer_dispatcher_options options;
    fer_dispatcher dispatcher;
    fer_dispatcher_details details;
    fer_task task;
    fer_task_result result;
    fer_ticket tickets[PARTS], last;
    fer_status status;
    uint32_t bits, at, oldest = 0, full = 0, wrong = 0;
    float total, wanted = 0;

    MUST(fer_runtime_open(FER_DEVICE_FROM_ENVIRONMENT, 0, &runtime));
    MUST(fer_session_open(runtime, "tasks", 0, &session));
    MUST(fer_layout_contiguous(FER_DTYPE_F32, 1, shape, &layout));
    MUST(fer_alloc_buffer(session, &layout, FER_REGIME_POOL, &buffers[0]));
    MUST(fer_alloc_buffer(session, &layout, FER_REGIME_POOL, &buffers[1]));
    MUST(fer_layout_contiguous(FER_DTYPE_F32, 1, one, &layout));
    MUST(fer_alloc_buffer(session, &layout, FER_REGIME_POOL, &buffers[2]));
    for (at = 0; at < LEN; at++) {
        /* Small whole and half numbers, so that their sum is exact in any order. */
        x[at] = (float)(rand() % 16);
        y[at] = (float)(rand() % 16);
        wanted += a * x[at] + y[at];
    }
    MUST(fer_upload_bytes(session, buffers[0], x, sizeof x));
    MUST(fer_upload_bytes(session, buffers[1], y, sizeof y));

    MUST(fer_dispatcher_defaults(&options));
    options.capacity = 8;
    MUST(fer_persistent_dispatcher_boot(session, &options, buffers, 3, &dispatcher));

    memset(&task, 0, sizeof task);
    task.task = FER_TASK_AXPY_F32;
    task.span_count = 2;
    memcpy(&bits, &a, sizeof bits);
    task.words[0] = bits;
    for (at = 0; at < PARTS; at++) {
        task.spans[0].buffer = buffers[1];
        task.spans[1].buffer = buffers[0];
        task.spans[0].offset_bytes = task.spans[1].offset_bytes = at * PART * sizeof(float);
        task.spans[0].bytes = task.spans[1].bytes = PART * sizeof(float);
        while ((status = fer_dispatcher_submit(dispatcher, &task, &tickets[at])) ==
               FER_ERROR_FULL) {
            wait_and_free(tickets[oldest++]);
            full = 1;
        }
        must(status, "fer_dispatcher_submit");
    }
    /* Tasks of one priority are begun in order, and one block takes them: this is last. */
    for (; oldest < PARTS; oldest++)
        wait_and_free(tickets[oldest]);
    task.task = FER_TASK_SUM_F32;
    task.spans[0].buffer = buffers[2];
    task.spans[1].buffer = buffers[1];
    task.spans[0].offset_bytes = task.spans[1].offset_bytes = 0;
    task.spans[0].bytes = sizeof(float);
    task.spans[1].bytes = sizeof y;
    MUST(fer_dispatcher_submit(dispatcher, &task, &last));
    MUST(fer_ticket_wait(last, FER_WAIT_FOREVER, &result));
    bits = (uint32_t)result.value;
    memcpy(&total, &bits, sizeof total);

    MUST(fer_dispatcher_info(dispatcher, &details));
    MUST(fer_dispatcher_stop(dispatcher, FER_WAIT_FOREVER));
    MUST(fer_download_bytes(session, buffers[1], got, sizeof got));
    for (at = 0; at < LEN; at++)
        wrong += got[at] != a * x[at] + y[at];
    MUST(fer_runtime_close(runtime));
    printf("%u tasks, %u wrong elements, the sum %g is %s%s\n", (unsigned)details.done,
           (unsigned)wrong, (double)total, total == wanted ? "right" : "wrong",
           full ? "; the ring was full" : "");
    return wrong || total != wanted || details.done != PARTS + 1 ? EXIT_FAILURE : EXIT_SUCCESS;
}
