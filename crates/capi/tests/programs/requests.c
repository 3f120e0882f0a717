/*
 * Others may ask for a reboot as long as the program lets them: the first time it says no,
 * the second time yes. Its lines tell the one who asks how far it is.
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

/* Ends what it is asked by. */
static int ends(void *context) {
    struct consents *consents = context;
    OK(fer_requests_end(consents->requests));
    __atomic_add_fetch(&consents->asked, 1, __ATOMIC_SEQ_CST);
    return 0;
}

/* Says something to the one who asks; and waits until it says something. */
static void say(const char *word) {
    CHECK(puts(word) >= 0 && fflush(stdout) == 0);
}

static void wait_for_it(void) { CHECK(getchar() == '\n'); }

static void rest(void) {
    struct timespec pause = {0, 1000000};
    nanosleep(&pause, NULL);
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
    /* Until that has returned another is refused. */
    while ((status = fer_runtime_serve_requests(runtime, consent, &consents, &requests)) ==
           FER_ERROR_SERVED)
        rest();
    CHECK(status == FER_OK);
    OK(fer_requests_end(requests));
    say("ended in consent");
    wait_for_it();
    /* What still may be asked ends with its runtime. */
    OK(fer_runtime_serve_requests(runtime, consent, &consents, &requests));
    at_its_end(runtime);
    GIVES(FER_ERROR_STALE_HANDLE, fer_requests_end(requests));
    CHECK(consents.asked == 3);
    return 0;
}
