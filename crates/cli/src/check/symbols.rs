//! Demangled C++ names of kernels and device functions.
//!
//! Invariant: a symbol that cannot be demangled, or whose text would be longer than
//! [`MOST_BYTES`], stays as it is.

use std::fmt;

use cpp_demangle::{DemangleOptions, Symbol};

/// Longest text of a demangled name. Back-references of a symbol could make it exponential.
const MOST_BYTES: usize = 4096;

/// Text of limited length.
struct LimitedText(String);

impl fmt::Write for LimitedText {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        if self.0.len() + part.len() > MOST_BYTES {
            return Err(fmt::Error);
        }
        self.0.push_str(part);
        Ok(())
    }
}

fn demangled_by(symbol: &str, options: &DemangleOptions) -> Option<String> {
    if !symbol.starts_with("_Z") {
        return None;
    }
    let parsed = Symbol::new(symbol).ok()?;
    let mut text = LimitedText(String::new());
    parsed.structured_demangle(&mut text, options).ok()?;
    Some(text.0)
}

/// `scale<float>(float*, int)` for `_Z5scaleIfEvPT_i`: without the return type.
pub(crate) fn demangled(symbol: &str) -> Option<String> {
    demangled_by(symbol, &DemangleOptions::new().no_return_type())
}

/// `text` with each symbol in it demangled.
pub(crate) fn with_demangled(text: &str) -> String {
    let is_of_symbol = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '.');
    let mut replaced = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("_Z") {
        let begins = !rest[..at].ends_with(is_of_symbol);
        let tail = &rest[at..];
        let len = tail.find(|c| !is_of_symbol(c)).unwrap_or(tail.len());
        // A full stop behind it ends a sentence.
        let symbol = tail[..len].trim_end_matches('.');
        replaced.push_str(&rest[..at]);
        match demangled(symbol).filter(|_| begins) {
            Some(name) => replaced.push_str(&name),
            None => replaced.push_str(symbol),
        }
        rest = &tail[symbol.len()..];
    }
    replaced.push_str(rest);
    replaced
}

/// How well a name that a user gave fits a symbol, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NameMatch {
    Symbol,
    /// With parameters: `ns::scale<float>(float*)`.
    Declaration,
    /// Without: `ns::scale<float>`.
    Name,
    /// Without template arguments: `ns::scale`.
    Template,
    /// Without namespaces: `scale<float>`, `scale`.
    Unqualified,
}

impl NameMatch {
    /// Compares, apart from white space.
    pub(crate) fn of(given: &str, symbol: &str) -> Option<NameMatch> {
        if given == symbol {
            return Some(NameMatch::Symbol);
        }
        let given = without_space(given);
        let name = name_of(symbol)?;
        let short = unqualified(&name);
        let forms = [
            (NameMatch::Declaration, without_space(&demangled(symbol)?)),
            (
                NameMatch::Template,
                without_template_arguments(&name).to_owned(),
            ),
            (
                NameMatch::Unqualified,
                without_template_arguments(short).to_owned(),
            ),
            (NameMatch::Unqualified, short.to_owned()),
            (NameMatch::Name, name.clone()),
        ];
        let fitting = forms.iter().filter(|(_, form)| *form == given);
        fitting.map(|(fit, _)| *fit).min()
    }
}

/// The symbol's name without parameters, return type and white space: `ns::scale<float>`.
pub(crate) fn name_of(symbol: &str) -> Option<String> {
    let options = DemangleOptions::new().no_return_type().no_params();
    demangled_by(symbol, &options).map(|name| without_space(&name))
}

fn without_space(text: &str) -> String {
    text.split_ascii_whitespace().collect()
}

/// `a::b` of `a::b<c<d>>`.
fn without_template_arguments(name: &str) -> &str {
    let mut depth = 0;
    for (at, c) in name.char_indices().rev() {
        match c {
            '>' => depth += 1,
            '<' => depth -= 1,
            _ => {}
        }
        if depth <= 0 {
            return match c {
                '<' => &name[..at],
                _ => name,
            };
        }
    }
    name
}

/// `b<c::d>` of `a::b<c::d>`.
fn unqualified(name: &str) -> &str {
    let mut depth = 0;
    for (at, c) in name.char_indices().rev() {
        match c {
            '>' | ')' => depth += 1,
            '<' | '(' => depth -= 1,
            ':' if depth == 0 => return &name[at + 1..],
            _ => {}
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCALE: &str = "_ZN2ns5scaleIfEEvPT_i";
    const HIDDEN: &str = "_ZN1a37_GLOBAL__N__00000000_5_cg_cu__Z1kPfS_1qEPi";

    #[test]
    fn symbols_in_a_text_are_demangled_and_other_names_stay() {
        assert_eq!(
            with_demangled("in _Z5shiftPfi, at _ZN2ns5scaleIfEEvPT_i. x_Z5shiftPfi saxpy _Z9x _Z"),
            "in shift(float*, int), at ns::scale<float>(float*, int). x_Z5shiftPfi saxpy _Z9x _Z"
        );
        assert_eq!(
            demangled(HIDDEN).as_deref(),
            Some("a::(anonymous namespace)::q(int*)")
        );
        assert_eq!(demangled("saxpy"), None);
    }

    #[test]
    fn a_name_that_would_be_too_long_stays_mangled() {
        // Each parameter names the one before twice, so that the text doubles.
        let nested = |levels: usize| {
            let ids = "0123456789ABCDEF".chars().take(levels);
            let levels: String = ids.map(|id| format!("S_IS{id}_S{id}_E")).collect();
            format!("_Z1f1tIiiE{levels}")
        };
        assert_eq!(
            demangled(&nested(1)).as_deref(),
            Some("f(t<int, int>, t<t<int, int>, t<int, int> >)")
        );
        let unlimited = Symbol::new(nested(12)).unwrap().demangle().unwrap();
        assert!(unlimited.len() > MOST_BYTES);
        assert_eq!(demangled(&nested(12)), None);
        assert_eq!(with_demangled(&nested(12)), nested(12));
    }

    #[test]
    fn a_kernel_is_named_in_every_form_that_its_source_suggests() {
        let fit = |given| NameMatch::of(given, SCALE);
        assert_eq!(fit(SCALE), Some(NameMatch::Symbol));
        assert_eq!(
            fit("ns::scale<float>(float *, int)"),
            Some(NameMatch::Declaration)
        );
        assert_eq!(fit("ns::scale<float>"), Some(NameMatch::Name));
        assert_eq!(fit("ns::scale"), Some(NameMatch::Template));
        assert_eq!(fit("scale<float>"), Some(NameMatch::Unqualified));
        assert_eq!(fit("scale"), Some(NameMatch::Unqualified));
        for other in [
            "ns",
            "float",
            "scale<double>",
            "ns::scale<float>(float*)",
            "",
        ] {
            assert_eq!(fit(other), None, "{other}");
        }
        assert_eq!(NameMatch::of("q", HIDDEN), Some(NameMatch::Unqualified));
        let plain = NameMatch::of("f", "_Z1fN1a1bE");
        assert_eq!(plain, Some(NameMatch::Name));
        assert_eq!(NameMatch::of("saxpy", "saxpy"), Some(NameMatch::Symbol));
        assert_eq!(NameMatch::of("saxp", "saxpy"), None);
    }
}
