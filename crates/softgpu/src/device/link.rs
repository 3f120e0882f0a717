//! `cuLink*`: merging of several PTX modules into one.
//!
//! A module-local name that another module defines is renamed; a declaration is replaced by a
//! definition in another module. The output is our own container around the merged text.

use fercuda_ptx::ast::{Item, Linkage, PtxModule, Stmt};
use rustc_hash::{FxHashMap, FxHashSet};

use super::image::{LINKED_MAGIC, text_of_bytes};
use super::objects::LinkState;
use super::{CuResult, err};

const CUBIN: u32 = 0;
const PTX: u32 = 1;
const FATBINARY: u32 = 2;

impl LinkState {
    pub(crate) fn add(&mut self, kind: u32, bytes: &[u8], name: &str) -> CuResult {
        if self.output.is_some() {
            return Err(err::INVALID_VALUE);
        }
        match kind {
            PTX | FATBINARY => {
                let text = text_of_bytes(bytes, &mut self.jit)?;
                if let Err(e) = fercuda_ptx::parse(&text) {
                    self.jit.say_error(&format!(
                        "ptxas {name}, line {}; error   : {}",
                        e.line, e.message
                    ));
                    return Err(err::INVALID_PTX);
                }
                self.inputs.push(text);
                Ok(())
            }
            // Our own output may be linked again.
            CUBIN if bytes.starts_with(LINKED_MAGIC) => {
                let text = text_of_bytes(bytes, &mut self.jit)?;
                self.inputs.push(text);
                Ok(())
            }
            CUBIN => text_of_bytes(bytes, &mut self.jit).and(Err(err::NO_BINARY_FOR_GPU)),
            3..=5 => {
                self.jit.say_error(&format!(
                    "error   : {name}: the software device links PTX and fat binaries only"
                ));
                Err(err::NO_BINARY_FOR_GPU)
            }
            _ => Err(err::INVALID_VALUE),
        }
    }

    pub(crate) fn complete(&mut self) -> CuResult<(*const u8, usize)> {
        // The client may still be reading the earlier output.
        if let Some(output) = &self.output {
            return Ok((output.as_ptr(), output.len()));
        }
        let merged = match self.inputs.as_slice() {
            [] => return Err(err::INVALID_VALUE),
            [one] => one.clone(),
            many => match merge(many) {
                Ok(text) => text,
                Err(message) => {
                    self.jit.say_error(&format!("error   : {message}"));
                    self.jit.finish();
                    return Err(err::INVALID_PTX);
                }
            },
        };
        // Compiling here reports undefined names where a linker does.
        let compiled = super::image::compile(&merged, &mut self.jit);
        self.jit.finish();
        compiled?;
        let mut bytes = LINKED_MAGIC.to_vec();
        bytes.extend(format!("{:016x}", merged.len()).into_bytes());
        bytes.extend(merged.into_bytes());
        bytes.push(0);
        let output = self.output.insert(bytes.into());
        Ok((output.as_ptr(), output.len()))
    }
}

/// One text out of several.
fn merge(texts: &[String]) -> Result<String, String> {
    let mut modules = Vec::new();
    for text in texts {
        modules
            .push(fercuda_ptx::parse(text).map_err(|e| format!("line {}: {}", e.line, e.message))?);
    }
    let name_of = |module: &PtxModule, item: &Item| match item {
        Item::Var(v) => Some((
            module.symbols.name(v.name).to_owned(),
            v.linkage,
            v.linkage != Linkage::Extern,
        )),
        Item::Function(f) => Some((
            module.symbols.name(f.name).to_owned(),
            f.linkage,
            f.body.is_some(),
        )),
        _ => None,
    };
    let mut defined: FxHashMap<String, (usize, Linkage)> = FxHashMap::default();
    for (i, module) in modules.iter().enumerate() {
        for item in &module.items {
            let Some((name, linkage, defines)) = name_of(module, item) else {
                continue;
            };
            if !defines || linkage == Linkage::Local {
                continue;
            }
            match defined.get(&name) {
                Some((_, Linkage::Visible)) if linkage == Linkage::Visible => {
                    return Err(format!("Multiple definition of '{name}'"));
                }
                Some((_, Linkage::Visible)) => {}
                Some(_) if linkage != Linkage::Visible => {}
                _ => {
                    defined.insert(name, (i, linkage));
                }
            }
        }
    }
    let mut taken: FxHashSet<String> = defined.keys().cloned().collect();
    let mut files = 0;
    // Variables come first, so that every name is known before it is used.
    let (mut header, mut variables, mut code) = (String::new(), String::new(), String::new());
    for (i, mut module) in modules.into_iter().enumerate() {
        let mut renames: FxHashMap<String, String> = FxHashMap::default();
        for item in &module.items {
            if let Some((name, Linkage::Local, true)) = name_of(&module, item)
                && !taken.insert(name.clone())
                && !renames.contains_key(&name)
            {
                let fresh = (0..)
                    .map(|n| format!("{name}$link{i}_{n}"))
                    .find(|n| !taken.contains(n));
                let fresh = fresh.unwrap_or_default();
                taken.insert(fresh.clone());
                renames.insert(name, fresh);
            }
        }
        let symbols = module.symbols.clone();
        let keep = |item: &Item| match item {
            Item::Section { .. } => false,
            Item::Var(v) => {
                let name = symbols.name(v.name);
                match (v.linkage, defined.get(name)) {
                    (Linkage::Local, _) => true,
                    (Linkage::Extern, Some(_)) => false,
                    (_, Some((owner, _))) => *owner == i,
                    (_, None) => true,
                }
            }
            Item::Function(f) => {
                let name = symbols.name(f.name);
                match (&f.body, defined.get(name)) {
                    // Kept as a forward declaration where the definition comes later.
                    (None, Some((owner, _))) => *owner >= i,
                    (Some(_), Some((owner, _))) if f.linkage != Linkage::Local => *owner == i,
                    _ => true,
                }
            }
            _ => true,
        };
        module.items.retain(keep);
        let mut highest = files;
        for item in &mut module.items {
            match item {
                Item::Function(f) if f.body.is_none() => {
                    if let Some((_, linkage)) = defined.get(symbols.name(f.name)) {
                        f.linkage = *linkage;
                    }
                }
                Item::File { index, .. } => {
                    *index += files;
                    highest = highest.max(*index);
                }
                Item::Function(f) => f.body.iter_mut().for_each(|b| shift_files(b, files)),
                _ => {}
            }
        }
        files = highest;
        let all = std::mem::take(&mut module.items);
        let (variables_only, others): (Vec<Item>, Vec<Item>) =
            all.into_iter().partition(|i| matches!(i, Item::Var(_)));
        for (items, out) in [(variables_only, &mut variables), (others, &mut code)] {
            module.items = items;
            let text = rename(&fercuda_ptx::print(&module), &renames);
            let body = strip_header(&text);
            if header.is_empty() {
                header.push_str(&text[..text.len() - body.len()]);
            }
            out.push_str(body);
        }
    }
    Ok(header + &variables + &code)
}

fn shift_files(body: &mut [Stmt], by: u32) {
    for stmt in body {
        match stmt {
            Stmt::Loc(loc) => {
                loc.file += by;
                if let Some(inlined) = &mut loc.inlined {
                    inlined.file += by;
                }
            }
            Stmt::Block(inner) => shift_files(inner, by),
            _ => {}
        }
    }
}

/// The text behind `.address_size`.
fn strip_header(text: &str) -> &str {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        at += line.len();
        if line.trim_start().starts_with(".address_size") {
            return &text[at..];
        }
    }
    text
}

/// Replaces whole names outside quotes.
fn rename(text: &str, renames: &FxHashMap<String, String>) -> String {
    if renames.is_empty() {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%');
    while let Some(c) = rest.chars().next() {
        if c == '"' {
            let end = rest[1..].find('"').map_or(rest.len(), |n| n + 2);
            out.push_str(&rest[..end]);
            rest = &rest[end..];
        } else if is_name(c) {
            let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
            let name = &rest[..end];
            out.push_str(renames.get(name).map_or(name, String::as_str));
            rest = &rest[end..];
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

    #[test]
    fn a_local_name_that_is_taken_is_renamed_everywhere() {
        let a = format!("{HEAD}.global .u32 counter;\n.visible .entry a() {{ ret; }}\n");
        let b = format!(
            "{HEAD}.global .u32 counter;\n.visible .entry b() {{\n.reg .b32 %r;\nld.global.u32 %r, [counter];\nret;\n}}\n"
        );
        let merged = merge(&[a, b]).unwrap();
        assert_eq!(merged.matches("[counter$link1_0]").count(), 1, "{merged}");
        assert!(fercuda_ptx::parse(&merged).is_ok());
    }

    #[test]
    fn a_declaration_gives_way_to_the_definition() {
        let a = format!(
            "{HEAD}.extern .func twice(.param .b32 x);\n.visible .entry a() {{\n.param .b32 p;\ncall twice, (p);\nret;\n}}\n"
        );
        let b = format!("{HEAD}.visible .func twice(.param .b32 x) {{ ret; }}\n");
        let merged = merge(&[a.clone(), b.clone()]).unwrap();
        assert_eq!(merged.matches(".extern").count(), 0, "{merged}");
        assert!(
            fercuda_ptx::check(&fercuda_ptx::parse(&merged).unwrap()).is_empty(),
            "{merged}"
        );
        assert!(merge(&[a, b.clone(), b]).is_err());
    }
}
