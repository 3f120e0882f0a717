//! Grammars in GBNF, the notation of llama.cpp, as grammars in that of Lark.
//!
//! Invariants: each character of a text is a terminal of its own. A lexer takes the longest
//! terminal that fits, which a grammar in GBNF does not: its `[a-z]+ "z"` has texts. Brackets
//! become rules of their own: Lark's parser takes 30 within each other, and this one as many as
//! the source may have.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::error::{GrammarError, refused};
use crate::lark_text::lark_text;

/// Largest number in braces.
const MOST_REPEATED: u32 = 4096;

/// Whether a text begins as a grammar in this notation does: with a rule's name and `::=`, or with
/// comments that have nothing behind them.
pub(crate) fn is_gbnf(text: &str) -> bool {
    let lines = text.lines().map(str::trim_start);
    let mut lines = lines.filter(|it| !it.is_empty() && !it.starts_with('#'));
    let Some(first) = lines.next() else {
        return !text.trim().is_empty();
    };
    let rest = first.trim_start_matches(is_of_name);
    rest.len() < first.len()
        && match rest.trim() {
            // The sign may stand in the next line.
            "" => lines.next().is_some_and(|it| it.starts_with("::=")),
            rest => rest.starts_with("::="),
        }
}

/// The grammar in the notation of Lark, from `start` on.
///
/// # Errors
/// [`GrammarError::Source`] with the line.
pub(crate) fn lark_of(text: &str) -> Result<String, GrammarError> {
    let mut reader = GbnfReader {
        chars: text.chars().collect(),
        at: 0,
        names: HashMap::new(),
        rules: Vec::new(),
        parts: Vec::new(),
    };
    reader.grammar()?;
    reader.written()
}

fn is_of_name(it: char) -> bool {
    it.is_ascii_alphanumeric() || it == '-' || it == '_'
}

/// A rule, once its name is used.
struct GbnfRule {
    name: String,
    /// Line of the first use of its name.
    line: usize,
    body: Option<String>,
}

struct GbnfReader {
    chars: Vec<char>,
    at: usize,
    names: HashMap<String, usize>,
    rules: Vec<GbnfRule>,
    /// What stands in brackets, as rules `part0`, `part1`, ...
    parts: Vec<String>,
}

type Result<T, E = GrammarError> = std::result::Result<T, E>;

impl GbnfReader {
    fn line(&self) -> usize {
        let before = &self.chars[..self.at.min(self.chars.len())];
        1 + before.iter().filter(|it| **it == '\n').count()
    }

    fn error<T>(&self, what: &str, advice: &'static str) -> Result<T> {
        let what = format!("the grammar in GBNF has {what} in line {}", self.line());
        Err(refused(what, advice))
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let it = self.peek()?;
        self.at += 1;
        Some(it)
    }

    fn takes(&mut self, text: &str) -> bool {
        let has = text
            .chars()
            .eq(self.chars.iter().skip(self.at).take(text.len()).copied());
        if has {
            self.at += text.len();
        }
        has
    }

    /// Skips blanks and comments, and ends of lines where the text goes on.
    fn skip(&mut self, over_lines: bool) {
        while let Some(it) = self.peek() {
            match it {
                '#' => {
                    while self.peek().is_some_and(|it| it != '\n') {
                        self.at += 1;
                    }
                }
                '\r' | '\n' if !over_lines => return,
                it if it.is_ascii_whitespace() => self.at += 1,
                _ => return,
            }
        }
    }

    fn rule_of(&mut self, name: String) -> usize {
        let count = self.rules.len();
        let number = *self.names.entry(name.clone()).or_insert(count);
        if number == count {
            let line = self.line();
            self.rules.push(GbnfRule {
                name,
                line,
                body: None,
            });
        }
        number
    }

    fn name(&mut self) -> String {
        let first = self.at;
        while self.peek().is_some_and(is_of_name) {
            self.at += 1;
        }
        self.chars[first..self.at].iter().collect()
    }

    fn grammar(&mut self) -> Result<()> {
        self.rule_of("root".to_owned());
        loop {
            self.skip(true);
            if self.peek().is_none() {
                return Ok(());
            }
            let name = self.name();
            if name.is_empty() {
                return self.error(
                    "no name of a rule",
                    "a rule such as root ::= \"yes\" | \"no\"",
                );
            }
            let number = self.rule_of(name);
            self.skip(true);
            if !self.takes("::=") {
                return self.error(
                    "a rule without ::=",
                    "a rule such as root ::= \"yes\" | \"no\"",
                );
            }
            self.skip(true);
            let body = self.choice(false)?;
            if self.rules[number].body.replace(body).is_some() {
                let what = format!("a second rule {}", self.rules[number].name);
                return self.error(&what, "alternatives of one rule, with |");
            }
            self.skip(false);
            if self.peek().is_some_and(|it| it != '\n' && it != '\r') {
                return self.error("a sign that ends no rule", "a line for each rule");
            }
        }
    }

    /// Alternatives, up to the end of a rule or of its brackets.
    fn choice(&mut self, in_brackets: bool) -> Result<String> {
        let mut all = self.sequence(in_brackets)?;
        loop {
            self.skip(in_brackets);
            if !self.takes("|") {
                return Ok(all);
            }
            // An alternative may stand in the next line.
            self.skip(true);
            all.push_str(" | ");
            all.push_str(&self.sequence(in_brackets)?);
        }
    }

    fn sequence(&mut self, in_brackets: bool) -> Result<String> {
        let mut all = String::new();
        loop {
            self.skip(in_brackets);
            let item = match self.peek() {
                Some('"') => self.text()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.at += 1;
                    "/(?s:.)/".to_owned()
                }
                Some('(') => {
                    self.at += 1;
                    self.skip(true);
                    let inner = self.choice(true)?;
                    if !self.takes(")") {
                        return self.error("an open bracket", "its closing one");
                    }
                    self.part(inner)
                }
                Some('<') => self.token()?,
                Some('!') => {
                    return self.error("tokens that are left out", "a class of characters");
                }
                Some(it) if is_of_name(it) => {
                    let name = self.name();
                    let number = self.rule_of(name);
                    self.written_name(number)
                }
                Some('*' | '+' | '?' | '{') => {
                    return self.error("a repetition of nothing", "a text before it");
                }
                _ => {
                    if all.is_empty() {
                        all.push_str("\"\"");
                    }
                    return Ok(all);
                }
            };
            let item = self.repeated(item)?;
            if !all.is_empty() {
                all.push(' ');
            }
            all.push_str(&item);
        }
    }

    /// The name of a rule for what stands in brackets or is repeated once more.
    fn part(&mut self, inner: String) -> String {
        self.parts.push(inner);
        format!("part{}", self.parts.len() - 1)
    }

    fn repeated(&mut self, mut item: String) -> Result<String> {
        for count in 0_usize.. {
            if count > 0 && matches!(self.peek(), Some('*' | '+' | '?' | '{')) {
                item = self.part(item);
            }
            match self.peek() {
                Some(sign @ ('*' | '+' | '?')) => {
                    self.at += 1;
                    item = format!("({item}){sign}");
                }
                Some('{') => {
                    self.at += 1;
                    let least = self.number()?;
                    let most = match self.takes(",") {
                        false => Some(least),
                        true => {
                            self.skip(false);
                            match self.peek() {
                                Some('}') => None,
                                _ => Some(self.number()?),
                            }
                        }
                    };
                    self.skip(false);
                    if !self.takes("}") {
                        return self.error("an open brace", "braces such as {2,5}");
                    }
                    item = match most {
                        None => format!("({item}){{{least},}}"),
                        Some(most) if most < least => {
                            return self
                                .error("braces with a largest number below the least", "{2,5}");
                        }
                        Some(0) => "\"\"".to_owned(),
                        Some(most) => format!("({item}){{{least},{most}}}"),
                    };
                }
                _ => break,
            }
        }
        Ok(item)
    }

    fn number(&mut self) -> Result<u32> {
        self.skip(false);
        let first = self.at;
        while self.peek().is_some_and(|it| it.is_ascii_digit()) {
            self.at += 1;
        }
        let digits: String = self.chars[first..self.at].iter().collect();
        self.skip(false);
        match digits.parse() {
            Ok(number) if number <= MOST_REPEATED => Ok(number),
            _ if digits.is_empty() => self.error("braces without a number", "braces such as {2,5}"),
            _ => {
                let what = format!("{digits:.20} repetitions, more than {MOST_REPEATED},");
                self.error(&what, "fewer, or * for any number")
            }
        }
    }

    /// A character of a text or a class, with what a backslash means.
    fn character(&mut self) -> Result<char> {
        let digits = match self.next() {
            Some('\\') => match self.next() {
                Some('x') => 2,
                Some('u') => 4,
                Some('U') => 8,
                Some('t') => return Ok('\t'),
                Some('r') => return Ok('\r'),
                Some('n') => return Ok('\n'),
                Some(it @ ('\\' | '"' | '[' | ']' | '-' | '^' | '/' | '.')) => return Ok(it),
                _ => return self.error("a backslash before another sign", "\\\\ for a backslash"),
            },
            Some(it) => return Ok(it),
            None => return self.error("a text that does not end", "its end"),
        };
        let mut code = 0;
        for _ in 0..digits {
            match self.next().and_then(|it| it.to_digit(16)) {
                Some(digit) => code = code << 4 | digit,
                None => return self.error("a character without its digits", "as \\x41 or \\u0041"),
            }
        }
        match char::from_u32(code) {
            Some(it) => Ok(it),
            None => self.error(
                "a number of no character",
                "numbers of characters in Unicode",
            ),
        }
    }

    fn text(&mut self) -> Result<String> {
        self.at += 1;
        let mut all = Vec::new();
        while self.peek() != Some('"') {
            let it = self.character()?;
            all.push(lark_text(it.encode_utf8(&mut [0; 4])));
        }
        self.at += 1;
        match all.len() {
            0 => Ok("\"\"".to_owned()),
            1 => Ok(all.remove(0)),
            _ => Ok(format!("({})", all.join(" "))),
        }
    }

    fn class(&mut self) -> Result<String> {
        self.at += 1;
        let sign = match self.takes("^") {
            true => "^",
            false => "",
        };
        let (mut all, first) = (format!("/[{sign}"), self.at);
        while self.peek() != Some(']') {
            let low = self.character()?;
            let is_range = self.peek() == Some('-') && self.chars.get(self.at + 1) != Some(&']');
            let high = match is_range {
                true => {
                    self.at += 1;
                    self.character()?
                }
                false => low,
            };
            if high < low {
                let what = format!("a class from {low:?} down to {high:?}");
                return self.error(&what, "the smaller character first");
            }
            let (low, high) = (u32::from(low), u32::from(high));
            let _ = write!(all, "\\x{{{low:x}}}-\\x{{{high:x}}}");
        }
        if self.at == first {
            return self.error(
                "an empty class",
                "a class such as [a-z], or . for any character",
            );
        }
        self.at += 1;
        Ok(all + "]/")
    }

    /// A control token by its text or its number.
    fn token(&mut self) -> Result<String> {
        let first = self.at;
        while self.peek().is_some_and(|it| it != '>' && it != '\n') {
            self.at += 1;
        }
        if !self.takes(">") {
            return self.error("a token that does not end", "as <|im_end|> or <[7]>");
        }
        Ok(self.chars[first..self.at].iter().collect())
    }

    /// A rule's name, as Lark's rules have them.
    fn written_name(&self, number: usize) -> String {
        let name = self.rules[number].name.to_ascii_lowercase();
        format!("r{number}_{}", name.replace('-', "_"))
    }

    fn written(self) -> Result<String> {
        let mut all = format!("start: {}\n", self.written_name(0));
        for (number, rule) in self.rules.iter().enumerate() {
            let name = self.written_name(number);
            match &rule.body {
                Some(body) => {
                    let _ = writeln!(all, "{name}: {body}");
                }
                None if number == 0 => {
                    let what = "the grammar in GBNF has no rule root";
                    return Err(refused(what, "a rule such as root ::= \"yes\" | \"no\""));
                }
                None => {
                    let (name, line) = (&rule.name, rule.line);
                    let what = format!("the grammar in GBNF has no rule {name}, of line {line}");
                    return Err(refused(what, "a rule of that name"));
                }
            }
        }
        for (number, body) in self.parts.iter().enumerate() {
            let _ = writeln!(all, "part{number}: {body}");
        }
        Ok(all)
    }
}
