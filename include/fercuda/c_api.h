/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 * Made by `cargo xtask headers` of the sources in crates/capi.
 *
 * Runtimes, sessions, buffers, jobs, modules, launches, graphs, expressions, arenas,
 * dispatchers.
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

// Dimensions of a layout, at most.
#define FER_MAX_RANK 8

// Bytes of a holder's name, with the zero byte.
#define FER_NAME_BYTES 64

// Words of a task.
#define FER_TASK_WORDS 4

// Spans of a task, at most.
#define FER_TASK_SPANS 3

// Words of a graph's key, beside its generation.
#define FER_KEY_WORDS 7

// As a timeout: for ever.
#define FER_WAIT_FOREVER UINT64_MAX

// What a function answers. Numbers keep their meaning for good.
enum fer_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // It was done.
  FER_OK = 0,
  // A pointer is NULL, a handle is 0, a number is none of those that there are, or a
  // text is no UTF-8. The message names the parameter.
  FER_ERROR_INVALID_ARGUMENT = 1,
  // A handle names nothing: it was closed or freed, is of another kind or session, or
  // was never given out.
  FER_ERROR_STALE_HANDLE = 2,
  // Layouts, buffers and bytes do not fit each other.
  FER_ERROR_LAYOUT = 3,
  // The session, or its graphs, may not hold so much; or the system gives no more threads.
  FER_ERROR_LIMIT = 4,
  // The device has no memory left; the message says who holds it.
  FER_ERROR_OUT_OF_MEMORY = 5,
  // The session was closed, or ended by a reboot, or its context was reset.
  FER_ERROR_ENDED = 6,
  // A session of that name is open.
  FER_ERROR_NAME_TAKEN = 7,
  // There is no such device, or no driver, or another one is governed already.
  FER_ERROR_NO_DEVICE = 8,
  // The driver refused.
  FER_ERROR_DRIVER = 9,
  // A module was refused, or has no such kernel. The message has the compiler's log.
  FER_ERROR_MODULE = 10,
  // A launch does not fit its kernel or the device; nothing was launched.
  FER_ERROR_LAUNCH = 11,
  // The device's context has failed, as after an illegal address. fer_reset helps.
  FER_ERROR_CONTEXT_LOST = 12,
  // Others hold memory of the device, so that it was not reset; or have a kernel that
  // stays there, for which the reboot would wait.
  FER_ERROR_OCCUPIED = 13,
  // The job was cancelled.
  FER_ERROR_CANCELLED = 14,
  // It is not done in the time that was given, and goes on.
  FER_ERROR_TIMEOUT = 15,
  // Host work of the caller's own said that it failed.
  FER_ERROR_HOST_WORK = 16,
  // This process was forked from the one that opened the runtime.
  FER_ERROR_FORKED = 17,
  // No memory is governed in this process, so there is nothing to tell of it.
  FER_ERROR_NOT_GOVERNED = 18,
  // Tensors that cannot be planned, or a text that is no plan.
  FER_ERROR_PLAN = 19,
  // A defect of feRcuda's own.
  FER_ERROR_INTERNAL = 20,
  // A task does not fit: there is none of that number, a span is not within its buffer,
  // or it has used up its steps. Other tasks do not notice.
  FER_ERROR_TASK = 21,
  // All slots of the task's priority are taken.
  FER_ERROR_FULL = 22,
  // A task runs for ever, and the dispatcher with it. It ends with the process.
  FER_ERROR_DISPATCHER_LOST = 23,
  // The session's own allocator gave no memory, or none that can be used.
  FER_ERROR_ALLOCATOR = 24,
  // What others ask of the device's runtime is taken already in this process.
  FER_ERROR_SERVED = 25,
  // A graph was not kept: its key was invalidated while it was captured.
  FER_ERROR_GRAPH = 26,
  // A text says no expression that can be computed, or buffers do not fit it. The message
  // has line and column.
  FER_ERROR_EXPRESSION = 27,
  // Not here: in a job, in host work, or where lent memory is given back, which the call
  // would wait for. Another thread may.
  FER_ERROR_WITHIN = 28,
  // The runtime is being rebooted. When it has been, the call may be made again.
  FER_ERROR_REBOOTING = 29,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fer_status fer_status;
#else
typedef int32_t fer_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Which device.
enum fer_device
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // What the variable FERCUDA_DEVICE asks for (soft, gpu or auto).
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

// What an element is.
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

// What a buffer's memory is.
enum fer_regime
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // A block of the process's pool.
  FER_REGIME_POOL = 1,
  // Physical memory of its own that the driver gave and mapped.
  FER_REGIME_DRIVER = 2,
  // One address for the host and all devices.
  FER_REGIME_MANAGED = 3,
  // Page-locked memory of the host.
  FER_REGIME_PINNED = 4,
  // Somebody else's (fer_import_device_ptr). Not to be asked for.
  FER_REGIME_FOREIGN = 5,
  // What the session's own allocator gives (fer_session_open_with_allocator).
  FER_REGIME_CALLBACKS = 6,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fer_regime fer_regime;
#else
typedef uint32_t fer_regime;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How far a job is.
enum fer_job_state
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // It waits on the host, and can be cancelled.
  FER_JOB_WAITING = 1,
  // The device has it.
  FER_JOB_RUNNING = 2,
  // It is done, and went well.
  FER_JOB_DONE = 3,
  // It failed; fer_job_wait says how.
  FER_JOB_FAILED = 4,
  // It was cancelled.
  FER_JOB_CANCELLED = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fer_job_state fer_job_state;
#else
typedef uint32_t fer_job_state;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What kind of argument.
enum fer_argument_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // The address of a buffer's first element: value.buffer.
  FER_ARGUMENT_BUFFER = 1,
  // A number of 1, 2, 4 or 8 bytes: the member of value that has its type.
  FER_ARGUMENT_NUMBER = 2,
  // A structure: value.structure leads to its bytes, which are copied.
  FER_ARGUMENT_STRUCTURE = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fer_argument_kind fer_argument_kind;
#else
typedef uint32_t fer_argument_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What a task does. Its spans are whole elements of 4 bytes; words that are not named are
// not read. A task that fails writes nothing, unless it was cancelled or has used up its
// steps: then it has written a part.
enum fer_task_number
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // to[i] = pattern: spans[0] is `to`, the low half of words[0] the pattern, a uint32_t.
  // Gives back how many it has written.
  FER_TASK_FILL = 1,
  // to[i] = from[i]: spans[0] is `to`, spans[1] `from`, of one length. They have nothing
  // in common, or are one. Gives back how many it has written.
  FER_TASK_COPY = 2,
  // y[i] = a * x[i] + y[i], rounded once: spans[0] is `y`, spans[1] `x`, floats, of one
  // length; the low half of words[0] has the bits of `a`. They have nothing in common,
  // or are one. Gives back how many it has written.
  FER_TASK_AXPY_F32 = 3,
  // sum[0] = values[0] + values[1] + ..., modulo 2^32: spans[0] is `sum`, one uint32_t,
  // spans[1] `values`, where it may lie. Gives back the sum.
  FER_TASK_SUM_U32 = 4,
  // The same of floats. Each thread adds every so many-th value, as many as a block has
  // threads, and what they have is added in pairs: the sum depends on the values and
  // that number alone. Gives back the sum's bits.
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

// What the driver says of a device's memory.
typedef struct fer_memory_details {
  // Free bytes.
  uint64_t free_bytes;
  // All bytes.
  uint64_t total_bytes;
} fer_memory_details;

// Who holds memory of a device in this process.
typedef struct fer_holder {
  // The tenant's name, cut to fit, ended by a zero byte: a session's, or a library's.
  char name[FER_NAME_BYTES];
  // Live blocks of the pool, in bytes.
  uint64_t pooled_bytes;
  // What the driver gave by itself, also of the host, in bytes.
  uint64_t governed_bytes;
} fer_holder;

// What a reboot came to.
typedef struct fer_reboot_details {
  // How often the device's memory has begun anew.
  uint64_t epoch;
  // Sessions that were ended.
  uint64_t sessions;
  // Bytes that went back to the driver.
  uint64_t returned_bytes;
  // 1 if the context had failed and was reset, else 0.
  uint32_t was_reset;
  // How many others hold memory of the device still.
  uint32_t others;
} fer_reboot_details;

// Who owns buffers, and the order in which they are worked with.
typedef uint64_t fer_session;

// What there is to say of a session.
typedef struct fer_session_details {
  // What it holds of the device, in bytes; blocks are of 512.
  uint64_t held_bytes;
  // The most that it has held.
  uint64_t peak_bytes;
  // What it may hold; 0 for no limit.
  uint64_t limit_bytes;
  // How many buffers it has.
  uint64_t buffers;
} fer_session_details;

// Whether the runtime may be rebooted now: not 0 for yes. Called with the `context` that
// came with it in a thread of the library's, one call at a time. It may call functions of
// this library, and does not unwind.
typedef int (*fer_consent)(void *context);

// That a runtime may be asked by others.
typedef uint64_t fer_requests;

// Where elements lie, from the first one on. fer_layout_contiguous fills one.
typedef struct fer_layout {
  // What they are: a fer_dtype.
  uint32_t dtype;
  // Dimensions, 0 (one element) to FER_MAX_RANK.
  uint32_t rank;
  // How many elements along each dimension.
  uint64_t shape[FER_MAX_RANK];
  // How many elements lie from one to the next there; may be negative or 0.
  int64_t strides[FER_MAX_RANK];
} fer_layout;

// Memory with a layout; of one session.
typedef uint64_t fer_buffer;

// What there is to say of a buffer.
typedef struct fer_buffer_details {
  // Where its elements lie.
  struct fer_layout layout;
  // What uploads and downloads of it take, in bytes.
  uint64_t bytes;
  // What its memory is: a fer_regime.
  uint32_t regime;
  // 1 if its address was given out, else 0.
  uint32_t is_exported;
} fer_buffer_details;

// What gives something back: called once with the `context` that came with it, in
// whatever thread. It calls nothing of this library that waits, and does not unwind.
typedef void (*fer_deleter)(void *context);

// Gives memory of the device: the address of `bytes`, at least 1, a multiple of
// `alignment`; or 0 if there is none. From then on nobody else uses it, and what is queued
// in `stream` can, a CUstream, the session's. It does not unwind.
typedef uint64_t (*fer_allocator_allocate)(void *user,
                                           uint64_t bytes,
                                           uint64_t alignment,
                                           void *stream);

// Takes back, once, what was given. All work with it is before what `stream` is given from
// now on, but the device need not have done it. `stream` is NULL if the context has failed or
// was reset: nothing runs there, and what is the driver's is given back without a stream
// (cuMemFree), now or once the driver takes it again. It does not unwind.
typedef void (*fer_allocator_free)(void *user, uint64_t address, uint64_t bytes, void *stream);

// What gives a session the memory of its buffers of FER_REGIME_CALLBACKS. Its functions
// are called in whatever threads, also several at a time, and may call those of this
// library; but `allocate` is not asked within itself (FER_ERROR_ALLOCATOR).
typedef struct fer_allocator {
  // Called by fer_alloc_buffer.
  fer_allocator_allocate allocate;
  // Called when the last buffer in the memory is freed, or goes with its session.
  fer_allocator_free free;
  // Called once with `user`, when the session is closed, all memory was taken back, and
  // neither of the others will be called any more. NULL for none.
  fer_deleter ended;
  // What comes with each call.
  void *user;
} fer_allocator;

// Work that nobody waits for yet.
typedef uint64_t fer_job;

// Host work: called once with the `context` that came with it and the session's
// stream, a CUstream, in which it may queue what it likes with the driver's functions;
// it calls none of this library and does not unwind. What is not 0 is a failure, and
// the job's.
typedef int (*fer_host_work)(void *context, void *stream);

// Code that was loaded.
typedef uint64_t fer_module;

// A kernel of a module.
typedef uint64_t fer_kernel;

// The shape of a launch. What is 0 in `grid` and `block` is refused.
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

// What a kernel is given. It is compared with what the kernel declares, where the
// driver says that (CUDA 12.4 and later).
typedef struct fer_argument {
  // A fer_argument_kind.
  uint32_t kind;
  // Bytes of a number (1, 2, 4, 8) or a structure (1 to 32764); 8 or 0 for a buffer.
  uint32_t bytes;
  // What it is.
  union fer_argument_value value;
} fer_argument;

// Graphs of a session, by keys.
typedef uint64_t fer_graphs;

// What a graph is kept under.
typedef struct fer_graph_key {
  // Of the model whose memory the graph uses: another number each time that moves.
  uint64_t generation;
  // What else tells graphs apart, as the program likes.
  uint64_t words[FER_KEY_WORDS];
} fer_graph_key;

// What a graph is to do, while that is said.
typedef uint64_t fer_capture;

// What has become of a capture.
typedef struct fer_graph_record {
  // Pieces of work.
  uint64_t nodes;
  // What the graph counts for in the budget.
  uint64_t bytes;
  // 1 if a graph that was there has been updated, 0 if one was made anew.
  uint64_t is_updated;
  // How long the host took to capture.
  uint64_t capture_ns;
  // How long the host took to update or instantiate it.
  uint64_t instantiate_ns;
  // How long the host took to send it to the device.
  uint64_t upload_ns;
} fer_graph_record;

// How long a replay took.
typedef struct fer_graph_times {
  // The host, to send the graph to the device; once, when it was captured.
  uint64_t upload_ns;
  // The host, to launch it.
  uint64_t launch_ns;
  // The device, from the launch's turn to its end.
  uint64_t device_ns;
  // The host, from before the launch until it was seen to be done.
  uint64_t completion_ns;
} fer_graph_times;

// What graphs there are, and what has been done.
typedef struct fer_graphs_details {
  // Graphs that can be replayed.
  uint64_t entries;
  // What they count for in the budget.
  uint64_t bytes;
  // Graphs let go whose last replays run, or have not been asked after.
  uint64_t retired;
  // Replays.
  uint64_t replays;
  // Replays that found nothing.
  uint64_t absent;
  // Graphs made.
  uint64_t instantiated;
  // Graphs updated in place.
  uint64_t updated;
  // Graphs let go for want of room.
  uint64_t evicted;
} fer_graphs_details;

// Device memory for what changes from replay to replay.
typedef uint64_t fer_arguments;

// A buffer of an expression's, and its name in the text.
typedef struct fer_named_buffer {
  // Its name, which ends with a zero byte.
  const char *name;
  // The buffer; of an output 0 for a new one, whose handle is put here.
  fer_buffer buffer;
} fer_named_buffer;

// A tensor, and the steps of a program that need it.
typedef struct fer_tensor_spec {
  // What it is found by; each has another.
  const char *name;
  // What an element is: a fer_dtype.
  uint32_t dtype;
  // Dimensions.
  uint32_t rank;
  // How many elements along each dimension; they lie side by side.
  uint64_t shape[FER_MAX_RANK];
  // The first step that needs it.
  uint32_t from_step;
  // The first one after it that does not.
  uint32_t until_step;
} fer_tensor_spec;

// Tensors that were planned into one buffer.
typedef uint64_t fer_arena;

// What there is to say of an arena.
typedef struct fer_arena_details {
  // All of it, as bytes.
  fer_buffer buffer;
  // How many those are.
  uint64_t bytes;
  // How many tensors lie there.
  uint64_t tensors;
} fer_arena_details;

// How a dispatcher is set up. fer_dispatcher_defaults fills it in.
typedef struct fer_dispatcher_options {
  // Tasks that each priority has room for, a power of two.
  uint32_t capacity;
  // How many priorities there are, 1 to 8.
  uint32_t priorities;
  // Blocks that take tasks; each takes a place on the device.
  uint32_t blocks;
  // Threads of a block, a multiple of 32, at most 1024.
  uint32_t threads;
  // How long a block rests before it looks for tasks again.
  uint32_t idle_ns;
  // Steps that each thread of a task may make, unless the task says; one for each
  // element that it is about.
  uint32_t steps;
  // A task that runs longer is cancelled by who waits; if it does not end in as long
  // again, the dispatcher is lost.
  uint64_t watchdog_ns;
} fer_dispatcher_options;

// A kernel that stays on the device and takes tasks.
typedef uint64_t fer_dispatcher;

// A part of a buffer.
typedef struct fer_task_span {
  // One that the dispatcher was booted with.
  fer_buffer buffer;
  // Where it begins, from the buffer's first element on.
  uint64_t offset_bytes;
  // How much it is.
  uint64_t bytes;
} fer_task_span;

// What a dispatcher is to do.
typedef struct fer_task {
  // A fer_task_number.
  uint32_t task;
  // 0 is the highest. A lower one is begun only when there are none of a higher.
  uint32_t priority;
  // Steps that each thread may make; 0 for the dispatcher's.
  uint32_t steps;
  // How many of the spans there are.
  uint32_t span_count;
  // Numbers, of which each task says what they are.
  uint64_t words[FER_TASK_WORDS];
  // What it may touch.
  struct fer_task_span spans[FER_TASK_SPANS];
} fer_task;

// A task that was submitted.
typedef uint64_t fer_ticket;

// What a task gave.
typedef struct fer_task_result {
  // What each fer_task_number says.
  uint64_t value;
  // Steps that its first thread made.
  uint64_t steps;
} fer_task_result;

// What there is to say of a dispatcher.
typedef struct fer_dispatcher_details {
  // Tasks that it was given.
  uint64_t submitted;
  // Of those, how many wait or are run.
  uint64_t depth;
  // How many have been run, well or not.
  uint64_t done;
  // How many were given up: it ended before they did.
  uint64_t lost;
  // Buffers that it was booted with.
  uint64_t buffers;
  // Tasks that each priority has room for.
  uint32_t capacity;
  // How many priorities there are.
  uint32_t priorities;
  // 1 if it takes no more tasks, else 0.
  uint32_t is_stopped;
  // 1 if a task runs for ever, else 0.
  uint32_t is_lost;
} fer_dispatcher_details;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The message of the calling thread's last error: what, where, with numbers, and what
// to try. Empty if there was none. Good until the thread's next call of a function of
// this library.
const char *fer_last_error_message(void);

// A code's name, as "FER_ERROR_LIMIT"; "unknown" for a number that is none. Good for
// ever.
const char *fer_status_name(int32_t status);

// Opens a device's runtime: `device` is a fer_device, `ordinal` the device's number
// there. The first runtime of a process puts the pool before the driver, unless the
// hook has done so. Closed by fer_runtime_close.
fer_status fer_runtime_open(uint32_t device, uint32_t ordinal, fer_runtime *runtime);

// Closes a runtime and all its sessions, as fer_session_close does; before that nobody can
// ask it any more, as by fer_requests_end. Answers with the first error of the sessions' work;
// all are closed nevertheless.
fer_status fer_runtime_close(fer_runtime runtime);

// What the driver says of the device's memory.
fer_status fer_memory_info(fer_runtime runtime, struct fer_memory_details *details);

// Bytes of the device's memory that this process has freed and that are not free yet, as the
// driver would wait for a dispatcher's kernel that runs: those of FER_REGIME_DRIVER and
// FER_REGIME_MANAGED, and what a capture is in the way of. They are free when a thread
// allocates or waits while there is neither; until then their sessions are charged for them.
fer_status fer_parked_bytes(fer_runtime runtime, uint64_t *bytes);

// Who holds memory of the device in this process, most first. `holders` has room for
// `room` of them, and may be NULL for none; `count` gets how many there are, which may
// be more.
fer_status fer_holders(fer_runtime runtime,
                       struct fer_holder *holders,
                       uint64_t room,
                       uint64_t *count);

// Ends all sessions of the runtime's device that it has opened, the last one first, gives
// all memory back to the driver, and begins anew. Sessions and buffers of before answer
// FER_ERROR_ENDED; their handles are still to be closed. `details` may be NULL.
// FER_ERROR_CONTEXT_LOST if the context has failed: then fer_reset helps.
// FER_ERROR_DISPATCHER_LOST, or FER_ERROR_OCCUPIED, if a kernel stays that does not end.
fer_status fer_reboot(fer_runtime runtime, struct fer_reboot_details *details);

// The same; and if the context has failed, as after an illegal address, it is reset,
// unless others hold memory of the device (FER_ERROR_OCCUPIED). What other libraries of
// this process have made in the device's primary context, such as streams and modules,
// goes with it and must not be used any more. No other thread is in a call for a session of
// the device, or makes one, before this has returned.
fer_status fer_reset(fer_runtime runtime, struct fer_reboot_details *details);

// Opens a session, which is a tenant of the device's pool by its name. It may hold
// `limit_bytes` of the device, or with 0 what there is. Closed by fer_session_close.
fer_status fer_session_open(fer_runtime runtime,
                            const char *name,
                            uint64_t limit_bytes,
                            fer_session *session);

// Closes a session: waits for its work, and gives back all that it has. Its buffers,
// jobs, modules, kernels and arenas go with it. Answers with the first error of its work;
// it is closed nevertheless. Of two threads that close it one does, and the other is
// told FER_ERROR_STALE_HANDLE, perhaps before the first is done. Where it may be waited for
// itself, in a host function or in an allocator's `free` or a deleter, it does not wait: the
// session ends behind its work all the same.
fer_status fer_session_close(fer_session session);

// What a session holds, and may.
fer_status fer_session_info(fer_session session, struct fer_session_details *details);

// Waits for all work that the session was given. Answers with its first error.
fer_status fer_stream_sync(fer_session session);

// The session's stream, a CUstream, for work of other libraries. It is good until the
// session is closed. Work put there directly is not behind jobs that still wait on the
// host.
fer_status fer_session_stream(fer_session session, void **stream);

// Lets this user's other processes ask for a reboot (`fercuda reboot --pid`): for each that
// asks `consent` is called, and fer_reboot is done if it says yes. Sessions of the device
// answer FER_ERROR_ENDED from then on, so whoever has some is to expect that. What it came to,
// also a no, is told to who has asked; a context that has failed is never reset by this.
//
// Ended by fer_requests_end, or with its runtime; `context` is there until that has
// returned, and `consent` too, if that was called in it. FER_ERROR_SERVED if the device's
// requests are taken in this process, FER_ERROR_NOT_GOVERNED if there is no ledger by which it
// could be asked.
fer_status fer_runtime_serve_requests(fer_runtime runtime,
                                      fer_consent consent,
                                      void *context,
                                      fer_requests *requests);

// From now on nobody can ask. Waits for a consent that is being asked for, unless this is
// called in it; and for a reboot that is being done, unless that waits for the calling thread,
// as in a job or an allocator's `free`. So a consent does not wait for a thread that calls this.
fer_status fer_requests_end(fer_requests requests);

// A layout of elements side by side, those of the last dimension first. `shape` has
// `rank` numbers, and may be NULL for none. `dtype` is a fer_dtype.
fer_status fer_layout_contiguous(uint32_t dtype,
                                 uint32_t rank,
                                 const uint64_t *shape,
                                 struct fer_layout *layout);

// What an element of a fer_dtype takes, in bytes.
fer_status fer_dtype_bytes(uint32_t dtype, uint64_t *bytes);

// A fer_dtype's name, as "bf16"; "unknown" for a number that is none. Good for ever.
const char *fer_dtype_name(uint32_t dtype);

// A buffer for the elements of a layout, of memory of a fer_regime; what is in it at
// first is unspecified. Freed by fer_free_buffer, or with its session.
fer_status fer_alloc_buffer(fer_session session,
                            const struct fer_layout *layout,
                            uint32_t regime,
                            fer_buffer *buffer);

// Ends a buffer's handle at once, and its memory behind the last work that was queued
// with it, unless a view of it is still there. Waits for that work, but for memory of the
// pool and of an allocator; that of FER_REGIME_DRIVER and FER_REGIME_MANAGED goes back when no
// dispatcher runs on the device. The session is charged until then, and for what graphs have
// of it, until they let it go.
fer_status fer_free_buffer(fer_session session, fer_buffer buffer);

// Another buffer in the same memory, whose first element lies `offset_bytes` from the
// first one of `buffer`. The memory lives until the last buffer in it is freed.
fer_status fer_view_buffer(fer_session session,
                           fer_buffer buffer,
                           const struct fer_layout *layout,
                           int64_t offset_bytes,
                           fer_buffer *view);

// What a buffer is.
fer_status fer_buffer_info(fer_session session,
                           fer_buffer buffer,
                           struct fer_buffer_details *details);

// Copies a buffer's elements from the host, in their order: `len_bytes` is what
// fer_buffer_info says. Waits for the copy.
fer_status fer_upload_bytes(fer_session session,
                            fer_buffer buffer,
                            const void *bytes,
                            uint64_t len_bytes);

// Copies a buffer's elements to the host, in their order: `len_bytes` is what
// fer_buffer_info says. Waits for the session's work.
fer_status fer_download_bytes(fer_session session,
                              fer_buffer buffer,
                              void *into,
                              uint64_t len_bytes);

// Queues a copy of `source`, a buffer of the session `from`, which may be the same one
// or one of another device. Both have one type and shape. Neither session is waited
// for.
fer_status fer_copy_buffer(fer_session session,
                           fer_buffer buffer,
                           fer_session from,
                           fer_buffer source);

// Queues that each byte of a buffer's elements becomes `byte`.
fer_status fer_fill_buffer(fer_session session, fer_buffer buffer, uint8_t byte);

// A buffer's address, for other libraries: that of its first element. It is good until
// the buffer is freed; what orders their work with the session's stream is theirs.
fer_status fer_export_buffer_device_ptr(fer_session session, fer_buffer buffer, uint64_t *address);

// Somebody else's memory as a buffer of the session; `address` is where its first
// element lies. `deleter` is called with `context` once, when the last buffer there is
// freed and no work that was queued with it runs any more; NULL for none. If this fails
// it is not called, and the memory is the caller's as before.
//
// The device can use all that the layout reaches until then.
fer_status fer_import_device_ptr(fer_session session,
                                 uint64_t address,
                                 const struct fer_layout *layout,
                                 fer_deleter deleter,
                                 void *context,
                                 fer_buffer *buffer);

// What fer_session_open does, with an allocator for buffers of FER_REGIME_CALLBACKS, which
// is copied. If this fails none of its functions is called.
//
// What it gives counts against `limit_bytes` as long as a buffer has it. An address that is 0,
// not aligned, or in use already is FER_ERROR_ALLOCATOR; one that is not aligned is given
// back before that, one in use is not. What it takes from the driver when it is called is
// the session's in the ledger.
fer_status fer_session_open_with_allocator(fer_runtime runtime,
                                           const char *name,
                                           uint64_t limit_bytes,
                                           const struct fer_allocator *allocator,
                                           fer_session *session);

// Queues what fer_upload_bytes does. The bytes are copied, and the caller's again when
// this returns. The job is freed by fer_job_free, or with its session.
fer_status fer_upload_async(fer_session session,
                            fer_buffer buffer,
                            const void *bytes,
                            uint64_t len_bytes,
                            fer_job *job);

// Queues what fer_download_bytes does. The bytes are written to `into` while
// fer_job_wait waits for the job with success, and at no other time; so `into` is there
// until that or fer_job_free has returned.
fer_status fer_download_async(fer_session session,
                              fer_buffer buffer,
                              void *into,
                              uint64_t len_bytes,
                              fer_job *job);

// A job that is done when all that the session was given before it is: to wait for
// launches and copies with a time limit.
fer_status fer_submit_fence(fer_session session, fer_job *job);

// Gives host work to the session: `work` is called in a thread of the library's, in the
// order of what the session was given, and the job is done when all that it has queued
// is. `context` is there until then.
fer_status fer_submit_host_work(fer_session session,
                                fer_host_work work,
                                void *context,
                                fer_job *job);

// How far a job is: `state` gets a fer_job_state. Never waits.
fer_status fer_job_status(fer_job job, uint32_t *state);

// Waits for a job, for `timeout_ns` nanoseconds at most (FER_WAIT_FOREVER: until it is
// over). Answers with what it came to, the same however often it is asked; or with
// FER_ERROR_TIMEOUT, and it goes on.
fer_status fer_job_wait(fer_job job, uint64_t timeout_ns);

// Cancels a job, unless the device has it. `was_cancelled` gets 1 if it is cancelled,
// else 0; it may be NULL.
fer_status fer_job_cancel(fer_job job, uint32_t *was_cancelled);

// Ends a job's handle. The work goes on; what it downloads goes nowhere.
fer_status fer_job_free(fer_job job);

// Loads PTX text, which ends with a zero byte, into the session's device. A mistake in
// it is FER_ERROR_MODULE, and the message has the compiler's log. Unloaded by
// fer_module_unload, or with its session.
fer_status fer_module_load_ptx(fer_session session, const char *ptx, fer_module *module);

// Loads machine code (a cubin), a fatbin, or PTX text without a zero byte. Lengths in
// it are checked, and no more: NVIDIA's driver believes machine code, so it has to come
// from who is trusted.
fer_status fer_module_load_image(fer_session session,
                                 const void *image,
                                 uint64_t len_bytes,
                                 fer_module *module);

// Ends a module's handle and those of its kernels at once, and its code behind the last
// launch of it, for which this waits; while a dispatcher runs on the device it does not, and
// the code goes when none does. Graphs that launch it keep it.
fer_status fer_module_unload(fer_module module);

// A module's kernel by its name, mangled if it has C++'s linkage; the same handle each
// time. It ends with its module.
fer_status fer_module_kernel(fer_module module, const char *name, fer_kernel *kernel);

// Launches a kernel behind the session's work, with `count` arguments; `arguments` may
// be NULL for none. They are compared with what the kernel declares, and buffers have
// to be of the session; if anything does not fit nothing is launched. Never waits for
// the kernel: what fails in it is heard of by what comes after it.
//
// In the session's place there may be a fer_capture. Then nothing is launched, and the launch
// is a part of what it captures; what does not fit the kernel is told when that is finished.
fer_status fer_ptxlaunch_submit(fer_session session,
                                fer_kernel kernel,
                                const struct fer_launch *launch,
                                const struct fer_argument *arguments,
                                uint64_t count);

// A cache of graphs of the session. Together they count for at most `budget_bytes`, 8 KiB for
// each node; 0 is 1 GiB. The least recently used go first. Freed by fer_graphs_free, or with
// the session.
fer_status fer_graphs_open(fer_session session, uint64_t budget_bytes, fer_graphs *graphs);

// Ends graphs, behind their last replay, their captures, and their handle.
fer_status fer_graphs_free(fer_graphs graphs);

// Begins to capture what is to be kept under a key. fer_ptxlaunch_submit and fer_evaluate, given
// the capture in the session's place, make launches part of it; nothing is launched. It ends by
// fer_capture_finish or fer_capture_discard, or with its graphs. Other work goes on
// meanwhile, and is no part of it; nor does it matter which threads call.
fer_status fer_capture_begin(fer_graphs graphs,
                             const struct fer_graph_key *key,
                             fer_capture *capture);

// Ends a capture and keeps its graph under its key, in place of what was there, sent to the
// device. The graph holds the buffers and kernels that it uses, also if their handles end.
// `record` may be NULL.
//
// If this fails the capture has ended all the same, and what was under the key stays:
// FER_ERROR_GRAPH if the key was invalidated since it began, FER_ERROR_LIMIT if no budget but a
// larger one has room.
fer_status fer_capture_finish(fer_capture capture, struct fer_graph_record *record);

// Ends a capture without a graph.
fer_status fer_capture_discard(fer_capture capture);

// Queues all work of the graph under a key behind the session's: `was_there` gets 1 if
// there is one, else 0, and nothing is queued.
fer_status fer_graph_replay(fer_graphs graphs,
                            const struct fer_graph_key *key,
                            uint32_t *was_there);

// The same, waits until it is done, and says how long it took.
fer_status fer_graph_replay_timed(fer_graphs graphs,
                                  const struct fer_graph_key *key,
                                  struct fer_graph_times *times,
                                  uint32_t *was_there);

// Lets go of the graph under a key, behind its last replay, and of those that are being
// captured for it. `count` gets how many there were to replay, and may be NULL.
fer_status fer_graph_invalidate(fer_graphs graphs,
                                const struct fer_graph_key *key,
                                uint64_t *count);

// The same of all graphs whose keys are of a generation.
fer_status fer_graphs_invalidate_generation(fer_graphs graphs,
                                            uint64_t generation,
                                            uint64_t *count);

// The same of all graphs.
fer_status fer_graphs_invalidate_all(fer_graphs graphs, uint64_t *count);

// What graphs there are, and what has been done. Never waits.
fer_status fer_graphs_info(fer_graphs graphs, struct fer_graphs_details *details);

// Device memory of `bytes` for what changes from replay to replay, such as a token and its
// position: a multiple of 4, at most 1 MiB, at first all 0. `buffer` gets a buffer of it, for
// kernels and views, which ends with the block. `pushes` of it may be under way, 1 to 65536.
// Freed by fer_arguments_free, or with the session.
fer_status fer_arguments_open(fer_session session,
                              uint64_t bytes,
                              uint64_t pushes,
                              fer_arguments *arguments,
                              fer_buffer *buffer);

// Sets a part of a block for the next push: `len_bytes` from `offset_bytes` on, both
// multiples of 4. A push that another thread makes meanwhile may have a part of them.
fer_status fer_arguments_set(fer_arguments arguments,
                             uint64_t offset_bytes,
                             const void *bytes,
                             uint64_t len_bytes);

// Queues a copy of all that was set, behind the session's work: replays after it see it, and
// those before it do not. Waits only if the device is more pushes behind than the block was
// made for, or if jobs wait on the host.
fer_status fer_arguments_push(fer_arguments arguments);

// Ends a block and its buffer, behind the session's work. Graphs that use it keep its memory.
fer_status fer_arguments_free(fer_arguments arguments);

// Computes expressions over buffers, behind the session's work: `t = a + 0.5; y = softmax(t)`.
// What is said at once is fused, and compiled when it is first seen; that is kept, also for
// the next process. Returns before the device has done it. crates/jit/README.md has the
// grammar, every function and what each promises of its roundings.
//
// `inputs` says which buffers the names in the text are. `outputs` names each output of the
// text, which are the statements that no later one uses: with a buffer of the session's it is
// computed into that, with 0 into a new one of the pool, whose handle is put in its place.
// An output may be an input where each element is computed from that in its place. Buffers
// may be views; shapes are broadcast, and types never mixed: `f16(x)` casts.
//
// In the session's place there may be a fer_capture. Then nothing is computed, and it is a
// part of what is captured; an output that lies where it must not is told when that is finished.
//
// FER_ERROR_EXPRESSION, with line and column, if the text says nothing that can be computed,
// or other outputs than those that are named.
fer_status fer_evaluate(fer_session session,
                        const char *expression,
                        const struct fer_named_buffer *inputs,
                        uint64_t input_count,
                        struct fer_named_buffer *outputs,
                        uint64_t output_count);

// Plans `count` tensors into one arena, takes it as one block of the pool, and makes a
// buffer for each tensor there. Tensors that are needed at one step have no byte in
// common; others may, so the program's steps are to be as the tensors say. All of it is
// freed by fer_arena_free, or with its session.
fer_status fercuda_ignite(fer_session session,
                          const struct fer_tensor_spec *tensors,
                          uint64_t count,
                          fer_arena *arena);

// The same by a plan that fer_arena_plan has written. All of it is checked.
fer_status fercuda_ignite_plan(fer_session session, const char *plan, fer_arena *arena);

// What an arena is.
fer_status fer_arena_info(fer_arena arena, struct fer_arena_details *details);

// A tensor of an arena by its name: its buffer, and where it begins in the arena, in
// bytes; `offset_bytes` may be NULL.
fer_status fer_arena_tensor(fer_arena arena,
                            const char *name,
                            fer_buffer *buffer,
                            uint64_t *offset_bytes);

// An arena's plan as text, for a file and fercuda_ignite_plan. `text` has room for
// `room` bytes, and may be NULL for none; the text is cut to fit, and ends with a zero
// byte wherever there is room for one. `needed` gets how many bytes it has with that.
fer_status fer_arena_plan(fer_arena arena, char *text, uint64_t room, uint64_t *needed);

// Frees an arena with the buffers of its tensors at once, and its memory behind the last
// work that was queued with them. Never waits.
fer_status fer_arena_free(fer_arena arena);

// Fills in what fer_persistent_dispatcher_boot takes for NULL.
fer_status fer_dispatcher_defaults(struct fer_dispatcher_options *options);

// Starts a kernel that stays on the session's device and takes tasks (fer_task_number)
// from rings in the host's memory, so that nothing is launched for a task. Tasks may
// touch the `count` buffers, which stay as long as the dispatcher may use them, also if
// their handles are freed; their elements lie side by side, from a multiple of 16 bytes
// on. `options` may be NULL, for those of fer_dispatcher_defaults.
//
// The kernel begins behind the session's work. From then on the program orders tasks and
// other work with those buffers: it waits for the ones before it gives the others. While
// the kernel runs, what waits for the whole device waits for it: loading modules, a
// kernel's first launch, the first boot with other `capacity`, `priorities`, `threads` or
// `idle_ns` since a reboot. Stop it before. What is freed meanwhile and is not
// of the pool, and modules that are unloaded, go when no dispatcher runs any more.
//
// It ends by fer_dispatcher_stop, fer_dispatcher_free, or with its session, closed or
// rebooted, which lets it run what it was given.
fer_status fer_persistent_dispatcher_boot(fer_session session,
                                          const struct fer_dispatcher_options *options,
                                          const fer_buffer *buffers,
                                          uint64_t count,
                                          fer_dispatcher *dispatcher);

// Gives a task to a dispatcher. Never waits: if the ring of its priority is full it is
// FER_ERROR_FULL, at once. What is wrong with a task is told by its ticket, and no other
// task notices; but a span of a buffer that was not registered, more spans than there
// are, and a priority that there is not are refused here. `ticket` may be NULL if nobody
// will ask after the task; else it is freed by fer_ticket_free, or with its dispatcher.
fer_status fer_dispatcher_submit(fer_dispatcher dispatcher,
                                 const struct fer_task *task,
                                 fer_ticket *ticket);

// How far a task is: `state` gets a fer_job_state. Never waits.
fer_status fer_ticket_status(fer_ticket ticket, uint32_t *state);

// Waits for a task, for `timeout_ns` nanoseconds at most (FER_WAIT_FOREVER: until it is
// over). Answers with what it came to, the same however often it is asked; or with
// FER_ERROR_TIMEOUT, and it goes on. `result` may be NULL.
//
// Short waits are the rule, so the first fraction of a millisecond is spent looking. Who
// waits also watches: see `watchdog_ns`.
fer_status fer_ticket_wait(fer_ticket ticket, uint64_t timeout_ns, struct fer_task_result *result);

// Asks that a task end: one that was not begun is not, one that runs ends in the middle.
// Its ticket says what became of it.
fer_status fer_ticket_cancel(fer_ticket ticket);

// Ends a ticket. The task goes on.
fer_status fer_ticket_free(fer_ticket ticket);

// How much a dispatcher had to do, and has. Never waits.
fer_status fer_dispatcher_info(fer_dispatcher dispatcher, struct fer_dispatcher_details *details);

// Takes no more tasks, lets the kernel run those that it was given, and waits until it
// has ended, for `timeout_ns` nanoseconds at most (FER_WAIT_FOREVER: as long as it
// takes). FER_ERROR_TIMEOUT if it has not: it goes on, and this may be asked again. Its
// buffers are let go of then; its tickets stay.
fer_status fer_dispatcher_stop(fer_dispatcher dispatcher, uint64_t timeout_ns);

// Ends a dispatcher, its handle and its tickets. If it was not stopped before, the kernel
// ends after the task that it runs, and the others are given up.
fer_status fer_dispatcher_free(fer_dispatcher dispatcher);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FERCUDA_C_API_H */
