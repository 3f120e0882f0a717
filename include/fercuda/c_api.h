/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 * Made by `cargo xtask headers` of the sources in crates/capi.
 *
 * Runtimes, sessions, buffers, jobs, modules, launches, graphs, expressions, ops,
 * arenas, dispatchers.
 *
 * Functions answer with a fer_status; fer_last_error_message says more. What is
 * named is a number, which names one thing for ever or nothing. All functions may
 * be called from all threads.
 *
 * A pointer that is not NULL leads to what is said of it, for the time of the call,
 * and a result is written only with FER_OK. NULL is FER_ERROR_INVALID_ARGUMENT
 * where nothing else is said.
 */

#ifndef FERCUDA_C_API_H
#define FERCUDA_C_API_H

#include <stddef.h>
#include <stdint.h>

// Maximum number of dimensions of a layout.
#define FER_MAX_RANK 8

// Size of a holder's name, including the zero byte.
#define FER_NAME_BYTES 64

// Number of words of a task.
#define FER_TASK_WORDS 4

// Maximum number of spans of a task.
#define FER_TASK_SPANS 3

// Number of words of a graph's key, besides its generation.
#define FER_KEY_WORDS 7

// As a timeout: no limit.
#define FER_WAIT_FOREVER UINT64_MAX

// Status that a function returns. Numbers keep their meaning for ever.
enum fer_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Success.
  FER_OK = 0,
  // A pointer is NULL, a handle is 0, a number is out of range, or a text is not UTF-8. The
  // message names the parameter.
  FER_ERROR_INVALID_ARGUMENT = 1,
  // A stale handle: it was closed or freed, is of another kind or session, or was never
  // returned.
  FER_ERROR_STALE_HANDLE = 2,
  // Layouts, buffers and lengths do not match.
  FER_ERROR_LAYOUT = 3,
  // The limit of the session, or of its graphs, is exceeded; or no more threads can be started.
  FER_ERROR_LIMIT = 4,
  // The device is out of memory; the message lists the holders.
  FER_ERROR_OUT_OF_MEMORY = 5,
  // The session was closed, or ended by a reboot, or its context was reset.
  FER_ERROR_ENDED = 6,
  // A session of that name is open.
  FER_ERROR_NAME_TAKEN = 7,
  // No such device, or no driver, or another driver is governed already.
  FER_ERROR_NO_DEVICE = 8,
  // The driver refused.
  FER_ERROR_DRIVER = 9,
  // A module was refused, or has no such kernel. The message has the compiler's log.
  FER_ERROR_MODULE = 10,
  // A launch does not fit its kernel or the device; nothing was launched.
  FER_ERROR_LAUNCH = 11,
  // The device's context has failed, as after an illegal address. Try fer_reset.
  FER_ERROR_CONTEXT_LOST = 12,
  // Other tenants hold memory of the device, so that it was not reset; or a kernel is resident,
  // for which the reboot would wait.
  FER_ERROR_OCCUPIED = 13,
  // The job was cancelled.
  FER_ERROR_CANCELLED = 14,
  // The time limit has passed; the operation goes on.
  FER_ERROR_TIMEOUT = 15,
  // The caller's host work reported failure.
  FER_ERROR_HOST_WORK = 16,
  // This process was forked from the one that opened the runtime.
  FER_ERROR_FORKED = 17,
  // No memory is governed in this process, so there are no figures.
  FER_ERROR_NOT_GOVERNED = 18,
  // Tensors that cannot be planned, or a text that is not a plan.
  FER_ERROR_PLAN = 19,
  // A defect of feRcuda.
  FER_ERROR_INTERNAL = 20,
  // An invalid task: an unknown number, a span outside its buffer, or its steps are exhausted.
  // Other tasks are not affected.
  FER_ERROR_TASK = 21,
  // All slots of the task's priority are in use.
  FER_ERROR_FULL = 22,
  // A task runs for ever, and its dispatcher with it, until the process ends.
  FER_ERROR_DISPATCHER_LOST = 23,
  // The session's allocator returned no memory, or unusable memory.
  FER_ERROR_ALLOCATOR = 24,
  // Another object of this process accepts the device's requests already.
  FER_ERROR_SERVED = 25,
  // A graph was not kept: its key was invalidated while it was captured.
  FER_ERROR_GRAPH = 26,
  // An invalid expression, or buffers that do not match it. The message has line and column.
  FER_ERROR_EXPRESSION = 27,
  // Not allowed here: in a job, in host work, or in a deleter of lent memory, which the call
  // would wait for. Call it from another thread.
  FER_ERROR_WITHIN = 28,
  // The runtime is being rebooted. Retry afterwards.
  FER_ERROR_REBOOTING = 29,
  // An op that does not exist, an invalid parameter, or operands that do not fit. Nothing was
  // written.
  FER_ERROR_OP = 30,
  // An index of an operand is outside of its axis; the message has the index and its place. The
  // result has 0 there, or what it had before.
  FER_ERROR_INDEX = 31,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fer_status fer_status;
#else
typedef int32_t fer_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Choice of a device.
enum fer_device
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // The choice of the variable FERCUDA_DEVICE (soft, gpu or auto).
  FER_DEVICE_FROM_ENVIRONMENT = 0,
  // A GPU if there is one, else the software device.
  FER_DEVICE_AUTO = 1,
  // A GPU, or an error.
  FER_DEVICE_GPU = 2,
  // The software device, which executes kernels on the CPU.
  FER_DEVICE_SOFTWARE = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fer_device fer_device;
#else
typedef uint32_t fer_device;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Type of an element.
enum fer_dtype
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // IEEE 754 binary64.
  FER_DTYPE_F64 = 1,
  // IEEE 754 binary32.
  FER_DTYPE_F32 = 2,
  // IEEE 754 binary16.
  FER_DTYPE_F16 = 3,
  // The upper half of a binary32.
  FER_DTYPE_BF16 = 4,
  // 8 bits: 4 of exponent, 3 of fraction.
  FER_DTYPE_F8E4M3 = 5,
  // 8 bits: 5 of exponent, 2 of fraction.
  FER_DTYPE_F8E5M2 = 6,
  // Signed, 8 bits.
  FER_DTYPE_I8 = 7,
  // Signed, 16 bits.
  FER_DTYPE_I16 = 8,
  // Signed, 32 bits.
  FER_DTYPE_I32 = 9,
  // Signed, 64 bits.
  FER_DTYPE_I64 = 10,
  // Unsigned, 8 bits.
  FER_DTYPE_U8 = 11,
  // Unsigned, 16 bits.
  FER_DTYPE_U16 = 12,
  // Unsigned, 32 bits.
  FER_DTYPE_U32 = 13,
  // Unsigned, 64 bits.
  FER_DTYPE_U64 = 14,
  // A byte that is 0 or 1.
  FER_DTYPE_BOOL = 15,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fer_dtype fer_dtype;
#else
typedef uint32_t fer_dtype;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Kind of a buffer's memory.
enum fer_regime
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // A block of the process's pool.
  FER_REGIME_POOL = 1,
  // Physical memory that the driver allocated and mapped for this buffer.
  FER_REGIME_DRIVER = 2,
  // One address for the host and all devices.
  FER_REGIME_MANAGED = 3,
  // Page-locked host memory.
  FER_REGIME_PINNED = 4,
  // Imported memory of another owner (fer_import_device_ptr). Cannot be allocated.
  FER_REGIME_FOREIGN = 5,
  // Memory from the session's allocator (fer_session_open_with_allocator).
  FER_REGIME_CALLBACKS = 6,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fer_regime fer_regime;
#else
typedef uint32_t fer_regime;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// State of a job.
enum fer_job_state
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Waiting on the host; can be cancelled.
  FER_JOB_WAITING = 1,
  // Submitted to the device.
  FER_JOB_RUNNING = 2,
  // Complete, successfully.
  FER_JOB_DONE = 3,
  // Failed; fer_job_wait returns the error.
  FER_JOB_FAILED = 4,
  // Cancelled.
  FER_JOB_CANCELLED = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fer_job_state fer_job_state;
#else
typedef uint32_t fer_job_state;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Kind of an argument.
enum fer_argument_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // The address of a buffer's first element: value.buffer.
  FER_ARGUMENT_BUFFER = 1,
  // A number of 1, 2, 4 or 8 bytes: the member of value that has its type.
  FER_ARGUMENT_NUMBER = 2,
  // A structure: value.structure points to its bytes, which are copied.
  FER_ARGUMENT_STRUCTURE = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fer_argument_kind fer_argument_kind;
#else
typedef uint32_t fer_argument_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Operation of a task. Its spans are whole elements of 4 bytes; words that are not named are not
// read. A task that fails writes nothing, unless it was cancelled or has exhausted its steps: then
// it has written a part.
enum fer_task_number
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // to[i] = pattern: spans[0] is `to`, the low half of words[0] the pattern, a uint32_t. Returns
  // the number of elements written.
  FER_TASK_FILL = 1,
  // to[i] = from[i]: spans[0] is `to`, spans[1] `from`, of equal length. They are disjoint or
  // identical. Returns the number of elements written.
  FER_TASK_COPY = 2,
  // y[i] = a * x[i] + y[i], rounded once: spans[0] is `y`, spans[1] `x`, floats, of equal
  // length; the low half of words[0] has the bits of `a`. They are disjoint or identical.
  // Returns the number of elements written.
  FER_TASK_AXPY_F32 = 3,
  // sum[0] = values[0] + values[1] + ..., modulo 2^32: spans[0] is `sum`, one uint32_t, spans[1]
  // `values`, which may contain `sum`. Returns the sum.
  FER_TASK_SUM_U32 = 4,
  // The same for floats. The threads of the block add the values in a stride of the block's
  // size, then reduce their partial sums in pairs: the sum depends on the values and the block's
  // size alone. Returns the sum's bits.
  FER_TASK_SUM_F32 = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fer_task_number fer_task_number;
#else
typedef uint32_t fer_task_number;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// A device with its pool.
typedef uint64_t fer_runtime;

// The driver's figures of a device's memory.
typedef struct fer_memory_details {
  // Free bytes.
  uint64_t free_bytes;
  // Total bytes.
  uint64_t total_bytes;
} fer_memory_details;

// A tenant of this process that holds memory of a device.
typedef struct fer_holder {
  // The tenant's name, truncated to fit, zero-terminated: a session's, or a library's.
  char name[FER_NAME_BYTES];
  // Live blocks of the pool, in bytes.
  uint64_t pooled_bytes;
  // Memory that the driver allocated itself, also of the host, in bytes.
  uint64_t governed_bytes;
} fer_holder;

// Result of a reboot.
typedef struct fer_reboot_details {
  // Epoch of the device's memory: the number of reboots.
  uint64_t epoch;
  // Sessions that were ended.
  uint64_t sessions;
  // Bytes that were returned to the driver.
  uint64_t returned_bytes;
  // 1 if the context had failed and was reset, else 0.
  uint32_t was_reset;
  // Number of other tenants that still hold memory of the device.
  uint32_t others;
} fer_reboot_details;

// Owner of buffers, with an order of work.
typedef uint64_t fer_session;

// Properties of a session.
typedef struct fer_session_details {
  // Device memory that it holds, in bytes; blocks are multiples of 512.
  uint64_t held_bytes;
  // Peak of the held bytes.
  uint64_t peak_bytes;
  // Limit of the held bytes; 0 for no limit.
  uint64_t limit_bytes;
  // Number of buffers.
  uint64_t buffers;
} fer_session_details;

// Returns whether the runtime may be rebooted now: not 0 for yes. Called with its `context` in a
// thread of the library, one call at a time. It may call functions of this library, and does not
// unwind.
typedef int (*fer_consent)(void *context);

// Registration of a runtime that accepts control requests.
typedef uint64_t fer_requests;

// Layout of elements, relative to the first one. fer_layout_contiguous fills one in.
typedef struct fer_layout {
  // Type of an element: a fer_dtype.
  uint32_t dtype;
  // Number of dimensions, 0 (one element) to FER_MAX_RANK.
  uint32_t rank;
  // Number of elements along each dimension.
  uint64_t shape[FER_MAX_RANK];
  // Stride of each dimension, in elements; may be negative or 0.
  int64_t strides[FER_MAX_RANK];
} fer_layout;

// Memory with a layout, of one session.
typedef uint64_t fer_buffer;

// Properties of a buffer.
typedef struct fer_buffer_details {
  // Layout of its elements.
  struct fer_layout layout;
  // Size of its elements for uploads and downloads, in bytes.
  uint64_t bytes;
  // Kind of its memory: a fer_regime.
  uint32_t regime;
  // 1 if its address was exported, else 0.
  uint32_t is_exported;
} fer_buffer_details;

// Releases something: called once with its `context`, from any thread. It calls no function of
// this library that waits, and does not unwind.
typedef void (*fer_deleter)(void *context);

// Allocates device memory: returns the address of `bytes`, at least 1, a multiple of `alignment`;
// or 0 if there is none. From then on the session has exclusive use of it, by work that is queued
// in `stream`, a CUstream, the session's. It does not unwind.
typedef uint64_t (*fer_allocator_allocate)(void *user,
                                           uint64_t bytes,
                                           uint64_t alignment,
                                           void *stream);

// Frees memory, once. All work with it precedes what is queued in `stream` from now on, but need
// not be complete. `stream` is NULL if the context has failed or was reset: nothing runs there,
// and memory of the driver is freed without a stream (cuMemFree), now or once the driver accepts
// it again. It does not unwind.
typedef void (*fer_allocator_free)(void *user, uint64_t address, uint64_t bytes, void *stream);

// Allocator of a session's buffers of FER_REGIME_CALLBACKS. Its functions are called from any
// thread, also concurrently, and may call functions of this library; but `allocate` is not called
// recursively (FER_ERROR_ALLOCATOR).
typedef struct fer_allocator {
  // Called by fer_alloc_buffer.
  fer_allocator_allocate allocate;
  // Called when the last buffer in the memory is freed, or torn down with its session.
  fer_allocator_free free;
  // Called once with `user`, when the session is closed, all memory was freed, and neither of
  // the others will be called any more. May be NULL.
  fer_deleter ended;
  // Passed to each call.
  void *user;
} fer_allocator;

// Asynchronous work.
typedef uint64_t fer_job;

// Host work: called once with its `context` and the session's stream, a CUstream, in which it may
// queue work with the driver's functions; it calls no function of this library and does not
// unwind. A result other than 0 is a failure, reported by the job.
typedef int (*fer_host_work)(void *context, void *stream);

// Loaded code.
typedef uint64_t fer_module;

// A kernel of a module.
typedef uint64_t fer_kernel;

// Shape of a launch. 0 in `grid` or `block` is refused.
typedef struct fer_launch {
  // Blocks along x, y and z.
  uint32_t grid[3];
  // Threads of a block along x, y and z.
  uint32_t block[3];
  // Dynamic shared memory of each block, in bytes.
  uint32_t shared_bytes;
  // 1 if blocks wait for each other (cooperative), else 0.
  uint32_t is_cooperative;
} fer_launch;

// An argument's value.
typedef union fer_argument_value {
  // A buffer of the session.
  fer_buffer buffer;
  // A float.
  float f32;
  // A double.
  double f64;
  // A signed number of 4 bytes.
  int32_t i32;
  // A signed number of 8 bytes.
  int64_t i64;
  // An unsigned number of 4 bytes.
  uint32_t u32;
  // An unsigned number of 8 bytes.
  uint64_t u64;
  // Any number's bytes.
  uint8_t bytes[8];
  // A structure.
  const void *structure;
} fer_argument_value;

// Argument of a kernel. It is compared with the kernel's declaration, if the driver reports that
// (CUDA 12.4 and later).
typedef struct fer_argument {
  // A fer_argument_kind.
  uint32_t kind;
  // Size of a number (1, 2, 4, 8) or a structure (1 to 32764); 8 or 0 for a buffer.
  uint32_t bytes;
  // The value.
  union fer_argument_value value;
} fer_argument;

// Graph cache of a session.
typedef uint64_t fer_graphs;

// Key of a graph.
typedef struct fer_graph_key {
  // Generation of the model that owns the graph's memory: it changes each time that memory
  // moves.
  uint64_t generation;
  // Other properties that distinguish graphs, defined by the program.
  uint64_t words[FER_KEY_WORDS];
} fer_graph_key;

// A graph while it is captured.
typedef uint64_t fer_capture;

// Result of a capture.
typedef struct fer_graph_record {
  // Number of graph nodes.
  uint64_t nodes;
  // Size that the graph counts as in the budget.
  uint64_t bytes;
  // 1 if an existing graph was updated, 0 if a new one was instantiated.
  uint64_t is_updated;
  // Host time of the capture.
  uint64_t capture_ns;
  // Host time of the update or instantiation.
  uint64_t instantiate_ns;
  // Host time of the upload to the device.
  uint64_t upload_ns;
} fer_graph_record;

// Durations of a replay.
typedef struct fer_graph_times {
  // Host time to upload the graph to the device; once, when it was captured.
  uint64_t upload_ns;
  // Host time of the launch.
  uint64_t launch_ns;
  // Device time, from the start of the launch in its stream to its end.
  uint64_t device_ns;
  // Host time from before the launch until completion was observed.
  uint64_t completion_ns;
} fer_graph_times;

// Counters of a graph cache.
typedef struct fer_graphs_details {
  // Cached graphs.
  uint64_t entries;
  // Sum of their sizes in the budget.
  uint64_t bytes;
  // Dropped graphs with last replays that are running, or not yet polled.
  uint64_t retired;
  // Replays.
  uint64_t replays;
  // Replays that found no graph.
  uint64_t absent;
  // Graphs instantiated.
  uint64_t instantiated;
  // Graphs updated in place.
  uint64_t updated;
  // Graphs evicted.
  uint64_t evicted;
} fer_graphs_details;

// Argument block: device memory for values that change from replay to replay.
typedef uint64_t fer_arguments;

// A buffer of an expression, and its name in the text.
typedef struct fer_named_buffer {
  // The name, zero-terminated.
  const char *name;
  // The buffer; for an output 0 for a new one; its handle replaces the 0.
  fer_buffer buffer;
} fer_named_buffer;

// Descriptor of an op: its name and parameters.
typedef uint64_t fer_op;

// An op for operands of fixed layouts, with its kernel chosen and compiled.
typedef uint64_t fer_op_plan;

// Properties of a plan of an op.
typedef struct fer_op_plan_details {
  // Name of the chosen kernel, zero-terminated.
  char kernel[FER_NAME_BYTES];
  // Size of the workspace that a run needs, in bytes; 0 if it needs none.
  uint64_t workspace_bytes;
  // Number of operands.
  uint64_t operands;
  // Number of outputs.
  uint64_t outputs;
  // Number of kernels that a run launches.
  uint64_t launches;
  // Number of runs for which NVIDIA's library refused the kernel that it had offered, and
  // another one computed the result.
  uint64_t refused_runs;
} fer_op_plan_details;

// A tensor, and the steps of a program at which it is live.
typedef struct fer_tensor_spec {
  // Its name, unique in the plan.
  const char *name;
  // Type of an element: a fer_dtype.
  uint32_t dtype;
  // Number of dimensions.
  uint32_t rank;
  // Number of elements along each dimension; the tensor is contiguous.
  uint64_t shape[FER_MAX_RANK];
  // The first step that needs it.
  uint32_t from_step;
  // The first later step that does not need it.
  uint32_t until_step;
} fer_tensor_spec;

// Tensors planned into one buffer.
typedef uint64_t fer_arena;

// Properties of an arena.
typedef struct fer_arena_details {
  // The whole arena, as a buffer of bytes.
  fer_buffer buffer;
  // Size of the arena.
  uint64_t bytes;
  // Number of tensors.
  uint64_t tensors;
} fer_arena_details;

// Options of a dispatcher. fer_dispatcher_defaults fills them in.
typedef struct fer_dispatcher_options {
  // Slots of each priority's ring, a power of two.
  uint32_t capacity;
  // Number of priorities, 1 to 8.
  uint32_t priorities;
  // Blocks that take tasks; each occupies the device.
  uint32_t blocks;
  // Threads of a block, a multiple of 32, at most 1024.
  uint32_t threads;
  // How long an idle block sleeps between polls.
  uint32_t idle_ns;
  // Maximum number of steps of each thread of a task, unless the task sets it; a step per
  // element.
  uint32_t steps;
  // A task that runs longer is cancelled by the thread that waits for it; if it does not end
  // within as long again, the dispatcher is lost.
  uint64_t watchdog_ns;
} fer_dispatcher_options;

// A resident kernel that takes tasks.
typedef uint64_t fer_dispatcher;

// A range of a buffer.
typedef struct fer_task_span {
  // A buffer that the dispatcher was booted with.
  fer_buffer buffer;
  // Offset from the buffer's first element.
  uint64_t offset_bytes;
  // Length.
  uint64_t bytes;
} fer_task_span;

// A task for a dispatcher.
typedef struct fer_task {
  // A fer_task_number.
  uint32_t task;
  // 0 is the highest. A task of a lower one is begun only when there are none of a higher.
  uint32_t priority;
  // Maximum number of steps of each thread; 0 for the dispatcher's.
  uint32_t steps;
  // Number of spans in use.
  uint32_t span_count;
  // Numbers; their meaning depends on the task.
  uint64_t words[FER_TASK_WORDS];
  // Memory that it accesses.
  struct fer_task_span spans[FER_TASK_SPANS];
} fer_task;

// A submitted task.
typedef uint64_t fer_ticket;

// Result of a task.
typedef struct fer_task_result {
  // Return value; see fer_task_number.
  uint64_t value;
  // Steps of its first thread.
  uint64_t steps;
} fer_task_result;

// Counters of a dispatcher.
typedef struct fer_dispatcher_details {
  // Tasks submitted.
  uint64_t submitted;
  // Tasks waiting or running.
  uint64_t depth;
  // Tasks completed, with or without success.
  uint64_t done;
  // Tasks dropped: the dispatcher ended before they did.
  uint64_t lost;
  // Number of buffers that it was booted with.
  uint64_t buffers;
  // Slots of each priority's ring.
  uint32_t capacity;
  // Number of priorities.
  uint32_t priorities;
  // 1 if it refuses new tasks, else 0.
  uint32_t is_stopped;
  // 1 if a task runs for ever, else 0.
  uint32_t is_lost;
} fer_dispatcher_details;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the message of the calling thread's last error: the operation, its arguments, numbers,
// and what to try. Empty if there was none. Valid until the thread's next call of a function of
// this library.
const char *fer_last_error_message(void);

// Returns a code's name, such as "FER_ERROR_LIMIT"; "unknown" for an invalid number. Valid for
// ever.
const char *fer_status_name(int32_t status);

// Opens a device's runtime: `device` is a fer_device, `ordinal` the device's number there. The
// first runtime of a process interposes the pool before the driver, unless the hook has done so.
// Closed by fer_runtime_close.
fer_status fer_runtime_open(uint32_t device, uint32_t ordinal, fer_runtime *runtime);

// Closes a runtime and all its sessions, as fer_session_close does; before that it stops accepting
// requests, as by fer_requests_end. Returns the first error of the sessions' work; all are closed
// nevertheless.
fer_status fer_runtime_close(fer_runtime runtime);

// Returns the driver's figures of the device's memory.
fer_status fer_memory_info(fer_runtime runtime, struct fer_memory_details *details);

// Returns the bytes in deferred frees: this process has freed them, but the driver would wait for
// a dispatcher's running kernel: memory of FER_REGIME_DRIVER and FER_REGIME_MANAGED, and memory
// that a capture keeps from being freed. They are freed when a thread allocates or waits while
// there is neither; until then their sessions are charged for them.
fer_status fer_parked_bytes(fer_runtime runtime, uint64_t *bytes);

// Lists the holders of the device's memory in this process, the largest first. `holders` has room
// for `room` of them, and may be NULL for none; `count` is set to their number, which may be
// larger.
fer_status fer_holders(fer_runtime runtime,
                       struct fer_holder *holders,
                       uint64_t room,
                       uint64_t *count);

// Ends all sessions that the runtime has opened on its device, the last one first, returns all
// memory to the driver, and begins a new epoch. Earlier sessions and buffers return
// FER_ERROR_ENDED; their handles still have to be closed. `details` may be NULL.
// FER_ERROR_CONTEXT_LOST if the context has failed: then try fer_reset. FER_ERROR_DISPATCHER_LOST,
// or FER_ERROR_OCCUPIED, if a resident kernel does not exit.
fer_status fer_reboot(fer_runtime runtime, struct fer_reboot_details *details);

// As fer_reboot; and if the context has failed, as after an illegal address, it is reset, unless
// other tenants hold memory of the device (FER_ERROR_OCCUPIED). Objects of other libraries of this
// process in the device's primary context, such as streams and modules, are destroyed with it and
// must not be used any more. No other thread may be in a call for a session of the device, or
// enter one, before this has returned.
fer_status fer_reset(fer_runtime runtime, struct fer_reboot_details *details);

// Opens a session, which is a tenant of the device's pool under its name. It may hold up to
// `limit_bytes` of the device; 0 for no limit. Closed by fer_session_close.
fer_status fer_session_open(fer_runtime runtime,
                            const char *name,
                            uint64_t limit_bytes,
                            fer_session *session);

// Closes a session: waits for its work, and releases all its resources. Its buffers, jobs,
// modules, kernels and arenas are closed with it. Returns the first error of its work; it is
// closed nevertheless. Of two threads that close it one does, and the other gets
// FER_ERROR_STALE_HANDLE, perhaps before the first is done. Where the teardown may wait for the
// caller, in a host function or in an allocator's `free` or a deleter, this does not wait: the
// session ends behind its work all the same.
fer_status fer_session_close(fer_session session);

// Returns what a session holds, and its limit.
fer_status fer_session_info(fer_session session, struct fer_session_details *details);

// Waits for all work of the session. Returns its first error.
fer_status fer_stream_sync(fer_session session);

// Returns the session's stream, a CUstream, for work of other libraries. It is valid until the
// session is closed. Work queued there directly is not ordered behind jobs that still wait on the
// host.
fer_status fer_session_stream(fer_session session, void **stream);

// Makes the session wait for the work that a stream, a CUstream, has so far: for arrays that other
// code has written there. 1 and 2 are the legacy and the per-thread default stream.
fer_status fer_session_wait_for_stream(fer_session session, void *stream);

// Makes a stream wait for the work that the session has so far. Waits only while jobs wait on the
// host, which are in no stream yet.
fer_status fer_stream_wait_for_session(fer_session session, void *stream);

// Accepts reboot requests of this user's other processes (`fercuda reboot --pid`): for each,
// `consent` is called, and fer_reboot is done if it returns yes. Sessions of the device return
// FER_ERROR_ENDED from then on, so their users must expect that. The result, also a refusal, is
// reported to the requester; a context that has failed is never reset by this.
//
// Ended by fer_requests_end, or with its runtime; `context` must live until that has returned,
// and, if that was called in `consent`, until `consent` has returned too. FER_ERROR_SERVED if the
// device's requests are accepted in this process already, FER_ERROR_NOT_GOVERNED if there is no
// ledger through which they arrive.
fer_status fer_runtime_serve_requests(fer_runtime runtime,
                                      fer_consent consent,
                                      void *context,
                                      fer_requests *requests);

// Stops accepting requests. Waits for a consent in progress, unless it is called in it; and for a
// reboot in progress, unless that waits for the calling thread, as in a job or an allocator's
// `free`. So a consent must not wait for a thread that calls this.
fer_status fer_requests_end(fer_requests requests);

// Fills in a contiguous layout in row-major order. `shape` has `rank` numbers, and may be NULL for
// none. `dtype` is a fer_dtype.
fer_status fer_layout_contiguous(uint32_t dtype,
                                 uint32_t rank,
                                 const uint64_t *shape,
                                 struct fer_layout *layout);

// Returns the size of an element of a fer_dtype, in bytes.
fer_status fer_dtype_bytes(uint32_t dtype, uint64_t *bytes);

// Returns a fer_dtype's name, such as "bf16"; "unknown" for an invalid number. Valid for ever.
const char *fer_dtype_name(uint32_t dtype);

// Allocates a buffer for the elements of a layout, in memory of a fer_regime, initially
// uninitialised. Freed by fer_free_buffer, or with its session.
fer_status fer_alloc_buffer(fer_session session,
                            const struct fer_layout *layout,
                            uint32_t regime,
                            fer_buffer *buffer);

// Invalidates a buffer's handle at once, and frees its memory behind the last work that was queued
// with it, unless a view of it remains. Waits for that work, except for memory of the pool and of
// an allocator; memory of FER_REGIME_DRIVER and FER_REGIME_MANAGED is freed when no dispatcher
// runs on the device. The session is charged until then, and for memory of graphs until they
// release it.
fer_status fer_free_buffer(fer_session session, fer_buffer buffer);

// Creates another buffer in the same memory, with its first element `offset_bytes` from that of
// `buffer`. The memory lives until the last buffer in it is freed.
fer_status fer_view_buffer(fer_session session,
                           fer_buffer buffer,
                           const struct fer_layout *layout,
                           int64_t offset_bytes,
                           fer_buffer *view);

// Returns properties of a buffer.
fer_status fer_buffer_info(fer_session session,
                           fer_buffer buffer,
                           struct fer_buffer_details *details);

// Copies a buffer's elements from the host, in their order: `len_bytes` is the `bytes` of
// fer_buffer_info. Waits for the copy.
fer_status fer_upload_bytes(fer_session session,
                            fer_buffer buffer,
                            const void *bytes,
                            uint64_t len_bytes);

// Copies a buffer's elements to the host, in their order: `len_bytes` is the `bytes` of
// fer_buffer_info. Waits for the session's work.
fer_status fer_download_bytes(fer_session session,
                              fer_buffer buffer,
                              void *into,
                              uint64_t len_bytes);

// Queues a copy of `source`, a buffer of the session `from`, which may be the same one or one of
// another device. Both have the same type and shape. Does not wait for either session.
fer_status fer_copy_buffer(fer_session session,
                           fer_buffer buffer,
                           fer_session from,
                           fer_buffer source);

// Queues a fill of each byte of a buffer's elements with `byte`.
fer_status fer_fill_buffer(fer_session session, fer_buffer buffer, uint8_t byte);

// Exports a buffer's address, that of its first element, for other libraries. It is valid until
// the buffer is freed; ordering their work with the session's stream is up to the caller.
fer_status fer_export_buffer_device_ptr(fer_session session, fer_buffer buffer, uint64_t *address);

// Imports memory of another owner as a buffer of the session; `address` is that of its first
// element. `deleter` is called with `context` once, when the last buffer in the memory is freed
// and all work that was queued with it is done; NULL for none. If this fails it is not called, and
// the memory still belongs to the caller.
//
// The device must be able to use everything that the layout reaches until then.
fer_status fer_import_device_ptr(fer_session session,
                                 uint64_t address,
                                 const struct fer_layout *layout,
                                 fer_deleter deleter,
                                 void *context,
                                 fer_buffer *buffer);

// As fer_session_open, with an allocator for buffers of FER_REGIME_CALLBACKS, which is copied. If
// this fails none of its functions is called.
//
// Its memory counts against `limit_bytes` as long as a buffer has it. An address that is 0, not
// aligned, or in use already is FER_ERROR_ALLOCATOR; a misaligned one is freed before that, one in
// use is not. Driver memory that it allocates during a call is charged to the session in the
// ledger.
fer_status fer_session_open_with_allocator(fer_runtime runtime,
                                           const char *name,
                                           uint64_t limit_bytes,
                                           const struct fer_allocator *allocator,
                                           fer_session *session);

// As fer_upload_bytes, as a job. The bytes are copied before this returns. The job is freed by
// fer_job_free, or with its session.
fer_status fer_upload_async(fer_session session,
                            fer_buffer buffer,
                            const void *bytes,
                            uint64_t len_bytes,
                            fer_job *job);

// As fer_download_bytes, as a job. The bytes are written to `into` during a successful
// fer_job_wait for the job, and at no other time; so `into` must be valid until that or
// fer_job_free has returned.
fer_status fer_download_async(fer_session session,
                              fer_buffer buffer,
                              void *into,
                              uint64_t len_bytes,
                              fer_job *job);

// Submits a job that is done when all earlier work of the session is: to wait for launches and
// copies with a time limit.
fer_status fer_submit_fence(fer_session session, fer_job *job);

// Submits host work to the session: `work` is called in a thread of the library, in the order of
// the session's work, and the job is done when everything that it has queued is. `context` must
// live until then.
fer_status fer_submit_host_work(fer_session session,
                                fer_host_work work,
                                void *context,
                                fer_job *job);

// Returns a job's state: `state` is set to a fer_job_state. Never waits.
fer_status fer_job_status(fer_job job, uint32_t *state);

// Waits for a job, up to `timeout_ns` nanoseconds (FER_WAIT_FOREVER: until it is over). Returns
// its result, the same for each call; or FER_ERROR_TIMEOUT, and the job goes on.
fer_status fer_job_wait(fer_job job, uint64_t timeout_ns);

// Cancels a job unless it was submitted to the device. `was_cancelled` is set to 1 if it is
// cancelled, else 0; it may be NULL.
fer_status fer_job_cancel(fer_job job, uint32_t *was_cancelled);

// Frees a job's handle. The work goes on; the data of a download are dropped.
fer_status fer_job_free(fer_job job);

// Loads PTX, a zero-terminated text, onto the session's device. Invalid PTX is FER_ERROR_MODULE,
// and the message has the compiler's log. Unloaded by fer_module_unload, or with its session.
fer_status fer_module_load_ptx(fer_session session, const char *ptx, fer_module *module);

// Loads machine code (a cubin), a fatbin, or PTX without a zero byte. Only the lengths in it are
// validated: NVIDIA's driver trusts machine code, so it must come from a trusted source.
fer_status fer_module_load_image(fer_session session,
                                 const void *image,
                                 uint64_t len_bytes,
                                 fer_module *module);

// Invalidates a module's handle and those of its kernels at once, and unloads its code behind its
// last launch, for which this waits; while a dispatcher runs on the device it does not wait, and
// the code is unloaded when none does. Graphs that launch it keep it loaded.
fer_status fer_module_unload(fer_module module);

// Looks up a module's kernel by its name, mangled if it has C++ linkage; returns the same handle
// each time. It is closed with its module.
fer_status fer_module_kernel(fer_module module, const char *name, fer_kernel *kernel);

// Launches a kernel behind the session's work, with `count` arguments; `arguments` may be NULL for
// none. They are compared with the kernel's declaration, and buffers must belong to the session;
// if anything does not match nothing is launched. Never waits for the kernel: its failure is
// reported by a later call.
//
// Instead of the session a fer_capture may be passed. Then nothing is launched, and the launch
// becomes a part of the capture; a mismatch with the kernel is reported when that is finished.
fer_status fer_ptxlaunch_submit(fer_session session,
                                fer_kernel kernel,
                                const struct fer_launch *launch,
                                const struct fer_argument *arguments,
                                uint64_t count);

// Opens a graph cache of the session. The graphs count for at most `budget_bytes` together, 8 KiB
// for each node; 0 means 1 GiB. The least recently used are evicted first. Freed by
// fer_graphs_free, or with the session.
fer_status fer_graphs_open(fer_session session, uint64_t budget_bytes, fer_graphs *graphs);

// Frees a graph cache: its graphs, behind their last replay, its captures, and its handle.
fer_status fer_graphs_free(fer_graphs graphs);

// Begins to capture a graph under a key. fer_ptxlaunch_submit and fer_evaluate, given the capture
// instead of the session, add launches to it; nothing is launched. It is ended by
// fer_capture_finish or fer_capture_discard, or with its graphs. Other work goes on meanwhile, and
// is not captured; the calls may come from any thread.
fer_status fer_capture_begin(fer_graphs graphs,
                             const struct fer_graph_key *key,
                             fer_capture *capture);

// Ends a capture, uploads its graph to the device and keeps it under its key, replacing an earlier
// one. The graph retains the buffers and kernels that it uses, even if their handles are freed.
// `record` may be NULL.
//
// If this fails the capture has ended all the same, and an earlier graph is kept: FER_ERROR_GRAPH
// if the key was invalidated since it began, FER_ERROR_LIMIT if the graph exceeds the whole
// budget.
fer_status fer_capture_finish(fer_capture capture, struct fer_graph_record *record);

// Ends a capture without keeping a graph.
fer_status fer_capture_discard(fer_capture capture);

// Replays the graph under a key behind the session's work: `was_there` is set to 1 if there is
// one, else 0, and nothing is queued.
fer_status fer_graph_replay(fer_graphs graphs,
                            const struct fer_graph_key *key,
                            uint32_t *was_there);

// As fer_graph_replay, waits until it is done, and returns its durations.
fer_status fer_graph_replay_timed(fer_graphs graphs,
                                  const struct fer_graph_key *key,
                                  struct fer_graph_times *times,
                                  uint32_t *was_there);

// Drops the graph under a key, behind its last replay, and captures in progress for it. `count` is
// set to the number of graphs dropped, and may be NULL.
fer_status fer_graph_invalidate(fer_graphs graphs,
                                const struct fer_graph_key *key,
                                uint64_t *count);

// The same for all graphs of a generation.
fer_status fer_graphs_invalidate_generation(fer_graphs graphs,
                                            uint64_t generation,
                                            uint64_t *count);

// The same for all graphs.
fer_status fer_graphs_invalidate_all(fer_graphs graphs, uint64_t *count);

// Returns counters of a graph cache. Never waits.
fer_status fer_graphs_info(fer_graphs graphs, struct fer_graphs_details *details);

// Allocates an argument block: `bytes` of device memory for values that change from replay to
// replay, such as a token and its position; a multiple of 4, at most 1 MiB, initially all zeros.
// `buffer` is set to a buffer of it, for kernels and views, which is freed with the block. Up to
// `pushes` of it may be in flight, 1 to 65536. Freed by fer_arguments_free, or with the session.
fer_status fer_arguments_open(fer_session session,
                              uint64_t bytes,
                              uint64_t pushes,
                              fer_arguments *arguments,
                              fer_buffer *buffer);

// Sets a part of a block for the next push: `len_bytes` from `offset_bytes` on, both multiples of
// 4. A concurrent push of another thread may copy a part of them.
fer_status fer_arguments_set(fer_arguments arguments,
                             uint64_t offset_bytes,
                             const void *bytes,
                             uint64_t len_bytes);

// Queues a copy of the block's values, behind the session's work: replays after it see them,
// earlier ones do not. Waits only if more pushes are in flight than the block was made for, or if
// jobs wait on the host.
fer_status fer_arguments_push(fer_arguments arguments);

// Frees a block and its buffer, behind the session's work. Graphs that use it retain its memory.
fer_status fer_arguments_free(fer_arguments arguments);

// Evaluates expressions over buffers, behind the session's work: `t = a + 0.5; y = softmax(t)`.
// The expressions of one call are fused, and compiled on first use; the code is cached, also for
// other processes. Returns before the device is done. crates/jit/README.md has the grammar, and
// every function with its rounding.
//
// `inputs` binds the names in the text to buffers. `outputs` names each output of the text, which
// are the statements that no later one uses: with a buffer of the session it is computed into
// that, with 0 into a new one of the pool; its handle replaces the 0. An output may be an input
// if each element is computed from the element at the same place. Buffers may be views; shapes are
// broadcast, and types are never converted implicitly: `f16(x)` casts.
//
// Instead of the session a fer_capture may be passed. Then nothing is computed, and the evaluation
// becomes a part of the capture; an invalid overlap of an output is reported when that is
// finished.
//
// FER_ERROR_EXPRESSION, with line and column, if the text is invalid, or its outputs differ from
// those named.
fer_status fer_evaluate(fer_session session,
                        const char *expression,
                        const struct fer_named_buffer *inputs,
                        uint64_t input_count,
                        struct fer_named_buffer *outputs,
                        uint64_t output_count);

// Creates a descriptor of an op by its name, with its parameters' defaults. docs/ops.md lists the
// ops, with their operands, parameters, types and results. An unknown name is FER_ERROR_OP.
fer_status fer_op_open(const char *name, fer_op *op);

// Sets a parameter that is a number. FER_ERROR_OP if the op has no such parameter, or it is none.
// Plans that were made before are not changed.
fer_status fer_op_set_number(fer_op op, const char *name, double value);

// Sets a parameter that is a list of whole numbers, an axis, axes, the order of dimensions, a
// shape, or a truth value (0 or 1). Negative axes are counted from the last one on.
fer_status fer_op_set_integers(fer_op op, const char *name, const int64_t *values, uint64_t count);

// Sets a parameter that is a choice, or a type by its name, as fer_dtype_name has it.
fer_status fer_op_set_text(fer_op op, const char *name, const char *value);

// Has plans of the op record the first index outside of its axis, for fer_op_plan_check.
fer_status fer_op_check_indices(fer_op op);

// Frees a descriptor. Plans made of it remain.
fer_status fer_op_free(fer_op op);

// Chooses a kernel of an op for operands of these layouts, and compiles it, or finds it in a
// cache. Without layouts of outputs they are contiguous. `kernel` demands one by its name,
// "measured" takes the one that `fercuda ops tune` kept, NULL leaves the choice to the plan. The
// plan belongs to the session: it is freed by fer_op_plan_free, or with it.
//
// FER_ERROR_OP if types, shapes or parameters do not fit, or no kernel can compute it; the message
// has the reasons.
fer_status fer_op_plan_open(fer_session session,
                            fer_op op,
                            const struct fer_layout *operands,
                            uint64_t operand_count,
                            const struct fer_layout *outputs,
                            uint64_t output_count,
                            const char *kernel,
                            fer_op_plan *plan);

// Returns the kernel of a plan, and what a run needs.
fer_status fer_op_plan_info(fer_op_plan plan, struct fer_op_plan_details *details);

// Returns the layout of an output, by its number from 0.
fer_status fer_op_plan_output(fer_op_plan plan, uint64_t number, struct fer_layout *layout);

// Writes which kernel was chosen and why, and why each of the others was not, as a zero-terminated
// text of `room` bytes at most. `needed` is set to its size with the zero byte; `text` may be NULL
// for a `room` of 0.
fer_status fer_op_plan_sku(fer_op_plan plan, char *text, uint64_t room, uint64_t *needed);

// Frees a plan. Runs that were queued are not affected.
fer_status fer_op_plan_free(fer_op_plan plan);

// Queues a plan in its session's order, over buffers of the session with the plan's layouts. An
// output that is 0 becomes a new buffer of the pool; its handle replaces the 0. An output may be
// an operand if each element is computed from the element at the same place. Compiles nothing, and
// does not wait for the device. For arrays that other code writes or reads, order the session with
// its stream: fer_session_wait_for_stream before, fer_stream_wait_for_session after.
//
// `workspace` is a buffer of the plan's workspace_bytes at least, aligned to 16, that later work
// of the session may use again; with 0 the memory is allocated for the run, and freed behind it. A
// plan of checked indices needs one.
//
// FER_ERROR_LAYOUT if a buffer has another layout, or an output overlaps other memory.
fer_status fer_op_run(fer_op_plan plan,
                      const fer_buffer *operands,
                      uint64_t operand_count,
                      fer_buffer *outputs,
                      uint64_t output_count,
                      fer_buffer workspace);

// Waits for the session's work, and reports the first index outside of its axis that the last run
// with this workspace found, as FER_ERROR_INDEX. FER_OK if there was none, or the plan does not
// check indices (fer_op_check_indices).
fer_status fer_op_plan_check(fer_op_plan plan, fer_buffer workspace);

// Plans `count` tensors into one arena, allocates it as one block of the pool, and creates a
// buffer for each tensor in it. Tensors that are live at one step do not overlap; others may, so
// the program's steps must match the tensors'. Freed by fer_arena_free, or with its session.
fer_status fercuda_ignite(fer_session session,
                          const struct fer_tensor_spec *tensors,
                          uint64_t count,
                          fer_arena *arena);

// The same with a plan from fer_arena_plan. All of it is validated.
fer_status fercuda_ignite_plan(fer_session session, const char *plan, fer_arena *arena);

// Returns properties of an arena.
fer_status fer_arena_info(fer_arena arena, struct fer_arena_details *details);

// Looks up a tensor of an arena by its name: its buffer, and its offset in the arena, in bytes;
// `offset_bytes` may be NULL.
fer_status fer_arena_tensor(fer_arena arena,
                            const char *name,
                            fer_buffer *buffer,
                            uint64_t *offset_bytes);

// Writes an arena's plan as text, for a file and fercuda_ignite_plan. `text` has room for `room`
// bytes, and may be NULL for none; the text is truncated to fit, and zero-terminated if there is
// any room. `needed` is set to its length including the zero byte.
fer_status fer_arena_plan(fer_arena arena, char *text, uint64_t room, uint64_t *needed);

// Invalidates an arena and the buffers of its tensors at once, and frees its memory behind the
// last work that was queued with them. Never waits.
fer_status fer_arena_free(fer_arena arena);

// Fills in the defaults, which fer_persistent_dispatcher_boot uses for NULL.
fer_status fer_dispatcher_defaults(struct fer_dispatcher_options *options);

// Starts a resident kernel on the session's device, which takes tasks (fer_task_number) from ring
// buffers in host memory, so that a task needs no launch. Tasks may access the `count` buffers,
// which stay allocated as long as the dispatcher may use them, even if their handles are freed;
// they are contiguous and aligned to 16 bytes. `options` may be NULL, for those of
// fer_dispatcher_defaults.
//
// The kernel starts behind the session's work. From then on the program must order tasks and other
// work with those buffers: it waits for the ones before it submits the others. While the kernel
// runs, every wait for the whole device waits for it: loading modules, a kernel's first launch,
// the first boot with other `capacity`, `priorities`, `threads` or `idle_ns` since a reboot. Stop
// it before. Memory that is freed meanwhile and is not of the pool, and modules that are unloaded,
// are released when no dispatcher runs any more (deferred free).
//
// It is ended by fer_dispatcher_stop, fer_dispatcher_free, or with its session, closed or
// rebooted, which lets it run the submitted tasks.
fer_status fer_persistent_dispatcher_boot(fer_session session,
                                          const struct fer_dispatcher_options *options,
                                          const fer_buffer *buffers,
                                          uint64_t count,
                                          fer_dispatcher *dispatcher);

// Submits a task to a dispatcher. Never waits: if the ring of its priority is full it returns
// FER_ERROR_FULL at once. An invalid task is reported by its ticket, and does not affect other
// tasks; but a span of a buffer that was not registered, too many spans, and an invalid priority
// are refused here. `ticket` may be NULL if its result is not needed; else it is freed by
// fer_ticket_free, or with its dispatcher.
fer_status fer_dispatcher_submit(fer_dispatcher dispatcher,
                                 const struct fer_task *task,
                                 fer_ticket *ticket);

// Returns a task's state: `state` is set to a fer_job_state. Never waits.
fer_status fer_ticket_status(fer_ticket ticket, uint32_t *state);

// Waits for a task, up to `timeout_ns` nanoseconds (FER_WAIT_FOREVER: until it is over). Returns
// its result, the same for each call; or FER_ERROR_TIMEOUT, and the task goes on. `result` may be
// NULL.
//
// Short waits are the rule, so the first fraction of a millisecond is spent spinning. A waiting
// thread also runs the watchdog: see `watchdog_ns`.
fer_status fer_ticket_wait(fer_ticket ticket, uint64_t timeout_ns, struct fer_task_result *result);

// Requests a task's cancellation: one that was not begun will not be, a running one ends in the
// middle. Its ticket reports the outcome.
fer_status fer_ticket_cancel(fer_ticket ticket);

// Frees a ticket. The task goes on.
fer_status fer_ticket_free(fer_ticket ticket);

// Returns counters of a dispatcher. Never waits.
fer_status fer_dispatcher_info(fer_dispatcher dispatcher, struct fer_dispatcher_details *details);

// Refuses new tasks, lets the kernel run the submitted ones, and waits until it has exited, up to
// `timeout_ns` nanoseconds (FER_WAIT_FOREVER: as long as it takes). FER_ERROR_TIMEOUT if it has
// not: it goes on, and this may be called again. Its buffers are released then; its tickets
// remain.
fer_status fer_dispatcher_stop(fer_dispatcher dispatcher, uint64_t timeout_ns);

// Ends a dispatcher, its handle and its tickets. If it was not stopped before, the kernel exits
// after the running task, and the others are dropped.
fer_status fer_dispatcher_free(fer_dispatcher dispatcher);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FERCUDA_C_API_H */
