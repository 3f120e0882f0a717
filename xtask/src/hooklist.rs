//! The hook's conformance list: what each row asks, and the tests that show it.
//!
//! Invariant: every test of the hook's suite is in a row, and every row's tests
//! are there; `run` fails otherwise. So is every case that only a GPU machine
//! can run (`tests/gpu/regime/conformance.py`); what came of those is recorded
//! (`record`), and what is not recorded, or of older code, says so.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;

use crate::record::Record;
use crate::shell;

/// One thing that is asked of the hook.
struct Row {
    about: &'static str,
    what: &'static str,
    /// Tests of `crates/hook/tests/suite`.
    tests: &'static [&'static str],
    /// Cases of `tests/gpu/regime/conformance.py`.
    on_gpu: &'static [&'static str],
}

const fn row(about: &'static str, what: &'static str, tests: &'static [&'static str]) -> Row {
    Row {
        about,
        what,
        tests,
        on_gpu: &[],
    }
}

impl Row {
    const fn on_gpu(self, on_gpu: &'static [&'static str]) -> Row {
        Row { on_gpu, ..self }
    }
}

const ROWS: &[Row] = &[
    row(
        "loader",
        "linked to `libcuda.so.1`",
        &["loader::a_program_linked_to_the_driver_is_governed"],
    ),
    row(
        "loader",
        "`dlopen` of `libcuda.so.1`",
        &["loader::dlopen_of_the_soname_is_governed"],
    ),
    row(
        "loader",
        "`dlopen` of `libcuda.so`",
        &["loader::dlopen_of_the_short_name_is_governed"],
    ),
    row(
        "loader",
        "`dlopen` of an absolute path",
        &["loader::dlopen_of_an_absolute_path_is_governed"],
    ),
    row(
        "loader",
        "`RTLD_DEEPBIND`",
        &["loader::dlopen_with_deepbind_is_governed"],
    ),
    row("loader", "ctypes", &["loader::ctypes_is_governed"]),
    row(
        "loader",
        "one symbol, and all others from `cuGetProcAddress`, as the runtime library does",
        &["loader::functions_found_as_the_runtime_library_finds_them_are_governed"],
    ),
    row("loader", "static and shared `libcudart`", &[])
        .on_gpu(&["shared_libcudart", "static_libcudart"]),
    row(
        "loader",
        "callers of several runtime libraries, of none, and in place of one that was unloaded",
        &[
            "runtime::each_caller_gets_the_runtime_library_that_it_is_linked_to",
            "runtime::a_caller_gets_the_runtime_library_of_the_library_that_depends_on_it",
            "runtime::a_caller_that_was_unloaded_is_not_taken_for_the_one_in_its_place",
            "runtime::a_caller_without_a_runtime_library_gets_symbol_not_found",
        ],
    ),
    row(
        "loader",
        "`dlclose`: a library in place of one that was unloaded",
        &["loader::a_library_in_place_of_one_that_was_unloaded_is_another_tenant"],
    ),
    row(
        "loader",
        "`dlmopen` is reported",
        &["loader::dlmopen_is_reported"],
    ),
    row(
        "loader",
        "`RTLD_NEXT`, twice in a row",
        &["loader::rtld_next_finds_the_next_one_twice_in_a_row"],
    ),
    row(
        "loader",
        "`dlvsym`",
        &["loader::dlvsym_answers_as_without_the_hook"],
    ),
    row(
        "loader",
        "every function, in every version and with every flag",
        &[
            "loader::every_entry_resolves_to_the_drivers_function_or_to_its_interposed_one",
            "loader::every_symbol_of_the_driver_is_exported",
        ],
    ),
    row(
        "loader",
        "unknown symbols and libraries",
        &["loader::unknown_symbols_and_libraries_are_answered_as_without_the_hook"],
    ),
    row(
        "loader",
        "the kill switch",
        &["loader::the_kill_switch_leaves_the_driver_alone"],
    ),
    row(
        "loader",
        "a machine without a driver",
        &[
            "loader::without_a_driver_a_program_fails_as_it_would",
            "loader::a_linked_program_without_a_driver_gets_the_stub_librarys_error",
        ],
    ),
    row(
        "loader",
        "first calls in a library's constructor, and in another thread meanwhile",
        &["loader::the_driver_is_used_in_a_librarys_constructor_while_others_use_it_first"],
    ),
    row(
        "loader",
        "the C library before the hook",
        &["loader::a_c_library_that_is_preloaded_first_has_the_loaders_functions"],
    ),
    row(
        "loader",
        "variables that are none, or cannot be read",
        &[
            "loader::unknown_variables_are_warned_about",
            "loader::invalid_values_are_warned_about_and_count_as_unset",
        ],
    ),
    row(
        "processes",
        "fork before the driver is used",
        &["process::a_child_of_a_process_that_has_not_used_the_driver_is_governed_by_itself"],
    ),
    row(
        "processes",
        "fork after it",
        &[
            "process::a_child_of_a_process_that_has_used_the_driver_is_left_alone",
            "process::a_child_that_ends_as_programs_do_leaves_its_parents_ledger_and_shares_alone",
        ],
    ),
    row(
        "processes",
        "fork and exec",
        &["process::a_program_started_by_a_governed_one_is_governed_by_itself"],
    ),
    row(
        "processes",
        "a shell; many short programs",
        &[
            "process::a_shell_and_what_it_starts_are_untouched",
            "process::a_storm_of_short_programs_is_untouched",
        ],
    ),
    row(
        "processes",
        "10,000 threads",
        &["process::ten_thousand_threads_leave_nothing_behind"],
    ),
    row(
        "calls",
        "random programs, with the hook and without",
        &["differential::random_programs_are_answered_as_by_the_driver_alone"],
    ),
    row(
        "calls",
        "the software device's checks, for blocks of many sizes; a limit under them",
        &[
            "checks::blocks_of_any_size_are_checked_as_by_the_driver_alone",
            "checks::a_limit_holds_where_accesses_are_checked",
        ],
    ),
    row(
        "calls",
        "size 0; no place for the result; before `cuInit`",
        &[
            "calls::size_zero_is_answered_as_by_the_driver",
            "calls::null_outputs_are_answered_as_by_the_driver",
            "calls::calls_before_init_and_without_a_context_are_answered_as_by_the_driver",
        ],
    ),
    row(
        "calls",
        "double, foreign and interior frees",
        &["calls::double_foreign_and_interior_frees_get_the_drivers_own_error"],
    ),
    row(
        "calls",
        "`cuMemFree` of ordered memory, and the reverse",
        &["calls::each_kind_of_free_takes_memory_of_the_other_kind"],
    ),
    row("calls", "pitch", &["calls::pitches_are_the_drivers"]),
    row(
        "calls",
        "wrong frees, pitch and ends of contexts over NVIDIA's driver",
        &[],
    )
    .on_gpu(&["calls_are_answered_as_by_the_driver"]),
    row(
        "calls",
        "sizes that no device has",
        &["calls::sizes_that_no_device_has_are_refused_as_by_the_driver"],
    ),
    row(
        "calls",
        "out of memory, its report, and then recovery",
        &[
            "calls::out_of_memory_reports_the_holders_and_freed_memory_is_reused",
            "calls::a_full_device_is_out_of_memory_too",
            "calls::memory_that_is_not_pooled_counts_against_each_limit",
            "calls::a_limit_below_the_minimum_is_an_error_and_no_crash",
        ],
    ),
    row(
        "calls",
        "limits of tenants; leaks",
        &[
            "calls::a_tenant_has_no_more_than_its_limit_and_others_go_on",
            "calls::a_leak_is_in_the_ledger_when_the_process_is_gone",
        ],
    ),
    row(
        "calls",
        "the caller behind a library, on a fiber's stack, a thread's and a handler's",
        &["calls::a_caller_on_a_small_stack_is_attributed_without_reading_beyond_it"],
    ),
    row(
        "calls",
        "`cuMemGetInfo` is the ledger",
        &["calls::mem_get_info_agrees_with_the_ledger"],
    ),
    row(
        "calls",
        "the ledger is the driver's own figure, to the end",
        &["calls::the_final_figures_are_taken_at_exit_and_leave_nothing_ungoverned"],
    ),
    row(
        "calls",
        "NVML is the ledger",
        &[
            "nvml::nvml_reports_the_drivers_figures_of_governed_memory",
            "nvml::nvml_by_ctypes_reports_the_drivers_figures",
        ],
    )
    .on_gpu(&["nvml_says_what_the_driver_says"]),
    row(
        "calls",
        "NVML of all else is NVML's own",
        &[
            "nvml::nvml_reports_its_own_figures_of_all_other_memory",
            "nvml::nvml_errors_and_all_its_other_names_are_as_without_the_hook",
            "nvml::nvml_queries_do_not_start_the_governor_and_children_are_governed_on_their_own",
        ],
    ),
    row(
        "calls",
        "null stream by every call that makes another context current, or none",
        &[
            "calls::the_null_stream_is_the_current_contexts_however_that_became_current",
            "calls::a_context_that_no_interposed_function_has_seen_is_current_all_the_same",
        ],
    ),
    row(
        "calls",
        "free under another context and device",
        &["calls::memory_is_freed_under_any_context_and_charged_to_its_own_device"],
    ),
    row(
        "calls",
        "`cuMemCreate` of host memory",
        &["calls::memory_of_the_host_made_by_mem_create_is_not_refused"],
    ),
    row(
        "calls",
        "memory that another library of a Python process caches",
        &[
            "reclaim::cached_memory_is_released_for_another_library",
            "reclaim::caches_are_kept_if_the_user_says_so",
            "reclaim::an_owner_that_raises_or_is_not_there_does_no_harm",
            "reclaim::an_exception_that_is_being_raised_stays",
            "reclaim::an_interpreter_that_is_held_elsewhere_delays_a_refusal_and_no_more",
            "reclaim::threads_that_hold_the_interpreter_and_let_it_go_do_not_block_requests",
        ],
    ),
    row(
        "calls",
        "contexts that are reset or destroyed",
        &[
            "calls::resetting_a_context_frees_everything_to_the_byte",
            "calls::destroying_a_context_frees_everything_to_the_byte",
            "calls::memory_in_a_streams_order_outlives_its_context_and_stays_its_tenants",
            "streams::destroyed_contexts_leave_what_others_still_use",
            "calls::the_last_detach_destroys_a_context",
            "calls::contexts_created_and_destroyed_in_several_threads_keep_their_own_blocks",
        ],
    ),
    row(
        "calls",
        "lives of physical memory",
        &["calls::physical_memory_is_charged_until_its_last_handle_and_mapping_are_gone"],
    ),
    row(
        "calls",
        "the driver's pools",
        &[
            "calls::the_drivers_pools_are_answered_for_as_by_the_driver",
            "calls::each_of_the_drivers_pools_has_its_own_figures",
        ],
    ),
    row(
        "calls",
        "`cudaMallocAsync` and `cudaFreeAsync` that need nothing of the runtime library",
        &[
            "runtime::calls_that_the_pool_can_serve_do_not_reach_the_runtime_library",
            "runtime::ledger_and_trace_are_the_same_whether_calls_reach_the_runtime_library_or_not",
        ],
    ),
    row(
        "calls",
        "`cudaMallocAsync` and `cudaFreeAsync` that do",
        &[
            "runtime::a_denied_allocation_reaches_the_runtime_library_and_is_reported_once",
            "runtime::captured_calls_reach_the_runtime_library",
            "runtime::without_a_live_current_context_the_runtime_library_handles_the_call",
            "runtime::in_an_exiting_thread_and_in_the_child_of_a_fork_the_runtime_library_handles_the_call",
            "runtime::with_the_kill_switch_every_call_reaches_the_runtime_library",
        ],
    ),
    row(
        "calls",
        "`cudaGetDevice`; devices that the runtime library makes current late",
        &[
            "runtime::the_current_device_is_returned_without_the_runtime_library",
            "runtime::if_a_device_is_set_before_its_context_is_current_the_runtime_library_handles_the_call",
        ],
    ),
    row(
        "calls",
        "a defect of ours is not the program's",
        &[
            "defects::a_panicking_interposed_function_leaves_the_call_to_the_driver",
            "runtime::a_panicking_interposed_function_leaves_the_call_to_the_runtime_library",
            "defects::a_panic_in_any_interposed_function_does_not_end_the_program",
            "defects::diagnostics_that_cannot_be_written_do_no_harm",
        ],
    ),
    row(
        "calls",
        "every function, with nothing but zeros",
        &["defects::every_function_called_with_zeros_returns_what_the_driver_returns"],
    ),
    row(
        "streams",
        "a late kernel, free, allocate: each kind of stream",
        &[
            "streams::memory_read_late_in_the_legacy_stream_is_not_given_away",
            "streams::memory_read_late_in_the_legacy_stream_by_its_name_is_not_given_away",
            "streams::memory_read_late_in_a_threads_default_stream_is_not_given_away",
            "streams::memory_read_late_in_a_default_stream_of_the_twins_is_not_given_away",
            "streams::memory_read_late_in_a_blocking_stream_is_not_given_away",
            "streams::memory_read_late_in_a_non_blocking_stream_is_not_given_away",
            "streams::memory_read_late_in_a_stream_of_high_priority_is_not_given_away",
            "streams::a_streams_own_block_is_used_again_at_once",
        ],
    ),
    row("streams", "green contexts", &[]).on_gpu(&["green_contexts"]),
    row(
        "streams",
        "from stream to stream",
        &["streams::memory_that_goes_from_stream_to_stream_is_ordered"],
    ),
    row(
        "streams",
        "default streams of threads",
        &["streams::threads_with_default_streams_of_their_own_share_nothing_unordered"],
    ),
    row(
        "streams",
        "destroyed streams and their handles used again",
        &["streams::destroyed_streams_keep_what_they_still_read"],
    ),
    row(
        "streams",
        "allocate, free and grow beside each mode of capture",
        &[
            "streams::a_global_capture_goes_on_while_others_allocate_free_and_grow",
            "streams::a_thread_local_capture_goes_on_while_others_allocate_free_and_grow",
            "streams::a_relaxed_capture_goes_on_while_others_allocate_free_and_grow",
            "calls::frees_of_other_memory_in_a_capture_are_answered_as_by_the_driver",
        ],
    ),
    row(
        "streams",
        "replay after the pool has changed",
        &["streams::graphs_read_what_they_captured_while_the_pool_changes"],
    ),
    row(
        "streams",
        "memory of graphs; freed at the next launch",
        &["streams::memory_that_a_graph_allocates_is_the_graphs_and_freed_with_it"],
    ),
    row(
        "streams",
        "random programs have no hazard, and with a rule broken have",
        &[
            "streams::random_programs_of_several_streams_have_no_hazard",
            "streams::a_broken_rule_of_reuse_is_detected",
            "streams::memory_reused_behind_a_wait_is_waited_for_again",
            "streams::a_wait_that_covers_too_much_is_detected",
        ],
    ),
    row(
        "sharing",
        "numbers of buffers",
        &["calls::buffer_ids_are_never_used_again"],
    ),
    row(
        "sharing",
        "ranges and attributes",
        &["calls::ranges_and_attributes_are_those_of_the_allocation"],
    ),
    row(
        "sharing",
        "copies between devices",
        &["calls::copies_between_devices_find_blocks_of_both"],
    )
    .on_gpu(&["copies_between_devices"]),
    row(
        "sharing",
        "kernels that use another device's memory",
        &[
            "calls::a_device_uses_the_memory_of_a_peer_whenever_that_was_allocated",
            "calls::a_device_uses_the_memory_of_a_pool_that_was_opened_to_it",
            "calls::slabs_cannot_be_granted_as_a_pool_and_the_program_gets_an_error",
            "calls::a_kernel_that_has_no_access_to_another_device_fails",
        ],
    )
    .on_gpu(&["access_between_devices"]),
    row(
        "sharing",
        "no IPC handle of foreign memory",
        &[
            "calls::a_block_has_no_handle_to_foreign_memory",
            "ipc::only_memory_reported_as_ipc_capable_can_be_shared",
        ],
    ),
    row(
        "sharing",
        "IPC at an offset, both ways; several blocks of a slab, opened twice, closed in any order",
        &[
            "ipc::a_process_reads_and_changes_what_another_wrote_at_an_offset",
            "ipc::blocks_of_any_size_are_opened_at_their_own_start_and_kept_while_they_are_open",
            "ipc::a_block_is_open_once_and_a_slab_until_its_last_block_is_closed",
            "ipc::blocks_shared_in_random_order_hold_what_either_side_wrote",
        ],
    )
    .on_gpu(&["memory_is_shared_between_processes"]),
    row(
        "sharing",
        "IPC with a process without the hook: an error, and its own memory as ever",
        &["ipc::a_process_without_the_hook_gets_an_error_and_can_share_its_own_memory"],
    )
    .on_gpu(&["who_has_no_hook_opens_no_block"]),
    row(
        "sharing",
        "IPC and ends: of a block, of a context, of either process",
        &[
            "ipc::memory_freed_while_another_process_has_it_open_is_not_reused",
            "ipc::memory_that_a_killed_process_had_open_is_reused",
            "ipc::memory_of_a_killed_process_can_be_closed_and_not_opened",
            "ipc::blocks_are_closed_with_the_context_that_opened_them_and_with_their_own",
            "ipc::a_block_is_closed_behind_the_work_that_reads_it",
            "ipc::an_owner_that_is_stopped_is_waited_for_a_bounded_time",
            "ipc::without_free_descriptors_a_block_is_refused_and_nothing_is_left_open",
            "ipc::children_of_an_owner_neither_export_nor_answer_nor_end_what_it_shares",
        ],
    ),
    row(
        "sharing",
        "IPC handles that were made up, and shares that were tampered with",
        &[
            "ipc::handles_and_shares_that_were_tampered_with_open_nothing",
            "ipc::a_share_that_was_replaced_by_its_copy_opens_nothing",
        ],
    ),
    row(
        "sharing",
        "dmabuf",
        &["calls::descriptors_of_address_ranges_are_answered_as_by_the_driver"],
    )
    .on_gpu(&["descriptors_of_address_ranges"]),
    row(
        "slabs",
        "calls, random programs, limits and figures with `FERCUDA_BACKING=slabs`",
        &[
            "slabs::calls_are_answered_over_slabs_as_by_the_driver",
            "slabs::random_programs_are_answered_over_slabs_as_by_the_driver_alone",
            "slabs::the_limit_holds_over_slabs_and_freed_memory_is_reused",
            "slabs::the_drivers_figures_are_those_of_slabs",
            "slabs::a_double_free_of_a_slabs_first_block_does_not_free_the_slab",
        ],
    ),
    row(
        "slabs",
        "streams and captures",
        &[
            "slabs::programs_of_several_streams_have_no_hazard_over_slabs",
            "slabs::captures_continue_while_slabs_are_allocated_and_freed",
        ],
    ),
    row(
        "slabs",
        "the context that owns them is destroyed, others live on",
        &[
            "slabs::destroying_a_context_frees_its_slabs_and_no_other_contexts_memory",
            "slabs::stream_ordered_memory_is_freed_with_its_slabs_and_a_diagnostic_reports_it",
            "slabs::a_devices_slabs_belong_to_its_own_contexts_whichever_thread_allocates_first",
        ],
    ),
    row("frameworks", "PyTorch, JAX, CuPy, Triton", &[]),
];

/// Tests by their names, and whether they passed.
pub(crate) type Results = BTreeMap<String, bool>;

/// Runs the hook's suite.
pub(crate) fn run(suite: &Path) -> Result<Results> {
    println!("\n-- the hook's conformance list");
    let mut results = Results::new();
    // A folder of the crate, as cargo starts it in.
    let mut command = shell::command(suite);
    command.current_dir(shell::root().join("crates/hook"));
    let succeeded = shell::watch(command, |line| {
        println!("{line}");
        let named = line
            .strip_prefix("test ")
            .and_then(|it| it.split_once(" ... "));
        if let Some((name, outcome)) = named {
            results.insert(name.to_owned(), outcome == "ok");
        }
    })?;
    if !succeeded && results.values().all(|passed| *passed) {
        results.insert("the test program itself".to_owned(), false);
    }
    for name in ROWS.iter().flat_map(|row| row.tests) {
        // What did not run did not pass.
        results.entry((*name).to_owned()).or_insert(false);
    }
    for stray in strays(&results) {
        results.insert(format!("{stray} (in no row)"), false);
    }
    Ok(results)
}

/// Tests that no row names.
fn strays(results: &Results) -> Vec<String> {
    let names = results.keys();
    names
        .filter(|name| ROWS.iter().all(|row| !row.tests.contains(&name.as_str())))
        .cloned()
        .collect()
}

/// The list with its results, as a table.
pub(crate) fn table(results: &Results, record: Option<&Record>) -> String {
    let mut text = String::from("| about | what | shown by | result |\n|---|---|---|---|\n");
    for row in ROWS {
        let (shown, result) = shown(row, results, record);
        let Row { about, what, .. } = row;
        // Writing to a String cannot fail.
        let _infallible = writeln!(text, "| {about} | {what} | {shown} | {result} |");
    }
    for stray in results.keys().filter(|name| name.contains(' ')) {
        let _infallible = writeln!(text, "| | {stray} | | **failed** |");
    }
    let _infallible = match record {
        Some(record) => writeln!(text, "\n{record}"),
        None => writeln!(text, "\nNothing is recorded of a GPU."),
    };
    text
}

/// What shows a row, and what came of it.
fn shown(row: &Row, results: &Results, record: Option<&Record>) -> (String, String) {
    let named = |name: &&str| format!("`{name}`");
    let mut shown: Vec<String> = row.tests.iter().map(named).collect();
    let mut result = Vec::new();
    if !row.tests.is_empty() {
        let passed = |name: &&str| results.get(*name) == Some(&true);
        result.push(match row.tests.iter().all(passed) {
            true => "passed".to_owned(),
            false => "**failed**".to_owned(),
        });
    }
    for name in row.on_gpu {
        shown.push(format!("on a GPU: `{name}`"));
        let recorded = record.map(|record| record.result(name));
        result.push(recorded.unwrap_or_else(|| "not run on a GPU".to_owned()));
    }
    if shown.is_empty() {
        shown.push("on a GPU: `tests/gpu/regime/judge.py`".to_owned());
        result.push("[its figures](bench-log/history.md)".to_owned());
    }
    result.dedup();
    (shown.join("<br>"), result.join("<br>"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_names_tests_that_are_there() {
        for name in ROWS.iter().flat_map(|row| row.tests) {
            let (module, name) = name.split_once("::").expect("a module and a name");
            let file = shell::root().join(format!("crates/hook/tests/suite/{module}.rs"));
            let text = std::fs::read_to_string(&file).expect("a module of the suite");
            let is_there =
                text.contains(&format!("fn {name}()")) || text.contains(&format!("    {name} = "));
            assert!(is_there, "{module}::{name}");
        }
    }

    #[test]
    fn every_case_of_a_gpu_is_in_a_row_and_every_rows_case_is_there() {
        let file = shell::root().join("tests/gpu/regime/conformance.py");
        let text = std::fs::read_to_string(&file).expect("the runner of the cases");
        let cases = text.split("\n@case\ndef ").skip(1);
        let cases: Vec<&str> = cases.filter_map(|part| part.split('(').next()).collect();
        let rows: Vec<&str> = ROWS.iter().flat_map(|row| row.on_gpu).copied().collect();
        for name in &cases {
            assert!(rows.contains(name), "{name} is in no row");
        }
        for name in &rows {
            assert!(cases.contains(name), "{name} is no case");
        }
    }

    #[test]
    fn what_is_not_recorded_has_not_passed() {
        let row = row("loader", "a row", &[]).on_gpu(&["one", "two"]);
        let (shown, result) = shown(&row, &Results::new(), None);
        assert_eq!(shown, "on a GPU: `one`<br>on a GPU: `two`");
        assert_eq!(result, "not run on a GPU");
    }

    #[test]
    fn every_test_of_the_suite_is_in_a_row() {
        for module in [
            "loader",
            "process",
            "runtime",
            "calls",
            "defects",
            "differential",
            "ipc",
            "nvml",
            "reclaim",
            "slabs",
            "streams",
        ] {
            let file = shell::root().join(format!("crates/hook/tests/suite/{module}.rs"));
            let text = std::fs::read_to_string(&file).expect("a module of the suite");
            for part in text.split("#[test]\nfn ").skip(1) {
                let name = part.split("()").next().expect("a name");
                let full = format!("{module}::{name}");
                assert!(
                    ROWS.iter().any(|row| row.tests.contains(&full.as_str())),
                    "{full}"
                );
            }
        }
    }
}
