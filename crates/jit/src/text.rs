//! Parser of expressions as text. The README has the grammar.
//!
//! Statements are separated by `;`, and may be named: `t = x * 0.5; softmax(t)`. A statement that
//! no later one uses is an output. Operators have C's precedence; functions have the names that the
//! printed forms use. A number literal has the type of its other operand, else f32.
//!
//! Invariants: an error has the position at which the text is invalid, and leaves the graph
//! unchanged. For any text, parsing takes no more stack than the maximum nesting, and time linear
//! in its length, which is bounded. Elsewhere: semantics of the operations (`op`, `graph`).

use std::collections::HashMap;
use std::fmt;

use fercuda_tensor::Dtype;

use crate::graph::{ExprError, ExprGraph, ExprNodeId};
use crate::op::{Binary, Reduction, Unary};

/// Maximum length of a text, in bytes.
pub const MAX_BYTES: usize = 64 << 10;
/// Maximum nesting of brackets, lists and signs before a value.
pub const MAX_DEPTH: usize = 200;

/// Number of characters of a line that are shown on each side of a position.
const SHOWN: usize = 60;
/// Maximum number of known names that an error lists.
const MAX_LISTED: usize = 16;

/// A parse error and its position. Displayed with the line, and a mark below the position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.shown())]
#[non_exhaustive]
pub struct TextError {
    /// Offset from the beginning, in bytes.
    pub at: usize,
    /// Line number, from 1 on.
    pub line: usize,
    /// Character of that line, from 1 on.
    pub column: usize,
    /// The problem.
    pub what: String,
    /// What to try; empty if there is no suggestion.
    pub hint: String,
    /// The line around the position, and the number of characters of it before the position.
    excerpt: (String, usize),
    is_only_line: bool,
}

impl TextError {
    fn new(wrong: TextProblem, text: &str) -> Self {
        let TextProblem { at, what, hint } = wrong;
        let (before, after) = text.split_at(at);
        let begin = before.rfind('\n').map_or(0, |at| at + 1);
        let before: Vec<char> = before[begin..].chars().collect();
        let after = after.split('\n').next().unwrap_or_default();
        let cut = before.len().saturating_sub(SHOWN);
        let mut excerpt = String::from(if cut > 0 { "..." } else { "" });
        excerpt.extend(&before[cut..]);
        let place = excerpt.chars().count();
        excerpt.extend(after.chars().take(SHOWN));
        if after.chars().nth(SHOWN).is_some() {
            excerpt += "...";
        }
        Self {
            at,
            line: 1 + text[..begin].matches('\n').count(),
            column: 1 + before.len(),
            what,
            hint,
            excerpt: (excerpt, place),
            is_only_line: !text.trim_end().contains('\n'),
        }
    }

    fn shown(&self) -> String {
        let Self { what, hint, .. } = self;
        let (excerpt, place) = &self.excerpt;
        // A tab is repeated in the line of the mark.
        let before = excerpt.chars().take(*place);
        let mark: String = before.map(|c| if c == '\t' { c } else { ' ' }).collect();
        let line = match self.is_only_line {
            true => String::new(),
            false => format!("line {}, ", self.line),
        };
        let column = self.column;
        let mut all = format!("{line}column {column}: {what}\n  {excerpt}\n  {mark}^");
        if !hint.is_empty() {
            all += &format!("\ntry: {hint}");
        }
        all
    }
}

/// Parses a text that names a graph's inputs, and adds its nodes and outputs to the graph.
///
/// # Errors
/// The problem and its position; the graph is unchanged.
pub fn parse(graph: &mut ExprGraph, text: &str) -> std::result::Result<(), TextError> {
    let mut located = graph.clone();
    match read(&mut located, text) {
        Ok(()) => {
            *graph = located;
            Ok(())
        }
        Err(wrong) => Err(TextError::new(wrong, text)),
    }
}

/// A problem at a byte of a text.
struct TextProblem {
    at: usize,
    what: String,
    hint: String,
}

impl TextProblem {
    fn new(at: usize, what: impl Into<String>, hint: impl Into<String>) -> Self {
        let (what, hint) = (what.into(), hint.into());
        Self { at, what, hint }
    }
}

type Result<T> = std::result::Result<T, TextProblem>;

/// Binary operators by precedence, the lowest first.
const LEVELS: [&[(&str, Binary)]; 6] = [
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
const PRODUCTS: &[(&str, Binary)] = &[("*", Binary::Mul), ("/", Binary::Div), ("%", Binary::Rem)];

/// Names that are literals.
const WORDS: [&str; 4] = ["true", "false", "inf", "nan"];

/// Functions that are neither operations on elements nor reductions.
const FUNCTIONS: [&str; 14] = [
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
struct SyntaxTerm {
    at: usize,
    kind: SyntaxKind,
}

#[derive(Clone, Debug)]
enum SyntaxKind {
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

struct TextReader<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> TextReader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn space(&mut self) {
        let trimmed = self.rest().trim_start();
        self.at = self.text.len() - trimmed.len();
    }

    fn eat(&mut self, token: &str) -> bool {
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

    fn name(&mut self) -> Option<&'a str> {
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

    fn level(&mut self, level: usize) -> Result<SyntaxTerm> {
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

/// The value of a name.
struct NamedValue {
    id: ExprNodeId,
    used: bool,
}

struct Lowering<'g> {
    graph: &'g mut ExprGraph,
    names: HashMap<String, NamedValue>,
}

fn read(graph: &mut ExprGraph, text: &str) -> Result<()> {
    if text.len() > MAX_BYTES {
        let what = format!("it has {} bytes, and may have {MAX_BYTES}", text.len());
        let hint = "two expressions, one on the result of the other";
        return Err(TextProblem::new(0, what, hint));
    }
    let mut reader = TextReader {
        text,
        at: 0,
        depth: 0,
    };
    let mut names = HashMap::new();
    for (name, id) in graph.input_nodes() {
        check_name(0, name)?;
        let used = true;
        names.insert(name.to_owned(), NamedValue { id, used });
    }
    let mut lowering = Lowering { graph, names };
    let mut order = Vec::new();
    loop {
        reader.space();
        if reader.rest().is_empty() {
            break;
        }
        let at = reader.at;
        let name = reader.name().filter(|_| {
            reader.space();
            reader.rest().starts_with('=') && !reader.rest().starts_with("==")
        });
        match name {
            Some(_) => reader.at += 1,
            None => reader.at = at,
        }
        if let Some(name) = name {
            check_name(at, name)?;
        }
        let term = reader.level(0)?;
        let id = lowering.value(&term, None)?;
        let name = match name {
            Some(name) => name.to_owned(),
            None if order.is_empty() => "out".to_owned(),
            None => format!("out{}", order.len()),
        };
        if lowering.names.contains_key(&name) {
            let hint = "another name for one of them";
            return Err(TextProblem::new(
                at,
                format!("there are two {name:?}"),
                hint,
            ));
        }
        lowering
            .names
            .insert(name.clone(), NamedValue { id, used: false });
        order.push((at, name));
        if !reader.eat(";") {
            reader.space();
            if !reader.rest().is_empty() {
                let what = "the expression ends here, and there is more";
                return Err(TextProblem::new(
                    reader.at,
                    what,
                    "an operator or `;` between",
                ));
            }
        }
    }
    if order.is_empty() {
        return Err(TextProblem::new(0, "there is no expression", "'x * 2'"));
    }
    for (at, name) in order {
        if let Some(NamedValue { id, used: false }) = lowering.names.get(&name) {
            let id = *id;
            lowering
                .graph
                .output(&name, id)
                .map_err(|error| located(at, &error))?;
        }
    }
    Ok(())
}

/// Refuses a name that is a literal.
fn check_name(at: usize, name: &str) -> Result<()> {
    if WORDS.contains(&name) {
        let what = format!("{name:?} is a literal, not a name");
        return Err(TextProblem::new(at, what, "another name"));
    }
    Ok(())
}

/// Turns an error of the graph into one with a position.
fn located(at: usize, error: &ExprError) -> TextProblem {
    let text = error.to_string();
    match text.split_once("\ntry: ") {
        Some((what, hint)) => TextProblem::new(at, what, hint),
        None => TextProblem::new(at, text, ""),
    }
}

/// Lists the functions; operators have signs, and casts the names of types.
fn functions() -> String {
    let unary = Unary::ALL.iter().map(|op| op.name());
    let reductions = Reduction::ALL.iter().map(|op| op.name());
    let mut all: Vec<&str> = unary.chain(reductions).chain(FUNCTIONS).collect();
    all.sort_unstable();
    all.join(" ")
}

fn find<T: fmt::Display + Copy>(all: &[T], name: &str) -> Option<T> {
    all.iter().copied().find(|op| op.to_string() == name)
}

impl Lowering<'_> {
    /// Lowers a value; a number literal has type `like`, else f32.
    fn value(&mut self, term: &SyntaxTerm, like: Option<Dtype>) -> Result<ExprNodeId> {
        let at = term.at;
        let made = match &term.kind {
            SyntaxKind::Number(number, whole) => {
                let dtype = like.unwrap_or(Dtype::F32);
                match whole {
                    Some(whole) if i64::try_from(*whole).is_ok() => {
                        self.graph.constant(dtype, *whole as i64)
                    }
                    Some(whole) if u64::try_from(*whole).is_ok() => {
                        self.graph.constant(dtype, *whole as u64)
                    }
                    _ => self.graph.constant(dtype, *number),
                }
            }
            SyntaxKind::Bool(value) => self.graph.constant(Dtype::Bool, *value),
            SyntaxKind::Name(name) => {
                let Some(named) = self.names.get_mut(name) else {
                    let mut known: Vec<&str> = self.names.keys().map(String::as_str).collect();
                    known.sort_unstable();
                    let more = if known.len() > MAX_LISTED { " ..." } else { "" };
                    known.truncate(MAX_LISTED);
                    let hint = match known.is_empty() {
                        true => "an input of that name".to_owned(),
                        false => {
                            let known = known.join(" ");
                            format!("an input of that name, or one of: {known}{more}")
                        }
                    };
                    return Err(TextProblem::new(at, format!("there is no {name:?}"), hint));
                };
                named.used = true;
                return Ok(named.id);
            }
            SyntaxKind::Negative(inner) => {
                if let SyntaxKind::Number(number, whole) = inner.kind {
                    let dtype = like.unwrap_or(Dtype::F32);
                    match whole.and_then(|whole| i64::try_from(-whole).ok()) {
                        Some(whole) if whole != 0 => self.graph.constant(dtype, whole),
                        _ => self.graph.constant(dtype, -number),
                    }
                } else {
                    let inner = self.value(inner, like)?;
                    self.graph.unary(Unary::Neg, inner)
                }
            }
            SyntaxKind::Not(inner) => {
                let inner = self.value(inner, like)?;
                self.graph.unary(Unary::Not, inner)
            }
            SyntaxKind::Chain(first, rest) => return self.chain(first, rest, like),
            SyntaxKind::List(_) => {
                let hint = "a list as an axis or a shape: reshape(x, [4, 8])";
                return Err(TextProblem::new(at, "a list is not a value", hint));
            }
            SyntaxKind::Call(name, args, named) => return self.call(at, name, args, named, like),
        };
        made.map_err(|error| located(at, &error))
    }

    /// Whether it consists of number literals alone, and so has any type.
    fn is_plain(term: &SyntaxTerm) -> bool {
        match &term.kind {
            SyntaxKind::Number(..) => true,
            SyntaxKind::Negative(inner) => Self::is_plain(inner),
            SyntaxKind::Chain(first, rest) => {
                Self::is_plain(first) && rest.iter().all(|(.., term)| Self::is_plain(term))
            }
            _ => false,
        }
    }

    /// Lowers operators of one level, left-associative. Literals before the first typed operand get
    /// its type, those behind it that of the preceding value.
    fn chain(
        &mut self,
        first: &SyntaxTerm,
        rest: &[(usize, Binary, SyntaxTerm)],
        like: Option<Dtype>,
    ) -> Result<ExprNodeId> {
        let terms = || std::iter::once(first).chain(rest.iter().map(|(.., term)| term));
        let plain = terms().take_while(|term| Self::is_plain(term)).count();
        let typed = match terms().nth(plain) {
            Some(term) => Some(self.value(term, like)?),
            None => None,
        };
        let dtype = typed.and_then(|id| self.graph.dtype(id).ok()).or(like);
        let mut left = match typed {
            Some(id) if plain == 0 => id,
            _ => self.value(first, dtype)?,
        };
        for (number, (at, op, term)) in (1..).zip(rest) {
            let right = match typed {
                Some(id) if number == plain => id,
                _ if number < plain => self.value(term, dtype)?,
                _ if Self::is_plain(term) => {
                    let dtype = self.graph.dtype(left).ok();
                    self.value(term, dtype)?
                }
                _ => self.value(term, like)?,
            };
            let made = self.graph.binary(*op, left, right);
            left = made.map_err(|error| located(*at, &error))?;
        }
        Ok(left)
    }

    /// Lowers values of one type: literals get that of the first typed one.
    fn alike<const N: usize>(
        &mut self,
        terms: [&SyntaxTerm; N],
        like: Option<Dtype>,
    ) -> Result<[ExprNodeId; N]> {
        let mut made: [Option<ExprNodeId>; N] = [None; N];
        let mut dtype = like;
        let mut found = false;
        for (made, term) in made.iter_mut().zip(terms) {
            if !Self::is_plain(term) {
                let id = self.value(term, like)?;
                if !found {
                    dtype = self.graph.dtype(id).ok().or(dtype);
                    found = true;
                }
                *made = Some(id);
            }
        }
        let mut all = [None; N];
        for ((to, made), term) in all.iter_mut().zip(made).zip(terms) {
            *to = Some(match made {
                Some(id) => id,
                None => self.value(term, dtype)?,
            });
        }
        let all: Vec<ExprNodeId> = all.into_iter().flatten().collect();
        all.try_into()
            .map_err(|_| TextProblem::new(0, "an operand is missing", ""))
    }

    fn call(
        &mut self,
        at: usize,
        name: &str,
        args: &[SyntaxTerm],
        named: &[(String, SyntaxTerm)],
        like: Option<Dtype>,
    ) -> Result<ExprNodeId> {
        let mut options = CallOptions {
            at,
            function: name,
            named: named.to_vec(),
        };
        let made = self.function(at, name, args, &mut options, like)?;
        if let Some((key, value)) = options.named.first() {
            let what = format!("{name} has no {key:?}");
            let hint = "axis, keep, eps, start, end or step, where it has them";
            return Err(TextProblem::new(value.at, what, hint));
        }
        made.map_err(|error| located(at, &error))
    }

    fn function(
        &mut self,
        at: usize,
        name: &str,
        args: &[SyntaxTerm],
        options: &mut CallOptions<'_>,
        like: Option<Dtype>,
    ) -> Result<std::result::Result<ExprNodeId, ExprError>> {
        let count = |wanted: &str| {
            let what = format!("{name} of {} operands: it takes {wanted}", args.len());
            TextProblem::new(at, what, "")
        };
        if let Ok(dtype) = name.parse::<Dtype>() {
            let [x] = args else { return Err(count("one")) };
            // A number is of that type at once.
            let like = Self::is_plain(x).then_some(dtype).or(like);
            let x = self.value(x, like)?;
            return Ok(self.graph.cast(x, dtype));
        }
        let both = matches!(name, "min" | "max") && args.len() == 2;
        if let Some(op) = find(Reduction::ALL, name).filter(|_| !both) {
            let [x] = args else {
                return Err(count("one, axis and keep"));
            };
            let x = self.value(x, like)?;
            let rank = self.graph.shape(x).map_or(0, |shape| shape.len());
            let axes = options.axes(rank)?.unwrap_or_else(|| (0..rank).collect());
            let keep = options.flag("keep")?;
            return Ok(self.graph.reduce(op, x, &axes, keep));
        }
        if let Some(op) = find(Binary::ALL, name) {
            let [a, b] = args else {
                return Err(count("two"));
            };
            let [a, b] = self.alike([a, b], like)?;
            return Ok(self.graph.binary(op, a, b));
        }
        let one = |lowering: &mut Self| match args {
            [x] => lowering.value(x, like),
            _ => Err(count("one")),
        };
        if let Some(op) = find(Unary::ALL, name) {
            let x = one(self)?;
            return Ok(self.graph.unary(op, x));
        }
        Ok(match name {
            "relu" | "silu" | "gelu" => {
                let x = one(self)?;
                match name {
                    "relu" => self.graph.relu(x),
                    "silu" => self.graph.silu(x),
                    _ => self.graph.gelu(x),
                }
            }
            "softmax" | "log_softmax" => {
                let x = one(self)?;
                let axis = self.axis(x, options)?;
                match name {
                    "softmax" => self.graph.softmax(x, axis),
                    _ => self.graph.log_softmax(x, axis),
                }
            }
            "layer_norm" | "rms_norm" => {
                let (x, vectors) = match args {
                    [x, vectors @ ..] if vectors.len() <= 2 => (x, vectors),
                    _ => return Err(count("x, gamma, beta, axis and eps")),
                };
                let x = self.value(x, like)?;
                let mut gamma_beta = [None; 2];
                for (to, vector) in gamma_beta.iter_mut().zip(vectors) {
                    *to = Some(self.value(vector, like)?);
                }
                let axis = self.axis(x, options)?;
                let eps = options.number("eps")?.unwrap_or(1e-5);
                match (name, gamma_beta) {
                    ("layer_norm", [gamma, beta]) => {
                        self.graph.layer_norm(x, axis, gamma, beta, eps)
                    }
                    (_, [gamma, None]) => self.graph.rms_norm(x, axis, gamma, eps),
                    _ => return Err(count("x, gamma, axis and eps")),
                }
            }
            "fma" | "affine" => {
                let [a, b, c] = args else {
                    return Err(count("three"));
                };
                let [a, b, c] = self.alike([a, b, c], like)?;
                self.graph.fma(a, b, c)
            }
            "select" => {
                let [c, a, b] = args else {
                    return Err(count("three"));
                };
                let c = self.value(c, None)?;
                let [a, b] = self.alike([a, b], like)?;
                self.graph.select(c, a, b)
            }
            "reshape" | "broadcast" | "permute" => {
                let [x, list] = args else {
                    return Err(count("x and a list"));
                };
                let (x, list) = (self.value(x, like)?, numbers(list)?);
                match name {
                    "reshape" => self.graph.reshape(x, &list),
                    "broadcast" => self.graph.broadcast(x, &list),
                    _ => {
                        let order: Vec<usize> = list.iter().map(|at| *at as usize).collect();
                        self.graph.permute(x, &order)
                    }
                }
            }
            "slice" => {
                let x = one(self)?;
                let axis = self.axis(x, options)?;
                let len = self
                    .graph
                    .shape(x)
                    .ok()
                    .and_then(|shape| shape.get(axis).copied());
                let start = options.whole("start")?.unwrap_or(0);
                let end = options.whole("end")?.or(len).unwrap_or(0);
                let step = options.whole("step")?.unwrap_or(1);
                self.graph.slice(x, axis, start..end, step)
            }
            _ => {
                return Err(TextProblem::new(
                    at,
                    format!("there is no function {name:?}"),
                    functions(),
                ));
            }
        })
    }

    /// Parses one axis; the last if absent.
    fn axis(&mut self, x: ExprNodeId, options: &mut CallOptions<'_>) -> Result<usize> {
        let rank = self.graph.shape(x).map_or(0, |shape| shape.len());
        match options.axes(rank)?.as_deref() {
            None => Ok(rank.saturating_sub(1)),
            Some([axis]) => Ok(*axis),
            Some(_) => {
                let what = format!("{} goes over one axis", options.function);
                Err(TextProblem::new(options.at, what, "axis=-1"))
            }
        }
    }
}

/// NamedValue arguments; those left over are unknown.
struct CallOptions<'a> {
    at: usize,
    function: &'a str,
    named: Vec<(String, SyntaxTerm)>,
}

impl CallOptions<'_> {
    fn take(&mut self, name: &str) -> Option<SyntaxTerm> {
        let at = self.named.iter().position(|(key, _)| key == name)?;
        Some(self.named.remove(at).1)
    }

    fn axes(&mut self, rank: usize) -> Result<Option<Vec<usize>>> {
        let Some(term) = self.take("axis") else {
            return Ok(None);
        };
        let list = match &term.kind {
            SyntaxKind::List(list) => list.clone(),
            _ => vec![term],
        };
        let mut axes = Vec::new();
        for term in &list {
            let axis = signed(term)?;
            let axis = if axis < 0 { axis + rank as i128 } else { axis };
            match usize::try_from(axis) {
                Ok(axis) if axis < rank => axes.push(axis),
                _ => {
                    let what = format!("{rank} dimensions have no such axis");
                    return Err(TextProblem::new(
                        term.at,
                        what,
                        "-1, the last, or one from 0",
                    ));
                }
            }
        }
        Ok(Some(axes))
    }

    fn flag(&mut self, name: &str) -> Result<bool> {
        match self.take(name) {
            None => Ok(false),
            Some(term) => match term.kind {
                SyntaxKind::Bool(value) => Ok(value),
                _ => Err(TextProblem::new(
                    term.at,
                    format!("{name} is true or false"),
                    "",
                )),
            },
        }
    }

    fn number(&mut self, name: &str) -> Result<Option<f64>> {
        match self.take(name) {
            None => Ok(None),
            Some(term) => match term.kind {
                SyntaxKind::Number(number, _) => Ok(Some(number)),
                _ => Err(TextProblem::new(term.at, format!("{name} is a number"), "")),
            },
        }
    }

    fn whole(&mut self, name: &str) -> Result<Option<u64>> {
        self.take(name).map(|term| whole(&term)).transpose()
    }
}

fn signed(term: &SyntaxTerm) -> Result<i128> {
    match &term.kind {
        SyntaxKind::Number(_, Some(number)) => Ok(*number),
        SyntaxKind::Negative(inner) => signed(inner).map(|number| -number),
        _ => Err(TextProblem::new(
            term.at,
            "a whole number is needed here",
            "",
        )),
    }
}

fn whole(term: &SyntaxTerm) -> Result<u64> {
    let number = signed(term)?;
    u64::try_from(number).map_err(|_| TextProblem::new(term.at, "it must not be negative", ""))
}

fn numbers(term: &SyntaxTerm) -> Result<Vec<u64>> {
    match &term.kind {
        SyntaxKind::List(list) => list.iter().map(whole).collect(),
        _ => Err(TextProblem::new(term.at, "a list is needed here", "[4, 8]")),
    }
}

#[cfg(test)]
mod tests {
    use fercuda_tensor::Layout;

    use super::*;
    use crate::graph::MAX_NODES;
    use crate::reference::{self, ExactValue};

    fn inputs() -> ExprGraph {
        let mut graph = ExprGraph::new();
        for (name, dtype, shape) in [
            ("x", Dtype::F32, &[2, 3][..]),
            ("v", Dtype::F32, &[3]),
            ("i", Dtype::I32, &[2, 3]),
        ] {
            let layout = Layout::contiguous(dtype, shape).unwrap();
            graph.input(name, layout).unwrap();
        }
        graph
    }

    fn graph(text: &str) -> std::result::Result<ExprGraph, TextError> {
        let mut graph = inputs();
        let parsed = parse(&mut graph, text);
        // A refused text leaves the graph unchanged.
        assert!(parsed.is_ok() || graph == inputs(), "{text}");
        parsed.map(|()| graph)
    }

    /// The elements of the first output.
    fn values(text: &str) -> Vec<f64> {
        let graph = match graph(text) {
            Ok(graph) => graph,
            Err(wrong) => panic!("{wrong}"),
        };
        let floats = |values: &[f32]| values.iter().map(|x| u64::from(x.to_bits())).collect();
        let inputs = [
            floats(&[1.0, 2.0, 3.0, -4.0, 5.0, 6.0]),
            floats(&[10.0, 20.0, 30.0]),
            vec![1, 2, 3, 4, 5, 6],
        ];
        let outputs = reference::evaluate(&graph, &inputs);
        let value = |near: &reference::Near| match near.value {
            ExactValue::Float(value) => value,
            ExactValue::Int(value) => value as f64,
        };
        outputs[0].iter().map(value).collect()
    }

    #[test]
    fn operators_have_the_precedence_of_c_and_functions_their_meaning() {
        assert_eq!(values("x + v * 2"), [21.0, 42.0, 63.0, 16.0, 45.0, 66.0]);
        assert_eq!(values("(x + v) * 2"), [22.0, 44.0, 66.0, 12.0, 50.0, 72.0]);
        assert_eq!(values("10 - 4 - 3"), [3.0]);
        assert_eq!(values("-x * 2 - 1")[0], -3.0);
        assert_eq!(values("i << 1 | 1"), [3.0, 5.0, 7.0, 9.0, 11.0, 13.0]);
        assert_eq!(values("x < 0 | x >= 5"), [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
        assert_eq!(values("sum(x, axis=1)"), [6.0, 7.0]);
        assert_eq!(values("sum(x, axis=[0, -1])"), [13.0]);
        assert_eq!(values("max(x)"), [6.0]);
        assert_eq!(values("max(x, 2.5)")[..2], [2.5, 2.5]);
        assert_eq!(values("argmax(x, axis=-1)"), [2.0, 2.0]);
        assert_eq!(
            values("permute(x, [1, 0])"),
            [1.0, -4.0, 2.0, 5.0, 3.0, 6.0]
        );
        assert_eq!(
            values("slice(x, axis=1, start=1, step=1)"),
            [2.0, 3.0, 5.0, 6.0]
        );
        assert_eq!(
            values("select(x < 0, 0, x)"),
            [1.0, 2.0, 3.0, 0.0, 5.0, 6.0]
        );
        assert_eq!(values("i32(2) * i"), [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
        assert_eq!(values("25e-2 * 4E0"), [1.0]);
        assert_eq!(values("t = x * x; t + t")[5], 72.0);
    }

    #[test]
    fn unused_statements_are_outputs() {
        let graph = graph("a = x * 2; b = a + v; c = max(a, axis=1); b - 1").unwrap();
        let names: Vec<&str> = graph.outputs().map(|(name, _)| name).collect();
        assert_eq!(names, ["c", "out3"]);
    }

    #[test]
    fn an_error_points_at_its_column() {
        for (text, column, wanted) in [
            ("", 1, "no expression"),
            ("x +", 4, "missing at the end"),
            ("x + y", 5, "there is no \"y\""),
            ("x * (v + 1", 11, "`)` is missing"),
            ("x $ v", 3, "there is more"),
            ("softmaxx(x)", 1, "no function"),
            ("1 + exp(i)", 5, "exp of i32"),
            ("x + i", 3, "add of f32 and i32"),
            ("sum(x, axis=2)", 13, "no such axis"),
            ("sum(x, axes=1)", 13, "sum has no \"axes\""),
            ("exp(x, v)", 1, "exp of 2 operands"),
            ("reshape(x, 6)", 12, "a list is needed"),
            ("x = x", 1, "two \"x\""),
            ("1.2.3", 1, "not a number"),
            ("[1, 2] + x", 1, "a list is not a value"),
            ("é + x", 1, "begins nothing"),
        ] {
            let wrong = graph(text).unwrap_err();
            let shown = wrong.to_string();
            assert!(shown.starts_with(&format!("column {column}: ")), "{shown}");
            assert!(shown.contains(wanted), "{shown}");
        }
        // In C `a < b < c` is one operator after the other, each at its position.
        assert_eq!(graph("x + 1 - 2 < v * i").unwrap_err().column, 15);
        assert_eq!(graph("x + v - i").unwrap_err().column, 7);
        assert_eq!(graph("nan = x").unwrap_err().column, 1);
    }

    #[test]
    fn error_shows_the_line_only() {
        let wrong = graph("a = x * 2;\n\tb = a + nothing;\n\tb - 1\n").unwrap_err();
        assert_eq!((wrong.line, wrong.column), (2, 10));
        let shown = wrong.to_string();
        assert!(
            shown.contains(
                "line 2, column 10: there is no \"nothing\"\n  \tb = a + nothing;\n  \t        ^\n"
            ),
            "{shown}"
        );
        let long = format!("{} ? {}", "x + ".repeat(1000) + "x", "+ x".repeat(5000));
        let shown = graph(&long).unwrap_err().to_string();
        assert!(
            shown.contains("column 4003: ") && shown.len() < 400,
            "{shown}"
        );
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[1].find('?'), lines[2].find('^'), "{shown}");
    }

    #[test]
    fn length_and_nesting_are_limited() {
        for (deep, column) in [("(", 202), ("-", 201), ("[", 202), ("exp(", 805)] {
            let wrong = graph(&deep.repeat(10_000)).unwrap_err();
            assert!(wrong.what.contains("more than 200 deep"), "{deep}: {wrong}");
            assert_eq!(wrong.column, column, "{deep}");
        }
        let nested = |depth: usize| format!("{}x{}", "(".repeat(depth), ")".repeat(depth));
        assert!(graph(&nested(MAX_DEPTH)).is_ok());
        let longest = format!("x{}", " ".repeat(MAX_BYTES - 1));
        assert!(graph(&longest).is_ok());
        let wrong = graph(&(longest + " ")).unwrap_err();
        assert!(wrong.what.contains("65537 bytes"), "{wrong}");
        assert!(wrong.to_string().len() < 400, "{wrong}");
    }

    #[test]
    fn a_chain_of_operators_may_be_as_long_as_the_graph() {
        let long = format!("x{}", " + x".repeat(MAX_NODES - 10));
        assert_eq!(values(&long)[2], 3.0 * (MAX_NODES - 9) as f64);
        for (begin, more) in [("x", "+x"), ("1", "+1"), ("x", ";x"), ("i", "|i")] {
            let long = begin.to_owned() + &more.repeat((MAX_BYTES - 1) / more.len());
            let wrong = graph(&long).unwrap_err();
            assert!(wrong.what.contains("more than"), "{begin}{more}: {wrong}");
        }
        assert_eq!(values("1 + 2 + i")[..2], [4.0, 5.0]);
        assert_eq!(values("7 / 2 * i")[..2], [3.0, 6.0]);
        assert_eq!(values("7 / 2 * x")[..2], [3.5, 7.0]);
        assert_eq!(values("x < 2 == true")[..2], [1.0, 0.0]);
    }

    #[test]
    fn every_listed_function_exists() {
        let wrong = graph("nothing(x)").unwrap_err();
        for name in wrong.hint.split(' ') {
            let found = graph(&format!("{name}()")).unwrap_err();
            assert!(found.what.contains("operands"), "{found}");
        }
    }

    #[test]
    fn random_text_never_panics() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let parts = [
            "x", "v", "i", "(", ")", "[", "]", ",", "+", "-", "*", "<", "<<", "=", "==", ";", "1",
            "0.5", "1e", "axis=", "sum", "softmax", "reshape", "slice(", "f16", "é", " ", "!",
            "e9",
        ];
        for _ in 0..20_000 {
            let text: String = (0..random.usize(1..12))
                .map(|_| parts[random.usize(..parts.len())])
                .collect();
            if let Err(wrong) = graph(&text) {
                assert!(text.is_char_boundary(wrong.at), "{text:?}");
                assert_eq!(wrong.column, text[..wrong.at].chars().count() + 1);
            }
        }
    }
}
