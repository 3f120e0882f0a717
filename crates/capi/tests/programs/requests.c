/*
 * Accepts reboot requests of other processes: the first is refused, the second accepted. Its
 * output lines report the progress to the requester.
 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <time.h>

struct consents {
    int asked, no;
    fer_requests requests;
};

static int consent(void *context) {
    struct consents *consents = context;
    int asked = __atomic_add_fetch(&consents->asked, 1, __ATOMIC_SEQ_CST);
    return asked > consents->no;
}

/* Ends the registration that it is called by. */
static int ends(void *context) {
    struct consents *consents = context;
    OK(fer_requests_end(consents->requests));
    __atomic_add_fetch(&consents->asked, 1, __ATOMIC_SEQ_CST);
    return 0;
}

/* Prints a word for the requester; and waits for one from it. */
static void say(const char *word) {
    CHECK(puts(word) >= 0 && fflush(stdout) == 0);
}

static void wait_for_it(void) { CHECK(getchar() == '\n'); }

static void rest(void) {
    struct timespec pause = {0, 1000000};
    nanosleep(&pause, NULL);
}

/* An allocator of one block, which ends the registration when that is freed. */
struct ending {
    uint64_t address;
    fer_requests requests;
    int asked, is_gone;
};

static uint64_t allocate(void *user, uint64_t bytes, uint64_t alignment, void *stream) {
    struct ending *ending = user;
    CHECK(bytes == 1000 && ending->address % alignment == 0 && stream != NULL);
    return ending->address;
}

static void give_back(void *user, uint64_t address, uint64_t bytes, void *stream) {
    struct ending *ending = user;
    CHECK(address == ending->address && bytes == 1000 && stream != NULL);
    OK(fer_requests_end(ending->requests));
    /* From here on the consent's context may be freed. */
    __atomic_store_n(&ending->is_gone, 1, __ATOMIC_SEQ_CST);
}

/* Takes its time, and uses its context throughout. */
static int slow(void *context) {
    struct ending *ending = context;
    int rests;
    __atomic_store_n(&ending->asked, 1, __ATOMIC_SEQ_CST);
    for (rests = 0; rests < 300; rests++) {
        CHECK(!__atomic_load_n(&ending->is_gone, __ATOMIC_SEQ_CST));
        rest();
    }
    return 0;
}

/* In an allocator's free a reboot is not waited for, but a consent in progress is. */
static void ends_where_memory_is_given_back(fer_runtime runtime) {
    struct ending ending = {0, 0, 0, 0};
    fer_session lender = a_session(runtime, "lender"), session = 0;
    fer_allocator allocator = {allocate, give_back, NULL, &ending};
    fer_layout layout = bytes_of(1000);
    fer_buffer buffer;
    OK(fer_export_buffer_device_ptr(lender, a_buffer(lender, 1000), &ending.address));
    OK(fer_stream_sync(lender));
    OK(fer_session_open_with_allocator(runtime, "lent", 0, &allocator, &session));
    OK(fer_alloc_buffer(session, &layout, FER_REGIME_CALLBACKS, &buffer));
    OK(fer_runtime_serve_requests(runtime, slow, &ending, &ending.requests));
    say("serves slowly");
    while (!__atomic_load_n(&ending.asked, __ATOMIC_SEQ_CST))
        rest();
    OK(fer_session_close(session));
    CHECK(ending.is_gone);
    OK(fer_session_close(lender));
    say("ended in a free");
    wait_for_it();
}

int main(void) {
    struct consents consents = {0, 1, 0};
    fer_runtime runtime = a_runtime();
    fer_session session = a_session(runtime, "asked");
    fer_buffer buffer = a_buffer(session, 1000);
    fer_session_details details;
    fer_requests requests;
    fer_status status;
    say("opened");
    wait_for_it();
    OK(fer_runtime_serve_requests(runtime, consent, &consents, &requests));
    say("serves");
    while ((status = fer_session_info(session, &details)) == FER_OK)
        rest();
    CHECK(status == FER_ERROR_ENDED);
    SAYS("rebooted");
    CHECK(__atomic_load_n(&consents.asked, __ATOMIC_SEQ_CST) == 2);
    GIVES(FER_ERROR_ENDED, fer_fill_buffer(session, buffer, 1));
    /* The reboot is answered before this returns. */
    OK(fer_requests_end(requests));
    GIVES(FER_ERROR_STALE_HANDLE, fer_requests_end(requests));
    OK(fer_session_close(session));
    say("ended by itself");
    wait_for_it();
    OK(fer_runtime_serve_requests(runtime, ends, &consents, &requests));
    __atomic_store_n(&consents.requests, requests, __ATOMIC_SEQ_CST);
    say("serves again");
    while (__atomic_load_n(&consents.asked, __ATOMIC_SEQ_CST) == 2)
        rest();
    /* Until that has returned another registration is refused. */
    while ((status = fer_runtime_serve_requests(runtime, consent, &consents, &requests)) ==
           FER_ERROR_SERVED)
        rest();
    CHECK(status == FER_OK);
    OK(fer_requests_end(requests));
    say("ended in consent");
    wait_for_it();
    ends_where_memory_is_given_back(runtime);
    /* A registration ends with its runtime. */
    OK(fer_runtime_serve_requests(runtime, consent, &consents, &requests));
    at_its_end(runtime);
    GIVES(FER_ERROR_STALE_HANDLE, fer_requests_end(requests));
    CHECK(consents.asked == 3);
    return 0;
}
