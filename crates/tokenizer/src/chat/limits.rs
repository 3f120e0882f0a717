//! Limits of what a template may make: filters that sums and assigned values pass through, a
//! writer that refuses too long a text, and a thread with a stack that is large enough.
//!
//! The interpreter counts steps, and the bytes and items that they make, but it joins lists only
//! when they are read, compares and drops nested values by recursion, and lets a namespace have
//! itself as a member. So lists are joined here, and a value that is assigned has few levels.

use std::cell::Cell;
use std::io::{self, Write};
use std::sync::LazyLock;
use std::thread;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Expression};

use super::python::is_tuple;

/// The filter that adds.
pub(crate) const ADD: &str = "__fercuda_add";
/// The filter that an assigned value passes through.
pub(crate) const KEEP: &str = "__fercuda_keep";

/// Levels of an assigned value, at most.
const MOST_LEVELS: usize = 200;
/// Items of a list that was joined, at most.
const MOST_ITEMS: usize = 1 << 20;
/// Values that one rendering looks through, at most.
const MOST_VISITS: u64 = 1 << 24;
/// Bytes of a rendered text, at most.
const MOST_TEXT: usize = 1 << 26;
/// Bytes of the stack: a few thousand for each of 16,000 levels, which is what recursive loops, of
/// which there are 500, can nest by 32 brackets each, and for each token of the longest tag.
const STACK_BYTES: usize = 1 << 26;

thread_local! {
    /// Values that this thread's rendering has looked through.
    static VISITS: Cell<u64> = const { Cell::new(0) };
}

fn refused(what: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

fn visit(count: usize) -> Result<(), Error> {
    let visits = VISITS.get().saturating_add(count as u64);
    VISITS.set(visits);
    match visits <= MOST_VISITS {
        true => Ok(()),
        false => Err(refused(format!(
            "more than {MOST_VISITS} values were assigned"
        ))),
    }
}

/// The items of a list, if they are not too many.
fn items_of(value: &Value, items: &mut Vec<Value>) -> Result<(), Error> {
    for item in value.try_iter()? {
        if items.len() >= MOST_ITEMS {
            return Err(refused(format!("a list of more than {MOST_ITEMS} items")));
        }
        items.push(item);
    }
    visit(items.len())
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) && !is_tuple(value)
}

/// What `+` is of anything but lists, by the interpreter itself.
static SUM: LazyLock<Option<Expression<'static, 'static>>> = LazyLock::new(|| {
    static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(Environment::new);
    ENVIRONMENT.compile_expression("a + b").ok()
});

fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    if is_list(a) && is_list(b) {
        let mut items = Vec::new();
        items_of(a, &mut items)?;
        items_of(b, &mut items)?;
        return Ok(Value::from(items));
    }
    let Some(sum) = &*SUM else {
        return Err(refused("sums cannot be computed".to_owned()));
    };
    let terms = Value::from_pairs([("a", a.clone()), ("b", b.clone())]);
    sum.eval(terms).map_err(|error| {
        // Without the line, which is that of the expression.
        let what = error.detail().unwrap_or("impossible sum").to_owned();
        Error::new(error.kind(), what)
    })
}

/// Fails for a value of too many levels, or with a namespace as a member.
fn check_levels(value: &Value, level: usize) -> Result<(), Error> {
    let is_container = matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map
    );
    if !is_container {
        return Ok(());
    }
    if level >= MOST_LEVELS {
        return Err(refused(format!(
            "a value of more than {MOST_LEVELS} levels"
        )));
    }
    if level > 0 && is_namespace(value) {
        return Err(refused("a namespace in another value".to_owned()));
    }
    let is_map = value.kind() == ValueKind::Map;
    for item in value.try_iter()? {
        visit(1)?;
        let member = if is_map { value.get_item(&item)? } else { item };
        check_levels(&member, level + 1)?;
    }
    Ok(())
}

/// Whether a value is what `namespace` made. The type has no public name.
fn is_namespace(value: &Value) -> bool {
    static NAME: LazyLock<Option<&'static str>> = LazyLock::new(|| {
        let made = minijinja::functions::namespace(None).ok()?;
        Some(made.as_object()?.type_name())
    });
    let name = value.as_object().map(|it| it.type_name());
    name.is_some() && name == *NAME
}

/// The value, or a list of what it computes, if it has few levels. A member of a namespace is no
/// namespace, so that none is in itself.
fn keep(value: Value, is_member: Option<bool>) -> Result<Value, Error> {
    let kept = match value.kind() {
        ValueKind::Iterable => {
            // One that is computed anew each time, perhaps of another such one.
            let mut items = Vec::new();
            items_of(&value, &mut items)?;
            Value::from(items)
        }
        _ => value,
    };
    check_levels(&kept, usize::from(is_member == Some(true)))?;
    Ok(kept)
}

/// As jinja2's, of kept values.
fn namespace(members: Option<Value>, more: Kwargs) -> Result<Value, Error> {
    let mut all: Vec<(Value, Value)> = Vec::new();
    if let Some(members) = members {
        for key in members.try_iter()? {
            all.push((key.clone(), members.get_item(&key)?));
        }
    }
    for name in more.args() {
        all.push((Value::from(name), more.get(name)?));
    }
    for (_, value) in &mut all {
        *value = keep(value.clone(), Some(true))?;
    }
    let members: Value = Value::from_pairs(all);
    minijinja::functions::namespace(Some(members.into()))
}

/// Adds the filters, and what else makes values that stay.
pub(crate) fn add_limits(to: &mut Environment<'static>) {
    to.add_filter(ADD, |a: &Value, b: &Value| add(a, b));
    to.add_filter(KEEP, keep);
    to.add_function("namespace", namespace);
}

/// A text of limited length that is being written.
#[derive(Debug, Default)]
pub(crate) struct RenderedText {
    bytes: Vec<u8>,
}

impl RenderedText {
    pub(crate) fn into_text(self) -> String {
        match String::from_utf8(self.bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }
    }
}

impl Write for RenderedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > MOST_TEXT - self.bytes.len() {
            let what = format!("the text has more than {MOST_TEXT} bytes");
            return Err(io::Error::other(what));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `work` in a thread whose stack is large enough for whatever the limits let through.
///
/// # Errors
/// There is no such thread, or it panicked.
pub(crate) fn with_large_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("fercuda-template".to_owned())
            .stack_size(STACK_BYTES);
        let work = || {
            VISITS.set(0);
            work()
        };
        let thread = thread
            .spawn_scoped(scope, work)
            .map_err(|error| format!("no thread with a stack of {STACK_BYTES} bytes: {error}"))?;
        thread
            .join()
            .map_err(|_| "the interpreter panicked".to_owned())
    })
}
