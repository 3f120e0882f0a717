//! Parser of PTX.
//!
//! One pass over the bytes by recursive descent, without a list of tokens in between. Every
//! production starts at a token's first byte and leaves the position at the next one's.
//!
//! Invariants: no input panics; nesting is bounded by [`MAX_NESTING`], time and memory grow
//! linearly with the input, which is bounded by [`MAX_LEN_BYTES`]; the first error is
//! reported.
//!
//! Elsewhere: whether names are declared ([`crate::check()`]); what an instruction means.

mod cursor;
mod error;
mod expr;
mod function;
mod module;
mod operand;

pub use error::ParseError;
pub(crate) use operand::is_special_vector;

use crate::ast::{Operand, PtxModule, Symbols};
use crate::words::Mod;
use cursor::{Cursor, ParseResult};

/// The largest text that is read, in bytes.
pub const MAX_LEN_BYTES: usize = 1 << 31;

/// How deep blocks, initialisers, operands and constant expressions may nest, all together.
pub const MAX_NESTING: u32 = 64;

/// Reads a module.
///
/// # Errors
/// The first thing that is not PTX, with its position. Names are not looked up: that is
/// [`crate::check()`].
pub fn parse(text: &str) -> Result<PtxModule, ParseError> {
    if text.len() > MAX_LEN_BYTES {
        return Err(ParseError {
            line: 1,
            column: 1,
            message: format!(
                "a module of {} bytes is larger than the limit of {MAX_LEN_BYTES}",
                text.len()
            ),
            excerpt: String::new(),
        });
    }
    let parser = Parser {
        cur: Cursor::new(text),
        symbols: Symbols::default(),
        depth: 0,
        mods: Vec::new(),
        operands: Vec::new(),
        statements: Vec::new(),
    };
    parser.module().map_err(|e| *e)
}

struct Parser<'a> {
    cur: Cursor<'a>,
    symbols: Symbols,
    depth: u32,
    /// Stacks on which lists grow before they are cut to size.
    mods: Vec<Mod>,
    operands: Vec<Operand>,
    statements: Vec<crate::ast::Stmt>,
}

impl Parser<'_> {
    /// Runs `inner` one level deeper.
    fn nest<T>(&mut self, inner: impl FnOnce(&mut Self) -> ParseResult<T>) -> ParseResult<T> {
        if self.depth == MAX_NESTING {
            return Err(self
                .cur
                .error(&format!("nested more than {MAX_NESTING} deep")));
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    /// A name, interned.
    #[inline]
    fn symbol(&mut self, what: &str) -> ParseResult<crate::ast::Sym> {
        let name = self.cur.name(what)?;
        Ok(self.symbols.intern(name))
    }

    /// A literal in 0..2^32.
    fn number_u32(&mut self, what: &str) -> ParseResult<u32> {
        let (pos, line) = (self.cur.pos(), self.cur.line());
        let value = self.number_u64(what)?;
        u32::try_from(value).map_err(|_| {
            self.cur.rewind(pos, line);
            self.cur
                .error(&format!("{what} must be below 2^32, here is {value}"))
        })
    }

    /// An integer literal.
    fn number_u64(&mut self, what: &str) -> ParseResult<u64> {
        let (pos, line) = (self.cur.pos(), self.cur.line());
        if !self.cur.peek().is_ascii_digit() {
            return Err(self.cur.expected(what));
        }
        match self.cur.number()? {
            crate::ast::Imm::Int { value, .. } => Ok(value as u64),
            _ => {
                self.cur.rewind(pos, line);
                Err(self.cur.error(&format!("{what} must be an integer")))
            }
        }
    }
}
