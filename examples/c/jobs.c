/*
 * Asynchronous work: uploads and downloads as jobs, waited for with a time limit. The host
 * goes on meanwhile.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fercuda/fercuda.h>

#define PARTS 8
#define LEN 65536u

static void must(fer_status status, const char *what) {
    if (status != FER_OK) {
        fprintf(stderr, "%s: %s\n%s\n", what, fer_status_name(status), fer_last_error_message());
        exit(EXIT_FAILURE);
    }
}

#define MUST(call) must((call), #call)

int main(void) {
    static unsigned char sent[PARTS][LEN], got[PARTS][LEN];
    const uint64_t second = 1000000000;
    const uint64_t shape[1] = {LEN};
    fer_runtime runtime;
    fer_session session;
    fer_layout layout;
    fer_buffer parts[PARTS], copies[PARTS];
    fer_job uploads[PARTS], downloads[PARTS];
    fer_session_details details;
    int at, wrong = 0;
    size_t byte;

    MUST(fer_runtime_open(FER_DEVICE_FROM_ENVIRONMENT, 0, &runtime));
    MUST(fer_session_open(runtime, "jobs", 0, &session));
    MUST(fer_layout_contiguous(FER_DTYPE_U8, 1, shape, &layout));
    for (at = 0; at < PARTS; at++) {
        unsigned char *bytes = malloc(LEN);
        if (!bytes)
            return EXIT_FAILURE;
        for (byte = 0; byte < LEN; byte++)
            sent[at][byte] = bytes[byte] = (unsigned char)rand();
        MUST(fer_alloc_buffer(session, &layout, FER_REGIME_POOL, &parts[at]));
        MUST(fer_alloc_buffer(session, &layout, FER_REGIME_PINNED, &copies[at]));
        MUST(fer_upload_async(session, parts[at], bytes, LEN, &uploads[at]));
        /* They were copied, so the program may reuse them. */
        free(bytes);
        MUST(fer_copy_buffer(session, copies[at], session, parts[at]));
        MUST(fer_download_async(session, copies[at], got[at], LEN, &downloads[at]));
    }
    for (at = 0; at < PARTS; at++) {
        /* got[at] is written here, and not before. */
        MUST(fer_job_wait(downloads[at], 60 * second));
        MUST(fer_job_wait(uploads[at], 60 * second));
        MUST(fer_job_free(uploads[at]));
        MUST(fer_job_free(downloads[at]));
        wrong += memcmp(sent[at], got[at], LEN) != 0;
    }
    MUST(fer_session_info(session, &details));
    MUST(fer_runtime_close(runtime));
    printf("%d parts of %u bytes, %d wrong; held %u bytes\n", PARTS, LEN, wrong,
           (unsigned)details.peak_bytes);
    return wrong ? EXIT_FAILURE : EXIT_SUCCESS;
}
