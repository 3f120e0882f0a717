//! Functions: header, directives, body.

use super::Parser;
use super::cursor::ParseResult;
use super::error::suggestion;
use crate::ast::{Directive, InlinedAt, Linkage, Loc, PtxFunction, Stmt, Var};
use crate::words::{Op, ScalarType, Space};

/// Directives without and with numbers that may stand behind a function's header.
const FLAGS: [&str; 3] = ["noreturn", "explicitcluster", "blocksareclusters"];
const NUMBERS: [&str; 10] = [
    "maxnreg",
    "maxntid",
    "reqntid",
    "minnctapersm",
    "maxnctapersm",
    "reqnctapercluster",
    "maxclusterrank",
    "abi_preserve",
    "abi_preserve_control",
    "local_maxnreg",
];
/// Directives that may stand in a body.
const STATEMENTS: [&str; 11] = [
    "reg",
    "local",
    "shared",
    "param",
    "global",
    "const",
    "loc",
    "pragma",
    "branchtargets",
    "calltargets",
    "callprototype",
];

impl Parser<'_> {
    /// Everything behind `.entry` or `.func`.
    pub(super) fn function(&mut self, linkage: Linkage, entry: bool) -> ParseResult<PtxFunction> {
        let mut directives = Vec::new();
        while self.cur.peek_dot_word() == "attribute" {
            self.cur.dot_word("`.attribute`")?;
            directives.push(Directive::Attribute(self.attribute()?));
        }
        let returns = if !entry && self.cur.peek() == b'(' {
            self.params()?
        } else {
            Vec::new()
        };
        let name = self.symbol(if entry {
            "the kernel's name"
        } else {
            "the function's name"
        })?;
        let params = if self.cur.peek() == b'(' {
            self.params()?
        } else {
            Vec::new()
        };
        self.directives(&mut directives)?;
        let body = match self.cur.peek() {
            b';' => {
                self.cur.eat(b';');
                None
            }
            b'{' => Some(self.block()?),
            _ => {
                return Err(self
                    .cur
                    .expected("`{`, `;` or a directive after the function's header"));
            }
        };
        Ok(PtxFunction {
            linkage,
            entry,
            name,
            returns,
            params,
            directives,
            body,
        })
    }

    /// `(.param .b32 a, ...)`; the `(` is next.
    fn params(&mut self) -> ParseResult<Vec<Var>> {
        self.cur.eat(b'(');
        let mut params = Vec::new();
        if self.cur.eat(b')') {
            return Ok(params);
        }
        loop {
            let space = match self.cur.peek_dot_word() {
                "param" => Space::Param,
                "reg" => Space::Reg,
                _ => return Err(self.cur.expected("`.param` or `.reg`")),
            };
            self.cur.dot_word("`.param` or `.reg`")?;
            let head = self.var_head(Linkage::Local, space)?;
            params.push(self.declarator(&head)?);
            if !self.cur.eat(b',') {
                self.cur.expect(b')', "or `,` after a parameter")?;
                return Ok(params);
            }
        }
    }

    fn directives(&mut self, out: &mut Vec<Directive>) -> ParseResult<()> {
        while self.cur.peek() == b'.' {
            let word = self.cur.peek_dot_word();
            if word == "pragma" {
                self.cur.dot_word("`.pragma`")?;
                out.push(Directive::Pragma(self.pragma()?));
            } else if FLAGS.contains(&word) {
                self.cur.dot_word("a directive")?;
                out.push(Directive::Flag(word.to_owned()));
            } else if NUMBERS.contains(&word) {
                self.cur.dot_word("a directive")?;
                let mut numbers = vec![self.number_u32("a number")?];
                while self.cur.eat(b',') {
                    numbers.push(self.number_u32("a number")?);
                }
                out.push(Directive::Numbers(word.to_owned(), numbers));
            } else {
                let hint =
                    suggestion(word, FLAGS.into_iter().chain(NUMBERS)).replace("mean `", "mean `.");
                return Err(self
                    .cur
                    .error(&format!("unknown function directive `.{word}`{hint}")));
            }
        }
        Ok(())
    }

    /// `{ ... }`; the `{` is next.
    fn block(&mut self) -> ParseResult<Vec<Stmt>> {
        self.nest(|p| {
            let (pos, line) = (p.cur.pos(), p.cur.line());
            p.cur.eat(b'{');
            let base = p.statements.len();
            while !p.cur.eat(b'}') {
                if p.cur.at_end() {
                    p.cur.rewind(pos, line);
                    return Err(p.cur.error("this `{` is never closed"));
                }
                p.statement()?;
            }
            Ok(p.statements.drain(base..).collect())
        })
    }

    fn statement(&mut self) -> ParseResult<()> {
        let stmt = match self.cur.peek() {
            b'@' => {
                let line = self.cur.line();
                let guard = self.guard()?;
                let (op, _) = self.opcode()?;
                Stmt::Inst(self.instruction(Some(guard), op, line)?)
            }
            b'.' => return self.directive_statement(),
            b'{' => Stmt::Block(self.block()?),
            b'a'..=b'z' => {
                let (pos, line) = (self.cur.pos(), self.cur.line());
                let (word, hash) = self.cur.word_raw();
                match self.cur.peek() {
                    b'.' | b' ' | b'\t' | b'\r' | b'\n' | b';' => {
                        match Op::parse_hashed(word, hash) {
                            Some(op) if !self.colon_follows() => {
                                Stmt::Inst(self.instruction(None, op, line)?)
                            }
                            _ => {
                                self.cur.rewind(pos, line);
                                self.labelled()?
                            }
                        }
                    }
                    _ => {
                        self.cur.rewind(pos, line);
                        self.labelled()?
                    }
                }
            }
            _ => self.labelled()?,
        };
        self.statements.push(stmt);
        Ok(())
    }

    /// Whether a label's `:` comes after blanks.
    fn colon_follows(&self) -> bool {
        let mut ahead = 0;
        while matches!(self.cur.peek_at(ahead), b' ' | b'\t') {
            ahead += 1;
        }
        self.cur.peek_at(ahead) == b':'
    }

    /// The opcode that is next; the position stays right behind it.
    fn opcode(&mut self) -> ParseResult<(Op, u32)> {
        let (pos, line) = (self.cur.pos(), self.cur.line());
        let (word, hash) = self.cur.word_raw();
        match Op::parse_hashed(word, hash) {
            Some(op) => Ok((op, line)),
            None => {
                self.cur.rewind(pos, line);
                if word.is_empty() {
                    return Err(self.cur.expected("an instruction"));
                }
                let hint = suggestion(word, Op::ALL.iter().map(|op| op.text()));
                Err(self.cur.error(&format!("unknown opcode `{word}`{hint}")))
            }
        }
    }

    /// `name:` and what may be named so; else an instruction in unusual layout.
    #[cold]
    fn labelled(&mut self) -> ParseResult<Stmt> {
        let (pos, line) = (self.cur.pos(), self.cur.line());
        let name = self.cur.name("a statement")?;
        if !self.cur.eat(b':') {
            self.cur.rewind(pos, line);
            let (op, line) = self.opcode()?;
            return Ok(Stmt::Inst(self.instruction(None, op, line)?));
        }
        let name = self.symbols.intern(name);
        match self.cur.peek_dot_word() {
            word @ ("branchtargets" | "calltargets") => {
                self.cur.dot_word("a directive")?;
                let mut targets = vec![self.symbol("a target")?];
                while self.cur.eat(b',') {
                    targets.push(self.symbol("a target")?);
                }
                self.cur.expect(b';', "after the targets")?;
                Ok(if word == "branchtargets" {
                    Stmt::BranchTargets { name, targets }
                } else {
                    Stmt::CallTargets { name, targets }
                })
            }
            "callprototype" => {
                self.cur.dot_word("a directive")?;
                let returns = if self.cur.peek() == b'(' {
                    self.params()?
                } else {
                    Vec::new()
                };
                if self.cur.name("`_`")? != "_" {
                    return Err(self.cur.error("a prototype's name is `_`"));
                }
                let params = if self.cur.peek() == b'(' {
                    self.params()?
                } else {
                    Vec::new()
                };
                let mut directives = Vec::new();
                self.directives(&mut directives)?;
                self.cur.expect(b';', "after the prototype")?;
                Ok(Stmt::CallPrototype {
                    name,
                    returns,
                    params,
                    directives,
                })
            }
            _ => Ok(Stmt::Label(name)),
        }
    }

    fn directive_statement(&mut self) -> ParseResult<()> {
        let (pos, line) = (self.cur.pos(), self.cur.line());
        let word = self.cur.dot_word("a directive")?;
        let stmt = match word {
            "loc" => Stmt::Loc(self.loc()?),
            "reg" => self.registers()?,
            "pragma" => Stmt::Pragma(self.pragma()?),
            _ => {
                let (linkage, space) = match super::module::linkage(word) {
                    Some(linkage) => (linkage, self.cur.dot_word("a state space")?),
                    None => (Linkage::Local, word),
                };
                let Some(space) = Space::parse(space).filter(|s| *s != Space::Reg) else {
                    self.cur.rewind(pos, line);
                    let hint = suggestion(word, STATEMENTS).replace("mean `", "mean `.");
                    return Err(self
                        .cur
                        .error(&format!("unknown directive `.{word}` in a body{hint}")));
                };
                let head = self.var_head(linkage, space)?;
                loop {
                    let var = self.declarator(&head)?;
                    self.statements.push(Stmt::Var(var));
                    if !self.cur.eat(b',') {
                        return self.cur.expect(b';', "after the declaration");
                    }
                }
            }
        };
        self.statements.push(stmt);
        Ok(())
    }

    /// Everything behind `.reg`.
    fn registers(&mut self) -> ParseResult<Stmt> {
        let vector = self.vector()?;
        let word = self.cur.dot_word("a type")?;
        let Some(ty) = ScalarType::parse(word) else {
            return Err(self.not_a_type(word));
        };
        let mut names = Vec::new();
        loop {
            let name = self.symbol("a register's name")?;
            let count = if self.cur.eat(b'<') {
                let count = self.number_u32("the number of registers")?;
                self.cur.expect(b'>', "after the number of registers")?;
                Some(count)
            } else {
                None
            };
            names.push((name, count));
            if !self.cur.eat(b',') {
                break;
            }
        }
        self.cur.expect(b';', "after the declaration")?;
        names.shrink_to_fit();
        Ok(Stmt::Reg { vector, ty, names })
    }

    /// Everything behind `.loc`.
    fn loc(&mut self) -> ParseResult<Loc> {
        let file = self.number_u32("a file's index")?;
        let line = self.number_u32("a line")?;
        let column = self.number_u32("a column")?;
        let mut inlined = None;
        if self.cur.eat(b',') {
            self.keyword("function_name")?;
            let function = self.symbol("the label of the function's name")?;
            let offset = if self.cur.eat(b'+') {
                self.number_u64("an offset")?
            } else {
                0
            };
            self.cur.expect(b',', "before `inlined_at`")?;
            self.keyword("inlined_at")?;
            let file = self.number_u32("a file's index")?;
            let line = self.number_u32("a line")?;
            let column = self.number_u32("a column")?;
            inlined = Some(InlinedAt {
                function,
                offset,
                file,
                line,
                column,
            });
        }
        Ok(Loc {
            file,
            line,
            column,
            inlined,
        })
    }

    fn keyword(&mut self, keyword: &'static str) -> ParseResult<()> {
        let (pos, line) = (self.cur.pos(), self.cur.line());
        let what = format!("`{keyword}`");
        if self.cur.name(&what)? == keyword {
            return Ok(());
        }
        self.cur.rewind(pos, line);
        Err(self.cur.expected(&what))
    }
}
