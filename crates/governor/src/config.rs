//! What the environment says of how a process is governed, read once.
//!
//! The hook reads it in each process, `fercuda run` before it starts one. Both
//! hear of every value that cannot be read and of every name that looks like
//! ours and is none: the launcher refuses, the hook warns and goes on.
//!
//! Invariant: what [`Bytes`] prints it reads back to the byte.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use fercuda_ledger::TENANTS;

use crate::variables::{is_mistaken, nearest};

/// How a process is governed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// The hook does nothing. `FERCUDA_DISABLE`.
    pub disabled: bool,
    /// What the process may use on each device. `FERCUDA_LIMIT`.
    pub limit: Option<Bytes>,
    /// What tenants may use on each device. `FERCUDA_TENANT_LIMITS`.
    pub tenant_limits: Vec<TenantLimit>,
    /// Where pooled memory comes from. `FERCUDA_BACKING`.
    pub backing: Backing,
    /// The driver's library below the hook, absolute. `FERCUDA_DRIVER`.
    pub driver: Option<PathBuf>,
    /// Where the trace goes. `FERCUDA_TRACE`.
    pub trace: Option<PathBuf>,
    /// The run that the process belongs to. `FERCUDA_RUN`.
    pub run: Option<NonZeroU64>,
}

/// Where pooled memory comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backing {
    /// Handles that are mapped: `vmm`.
    #[default]
    Vmm,
    /// Allocations of the driver's: `slabs`.
    Slabs,
}

/// What one tenant may use on each device: `torch=4GiB`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantLimit {
    /// Its name, as the ledger shows it.
    pub tenant: String,
    /// At most so much.
    pub limit: Bytes,
}

/// A size in bytes, more than 0: `8GiB`, `1.5 GiB`, `500MB`, `4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(NonZeroU64);

/// Why the environment is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A variable's value cannot be read; it counts as not set.
    #[error("{variable}={value:?}: {reason}")]
    Value {
        /// Its name.
        variable: &'static str,
        /// What it holds; bytes that are no UTF-8 replaced.
        value: String,
        /// What is wrong with it, and what would be right.
        reason: ValueError,
    },
    /// A name begins like ours, and nothing reads it.
    #[error("{name} is no variable of feRcuda\ntry: {}", advice(*.nearest))]
    Unknown {
        /// The name.
        name: String,
        /// One that it may have been meant for.
        nearest: Option<&'static str>,
    },
}

fn advice(nearest: Option<&str>) -> String {
    match nearest {
        Some(nearest) => format!("{nearest}, or unset it"),
        None => "unset it; docs/environment.md lists those there are".to_owned(),
    }
}

/// What is wrong with a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// It is no size.
    #[error(transparent)]
    Bytes(#[from] BytesError),
    /// An item is not `NAME=SIZE`.
    #[error("{item:?} is not NAME=SIZE\ntry: torch=4GiB,jax=2GiB")]
    Item {
        /// The item.
        item: String,
    },
    /// A tenant is limited twice.
    #[error("{tenant} is limited twice, to {first} and to {second}\ntry: one limit a tenant")]
    Twice {
        /// Its name.
        tenant: String,
        /// To what.
        first: Bytes,
        /// And to what.
        second: Bytes,
    },
    /// More tenants are limited than have rows of their own in a ledger.
    #[error("{count} tenants are limited, of which a ledger tells {most} apart\ntry: fewer")]
    TooMany {
        /// How many.
        count: usize,
        /// At most.
        most: usize,
    },
    /// A path is relative: processes have working folders of their own.
    #[error("it is no absolute path\ntry: one that begins with /")]
    Relative,
    /// It is no kind of backing.
    #[error("it is neither vmm nor slabs\ntry: slabs if blocks are shared with other processes")]
    Backing,
    /// It is no number from 1 up.
    #[error("it is no number from 1 to {}\ntry: leave it to fercuda run", u64::MAX)]
    Number,
    /// It is not UTF-8.
    #[error("it is not UTF-8\ntry: plain letters")]
    Text,
}

/// Why a text is no size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BytesError {
    /// It does not begin with a number.
    #[error("it does not begin with a number\ntry: 8GiB, 512MiB, 1.5GiB or plain bytes")]
    Number,
    /// The unit is none, or says two things.
    #[error(
        "its unit is none of B, KiB, MiB, GiB, TiB, kB, MB, GB, TB\n\
         try: 8GiB for 8 x 1024^3 bytes, 8GB for 8 x 1000^3"
    )]
    Unit,
    /// It is less than one byte.
    #[error("it is less than 1 byte\ntry: 8GiB, 512MiB, 1.5GiB or plain bytes")]
    Nothing,
    /// It is 2^64 bytes or more, or has too many digits.
    #[error("it is more than 2^64 bytes, or written with more than 18 decimals\ntry: 8GiB")]
    TooMuch,
}

/// Units by their names in lower case; the first that divides a size prints it.
const UNITS: &[(&str, &str, u64)] = &[
    ("tib", "TiB", 1 << 40),
    ("gib", "GiB", 1 << 30),
    ("mib", "MiB", 1 << 20),
    ("kib", "KiB", 1 << 10),
    ("tb", "TB", 1_000_000_000_000),
    ("gb", "GB", 1_000_000_000),
    ("mb", "MB", 1_000_000),
    ("kb", "kB", 1_000),
    ("b", "B", 1),
    ("", "", 1),
];

impl Bytes {
    /// So many; `None` for 0.
    pub fn new(bytes: u64) -> Option<Bytes> {
        NonZeroU64::new(bytes).map(Bytes)
    }

    /// How many they are.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

impl FromStr for Bytes {
    type Err = BytesError;

    /// Reads a number, with decimals or without, and a unit in any case. What
    /// is less than a whole byte is cut off.
    fn from_str(text: &str) -> Result<Bytes, BytesError> {
        const DECIMALS: usize = 18;
        let text = text.trim();
        let digits = |text: &str| text.len() - text.trim_start_matches(is_digit).len();
        let (whole, rest) = text.split_at(digits(text));
        let (decimals, unit) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(digits(rest)),
            None => ("", rest),
        };
        // "8." and ".5" are slips as likely as sizes.
        if whole.is_empty() || (rest.starts_with('.') && decimals.is_empty()) {
            return Err(BytesError::Number);
        }
        let unit = unit.trim_start().to_ascii_lowercase();
        let (_, _, unit) = UNITS
            .iter()
            .find(|(name, _, _)| *name == unit)
            .ok_or(BytesError::Unit)?;
        let unit = u128::from(*unit);
        // Both factors are below 2^64, so nothing here overflows.
        let whole: u64 = whole.parse().map_err(|_| BytesError::TooMuch)?;
        let parts: u64 = match decimals.len() {
            0 => 0,
            1..=DECIMALS => decimals.parse().map_err(|_| BytesError::TooMuch)?,
            _ => return Err(BytesError::TooMuch),
        };
        let part = u128::from(parts) * unit / 10_u128.pow(decimals.len() as u32);
        let bytes = u128::from(whole) * unit + part;
        let bytes = u64::try_from(bytes).map_err(|_| BytesError::TooMuch)?;
        Bytes::new(bytes).ok_or(BytesError::Nothing)
    }
}

fn is_digit(c: char) -> bool {
    c.is_ascii_digit()
}

impl fmt::Display for Bytes {
    /// In the largest binary unit of which it is a whole number.
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

impl Config {
    /// Reads variables, such as `std::env::vars_os()`: what could be read, and
    /// what is wrong with the others. An empty value is one that is not set.
    pub fn read(
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> (Config, Vec<ConfigError>) {
        let mut config = Config::default();
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

    /// Sets what the variable `name` is about; nothing, if that is not ours.
    fn set(&mut self, name: &str, value: &OsStr) -> Result<(), (&'static str, ValueError)> {
        let text = || value.to_str().map(str::trim).ok_or(ValueError::Text);
        match name {
            "FERCUDA_DISABLE" => {
                // A switch that kills is not particular about how it is said.
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
                    "vmm" => Ok(Backing::Vmm),
                    "slabs" => Ok(Backing::Slabs),
                    _ => Err(ValueError::Backing),
                });
                self.backing = backing.map_err(|reason| ("FERCUDA_BACKING", reason))?;
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

/// Reads a list of limits, no tenant twice.
fn tenant_limits(text: &str) -> Result<Vec<TenantLimit>, ValueError> {
    let items = text
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty());
    let limits: Vec<TenantLimit> = items.map(str::parse).collect::<Result<_, _>>()?;
    // One row is that of all others.
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

    fn read(variables: &[(&str, &str)]) -> (Config, Vec<ConfigError>) {
        let variables = variables.iter();
        Config::read(variables.map(|(name, value)| (name.into(), value.into())))
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
            ("1", 1),
            ("1.9", 1),
            ("77B", 77),
            ("18446744073709551615", u64::MAX),
            ("15.999999999999999999TiB", 17_592_186_044_415),
        ] {
            let read: Bytes = text
                .parse()
                .unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(read.get(), bytes, "{text}");
        }
    }

    #[test]
    fn what_is_no_size_says_why() {
        for (text, error) in [
            ("", BytesError::Number),
            ("-1GiB", BytesError::Number),
            ("+1GiB", BytesError::Number),
            ("eight", BytesError::Number),
            (".5GiB", BytesError::Number),
            ("8.GiB", BytesError::Number),
            ("8G", BytesError::Unit),
            ("8 GiB!", BytesError::Unit),
            ("1e9", BytesError::Unit),
            ("1.2.3", BytesError::Unit),
            ("0x10", BytesError::Unit),
            ("0", BytesError::Nothing),
            ("0.0000000001GiB", BytesError::Nothing),
            ("18446744073709551616", BytesError::TooMuch),
            ("16777216TiB", BytesError::TooMuch),
            ("1.0000000000000000000GiB", BytesError::TooMuch),
        ] {
            assert_eq!(text.parse::<Bytes>(), Err(error), "{text:?}");
        }
    }

    #[test]
    fn sizes_print_as_they_are_read() {
        for (bytes, text) in [
            (8 << 30, "8GiB"),
            (3 << 29, "1536MiB"),
            (1 << 40, "1TiB"),
            (4000, "4000B"),
            (u64::MAX, "18446744073709551615B"),
        ] {
            let size = Bytes::new(bytes).unwrap();
            assert_eq!(size.to_string(), text);
            assert_eq!(text.parse(), Ok(size));
        }
    }

    #[test]
    fn all_that_is_set_is_read() {
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
        ]);
        assert_eq!(errors, []);
        let expected = Config {
            disabled: false,
            limit: Bytes::new(8 << 30),
            tenant_limits: vec!["torch=4GiB".parse().unwrap(), "jax=2GiB".parse().unwrap()],
            backing: Backing::Slabs,
            driver: Some("/lib/libcuda.so.1".into()),
            trace: Some("/tmp/trace.csv".into()),
            run: NonZeroU64::new(u64::MAX),
        };
        assert_eq!(config, expected);
        let nothing = [("FERCUDA_LIMIT", ""), ("FERCUDA_DISABLE", "")];
        assert_eq!(read(&nothing), (Config::default(), vec![]));
        assert!(read(&[("FERCUDA_DISABLE", "1")]).0.disabled);
        assert!(read(&[("FERCUDA_DISABLE", "true")]).0.disabled);
    }

    #[test]
    fn what_cannot_be_read_says_what_it_was_and_counts_as_not_set() {
        for (name, value, expected) in [
            (
                "FERCUDA_LIMIT",
                "8G",
                "FERCUDA_LIMIT=\"8G\": its unit is none",
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
            ("FERCUDA_DRIVER", "libcuda.so.1", "no absolute path"),
            ("FERCUDA_TRACE", "trace.csv", "no absolute path"),
            ("FERCUDA_RUN", "0", "no number from 1"),
            ("FERCUDA_RUN", "-1", "no number from 1"),
        ] {
            let (config, errors) = read(&[(name, value)]);
            assert_eq!(config, Config::default(), "{name}={value}");
            let [error] = &errors[..] else {
                panic!("{name}={value}: {errors:?}");
            };
            let text = error.to_string();
            assert!(text.contains(expected), "{text}");
            assert!(text.contains("\ntry: "), "{text}");
        }
    }

    #[test]
    fn as_many_tenants_are_limited_as_have_rows() {
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
        assert!(text.contains("64 tenants are limited, of which a ledger tells 63 apart"));
    }

    #[test]
    fn a_name_that_nothing_reads_is_told() {
        // In two halves, since the repository has no such variable.
        let slip = concat!("FERCUDA_", "LIMT");
        let (config, errors) = read(&[(slip, "8GiB"), ("FERCUDA_SEED", "1")]);
        assert_eq!(config, Config::default());
        let texts: Vec<String> = errors.iter().map(ConfigError::to_string).collect();
        assert_eq!(
            texts,
            [format!(
                "{slip} is no variable of feRcuda\ntry: FERCUDA_LIMIT, or unset it"
            )]
        );
    }

    #[test]
    fn a_value_that_is_no_text_is_refused_and_a_path_may_be_one() {
        use std::os::unix::ffi::OsStringExt as _;
        let odd = OsString::from_vec(b"/tmp/\xff".to_vec());
        let variables = ["FERCUDA_LIMIT", "FERCUDA_TRACE"].map(|name| (name.into(), odd.clone()));
        let (config, errors) = Config::read(variables);
        assert_eq!(config.trace, Some(PathBuf::from(odd)));
        assert_eq!(errors.len(), 1);
    }
}
