//! Import graph of each crate's files, and the circles in it.
//!
//! An arrow leads from file A to file B if code of A that is not for tests names an item that B
//! declares, by a `use` or by a path, whichever re-exports lie between. Files that name each
//! other, directly or through others, are a circle: none of them can be understood alone. The
//! declaration `mod b;` and a re-export `pub use b::Item` are no arrow, so that a root may be
//! the face of its folder.
//!
//! Invariant: a name that cannot be resolved, of another crate or made by a macro, is no arrow;
//! a circle that is reported has an item for each of its arrows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result};
use syn::visit::{self, Visit};

/// A file's place in the crate: the path of its module from the root.
type ModulePath = Vec<String>;

/// What an import or a declaration of a module stands for.
#[derive(Clone, Debug)]
enum Binding {
    /// An item that the module's own file declares.
    Declared,
    /// A child module.
    Module,
    /// Another name for a path, as written in this module.
    Alias(Vec<String>),
}

#[derive(Default)]
struct SourceModule {
    /// The file that holds it.
    file: String,
    names: BTreeMap<String, Binding>,
    /// Modules whose names are imported whole.
    globs: Vec<Vec<String>>,
    /// Paths that its code names, with imports that are not public.
    uses: Vec<Vec<String>>,
}

/// The arrows between files: from, to, and the names.
pub(super) type Arrows = BTreeMap<(String, String), BTreeSet<String>>;

/// The modules of a crate.
#[derive(Default)]
pub(super) struct ImportGraph {
    modules: BTreeMap<ModulePath, SourceModule>,
}

impl ImportGraph {
    /// Reads the crate whose root is `root`, a path among `files`.
    ///
    /// # Errors
    /// If a file is not Rust.
    pub(super) fn read(root: &str, files: &BTreeMap<String, String>) -> Result<ImportGraph> {
        let mut graph = ImportGraph::default();
        let folder = Path::new(root).parent().unwrap_or(Path::new(""));
        graph.add(root, folder, Vec::new(), files)?;
        Ok(graph)
    }

    fn add(
        &mut self,
        file: &str,
        folder: &Path,
        path: ModulePath,
        files: &BTreeMap<String, String>,
    ) -> Result<()> {
        let Some(text) = files.get(file) else {
            return Ok(());
        };
        let parsed = syn::parse_file(text).with_context(|| file.to_owned())?;
        self.add_items(file, folder, path, &parsed.items, files)
    }

    fn add_items(
        &mut self,
        file: &str,
        folder: &Path,
        path: ModulePath,
        items: &[syn::Item],
        files: &BTreeMap<String, String>,
    ) -> Result<()> {
        let mut module = SourceModule {
            file: file.to_owned(),
            ..SourceModule::default()
        };
        let mut code = Code::default();
        for item in items {
            if is_for_tests(attributes(item)) {
                continue;
            }
            if let syn::Item::Mod(child) = item {
                let name = child.ident.to_string();
                module.names.insert(name.clone(), Binding::Module);
                let mut below = path.clone();
                below.push(name.clone());
                match &child.content {
                    Some((_, items)) => {
                        self.add_items(file, &folder.join(&name), below, items, files)?;
                    }
                    None => {
                        let (file, folder) = place(file, folder, &name, &child.attrs, files);
                        self.add(&file, &folder, below, files)?;
                    }
                }
                continue;
            }
            if let syn::Item::Use(import) = item {
                let is_public = !matches!(import.vis, syn::Visibility::Inherited);
                module.import(&import.tree, &mut Vec::new(), is_public);
                continue;
            }
            if let Some(name) = declared(item) {
                // A function may have the name of a module: a path goes on in the module.
                module.names.entry(name).or_insert(Binding::Declared);
            }
            code.visit_item(item);
        }
        module.uses.extend(code.paths);
        self.modules.insert(path, module);
        Ok(())
    }

    /// The file that declares what `path`, written in the module `from`, stands for.
    fn file_of(&self, from: &ModulePath, path: &[String], depth: usize) -> Option<&str> {
        // Aliases can lead in a ring, in code that does not compile.
        if depth > 16 {
            return None;
        }
        let (mut at, mut rest, is_rooted) = match path.first()?.as_str() {
            "crate" => (Vec::new(), &path[1..], true),
            "self" => (from.clone(), &path[1..], true),
            "super" => {
                let mut parent = from.clone();
                parent.pop()?;
                (parent, &path[1..], true)
            }
            _ => (from.clone(), path, false),
        };
        while is_rooted && rest.first().is_some_and(|it| it == "super") {
            at.pop()?;
            rest = &rest[1..];
        }
        loop {
            let module = self.modules.get(&at)?;
            let Some(name) = rest.first() else {
                return Some(&module.file);
            };
            match module.names.get(name) {
                Some(Binding::Declared) => return Some(&module.file),
                Some(Binding::Module) => {
                    at.push(name.clone());
                    rest = &rest[1..];
                }
                Some(Binding::Alias(target)) => {
                    // `use x;` of another crate binds a name to itself.
                    if target.first() == Some(name) && target.len() == 1 {
                        return None;
                    }
                    let whole: Vec<String> = target.iter().chain(&rest[1..]).cloned().collect();
                    return self.file_of(&at, &whole, depth + 1);
                }
                None => {
                    let mut globs = module.globs.iter();
                    return globs.find_map(|glob| {
                        let whole: Vec<String> = glob.iter().chain(rest).cloned().collect();
                        self.file_of(&at, &whole, depth + 1)
                    });
                }
            }
        }
    }

    /// Every arrow.
    pub(super) fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::new();
        for (path, module) in &self.modules {
            for used in &module.uses {
                let Some(file) = self.file_of(path, used, 0) else {
                    continue;
                };
                if file != module.file {
                    let key = (module.file.clone(), file.to_owned());
                    arrows.entry(key).or_default().insert(used.join("::"));
                }
            }
        }
        arrows
    }
}

impl SourceModule {
    fn import(&mut self, tree: &syn::UseTree, before: &mut Vec<String>, is_public: bool) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.import(&path.tree, before, is_public);
                before.pop();
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, before, is_public);
                }
            }
            syn::UseTree::Name(name) => {
                let name = name.ident.to_string();
                self.bind(name.clone(), name, before, is_public);
            }
            syn::UseTree::Rename(rename) => {
                let (name, other) = (rename.ident.to_string(), rename.rename.to_string());
                self.bind(name, other, before, is_public);
            }
            syn::UseTree::Glob(_) => {
                self.globs.push(before.clone());
                if !is_public {
                    self.uses.push(before.clone());
                }
            }
        }
    }

    fn bind(&mut self, name: String, known_as: String, before: &[String], is_public: bool) {
        let mut path = before.to_vec();
        let known_as = match name.as_str() {
            // `use a::{self}` binds `a`.
            "self" => path.last().cloned().unwrap_or(known_as),
            _ => {
                path.push(name);
                known_as
            }
        };
        if !is_public {
            self.uses.push(path.clone());
        }
        self.names.entry(known_as).or_insert(Binding::Alias(path));
    }
}

/// Paths that an item's code names.
#[derive(Default)]
struct Code {
    paths: Vec<Vec<String>>,
}

impl<'ast> Visit<'ast> for Code {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let segments = path.segments.iter();
            self.paths
                .push(segments.map(|it| it.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {
        // `pub(super)` names a module that may use the item; it uses none of that module's.
    }

    fn visit_item_use(&mut self, import: &'ast syn::ItemUse) {
        // Inside a function: the same as at the top.
        let mut module = SourceModule::default();
        module.import(&import.tree, &mut Vec::new(), false);
        self.paths.extend(module.uses);
    }

    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }
}

/// The attributes of an item of any kind that can be for tests.
pub(super) fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(it) => &it.attrs,
        syn::Item::Enum(it) => &it.attrs,
        syn::Item::Fn(it) => &it.attrs,
        syn::Item::ForeignMod(it) => &it.attrs,
        syn::Item::Impl(it) => &it.attrs,
        syn::Item::Macro(it) => &it.attrs,
        syn::Item::Mod(it) => &it.attrs,
        syn::Item::Static(it) => &it.attrs,
        syn::Item::Struct(it) => &it.attrs,
        syn::Item::Trait(it) => &it.attrs,
        syn::Item::Type(it) => &it.attrs,
        syn::Item::Union(it) => &it.attrs,
        syn::Item::Use(it) => &it.attrs,
        _ => &[],
    }
}

/// Whether an item is compiled for tests alone: `#[cfg(test)]`, or with other conditions.
pub(super) fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_condition = attribute.path().is_ident("cfg");
        is_condition
            && attribute.meta.require_list().is_ok_and(|list| {
                let text = list.tokens.to_string();
                text == "test" || (text.starts_with("all") && text.contains("test"))
            })
    })
}

fn declared(item: &syn::Item) -> Option<String> {
    let name = match item {
        syn::Item::Const(it) => &it.ident,
        syn::Item::Enum(it) => &it.ident,
        syn::Item::Fn(it) => &it.sig.ident,
        syn::Item::Macro(it) => it.ident.as_ref()?,
        syn::Item::Static(it) => &it.ident,
        syn::Item::Struct(it) => &it.ident,
        syn::Item::Trait(it) => &it.ident,
        syn::Item::Type(it) => &it.ident,
        syn::Item::Union(it) => &it.ident,
        _ => return None,
    };
    Some(name.to_string())
}

/// The file of the child module `name`, and the folder of that one's children.
fn place(
    file: &str,
    folder: &Path,
    name: &str,
    attributes: &[syn::Attribute],
    files: &BTreeMap<String, String>,
) -> (String, std::path::PathBuf) {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    for attribute in attributes {
        if attribute.path().is_ident("path")
            && let syn::Meta::NameValue(pair) = &attribute.meta
            && let syn::Expr::Lit(literal) = &pair.value
            && let syn::Lit::Str(path) = &literal.lit
        {
            let beside = Path::new(file).parent().unwrap_or(Path::new(""));
            let path = beside.join(path.value());
            let below = path.parent().unwrap_or(Path::new("")).to_owned();
            return (text(&path), below);
        }
    }
    let below = folder.join(name);
    let plain = text(&folder.join(format!("{name}.rs")));
    let file = match files.contains_key(&plain) {
        true => plain,
        false => text(&below.join("mod.rs")),
    };
    (file, below)
}

/// Groups of files that reach each other, by Tarjan's algorithm of strongly connected
/// components (1972); single files are no group. Sorted.
pub(super) fn circles(arrows: &Arrows) -> Vec<Vec<String>> {
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (from, to) in arrows.keys() {
        next.entry(from).or_default().push(to);
        next.entry(to).or_default();
    }
    let mut search = Search {
        next: &next,
        index: BTreeMap::new(),
        low: BTreeMap::new(),
        stack: Vec::new(),
        found: Vec::new(),
    };
    for file in next.keys() {
        if !search.index.contains_key(file) {
            search.visit(file);
        }
    }
    let mut found = search.found;
    found.sort();
    found
}

struct Search<'a> {
    next: &'a BTreeMap<&'a str, Vec<&'a str>>,
    index: BTreeMap<&'a str, usize>,
    low: BTreeMap<&'a str, usize>,
    stack: Vec<&'a str>,
    found: Vec<Vec<String>>,
}

impl<'a> Search<'a> {
    fn visit(&mut self, file: &'a str) {
        let own = self.index.len();
        self.index.insert(file, own);
        self.low.insert(file, own);
        self.stack.push(file);
        for &to in &self.next[file] {
            let low = if !self.index.contains_key(to) {
                self.visit(to);
                self.low[to]
            } else if self.stack.contains(&to) {
                self.index[to]
            } else {
                continue;
            };
            let least = low.min(self.low[file]);
            self.low.insert(file, least);
        }
        if self.low[file] == own {
            let begin = self.stack.iter().position(|it| *it == file).unwrap_or(0);
            let mut group: Vec<String> = self.stack.drain(begin..).map(str::to_owned).collect();
            group.sort();
            if group.len() > 1 {
                self.found.push(group);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(files: &[(&str, &str)]) -> Arrows {
        let files = files
            .iter()
            .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        ImportGraph::read("src/lib.rs", &files.collect())
            .unwrap()
            .arrows()
    }

    #[test]
    fn an_item_is_followed_through_re_exports_to_its_file() {
        let arrows = graph(&[
            ("src/lib.rs", "mod a; mod b; pub use a::A;"),
            ("src/a.rs", "mod deep; pub use deep::Deep; pub struct A;"),
            ("src/a/deep.rs", "pub struct Deep;"),
            (
                "src/b.rs",
                "use crate::A; fn f() { super::a::Deep; std::mem::drop(1) }",
            ),
        ]);
        let pairs: Vec<_> = arrows
            .keys()
            .map(|(a, b)| (a.as_str(), b.as_str()))
            .collect();
        assert_eq!(
            pairs,
            [("src/b.rs", "src/a.rs"), ("src/b.rs", "src/a/deep.rs")]
        );
        assert_eq!(circles(&arrows), [[""; 0]; 0]);
    }

    #[test]
    fn files_that_name_each_other_are_a_circle_of_any_length() {
        let arrows = graph(&[
            ("src/lib.rs", "mod a; mod b; mod c; mod d;"),
            ("src/a.rs", "pub struct A; fn f(_: crate::b::B) {}"),
            ("src/b.rs", "pub struct B(super::c::C);"),
            ("src/c.rs", "use crate::a::A; pub struct C; impl A {}"),
            ("src/d.rs", "use crate::{a::A, b::*}; fn f() -> B { A }"),
        ]);
        assert_eq!(circles(&arrows), [["src/a.rs", "src/b.rs", "src/c.rs"]]);
        assert_eq!(arrows[&("src/d.rs".into(), "src/b.rs".into())].len(), 2);
    }

    #[test]
    fn a_parent_with_items_of_its_own_and_its_child_can_be_a_circle() {
        let arrows = graph(&[
            ("src/lib.rs", "mod a;"),
            (
                "src/a.rs",
                "mod child; use child::Part; pub struct Whole(Part);",
            ),
            (
                "src/a/child.rs",
                "use super::Whole; pub struct Part; fn f(_: Whole) {}",
            ),
        ]);
        assert_eq!(circles(&arrows), [["src/a.rs", "src/a/child.rs"]]);
    }

    #[test]
    fn visibility_draws_no_arrow() {
        let arrows = graph(&[
            ("src/lib.rs", "mod a;"),
            ("src/a.rs", "mod child; use child::Part;"),
            (
                "src/a/child.rs",
                "pub(super) struct Part { pub(crate) one: u8, pub(in crate::a) two: u8 }",
            ),
        ]);
        let pairs: Vec<_> = arrows.keys().collect();
        assert_eq!(
            pairs,
            [&("src/a.rs".to_owned(), "src/a/child.rs".to_owned())]
        );
    }

    #[test]
    fn code_for_tests_draws_no_arrow() {
        let arrows = graph(&[
            ("src/lib.rs", "mod a; mod b;"),
            (
                "src/a.rs",
                "pub struct A; #[cfg(test)] mod tests { use crate::b::B; }",
            ),
            (
                "src/b.rs",
                "use crate::a::A; pub struct B(A); #[cfg(all(test, unix))] fn f() {}",
            ),
        ]);
        assert_eq!(arrows.len(), 1);
    }
}
