//! Settings of the devices, from the environment or from [`crate::control`] before the first call.

use std::time::Duration;

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
    /// Exit code of the process if there were findings. `FERCUDA_SOFT_CHECK_EXIT`.
    pub exit_code: Option<i32>,
    /// Whether unimplemented functions stay silent. `FERCUDA_QUIET=1`.
    pub quiet: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            devices: 1,
            memory_bytes: 8 << 30,
            lost: None,
            checks: false,
            watchdog: None,
            threads: 0,
            late_copies: false,
            print_findings: false,
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
        let mut config = Self::from_lookup(&|name| std::env::var(name).ok());
        config.print_findings = config.checks;
        config
    }

    fn from_lookup(get: &dyn Fn(&str) -> Option<String>) -> Self {
        let mut c = Config::default();
        let flag = |name: &str| {
            get(name).is_some_and(|v| !matches!(v.as_str(), "" | "0" | "off" | "false" | "no"))
        };
        read(
            get,
            "FERCUDA_SOFT_DEVICES",
            |v| v.parse().ok().filter(|n| (1..=16).contains(n)),
            &mut c.devices,
        );
        read(
            get,
            "FERCUDA_SOFT_MEMORY",
            |v| parse_bytes(v).filter(|&n| n >= 2 << 20),
            &mut c.memory_bytes,
        );
        read(
            get,
            "FERCUDA_SOFT_LOST",
            |v| {
                let (device, after) = v.split_once('@')?;
                Some(Some((device.parse().ok()?, after.parse().ok()?)))
            },
            &mut c.lost,
        );
        read(
            get,
            "FERCUDA_SOFT_WATCHDOG",
            |v| parse_duration(v).map(Some),
            &mut c.watchdog,
        );
        read(
            get,
            "FERCUDA_SOFT_THREADS",
            |v| v.parse().ok(),
            &mut c.threads,
        );
        read(
            get,
            "FERCUDA_SOFT_CHECK_EXIT",
            |v| v.parse().ok().map(Some),
            &mut c.exit_code,
        );
        c.checks = flag("FERCUDA_SOFT_CHECK");
        c.late_copies = c.checks || flag("FERCUDA_SOFT_LATE_COPIES");
        c.quiet = flag("FERCUDA_QUIET");
        c.memory_bytes = c.memory_bytes.next_multiple_of(2 << 20);
        c
    }
}

fn read<T>(
    get: &dyn Fn(&str) -> Option<String>,
    name: &str,
    parse: impl Fn(&str) -> Option<T>,
    out: &mut T,
) {
    if let Some(text) = get(name).filter(|t| !t.trim().is_empty()) {
        match parse(text.trim()) {
            Some(value) => *out = value,
            None => super::say(&format!(
                "{name}={text} is not a valid value and is ignored"
            )),
        }
    }
}

/// `8GiB`, `512M`, `1000000`: binary units, the `iB` and `B` optional.
fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let shift = match unit
        .trim()
        .to_ascii_lowercase()
        .trim_end_matches('b')
        .trim_end_matches('i')
    {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
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
            Config::from_lookup(&|name| (name == "FERCUDA_SOFT_LOST").then(|| text.clone())).lost
        };
        assert_eq!(of("1@300"), Some((1, 300)));
        assert_eq!((of("1"), of("@3"), of("1@-3")), (None, None, None));
    }

    #[test]
    fn a_setting_that_cannot_be_read_leaves_the_default() {
        let c = Config::from_lookup(&|name| {
            (name == "FERCUDA_SOFT_DEVICES").then(|| "many".to_owned())
        });
        assert_eq!(c, Config::default());
    }
}
