//! Tests that every way in which a program finds the driver leads to the hook, and that all
//! other lookups are unchanged.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use fercuda_cuda_sys::{ENTRIES, Resolution, UNTYPED, resolve};

use crate::support::{Client, compiled, compiled_as, counts, driver, first, hook, hooked, sources};

/// The prefix of our variables, for a misspelt one.
const OURS: &str = "FERCUDA_";

const USED: &str = "code 0, holds 42\n";

/// Runs the loader's program under the hook.
fn loaded(args: &[&str]) -> Client {
    Client::new(compiled("loader.c", false), args).hooked()
}

/// Asserts that the program's one allocation and its free are in the ledger and charged to
/// `tenant`.
#[track_caller]
fn is_governed(client: Client, tenant: &str) {
    let run = client.run().succeeds();
    assert!(run.stdout.ends_with(USED), "{}", run.stdout);
    assert_eq!(run.stderr, "");
    assert_eq!(counts(run.ledger()), (1, 1));
    let names: Vec<&str> = run
        .ledger()
        .tenants
        .iter()
        .map(|it| it.name.as_str())
        .collect();
    assert!(names.contains(&tenant), "{names:?}");
    let row = first(run.ledger());
    assert_eq!((row.live_bytes, row.ungoverned_bytes), (0, 0));
    assert!(row.peak_bytes >= 1 << 20, "{row:?}");
}

#[test]
fn a_program_linked_to_the_driver_is_governed() {
    let run = hooked("calls.c", &["one"]).run().succeeds();
    assert_eq!(
        (run.stdout.as_str(), run.stderr.as_str()),
        ("holds 3\nend\n", "")
    );
    assert_eq!(counts(run.ledger()), (1, 1));
}

#[test]
fn dlopen_of_the_soname_is_governed() {
    is_governed(loaded(&["soname"]), "loader");
    is_governed(loaded(&["lazy"]), "loader");
}

#[test]
fn dlopen_of_the_short_name_is_governed() {
    is_governed(loaded(&["short"]), "loader");
}

#[test]
fn dlopen_of_an_absolute_path_is_governed() {
    is_governed(loaded(&["path", driver().to_str().unwrap()]), "loader");
}

#[test]
fn dlopen_with_deepbind_is_governed() {
    is_governed(loaded(&["deepbind"]), "loader");
    let plugin = compiled("plugin.c", true);
    is_governed(loaded(&["plugin", plugin.to_str().unwrap()]), "plugin");
}

#[test]
fn functions_found_as_the_runtime_library_finds_them_are_governed() {
    is_governed(loaded(&["runtime"]), "loader");
}

#[test]
fn ctypes_is_governed() {
    let script = sources().join("by_ctypes.py");
    let python = std::env::var("FERCUDA_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    is_governed(
        Client::new(python, &[script.to_str().unwrap()]).hooked(),
        "python",
    );
}

/// Two libraries of one source have their code at the same addresses, if the second takes the
/// first one's place.
#[test]
fn a_library_in_place_of_one_that_was_unloaded_is_another_tenant() {
    let options = ["-shared", "-fPIC", "-lcuda"];
    let of_name = |name: &str| compiled_as(name, "plugin.c", &options);
    let (first, second) = (of_name("libfirst.so"), of_name("libsecond.so"));
    let (first, second) = (first.to_str().unwrap(), second.to_str().unwrap());
    // What the driver's start loads comes to lie beside the first.
    let program = compiled("unloads.c", false);
    let names = [first, first, second, second, first];
    let run = Client::new(program, &names).hooked().run().succeeds();
    assert!(
        run.stdout.contains("in place of another\n"),
        "{}",
        run.stdout
    );
    assert_eq!(run.stdout.matches(USED).count(), 5, "{}", run.stdout);
    assert_eq!(counts(run.ledger()), (5, 5));
    let allocations = |name: &str| {
        let tenants = run.ledger().tenants.iter();
        let of_name = tenants.filter(|it| it.name == name);
        let accounts = of_name.flat_map(|it| &it.accounts);
        accounts.map(|it| it.allocs).sum::<u64>()
    };
    assert_eq!((allocations("first"), allocations("second")), (3, 2));
}

#[test]
fn dlmopen_is_reported() {
    let driver = driver();
    let run = loaded(&["namespace", driver.to_str().unwrap()])
        .run()
        .succeeds();
    assert_eq!(run.stdout, USED);
    assert!(run.stderr.contains("dlmopen"), "{}", run.stderr);
    assert!(run.stderr.contains("not governed"), "{}", run.stderr);
    assert!(run.ledgers.is_empty(), "nothing of it is governed");
}

#[test]
fn rtld_next_finds_the_next_one_twice_in_a_row() {
    let run = loaded(&["next"]).run().succeeds();
    assert_eq!(run.stdout, format!("next: another, the same again\n{USED}"));
    assert_eq!(counts(run.ledger()), (1, 1));
}

#[test]
fn dlvsym_answers_as_without_the_hook() {
    let plain = Client::new(compiled("loader.c", false), &["versions"]);
    let (plain, hooked) = (
        plain.plain().run().succeeds(),
        loaded(&["versions"]).run().succeeds(),
    );
    assert_eq!(plain.stdout, hooked.stdout);
    assert!(plain.stdout.contains("malloc of no version: none"));
    assert_eq!(counts(hooked.ledger()), (1, 1));
}

#[test]
fn unknown_symbols_and_libraries_are_answered_as_without_the_hook() {
    let plain = Client::new(compiled("loader.c", false), &["unknown"]);
    let (plain, hooked) = (
        plain.plain().run().succeeds(),
        loaded(&["unknown"]).run().succeeds(),
    );
    assert_eq!(plain.stdout, hooked.stdout);
    assert!(plain.stdout.contains("cuThereIsNoSuchThing: 0 1 1"));
}

#[test]
fn every_symbol_of_the_driver_is_exported() {
    let mut names = String::new();
    for entry in ENTRIES {
        writeln!(names, "{}", entry.name).unwrap();
        if let Some((twin, _)) = entry.per_thread {
            writeln!(names, "{twin}").unwrap();
        }
    }
    for name in UNTYPED {
        writeln!(names, "{name}").unwrap();
    }
    let run = loaded(&["symbols"]).run_with(&names).succeeds();
    let missing: Vec<&str> = run
        .stdout
        .lines()
        .filter(|line| line.ends_with(" 0"))
        .collect();
    assert_eq!(missing, Vec::<&str>::new());
    assert_eq!(run.stdout.lines().count(), names.lines().count());
    assert!(names.lines().count() > 600);
}

/// The result of a request to `cuGetProcAddress`: codes, and the function's library and
/// offset.
struct Answer {
    codes: String,
    file: String,
    place: String,
}

fn answers(client: Client, requests: &str) -> BTreeMap<String, Answer> {
    let run = client.run_with(requests).succeeds();
    let lines = run.stdout.lines().map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let [base, version, flags, code, status, same, file, place] = words[..] else {
            panic!("{line}");
        };
        assert_eq!(same, "1", "asked twice, and by the older function: {line}");
        let answer = Answer {
            codes: format!("{code} {status}"),
            file: file.to_owned(),
            place: place.to_owned(),
        };
        (format!("{base} {version} {flags}"), answer)
    });
    lines.collect()
}

/// The symbol that a request is for.
fn symbol(request: &str) -> Option<&'static str> {
    let mut words = request.split(' ');
    let (base, version) = (words.next()?, words.next()?.parse().ok()?);
    match resolve(base, version, words.next()?.parse().ok()?) {
        Resolution::Symbol(name) => Some(name),
        _ => None,
    }
}

/// Functions that a program may only reach interposed, by symbol.
const GOVERNED: [&str; 14] = [
    "cuMemAlloc_v2",
    "cuMemAllocPitch_v2",
    "cuMemAllocManaged",
    "cuMemFree_v2",
    "cuMemAllocAsync",
    "cuMemAllocAsync_ptsz",
    "cuMemFreeAsync",
    "cuMemFreeAsync_ptsz",
    "cuMemAllocFromPoolAsync_ptsz",
    "cuMemCreate",
    "cuMemGetInfo_v2",
    "cuCtxDestroy_v2",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
];

#[test]
fn every_entry_resolves_to_the_drivers_function_or_to_its_interposed_one() {
    let mut requests = String::new();
    let mut versions: Vec<u32> = ENTRIES.iter().map(|entry| entry.since).collect();
    versions.extend([2000, 13000, 13010, 1]);
    versions.sort_unstable();
    versions.dedup();
    let mut bases: Vec<&str> = ENTRIES.iter().map(|entry| entry.base).collect();
    bases.sort_unstable();
    bases.dedup();
    for base in &bases {
        for version in &versions {
            for flags in 0..4 {
                writeln!(requests, "{base} {version} {flags}").unwrap();
            }
        }
    }
    let plain = Client::new(compiled("loader.c", false), &["resolve"]).plain();
    let (plain, hooked) = (
        answers(plain, &requests),
        answers(loaded(&["resolve"]), &requests),
    );
    assert_eq!(plain.len(), hooked.len());
    let hook = hook().file_name().unwrap().to_str().unwrap();
    // The driver's function of each interposed one, and the other way round.
    let (mut behind, mut before) = (BTreeMap::new(), BTreeMap::new());
    let (mut same, mut exchanged) = (0, Vec::new());
    for (request, plain) in &plain {
        let hooked = &hooked[request];
        assert_eq!(plain.codes, hooked.codes, "{request}");
        if hooked.file == hook {
            exchanged.extend(symbol(request));
            let function = behind.entry(&hooked.place).or_insert(&plain.place);
            assert_eq!(*function, &plain.place, "{request}");
            let door = before.entry(&plain.place).or_insert(&hooked.place);
            assert_eq!(*door, &hooked.place, "{request}");
        } else {
            same += 1;
            assert_eq!((&plain.file, &plain.place), (&hooked.file, &hooked.place));
            assert!(!before.contains_key(&hooked.place), "{request}");
        }
    }
    for name in GOVERNED {
        assert!(exchanged.contains(&name), "{name}");
    }
    assert!(same > 10_000 && exchanged.len() > 1000);
}

#[test]
fn the_kill_switch_leaves_the_driver_alone() {
    for args in [&["soname"][..], &["runtime"], &["short"]] {
        let run = loaded(args).env("FERCUDA_DISABLE", "1");
        // Off, the hook leaves names alone too.
        let run = run
            .env("LD_LIBRARY_PATH", driver().parent().unwrap())
            .run()
            .succeeds();
        assert_eq!((run.stdout.as_str(), run.stderr.as_str()), (USED, ""));
        assert!(run.ledgers.is_empty());
    }
}

#[test]
fn without_a_driver_a_program_fails_as_it_would() {
    for name in ["soname", "short"] {
        let alone = Client::new(compiled("loader.c", false), &[name]).run();
        let loaded = Client::new(compiled("loader.c", false), &[name])
            .preloaded()
            .env("FERCUDA_DRIVER", "/nonexistent/libcuda.so.1")
            .run();
        assert_eq!((alone.code, loaded.code), (4, 4), "{}", loaded.stdout);
        assert!(alone.stdout.starts_with("cannot open: libcuda.so"));
        // Programs recognise a missing driver by these words.
        let words = "/libcuda.so.1: cannot open shared object file: No such file or directory\n";
        assert!(loaded.stdout.ends_with(words), "{}", loaded.stdout);
        assert_eq!(loaded.stderr, "");
        assert!(loaded.ledgers.is_empty());
    }
}

#[test]
fn a_linked_program_without_a_driver_gets_the_stub_librarys_error() {
    let run = Client::new(compiled("calls.c", true), &["before_init"])
        .preloaded()
        .env("FERCUDA_DRIVER", "/nonexistent/libcuda.so.1")
        .run();
    // cuMemAlloc = CUDA_ERROR_STUB_LIBRARY, and so on to cuInit, which ends it.
    assert!(
        run.stdout.starts_with("cuMemAlloc_v2(&p, 100) = 34\n"),
        "{}",
        run.stdout
    );
    assert!(
        run.stdout.contains("cuInit(0) answered 34"),
        "{}",
        run.stdout
    );
    assert_eq!((run.code, run.stderr.as_str()), (3, ""));
}

#[test]
fn the_driver_is_used_in_a_librarys_constructor_while_others_use_it_first() {
    let library = compiled_as("libearly.so", "early.c", &["-shared", "-fPIC"]);
    let program = compiled_as("constructor", "constructor.c", &["-rdynamic", "-lcuda"]);
    let args = &[library.to_str().unwrap(), "48"];
    for backing in ["vmm", "slabs"] {
        let run = Client::new(&program, args)
            .hooked()
            .env("FERCUDA_BACKING", backing)
            .run();
        assert_eq!((run.stdout.as_str(), run.code), ("0 failed\n", 0));
        assert_eq!(run.stderr, "");
    }
}

#[test]
fn a_c_library_that_is_preloaded_first_has_the_loaders_functions() {
    let both = format!("libc.so.6:{}", hook().display());
    let run = hooked("calls.c", &["one"])
        .env("LD_PRELOAD", &both)
        .run()
        .succeeds();
    assert_eq!(run.stdout, "holds 3\nend\n");
    assert_eq!(counts(run.ledger()), (1, 1));
}

#[test]
fn unknown_variables_are_warned_about() {
    let run = loaded(&["soname"])
        .env(&format!("{OURS}LIMTI"), "1GiB")
        .run()
        .succeeds();
    assert_eq!(run.stdout, USED);
    let lines: Vec<&str> = run.stderr.lines().collect();
    assert!(
        lines[0].contains(&format!("{OURS}LIMTI is not a variable")),
        "{lines:?}"
    );
    assert!(lines[1].contains("try: FERCUDA_LIMIT"), "{lines:?}");
    assert_eq!(lines.len(), 2);
}

#[test]
fn invalid_values_are_warned_about_and_count_as_unset() {
    let run = loaded(&["soname"])
        .env("FERCUDA_LIMIT", "much")
        .run()
        .succeeds();
    assert_eq!(run.stdout, USED);
    assert!(
        run.stderr.contains("FERCUDA_LIMIT=\"much\""),
        "{}",
        run.stderr
    );
    assert_eq!(first(run.ledger()).limit_bytes, None);
}
