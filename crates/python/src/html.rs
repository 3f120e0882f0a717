//! Small HTML tables, for notebooks.

use std::fmt::{self, Display};

/// Number of bytes, with its size in binary units.
pub(crate) struct ByteCount(pub(crate) u64);

impl Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut scaled = self.0 as f64;
        let mut unit = "";
        for larger in ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"] {
            if scaled < 1024.0 {
                break;
            }
            (scaled, unit) = (scaled / 1024.0, larger);
        }
        match unit {
            "" => write!(f, "{} B", self.0),
            unit => write!(f, "{} B ({scaled:.1} {unit})", self.0),
        }
    }
}

/// A table of names and values, under a heading. All text is escaped.
pub(crate) struct HtmlTable(String);

impl HtmlTable {
    pub(crate) fn new(heading: &str) -> Self {
        let heading = escaped(heading);
        Self(format!(
            "<table><thead><tr><th colspan=\"2\">{heading}</th></tr></thead><tbody>"
        ))
    }

    pub(crate) fn row(mut self, name: &str, value: impl Display) -> Self {
        let (name, value) = (escaped(name), escaped(&value.to_string()));
        self.0
            .push_str(&format!("<tr><th>{name}</th><td>{value}</td></tr>"));
        self
    }

    pub(crate) fn finish(self) -> String {
        self.0 + "</tbody></table>"
    }
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            char => out.push(char),
        }
    }
    out
}
