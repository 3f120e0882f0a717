//! Lowering of a syntax tree to the nodes of a graph.

use std::collections::HashMap;
use std::fmt;

use fercuda_tensor::Dtype;

use super::problem::{Result, TextProblem};
use super::syntax::{FUNCTIONS, SyntaxKind, SyntaxTerm, TextReader, WORDS};
use crate::graph::ExprError;
use crate::graph::ExprGraph;
use crate::node::ExprNodeId;
use crate::op::{Binary, Reduction, Unary};

/// Maximum length of a text, in bytes.
pub const MAX_BYTES: usize = 64 << 10;
/// Maximum number of known names that an error lists.
const MAX_LISTED: usize = 16;

/// The value of a name.
struct NamedValue {
    id: ExprNodeId,
    used: bool,
}

struct Lowering<'g> {
    graph: &'g mut ExprGraph,
    names: HashMap<String, NamedValue>,
}

/// Adds the nodes and outputs of a text to a graph.
pub(super) fn read(graph: &mut ExprGraph, text: &str) -> Result<()> {
    if text.len() > MAX_BYTES {
        let what = format!("it has {} bytes, and may have {MAX_BYTES}", text.len());
        let hint = "two expressions, one on the result of the other";
        return Err(TextProblem::new(0, what, hint));
    }
    let mut reader = TextReader::new(text);
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

/// Named arguments; those left over are unknown.
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
