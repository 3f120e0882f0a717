/*
 * Each name that documents about the interface show, used as they do: headers at fercuda/api,
 * buffers, a launch, a resident kernel, an arena, the contract's names.
 */
#include <fercuda/api/c_api.h>
#include <fercuda/api/execution_contract.h>
#include <fercuda/api/intercept_telemetry.h>

#include "check.h"

#define LEN 64u

/* words[i] += step; the loop of a program that has no headers of CUDA's. */
static const char PTX[] =
    ".version 8.0\n"
    ".target sm_80\n"
    ".address_size 64\n"
    ".visible .entry advance(.param .u64 words, .param .u32 step)\n"
    "{\n"
    "    .reg .b32 %r<4>;\n"
    "    .reg .b64 %d<4>;\n"
    "    ld.param.u64 %d1, [words];\n"
    "    ld.param.u32 %r1, [step];\n"
    "    mov.u32 %r2, %tid.x;\n"
    "    mul.wide.u32 %d2, %r2, 4;\n"
    "    add.s64 %d3, %d1, %d2;\n"
    "    ld.global.u32 %r3, [%d3];\n"
    "    add.u32 %r3, %r3, %r1;\n"
    "    st.global.u32 [%d3], %r3;\n"
    "    ret;\n"
    "}\n";

static void buffers_are_filled_and_launched_on(fer_session session) {
    const uint64_t shape[1] = {LEN};
    uint32_t words[LEN], at;
    uint64_t address = 0;
    fer_layout layout;
    fer_buffer buffer;
    fer_module module;
    fer_kernel advance;
    fer_launch launch = {{1, 1, 1}, {LEN, 1, 1}, 0, 0};
    fer_argument arguments[2];
    for (at = 0; at < LEN; at++)
        words[at] = at;
    OK(fer_layout_contiguous(FER_DTYPE_U32, 1, shape, &layout));
    OK(fer_alloc_buffer(session, &layout, FER_REGIME_POOL, &buffer));
    OK(fer_upload_bytes(session, buffer, words, sizeof words));
    OK(fer_export_buffer_device_ptr(session, buffer, &address));
    CHECK(address != 0 && address % 4 == 0);
    OK(fer_module_load_ptx(session, PTX, &module));
    OK(fer_module_kernel(module, "advance", &advance));
    arguments[0].kind = FER_ARGUMENT_BUFFER;
    arguments[0].bytes = 8;
    arguments[0].value.buffer = buffer;
    arguments[1].kind = FER_ARGUMENT_NUMBER;
    arguments[1].bytes = 4;
    arguments[1].value.u32 = 1000;
    OK(fer_ptxlaunch_submit(session, advance, &launch, arguments, 2));
    OK(fer_stream_sync(session));
    OK(fer_download_bytes(session, buffer, words, sizeof words));
    for (at = 0; at < LEN; at++)
        CHECK(words[at] == 1000 + at);
    OK(fer_free_buffer(session, buffer));
}

static void a_resident_kernel_fills(fer_session session) {
    uint32_t words[LEN], at;
    fer_buffer buffer = a_buffer(session, sizeof words);
    fer_dispatcher dispatcher;
    fer_task task;
    fer_ticket ticket;
    memset(&task, 0, sizeof task);
    task.task = FER_TASK_FILL;
    task.words[0] = 0x01020304;
    task.span_count = 1;
    task.spans[0].buffer = buffer;
    task.spans[0].bytes = sizeof words;
    OK(fer_persistent_dispatcher_boot(session, NULL, &buffer, 1, &dispatcher));
    OK(fer_dispatcher_submit(dispatcher, &task, &ticket));
    OK(fer_ticket_wait(ticket, 60 * SECOND, NULL));
    OK(fer_dispatcher_stop(dispatcher, 60 * SECOND));
    OK(fer_download_bytes(session, buffer, words, sizeof words));
    for (at = 0; at < LEN; at++)
        CHECK(words[at] == 0x01020304);
    OK(fer_dispatcher_free(dispatcher));
    OK(fer_free_buffer(session, buffer));
}

static void an_arena_is_ignited(fer_session session) {
    fer_tensor_spec tensors[2];
    fer_arena arena;
    fer_buffer buffer;
    fer_buffer_details details;
    memset(tensors, 0, sizeof tensors);
    tensors[0].name = "weights";
    tensors[0].dtype = FER_DTYPE_F32;
    tensors[0].rank = 1;
    tensors[0].shape[0] = LEN;
    tensors[0].until_step = 2;
    tensors[1] = tensors[0];
    tensors[1].name = "activations";
    tensors[1].rank = 2;
    tensors[1].shape[1] = 3;
    OK(fercuda_ignite(session, tensors, 2, &arena));
    OK(fer_arena_tensor(arena, "activations", &buffer, NULL));
    OK(fer_buffer_info(session, buffer, &details));
    CHECK(details.bytes == 4 * LEN * 3);
    OK(fer_arena_free(arena));
    GIVES(FER_ERROR_STALE_HANDLE, fer_buffer_info(session, buffer, &details));
}

static uint32_t entrypoint_of(const char *name) {
    uint32_t number;
    for (number = 1; strcmp(fer_entrypoint_name(number), "unknown") != 0; number++)
        if (strcmp(fer_entrypoint_name(number), name) == 0)
            return number;
    return 0;
}

static void the_contract_has_the_names(void) {
    static const char *const ENTRYPOINTS[] = {"tensor", "jit_intent", "jit_launch",
                                              "resident_daemon", "framework_allocator"};
    static const char *const FRONTENDS[] = {"c", "cpp", "python", "rust", "rust_ferrite_torch"};
    fer_execution_contract contract;
    fer_intercept_telemetry telemetry;
    uint32_t number, found, is_served;
    size_t at;
    OK(fer_execution_contract_get(&contract));
    CHECK(contract.abi_major == FER_ABI_MAJOR);
    CHECK(contract.abi_minor >= FER_ABI_MINOR);
    for (at = 0; at < sizeof ENTRYPOINTS / sizeof *ENTRYPOINTS; at++) {
        number = entrypoint_of(ENTRYPOINTS[at]);
        CHECK(number != 0);
        OK(fer_entrypoint_served(number, &is_served));
        CHECK(is_served == (contract.entrypoints >> number & 1));
    }
    for (at = 0; at < sizeof FRONTENDS / sizeof *FRONTENDS; at++) {
        for (number = 1; strcmp(fer_frontend_name(number), FRONTENDS[at]) != 0; number++)
            CHECK(strcmp(fer_frontend_name(number), "unknown") != 0);
        OK(fer_frontend_entrypoint(number, &found));
        if (strcmp(FRONTENDS[at], "rust_ferrite_torch") == 0)
            CHECK(found == entrypoint_of("framework_allocator"));
        else
            CHECK(found == entrypoint_of("tensor"));
    }
    OK(fer_intercept_telemetry_get(&telemetry));
    CHECK(telemetry.fallbacks == 0);
}

int main(void) {
    fer_runtime runtime = a_runtime();
    fer_session session = a_session(runtime, "names");
    buffers_are_filled_and_launched_on(session);
    a_resident_kernel_fills(session);
    an_arena_is_ignited(session);
    the_contract_has_the_names();
    OK(fer_session_close(session));
    at_its_end(runtime);
    return 0;
}
