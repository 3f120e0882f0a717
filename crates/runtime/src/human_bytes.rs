//! Sizes as text, with binary units.

use std::fmt;

/// A number of bytes, printed with a binary unit.
pub(crate) struct HumanBytes(pub(crate) u64);

impl fmt::Display for HumanBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0 as f64;
        let mut unit = "B";
        for next in UNITS {
            if value < 1024.0 {
                break;
            }
            (value, unit) = (value / 1024.0, next);
        }
        match unit {
            "B" => write!(f, "{} B", self.0),
            unit => write!(f, "{value:.1} {unit}"),
        }
    }
}
