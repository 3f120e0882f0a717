/*
 * A kernel that writes to an invalid address: later calls report it, a reboot reports that the
 * context has failed, and a reset recovers.
 */
#include "check.h"

static const char BEYOND[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry beyond()\n{\n    .reg .b64 %d<2>;\n    .reg .b32 %r<2>;\n"
    "    mov.u64 %d1, 64;\n    mov.u32 %r1, 1;\n    st.global.u32 [%d1], %r1;\n    ret;\n}\n";

/* An allocator that calls another session, and records the results. */
struct asks {
    fer_session session;
    fer_buffer buffer;
    int freed, unordered, ended;
};

static uint64_t ask(void *user, uint64_t bytes, uint64_t alignment, void *stream) {
    struct asks *asks = user;
    uint64_t address;
    (void)stream;
    asks->buffer = a_buffer(asks->session, bytes);
    OK(fer_export_buffer_device_ptr(asks->session, asks->buffer, &address));
    CHECK(address % alignment == 0);
    return address;
}

static void take_back(void *user, uint64_t address, uint64_t bytes, void *stream) {
    struct asks *asks = user;
    (void)address;
    (void)bytes;
    asks->freed++;
    asks->unordered += stream == NULL;
}

static void hear(void *user) { ((struct asks *)user)->ended++; }

int main(void) {
    struct asks asks = {0, 0, 0, 0, 0};
    fer_allocator allocator = {ask, take_back, hear, NULL};
    fer_session lending;
    fer_layout layout = bytes_of(1000);
    fer_buffer lent;
    fer_runtime runtime = a_runtime();
    fer_session session = a_session(runtime, "faulty");
    fer_buffer buffer = a_buffer(session, 1000);
    fer_launch launch = {{1, 1, 1}, {1, 1, 1}, 0, 0};
    fer_module module;
    fer_kernel beyond;
    fer_job fence;
    fer_reboot_details details;
    uint32_t state;
    unsigned char bytes[1000];
    asks.session = a_session(runtime, "asked");
    allocator.user = &asks;
    OK(fer_session_open_with_allocator(runtime, "lending", 0, &allocator, &lending));
    OK(fer_alloc_buffer(lending, &layout, FER_REGIME_CALLBACKS, &lent));
    OK(fer_fill_buffer(lending, lent, 1));
    OK(fer_module_load_ptx(session, BEYOND, &module));
    OK(fer_module_kernel(module, "beyond", &beyond));
    OK(fer_ptxlaunch_submit(session, beyond, &launch, NULL, 0));
    OK(fer_submit_fence(session, &fence));
    GIVES(FER_ERROR_CONTEXT_LOST, fer_job_wait(fence, 60 * SECOND));
    GIVES(FER_ERROR_CONTEXT_LOST, fer_job_wait(fence, 0));
    OK(fer_job_status(fence, &state));
    CHECK(state == FER_JOB_FAILED);
    GIVES(FER_ERROR_CONTEXT_LOST, fer_download_bytes(session, buffer, bytes, 1000));
    GIVES(FER_ERROR_CONTEXT_LOST, fer_stream_sync(session));
    GIVES(FER_ERROR_CONTEXT_LOST, fer_reboot(runtime, NULL));
    SAYS("reset");
    CHECK(asks.freed == 1 && asks.unordered == 1 && asks.ended == 0);
    OK(fer_reset(runtime, &details));
    CHECK(details.was_reset == 1);
    GIVES(FER_ERROR_ENDED, fer_fill_buffer(session, buffer, 1));
    /* Its work has failed before, and it is closed. */
    OK(fer_session_close(session));
    OK(fer_session_close(lending));
    OK(fer_session_close(asks.session));
    CHECK(asks.freed == 1 && asks.ended == 1);
    session = a_session(runtime, "afterwards");
    buffer = a_buffer(session, 1000);
    OK(fer_fill_buffer(session, buffer, 9));
    OK(fer_download_bytes(session, buffer, bytes, 1000));
    CHECK(bytes[0] == 9 && bytes[999] == 9);
    OK(fer_session_close(session));
    at_its_end(runtime);
    return 0;
}
