/* Helpers shared by these programs. */
#ifndef CHECK_H
#define CHECK_H

#include <fercuda/fercuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECOND UINT64_C(1000000000)

#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "%s:%d: not so: %s\nthe last error: %s\n", __FILE__, __LINE__,     \
                    #condition, fer_last_error_message());                                     \
            abort();                                                                           \
        }                                                                                      \
    } while (0)

/* Checks the status of a call. */
#define GIVES(code, call)                                                                      \
    do {                                                                                       \
        fer_status check_given = (call);                                                             \
        if (check_given != (code)) {                                                                 \
            fprintf(stderr, "%s:%d: %s gave %s, not " #code "\nthe last error: %s\n", __FILE__, \
                    __LINE__, #call, fer_status_name(check_given), fer_last_error_message());        \
            abort();                                                                           \
        }                                                                                      \
    } while (0)

#define OK(call) GIVES(FER_OK, call)

/* Checks that the last error message contains a word. */
#define SAYS(word) CHECK(strstr(fer_last_error_message(), (word)) != NULL)

static inline fer_runtime a_runtime(void) {
    fer_runtime runtime = 0;
    OK(fer_runtime_open(FER_DEVICE_FROM_ENVIRONMENT, 0, &runtime));
    return runtime;
}

static inline fer_session a_session(fer_runtime runtime, const char *name) {
    fer_session session = 0;
    OK(fer_session_open(runtime, name, 0, &session));
    return session;
}

static inline fer_layout bytes_of(uint64_t len) {
    fer_layout layout;
    OK(fer_layout_contiguous(FER_DTYPE_U8, 1, &len, &layout));
    return layout;
}

static inline fer_buffer a_buffer(fer_session session, uint64_t len_bytes) {
    fer_layout layout = bytes_of(len_bytes);
    fer_buffer buffer = 0;
    OK(fer_alloc_buffer(session, &layout, FER_REGIME_POOL, &buffer));
    return buffer;
}

/* Checks that no tenant holds memory, by the holders and by the ledger; closes the runtime. */
static inline void at_its_end(fer_runtime runtime) {
    fer_intercept_telemetry telemetry;
    fer_holder holder;
    uint64_t count = 7;
    OK(fer_holders(runtime, &holder, 1, &count));
    if (count != 0)
        fprintf(stderr, "%s holds %llu and %llu bytes\n", holder.name,
                (unsigned long long)holder.pooled_bytes, (unsigned long long)holder.governed_bytes);
    CHECK(count == 0);
    OK(fer_intercept_telemetry_get(&telemetry));
    if (telemetry.live_bytes || telemetry.governed_bytes || telemetry.fallbacks)
        fprintf(stderr, "live %llu, governed %llu, fallbacks %llu\n",
                (unsigned long long)telemetry.live_bytes,
                (unsigned long long)telemetry.governed_bytes,
                (unsigned long long)telemetry.fallbacks);
    CHECK(telemetry.live_bytes == 0 && telemetry.governed_bytes == 0 && telemetry.fallbacks == 0);
    OK(fer_runtime_close(runtime));
}

#endif
