//! Directives at module scope, and variables in any scope.

use super::Parser;
use super::cursor::ParseResult;
use super::error::suggestion;
use crate::ast::{Init, Item, Linkage, PtrAttr, PtxModule, Var};
use crate::words::{ScalarType, Space};

/// Directives that may stand at module scope.
const ITEMS: [&str; 17] = [
    "version",
    "target",
    "address_size",
    "file",
    "section",
    "alias",
    "pragma",
    "visible",
    "extern",
    "weak",
    "common",
    "entry",
    "func",
    "global",
    "const",
    "shared",
    "tex",
];

/// The part of a declaration that several declarators share.
pub(super) struct VarHead {
    linkage: Linkage,
    space: Space,
    align: Option<u32>,
    vector: u32,
    ty: ScalarType,
    ptr: Option<PtrAttr>,
    attributes: Vec<String>,
}

pub(super) fn linkage(word: &str) -> Option<Linkage> {
    Some(match word {
        "visible" => Linkage::Visible,
        "extern" => Linkage::Extern,
        "weak" => Linkage::Weak,
        "common" => Linkage::Common,
        _ => return None,
    })
}

impl Parser<'_> {
    pub(super) fn module(mut self) -> ParseResult<PtxModule> {
        let version = self.version()?;
        let target = self.target()?;
        let mut address_size = None;
        let mut items = Vec::new();
        while !self.cur.at_end() {
            if self.cur.peek_dot_word() == "address_size" {
                let (pos, line) = (self.cur.pos(), self.cur.line());
                self.cur.dot_word("a directive")?;
                let size = self.number_u32("32 or 64")?;
                if !matches!(size, 32 | 64) || address_size.is_some_and(|s| s != size) {
                    self.cur.rewind(pos, line);
                    return Err(self
                        .cur
                        .error("`.address_size` is 32 or 64, and the same throughout"));
                }
                address_size = Some(size);
                continue;
            }
            self.item(&mut items)?;
        }
        items.shrink_to_fit();
        Ok(PtxModule {
            version,
            target,
            address_size: address_size.unwrap_or(32),
            items,
            symbols: self.symbols,
        })
    }

    fn version(&mut self) -> ParseResult<(u32, u32)> {
        const WHAT: &str = "`.version` at the beginning of a module";
        if self.cur.peek_dot_word() != "version" {
            return Err(self.cur.expected(WHAT));
        }
        self.cur.dot_word(WHAT)?;
        let major = self.version_part()?;
        if self.cur.peek() != b'.' {
            return Err(self.cur.expected("a version such as `9.0`"));
        }
        self.cur.advance(1);
        let minor = self.version_part()?;
        self.cur.skip();
        Ok((major, minor))
    }

    /// Read apart from numbers: 9.10 is not 9.1.
    fn version_part(&mut self) -> ParseResult<u32> {
        let (mut value, mut digits) = (0, 0);
        while let digit @ b'0'..=b'9' = self.cur.peek() {
            value = value * 10 + u32::from(digit - b'0');
            digits += 1;
            if digits > 4 {
                break;
            }
            self.cur.advance(1);
        }
        if digits == 0 || digits > 4 {
            return Err(self.cur.expected("a version such as `9.0`"));
        }
        Ok(value)
    }

    fn target(&mut self) -> ParseResult<Vec<String>> {
        if self.cur.peek_dot_word() != "target" {
            return Err(self.cur.expected("`.target` after `.version`"));
        }
        self.cur.dot_word("`.target`")?;
        let mut target = vec![self.cur.name("an architecture such as `sm_90`")?.to_owned()];
        while self.cur.eat(b',') {
            target.push(self.cur.name("a target option")?.to_owned());
        }
        Ok(target)
    }

    fn item(&mut self, items: &mut Vec<Item>) -> ParseResult<()> {
        let (pos, line) = (self.cur.pos(), self.cur.line());
        let mut word = self.cur.dot_word("a directive")?;
        let linkage = linkage(word);
        if linkage.is_some() {
            word = self.cur.dot_word("`.entry`, `.func` or a state space")?;
        }
        let item = match (word, linkage) {
            ("entry" | "func", _) => {
                Item::Function(self.function(linkage.unwrap_or_default(), word == "entry")?)
            }
            ("file", None) => self.file()?,
            ("section", None) => self.section()?,
            ("pragma", None) => Item::Pragma(self.pragma()?),
            ("alias", None) => {
                let name = self.symbol("the new name")?;
                self.cur
                    .expect(b',', "between the alias and its function")?;
                let target = self.symbol("a function's name")?;
                self.cur.expect(b';', "after the alias")?;
                Item::Alias { name, target }
            }
            _ => match Space::parse(word) {
                Some(space @ (Space::Global | Space::Const | Space::Shared | Space::Tex)) => {
                    let head = self.var_head(linkage.unwrap_or_default(), space)?;
                    loop {
                        items.push(Item::Var(self.declarator(&head)?));
                        if !self.cur.eat(b',') {
                            return self.cur.expect(b';', "after the declaration");
                        }
                    }
                }
                _ => {
                    self.cur.rewind(pos, line);
                    let message = match word {
                        "version" | "target" => {
                            format!("`.{word}` stands once, at the beginning of a module")
                        }
                        _ => {
                            let hint = suggestion(word, ITEMS).replace("mean `", "mean `.");
                            format!("unknown directive `.{word}` at module scope{hint}")
                        }
                    };
                    return Err(self.cur.error(&message));
                }
            },
        };
        items.push(item);
        Ok(())
    }

    fn file(&mut self) -> ParseResult<Item> {
        let index = self.number_u32("the file's index")?;
        let path = self.cur.string("the file's path in quotes")?;
        let mut stamp = None;
        if self.cur.eat(b',') {
            let time = self.number_u64("a time")?;
            self.cur.expect(b',', "between time and size")?;
            stamp = Some((time, self.number_u64("a size")?));
        }
        Ok(Item::File { index, path, stamp })
    }

    fn section(&mut self) -> ParseResult<Item> {
        let mut name = String::from(".");
        name.push_str(
            self.cur
                .dot_word("a section's name such as `.debug_info`")?,
        );
        if self.cur.peek() != b'{' {
            return Err(self.cur.expected("`{` after the section's name"));
        }
        let lines = self.cur.raw_lines()?;
        Ok(Item::Section { name, lines })
    }

    /// `"a", "b";` behind `.pragma`.
    pub(super) fn pragma(&mut self) -> ParseResult<Vec<String>> {
        let mut texts = vec![self.cur.string("a pragma in quotes")?];
        while self.cur.eat(b',') {
            texts.push(self.cur.string("a pragma in quotes")?);
        }
        self.cur.expect(b';', "after the pragma")?;
        Ok(texts)
    }

    /// `(.managed)` or `(.unified(1, 2))` behind `.attribute`. Short, as every variable of a
    /// declaration gets a copy.
    pub(super) fn attribute(&mut self) -> ParseResult<Vec<String>> {
        self.cur.expect(b'(', "after `.attribute`")?;
        let mut attributes = Vec::new();
        loop {
            match self.cur.peek_dot_word() {
                "managed" => attributes.push(".managed".to_owned()),
                "unified" => attributes.push(".unified".to_owned()),
                _ => return Err(self.cur.expected("`.managed` or `.unified`")),
            }
            if attributes.len() > 2 {
                return Err(self
                    .cur
                    .error("there are two attributes, and here is a third"));
            }
            self.cur.dot_word("an attribute")?;
            if self.cur.eat(b'(') {
                let high = self.number_u64("a number")?;
                self.cur.expect(b',', "between the two numbers")?;
                let low = self.number_u64("a number")?;
                self.cur.expect(b')', "after the two numbers")?;
                if let Some(last) = attributes.last_mut() {
                    last.push_str(&format!("({high}, {low})"));
                }
            }
            if !self.cur.eat(b',') {
                break;
            }
        }
        self.cur.expect(b')', "after the attributes")?;
        Ok(attributes)
    }

    /// `.v2` or `.v4`, if next.
    pub(super) fn vector(&mut self) -> ParseResult<u32> {
        let lanes = match self.cur.peek_dot_word() {
            "v2" => 2,
            "v4" => 4,
            "v8" => 8,
            _ => return Ok(1),
        };
        self.cur.dot_word("a vector length")?;
        Ok(lanes)
    }

    /// Type and qualifiers of a variable: everything from the state space to the first name.
    pub(super) fn var_head(&mut self, linkage: Linkage, space: Space) -> ParseResult<VarHead> {
        let mut head = VarHead {
            linkage,
            space,
            align: None,
            vector: 1,
            ty: ScalarType::B8,
            ptr: None,
            attributes: Vec::new(),
        };
        let mut typed = false;
        while self.cur.peek() == b'.' {
            match self.cur.peek_dot_word() {
                "align" => {
                    self.cur.dot_word("`.align`")?;
                    let align = self.number_u32("an alignment")?;
                    match &mut head.ptr {
                        Some(ptr) => ptr.align = Some(align),
                        None => head.align = Some(align),
                    }
                }
                "attribute" => {
                    self.cur.dot_word("`.attribute`")?;
                    head.attributes = self.attribute()?;
                }
                "v2" | "v4" | "v8" if !typed => head.vector = self.vector()?,
                "ptr" if typed && space == Space::Param => {
                    self.cur.dot_word("`.ptr`")?;
                    head.ptr = Some(PtrAttr {
                        space: None,
                        align: None,
                    });
                }
                word => {
                    if let (Some(ptr), Some(space)) = (&mut head.ptr, Space::parse(word)) {
                        ptr.space = Some(space);
                    } else if let (Some(ty), false) = (ScalarType::parse(word), typed) {
                        head.ty = ty;
                        typed = true;
                    } else {
                        return Err(self.not_a_type(word));
                    }
                    self.cur.dot_word("a type")?;
                }
            }
        }
        if !typed {
            return Err(self.cur.expected("a type"));
        }
        Ok(head)
    }

    #[cold]
    pub(super) fn not_a_type(&self, word: &str) -> Box<super::ParseError> {
        if ScalarType::parse(word).is_some() {
            return self.cur.error(&format!(
                "`.{word}` would be this declaration's second type"
            ));
        }
        let hint =
            suggestion(word, ScalarType::ALL.iter().map(|t| t.text())).replace("mean `", "mean `.");
        self.cur.error(&format!(
            "`.{word}` does not belong in this declaration{hint}"
        ))
    }

    /// One name of a declaration with its dimensions and value.
    pub(super) fn declarator(&mut self, head: &VarHead) -> ParseResult<Var> {
        let name = self.symbol("a variable's name")?;
        let mut dims = Vec::new();
        while self.cur.eat(b'[') {
            if self.cur.eat(b']') {
                dims.push(None);
            } else {
                let imm = self.constant()?;
                dims.push(Some(self.int(imm)? as u64));
                self.cur.expect(b']', "after the number of elements")?;
            }
        }
        let init = if self.cur.eat(b'=') {
            Some(self.init()?)
        } else {
            None
        };
        Ok(Var {
            linkage: head.linkage,
            space: head.space,
            align: head.align,
            vector: head.vector,
            ty: head.ty,
            name,
            dims,
            init,
            ptr: head.ptr,
            attributes: head.attributes.clone(),
        })
    }

    fn init(&mut self) -> ParseResult<Init> {
        if self.cur.peek() == b'{' {
            return self.nest(|p| {
                p.cur.eat(b'{');
                let mut list = Vec::new();
                while !p.cur.eat(b'}') {
                    list.push(p.init()?);
                    if !p.cur.eat(b',') {
                        p.cur.expect(b'}', "or `,` in an initialiser")?;
                        break;
                    }
                }
                list.shrink_to_fit();
                Ok(Init::List(list))
            });
        }
        if self.cur.at_name() {
            return self.init_address(None);
        }
        // `0xFF00(name)`: the bytes of an address that the mask selects.
        let imm = self.constant()?;
        if self.cur.eat(b'(') {
            let mask = self.int(imm)? as u64;
            let init = self.init_address(Some(mask))?;
            self.cur.expect(b')', "to close the masked address")?;
            return Ok(init);
        }
        Ok(Init::Imm(imm))
    }

    /// `name`, `name+8`, `generic(name)+8`.
    fn init_address(&mut self, mask: Option<u64>) -> ParseResult<Init> {
        let (pos, line) = (self.cur.pos(), self.cur.line());
        let mut name = self.cur.name("a name")?;
        if name == "WARP_SZ" {
            self.cur.rewind(pos, line);
            return Ok(Init::Imm(self.constant()?));
        }
        let generic = name == "generic" && self.cur.eat(b'(');
        if generic {
            name = self.cur.name("a variable's name")?;
            self.cur.expect(b')', "after the name in `generic`")?;
        }
        let name = self.symbols.intern(name);
        let offset = self.offset()?;
        Ok(Init::Address {
            name,
            offset,
            generic,
            mask,
        })
    }
}

impl super::cursor::Cursor<'_> {
    /// The lines of a `{ ... }` as written, trimmed, without comments; the `{` is next.
    fn raw_lines(&mut self) -> ParseResult<Vec<String>> {
        let (start, start_line) = (self.pos(), self.line());
        self.advance(1);
        let mut lines = Vec::new();
        loop {
            self.skip();
            if self.at_end() {
                self.rewind(start, start_line);
                return Err(self.error("this section is never closed"));
            }
            if self.eat(b'}') {
                lines.shrink_to_fit();
                return Ok(lines);
            }
            lines.push(self.raw_line()?);
        }
    }

    fn raw_line(&mut self) -> ParseResult<String> {
        let start = self.pos();
        let mut quoted = false;
        loop {
            match self.peek() {
                b'\n' | 0 if self.at_end() || self.peek() == b'\n' => break,
                b'"' => quoted = !quoted,
                b'}' if !quoted => break,
                b'/' if !quoted && matches!(self.peek_at(1), b'/' | b'*') => break,
                _ => {}
            }
            self.advance(1);
        }
        let line = self.slice(start, self.pos()).trim();
        if line.is_empty() {
            return Err(self.expected("a line of the section"));
        }
        Ok(line.to_owned())
    }
}
