//! Syntax tree of a text, read by precedence.

use super::problem::{Result, TextProblem};
use crate::op::Binary;

/// Maximum nesting of brackets, lists and signs before a value.
pub const MAX_DEPTH: usize = 200;

/// Binary operators by precedence, the lowest first.
pub(super) const LEVELS: [&[(&str, Binary)]; 6] = [
    &[("|", Binary::Or)],
    &[("^", Binary::Xor)],
    &[("&", Binary::And)],
    &[
        ("==", Binary::Eq),
        ("!=", Binary::Ne),
        ("<=", Binary::Le),
        (">=", Binary::Ge),
        ("<", Binary::Lt),
        (">", Binary::Gt),
    ],
    &[("<<", Binary::Shl), (">>", Binary::Shr)],
    &[("+", Binary::Add), ("-", Binary::Sub)],
];
pub(super) const PRODUCTS: &[(&str, Binary)] =
    &[("*", Binary::Mul), ("/", Binary::Div), ("%", Binary::Rem)];

/// Names that are literals.
pub(super) const WORDS: [&str; 4] = ["true", "false", "inf", "nan"];

/// Functions that are neither operations on elements nor reductions.
pub(super) const FUNCTIONS: [&str; 14] = [
    "affine",
    "broadcast",
    "fma",
    "gelu",
    "layer_norm",
    "log_softmax",
    "permute",
    "relu",
    "reshape",
    "rms_norm",
    "select",
    "silu",
    "slice",
    "softmax",
];

/// A syntax tree node, with its position.
#[derive(Clone, Debug)]
pub(super) struct SyntaxTerm {
    pub(super) at: usize,
    pub(super) kind: SyntaxKind,
}

#[derive(Clone, Debug)]
pub(super) enum SyntaxKind {
    Number(f64, Option<i128>),
    Bool(bool),
    Name(String),
    Negative(Box<SyntaxTerm>),
    Not(Box<SyntaxTerm>),
    /// The first operand, and for each following operator its position, the operator and its
    /// operand. A binary node would nest as deep as the text is long.
    Chain(Box<SyntaxTerm>, Vec<(usize, Binary, SyntaxTerm)>),
    Call(String, Vec<SyntaxTerm>, Vec<(String, SyntaxTerm)>),
    List(Vec<SyntaxTerm>),
}

/// Position in a text that is read.
pub(super) struct TextReader<'a> {
    text: &'a str,
    pub(super) at: usize,
    depth: usize,
}

impl<'a> TextReader<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self {
            text,
            at: 0,
            depth: 0,
        }
    }

    pub(super) fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    pub(super) fn space(&mut self) {
        let trimmed = self.rest().trim_start();
        self.at = self.text.len() - trimmed.len();
    }

    pub(super) fn eat(&mut self, token: &str) -> bool {
        self.space();
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn expect(&mut self, token: &str) -> Result<()> {
        match self.eat(token) {
            true => Ok(()),
            false => Err(TextProblem::new(
                self.at,
                format!("`{token}` is missing"),
                "",
            )),
        }
    }

    pub(super) fn name(&mut self) -> Option<&'a str> {
        self.space();
        let is = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let len = self.rest().find(|c| !is(c)).unwrap_or(self.rest().len());
        let name = &self.rest()[..len];
        let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        begins.then(|| {
            self.at += len;
            name
        })
    }

    fn operator(&mut self, of: &[(&str, Binary)]) -> Option<(usize, Binary)> {
        self.space();
        let at = self.at;
        for (text, op) in of {
            // `<` is not the beginning of `<<`, nor `=` one of `==`.
            let longer = ["<<", ">>", "<=", ">="];
            let clash = longer
                .iter()
                .any(|longer| longer.len() > text.len() && self.rest().starts_with(longer));
            if self.rest().starts_with(text) && !clash {
                self.at += text.len();
                return Some((at, *op));
            }
        }
        None
    }

    pub(super) fn level(&mut self, level: usize) -> Result<SyntaxTerm> {
        let operators = LEVELS.get(level).copied();
        let below = |reader: &mut Self| match operators {
            Some(_) => reader.level(level + 1),
            None => reader.prefix(),
        };
        let first = below(self)?;
        let mut rest = Vec::new();
        while let Some((at, op)) = self.operator(operators.unwrap_or(PRODUCTS)) {
            rest.push((at, op, below(self)?));
        }
        if rest.is_empty() {
            return Ok(first);
        }
        let at = first.at;
        let kind = SyntaxKind::Chain(Box::new(first), rest);
        Ok(SyntaxTerm { at, kind })
    }

    /// Counts one more level of brackets or signs.
    fn deeper(&mut self, at: usize) -> Result<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let what = format!("it is nested more than {MAX_DEPTH} deep");
            return Err(TextProblem::new(at, what, "names for its parts"));
        }
        Ok(())
    }

    fn expression(&mut self) -> Result<SyntaxTerm> {
        self.deeper(self.at)?;
        let term = self.level(0);
        self.depth -= 1;
        term
    }

    fn prefix(&mut self) -> Result<SyntaxTerm> {
        self.space();
        let at = self.at;
        let sign: fn(Box<SyntaxTerm>) -> SyntaxKind = if self.eat("-") {
            SyntaxKind::Negative
        } else if self.eat("!") || self.eat("~") {
            SyntaxKind::Not
        } else {
            return self.primary();
        };
        self.deeper(at)?;
        let inner = self.prefix()?;
        self.depth -= 1;
        let kind = sign(Box::new(inner));
        Ok(SyntaxTerm { at, kind })
    }

    fn primary(&mut self) -> Result<SyntaxTerm> {
        self.space();
        let at = self.at;
        let term = |kind| Ok(SyntaxTerm { at, kind });
        if self.eat("(") {
            let inner = self.expression()?;
            self.expect(")")?;
            return Ok(inner);
        }
        if self.eat("[") {
            let mut list = Vec::new();
            while !self.eat("]") {
                list.push(self.expression()?);
                if !self.eat(",") {
                    self.expect("]")?;
                    break;
                }
            }
            return term(SyntaxKind::List(list));
        }
        if self
            .rest()
            .starts_with(|c: char| c.is_ascii_digit() || c == '.')
        {
            return self.number(at);
        }
        let Some(name) = self.name() else {
            let what = match self.rest().chars().next() {
                Some(c) => format!("`{c}` begins nothing that has a value"),
                None => "something is missing at the end".to_owned(),
            };
            return Err(TextProblem::new(
                at,
                what,
                "a name, a number, a function or `(`",
            ));
        };
        match name {
            "true" | "false" => return term(SyntaxKind::Bool(name == "true")),
            "inf" => return term(SyntaxKind::Number(f64::INFINITY, None)),
            "nan" => return term(SyntaxKind::Number(f64::NAN, None)),
            _ => {}
        }
        if !self.eat("(") {
            return term(SyntaxKind::Name(name.to_owned()));
        }
        let (mut args, mut named) = (Vec::new(), Vec::new());
        while !self.eat(")") {
            self.space();
            let before = self.at;
            let key = self.name().filter(|_| {
                self.space();
                self.rest().starts_with('=') && !self.rest().starts_with("==")
            });
            match key {
                Some(key) => {
                    self.at += 1;
                    named.push((key.to_owned(), self.expression()?));
                }
                None => {
                    self.at = before;
                    args.push(self.expression()?);
                }
            }
            if !self.eat(",") {
                self.expect(")")?;
                break;
            }
        }
        term(SyntaxKind::Call(name.to_owned(), args, named))
    }

    fn number(&mut self, at: usize) -> Result<SyntaxTerm> {
        let rest = self.rest();
        let mut len = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let exponent = rest[len..].strip_prefix(['e', 'E']).map(|after| {
            let signed = after.strip_prefix(['+', '-']).unwrap_or(after);
            let digits = signed
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(signed.len());
            (1 + after.len() - signed.len() + digits, digits)
        });
        if let Some((more, 1..)) = exponent {
            len += more;
        }
        let text = &rest[..len];
        self.at += len;
        let whole = text.parse::<i128>().ok();
        match text.parse() {
            Ok(number) => Ok(SyntaxTerm {
                at,
                kind: SyntaxKind::Number(number, whole),
            }),
            Err(_) => Err(TextProblem::new(
                at,
                format!("{text:?} is not a number"),
                "1, 0.5 or 1e-5",
            )),
        }
    }
}
