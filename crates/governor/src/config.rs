//! Governor configuration from environment variables, read once.
//!
//! The hook reads it in each process, `fercuda run` before it starts one. Both get an error for
//! every value that cannot be read and every unknown name with our prefix: the launcher refuses to
//! start, the hook warns and continues.
//!
//! Invariant: the output of [`MemorySize`]'s `Display` parses to the same number of bytes.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use fercuda_ledger::TENANTS;

use crate::variables::{is_mistaken, nearest};

/// The configuration of a governed process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GovernorConfig {
    /// Disables the hook. `FERCUDA_DISABLE`.
    pub disabled: bool,
    /// The process's limit on each device. `FERCUDA_LIMIT`.
    pub limit: Option<MemorySize>,
    /// The tenants' limits on each device. `FERCUDA_TENANT_LIMITS`.
    pub tenant_limits: Vec<TenantLimit>,
    /// The source of pooled memory. `FERCUDA_BACKING`.
    pub backing: PoolBacking,
    /// Whether each block is the driver's own allocation on a device that checks accesses, which
    /// knows its bounds then; true if the environment does not choose the source.
    pub yields_to_checks: bool,
    /// The absolute path of the driver's library below the hook. `FERCUDA_DRIVER`.
    pub driver: Option<PathBuf>,
    /// Do not ask libraries to release the memory that they cache. `FERCUDA_RECLAIM`.
    pub keep_caches: bool,
    /// The trace file. `FERCUDA_TRACE`.
    pub trace: Option<PathBuf>,
    /// The run that the process belongs to. `FERCUDA_RUN`.
    pub run: Option<NonZeroU64>,
}

/// The source of pooled memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolBacking {
    /// Mapped handles: `vmm`.
    #[default]
    VmmBacking,
    /// Allocations of the driver's: `slabs`.
    Slabs,
}

/// The limit of one tenant on each device: `torch=4GiB`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantLimit {
    /// The tenant's name, as the ledger shows it.
    pub tenant: String,
    /// The limit.
    pub limit: MemorySize,
}

/// A size in bytes, more than 0: `8GiB` or `8G`, `1.5 GiB`, `500MB`, `4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemorySize(NonZeroU64);

/// An invalid variable in the environment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A variable's value cannot be read; it counts as not set.
    #[error("{variable}={value:?}: {reason}")]
    Value {
        /// Its name.
        variable: &'static str,
        /// Its value; invalid UTF-8 replaced.
        value: String,
        /// What is wrong with it, and what would be right.
        reason: ValueError,
    },
    /// A name has our prefix, and nothing reads it.
    #[error("{name} is not a variable of feRcuda\ntry: {}", advice(*.nearest))]
    Unknown {
        /// The name.
        name: String,
        /// The most similar known name.
        nearest: Option<&'static str>,
    },
}

fn advice(nearest: Option<&str>) -> String {
    match nearest {
        Some(nearest) => format!("{nearest}, or unset it"),
        None => "unset it; docs/environment.md lists all variables".to_owned(),
    }
}

/// Why a value is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// It is not a size.
    #[error(transparent)]
    MemorySize(#[from] MemorySizeError),
    /// An item is not `NAME=SIZE`.
    #[error("{item:?} is not NAME=SIZE\ntry: torch=4GiB,jax=2GiB")]
    Item {
        /// The item.
        item: String,
    },
    /// A tenant is limited twice.
    #[error("{tenant} is limited twice, to {first} and to {second}\ntry: one limit per tenant")]
    Twice {
        /// Its name.
        tenant: String,
        /// The first limit.
        first: MemorySize,
        /// The second limit.
        second: MemorySize,
    },
    /// More tenants are limited than have rows of their own in a ledger.
    #[error(
        "{count} tenants have limits, but a ledger has rows for only {most}\ntry: fewer tenants"
    )]
    TooMany {
        /// The number of limited tenants.
        count: usize,
        /// The maximum.
        most: usize,
    },
    /// A path is relative: processes have working folders of their own.
    #[error("it is not an absolute path\ntry: one that begins with /")]
    Relative,
    /// It is not a kind of backing.
    #[error("it is neither vmm nor slabs\ntry: vmm, the default")]
    PoolBacking,
    /// It is neither on nor off.
    #[error("it is neither 0 nor 1\ntry: 1, or unset it")]
    Switch,
    /// It is not a number from 1 up.
    #[error(
        "it is not a number from 1 to {}\ntry: leave it to fercuda run",
        u64::MAX
    )]
    Number,
    /// It is not UTF-8.
    #[error("it is not UTF-8\ntry: plain letters")]
    Text,
}

/// Why a text is not a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemorySizeError {
    /// It does not begin with a number.
    #[error("it does not begin with a number\n{FORMS}")]
    Number,
    /// The unit is unknown.
    #[error(
        "its unit is not one of B, K, M, G, T, KiB, MiB, GiB, TiB (powers of 1024), kB, MB, GB, \
         TB (powers of 1000)\n{FORMS}"
    )]
    Unit,
    /// It is less than one byte.
    #[error("it is less than 1 byte\n{FORMS}")]
    Nothing,
    /// It is 2^64 bytes or more, or has too many digits.
    #[error("it is not below 2^64 bytes, or has more than 18 decimals\n{FORMS}")]
    TooMuch,
}

/// The accepted forms of a size.
const FORMS: &str = "try: 8GiB or 8G (8 x 1024^3 bytes), 1.5G, 512M, 4K or plain bytes";

/// Units by their names in lower case; the first that divides a size prints it.
const UNITS: &[(&str, &str, u64)] = &[
    ("tib", "TiB", 1 << 40),
    ("gib", "GiB", 1 << 30),
    ("mib", "MiB", 1 << 20),
    ("kib", "KiB", 1 << 10),
    ("t", "T", 1 << 40),
    ("g", "G", 1 << 30),
    ("m", "M", 1 << 20),
    ("k", "K", 1 << 10),
    ("tb", "TB", 1_000_000_000_000),
    ("gb", "GB", 1_000_000_000),
    ("mb", "MB", 1_000_000),
    ("kb", "kB", 1_000),
    ("b", "B", 1),
    ("", "", 1),
];

/// Parses a number of bytes: a number, with decimals or without, and a unit in any case. A fraction
/// of a byte is truncated, so that the result may be 0.
///
/// # Errors
/// The text is no such number, or 2^64 bytes or more.
pub fn parse_byte_count(text: &str) -> Result<u64, MemorySizeError> {
    const DECIMALS: usize = 18;
    let text = text.trim();
    let digits = |text: &str| text.len() - text.trim_start_matches(is_digit).len();
    let (whole, rest) = text.split_at(digits(text));
    let (decimals, unit) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(digits(rest)),
        None => ("", rest),
    };
    // "8." and ".5" are as likely to be typing errors as sizes.
    if whole.is_empty() || (rest.starts_with('.') && decimals.is_empty()) {
        return Err(MemorySizeError::Number);
    }
    let unit = unit.trim_start().to_ascii_lowercase();
    let (_, _, unit) = UNITS
        .iter()
        .find(|(name, _, _)| *name == unit)
        .ok_or(MemorySizeError::Unit)?;
    let unit = u128::from(*unit);
    // Both factors are below 2^64, so nothing here overflows.
    let whole: u64 = whole.parse().map_err(|_| MemorySizeError::TooMuch)?;
    let parts: u64 = match decimals.len() {
        0 => 0,
        1..=DECIMALS => decimals.parse().map_err(|_| MemorySizeError::TooMuch)?,
        _ => return Err(MemorySizeError::TooMuch),
    };
    let part = u128::from(parts) * unit / 10_u128.pow(decimals.len() as u32);
    let bytes = u128::from(whole) * unit + part;
    u64::try_from(bytes).map_err(|_| MemorySizeError::TooMuch)
}

impl MemorySize {
    /// A size; `None` for 0.
    pub fn new(bytes: u64) -> Option<MemorySize> {
        NonZeroU64::new(bytes).map(MemorySize)
    }

    /// The number of bytes.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

impl FromStr for MemorySize {
    type Err = MemorySizeError;

    /// Parses as [`parse_byte_count`], and refuses 0.
    fn from_str(text: &str) -> Result<MemorySize, MemorySizeError> {
        MemorySize::new(parse_byte_count(text)?).ok_or(MemorySizeError::Nothing)
    }
}

fn is_digit(c: char) -> bool {
    c.is_ascii_digit()
}

impl fmt::Display for MemorySize {
    /// Prints the largest binary unit of which the size is a whole number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.get();
        let mut binary = UNITS.iter().filter(|(_, _, unit)| unit.is_power_of_two());
        let (name, count) = binary
            .find(|(_, _, unit)| bytes.is_multiple_of(*unit))
            .map_or(("B", bytes), |(_, name, unit)| (*name, bytes / unit));
        write!(f, "{count}{name}")
    }
}

impl FromStr for TenantLimit {
    type Err = ValueError;

    /// Reads `NAME=SIZE`.
    fn from_str(text: &str) -> Result<TenantLimit, ValueError> {
        let (tenant, limit) = text
            .split_once('=')
            .map(|(tenant, limit)| (tenant.trim(), limit))
            .filter(|(tenant, _)| !tenant.is_empty() && !tenant.contains(','))
            .ok_or_else(|| ValueError::Item {
                item: text.to_owned(),
            })?;
        Ok(TenantLimit {
            tenant: tenant.to_owned(),
            limit: limit.parse()?,
        })
    }
}

impl fmt::Display for TenantLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.tenant, self.limit)
    }
}

impl GovernorConfig {
    /// Reads variables, such as `std::env::vars_os()`: returns the configuration, and an error for
    /// each invalid variable. An empty value counts as not set.
    pub fn read(
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> (GovernorConfig, Vec<ConfigError>) {
        let mut config = GovernorConfig::default();
        let mut errors = Vec::new();
        for (name, value) in variables {
            let Some(name) = name.to_str() else { continue };
            if is_mistaken(name) {
                errors.push(ConfigError::Unknown {
                    name: name.to_owned(),
                    nearest: nearest(name),
                });
            }
            if value.is_empty() {
                continue;
            }
            if let Err((variable, reason)) = config.set(name, &value) {
                errors.push(ConfigError::Value {
                    variable,
                    value: value.to_string_lossy().into_owned(),
                    reason,
                });
            }
        }
        (config, errors)
    }

    /// Applies the variable `name`; ignores names without our prefix.
    fn set(&mut self, name: &str, value: &OsStr) -> Result<(), (&'static str, ValueError)> {
        let text = || value.to_str().map(str::trim).ok_or(ValueError::Text);
        match name {
            "FERCUDA_DISABLE" => {
                // A kill switch accepts any value but a clear no.
                self.disabled = !["0", "off", "false", "no"].iter().any(|no| value == *no);
            }
            "FERCUDA_LIMIT" => {
                let limit = text().and_then(|text| Ok(text.parse()?));
                self.limit = Some(limit.map_err(|reason| ("FERCUDA_LIMIT", reason))?);
            }
            "FERCUDA_TENANT_LIMITS" => {
                self.tenant_limits = text()
                    .and_then(tenant_limits)
                    .map_err(|reason| ("FERCUDA_TENANT_LIMITS", reason))?;
            }
            "FERCUDA_BACKING" => {
                let backing = text().and_then(|text| match text {
                    "vmm" => Ok(PoolBacking::VmmBacking),
                    "slabs" => Ok(PoolBacking::Slabs),
                    _ => Err(ValueError::PoolBacking),
                });
                self.backing = backing.map_err(|reason| ("FERCUDA_BACKING", reason))?;
            }
            "FERCUDA_RECLAIM" => {
                let reclaim = text().and_then(|text| match text {
                    "0" => Ok(false),
                    "1" => Ok(true),
                    _ => Err(ValueError::Switch),
                });
                self.keep_caches = !reclaim.map_err(|reason| ("FERCUDA_RECLAIM", reason))?;
            }
            "FERCUDA_DRIVER" => {
                let path = absolute(value).map_err(|reason| ("FERCUDA_DRIVER", reason))?;
                self.driver = Some(path);
            }
            "FERCUDA_TRACE" => {
                let path = absolute(value).map_err(|reason| ("FERCUDA_TRACE", reason))?;
                self.trace = Some(path);
            }
            "FERCUDA_RUN" => {
                let run = text().and_then(|text| text.parse().map_err(|_| ValueError::Number));
                self.run = Some(run.map_err(|reason| ("FERCUDA_RUN", reason))?);
            }
            _ => {}
        }
        Ok(())
    }
}

fn absolute(value: &OsStr) -> Result<PathBuf, ValueError> {
    let path = Path::new(value);
    let absolute = path.is_absolute().then(|| path.to_owned());
    absolute.ok_or(ValueError::Relative)
}

/// Parses a list of limits, with no tenant twice.
fn tenant_limits(text: &str) -> Result<Vec<TenantLimit>, ValueError> {
    let items = text
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty());
    let limits: Vec<TenantLimit> = items.map(str::parse).collect::<Result<_, _>>()?;
    // One row is shared by all other tenants.
    let (count, most) = (limits.len(), TENANTS - 1);
    if count > most {
        return Err(ValueError::TooMany { count, most });
    }
    for (place, one) in limits.iter().enumerate() {
        if let Some(other) = limits[..place].iter().find(|it| it.tenant == one.tenant) {
            return Err(ValueError::Twice {
                tenant: one.tenant.clone(),
                first: other.limit,
                second: one.limit,
            });
        }
    }
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> (GovernorConfig, Vec<ConfigError>) {
        let variables = variables.iter();
        GovernorConfig::read(variables.map(|(name, value)| (name.into(), value.into())))
    }

    #[test]
    fn sizes_are_read_to_the_byte() {
        for (text, bytes) in [
            ("8GiB", 8 << 30),
            ("512MiB", 512 << 20),
            ("1.5GiB", 3 << 29),
            (" 2 tib ", 2 << 40),
            ("0.5KiB", 512),
            ("4kB", 4000),
            ("3MB", 3_000_000),
            ("1.000000001 GB", 1_000_000_001),
            ("0.1GiB", 107_374_182),
            ("8G", 8 << 30),
            ("8 GiB", 8 << 30),
            ("1.5g", 3 << 29),
            ("512M", 512 << 20),
            ("4K", 4 << 10),
            ("4k", 4 << 10),
            ("2T", 2 << 40),
            ("1", 1),
            ("1.9", 1),
            ("77B", 77),
            ("18446744073709551615", u64::MAX),
            ("15.999999999999999999TiB", 17_592_186_044_415),
        ] {
            let read: MemorySize = text
                .parse()
                .unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(read.get(), bytes, "{text}");
        }
    }

    #[test]
    fn an_invalid_size_gives_the_reason() {
        for (text, error) in [
            ("", MemorySizeError::Number),
            ("-1GiB", MemorySizeError::Number),
            ("+1GiB", MemorySizeError::Number),
            ("eight", MemorySizeError::Number),
            (".5GiB", MemorySizeError::Number),
            ("8.GiB", MemorySizeError::Number),
            ("8X", MemorySizeError::Unit),
            ("8Gi", MemorySizeError::Unit),
            ("8 GiB!", MemorySizeError::Unit),
            ("1e9", MemorySizeError::Unit),
            ("1.2.3", MemorySizeError::Unit),
            ("17179869184G", MemorySizeError::TooMuch),
            ("0x10", MemorySizeError::Unit),
            ("0", MemorySizeError::Nothing),
            ("0.0000000001GiB", MemorySizeError::Nothing),
            ("18446744073709551616", MemorySizeError::TooMuch),
            ("16777216TiB", MemorySizeError::TooMuch),
            ("1.0000000000000000000GiB", MemorySizeError::TooMuch),
        ] {
            assert_eq!(text.parse::<MemorySize>(), Err(error), "{text:?}");
        }
    }

    #[test]
    fn sizes_print_as_they_are_parsed() {
        for (bytes, text) in [
            (8 << 30, "8GiB"),
            (3 << 29, "1536MiB"),
            (1 << 40, "1TiB"),
            (4000, "4000B"),
            (u64::MAX, "18446744073709551615B"),
        ] {
            let size = MemorySize::new(bytes).unwrap();
            assert_eq!(size.to_string(), text);
            assert_eq!(text.parse(), Ok(size));
        }
    }

    #[test]
    fn all_set_variables_are_read() {
        let (config, errors) = read(&[
            ("PATH", "/bin"),
            ("FERCUDA_DEVICE", "soft"),
            ("FERCUDA_DISABLE", "0"),
            ("FERCUDA_LIMIT", "8GiB"),
            ("FERCUDA_TENANT_LIMITS", "torch=4GiB, jax = 2GiB,"),
            ("FERCUDA_BACKING", "slabs"),
            ("FERCUDA_DRIVER", "/lib/libcuda.so.1"),
            ("FERCUDA_TRACE", "/tmp/trace.csv"),
            ("FERCUDA_RUN", "18446744073709551615"),
            ("FERCUDA_RECLAIM", "0"),
        ]);
        assert_eq!(errors, []);
        let expected = GovernorConfig {
            disabled: false,
            limit: MemorySize::new(8 << 30),
            tenant_limits: vec!["torch=4GiB".parse().unwrap(), "jax=2GiB".parse().unwrap()],
            backing: PoolBacking::Slabs,
            yields_to_checks: false,
            driver: Some("/lib/libcuda.so.1".into()),
            trace: Some("/tmp/trace.csv".into()),
            run: NonZeroU64::new(u64::MAX),
            keep_caches: true,
        };
        assert_eq!(config, expected);
        let nothing = [("FERCUDA_LIMIT", ""), ("FERCUDA_DISABLE", "")];
        assert_eq!(read(&nothing), (GovernorConfig::default(), vec![]));
        assert!(read(&[("FERCUDA_DISABLE", "1")]).0.disabled);
        assert!(read(&[("FERCUDA_DISABLE", "true")]).0.disabled);
    }

    #[test]
    fn an_invalid_value_is_reported_and_counts_as_not_set() {
        for (name, value, expected) in [
            (
                "FERCUDA_LIMIT",
                "8X",
                "FERCUDA_LIMIT=\"8X\": its unit is not one of",
            ),
            ("FERCUDA_LIMIT", "0", "it is less than 1 byte"),
            (
                "FERCUDA_TENANT_LIMITS",
                "torch",
                "\"torch\" is not NAME=SIZE",
            ),
            (
                "FERCUDA_TENANT_LIMITS",
                "=4GiB",
                "\"=4GiB\" is not NAME=SIZE",
            ),
            (
                "FERCUDA_TENANT_LIMITS",
                "a=1GiB,a=2GiB",
                "a is limited twice, to 1GiB and to 2GiB",
            ),
            (
                "FERCUDA_TENANT_LIMITS",
                "a=lots",
                "does not begin with a number",
            ),
            ("FERCUDA_BACKING", "VMM", "neither vmm nor slabs"),
            ("FERCUDA_DRIVER", "libcuda.so.1", "not an absolute path"),
            ("FERCUDA_TRACE", "trace.csv", "not an absolute path"),
            ("FERCUDA_RUN", "0", "not a number from 1"),
            ("FERCUDA_RUN", "-1", "not a number from 1"),
        ] {
            let (config, errors) = read(&[(name, value)]);
            assert_eq!(config, GovernorConfig::default(), "{name}={value}");
            let [error] = &errors[..] else {
                panic!("{name}={value}: {errors:?}");
            };
            let text = error.to_string();
            assert!(text.contains(expected), "{text}");
            assert!(text.contains("\ntry: "), "{text}");
        }
    }

    #[test]
    fn as_many_tenants_can_be_limited_as_have_rows() {
        let list = |count| {
            (0..count)
                .map(|n| format!("t{n}=1GiB,"))
                .collect::<String>()
        };
        let (config, errors) = read(&[("FERCUDA_TENANT_LIMITS", &list(63))]);
        assert_eq!((config.tenant_limits.len(), errors), (63, vec![]));
        let (config, errors) = read(&[("FERCUDA_TENANT_LIMITS", &list(64))]);
        assert_eq!(config.tenant_limits, []);
        let text = errors[0].to_string();
        assert!(text.contains("64 tenants have limits, but a ledger has rows for only 63"));
    }

    #[test]
    fn an_unknown_name_is_reported() {
        // In two halves, since the repository has no variable of that name.
        let slip = concat!("FERCUDA_", "LIMT");
        let (config, errors) = read(&[(slip, "8GiB"), ("FERCUDA_SEED", "1")]);
        assert_eq!(config, GovernorConfig::default());
        let texts: Vec<String> = errors.iter().map(ConfigError::to_string).collect();
        assert_eq!(
            texts,
            [format!(
                "{slip} is not a variable of feRcuda\ntry: FERCUDA_LIMIT, or unset it"
            )]
        );
    }

    #[test]
    fn a_value_that_is_not_text_is_refused_except_as_a_path() {
        use std::os::unix::ffi::OsStringExt as _;
        let odd = OsString::from_vec(b"/tmp/\xff".to_vec());
        let variables = ["FERCUDA_LIMIT", "FERCUDA_TRACE"].map(|name| (name.into(), odd.clone()));
        let (config, errors) = GovernorConfig::read(variables);
        assert_eq!(config.trace, Some(PathBuf::from(odd)));
        assert_eq!(errors.len(), 1);
    }
}
