//! Expressions of a tag with their sums and assigned values passed through filters, which bound
//! what comes of them (`limits`).
//!
//! `a + b - c` becomes `(a)|ADD(b) - c`, and `set x = v` becomes `set x =(v)|KEEP(false)`. Text
//! that does not parse stays as it is, for the compiler to refuse.

use super::limits::{ADD, KEEP};
use super::tag_tokens::{TagToken, TagTokenKind, tag_tokens};

/// `set x = (value)|KEEP(is_member)`, where a tag assigns a value.
pub(crate) fn with_kept_value(inner: &str) -> String {
    let tokens = tag_tokens(inner);
    if !tokens.first().is_some_and(|it| it.is_word("set")) {
        return inner.to_owned();
    }
    let mut depth = 0_usize;
    let assigns = tokens.iter().find(|token| {
        match token.kind {
            TagTokenKind::Open => depth += 1,
            TagTokenKind::Close => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && token.is_sign("=")
    });
    match assigns.map(TagToken::end) {
        Some(at) if !inner[at..].trim().is_empty() => {
            let (target, value) = inner.split_at(at);
            let is_member = target.contains('.');
            format!("{target}({value})|{KEEP}({is_member}) ")
        }
        _ => inner.to_owned(),
    }
}

/// What is in a tag, with its sums through a filter. `is_block` tells whether its first word is a
/// statement's.
pub(crate) fn with_sums(inner: &str, is_block: bool) -> String {
    let tokens = tag_tokens(inner);
    if !tokens.iter().any(|it| it.is_sign("+")) {
        return inner.to_owned();
    }
    let mut writer = SumWriter {
        text: inner,
        tokens: &tokens,
        next: 0,
    };
    match writer.level(0, is_block) {
        Some(written) if writer.next == tokens.len() => written,
        _ => inner.to_owned(),
    }
}

/// A sum that is being written, and what stands before it.
#[derive(Default)]
struct OpenSum {
    /// Text before the sum.
    done: String,
    /// The terms so far.
    sum: Option<String>,
    /// Whether those end in a filter, so that another one can follow.
    is_filtered: bool,
    /// Whether the current term is subtracted.
    is_minus: bool,
    term: String,
    /// Whether the current term has a token.
    has_term: bool,
}

impl OpenSum {
    /// Adds the current term to the terms so far.
    fn close_term(&mut self) {
        let term = std::mem::take(&mut self.term);
        self.has_term = false;
        self.sum = Some(match self.sum.take() {
            None => term,
            Some(sum) if self.is_minus => {
                self.is_filtered = false;
                format!("{sum}-{term}")
            }
            Some(sum) if self.is_filtered => format!("{sum}|{ADD}({term})"),
            Some(sum) => {
                self.is_filtered = true;
                format!("({sum})|{ADD}({term})")
            }
        });
    }

    /// Ends the sum.
    fn close(&mut self) {
        self.close_term();
        self.done.extend(self.sum.take());
        (self.is_filtered, self.is_minus) = (false, false);
    }
}

struct SumWriter<'a> {
    text: &'a str,
    tokens: &'a [TagToken<'a>],
    next: usize,
}

impl SumWriter<'_> {
    /// Writes up to the bracket that closes, or the end; `None` for what does not parse. `from` is
    /// the place behind the bracket that opens.
    fn level(&mut self, from: usize, is_block: bool) -> Option<String> {
        let mut open = OpenSum::default();
        let mut at = from;
        let first = self.next;
        loop {
            let Some(token) = self.tokens.get(self.next) else {
                open.term.push_str(&self.text[at..]);
                open.close();
                return Some(open.done);
            };
            if token.kind == TagTokenKind::Close {
                open.term.push_str(&self.text[at..token.at]);
                open.close();
                return Some(open.done);
            }
            let between = &self.text[at..token.at];
            let is_statement = is_block && self.next == first;
            let is_operator = token.is_sign("+") || token.is_sign("-") && open.has_term;
            if is_statement || self.ends_sum(self.next, first) {
                open.term.push_str(between);
                open.close();
                open.done.push_str(token.text);
            } else if is_operator && self.is_behind_value(first) {
                open.term.push_str(between);
                open.close_term();
                open.is_minus = token.text == "-";
            } else if token.is_sign("+") {
                return None;
            } else {
                open.term.push_str(between);
                open.term.push_str(token.text);
                open.has_term = true;
            }
            at = token.end();
            self.next += 1;
            if token.kind == TagTokenKind::Open {
                let inner = self.level(at, false)?;
                let close = self.tokens.get(self.next)?;
                open.term.push_str(&inner);
                open.term.push_str(close.text);
                at = close.end();
                self.next += 1;
            }
        }
    }

    /// Whether the token before the next one ends a value.
    fn is_behind_value(&self, first: usize) -> bool {
        let before = self.next.checked_sub(1).filter(|it| *it >= first);
        before.is_some_and(|it| match self.tokens[it].kind {
            TagTokenKind::Open | TagTokenKind::Sign => false,
            TagTokenKind::Word => !self.ends_sum(it, first),
            _ => true,
        })
    }

    /// Whether a token binds less than sums do.
    fn ends_sum(&self, at: usize, first: usize) -> bool {
        const SIGNS: [&str; 10] = [",", ":", "=", "==", "!=", "<", "<=", ">", ">=", "!"];
        const WORDS: [&str; 7] = ["or", "and", "not", "in", "if", "else", "recursive"];
        let token = &self.tokens[at];
        let before = |steps: usize| {
            let before = at.checked_sub(steps).filter(|it| *it >= first);
            before.map(|it| &self.tokens[it])
        };
        match token.kind {
            TagTokenKind::Sign => SIGNS.contains(&token.text),
            TagTokenKind::Word if WORDS.contains(&token.text) => {
                let is_name = before(1).is_some_and(|it| it.is_sign(".") || it.is_sign("|"));
                // Of a test: `is not none`, `is in list`.
                let is_not = before(1).is_some_and(|it| it.is_word("not"));
                let is_test = before(1).is_some_and(|it| it.is_word("is"))
                    || is_not && before(2).is_some_and(|it| it.is_word("is"));
                !is_name && !is_test
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_split_where_the_compiler_would() {
        let shown = |text: &str, is_block: bool| with_sums(text, is_block).replace(ADD, "A");
        for (text, is_block, wanted) in [
            (" a + b ", false, "( a )|A( b )"),
            ("a+b+c", false, "(a)|A(b)|A(c)"),
            ("a-b+c-d+e", false, "((a-b)|A(c)-d)|A(e)"),
            ("-a + -b|f", false, "(-a )|A( -b|f)"),
            ("a * b + c ~ d", false, "(a * b )|A( c ~ d)"),
            (
                "f(a + 1, k=b+2)[i+1:]",
                false,
                "f((a )|A( 1), k=(b)|A(2))[(i)|A(1):]",
            ),
            ("{'a': b + c, 'd': e}", false, "{'a':( b )|A( c), 'd': e}"),
            (
                "not a + b is not none and c",
                false,
                "not( a )|A( b is not none )and c",
            ),
            (
                "x if a + b == c else d + e",
                false,
                "x if( a )|A( b )== c else( d )|A( e)",
            ),
            (" set x = a + b ", true, " set x =( a )|A( b )"),
            (" include a + b", true, " include( a )|A( b)"),
            (
                "for x in a + b if c recursive",
                true,
                "for x in( a )|A( b )if c recursive",
            ),
            ("m.in + m['+'] ~ '+'", false, "(m.in )|A( m['+'] ~ '+')"),
            ("1e+5 - 2", false, "1e+5 - 2"),
            // What does not parse stays.
            ("+ a", false, "+ a"),
            ("a + )", false, "a + )"),
            ("(a + b", false, "(a + b"),
        ] {
            assert_eq!(shown(text, is_block), wanted, "{text}");
        }
    }

    #[test]
    fn assigned_values_are_kept() {
        let shown = |text: &str| with_kept_value(text).replace(KEEP, "K");
        assert_eq!(shown(" set x = 1 "), " set x =( 1 )|K(false) ");
        assert_eq!(
            shown("set ns.x, y = f(a=1), 2"),
            "set ns.x, y =( f(a=1), 2)|K(true) "
        );
        for same in [
            "set x",
            "set x|upper",
            "set x = ",
            "if x == 1",
            "settle = 1",
        ] {
            assert_eq!(shown(same), same);
        }
    }
}
