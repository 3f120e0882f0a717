/*
 * Every function, called with null pointers, with stale numbers, and with handles of another
 * kind: each call is refused with a code and a message, and nothing else happens. The first argument is a seed.
 */
#include "check.h"

#define INVALID FER_ERROR_INVALID_ARGUMENT
#define STALE FER_ERROR_STALE_HANDLE

/* Checks a refusal that names the parameter and has advice. */
#define REFUSES(parameter, call)                                                               \
    do {                                                                                       \
        GIVES(INVALID, call);                                                                  \
        CHECK(strncmp(fer_last_error_message(), (parameter), strlen(parameter)) == 0);         \
        SAYS("try: ");                                                                         \
    } while (0)

static uint64_t seed;

static uint64_t any_number(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

/* Calls each function that takes handles with these; no pointer is NULL. */
static void all_with(fer_status code, fer_runtime runtime, fer_session session, fer_buffer buffer,
                     fer_job job, fer_module module, fer_kernel kernel, fer_arena arena,
                     fer_dispatcher dispatcher, fer_ticket ticket) {
    fer_graph_key key = {0, {0}};
    fer_graph_times times;
    fer_graphs_details in_graphs;
    fer_op_plan_details in_plan;
    const int64_t place = 0;
    unsigned char bytes[64] = {0};
    char text[64];
    uint64_t number;
    uint32_t word;
    void *pointer;
    fer_layout layout = bytes_of(64);
    fer_launch launch = {{1, 1, 1}, {1, 1, 1}, 0, 0};
    fer_tensor_spec tensor = {0};
    fer_memory_details memory;
    fer_session_details in_session;
    fer_buffer_details in_buffer;
    fer_arena_details in_arena;
    fer_reboot_details reboot;
    fer_dispatcher_details in_dispatcher;
    fer_task task = {0};
    fer_holder holder;
    tensor.name = "tensor";
    tensor.dtype = FER_DTYPE_U8;
    tensor.until_step = 1;

    GIVES(code, fer_graphs_open(session, 0, &number));
    GIVES(code, fer_arguments_open(session, 8, 1, &number, &number));
    /* None of these exists, so any number is stale. */
    GIVES(code, fer_graphs_free(ticket));
    GIVES(code, fer_capture_begin(ticket, &key, &number));
    GIVES(code, fer_capture_finish(ticket, NULL));
    GIVES(code, fer_capture_discard(ticket));
    GIVES(code, fer_graph_replay(ticket, &key, &word));
    GIVES(code, fer_graph_replay_timed(ticket, &key, &times, &word));
    GIVES(code, fer_graph_invalidate(ticket, &key, NULL));
    GIVES(code, fer_graphs_invalidate_generation(ticket, 0, NULL));
    GIVES(code, fer_graphs_invalidate_all(ticket, NULL));
    GIVES(code, fer_graphs_info(ticket, &in_graphs));
    GIVES(code, fer_arguments_set(ticket, 0, bytes, 4));
    GIVES(code, fer_arguments_push(ticket));
    GIVES(code, fer_arguments_free(ticket));
    GIVES(code, fer_evaluate(ticket, "y = 1", NULL, 0, NULL, 0));
    GIVES(code, fer_op_set_number(ticket, "alpha", 1));
    GIVES(code, fer_op_set_integers(ticket, "axis", &place, 1));
    GIVES(code, fer_op_set_text(ticket, "to", "f16"));
    GIVES(code, fer_op_check_indices(ticket));
    GIVES(code, fer_op_free(ticket));
    GIVES(code, fer_op_plan_open(session, ticket, &layout, 1, NULL, 0, NULL, &number));
    GIVES(code, fer_op_plan_info(ticket, &in_plan));
    GIVES(code, fer_op_plan_output(ticket, 0, &layout));
    GIVES(code, fer_op_plan_sku(ticket, text, 64, &number));
    GIVES(code, fer_op_run(ticket, &buffer, 1, &number, 1, 0));
    GIVES(code, fer_op_plan_check(ticket, buffer));
    GIVES(code, fer_op_plan_free(ticket));
    GIVES(code, fer_session_wait_for_stream(session, &word));
    GIVES(code, fer_stream_wait_for_session(session, &word));
    GIVES(code, fer_runtime_close(runtime));
    GIVES(code, fer_memory_info(runtime, &memory));
    GIVES(code, fer_parked_bytes(runtime, &memory.free_bytes));
    GIVES(code, fer_holders(runtime, &holder, 1, &number));
    GIVES(code, fer_reboot(runtime, &reboot));
    GIVES(code, fer_reset(runtime, &reboot));
    GIVES(code, fer_session_open(runtime, "name", 0, &number));
    GIVES(code, fer_session_close(session));
    GIVES(code, fer_session_info(session, &in_session));
    GIVES(code, fer_stream_sync(session));
    GIVES(code, fer_session_stream(session, &pointer));
    GIVES(code, fer_alloc_buffer(session, &layout, FER_REGIME_POOL, &number));
    GIVES(code, fer_free_buffer(session, buffer));
    GIVES(code, fer_view_buffer(session, buffer, &layout, 0, &number));
    GIVES(code, fer_buffer_info(session, buffer, &in_buffer));
    GIVES(code, fer_upload_bytes(session, buffer, bytes, 64));
    GIVES(code, fer_download_bytes(session, buffer, bytes, 64));
    GIVES(code, fer_copy_buffer(session, buffer, session, buffer));
    GIVES(code, fer_fill_buffer(session, buffer, 1));
    GIVES(code, fer_export_buffer_device_ptr(session, buffer, &number));
    GIVES(code, fer_import_device_ptr(session, 4096, &layout, NULL, NULL, &number));
    GIVES(code, fer_upload_async(session, buffer, bytes, 64, &number));
    GIVES(code, fer_download_async(session, buffer, bytes, 64, &number));
    GIVES(code, fer_submit_fence(session, &number));
    GIVES(code, fer_job_status(job, &word));
    GIVES(code, fer_job_wait(job, FER_WAIT_FOREVER));
    GIVES(code, fer_job_cancel(job, &word));
    GIVES(code, fer_job_free(job));
    GIVES(code, fer_module_load_ptx(session, ".version 8.0", &number));
    GIVES(code, fer_module_load_image(session, ".version 8.0", 12, &number));
    GIVES(code, fer_module_kernel(module, "kernel", &number));
    GIVES(code, fer_module_unload(module));
    GIVES(code, fer_ptxlaunch_submit(session, kernel, &launch, NULL, 0));
    GIVES(code, fercuda_ignite(session, &tensor, 1, &number));
    GIVES(code, fer_arena_info(arena, &in_arena));
    GIVES(code, fer_arena_tensor(arena, "tensor", &number, &number));
    GIVES(code, fer_arena_plan(arena, text, 64, &number));
    GIVES(code, fer_arena_free(arena));
    GIVES(code, fer_persistent_dispatcher_boot(session, NULL, &buffer, 1, &number));
    GIVES(code, fer_dispatcher_submit(dispatcher, &task, &number));
    GIVES(code, fer_dispatcher_info(dispatcher, &in_dispatcher));
    GIVES(code, fer_dispatcher_stop(dispatcher, FER_WAIT_FOREVER));
    GIVES(code, fer_dispatcher_free(dispatcher));
    GIVES(code, fer_ticket_status(ticket, &word));
    GIVES(code, fer_ticket_wait(ticket, FER_WAIT_FOREVER, NULL));
    GIVES(code, fer_ticket_cancel(ticket));
    GIVES(code, fer_ticket_free(ticket));
}

static int never(void *context, void *stream) {
    (void)context;
    (void)stream;
    abort();
}

static uint64_t never_allocates(void *user, uint64_t bytes, uint64_t alignment, void *stream) {
    (void)alignment;
    return (uint64_t)never(user, stream) + bytes;
}

static void never_frees(void *user, uint64_t address, uint64_t bytes, void *stream) {
    (void)address;
    (void)bytes;
    never(user, stream);
}

static void never_ends(void *user) { never(user, NULL); }

static int never_asked(void *context) { return never(context, NULL); }

int main(int count, char **given) {
    const fer_named_buffer nameless = {NULL, 0};
    fer_allocator allocator = {never_allocates, never_frees, never_ends, NULL};
    fer_runtime runtime;
    fer_session session, other;
    fer_buffer buffer;
    fer_job job;
    fer_module module;
    fer_kernel kernel;
    fer_arena arena;
    fer_dispatcher dispatcher;
    fer_ticket ticket;
    fer_dispatcher_options options;
    fer_task task = {0};
    fer_layout layout = bytes_of(64);
    fer_launch launch = {{1, 1, 1}, {1, 1, 1}, 0, 0};
    fer_tensor_spec tensor = {0};
    fer_argument argument = {0};
    fer_requests requests;
    fer_op op;
    fer_op_plan plan;
    fer_graphs graphs;
    fer_capture capture;
    fer_arguments arguments;
    fer_graph_times times;
    fer_graph_key key = {0, {0}};
    uint64_t number = 0;
    uint32_t word;
    int round;
    static const char PTX[] = ".version 8.0\n.target sm_80\n.address_size 64\n"
                              ".visible .entry nothing() { ret; }\n";
    CHECK(count == 2);
    seed = strtoull(given[1], NULL, 10) | 1;

    /* Before any handle exists. */
    CHECK(strcmp(fer_last_error_message(), "") == 0);
    all_with(INVALID, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    GIVES(INVALID, fer_submit_host_work(0, never, NULL, &number));
    REFUSES("runtime", fer_session_open_with_allocator(0, "name", 0, &allocator, &number));
    REFUSES("runtime", fer_runtime_serve_requests(0, never_asked, NULL, &number));
    REFUSES("requests", fer_requests_end(0));
    REFUSES("consent", fer_runtime_serve_requests(0, NULL, NULL, &number));
    REFUSES("requests", fer_runtime_serve_requests(0, never_asked, NULL, NULL));
    REFUSES("runtime", fer_runtime_open(FER_DEVICE_SOFTWARE, 0, NULL));
    REFUSES("device", fer_runtime_open(4, 0, &number));
    GIVES(FER_ERROR_NO_DEVICE, fer_runtime_open(FER_DEVICE_FROM_ENVIRONMENT, 99, &number));
    SAYS("99");
    REFUSES("telemetry", fer_intercept_telemetry_get(NULL));
    REFUSES("enabled", fer_intercept_telemetry_enabled(NULL));
    REFUSES("contract", fer_execution_contract_get(NULL));
    REFUSES("is_served", fer_entrypoint_served(FER_ENTRYPOINT_TENSOR, NULL));
    REFUSES("entrypoint", fer_entrypoint_served(0, &word));
    REFUSES("entrypoint", fer_frontend_entrypoint(FER_FRONTEND_C, NULL));
    REFUSES("frontend", fer_frontend_entrypoint(77, &word));
    REFUSES("dtype", fer_dtype_bytes(0, &number));
    REFUSES("bytes", fer_dtype_bytes(FER_DTYPE_F32, NULL));
    REFUSES("dtype", fer_layout_contiguous(16, 0, NULL, &layout));
    REFUSES("rank", fer_layout_contiguous(FER_DTYPE_U8, 9, &number, &layout));
    REFUSES("shape", fer_layout_contiguous(FER_DTYPE_U8, 1, NULL, &layout));
    REFUSES("layout", fer_layout_contiguous(FER_DTYPE_U8, 0, NULL, NULL));
    CHECK(strcmp(fer_dtype_name(FER_DTYPE_BF16), "bf16") == 0);
    CHECK(strcmp(fer_dtype_name(99), "unknown") == 0);
    CHECK(strcmp(fer_entrypoint_name(99), "unknown") == 0);
    CHECK(strcmp(fer_frontend_name(0), "unknown") == 0);
    CHECK(strcmp(fer_status_name(INVALID), "FER_ERROR_INVALID_ARGUMENT") == 0);

    runtime = a_runtime();
    session = a_session(runtime, "refusing");
    buffer = a_buffer(session, 64);
    OK(fer_submit_fence(session, &job));
    OK(fer_module_load_ptx(session, PTX, &module));
    OK(fer_module_kernel(module, "nothing", &kernel));
    tensor.name = "tensor";
    tensor.dtype = FER_DTYPE_U8;
    tensor.until_step = 1;
    OK(fercuda_ignite(session, &tensor, 1, &arena));

    OK(fer_dispatcher_defaults(&options));
    OK(fer_persistent_dispatcher_boot(session, &options, &buffer, 1, &dispatcher));
    task.task = FER_TASK_FILL;
    OK(fer_dispatcher_submit(dispatcher, &task, &ticket));
    GIVES(FER_ERROR_TASK, fer_ticket_wait(ticket, FER_WAIT_FOREVER, NULL));
    SAYS("0 of its 1 spans");
    /* Loading below would wait for its kernel, on a GPU. */
    OK(fer_dispatcher_stop(dispatcher, FER_WAIT_FOREVER));
    GIVES(FER_ERROR_ENDED, fer_dispatcher_submit(dispatcher, &task, &number));

    /* Each required pointer. */
    REFUSES("name", fer_op_open(NULL, &number));
    REFUSES("op", fer_op_open("cast", NULL));
    OK(fer_op_open("cast", &op));
    REFUSES("name", fer_op_set_number(op, NULL, 1));
    REFUSES("name", fer_op_set_integers(op, NULL, NULL, 0));
    REFUSES("values", fer_op_set_integers(op, "axis", NULL, 1));
    REFUSES("name", fer_op_set_text(op, NULL, "f16"));
    REFUSES("value", fer_op_set_text(op, "to", NULL));
    OK(fer_op_set_text(op, "to", "f16"));
    REFUSES("operands", fer_op_plan_open(session, op, NULL, 1, NULL, 0, NULL, &number));
    REFUSES("outputs", fer_op_plan_open(session, op, &layout, 1, NULL, 1, NULL, &number));
    REFUSES("plan", fer_op_plan_open(session, op, &layout, 1, NULL, 0, NULL, NULL));
    REFUSES("kernel", fer_op_plan_open(session, op, &layout, 1, NULL, 0, "\xff", &number));
    OK(fer_op_plan_open(session, op, &layout, 1, NULL, 0, NULL, &plan));
    REFUSES("details", fer_op_plan_info(plan, NULL));
    REFUSES("layout", fer_op_plan_output(plan, 0, NULL));
    REFUSES("text", fer_op_plan_sku(plan, NULL, 1, &number));
    REFUSES("needed", fer_op_plan_sku(plan, NULL, 0, NULL));
    number = 0;
    REFUSES("operands", fer_op_run(plan, NULL, 1, &number, 1, 0));
    REFUSES("outputs", fer_op_run(plan, &buffer, 1, NULL, 1, 0));
    REFUSES("operands[0]", fer_op_run(plan, &number, 1, &number, 1, 0));
    REFUSES("workspace", fer_op_plan_check(plan, 0));
    GIVES(STALE, fer_op_run(op, &buffer, 1, &number, 1, 0));
    SAYS("of a descriptor of an op, not of a plan of an op");
    OK(fer_op_plan_free(plan));
    OK(fer_op_free(op));
    REFUSES("details", fer_memory_info(runtime, NULL));
    REFUSES("bytes", fer_parked_bytes(runtime, NULL));
    REFUSES("holders", fer_holders(runtime, NULL, 1, &number));
    REFUSES("count", fer_holders(runtime, NULL, 0, NULL));
    REFUSES("name", fer_session_open(runtime, NULL, 0, &number));
    REFUSES("name", fer_session_open(runtime, "\xff", 0, &number));
    REFUSES("session", fer_session_open(runtime, "name", 0, NULL));
    REFUSES("name", fer_session_open_with_allocator(runtime, NULL, 0, &allocator, &number));
    REFUSES("allocator", fer_session_open_with_allocator(runtime, "name", 0, NULL, &number));
    REFUSES("session", fer_session_open_with_allocator(runtime, "name", 0, &allocator, NULL));
    allocator.allocate = NULL;
    REFUSES("allocator->allocate",
            fer_session_open_with_allocator(runtime, "name", 0, &allocator, &number));
    allocator.allocate = never_allocates;
    allocator.free = NULL;
    REFUSES("allocator->free",
            fer_session_open_with_allocator(runtime, "name", 0, &allocator, &number));
    REFUSES("details", fer_session_info(session, NULL));
    REFUSES("stream", fer_session_stream(session, NULL));
    REFUSES("layout", fer_alloc_buffer(session, NULL, FER_REGIME_POOL, &number));
    REFUSES("buffer", fer_alloc_buffer(session, &layout, FER_REGIME_POOL, NULL));
    REFUSES("regime", fer_alloc_buffer(session, &layout, 0, &number));
    REFUSES("regime", fer_alloc_buffer(session, &layout, FER_REGIME_FOREIGN, &number));
    REFUSES("regime", fer_alloc_buffer(session, &layout, FER_REGIME_CALLBACKS, &number));
    SAYS("no allocator");
    REFUSES("regime", fer_alloc_buffer(session, &layout, 7, &number));
    REFUSES("layout", fer_view_buffer(session, buffer, NULL, 0, &number));
    REFUSES("view", fer_view_buffer(session, buffer, &layout, 0, NULL));
    REFUSES("details", fer_buffer_info(session, buffer, NULL));
    REFUSES("bytes", fer_upload_bytes(session, buffer, NULL, 64));
    REFUSES("bytes", fer_upload_bytes(session, buffer, &number, UINT64_MAX));
    REFUSES("into", fer_download_bytes(session, buffer, NULL, 64));
    REFUSES("address", fer_export_buffer_device_ptr(session, buffer, NULL));
    REFUSES("address", fer_import_device_ptr(session, 0, &layout, NULL, NULL, &number));
    REFUSES("layout", fer_import_device_ptr(session, 4096, NULL, NULL, NULL, &number));
    REFUSES("buffer", fer_import_device_ptr(session, 4096, &layout, NULL, NULL, NULL));
    REFUSES("bytes", fer_upload_async(session, buffer, NULL, 64, &number));
    REFUSES("job", fer_upload_async(session, buffer, &layout, 64, NULL));
    REFUSES("into", fer_download_async(session, buffer, NULL, 64, &number));
    REFUSES("job", fer_download_async(session, buffer, &layout, 64, NULL));
    REFUSES("job", fer_submit_fence(session, NULL));
    REFUSES("work", fer_submit_host_work(session, NULL, NULL, &number));
    REFUSES("job", fer_submit_host_work(session, never, NULL, NULL));
    REFUSES("state", fer_job_status(job, NULL));
    REFUSES("ptx", fer_module_load_ptx(session, NULL, &number));
    REFUSES("module", fer_module_load_ptx(session, PTX, NULL));
    REFUSES("image", fer_module_load_image(session, NULL, 4, &number));
    REFUSES("module", fer_module_load_image(session, PTX, sizeof PTX, NULL));
    REFUSES("name", fer_module_kernel(module, NULL, &number));
    REFUSES("kernel", fer_module_kernel(module, "nothing", NULL));
    REFUSES("launch", fer_ptxlaunch_submit(session, kernel, NULL, NULL, 0));
    REFUSES("arguments", fer_ptxlaunch_submit(session, kernel, &launch, NULL, 1));
    REFUSES("arguments[0].kind", fer_ptxlaunch_submit(session, kernel, &launch, &argument, 1));
    argument.kind = FER_ARGUMENT_BUFFER;
    REFUSES("arguments[0].value.buffer",
            fer_ptxlaunch_submit(session, kernel, &launch, &argument, 1));
    argument.bytes = 4;
    REFUSES("arguments[0].bytes", fer_ptxlaunch_submit(session, kernel, &launch, &argument, 1));
    argument.kind = FER_ARGUMENT_NUMBER;
    argument.bytes = 3;
    REFUSES("arguments[0].bytes", fer_ptxlaunch_submit(session, kernel, &launch, &argument, 1));
    argument.kind = FER_ARGUMENT_STRUCTURE;
    argument.bytes = 0;
    REFUSES("arguments[0].bytes", fer_ptxlaunch_submit(session, kernel, &launch, &argument, 1));
    argument.bytes = 12;
    REFUSES("arguments[0].value.structure",
            fer_ptxlaunch_submit(session, kernel, &launch, &argument, 1));
    REFUSES("tensors", fercuda_ignite(session, NULL, 1, &number));
    REFUSES("arena", fercuda_ignite(session, &tensor, 1, NULL));
    REFUSES("plan", fercuda_ignite_plan(session, NULL, &number));
    REFUSES("arena", fercuda_ignite_plan(session, "{}", NULL));
    tensor.name = NULL;
    REFUSES("tensors[0].name", fercuda_ignite(session, &tensor, 1, &number));
    tensor.name = "tensor";
    tensor.rank = 9;
    REFUSES("tensors[0].rank", fercuda_ignite(session, &tensor, 1, &number));
    tensor.rank = 0;
    tensor.dtype = 0;
    REFUSES("tensors[0].dtype", fercuda_ignite(session, &tensor, 1, &number));
    tensor.dtype = FER_DTYPE_U8;
    tensor.until_step = 0;
    GIVES(FER_ERROR_PLAN, fercuda_ignite(session, &tensor, 1, &number));
    GIVES(FER_ERROR_PLAN, fercuda_ignite_plan(session, "{}", &number));
    SAYS("not a plan");
    REFUSES("details", fer_arena_info(arena, NULL));
    REFUSES("name", fer_arena_tensor(arena, NULL, &number, NULL));
    REFUSES("name", fer_arena_tensor(arena, "another", &number, NULL));
    REFUSES("buffer", fer_arena_tensor(arena, "tensor", NULL, NULL));
    REFUSES("text", fer_arena_plan(arena, NULL, 1, &number));
    REFUSES("needed", fer_arena_plan(arena, NULL, 0, NULL));
    REFUSES("options", fer_dispatcher_defaults(NULL));
    REFUSES("dispatcher", fer_persistent_dispatcher_boot(session, NULL, NULL, 0, NULL));
    REFUSES("buffers", fer_persistent_dispatcher_boot(session, NULL, NULL, 1, &number));
    number = 0;
    REFUSES("buffers[0]", fer_persistent_dispatcher_boot(session, NULL, &number, 1, &number));
    options.capacity = 12;
    REFUSES("options", fer_persistent_dispatcher_boot(session, &options, NULL, 0, &number));
    SAYS("power of two");
    options.capacity = 16;
    options.watchdog_ns = 0;
    REFUSES("options.watchdog_ns",
            fer_persistent_dispatcher_boot(session, &options, NULL, 0, &number));
    options.steps = 0;
    REFUSES("options.steps", fer_persistent_dispatcher_boot(session, &options, NULL, 0, &number));
    REFUSES("task", fer_dispatcher_submit(dispatcher, NULL, NULL));
    task.priority = 2;
    REFUSES("task->priority", fer_dispatcher_submit(dispatcher, &task, NULL));
    task.priority = 0;
    task.span_count = 4;
    REFUSES("task->span_count", fer_dispatcher_submit(dispatcher, &task, &number));
    task.span_count = 2;
    task.spans[0].buffer = buffer;
    REFUSES("task->spans[1].buffer", fer_dispatcher_submit(dispatcher, &task, &number));
    OK(fer_alloc_buffer(session, &layout, FER_REGIME_POOL, &task.spans[1].buffer));
    REFUSES("task->spans[1].buffer", fer_dispatcher_submit(dispatcher, &task, &number));
    SAYS("none of the 1 buffers");
    task.spans[1].buffer = ticket;
    GIVES(STALE, fer_dispatcher_submit(dispatcher, &task, &number));
    REFUSES("details", fer_dispatcher_info(dispatcher, NULL));
    REFUSES("state", fer_ticket_status(ticket, NULL));
    layout.dtype = 0;
    REFUSES("layout.dtype", fer_alloc_buffer(session, &layout, FER_REGIME_POOL, &number));
    layout.dtype = 0x7fffffff;
    REFUSES("layout.dtype", fer_view_buffer(session, buffer, &layout, 0, &number));
    layout.dtype = FER_DTYPE_U8;
    layout.rank = 9;
    REFUSES("layout.rank", fer_import_device_ptr(session, 4096, &layout, NULL, NULL, &number));
    layout = bytes_of(64);

    /* Mismatches. */
    GIVES(FER_ERROR_LAYOUT, fer_upload_bytes(session, buffer, &layout, 63));
    SAYS("63");
    GIVES(FER_ERROR_LAYOUT, fer_download_bytes(session, buffer, &layout, 65));
    SAYS("65");
    GIVES(FER_ERROR_LAYOUT, fer_download_async(session, buffer, &layout, 1, &number));
    GIVES(FER_ERROR_LAYOUT, fer_view_buffer(session, buffer, &layout, 1, &number));
    GIVES(FER_ERROR_MODULE, fer_module_load_ptx(session, ".version 8.0\nnonsense", &number));
    GIVES(FER_ERROR_MODULE, fer_module_load_image(session, "\x7f" "ELF", 4, &number));
    GIVES(FER_ERROR_MODULE, fer_module_kernel(module, "anything", &number));
    SAYS("anything");
    argument.kind = FER_ARGUMENT_NUMBER;
    argument.bytes = 4;
    GIVES(FER_ERROR_LAUNCH, fer_ptxlaunch_submit(session, kernel, &launch, &argument, 1));
    SAYS("takes 0 arguments and 1");
    launch.block[0] = 4096;
    GIVES(FER_ERROR_LAUNCH, fer_ptxlaunch_submit(session, kernel, &launch, NULL, 0));
    launch.block[0] = 0;
    GIVES(FER_ERROR_LAUNCH, fer_ptxlaunch_submit(session, kernel, &launch, NULL, 0));
    launch.block[0] = 1;
    OK(fer_ptxlaunch_submit(session, kernel, &launch, NULL, 0));
    OK(fer_runtime_serve_requests(runtime, never_asked, NULL, &requests));
    GIVES(FER_ERROR_SERVED, fer_runtime_serve_requests(runtime, never_asked, NULL, &number));
    GIVES(STALE, fer_requests_end(session));
    SAYS("of a session");
    GIVES(FER_ERROR_NAME_TAKEN, fer_session_open(runtime, "refusing", 0, &number));

    OK(fer_graphs_open(session, 0, &graphs));
    OK(fer_capture_begin(graphs, &key, &capture));
    REFUSES("graphs", fer_graphs_open(session, 0, NULL));
    REFUSES("expression", fer_evaluate(session, NULL, NULL, 0, NULL, 0));
    REFUSES("inputs", fer_evaluate(session, "y = x", NULL, 1, NULL, 0));
    REFUSES("outputs", fer_evaluate(session, "y = x", NULL, 0, NULL, 1));
    REFUSES("inputs[0].name", fer_evaluate(session, "y = x", &nameless, 1, NULL, 0));
    GIVES(FER_ERROR_EXPRESSION, fer_evaluate(session, "y = x", NULL, 0, NULL, 0));
    REFUSES("key", fer_capture_begin(graphs, NULL, &number));
    REFUSES("capture", fer_capture_begin(graphs, &key, NULL));
    REFUSES("key", fer_graph_replay(graphs, NULL, &word));
    REFUSES("was_there", fer_graph_replay(graphs, &key, NULL));
    REFUSES("key", fer_graph_replay_timed(graphs, NULL, &times, &word));
    REFUSES("times", fer_graph_replay_timed(graphs, &key, NULL, &word));
    REFUSES("was_there", fer_graph_replay_timed(graphs, &key, &times, NULL));
    REFUSES("key", fer_graph_invalidate(graphs, NULL, NULL));
    REFUSES("details", fer_graphs_info(graphs, NULL));
    OK(fer_arguments_open(session, 8, 1, &arguments, &number));
    REFUSES("bytes", fer_arguments_open(session, 6, 1, &number, &number));
    REFUSES("bytes", fer_arguments_open(session, 0, 1, &number, &number));
    REFUSES("bytes", fer_arguments_open(session, UINT64_MAX - 3, 1, &number, &number));
    REFUSES("pushes", fer_arguments_open(session, 8, 0, &number, &number));
    REFUSES("arguments", fer_arguments_open(session, 8, 1, NULL, &number));
    REFUSES("buffer", fer_arguments_open(session, 8, 1, &number, NULL));
    REFUSES("bytes", fer_arguments_set(arguments, 0, NULL, 4));
    GIVES(FER_ERROR_LAYOUT, fer_arguments_set(arguments, 2, &number, 4));
    GIVES(FER_ERROR_LAYOUT, fer_arguments_set(arguments, 4, &number, 8));
    GIVES(FER_ERROR_LAYOUT, fer_arguments_set(arguments, UINT64_MAX - 3, &number, 4));
    OK(fer_arguments_free(arguments));
    /* A mismatch with the kernel is reported by the capture. */
    argument.bytes = 4;
    argument.kind = FER_ARGUMENT_NUMBER;
    OK(fer_ptxlaunch_submit(capture, kernel, &launch, &argument, 1));
    GIVES(FER_ERROR_LAUNCH, fer_capture_finish(capture, NULL));
    GIVES(STALE, fer_ptxlaunch_submit(capture, kernel, &launch, &argument, 1));
    OK(fer_graphs_free(graphs));

    /* Handles of another kind or session; numbers that were never returned. */
    all_with(STALE, session, runtime, job, buffer, kernel, module, buffer, ticket, dispatcher);
    GIVES(STALE, fer_free_buffer(session, arena));
    SAYS("of a arena");
    other = a_session(runtime, "another");
    GIVES(STALE, fer_fill_buffer(other, buffer, 0));
    GIVES(STALE, fer_copy_buffer(session, buffer, other, buffer));
    GIVES(INVALID, fer_copy_buffer(session, buffer, 0, buffer));
    argument.kind = FER_ARGUMENT_BUFFER;
    argument.bytes = 8;
    for (round = 0; round < 200; round++) {
        /* A random number is valid with a chance of one in many thousand millions. */
        uint64_t any = any_number();
        all_with(STALE, any, any, any, any, any, any, any, any, any);
        GIVES(STALE, fer_fill_buffer(session, any, 1));
        argument.value.u64 = any;
        GIVES(STALE, fer_ptxlaunch_submit(session, kernel, &launch, &argument, 1));
    }

    /* Handles that were valid before, once closed. */
    OK(fer_session_close(other));
    OK(fer_session_close(session));
    GIVES(STALE, fer_session_close(session));
    SAYS("closed or freed");
    number = a_session(runtime, "refusing");
    at_its_end(runtime);
    all_with(STALE, runtime, session, buffer, job, module, kernel, arena, dispatcher, ticket);
    GIVES(STALE, fer_requests_end(requests));
    SAYS("closed or freed");
    all_with(STALE, runtime, number, buffer, job, module, kernel, arena, dispatcher, ticket);
    OK(fer_intercept_telemetry_reset());
    return 0;
}
