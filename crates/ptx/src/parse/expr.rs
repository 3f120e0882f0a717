//! Constant expressions, folded during parsing.
//!
//! As the ISA has it: integers are 64 bits wide, signed unless a `U` or the other operand makes
//! them unsigned; comparisons and `!` give a signed 0 or 1.

use super::Parser;
use super::cursor::ParseResult;
use crate::ast::Imm;

/// Binary operators from the loosest to the tightest; the longer spelling first.
const LEVELS: [&[&str]; 10] = [
    &["||"],
    &["&&"],
    &["|"],
    &["^"],
    &["&"],
    &["==", "!="],
    &["<=", ">=", "<", ">"],
    &["<<", ">>"],
    &["+", "-"],
    &["*", "/", "%"],
];
/// The level of `*`: what a term of `name + term` is made of.
const TERM: usize = 9;

impl Parser<'_> {
    /// A constant expression.
    #[inline]
    pub(super) fn constant(&mut self) -> ParseResult<Imm> {
        if self.cur.peek().is_ascii_digit() {
            let imm = self.cur.number()?;
            if matches!(self.cur.peek(), b',' | b';' | b']' | b'}' | b')') {
                return Ok(imm);
            }
            return self.ternary(Some(imm));
        }
        self.ternary(None)
    }

    /// What stands behind the `+` or `-` of `name + term`.
    pub(super) fn term(&mut self) -> ParseResult<i64> {
        let imm = self.binary(TERM, None)?;
        self.int(imm)
    }

    /// A constant that must be an integer.
    pub(super) fn int(&self, imm: Imm) -> ParseResult<i64> {
        match imm {
            Imm::Int { value, .. } => Ok(value),
            _ => Err(self
                .cur
                .error("an integer is needed before this, not a float")),
        }
    }

    /// `first` is a literal already read.
    fn ternary(&mut self, first: Option<Imm>) -> ParseResult<Imm> {
        self.nest(|p| {
            let condition = p.binary(0, first)?;
            if !p.cur.eat(b'?') {
                return Ok(condition);
            }
            let yes = p.ternary(None)?;
            p.cur.expect(b':', "between the two values of `?`")?;
            let no = p.ternary(None)?;
            Ok(if p.int(condition)? != 0 { yes } else { no })
        })
    }

    fn binary(&mut self, level: usize, first: Option<Imm>) -> ParseResult<Imm> {
        if level == LEVELS.len() {
            return match first {
                Some(imm) => Ok(imm),
                None => self.unary(),
            };
        }
        let mut left = self.binary(level + 1, first)?;
        loop {
            let Some(op) = LEVELS[level].iter().find(|op| self.at_operator(op)) else {
                return Ok(left);
            };
            let (pos, line) = (self.cur.pos(), self.cur.line());
            self.cur.advance(op.len());
            self.cur.skip();
            let right = self.binary(level + 1, None)?;
            left = fold(op, left, right).ok_or_else(|| {
                self.cur.rewind(pos, line);
                self.cur
                    .error(&format!("`{op}` has no value for these constants"))
            })?;
        }
    }

    /// Whether `op` is next, and not as the beginning of a longer operator.
    fn at_operator(&self, op: &str) -> bool {
        let bytes = op.as_bytes();
        let next = self.cur.peek_at(bytes.len());
        bytes
            .iter()
            .enumerate()
            .all(|(i, &b)| self.cur.peek_at(i) == b)
            && !matches!(
                (op, next),
                ("|", b'|') | ("&", b'&') | ("<", b'<') | (">", b'>')
            )
    }

    fn unary(&mut self) -> ParseResult<Imm> {
        match self.cur.peek() {
            b'-' | b'+' | b'~' | b'!' => self.nest(|p| {
                let op = p.cur.peek();
                p.cur.eat(op);
                let imm = p.unary()?;
                Ok(match (op, imm) {
                    (b'+', imm) => imm,
                    (b'-', Imm::Int { value, unsigned }) => Imm::Int {
                        value: value.wrapping_neg(),
                        unsigned,
                    },
                    (b'-', Imm::F32(bits)) => Imm::F32(bits ^ 1 << 31),
                    (b'-', Imm::F64(bits)) => Imm::F64(bits ^ 1 << 63),
                    (b'~', Imm::Int { value, unsigned }) => Imm::Int {
                        value: !value,
                        unsigned,
                    },
                    (b'!', Imm::Int { value, .. }) => truth(value == 0),
                    _ => return Err(p.cur.error("this operator takes an integer, not a float")),
                })
            }),
            b'(' => self.nest(|p| {
                p.cur.eat(b'(');
                if p.cur.peek() == b'.' {
                    let word = p.cur.dot_word("`.s64` or `.u64`")?;
                    let unsigned = match word {
                        "u64" => true,
                        "s64" => false,
                        _ => {
                            return Err(p.cur.error("constants are cast to `.s64` or `.u64` only"));
                        }
                    };
                    p.cur.expect(b')', "after the type of a cast")?;
                    let imm = p.unary()?;
                    return Ok(match imm {
                        Imm::Int { value, .. } => Imm::Int { value, unsigned },
                        Imm::F32(bits) => cast(f64::from(f32::from_bits(bits)), unsigned),
                        Imm::F64(bits) => cast(f64::from_bits(bits), unsigned),
                    });
                }
                let imm = p.ternary(None)?;
                p.cur.expect(b')', "to close the expression")?;
                Ok(imm)
            }),
            b'W' => {
                let (pos, line) = (self.cur.pos(), self.cur.line());
                if self.cur.name("a constant")? == "WARP_SZ" {
                    return Ok(Imm::Int {
                        value: 32,
                        unsigned: false,
                    });
                }
                self.cur.rewind(pos, line);
                Err(self.cur.expected("a constant"))
            }
            b'0'..=b'9' => self.cur.number(),
            _ => Err(self.cur.expected("a constant")),
        }
    }
}

fn truth(yes: bool) -> Imm {
    Imm::Int {
        value: i64::from(yes),
        unsigned: false,
    }
}

fn cast(value: f64, unsigned: bool) -> Imm {
    let value = if unsigned {
        value as u64 as i64
    } else {
        value as i64
    };
    Imm::Int { value, unsigned }
}

/// `None` where the ISA gives no value: division by zero, bits of a float.
fn fold(op: &str, left: Imm, right: Imm) -> Option<Imm> {
    let (
        Imm::Int {
            value: a,
            unsigned: ua,
        },
        Imm::Int {
            value: b,
            unsigned: ub,
        },
    ) = (left, right)
    else {
        return fold_float(op, float(left)?, float(right)?);
    };
    let unsigned = ua || ub;
    let (x, y) = (a as u64, b as u64);
    // A shift by the width or more leaves nothing (or the sign).
    let count = u32::try_from(y).unwrap_or(u32::MAX);
    let value = match op {
        "||" => return Some(truth(a != 0 || b != 0)),
        "&&" => return Some(truth(a != 0 && b != 0)),
        "==" => return Some(truth(a == b)),
        "!=" => return Some(truth(a != b)),
        "<=" => return Some(truth(if unsigned { x <= y } else { a <= b })),
        ">=" => return Some(truth(if unsigned { x >= y } else { a >= b })),
        "<" => return Some(truth(if unsigned { x < y } else { a < b })),
        ">" => return Some(truth(if unsigned { x > y } else { a > b })),
        "|" => a | b,
        "^" => a ^ b,
        "&" => a & b,
        "<<" => {
            return Some(Imm::Int {
                value: x.checked_shl(count).unwrap_or(0) as i64,
                unsigned: ua,
            });
        }
        ">>" if ua => {
            return Some(Imm::Int {
                value: x.checked_shr(count).unwrap_or(0) as i64,
                unsigned: ua,
            });
        }
        ">>" => {
            return Some(Imm::Int {
                value: a >> count.min(63),
                unsigned: ua,
            });
        }
        "+" => a.wrapping_add(b),
        "-" => a.wrapping_sub(b),
        "*" => a.wrapping_mul(b),
        "/" if unsigned => x.checked_div(y)? as i64,
        "%" if unsigned => x.checked_rem(y)? as i64,
        "/" => a.checked_div(b)?,
        "%" => a.checked_rem(b)?,
        _ => return None,
    };
    Some(Imm::Int { value, unsigned })
}

fn float(imm: Imm) -> Option<f64> {
    match imm {
        Imm::F32(bits) => Some(f64::from(f32::from_bits(bits))),
        Imm::F64(bits) => Some(f64::from_bits(bits)),
        Imm::Int { .. } => None,
    }
}

fn fold_float(op: &str, a: f64, b: f64) -> Option<Imm> {
    let value = match op {
        "+" => a + b,
        "-" => a - b,
        "*" => a * b,
        "/" => a / b,
        "==" => return Some(truth(a == b)),
        "!=" => return Some(truth(a != b)),
        "<" => return Some(truth(a < b)),
        "<=" => return Some(truth(a <= b)),
        ">" => return Some(truth(a > b)),
        ">=" => return Some(truth(a >= b)),
        _ => return None,
    };
    Some(Imm::F64(value.to_bits()))
}
