//! Instructions and their operands.

use super::Parser;
use super::cursor::ParseResult;
use super::error::suggestion;
use crate::ast::{AddrBase, Guard, Inst, Operand, Sym};
use crate::words::{Mod, Op, ScalarType, Word};

impl Parser<'_> {
    /// `@%p` or `@!%p`; the `@` is next.
    pub(super) fn guard(&mut self) -> ParseResult<Guard> {
        self.cur.eat(b'@');
        let negated = self.cur.eat(b'!');
        Ok(Guard {
            pred: self.symbol("a predicate register")?,
            negated,
        })
    }

    /// What follows the opcode up to and including the `;`. The position is right behind the
    /// opcode.
    pub(super) fn instruction(
        &mut self,
        guard: Option<Guard>,
        op: Op,
        line: u32,
    ) -> ParseResult<Inst> {
        self.mods.clear();
        loop {
            while self.cur.peek() == b'.' {
                self.modifier(op)?;
            }
            self.cur.skip();
            if self.cur.peek() != b'.' {
                break;
            }
        }
        let mods = self.mods.to_vec();
        let base = self.operands.len();
        if !self.cur.eat(b';') {
            loop {
                let operand = self.operand(op == Op::Call)?;
                self.operands.push(operand);
                match self.cur.peek() {
                    b',' => self.cur.eat(b','),
                    b';' => {
                        self.cur.eat(b';');
                        break;
                    }
                    _ => return Err(self.cur.expected("`,` or `;` after an operand")),
                };
            }
        }
        let operands = self.operands.drain(base..).collect();
        Ok(Inst {
            guard,
            op,
            mods,
            operands,
            line,
        })
    }

    #[inline]
    fn modifier(&mut self, op: Op) -> ParseResult<()> {
        let (pos, line) = (self.cur.pos(), self.cur.line());
        self.cur.advance(1);
        let (text, hash) = self.cur.word_raw();
        let Some(word) = Mod::parse_hashed(text, hash) else {
            self.cur.rewind(pos, line);
            if text.is_empty() {
                return Err(self.cur.expected("a modifier"));
            }
            let known = ScalarType::ALL
                .iter()
                .map(|t| t.text())
                .chain(Word::ALL.iter().map(|w| w.text()));
            let hint = suggestion(text, known).replace("mean `", "mean `.");
            return Err(self
                .cur
                .error(&format!("unknown modifier `.{text}` of `{op}`{hint}")));
        };
        self.mods.push(word);
        Ok(())
    }

    /// `lists`: whether `(` opens an argument list rather than a constant expression.
    fn operand(&mut self, lists: bool) -> ParseResult<Operand> {
        let first = match self.cur.peek() {
            b'{' => {
                let items = self.operands_until(b'{', b'}', false)?;
                Operand::Vector(items)
            }
            b'[' => self.bracket()?,
            b'(' if lists => Operand::List(self.operands_until(b'(', b')', false)?),
            b'!' if !matches!(self.cur.peek_at(1), b'0'..=b'9' | b'(' | b'!' | b'~' | b'-') => {
                self.cur.eat(b'!');
                Operand::Not(self.symbol("a predicate register")?)
            }
            b'-' if self.negates_a_register() => {
                self.cur.eat(b'-');
                let inner = self.nest(Self::named)?;
                return Ok(Operand::Negated(Box::new(inner)));
            }
            b'0'..=b'9' | b'-' | b'+' | b'~' | b'!' | b'(' => {
                return Ok(Operand::Imm(self.constant()?));
            }
            _ => self.named()?,
        };
        if self.cur.peek() == b'|' {
            self.cur.eat(b'|');
            let second = self.nest(|p| p.operand(false))?;
            return Ok(Operand::Pair(Box::new(first), Box::new(second)));
        }
        Ok(first)
    }

    /// Whether the `-` that is next stands before a register, not in a constant expression.
    fn negates_a_register(&self) -> bool {
        let mut after = self.cur.clone();
        after.eat(b'-');
        after.at_name() && !after.at_word("WARP_SZ")
    }

    /// Operands between brackets of one kind; `open` is next.
    fn operands_until(&mut self, open: u8, close: u8, lists: bool) -> ParseResult<Vec<Operand>> {
        self.nest(|p| {
            let base = p.operands.len();
            p.cur.eat(open);
            if !p.cur.eat(close) {
                loop {
                    let operand = p.operand(lists)?;
                    p.operands.push(operand);
                    if !p.cur.eat(b',') {
                        p.cur.expect(close, "or `,` after an operand")?;
                        break;
                    }
                }
            }
            Ok(p.operands.drain(base..).collect())
        })
    }

    /// An operand that starts with a name.
    #[inline]
    fn named(&mut self) -> ParseResult<Operand> {
        let start = self.cur.pos();
        let name = self.cur.name_raw("an operand")?;
        if self.cur.peek() == b'.' {
            return self.component(name);
        }
        self.cur.skip();
        if name == "WARP_SZ" {
            let (pos, line) = (start, self.cur.line());
            self.cur.rewind(pos, line);
            return Ok(Operand::Imm(self.constant()?));
        }
        let sym = self.symbols.intern(name);
        match self.cur.peek() {
            b'+' | b'-' => Ok(Operand::Offset(sym, self.offset()?)),
            b'[' => {
                self.cur.eat(b'[');
                let imm = self.constant()?;
                let index = self.int(imm)?;
                self.cur.expect(b']', "after the element's index")?;
                Ok(Operand::Index(sym, index))
            }
            _ => Ok(Operand::Name(sym)),
        }
    }

    /// `name.x` and `name.b0`; the dot is next.
    #[cold]
    fn component(&mut self, name: &str) -> ParseResult<Operand> {
        let (pos, line) = (self.cur.pos(), self.cur.line());
        self.cur.advance(1);
        let (text, _) = self.cur.word_raw();
        self.cur.skip();
        let member = match text {
            "x" | "r" => 0,
            "y" | "g" => 1,
            "z" | "b" => 2,
            "w" | "a" => 3,
            _ if text.len() > 1
                && text.starts_with(['b', 'h'])
                && text.len() <= 5
                && text[1..].bytes().all(|b| b.is_ascii_digit()) =>
            {
                return Ok(Operand::Select(
                    self.symbols.intern(name),
                    self.symbols.intern(text),
                ));
            }
            _ => {
                self.cur.rewind(pos, line);
                return Err(self.cur.error(&format!(
                    "`.{text}` is no component of `{name}`: those are .x .y .z .w, .r .g .b .a, and the selectors .b0 or .h0"
                )));
            }
        };
        if is_special_vector(name) {
            let whole = format!("{name}.{}", ["x", "y", "z", "w"][member as usize]);
            return Ok(Operand::Name(self.symbols.intern(&whole)));
        }
        Ok(Operand::Member(self.symbols.intern(name), member))
    }

    /// `+8-4*2` behind a name.
    pub(super) fn offset(&mut self) -> ParseResult<i64> {
        let mut offset = 0i64;
        loop {
            if self.cur.eat(b'+') {
                offset = offset.wrapping_add(self.term()?);
            } else if self.cur.eat(b'-') {
                offset = offset.wrapping_sub(self.term()?);
            } else {
                return Ok(offset);
            }
        }
    }

    /// `[...]`; the `[` is next.
    fn bracket(&mut self) -> ParseResult<Operand> {
        self.cur.eat(b'[');
        if self.cur.at_name() {
            let base = self.address_name()?;
            let has_offset = matches!(self.cur.peek(), b'+' | b'-');
            let offset = if has_offset { self.offset()? } else { 0 };
            if self.cur.eat(b']') {
                return Ok(Operand::Address {
                    base: AddrBase::Name(base),
                    offset,
                });
            }
            let first = if has_offset {
                Operand::Offset(base, offset)
            } else {
                Operand::Name(base)
            };
            if self.cur.peek() != b',' {
                return Err(self.cur.expected("`]`, `+` or `,` in an address"));
            }
            return self.nest(|p| {
                let start = p.operands.len();
                p.operands.push(first);
                while p.cur.eat(b',') {
                    let operand = p.operand(false)?;
                    p.operands.push(operand);
                }
                p.cur.expect(b']', "to close the address")?;
                Ok(Operand::Bracket(p.operands.drain(start..).collect()))
            });
        }
        let imm = self.constant()?;
        let value = self.int(imm)?;
        self.cur.expect(b']', "to close the address")?;
        Ok(Operand::Address {
            base: AddrBase::Imm(value),
            offset: 0,
        })
    }

    fn address_name(&mut self) -> ParseResult<Sym> {
        self.symbol("a register or variable")
    }
}

/// The special registers that are vectors: `%tid.x` is one name.
pub(crate) fn is_special_vector(name: &str) -> bool {
    matches!(
        name,
        "%tid"
            | "%ntid"
            | "%ctaid"
            | "%nctaid"
            | "%clusterid"
            | "%nclusterid"
            | "%cluster_ctaid"
            | "%cluster_nctaid"
    )
}
