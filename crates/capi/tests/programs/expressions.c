/*
 * Expressions as text: their results, output buffers, in a graph, and errors; and calls that are
 * refused where they would deadlock. The argument is a seed.
 */
#include "check.h"

enum { ROWS = 12, COLUMNS = 33 };

static fer_buffer floats(fer_session session, uint64_t rows, uint64_t columns, const float *values) {
    const uint64_t shape[2] = {rows, columns};
    fer_layout layout;
    fer_buffer buffer = 0;
    OK(fer_layout_contiguous(FER_DTYPE_F32, 2, shape, &layout));
    OK(fer_alloc_buffer(session, &layout, FER_REGIME_POOL, &buffer));
    OK(fer_upload_bytes(session, buffer, values, rows * columns * sizeof *values));
    return buffer;
}

/* Without the mathematics library. */
static double size_of(double value) { return value < 0 ? -value : value; }

static fer_named_buffer named(const char *name, fer_buffer buffer) {
    fer_named_buffer it = {name, buffer};
    return it;
}

static void expressions_are_computed(fer_session session) {
    float a[ROWS * COLUMNS], b[COLUMNS], got[ROWS * COLUMNS], top[ROWS];
    fer_named_buffer inputs[2], outputs[2];
    fer_buffer_details details;
    fer_session_details before, after;
    fer_buffer into;
    int row, column;
    for (column = 0; column < ROWS * COLUMNS; column++)
        a[column] = (float)(rand() % 1000) / 100 - 5;
    for (column = 0; column < COLUMNS; column++)
        b[column] = (float)(rand() % 1000) / 100 - 5;
    inputs[0] = named("a", floats(session, ROWS, COLUMNS, a));
    inputs[1] = named("b", floats(session, 1, COLUMNS, b));
    into = floats(session, ROWS, COLUMNS, a);
    /* One into a new buffer, the other into an existing one; in any order. */
    outputs[0] = named("top", 0);
    outputs[1] = named("y", into);
    OK(fer_evaluate(session, "t = a * b; y = t + 0.5; top = max(t, axis=-1)", inputs, 2, outputs, 2));
    CHECK(outputs[1].buffer == into && outputs[0].buffer != 0);
    OK(fer_buffer_info(session, outputs[0].buffer, &details));
    CHECK(details.layout.rank == 1 && details.layout.shape[0] == ROWS && details.bytes == 4 * ROWS);
    OK(fer_download_bytes(session, outputs[0].buffer, top, sizeof top));
    OK(fer_download_bytes(session, into, got, sizeof got));
    for (row = 0; row < ROWS; row++) {
        float most = -1e30f;
        for (column = 0; column < COLUMNS; column++) {
            const double exact = (double)a[row * COLUMNS + column] * b[column];
            const float once = (float)exact;
            most = once > most ? once : most;
            /* A product and a sum, each rounded, or both at once. */
            CHECK(size_of(got[row * COLUMNS + column] - (exact + 0.5)) <=
                  (size_of(exact) + size_of(exact + 0.5)) / (1 << 23));
        }
        CHECK(top[row] == most);
    }
    /* In place. */
    outputs[0] = named("twice", inputs[0].buffer);
    OK(fer_evaluate(session, "twice = a * 2", inputs, 1, outputs, 1));
    OK(fer_download_bytes(session, inputs[0].buffer, got, sizeof got));
    for (column = 0; column < ROWS * COLUMNS; column++)
        CHECK(got[column] == 2 * a[column]);
    /* Errors are reported, and allocate nothing. */
    OK(fer_session_info(session, &before));
    outputs[0] = named("y", 0);
    GIVES(FER_ERROR_EXPRESSION, fer_evaluate(session, "x = a;\ny = a + c", inputs, 2, outputs, 1));
    SAYS("line 2");
    SAYS("column 9");
    GIVES(FER_ERROR_EXPRESSION, fer_evaluate(session, "z = a + b", inputs, 2, outputs, 1));
    SAYS("there is no output \"y\"");
    SAYS("one of: z");
    GIVES(FER_ERROR_EXPRESSION, fer_evaluate(session, "y = a; z = b", inputs, 2, outputs, 1));
    SAYS("the output \"z\" is not among those named");
    outputs[1] = named("y", 0);
    GIVES(FER_ERROR_EXPRESSION, fer_evaluate(session, "y = a; z = b", inputs, 2, outputs, 2));
    SAYS("named twice");
    outputs[1] = named("z", inputs[1].buffer);
    GIVES(FER_ERROR_EXPRESSION, fer_evaluate(session, "y = a; z = a", inputs, 2, outputs, 2));
    CHECK(outputs[0].buffer == 0);
    outputs[0] = named(NULL, 0);
    GIVES(FER_ERROR_INVALID_ARGUMENT, fer_evaluate(session, "y = a", inputs, 2, outputs, 1));
    SAYS("outputs[0].name");
    OK(fer_session_info(session, &after));
    CHECK(before.buffers == after.buffers && before.held_bytes == after.held_bytes);
}

static void a_graph_has_expressions(fer_session session) {
    float values[COLUMNS], got[COLUMNS];
    fer_named_buffer input, output, shares = named("shares", 0);
    fer_graph_key key;
    fer_graph_record record;
    fer_graphs graphs;
    fer_capture capture;
    uint32_t was_there = 0;
    double all = 0;
    int at, turn;
    memset(&key, 0, sizeof key);
    for (at = 0; at < COLUMNS; at++)
        values[at] = (float)at;
    OK(fer_graphs_open(session, 0, &graphs));
    input = named("x", floats(session, 1, COLUMNS, values));
    output = named("y", input.buffer);
    OK(fer_capture_begin(graphs, &key, &capture));
    OK(fer_evaluate(capture, "y = x + 1", &input, 1, &output, 1));
    OK(fer_evaluate(capture, "shares = softmax(x / 100)", &input, 1, &shares, 1));
    OK(fer_evaluate(capture, "y = x * 2", &input, 1, &output, 1));
    OK(fer_capture_finish(capture, &record));
    CHECK(record.nodes >= 2);
    GIVES(FER_ERROR_STALE_HANDLE, fer_evaluate(capture, "y = x", &input, 1, &output, 1));
    for (turn = 0; turn < 3; turn++) {
        OK(fer_graph_replay(graphs, &key, &was_there));
        CHECK(was_there);
        for (at = 0; at < COLUMNS; at++)
            values[at] = (values[at] + 1) * 2;
    }
    OK(fer_download_bytes(session, input.buffer, got, sizeof got));
    for (at = 0; at < COLUMNS; at++)
        CHECK(got[at] == values[at]);
    /* Into a buffer that the capture has allocated: the values before the last doubling. */
    OK(fer_download_bytes(session, shares.buffer, got, sizeof got));
    for (at = 0; at < COLUMNS; at++) {
        CHECK(got[at] > 0 && (at == 0 || got[at] > got[at - 1]));
        all += got[at];
    }
    CHECK(size_of(all - 1) < COLUMNS * 8.0 / (1 << 23));
}

/* ---- where it would deadlock ---- */

struct within {
    uint64_t address;
    fer_runtime runtime;
    fer_status reboot, opens;
};

static uint64_t allocate(void *user, uint64_t bytes, uint64_t alignment, void *stream) {
    struct within *within = user;
    CHECK(bytes == 1000 && within->address % alignment == 0 && stream != NULL);
    return within->address;
}

static void give_back(void *user, uint64_t address, uint64_t bytes, void *stream) {
    struct within *within = user;
    fer_reboot_details details;
    fer_session session;
    CHECK(address == within->address && bytes == 1000 && stream != NULL);
    within->opens = fer_session_open(within->runtime, "meanwhile", 0, &session);
    within->reboot = fer_reboot(within->runtime, &details);
}

static void a_reboot_is_refused_where_it_would_wait_for_itself(fer_runtime runtime) {
    struct within within = {0, 0, FER_OK, FER_OK};
    fer_session lender = a_session(runtime, "lender"), session = 0;
    fer_allocator allocator = {allocate, give_back, NULL, &within};
    fer_layout layout = bytes_of(1000);
    fer_reboot_details details;
    fer_buffer buffer;
    within.runtime = runtime;
    OK(fer_export_buffer_device_ptr(lender, a_buffer(lender, 1000), &within.address));
    OK(fer_stream_sync(lender));
    OK(fer_session_open_with_allocator(runtime, "lent", 0, &allocator, &session));
    OK(fer_alloc_buffer(session, &layout, FER_REGIME_CALLBACKS, &buffer));
    /* The last one ends first. */
    OK(fer_reboot(runtime, &details));
    CHECK(details.sessions == 2);
    CHECK(within.opens == FER_ERROR_REBOOTING && within.reboot == FER_ERROR_WITHIN);
    OK(fer_session_close(session));
    OK(fer_session_close(lender));
}

int main(int count, char **given) {
    fer_runtime runtime = a_runtime();
    fer_session session = a_session(runtime, "expressions");
    CHECK(count == 2);
    srand((unsigned)strtoul(given[1], NULL, 10));
    expressions_are_computed(session);
    a_graph_has_expressions(session);
    OK(fer_session_close(session));
    a_reboot_is_refused_where_it_would_wait_for_itself(runtime);
    at_its_end(runtime);
    return 0;
}
