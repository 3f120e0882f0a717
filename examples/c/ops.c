/*
 * An op by its name: softmax of each row, planned once and run many times, with one workspace.
 */
#include <stdio.h>
#include <stdlib.h>

#include <fercuda/fercuda.h>

#define ROWS 8u
#define COLUMNS 100u

static void must(fer_status status, const char *what) {
    if (status != FER_OK) {
        fprintf(stderr, "%s: %s\n%s\n", what, fer_status_name(status), fer_last_error_message());
        exit(EXIT_FAILURE);
    }
}

#define MUST(call) must((call), #call)

int main(void) {
    static float values[ROWS * COLUMNS];
    const uint64_t shape[2] = {ROWS, COLUMNS};
    const int64_t axis = -1;
    fer_runtime runtime;
    fer_session session;
    fer_layout layout;
    fer_op op;
    fer_op_plan plan;
    fer_op_plan_details details;
    fer_buffer x, y = 0;
    unsigned at, turn, row;

    MUST(fer_runtime_open(FER_DEVICE_FROM_ENVIRONMENT, 0, &runtime));
    MUST(fer_session_open(runtime, "softmax", 0, &session));
    MUST(fer_layout_contiguous(FER_DTYPE_F32, 2, shape, &layout));
    MUST(fer_alloc_buffer(session, &layout, FER_REGIME_POOL, &x));

    MUST(fer_op_open("softmax", &op));
    MUST(fer_op_set_integers(op, "axis", &axis, 1));
    MUST(fer_op_plan_open(session, op, &layout, 1, NULL, 0, NULL, &plan));
    MUST(fer_op_free(op));
    MUST(fer_op_plan_info(plan, &details));
    printf("kernel %s, %llu bytes of workspace\n", details.kernel,
           (unsigned long long)details.workspace_bytes);

    for (turn = 0; turn < 3; turn++) {
        for (at = 0; at < ROWS * COLUMNS; at++)
            values[at] = (float)rand() / (float)RAND_MAX;
        MUST(fer_upload_bytes(session, x, values, sizeof values));
        /* The first run makes the output; later ones write it again. */
        MUST(fer_op_run(plan, &x, 1, &y, 1, 0));
        MUST(fer_download_bytes(session, y, values, sizeof values));
        for (row = 0; row < ROWS; row++) {
            double sum = 0;
            for (at = 0; at < COLUMNS; at++)
                sum += values[row * COLUMNS + at];
            /* As many roundings of numbers below 1 as there are numbers. */
            if (sum < 1 - 1e-5 || sum > 1 + 1e-5) {
                fprintf(stderr, "the sum of row %u is %g\n", row, sum);
                return EXIT_FAILURE;
            }
        }
    }
    MUST(fer_session_close(session));
    MUST(fer_runtime_close(runtime));
    printf("each row of 3 results has the sum 1\n");
    return EXIT_SUCCESS;
}
