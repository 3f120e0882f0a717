//! Printer of PTX.
//!
//! One layout: four spaces a level, one statement a line, labels at the level of the block's
//! brace, operands separated by `, `. The output parses back to an equal module.
//!
//! Invariant: floats are written as bits (`0f`, `0d`), integers in decimal; nothing is rounded.

use crate::ast::{
    AddrBase, Directive, Imm, Init, Inst, Item, Linkage, Loc, Operand, PtxFunction, PtxModule,
    Stmt, Sym, Symbols, Var,
};
use std::fmt;

/// The text of `module`.
#[must_use]
pub fn print(module: &PtxModule) -> String {
    let mut printer = Printer {
        out: String::with_capacity(4096),
        symbols: &module.symbols,
    };
    printer.module(module);
    printer.out
}

impl fmt::Display for PtxModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print(self))
    }
}

impl PtxModule {
    /// The text of one instruction, guard to semicolon, for reports.
    #[must_use]
    pub fn instruction_text(&self, inst: &Inst) -> String {
        let mut printer = Printer {
            out: String::new(),
            symbols: &self.symbols,
        };
        printer.inst(inst);
        printer.out
    }

    /// The text of one operand, for reports.
    #[must_use]
    pub fn operand_text(&self, operand: &Operand) -> String {
        let mut printer = Printer {
            out: String::new(),
            symbols: &self.symbols,
        };
        printer.operand(operand);
        printer.out
    }
}

impl Linkage {
    /// The directive's word, without its dot; empty for `Local`.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Linkage::Local => "",
            Linkage::Visible => "visible",
            Linkage::Extern => "extern",
            Linkage::Weak => "weak",
            Linkage::Common => "common",
        }
    }
}

struct Printer<'a> {
    out: String,
    symbols: &'a Symbols,
}

const INDENT: &str = "    ";

impl Printer<'_> {
    fn module(&mut self, module: &PtxModule) {
        self.text(".version ");
        self.number(u64::from(module.version.0));
        self.out.push('.');
        self.number(u64::from(module.version.1));
        self.text("\n.target ");
        self.comma(&module.target, |p, t| p.text(t));
        self.text("\n.address_size ");
        self.number(u64::from(module.address_size));
        self.out.push('\n');
        let mut apart = true;
        for item in &module.items {
            let block = matches!(item, Item::Section { .. })
                || matches!(item, Item::Function(f) if f.body.is_some() || !f.params.is_empty());
            if apart || block {
                self.out.push('\n');
            }
            apart = block;
            self.item(item);
        }
    }

    fn item(&mut self, item: &Item) {
        match item {
            Item::Var(var) => {
                self.var(var);
                self.text(";\n");
            }
            Item::Function(function) => self.function(function),
            Item::File { index, path, stamp } => {
                self.text(".file ");
                self.number(u64::from(*index));
                self.text(" \"");
                self.text(path);
                self.out.push('"');
                if let Some((time, size)) = stamp {
                    self.text(", ");
                    self.number(*time);
                    self.text(", ");
                    self.number(*size);
                }
                self.out.push('\n');
            }
            Item::Section { name, lines } => {
                self.text(".section ");
                self.text(name);
                self.text("\n{\n");
                for line in lines {
                    self.text(INDENT);
                    self.text(line);
                    self.out.push('\n');
                }
                self.text("}\n");
            }
            Item::Alias { name, target } => {
                self.text(".alias ");
                self.sym(*name);
                self.text(", ");
                self.sym(*target);
                self.text(";\n");
            }
            Item::Pragma(texts) => {
                self.pragma(texts);
                self.text(";\n");
            }
        }
    }

    fn pragma(&mut self, texts: &[String]) {
        self.text(".pragma ");
        self.comma(texts, |p, t| {
            p.out.push('"');
            p.text(t);
            p.out.push('"');
        });
    }

    fn linkage(&mut self, linkage: Linkage) {
        if linkage != Linkage::Local {
            self.dot(linkage.text());
            self.out.push(' ');
        }
    }

    fn var(&mut self, var: &Var) {
        self.linkage(var.linkage);
        self.dot(var.space.text());
        if !var.attributes.is_empty() {
            self.text(" .attribute(");
            self.comma(&var.attributes, |p, t| p.text(t));
            self.out.push(')');
        }
        if let Some(align) = var.align {
            self.text(" .align ");
            self.number(u64::from(align));
        }
        self.vector(var.vector);
        self.out.push(' ');
        self.dot(var.ty.text());
        if let Some(ptr) = var.ptr {
            self.text(" .ptr");
            if let Some(space) = ptr.space {
                self.out.push(' ');
                self.dot(space.text());
            }
            if let Some(align) = ptr.align {
                self.text(" .align ");
                self.number(u64::from(align));
            }
        }
        self.out.push(' ');
        self.sym(var.name);
        for dim in &var.dims {
            self.out.push('[');
            if let Some(dim) = dim {
                self.number(*dim);
            }
            self.out.push(']');
        }
        if let Some(init) = &var.init {
            self.text(" = ");
            self.init(init);
        }
    }

    fn vector(&mut self, lanes: u32) {
        if lanes != 1 {
            self.text(" .v");
            self.number(u64::from(lanes));
        }
    }

    fn init(&mut self, init: &Init) {
        match init {
            Init::Imm(imm) => self.imm(*imm),
            Init::Address {
                name,
                offset,
                generic,
                mask,
            } => {
                if let Some(mask) = mask {
                    self.text(&format!("{mask:#X}(").replacen("0X", "0x", 1));
                }
                if *generic {
                    self.text("generic(");
                    self.sym(*name);
                    self.out.push(')');
                } else {
                    self.sym(*name);
                }
                self.offset(*offset);
                if mask.is_some() {
                    self.out.push(')');
                }
            }
            Init::List(list) => {
                self.out.push('{');
                self.comma(list, Self::init);
                self.out.push('}');
            }
        }
    }

    fn function(&mut self, function: &PtxFunction) {
        self.linkage(function.linkage);
        self.text(if function.entry { ".entry " } else { ".func " });
        for directive in &function.directives {
            if let Directive::Attribute(attributes) = directive {
                self.text(".attribute(");
                self.comma(attributes, |p, t| p.text(t));
                self.text(") ");
            }
        }
        if !function.returns.is_empty() {
            self.text("(");
            self.comma(&function.returns, Self::var);
            self.text(") ");
        }
        self.sym(function.name);
        self.out.push('(');
        if !function.params.is_empty() {
            self.out.push('\n');
            for (i, param) in function.params.iter().enumerate() {
                self.text(if i == 0 { INDENT } else { ",\n    " });
                self.var(param);
            }
            self.out.push('\n');
        }
        self.out.push(')');
        self.directives(&function.directives, "\n");
        match &function.body {
            Some(body) => {
                self.text("\n{\n");
                self.block(body, 1);
                self.text("}\n");
            }
            None => self.text(";\n"),
        }
    }

    fn directives(&mut self, directives: &[Directive], before: &str) {
        for directive in directives {
            match directive {
                Directive::Attribute(_) => continue,
                Directive::Flag(word) => {
                    self.text(before);
                    self.dot(word);
                }
                Directive::Numbers(word, numbers) => {
                    self.text(before);
                    self.dot(word);
                    self.out.push(' ');
                    self.comma(numbers, |p, n| p.number(u64::from(*n)));
                }
                Directive::Pragma(texts) => {
                    self.text(before);
                    self.pragma(texts);
                    self.out.push(';');
                }
            }
        }
    }

    fn block(&mut self, body: &[Stmt], level: usize) {
        for stmt in body {
            let outdent = matches!(stmt, Stmt::Label(_));
            for _ in usize::from(outdent)..level {
                self.text(INDENT);
            }
            match stmt {
                Stmt::Inst(inst) => self.inst(inst),
                Stmt::Label(name) => {
                    self.sym(*name);
                    self.out.push(':');
                }
                Stmt::Loc(loc) => self.loc(loc),
                Stmt::Block(body) => {
                    self.text("{\n");
                    self.block(body, level + 1);
                    for _ in 0..level {
                        self.text(INDENT);
                    }
                    self.out.push('}');
                }
                other => self.rare(other),
            }
            self.out.push('\n');
        }
    }

    fn rare(&mut self, stmt: &Stmt) {
        match stmt {
            Stmt::Reg { vector, ty, names } => {
                self.text(".reg");
                self.vector(*vector);
                self.out.push(' ');
                self.dot(ty.text());
                self.out.push(' ');
                self.comma(names, |p, (name, count)| {
                    p.sym(*name);
                    if let Some(count) = count {
                        p.out.push('<');
                        p.number(u64::from(*count));
                        p.out.push('>');
                    }
                });
            }
            Stmt::Var(var) => self.var(var),
            Stmt::Pragma(texts) => self.pragma(texts),
            Stmt::BranchTargets { name, targets } => {
                self.sym(*name);
                self.text(": .branchtargets ");
                self.comma(targets, |p, t| p.sym(*t));
            }
            Stmt::CallTargets { name, targets } => {
                self.sym(*name);
                self.text(": .calltargets ");
                self.comma(targets, |p, t| p.sym(*t));
            }
            Stmt::CallPrototype {
                name,
                returns,
                params,
                directives,
            } => {
                self.sym(*name);
                self.text(": .callprototype ");
                if !returns.is_empty() {
                    self.out.push('(');
                    self.comma(returns, Self::var);
                    self.text(") ");
                }
                self.text("_ (");
                self.comma(params, Self::var);
                self.out.push(')');
                self.directives(directives, " ");
            }
            Stmt::Inst(_) | Stmt::Label(_) | Stmt::Loc(_) | Stmt::Block(_) => {}
        }
        self.out.push(';');
    }

    fn loc(&mut self, loc: &Loc) {
        self.text(".loc ");
        self.number(u64::from(loc.file));
        self.out.push(' ');
        self.number(u64::from(loc.line));
        self.out.push(' ');
        self.number(u64::from(loc.column));
        if let Some(inlined) = &loc.inlined {
            self.text(", function_name ");
            self.sym(inlined.function);
            if inlined.offset != 0 {
                self.out.push('+');
                self.number(inlined.offset);
            }
            self.text(", inlined_at ");
            self.number(u64::from(inlined.file));
            self.out.push(' ');
            self.number(u64::from(inlined.line));
            self.out.push(' ');
            self.number(u64::from(inlined.column));
        }
    }

    fn inst(&mut self, inst: &Inst) {
        if let Some(guard) = inst.guard {
            self.text(if guard.negated { "@!" } else { "@" });
            self.sym(guard.pred);
            self.out.push(' ');
        }
        self.text(inst.op.text());
        for word in &inst.mods {
            self.dot(word.text());
        }
        for (i, operand) in inst.operands.iter().enumerate() {
            self.text(if i == 0 { " " } else { ", " });
            self.operand(operand);
        }
        self.out.push(';');
    }

    fn operand(&mut self, operand: &Operand) {
        match operand {
            Operand::Name(name) => self.sym(*name),
            Operand::Not(name) => {
                self.out.push('!');
                self.sym(*name);
            }
            Operand::Imm(imm) => self.imm(*imm),
            Operand::Offset(name, offset) => {
                self.sym(*name);
                if *offset == 0 {
                    self.text("+0");
                }
                self.offset(*offset);
            }
            Operand::Index(name, index) => {
                self.sym(*name);
                self.out.push('[');
                self.int(*index);
                self.out.push(']');
            }
            Operand::Negated(inner) => {
                self.out.push('-');
                self.operand(inner);
            }
            Operand::Address { base, offset } => {
                self.out.push('[');
                match base {
                    AddrBase::Name(name) => self.sym(*name),
                    AddrBase::Imm(value) => self.int(*value),
                }
                self.offset(*offset);
                self.out.push(']');
            }
            Operand::Bracket(items) => self.enclosed('[', items, ']'),
            Operand::Vector(items) => self.enclosed('{', items, '}'),
            Operand::List(items) => self.enclosed('(', items, ')'),
            Operand::Pair(first, second) => {
                self.operand(first);
                self.out.push('|');
                self.operand(second);
            }
            Operand::Member(name, lane) => {
                self.sym(*name);
                self.dot(["x", "y", "z", "w"][usize::from(*lane & 3)]);
            }
            Operand::Select(name, selector) => {
                self.sym(*name);
                self.out.push('.');
                self.sym(*selector);
            }
        }
    }

    fn enclosed(&mut self, open: char, items: &[Operand], close: char) {
        self.out.push(open);
        self.comma(items, Self::operand);
        self.out.push(close);
    }

    fn comma<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Self, &T)) {
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.text(", ");
            }
            each(self, item);
        }
    }

    fn imm(&mut self, imm: Imm) {
        match imm {
            Imm::Int {
                value,
                unsigned: false,
            } => self.int(value),
            Imm::Int {
                value,
                unsigned: true,
            } => {
                self.number(value as u64);
                self.out.push('U');
            }
            Imm::F32(bits) => self.hex("0f", u64::from(bits), 8),
            Imm::F64(bits) => self.hex("0d", bits, 16),
        }
    }

    /// `+8` or `+-8`: ptxas reads no `-8` behind a name.
    fn offset(&mut self, offset: i64) {
        if offset != 0 {
            self.out.push('+');
            self.int(offset);
        }
    }

    fn int(&mut self, value: i64) {
        if value < 0 {
            self.out.push('-');
        }
        self.number(value.unsigned_abs());
    }

    fn number(&mut self, mut value: u64) {
        let mut digits = [0u8; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                break;
            }
        }
        self.out.extend(digits[at..].iter().map(|&d| d as char));
    }

    fn hex(&mut self, prefix: &str, value: u64, digits: u32) {
        self.text(prefix);
        for i in (0..digits).rev() {
            self.out
                .push(b"0123456789ABCDEF"[(value >> (4 * i) & 15) as usize] as char);
        }
    }

    fn sym(&mut self, sym: Sym) {
        self.out.push_str(self.symbols.name(sym));
    }

    fn dot(&mut self, word: &str) {
        self.out.push('.');
        self.out.push_str(word);
    }

    fn text(&mut self, text: &str) {
        self.out.push_str(text);
    }
}
