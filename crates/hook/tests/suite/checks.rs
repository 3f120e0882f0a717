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

/// More than 64 sizes: powers of two, a word more, half as much again, 512 bytes more.
fn sizes() -> impl Iterator<Item = u64> {
    (2..19).flat_map(|shift| {
        let power: u64 = 1 << shift;
        let half_more = (power + power / 2).next_multiple_of(4);
        [power, power + 4, half_more, power + 512]
    })
}

/// Larger ones, up to several strides of a pool.
const LARGE: [u64; 4] = [(1 << 20) + 512, 2 << 20, (2 << 20) + 4, 32 << 20];

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
    let mut sizes: Vec<u64> = sizes().chain(LARGE).collect();
    sizes.sort_unstable();
    sizes.dedup();
    assert!(sizes.len() >= 64, "{sizes:?}");
    let texts: Vec<String> = sizes.iter().map(u64::to_string).collect();
    for ordered in ["0", "1"] {
        let args: Vec<&str> = [ordered]
            .into_iter()
            .chain(texts.iter().map(|it| &**it))
            .collect();
        let alone = check(plain("bounds.c", &args));
        let governed = check(hooked("bounds.c", &args));
        assert_eq!(governed.stdout, alone.stdout, "{args:?}");
        let expected = findings(&alone);
        assert_eq!(findings(&governed), expected, "{args:?}");
        // What is found of each size follows the line that names it.
        let mut found = expected.split(|line| line.contains(" bytes, "));
        assert_eq!(found.next(), Some(&[][..]));
        for (size, found) in sizes.iter().zip(&mut found) {
            for class in ["out of bounds", "uninitialised read", "use after free"] {
                let is_found = found.iter().any(|line| line.starts_with(class));
                assert!(is_found, "{class} of {size} bytes, {ordered}: {found:#?}");
            }
        }
        assert_eq!(found.next(), None);
    }
}

#[test]
fn a_limit_holds_where_accesses_are_checked() {
    let client = hooked("bounds.c", &["0", "33554432"]).env("FERCUDA_SOFT_CHECK", "1");
    let run = client.env("FERCUDA_LIMIT", "64MiB").run();
    // Three blocks of 32 MiB are too many.
    assert_eq!(run.code, 3, "{}\n{}", run.stdout, run.stderr);
    assert!(run.stdout.contains("answered 2\n"), "{}", run.stdout);
}
