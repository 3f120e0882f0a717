/*
 * Ops by descriptor: parameters, plans, runs over buffers of any layout, workspace, indices that are
 * checked, order with other streams, and errors. The argument is a seed.
 */
#include "check.h"

enum { ROWS = 12, COLUMNS = 33 };

static fer_layout of(uint32_t dtype, uint64_t rows, uint64_t columns) {
    const uint64_t shape[2] = {rows, columns};
    fer_layout layout;
    OK(fer_layout_contiguous(dtype, 2, shape, &layout));
    return layout;
}

static fer_buffer filled(fer_session session, fer_layout layout, const void *values, uint64_t bytes) {
    fer_buffer buffer = 0;
    OK(fer_alloc_buffer(session, &layout, FER_REGIME_POOL, &buffer));
    OK(fer_upload_bytes(session, buffer, values, bytes));
    return buffer;
}

static void random_floats(float *values, int count) {
    int at;
    for (at = 0; at < count; at++)
        values[at] = (float)(rand() % 1000) / 100 - 5;
}

static fer_op an_op(const char *name) {
    fer_op op = 0;
    OK(fer_op_open(name, &op));
    return op;
}

static fer_op_plan a_plan(fer_session session, fer_op op, const fer_layout *operands, uint64_t count) {
    fer_op_plan plan = 0;
    OK(fer_op_plan_open(session, op, operands, count, NULL, 0, NULL, &plan));
    return plan;
}

static void a_plan_runs_many_times(fer_session session) {
    const int64_t axis = -1;
    float values[ROWS * COLUMNS], got[ROWS];
    const fer_layout layout = of(FER_DTYPE_F32, ROWS, COLUMNS);
    fer_layout output;
    fer_op op = an_op("amax");
    fer_op_plan plan;
    fer_op_plan_details details;
    fer_buffer x, top;
    char text[512];
    uint64_t needed = 0;
    int turn, row, column;
    OK(fer_op_set_integers(op, "axes", &axis, 1));
    plan = a_plan(session, op, &layout, 1);
    /* The plan remains as it is, whatever becomes of the descriptor. */
    OK(fer_op_free(op));
    OK(fer_op_plan_info(plan, &details));
    CHECK(strcmp(details.kernel, "jit.rows") == 0 && details.operands == 1 && details.outputs == 1);
    CHECK(details.launches >= 1 && details.refused_runs == 0);
    OK(fer_op_plan_output(plan, 0, &output));
    CHECK(output.dtype == FER_DTYPE_F32 && output.rank == 1 && output.shape[0] == ROWS);
    GIVES(FER_ERROR_INVALID_ARGUMENT, fer_op_plan_output(plan, 1, &output));
    SAYS("there are 1 outputs");
    OK(fer_op_plan_sku(plan, text, sizeof text, &needed));
    CHECK(strstr(text, "jit.rows: ") == text && strstr(text, "not jit.map: ") && strlen(text) + 1 == needed);
    OK(fer_op_plan_sku(plan, text, 5, &needed));
    CHECK(strcmp(text, "jit.") == 0 && needed > 5);
    random_floats(values, ROWS * COLUMNS);
    x = filled(session, layout, values, sizeof values);
    top = 0;
    OK(fer_op_run(plan, &x, 1, &top, 1, 0));
    CHECK(top != 0);
    for (turn = 0; turn < 3; turn++) {
        random_floats(values, ROWS * COLUMNS);
        OK(fer_upload_bytes(session, x, values, sizeof values));
        OK(fer_op_run(plan, &x, 1, &top, 1, 0));
        OK(fer_download_bytes(session, top, got, sizeof got));
        for (row = 0; row < ROWS; row++) {
            float most = values[row * COLUMNS];
            for (column = 0; column < COLUMNS; column++)
                most = values[row * COLUMNS + column] > most ? values[row * COLUMNS + column] : most;
            CHECK(got[row] == most);
        }
    }
    OK(fer_op_plan_free(plan));
    GIVES(FER_ERROR_STALE_HANDLE, fer_op_run(plan, &x, 1, &top, 1, 0));
    OK(fer_free_buffer(session, x));
    OK(fer_free_buffer(session, top));
}

static void layouts_are_any(fer_session session) {
    float values[ROWS * COLUMNS], got[ROWS * COLUMNS];
    const int64_t order[2] = {1, 0};
    fer_layout layouts[2];
    fer_layout turned = of(FER_DTYPE_F32, COLUMNS, ROWS), whole = of(FER_DTYPE_F32, ROWS, COLUMNS);
    fer_op add = an_op("add"), permute = an_op("permute");
    fer_op_plan sum, copy;
    fer_buffer operands[2], view, out = 0;
    int row, column;
    random_floats(values, ROWS * COLUMNS);
    operands[0] = filled(session, whole, values, sizeof values);
    /* The same elements, by a view in reverse order of the rows. */
    layouts[0] = layouts[1] = whole;
    layouts[1].strides[0] = -(int64_t)COLUMNS;
    OK(fer_view_buffer(session, operands[0], &layouts[1], (ROWS - 1) * COLUMNS * sizeof(float), &operands[1]));
    sum = a_plan(session, add, layouts, 2);
    OK(fer_op_run(sum, operands, 2, &out, 1, 0));
    OK(fer_download_bytes(session, out, got, sizeof got));
    for (row = 0; row < ROWS; row++)
        for (column = 0; column < COLUMNS; column++)
            CHECK(got[row * COLUMNS + column] ==
                  values[row * COLUMNS + column] + values[(ROWS - 1 - row) * COLUMNS + column]);
    /* In place; and refused where the output is read at other places. */
    view = out;
    operands[1] = operands[0];
    layouts[1] = whole;
    OK(fer_op_plan_free(sum));
    sum = a_plan(session, add, layouts, 2);
    operands[0] = out;
    OK(fer_op_run(sum, operands, 2, &out, 1, 0));
    CHECK(out == view);
    OK(fer_op_set_integers(permute, "order", order, 2));
    OK(fer_op_plan_open(session, permute, &whole, 1, &turned, 1, "jit.map", &copy));
    OK(fer_view_buffer(session, out, &turned, 0, &view));
    GIVES(FER_ERROR_LAYOUT, fer_op_run(copy, &out, 1, &view, 1, 0));
    SAYS("overlaps");
    GIVES(FER_ERROR_LAYOUT, fer_op_run(copy, &view, 1, &view, 1, 0));
    SAYS("operands[0] of permute is f32[33, 12]");
    GIVES(FER_ERROR_INVALID_ARGUMENT, fer_op_run(copy, operands, 2, &view, 1, 0));
    SAYS("operands: 2, but the plan of permute has 1");
    view = 0;
    OK(fer_op_run(copy, &operands[1], 1, &view, 1, 0));
    OK(fer_download_bytes(session, view, got, sizeof got));
    for (row = 0; row < ROWS; row++)
        for (column = 0; column < COLUMNS; column++)
            CHECK(got[column * ROWS + row] == values[row * COLUMNS + column]);
    OK(fer_op_free(add));
    OK(fer_op_free(permute));
}

static void two_results_and_workspace(fer_session session) {
    enum { LEN = 5000 };
    static float values[LEN], sorted[LEN];
    static int64_t places[LEN];
    fer_layout layout = of(FER_DTYPE_F32, 1, LEN);
    fer_session_details before, after;
    fer_op_plan_details details;
    fer_op sort = an_op("sort");
    fer_op_plan plan;
    fer_buffer x, results[2] = {0, 0}, workspace;
    int at, turn;
    random_floats(values, LEN);
    OK(fer_op_set_text(sort, "order", "descending"));
    plan = a_plan(session, sort, &layout, 1);
    x = filled(session, layout, values, sizeof values);
    OK(fer_op_plan_info(plan, &details));
    CHECK(details.outputs == 2);
    workspace = a_buffer(session, details.workspace_bytes ? details.workspace_bytes : 16);
    for (turn = 0; turn < 2; turn++) {
        OK(fer_op_run(plan, &x, 1, results, 2, turn ? workspace : 0));
        OK(fer_download_bytes(session, results[0], sorted, sizeof sorted));
        OK(fer_download_bytes(session, results[1], places, sizeof places));
        for (at = 0; at < LEN; at++) {
            CHECK(at == 0 || sorted[at] <= sorted[at - 1]);
            CHECK(places[at] >= 0 && places[at] < LEN && values[places[at]] == sorted[at]);
        }
    }
    if (details.workspace_bytes > 16) {
        GIVES(FER_ERROR_LAYOUT, fer_op_run(plan, &x, 1, results, 2, a_buffer(session, 16)));
    }
    /* A refused run leaves no new buffer. */
    OK(fer_session_info(session, &before));
    results[0] = 0;
    results[1] = x;
    GIVES(FER_ERROR_LAYOUT, fer_op_run(plan, &x, 1, results, 2, workspace));
    CHECK(results[0] == 0);
    OK(fer_session_info(session, &after));
    CHECK(before.buffers == after.buffers && before.held_bytes == after.held_bytes);
    OK(fer_op_free(sort));
}

static void indices_are_checked(fer_session session) {
    const float values[4] = {10, 11, 12, 13};
    int64_t index[3] = {3, 7, 0};
    float got[3];
    fer_layout layouts[2];
    fer_op take = an_op("take"), exp = an_op("exp");
    fer_op_plan checked, unchecked;
    fer_op_plan_details details;
    fer_buffer operands[2], out = 0, workspace;
    layouts[0] = of(FER_DTYPE_F32, 1, 4);
    layouts[1] = of(FER_DTYPE_I64, 1, 3);
    operands[0] = filled(session, layouts[0], values, sizeof values);
    operands[1] = filled(session, layouts[1], index, sizeof index);
    unchecked = a_plan(session, take, layouts, 2);
    OK(fer_op_check_indices(take));
    checked = a_plan(session, take, layouts, 2);
    OK(fer_op_plan_info(checked, &details));
    workspace = a_buffer(session, details.workspace_bytes);
    OK(fer_op_run(unchecked, operands, 2, &out, 1, 0));
    OK(fer_op_plan_check(unchecked, workspace));
    GIVES(FER_ERROR_INVALID_ARGUMENT, fer_op_run(checked, operands, 2, &out, 1, 0));
    SAYS("workspace: it is 0");
    OK(fer_op_run(checked, operands, 2, &out, 1, workspace));
    GIVES(FER_ERROR_INDEX, fer_op_plan_check(checked, workspace));
    SAYS("take: index 7, number 1");
    OK(fer_download_bytes(session, out, got, sizeof got));
    CHECK(got[0] == 13 && got[1] == 0 && got[2] == 10);
    index[1] = 2;
    OK(fer_upload_bytes(session, operands[1], index, sizeof index));
    OK(fer_op_run(checked, operands, 2, &out, 1, workspace));
    OK(fer_op_plan_check(checked, workspace));
    GIVES(FER_ERROR_OP, fer_op_check_indices(exp));
    SAYS("no indices");
    OK(fer_op_free(take));
    OK(fer_op_free(exp));
}

static void errors_have_reasons(fer_session session) {
    const int64_t axes[2] = {0, 1}, large = -9;
    fer_layout layouts[2], other;
    fer_op op, softmax = an_op("softmax"), add = an_op("add"), cast = an_op("cast"), elu = an_op("elu");
    fer_op_plan plan = 0;
    layouts[0] = layouts[1] = of(FER_DTYPE_F32, ROWS, COLUMNS);
    GIVES(FER_ERROR_OP, fer_op_open("softmacs", &op));
    SAYS("there is no op \"softmacs\"");
    GIVES(FER_ERROR_OP, fer_op_set_number(softmax, "axis", 1));
    SAYS("axis is 1");
    GIVES(FER_ERROR_OP, fer_op_set_integers(softmax, "axis", axes, 2));
    SAYS("one axis, not 2");
    GIVES(FER_ERROR_OP, fer_op_set_integers(softmax, "axis", &large, 1));
    GIVES(FER_ERROR_OP, fer_op_set_integers(softmax, "axes", axes, 1));
    SAYS("no parameter \"axes\"");
    SAYS("try: axis");
    GIVES(FER_ERROR_OP, fer_op_set_text(cast, "to", "f12"));
    SAYS("try: a type: ");
    OK(fer_op_set_number(elu, "alpha", 0.5));
    GIVES(FER_ERROR_OP, fer_op_plan_open(session, cast, layouts, 1, NULL, 0, NULL, &plan));
    SAYS("no type to convert to");
    OK(fer_op_set_text(cast, "to", "f16"));
    OK(fer_op_set_text(cast, "to", "f64"));
    plan = a_plan(session, cast, layouts, 1);
    OK(fer_op_plan_output(plan, 0, &other));
    CHECK(other.dtype == FER_DTYPE_F64);
    GIVES(FER_ERROR_OP, fer_op_plan_open(session, add, layouts, 1, NULL, 0, NULL, &plan));
    SAYS("add of 1 operands");
    layouts[1].shape[1] = 5;
    GIVES(FER_ERROR_OP, fer_op_plan_open(session, add, layouts, 2, NULL, 0, NULL, &plan));
    SAYS("no shapes to broadcast");
    layouts[1] = of(FER_DTYPE_I32, ROWS, COLUMNS);
    GIVES(FER_ERROR_OP, fer_op_plan_open(session, add, layouts, 2, NULL, 0, NULL, &plan));
    SAYS("operand y is i32");
    layouts[1] = layouts[0];
    layouts[1].rank = 9;
    GIVES(FER_ERROR_INVALID_ARGUMENT, fer_op_plan_open(session, add, layouts, 2, NULL, 0, NULL, &plan));
    layouts[1] = layouts[0];
    layouts[1].strides[0] = 0;
    GIVES(FER_ERROR_OP, fer_op_plan_open(session, softmax, layouts, 1, &layouts[1], 1, NULL, &plan));
    SAYS("its elements may overlap");
    GIVES(FER_ERROR_OP, fer_op_plan_open(session, softmax, layouts, 1, NULL, 0, "jit.map", &plan));
    SAYS("softmax combines elements");
    SAYS("try: NULL as kernel");
    OK(fer_op_free(softmax));
    OK(fer_op_free(add));
    OK(fer_op_free(cast));
    OK(fer_op_free(elu));
    GIVES(FER_ERROR_STALE_HANDLE, fer_op_set_number(elu, "alpha", 1));
    SAYS("descriptor of an op");
}

/* Another session stands for other code with a stream of its own. */
static void streams_of_other_code_are_ordered(fer_runtime runtime, fer_session session) {
    float values[COLUMNS], got[COLUMNS];
    fer_layout layout = of(FER_DTYPE_F32, 1, COLUMNS);
    fer_session other = a_session(runtime, "other code");
    fer_op op = an_op("neg");
    fer_op_plan plan = a_plan(session, op, &layout, 1);
    fer_buffer theirs, ours, out = 0;
    uint64_t address;
    void *stream;
    int at;
    random_floats(values, COLUMNS);
    OK(fer_session_stream(other, &stream));
    theirs = filled(other, layout, values, sizeof values);
    OK(fer_fill_buffer(other, theirs, 0));
    OK(fer_export_buffer_device_ptr(other, theirs, &address));
    OK(fer_import_device_ptr(session, address, &layout, NULL, NULL, &ours));
    OK(fer_session_wait_for_stream(session, stream));
    OK(fer_op_run(plan, &ours, 1, &out, 1, 0));
    OK(fer_stream_wait_for_session(session, stream));
    OK(fer_upload_bytes(other, theirs, values, sizeof values));
    OK(fer_download_bytes(session, out, got, sizeof got));
    for (at = 0; at < COLUMNS; at++)
        CHECK(got[at] == 0);
    GIVES(FER_ERROR_INVALID_ARGUMENT, fer_session_wait_for_stream(session, NULL));
    SAYS("stream: it is NULL");
    GIVES(FER_ERROR_INVALID_ARGUMENT, fer_stream_wait_for_session(session, NULL));
    OK(fer_free_buffer(session, ours));
    OK(fer_op_free(op));
    OK(fer_session_close(other));
}

static void plans_end_with_their_session(fer_runtime runtime) {
    fer_session session = a_session(runtime, "ends");
    fer_layout layout = of(FER_DTYPE_F32, ROWS, COLUMNS);
    fer_op op = an_op("neg");
    fer_op_plan plan = a_plan(session, op, &layout, 1), late = 0;
    fer_op_plan_details details;
    fer_buffer x, out = 0;
    OK(fer_alloc_buffer(session, &layout, FER_REGIME_POOL, &x));
    OK(fer_fill_buffer(session, x, 0));
    OK(fer_op_run(plan, &x, 1, &out, 1, 0));
    OK(fer_session_close(session));
    GIVES(FER_ERROR_STALE_HANDLE, fer_op_plan_info(plan, &details));
    GIVES(FER_ERROR_STALE_HANDLE, fer_op_plan_open(session, op, &layout, 1, NULL, 0, NULL, &late));
    OK(fer_op_free(op));
}

int main(int count, char **given) {
    fer_runtime runtime = a_runtime();
    fer_session session = a_session(runtime, "ops");
    CHECK(count == 2);
    srand((unsigned)strtoul(given[1], NULL, 10));
    a_plan_runs_many_times(session);
    layouts_are_any(session);
    two_results_and_workspace(session);
    indices_are_checked(session);
    errors_have_reasons(session);
    streams_of_other_code_are_ordered(runtime, session);
    OK(fer_session_close(session));
    plans_end_with_their_session(runtime);
    at_its_end(runtime);
    return 0;
}
