/*
 * Buffers in memory from the program's allocator: it is allocated and freed once, in the order
 * of the session's stream; errors of the allocator are reported; and it may call the library.
 */
#include "check.h"

#include <pthread.h>

enum { BLOCK = 4096, BLOCKS = 64 };

/* Blocks of one allocation, reused as soon as they are freed. */
struct blocks {
    pthread_mutex_t lock;
    uint64_t begin;
    unsigned char is_given[BLOCKS];
    int asked, freed, unordered, ended;
    /* What it does instead of the right thing. */
    uint64_t wrong;
    /* Its session, once it may call the library. */
    fer_session session;
    int closes;
    fer_status said;
};

static uint64_t allocate(void *user, uint64_t bytes, uint64_t alignment, void *stream) {
    struct blocks *blocks = user;
    fer_session_details details;
    fer_buffer buffer;
    fer_layout layout;
    uint64_t wrong = 0;
    int at;
    CHECK(stream != NULL && alignment == 256 && bytes > 0 && bytes <= BLOCK);
    pthread_mutex_lock(&blocks->lock);
    blocks->asked++;
    wrong = blocks->wrong;
    for (at = 0; at < BLOCKS && blocks->is_given[at]; at++)
        ;
    CHECK(at < BLOCKS);
    if (!wrong)
        blocks->is_given[at] = 1;
    pthread_mutex_unlock(&blocks->lock);
    if (blocks->session != 0) {
        OK(fer_session_info(blocks->session, &details));
        layout = bytes_of(8);
        GIVES(FER_ERROR_ALLOCATOR,
              fer_alloc_buffer(blocks->session, &layout, FER_REGIME_CALLBACKS, &buffer));
        SAYS("recursively");
        buffer = a_buffer(blocks->session, 100);
        OK(fer_fill_buffer(blocks->session, buffer, 1));
        OK(fer_free_buffer(blocks->session, buffer));
    }
    if (wrong)
        return wrong == 1 ? 0 : wrong;
    return blocks->begin + (uint64_t)at * BLOCK;
}

static void give_back(void *user, uint64_t address, uint64_t bytes, void *stream) {
    struct blocks *blocks = user;
    uint64_t at = (address - blocks->begin) / BLOCK;
    CHECK(bytes > 0 && bytes <= BLOCK);
    pthread_mutex_lock(&blocks->lock);
    blocks->freed++;
    blocks->unordered += stream == NULL;
    if (at < BLOCKS && (address - blocks->begin) % BLOCK == 0) {
        CHECK(blocks->is_given[at]);
        blocks->is_given[at] = 0;
    } else {
        CHECK(address == blocks->wrong);
    }
    pthread_mutex_unlock(&blocks->lock);
    if (blocks->closes)
        blocks->said = fer_session_close(blocks->session);
}

static void ended(void *user) { __atomic_add_fetch(&((struct blocks *)user)->ended, 1, __ATOMIC_SEQ_CST); }

/* Memory for them, from a separate session. */
static fer_session begin(fer_runtime runtime, struct blocks *blocks, fer_allocator *allocator) {
    fer_session lender = a_session(runtime, "lender");
    memset(blocks, 0, sizeof *blocks);
    CHECK(pthread_mutex_init(&blocks->lock, NULL) == 0);
    OK(fer_export_buffer_device_ptr(lender, a_buffer(lender, BLOCK * BLOCKS), &blocks->begin));
    OK(fer_stream_sync(lender));
    allocator->allocate = allocate;
    allocator->free = give_back;
    allocator->ended = ended;
    allocator->user = blocks;
    return lender;
}

static fer_session open_with(fer_runtime runtime, const char *name, fer_allocator *allocator) {
    fer_session session = 0;
    OK(fer_session_open_with_allocator(runtime, name, 10000, allocator, &session));
    return session;
}

static void memory_is_the_programs_own(fer_runtime runtime) {
    struct blocks blocks;
    fer_allocator allocator;
    fer_session lender = begin(runtime, &blocks, &allocator);
    fer_session session = open_with(runtime, "own", &allocator);
    fer_layout layout = bytes_of(3000), part = bytes_of(1000), large = bytes_of(BLOCK);
    fer_buffer buffer, view, other = 77;
    fer_buffer_details details;
    fer_session_details in_session;
    unsigned char sent[3000], got[3000];
    uint64_t address;
    int at;
    memset(&allocator, 0, sizeof allocator); /* It was copied. */
    for (at = 0; at < 3000; at++)
        sent[at] = (unsigned char)rand();
    OK(fer_alloc_buffer(session, &layout, FER_REGIME_CALLBACKS, &buffer));
    OK(fer_buffer_info(session, buffer, &details));
    CHECK(details.regime == FER_REGIME_CALLBACKS && details.bytes == 3000);
    OK(fer_export_buffer_device_ptr(session, buffer, &address));
    CHECK(address == blocks.begin);
    OK(fer_session_info(session, &in_session));
    CHECK(in_session.held_bytes == 3000);
    OK(fer_upload_bytes(session, buffer, sent, sizeof sent));
    OK(fer_view_buffer(session, buffer, &part, 500, &view));
    OK(fer_free_buffer(session, buffer));
    CHECK(blocks.asked == 1 && blocks.freed == 0);
    OK(fer_download_bytes(session, view, got, 1000));
    CHECK(memcmp(got, sent + 500, 1000) == 0);
    /* Over the limit it is not called. */
    OK(fer_alloc_buffer(session, &large, FER_REGIME_CALLBACKS, &buffer));
    GIVES(FER_ERROR_LIMIT, fer_alloc_buffer(session, &large, FER_REGIME_CALLBACKS, &other));
    CHECK(blocks.asked == 2 && other == 77);
    OK(fer_free_buffer(session, view));
    CHECK(blocks.freed == 1 && blocks.ended == 0);
    OK(fer_session_close(session));
    CHECK(blocks.freed == 2 && blocks.unordered == 0 && blocks.ended == 1);
    OK(fer_session_close(lender));
}

static void what_is_wrong_is_told(fer_runtime runtime) {
    struct blocks blocks;
    fer_allocator allocator;
    fer_session lender = begin(runtime, &blocks, &allocator), session, none;
    fer_session_details details;
    fer_layout layout = bytes_of(500);
    fer_buffer buffer, other = 77;
    GIVES(FER_ERROR_NAME_TAKEN,
          fer_session_open_with_allocator(runtime, "lender", 0, &allocator, &none));
    CHECK(blocks.ended == 0);
    session = open_with(runtime, "wrong", &allocator);
    OK(fer_alloc_buffer(session, &layout, FER_REGIME_CALLBACKS, &buffer));
    blocks.wrong = 1;
    GIVES(FER_ERROR_ALLOCATOR, fer_alloc_buffer(session, &layout, FER_REGIME_CALLBACKS, &other));
    SAYS("it has none");
    SAYS("500 B");
    SAYS("try:");
    CHECK(blocks.freed == 0);
    blocks.wrong = blocks.begin + 8 * BLOCK + 4;
    GIVES(FER_ERROR_ALLOCATOR, fer_alloc_buffer(session, &layout, FER_REGIME_CALLBACKS, &other));
    SAYS("multiple of 256");
    CHECK(blocks.freed == 1);
    blocks.wrong = blocks.begin + 256;
    GIVES(FER_ERROR_ALLOCATOR, fer_alloc_buffer(session, &layout, FER_REGIME_CALLBACKS, &other));
    SAYS("in use");
    CHECK(blocks.freed == 1 && other == 77);
    blocks.wrong = 0;
    OK(fer_session_info(session, &details));
    CHECK(details.held_bytes == 500 && details.buffers == 1);
    OK(fer_alloc_buffer(session, &layout, FER_REGIME_CALLBACKS, &buffer));
    OK(fer_fill_buffer(session, buffer, 1));
    OK(fer_session_close(session));
    CHECK(blocks.freed == 3 && blocks.ended == 1);
    OK(fer_session_close(lender));
}

static void it_may_call_us(fer_runtime runtime) {
    struct blocks blocks;
    fer_allocator allocator;
    fer_session lender = begin(runtime, &blocks, &allocator);
    fer_session session = open_with(runtime, "calls", &allocator);
    fer_layout layout = bytes_of(100);
    fer_buffer buffers[3];
    int at;
    blocks.session = session;
    for (at = 0; at < 3; at++)
        OK(fer_alloc_buffer(session, &layout, FER_REGIME_CALLBACKS, &buffers[at]));
    blocks.closes = 1;
    blocks.said = FER_ERROR_INTERNAL;
    OK(fer_free_buffer(session, buffers[1]));
    /* The others were freed with the session; its number was stale in their calls. */
    CHECK(blocks.freed == 3 && blocks.unordered == 0);
    CHECK(blocks.said == FER_OK);
    CHECK(blocks.ended == 1);
    GIVES(FER_ERROR_STALE_HANDLE, fer_free_buffer(session, buffers[0]));
    OK(fer_session_close(lender));
}

static void *works(void *given) {
    fer_session session = *(fer_session *)given;
    fer_layout layout = bytes_of(100);
    fer_buffer buffer;
    fer_status status;
    do {
        status = fer_alloc_buffer(session, &layout, FER_REGIME_CALLBACKS, &buffer);
        if (status == FER_OK)
            status = fer_fill_buffer(session, buffer, 1);
        if (status == FER_OK)
            status = fer_free_buffer(session, buffer);
    } while (status == FER_OK);
    return (void *)(intptr_t)status;
}

static void threads_leave_nothing(fer_runtime runtime) {
    struct blocks blocks;
    fer_allocator allocator;
    fer_session lender = begin(runtime, &blocks, &allocator);
    int round, at;
    for (round = 1; round <= 10; round++) {
        fer_session session = open_with(runtime, "threads", &allocator);
        fer_layout layout = bytes_of(200);
        fer_buffer buffer;
        pthread_t threads[3];
        void *given;
        for (at = 0; at < 3; at++)
            CHECK(pthread_create(&threads[at], NULL, works, &session) == 0);
        for (at = 0; at < 20; at++)
            OK(fer_alloc_buffer(session, &layout, FER_REGIME_CALLBACKS, &buffer));
        OK(fer_session_close(session));
        for (at = 0; at < 3; at++) {
            CHECK(pthread_join(threads[at], &given) == 0);
            CHECK((intptr_t)given == FER_ERROR_ENDED ||
                  (intptr_t)given == FER_ERROR_STALE_HANDLE);
        }
        CHECK(blocks.asked == blocks.freed && blocks.ended == round);
    }
    OK(fer_session_close(lender));
}

int main(void) {
    fer_runtime runtime = a_runtime();
    memory_is_the_programs_own(runtime);
    what_is_wrong_is_told(runtime);
    it_may_call_us(runtime);
    threads_leave_nothing(runtime);
    at_its_end(runtime);
    return 0;
}
