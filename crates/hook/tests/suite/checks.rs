//! The software device's checks under the hook.

use super::support::{Run, hooked, plain};

/// The findings that were printed: class, access and allocation, without addresses.
fn findings(run: &Run) -> Vec<String> {
    let is_part = |line: &&str| {
        let classes = [
            "out of bounds",
            "uninitialised read",
            "use after free",
            "   memory:",
        ];
        classes.iter().any(|class| line.starts_with(class)) || line.contains(" bytes, ")
    };
    let without_addresses = |line: &str| {
        let mut parts = line.split("0x");
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| {
            text + part.trim_start_matches(|c: char| c.is_ascii_hexdigit())
        })
    };
    // Allocations are numbered in the order of their making, which the hook's own may precede.
    let without_number = |line: String| {
        let words = line.split(' ');
        let kept = words.filter(|word| word.is_empty() || word.parse::<u64>().is_err());
        kept.collect::<Vec<_>>().join(" ")
    };
    let lines = run.stderr.lines();
    let lines = lines.map(|line| line.strip_prefix("feRcuda: ").unwrap_or(line));
    let lines = lines.filter(is_part);
    lines
        .map(without_addresses)
        .map(|line| match line.contains(" allocation ") {
            true => without_number(line),
            false => line,
        })
        .collect()
}

const SIZES: [&str; 12] = [
    "4", "100", "256", "512", "1000", "4096", "65536", "1048576", "1049088", "2097152", "2097156",
    "33554432",
];

#[test]
fn blocks_of_any_size_are_checked_as_by_the_driver_alone() {
    let check = |client: super::support::Client| {
        let client = client
            .env("FERCUDA_SOFT_CHECK", "1")
            .env("FERCUDA_SOFT_CHECK_EXIT", "77");
        let run = client.run();
        assert_eq!(run.code, 77, "{}\n{}", run.stdout, run.stderr);
        assert!(run.stdout.ends_with("end\n"), "{}", run.stdout);
        run
    };
    for bytes in SIZES {
        for ordered in ["0", "1"] {
            let args = [bytes, ordered];
            let alone = check(plain("bounds.c", &args));
            let governed = check(hooked("bounds.c", &args));
            assert_eq!(governed.stdout, alone.stdout, "{args:?}");
            let expected = findings(&alone);
            assert_eq!(findings(&governed), expected, "{args:?}");
            for class in ["out of bounds", "uninitialised read", "use after free"] {
                let is_found = expected.iter().any(|line| line.starts_with(class));
                assert!(is_found, "{class} with {args:?}: {expected:#?}");
            }
        }
    }
}

#[test]
fn a_limit_holds_where_accesses_are_checked() {
    let client = hooked("bounds.c", &["33554432", "0"]).env("FERCUDA_SOFT_CHECK", "1");
    let run = client.env("FERCUDA_LIMIT", "64MiB").run();
    // Three blocks of 32 MiB are too many.
    assert_eq!(run.code, 3, "{}\n{}", run.stdout, run.stderr);
    assert!(run.stdout.contains("answered 2\n"), "{}", run.stdout);
}
