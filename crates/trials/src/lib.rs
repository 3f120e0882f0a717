//! Seeds, budgets and recorded failures of randomised tests.
//!
//! A randomised test draws a fresh seed, prints it, and works until its budget is spent.
//! `FERCUDA_SEED` repeats a run; `FERCUDA_BUDGET` says how long the work may take: `ci` (the
//! default) a fixed time, `soak` a fixed amount, a number that many seconds. A seed that failed
//! is recorded in a file of the crate's folder `tests/regressions` and is run each time from
//! then on.
//!
//! Invariant: whatever the budget, a test does the least amount that its [`Work`] names, so a
//! slow machine cannot turn it into a test of nothing.
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    reason = "a failed test shows what was printed, and a seed has to be among it"
)]

mod mutation;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

pub use mutation::{corpus, read_input, try_corpus, try_mutations};

/// The variable that repeats a run.
const SEED: &str = "FERCUDA_SEED";
/// The variable that says how much is tried.
const BUDGET: &str = "FERCUDA_BUDGET";
/// Where a crate keeps the seeds that failed.
const REGRESSIONS: &str = "tests/regressions";

/// The seed of this run: `FERCUDA_SEED`, decimal or with `0x`, else a fresh one. It is printed,
/// so that the output of a failed test has it.
///
/// # Panics
/// If the variable is set and is no number.
pub fn seed() -> u64 {
    let seed = match std::env::var(SEED) {
        Ok(text) => parse_seed(&text)
            .unwrap_or_else(|| panic!("{SEED} is `{text}`: try a number, as 123 or 0x7b")),
        Err(_) => fastrand::u64(..),
    };
    println!("{SEED}={seed}");
    seed
}

/// A generator of random numbers from [`seed`].
pub fn rng() -> fastrand::Rng {
    fastrand::Rng::with_seed(seed())
}

fn parse_seed(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// A kind of randomised work, counted in steps of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// The name of its folder of recorded failures, in kebab case.
    pub name: &'static str,
    /// Steps that are done whatever the time.
    pub least: u64,
    /// Seconds that `FERCUDA_BUDGET=ci` grants.
    pub ci_seconds: u64,
    /// Steps that `FERCUDA_BUDGET=soak` asks for, however long they take.
    pub soak: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    Time(Duration),
    Steps(u64),
}

/// What is left of the time or the steps that a [`Work`] may take.
#[derive(Debug)]
pub struct Budget {
    work: Work,
    limit: Limit,
    begun: Instant,
}

impl Budget {
    /// Starts the clock.
    ///
    /// # Panics
    /// If `FERCUDA_BUDGET` is set and is none of `ci`, `soak` and a number of seconds.
    pub fn begin(work: Work) -> Budget {
        let text = std::env::var(BUDGET).unwrap_or_else(|_| "ci".to_owned());
        let limit = limit(work, &text).unwrap_or_else(|| {
            panic!("{BUDGET} is `{text}`: try ci, soak or a number of seconds, as 60")
        });
        Budget {
            work,
            limit,
            begun: Instant::now(),
        }
    }

    /// Whether there is more to do after `done` steps.
    pub fn has_left(&self, done: u64) -> bool {
        done < least(self.work)
            || match self.limit {
                Limit::Time(time) => self.begun.elapsed() < time,
                Limit::Steps(steps) => done < steps,
            }
    }

    /// Steps that are asked for, where the budget is a number of steps. For work that is
    /// planned ahead: the least amount, if it is a time.
    pub fn planned_steps(&self) -> u64 {
        match self.limit {
            Limit::Time(_) => least(self.work),
            Limit::Steps(steps) => steps.max(least(self.work)),
        }
    }
}

/// A hundredth under Miri, whose steps take some hundred times as long.
fn least(work: Work) -> u64 {
    match cfg!(miri) {
        true => work.least.div_ceil(100),
        false => work.least,
    }
}

fn limit(work: Work, text: &str) -> Option<Limit> {
    match text {
        "ci" => Some(Limit::Time(Duration::from_secs(work.ci_seconds))),
        "soak" => Some(Limit::Steps(work.soak)),
        seconds => Some(Limit::Time(Duration::from_secs(seconds.parse().ok()?))),
    }
}

/// A seed that failed once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The file's name, which is the name of the regression test.
    pub name: String,
    /// Its first line.
    pub seed: u64,
}

/// The recorded failures of `work`, sorted by name: files in `tests/regressions/WORK` of the
/// crate in `crate_root` (`env!("CARGO_MANIFEST_DIR")`), whose first line is a seed.
///
/// # Panics
/// If a file cannot be read or does not begin with a seed.
pub fn recorded(crate_root: &str, work: Work) -> Vec<Recorded> {
    let folder = Path::new(crate_root).join(REGRESSIONS).join(work.name);
    let Ok(entries) = fs::read_dir(&folder) else {
        return Vec::new();
    };
    let mut all: Vec<Recorded> = entries
        .map(|entry| {
            let path = entry
                .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
                .path();
            let text = fs::read_to_string(&path);
            let text = text.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let seed = text.lines().next().and_then(parse_seed);
            let name = path.file_stem().unwrap_or_default();
            Recorded {
                name: name.to_string_lossy().into_owned(),
                seed: seed.unwrap_or_else(|| panic!("{}:1: no seed", path.display())),
            }
        })
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// The seeds of this run: those recorded for `work`, each with its name, then a fresh one. With
/// `FERCUDA_SEED` that one alone.
pub fn seeds(crate_root: &str, work: Work) -> Vec<(String, u64)> {
    let mut all = Vec::new();
    if std::env::var_os(SEED).is_none() {
        let known = recorded(crate_root, work);
        all.extend(known.into_iter().map(|it| (it.name, it.seed)));
    }
    all.push(("fresh".to_owned(), seed()));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: Work = Work {
        name: "digits",
        least: 10,
        ci_seconds: 0,
        soak: 1000,
    };

    fn budget(text: &str) -> Budget {
        Budget {
            work: WORK,
            limit: limit(WORK, text).unwrap(),
            begun: Instant::now(),
        }
    }

    #[test]
    fn least_amount_is_done_when_the_time_is_up() {
        for text in ["ci", "0"] {
            let budget = budget(text);
            let least = if cfg!(miri) { 1 } else { 10 };
            assert!(budget.has_left(least - 1));
            assert!(!budget.has_left(least));
            assert_eq!(budget.planned_steps(), least);
        }
        assert!(budget("3600").has_left(u64::MAX));
    }

    #[test]
    fn soak_asks_for_steps_and_not_for_time() {
        let budget = budget("soak");
        assert!(budget.has_left(999));
        assert!(!budget.has_left(1000));
        assert_eq!(budget.planned_steps(), 1000);
    }

    #[test]
    fn other_values_are_refused() {
        for text in ["", "CI", "1.5", "-1", "10s"] {
            assert_eq!(limit(WORK, text), None, "{text:?}");
        }
    }

    #[test]
    fn recorded_failures_are_read_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_str().unwrap();
        assert_eq!(recorded(root, WORK), []);
        let place = folder.path().join(REGRESSIONS).join(WORK.name);
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("b-overflow.txt"), "0x10\nwhat failed\n").unwrap();
        fs::write(place.join("a-late-free.txt"), "7").unwrap();
        let found = recorded(root, WORK);
        let found: Vec<_> = found.iter().map(|it| (it.name.as_str(), it.seed)).collect();
        assert_eq!(found, [("a-late-free", 7), ("b-overflow", 16)]);
    }

    #[test]
    #[should_panic(expected = "no seed")]
    fn a_record_without_a_seed_is_no_record() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join(REGRESSIONS).join(WORK.name);
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join("empty.txt"), "").unwrap();
        recorded(folder.path().to_str().unwrap(), WORK);
    }
}
