/*
 * Graphs: captured once under a key, replayed in the session's order with arguments that
 * change, dropped in every way, and compared with the same launches without them. The first
 * argument is a seed.
 */
#include "check.h"

#include <pthread.h>

/* values[0] = values[0] * factor + block[1]: the old value shows the order. */
static const char STEP[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry step(.param .u64 values, .param .u32 factor, .param .u64 block)\n{\n"
    "    .reg .b32 %r<5>;\n    .reg .b64 %d<3>;\n"
    "    ld.param.u64 %d1, [values];\n    ld.param.u32 %r1, [factor];\n"
    "    ld.param.u64 %d2, [block];\n    cvta.to.global.u64 %d1, %d1;\n"
    "    cvta.to.global.u64 %d2, %d2;\n    ld.global.u32 %r2, [%d1];\n"
    "    ld.global.u32 %r3, [%d2+4];\n    mad.lo.u32 %r4, %r2, %r1, %r3;\n"
    "    st.global.u32 [%d1], %r4;\n    ret;\n}\n";

struct bench {
    fer_session session;
    fer_buffer values, block;
    fer_arguments arguments;
    fer_module module;
    fer_kernel step;
    fer_graphs graphs;
};

static const fer_launch ONE = {{1, 1, 1}, {1, 1, 1}, 0, 0};

static struct bench begin(fer_runtime runtime, const char *name, uint64_t budget_bytes) {
    struct bench it;
    const uint32_t zero = 0;
    it.session = a_session(runtime, name);
    it.values = a_buffer(it.session, 4);
    OK(fer_upload_bytes(it.session, it.values, &zero, 4));
    OK(fer_arguments_open(it.session, 8, 4, &it.arguments, &it.block));
    OK(fer_module_load_ptx(it.session, STEP, &it.module));
    OK(fer_module_kernel(it.module, "step", &it.step));
    OK(fer_graphs_open(it.session, budget_bytes, &it.graphs));
    return it;
}

static fer_graph_key key_of(uint64_t generation, uint64_t word) {
    fer_graph_key key = {0, {0}};
    key.generation = generation;
    key.words[FER_KEY_WORDS - 1] = word;
    return key;
}

/* A launch in a session, or of a capture. */
static fer_status launch(const struct bench *it, uint64_t into, uint32_t factor) {
    fer_argument arguments[3] = {{0, 0, {0}}, {0, 0, {0}}, {0, 0, {0}}};
    arguments[0].kind = arguments[2].kind = FER_ARGUMENT_BUFFER;
    arguments[0].value.buffer = it->values;
    arguments[2].value.buffer = it->block;
    arguments[1].kind = FER_ARGUMENT_NUMBER;
    arguments[1].bytes = 4;
    arguments[1].value.u32 = factor;
    return fer_ptxlaunch_submit(into, it->step, &ONE, arguments, 3);
}

static fer_graph_record capture(const struct bench *it, fer_graph_key key, uint32_t factor, int count) {
    fer_graph_record record;
    fer_capture open;
    OK(fer_capture_begin(it->graphs, &key, &open));
    while (count--)
        OK(launch(it, open, factor));
    OK(fer_capture_finish(open, &record));
    GIVES(FER_ERROR_STALE_HANDLE, fer_capture_finish(open, NULL));
    return record;
}

static void push(const struct bench *it, uint32_t add) {
    OK(fer_arguments_set(it->arguments, 4, &add, 4));
    OK(fer_arguments_push(it->arguments));
}

static int replay(const struct bench *it, fer_graph_key key) {
    uint32_t was_there = 7;
    OK(fer_graph_replay(it->graphs, &key, &was_there));
    CHECK(was_there <= 1);
    return (int)was_there;
}

static uint32_t value(const struct bench *it) {
    uint32_t got;
    OK(fer_download_bytes(it->session, it->values, &got, 4));
    return got;
}

static void replays_are_as_launches(fer_runtime runtime) {
    struct bench it = begin(runtime, "replays", 0);
    uint32_t expected = 0, add, factor, which;
    int round, again;
    fer_graphs_details details;
    fer_graph_record record;
    for (which = 0; which < 4; which++) {
        record = capture(&it, key_of(1, which), which + 2, 3);
        CHECK(record.nodes == 3 && !record.is_updated && record.bytes > 0);
    }
    CHECK(value(&it) == 0); /* Nothing was launched. */
    for (round = 0; round < 200; round++) {
        which = (uint32_t)rand() % 5;
        add = (uint32_t)rand();
        push(&it, add);
        if (which == 4) {
            factor = (uint32_t)rand();
            OK(launch(&it, it.session, factor));
            expected = expected * factor + add;
            continue;
        }
        CHECK(replay(&it, key_of(1, which)));
        for (again = 0; again < 3; again++)
            expected = expected * (which + 2) + add;
        if (round % 17 == 0)
            CHECK(value(&it) == expected);
    }
    CHECK(value(&it) == expected);
    /* Another capture replaces it. */
    record = capture(&it, key_of(1, 0), 9, 3);
    CHECK(record.nodes == 3);
    push(&it, 1);
    CHECK(replay(&it, key_of(1, 0)) && !replay(&it, key_of(1, 77)));
    CHECK(value(&it) == ((expected * 9 + 1) * 9 + 1) * 9 + 1);
    OK(fer_graphs_info(it.graphs, &details));
    CHECK(details.entries == 4 && details.absent == 1 && details.evicted == 0);
    CHECK(details.instantiated + details.updated == 5 && details.replays > 0);
    OK(fer_session_close(it.session));
    GIVES(FER_ERROR_STALE_HANDLE, fer_graphs_free(it.graphs));
    GIVES(FER_ERROR_STALE_HANDLE, fer_arguments_free(it.arguments));
}

static void graphs_hold_what_they_use(fer_runtime runtime) {
    struct bench it = begin(runtime, "holds", 0);
    fer_layout layout = bytes_of(4);
    fer_graph_key key = key_of(0, 0);
    fer_graph_times times;
    fer_buffer view;
    uint32_t was_there = 7, got;
    capture(&it, key, 3, 2);
    OK(fer_view_buffer(it.session, it.values, &layout, 0, &view));
    OK(fer_free_buffer(it.session, it.values));
    OK(fer_module_unload(it.module));
    push(&it, 5);
    OK(fer_arguments_free(it.arguments));
    GIVES(FER_ERROR_STALE_HANDLE, fer_fill_buffer(it.session, it.block, 0));
    OK(fer_graph_replay_timed(it.graphs, &key, &times, &was_there));
    CHECK(was_there == 1 && times.completion_ns > 0 && times.launch_ns > 0);
    CHECK(times.completion_ns >= times.launch_ns);
    OK(fer_download_bytes(it.session, view, &got, 4));
    CHECK(got == (0 * 3 + 5) * 3 + 5);
    key.words[0] = 1;
    OK(fer_graph_replay_timed(it.graphs, &key, &times, &was_there));
    CHECK(was_there == 0);
    OK(fer_graphs_free(it.graphs));
    OK(fer_session_close(it.session));
}

static void what_is_invalidated_goes(fer_runtime runtime) {
    struct bench it = begin(runtime, "invalidated", 0);
    fer_graph_key key = key_of(1, 0);
    fer_capture open, more[2];
    uint64_t count = 77;
    uint32_t word;
    for (word = 0; word < 6; word++)
        capture(&it, key_of(word % 2, word), 2, 1);
    key = key_of(1, 1);
    OK(fer_graph_invalidate(it.graphs, &key, &count));
    CHECK(count == 1 && !replay(&it, key));
    OK(fer_graph_invalidate(it.graphs, &key, &count));
    CHECK(count == 0);
    OK(fer_graphs_invalidate_generation(it.graphs, 1, &count));
    CHECK(count == 2 && replay(&it, key_of(0, 4)) && !replay(&it, key_of(1, 3)));
    /* A capture for an invalidated key is not kept. */
    key = key_of(0, 4);
    OK(fer_capture_begin(it.graphs, &key, &open));
    OK(launch(&it, open, 2));
    OK(fer_graph_invalidate(it.graphs, &key, NULL));
    GIVES(FER_ERROR_GRAPH, fer_capture_finish(open, NULL));
    SAYS("invalidated");
    CHECK(!replay(&it, key));
    OK(fer_graphs_invalidate_all(it.graphs, &count));
    CHECK(count == 2 && !replay(&it, key_of(0, 0)));
    /* A discarded capture is absent, as is one that ends with its graphs. */
    OK(fer_capture_begin(it.graphs, &key, &open));
    OK(launch(&it, open, 2));
    OK(fer_capture_discard(open));
    GIVES(FER_ERROR_STALE_HANDLE, launch(&it, open, 2));
    CHECK(!replay(&it, key));
    OK(fer_capture_begin(it.graphs, &key, &more[0]));
    OK(fer_graphs_free(it.graphs));
    GIVES(FER_ERROR_STALE_HANDLE, fer_capture_finish(more[0], NULL));
    OK(fer_graphs_open(it.session, 0, &it.graphs));
    OK(fer_capture_begin(it.graphs, &key, &more[1]));
    OK(launch(&it, more[1], 2));
    OK(fer_session_close(it.session));
    GIVES(FER_ERROR_STALE_HANDLE, fer_capture_finish(more[1], NULL));
}

static void a_budget_is_kept(fer_runtime runtime) {
    struct bench it = begin(runtime, "budget", 3 * 8192);
    fer_graph_key key = key_of(0, 9);
    fer_graphs_details details;
    fer_capture open;
    int at;
    for (at = 0; at < 4; at++)
        capture(&it, key_of(0, (uint64_t)at), 2, 1);
    OK(fer_graphs_info(it.graphs, &details));
    CHECK(details.entries == 3 && details.evicted == 1 && details.bytes == 3 * 8192);
    CHECK(!replay(&it, key_of(0, 0)) && replay(&it, key_of(0, 3)));
    OK(fer_capture_begin(it.graphs, &key, &open));
    for (at = 0; at < 4; at++)
        OK(launch(&it, open, 2));
    GIVES(FER_ERROR_LIMIT, fer_capture_finish(open, NULL));
    SAYS("budget");
    GIVES(FER_ERROR_STALE_HANDLE, fer_capture_discard(open));
    OK(fer_session_close(it.session));
}

static void *captures(void *given) {
    const struct bench *it = given;
    fer_graph_key key = key_of(3, (uint64_t)(uintptr_t)pthread_self());
    int round;
    for (round = 0; round < 20; round++)
        capture(it, key, 1, 2);
    CHECK(replay(it, key));
    return NULL;
}

static void threads_capture_beside_work(fer_runtime runtime) {
    struct bench it = begin(runtime, "threads", 0);
    pthread_t threads[3];
    int at;
    push(&it, 1);
    for (at = 0; at < 3; at++)
        CHECK(pthread_create(&threads[at], NULL, captures, &it) == 0);
    for (at = 0; at < 100; at++)
        OK(launch(&it, it.session, 1));
    for (at = 0; at < 3; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
    /* Each launch, and the two of each replay, has added 1. */
    CHECK(value(&it) == 106);
    OK(fer_session_close(it.session));
}

int main(int count, char **given) {
    fer_runtime runtime;
    CHECK(count == 2);
    srand((unsigned)strtoul(given[1], NULL, 10));
    runtime = a_runtime();
    replays_are_as_launches(runtime);
    graphs_hold_what_they_use(runtime);
    what_is_invalidated_goes(runtime);
    a_budget_is_kept(runtime);
    threads_capture_beside_work(runtime);
    at_its_end(runtime);
    return 0;
}
