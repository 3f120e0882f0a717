//! Settings of the devices, from the environment or from [`crate::control`] before the first call.

use std::path::PathBuf;
use std::time::Duration;

use crate::check::CheckOptions;

/// What becomes of leaked memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LeakPolicy {
    /// Nothing.
    #[default]
    Ignored,
    /// It is reported, and changes no exit status.
    Reported,
    /// It is a finding as any other.
    Counted,
}

/// Settings of the software device, fixed at the first driver call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Number of devices, 1 to 16. `FERCUDA_SOFT_DEVICES`.
    pub devices: u32,
    /// Memory of each device in bytes. `FERCUDA_SOFT_MEMORY`, such as `8GiB`.
    pub memory_bytes: u64,
    /// A device that is lost, and the number of operations it runs before. `FERCUDA_SOFT_LOST`,
    /// such as `1@300`.
    pub lost: Option<(u32, u64)>,
    /// Whether accesses are checked. `FERCUDA_SOFT_CHECK=1`.
    pub checks: bool,
    /// What is reported besides: races of volatile accesses (`FERCUDA_SOFT_CHECK_VOLATILE=1`),
    /// unordered writes of one value (`FERCUDA_SOFT_CHECK_SAME_VALUE=1`).
    pub check_options: CheckOptions,
    /// What becomes of memory that the program did not free. `FERCUDA_SOFT_CHECK_LEAKS=1` to
    /// report it, `fail` to count it as a finding too; with checks only.
    pub leaks: LeakPolicy,
    /// How long a kernel may run before it faults; `None` for ever. `FERCUDA_SOFT_WATCHDOG`, such
    /// as `10s`.
    pub watchdog: Option<Duration>,
    /// Host threads that run blocks, besides each stream's own; 0 for one a core.
    /// `FERCUDA_SOFT_THREADS`.
    pub threads: u32,
    /// Whether `cp.async` is executed as late as the program allows. `FERCUDA_SOFT_LATE_COPIES=1`;
    /// with checks, always.
    pub late_copies: bool,
    /// Whether findings are printed on standard error as they occur. On in a process that uses the
    /// drop-in library.
    pub print_findings: bool,
    /// Whether faults of kernels are printed on standard error as they occur; off for a program
    /// that reports those of [`take_faults`](crate::control::take_faults).
    pub print_faults: bool,
    /// File to which findings and faults are appended as JSON instead of being printed; it must
    /// exist. `FERCUDA_SOFT_CHECK_REPORT`.
    pub report_file: Option<PathBuf>,
    /// Exit code of the process if there were findings. `FERCUDA_SOFT_CHECK_EXIT`.
    pub exit_code: Option<i32>,
    /// Whether unimplemented functions stay silent. `FERCUDA_QUIET=1`.
    pub quiet: bool,
}

/// Minimum memory of a device: one granule.
const MIN_MEMORY_BYTES: u64 = 2 << 20;

impl Default for Config {
    fn default() -> Self {
        Config {
            devices: 1,
            memory_bytes: 8 << 30,
            lost: None,
            checks: false,
            check_options: CheckOptions::default(),
            leaks: LeakPolicy::default(),
            watchdog: None,
            threads: 0,
            late_copies: false,
            print_findings: false,
            print_faults: true,
            report_file: None,
            exit_code: None,
            quiet: false,
        }
    }
}

impl Config {
    /// From `FERCUDA_*` variables; an invalid value is reported on standard error and the default
    /// is used.
    #[must_use]
    pub fn from_env() -> Self {
        let (mut config, errors) = Self::from_lookup(&env);
        for error in errors {
            super::say(&format!("{error}; the default is used"));
        }
        config.print_findings = config.checks;
        // A path need not be UTF-8.
        let report = std::env::var_os("FERCUDA_SOFT_CHECK_REPORT");
        config.report_file = report.filter(|path| !path.is_empty()).map(PathBuf::from);
        config
    }

    /// The variables of the software device whose values are invalid: name, value and what would be
    /// valid, in one line each.
    #[must_use]
    pub fn env_errors() -> Vec<String> {
        Self::from_lookup(&env).1
    }

    fn from_lookup(get: &dyn Fn(&str) -> Option<String>) -> (Self, Vec<String>) {
        let mut c = Config::default();
        let mut errors = Vec::new();
        let mut values = EnvValues {
            get,
            errors: &mut errors,
        };
        values.read(
            "FERCUDA_SOFT_DEVICES",
            "a number of devices, 1 to 16",
            |v| v.parse().ok().filter(|n| (1..=16).contains(n)),
            &mut c.devices,
        );
        values.read(
            "FERCUDA_SOFT_MEMORY",
            "a size of at least 2 MiB, such as 512MiB or 8GiB",
            |v| parse_bytes(v).filter(|&n| n >= MIN_MEMORY_BYTES),
            &mut c.memory_bytes,
        );
        values.read(
            "FERCUDA_SOFT_LOST",
            "DEVICE@OPERATIONS, such as 1@300",
            |v| {
                let (device, after) = v.split_once('@')?;
                Some(Some((device.parse().ok()?, after.parse().ok()?)))
            },
            &mut c.lost,
        );
        values.read(
            "FERCUDA_SOFT_WATCHDOG",
            "a time such as 500ms, 10s or 2m",
            |v| parse_duration(v).map(Some),
            &mut c.watchdog,
        );
        values.read(
            "FERCUDA_SOFT_THREADS",
            "a number of threads",
            |v| v.parse().ok(),
            &mut c.threads,
        );
        values.read(
            "FERCUDA_SOFT_CHECK_LEAKS",
            "0, 1 or fail",
            |v| match parse_flag(v) {
                Some(false) => Some(LeakPolicy::Ignored),
                Some(true) => Some(LeakPolicy::Reported),
                None => (v == "fail").then_some(LeakPolicy::Counted),
            },
            &mut c.leaks,
        );
        values.read(
            "FERCUDA_SOFT_CHECK_EXIT",
            "an exit status",
            |v| v.parse().ok().map(Some),
            &mut c.exit_code,
        );
        let mut late_copies = false;
        let CheckOptions {
            volatile_races,
            same_values,
        } = &mut c.check_options;
        for (name, flag) in [
            ("FERCUDA_SOFT_CHECK", &mut c.checks),
            ("FERCUDA_SOFT_CHECK_VOLATILE", volatile_races),
            ("FERCUDA_SOFT_CHECK_SAME_VALUE", same_values),
            ("FERCUDA_SOFT_LATE_COPIES", &mut late_copies),
            ("FERCUDA_QUIET", &mut c.quiet),
        ] {
            values.read(name, "0 or 1", parse_flag, flag);
        }
        c.late_copies = c.checks || late_copies;
        let granules = c.memory_bytes.checked_next_multiple_of(MIN_MEMORY_BYTES);
        c.memory_bytes = granules.unwrap_or(u64::MAX - (MIN_MEMORY_BYTES - 1));
        (c, errors)
    }
}

fn env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Reader of variables that notes the invalid ones.
struct EnvValues<'a> {
    get: &'a dyn Fn(&str) -> Option<String>,
    errors: &'a mut Vec<String>,
}

impl EnvValues<'_> {
    /// Stores a variable's value in `out` if it is set and valid; `valid` describes valid ones.
    fn read<T>(&mut self, name: &str, valid: &str, parse: impl Fn(&str) -> Option<T>, out: &mut T) {
        if let Some(text) = (self.get)(name).filter(|t| !t.trim().is_empty()) {
            match parse(text.trim()) {
                Some(value) => *out = value,
                None => self.errors.push(format!("{name}={text} is not {valid}")),
            }
        }
    }
}

/// `0` and `1`, and words for them.
fn parse_flag(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "0" | "off" | "false" | "no" => Some(false),
        "1" | "on" | "true" | "yes" => Some(true),
        _ => None,
    }
}

/// `8GiB`, `512M`, `1.5G`, `1000000`: binary units; with `B` alone, such as `8GB`, decimal ones.
/// The same forms as `FERCUDA_LIMIT` has. A fraction of a byte is truncated.
fn parse_bytes(text: &str) -> Option<u64> {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let (number, unit) = text.split_at(text.len() - text.trim_start_matches(is_number).len());
    let unit: u128 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    };
    let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
    // Below 10^18, and the units are below 2^41: nothing overflows.
    if !(1..=18).contains(&decimals.len()) || decimals.contains('.') {
        return None;
    }
    let part =
        u128::from(decimals.parse::<u64>().ok()?) * unit / 10_u128.pow(decimals.len() as u32);
    let whole = u128::from(whole.parse::<u64>().ok()?) * unit;
    u64::try_from(whole + part).ok()
}

/// `10s`, `250ms`, `2m`, `10` (seconds).
fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.len()
        - text
            .trim_start_matches(|c: char| c.is_ascii_digit() || c == '.')
            .len();
    let (number, unit) = text.split_at(digits);
    let scale = match unit.trim() {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "m" | "min" => 60.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * scale)
        .ok()
        .filter(|d| !d.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_read_with_their_units() {
        assert_eq!(parse_bytes("8GiB"), Some(8 << 30));
        assert_eq!(parse_bytes("512M"), Some(512 << 20));
        assert_eq!(parse_bytes("123"), Some(123));
        assert_eq!(parse_bytes("1.5 G"), Some(3 << 29));
        assert_eq!(parse_bytes("8GB"), Some(8_000_000_000));
        assert_eq!(parse_bytes("-1G"), None);
        assert_eq!(parse_bytes("1.2.3"), None);
        assert_eq!(parse_bytes(".5G"), None);
        assert_eq!(parse_bytes("8.G"), None);
        assert_eq!(parse_bytes("99999999999T"), None);
        assert_eq!(parse_bytes("ten"), None);
        assert_eq!(parse_duration("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(parse_duration("2m"), Some(Duration::from_secs(120)));
        assert_eq!(parse_duration("1e9999"), None);
    }

    #[test]
    fn which_device_is_lost_is_read_with_its_operations() {
        let of = |text: &str| {
            let text = text.to_owned();
            Config::from_lookup(&|name| (name == "FERCUDA_SOFT_LOST").then(|| text.clone()))
                .0
                .lost
        };
        assert_eq!(of("1@300"), Some((1, 300)));
        assert_eq!((of("1"), of("@3"), of("1@-3")), (None, None, None));
    }

    #[test]
    fn a_setting_that_cannot_be_read_leaves_the_default() {
        let with = |wanted: &'static str, value: &'static str| {
            Config::from_lookup(&move |name| (name == wanted).then(|| value.to_owned()))
        };
        for (name, value, valid) in [
            ("FERCUDA_SOFT_DEVICES", "many", "1 to 16"),
            ("FERCUDA_SOFT_MEMORY", "1MiB", "at least 2 MiB"),
            ("FERCUDA_SOFT_CHECK", "maybe", "0 or 1"),
            ("FERCUDA_QUIET", "2", "0 or 1"),
        ] {
            let (config, errors) = with(name, value);
            assert_eq!(config, Config::default());
            assert_eq!(errors.len(), 1);
            assert!(errors[0].contains(valid), "{errors:?}");
        }
        for (value, checks) in [
            ("1", true),
            ("True", true),
            ("0", false),
            ("OFF", false),
            ("", false),
        ] {
            let (config, errors) = with("FERCUDA_SOFT_CHECK", value);
            assert_eq!((config.checks, errors.len()), (checks, 0), "{value}");
        }
        let (config, errors) = with("FERCUDA_SOFT_MEMORY", "18446744073709551615");
        assert!(config.memory_bytes.is_multiple_of(MIN_MEMORY_BYTES));
        assert_eq!(errors, [""; 0]);
    }
}
